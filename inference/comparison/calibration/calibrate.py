"""Simulation-based calibration of every Bayesian method on a program: run, rank, judge.

One method is one compiled run over all trials (`many`); the scalars whose ranks are taken
do not depend on the names of hidden units, between whose orders and turns draws wander (`scalars`:
sums over units, sizes, inner products, log densities); whether the ranks are uniform is decided
exactly (`uniformity`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models.data import InputError
from numpyro.diagnostics import effective_sample_size

from ...baselines.samplers import (
    binary_gibbs_kernel,
    discrete_gibbs_kernel,
    no_binary_gibbs,
    no_discrete_gibbs,
)
from ...evaluation.evidence import likelihood
from ...evaluation.symmetry import Exchange, Rotation, form_of, symmetries
from ...reading.anatomy import Anatomy, inspect
from ...reading.arguments import rows_of
from ...reading.log_joint import log_shared
from ...reading.recognition.papers import Known
from ...types import Params
from ..judge import in_one_line
from .many import (
    ManyDraws,
    Trials,
    coverage,
    gibbs_kernel,
    has_coverage,
    many_chains,
    many_svi,
    nuts_kernel,
)
from .uniformity import LEVEL, p_value, ranks, shape, together

NUM_DRAWS = 99
"""Draws that the truth is ranked among: a hundred ranks."""
THIN = 3
"""Draws of a sampler from which one is kept: ranks are uniform among independent draws."""
LIKELIHOOD = "log likelihood"
STUCK = 3.0
"""Standard deviations of the draws by which all of them may lie below the truth."""
THIN_GIBBS = 10
"""Bits and parameters in turn move in smaller steps."""


class Bayesian(NamedTuple):
    """A method that says what the parameters may be."""

    run: Callable[..., ManyDraws]
    thin: int
    refuses: Callable[[Anatomy], str | None] = lambda _: None


def _rows_unknown(anatomy: Anatomy) -> str | None:
    """Why no flow: it bends all unknowns at once, and here a hundred times over."""
    if any(x.num_values is None for x in anatomy.latents):
        return "it would bend the latents of every row too, in every trial at once"
    return None


def _gibbs(bits: Callable, refuses: Callable) -> Bayesian:
    run = partial(many_chains, partial(gibbs_kernel, bits))
    return Bayesian(run, THIN_GIBBS, refuses)


METHODS: dict[str, Bayesian] = {
    "NUTS": Bayesian(partial(many_chains, nuts_kernel), THIN),
    "LatentGibbs": _gibbs(binary_gibbs_kernel, no_binary_gibbs),
    "DiscreteGibbs": _gibbs(discrete_gibbs_kernel, no_discrete_gibbs),
    "SVI mean_field": Bayesian(many_svi, 1),
    "SVI low_rank": Bayesian(partial(many_svi, guide="low_rank"), 1),
    "SVI flow": Bayesian(partial(many_svi, guide="flow", num_steps=2000), 1, _rows_unknown),
}


class Ranked(NamedTuple):
    """What one method's draws say of one scalar."""

    ranks: np.ndarray  # (num_trials,)
    p_value: float
    shape: str
    effective: float  # draws' worth of the `NUM_DRAWS`, median over trials


class Judged(NamedTuple):
    """One method on all trials."""

    scalars: dict[str, Ranked]
    p_value: float  # of all scalars together
    seconds: float  # compiling and running
    diverging: float  # share of draws
    stuck: int  # trials whose chain never came near the likelihood of the truth
    lost: int  # trials with draws that are no numbers
    draws: Params  # (num_trials, all draws, ...)

    @property
    def calibrated(self) -> bool:
        return self.p_value > 1.0 - LEVEL and not self.lost


class Calibration(NamedTuple):
    """All methods on all trials."""

    trials: Trials
    methods: dict[str, Judged]
    refused: dict[str, str]  # method -> why it does not apply
    failed: dict[str, str]  # method -> how it ended
    coverage: dict[str, dict[str, Any]] | None


def chosen(anatomy: Anatomy, wanted: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """The methods asked for, by default all; and why some do not apply."""
    plain = lambda word: word.strip().lower().replace("_", " ")  # noqa: E731
    known = {plain(name): name for name in METHODS}
    for word in wanted or ():
        if plain(word) not in known:
            raise InputError(
                f"--methods {word.strip()}: has no posterior to be ranked in, or is unknown; "
                f"choose from {', '.join(METHODS)}"
            )
    names = METHODS if wanted is None else [known[plain(word)] for word in wanted]
    reasons = {name: METHODS[name].refuses(anatomy) for name in dict.fromkeys(names)}
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    return [name for name in reasons if name not in refused], refused


def calibrate(
    trials: Trials,
    rng_key: Array,
    wanted: list[str] | None = None,
    on_result: Callable[[str, Judged], None] | None = None,
) -> Calibration:
    """Run the methods on all trials and rank the truth.

    :param on_result: called as each method ends.
    """
    anatomy = inspect(trials.model, (trials.data[0],), trials.kwargs)
    names, refused = chosen(anatomy, wanted)
    if not names:
        raise InputError(f"no method is left: {refused}")
    measure = scalars(trials.model, trials.data[0], **trials.kwargs)
    over_trials = jax.jit(lambda params, data: jax.lax.map(lambda x: measure(*x), (params, data)))
    truth = over_trials(jax.tree.map(lambda x: x[:, None], trials.truth), trials.data)
    truth = {name: np.asarray(value)[:, 0] for name, value in truth.items()}
    # A flat prior, or weights that sum to one: nothing to rank.
    varying = [x for x, v in truth.items() if np.ptp(v) > 1e-4 * np.abs(v).max()]
    varying.sort(key=lambda x: (not x.startswith("log "), x))  # what knows all sites comes first
    key_methods, key_fit = random.split(rng_key)
    judged: dict[str, Judged] = {}
    failed: dict[str, str] = {}
    for name, key in zip(names, random.split(key_methods, len(names)), strict=True):
        began = time.perf_counter()
        method = METHODS[name]
        try:
            draws = method.run(
                trials.model, key, trials.data, num_samples=method.thin * NUM_DRAWS, **trials.kwargs
            )  # fmt: skip
            kept = jax.tree.map(lambda x: x[:, method.thin - 1 :: method.thin], draws.params)  # noqa: B023
            sampled = {x: np.asarray(v) for x, v in over_trials(kept, trials.data).items()}
        except Exception as error:  # the others go on
            seconds = time.perf_counter() - began
            failed[name] = f"failed after {seconds:.0f} s: {in_one_line(error, 300)}"
            continue
        ranked = {x: _rank(truth[x], sampled[x]) for x in varying}
        judged[name] = Judged(
            ranked, together([x.p_value for x in ranked.values()]), time.perf_counter() - began,
            float(np.mean(draws.diverging)), stuck(truth[LIKELIHOOD], sampled[LIKELIHOOD]),
            int((~np.isfinite(sampled[LIKELIHOOD])).any(1).sum()), draws.params,
        )  # fmt: skip
        if on_result is not None:
            on_result(name, judged[name])
    if not judged:
        raise InputError(f"no method finished: {failed}")
    table = None
    if "NUTS" in judged and has_coverage(trials.model, trials.data[0], **trials.kwargs):
        table = coverage(
            trials.model, key_fit, trials.truth, trials.data, judged["NUTS"].draws, **trials.kwargs
        )
    return Calibration(trials, judged, refused, failed, table)


def stuck(truth: np.ndarray, draws: np.ndarray) -> int:
    """Trials in which every draw explains the data far worse than the truth does.

    A chain in a mode that holds no mass looks so, and so does a guide that has found none.

    >>> stuck(np.array([0.0, 5.0]), np.array([[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]))
    1
    """
    return int((truth - draws.max(1) > STUCK * draws.std(1)).sum())


def _rank(truth: np.ndarray, draws: np.ndarray) -> Ranked:
    place = ranks(truth, draws)
    with np.errstate(all="ignore"):  # a chain that never moved has no effective size
        effective = effective_sample_size(np.swapaxes(draws, 0, 1)[None])
    worth = float(np.median(np.nan_to_num(np.minimum(effective, draws.shape[1]))))
    return Ranked(place, p_value(place, draws.shape[1]), shape(place, draws.shape[1]), worth)


QUADRATURE_NODES = 11
"""Nodes a dimension for factors integrated out: enough where weights are below 3."""


def of_parameters(form: Known | None, params: Params) -> dict[str, Array]:
    """Invariant scalars of one set of parameters, by name.

    :param form: which of our programs it is; the names are then those of the form.

    >>> from latentbits.models import latent_trait
    >>> form = form_of(latent_trait, ((jnp.eye(2),), {}))
    >>> params = {"weights": jnp.array([[3.0, 1.0], [4.0, 1.0]]), "bias": jnp.zeros(2)}
    >>> values = of_parameters(form, params)
    >>> [name for name in sorted(values) if "weights" in name]
    ['weights size', 'weights, largest axis', 'weights, x1·x2']
    >>> round(float(values["weights, x1·x2"]), 3)
    7.0
    """
    known = symmetries(form)
    params = params if form is None else form.read(params)
    turned = {x.site for x in known if isinstance(x, Rotation)}
    exchanged = {site for x in known if isinstance(x, Exchange) for site, _ in x.sites}
    out: dict[str, Array] = {}
    for site, value in params.items():
        if jnp.ndim(value) == 0:
            out[site] = value
            continue
        size = jnp.sqrt(jnp.mean(value**2))
        if site in turned:
            out[f"{site} size"] = size
            out[f"{site}, x1·x2"] = value[:, 0] @ value[:, 1]
            if value.shape[0] > 1:
                out[f"{site}, largest axis"] = jnp.linalg.norm(value, 2)
            continue
        out[f"{site} mean"] = jnp.mean(value)
        if site in exchanged and value.ndim == 1:
            out[f"{site}, largest"] = jnp.max(value)
        else:
            out[f"{site} size"] = size
        if site not in exchanged:
            out[f"{site}, first"] = value.ravel()[0]
    return out


def scalars(model: Callable, data: Array, **kwargs: Any) -> Callable[[Params, Array], dict]:
    """A function of draws of the parameters (num_draws, ...) and of a table of the shape of `data`.

    It gives, beside `of_parameters`, the log likelihood of the table with its latents summed out,
    and the log prior. The first is the scalar most likely to show what is wrong with a posterior
    (Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman & Vehtari 2023).

    >>> from latentbits.models import bernoulli_product
    >>> table = jnp.array([[1.0], [0.0]])
    >>> values = scalars(bernoulli_product, table)({"probs": jnp.array([[0.5], [0.1]])}, table)
    >>> [round(x, 3) for x in jnp.exp(values["log likelihood"]).tolist()]
    [0.25, 0.09]
    """
    anatomy = inspect(model, (data,), kwargs)
    form = form_of(model, ((data,), kwargs))
    rule = likelihood(model, data, num_nodes=QUADRATURE_NODES, **kwargs)
    hollow = rule.rows._replace(leaves=())

    def one(params: Params, table: Array) -> dict[str, Array]:
        rows = hollow._replace(leaves=(table,))
        density = jnp.sum(rule.function(params, rows).value)
        prior = log_shared(model, anatomy, params, rows_of(anatomy, (table,), kwargs))
        return {LIKELIHOOD: density, "log prior": prior, **of_parameters(form, params)}

    def many(draws: Params, table: Array) -> dict[str, Array]:
        return lax.map(lambda params: one(params, table), draws)

    return jax.jit(many)
