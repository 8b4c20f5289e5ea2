"""Simulation-based calibration of every Bayesian method on a program: run, rank, judge.

One method is one compiled run over all trials, `vmap` over the data sets with one chain each:
warm-up, draws and all happen in one call, without clock or budget. The scalars whose ranks are
taken do not depend on the names, signs and turns of hidden units, between which draws wander
(`scalars`: log densities, shares in order of size, sizes, inner products), so that nothing is
aligned to the truth. Whether the ranks are uniform, and whether central intervals hold the truth as
often as they say, is decided exactly (`uniformity`). Every table counts: draws that are no numbers
do not hold the truth.
"""

from __future__ import annotations

import inspect as python
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax, random
from latentbits.models.data import InputError
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import NUTS, SVI, Trace_ELBO

from ...baselines import samplers
from ...baselines.starts import climbs_of, differentiable
from ...baselines.variational import GUIDES, STEP_SIZES
from ...evaluation.evidence import likelihood
from ...evaluation.symmetry import Exchange, Rotation, form_of, symmetries
from ...files.cards import CARDS, Setting
from ...files.catalogue import blame, find_program
from ...files.output import words
from ...methods.continuous.quadrature import QuadratureEM
from ...methods.discrete.em import EM
from ...posterior.draws import posterior_draws
from ...reading.anatomy import Anatomy, inspect
from ...reading.arguments import rows_of
from ...reading.log_joint import log_joint, log_shared
from ...reading.recognition.papers import Known
from ...reading.states import AllStates
from ...rows.chunks import Rows
from ...types import Params
from ..judge import in_one_line
from .uniformity import LEVEL, NUM_DRAWS, coverage, p_value, ranks, shape, together

THIN = 4
"""Draws of a sampler from which one is kept: ranks are uniform among independent draws."""
LIKELIHOOD = "log likelihood"
STUCK = 3.0
"""Standard deviations of the draws by which all of them may lie below the truth."""
THIN_GIBBS = 10
"""Bits and parameters in turn move in smaller steps."""
WARMUP = 200
EM_STEPS = 300
"""Before draws about a fit."""
MAX_TREE_DEPTH = 5
"""All data sets wait for the one whose trajectory is longest: NUTS may take 2⁵ − 1 steps a draw.
Wherever a trajectory is cut off, the posterior stays invariant; only the draws may be nearer."""
MOST_STATES = 1024
"""Of the discrete latents of a datum, up to which their shares are computed."""
QUADRATURE_NODES = 11
"""Nodes a dimension for factors integrated out: enough where weights are below 3."""


class Trials(NamedTuple):
    """Parameters and data of every trial."""

    name: str
    model: Callable  # the program with the priors bound
    kwargs: dict[str, Any]  # its sizes
    truth: Params  # (num_trials, ...) by site
    data: Array  # (num_trials, num_data, num_features)
    held_out: Array  # (num_trials, 1, num_features) a row that no method sees, of another table
    setting: Setting


def setting_of(name: str, given: dict[str, Any]) -> Setting:
    """The setting of a program; `given` has sizes that a person wants otherwise."""
    setting = CARDS[name].calibrate() if name in CARDS else Setting(60, None, {}, {})
    counts = {x: given[x] for x in ("num_data", "num_features") if x in given}
    sizes = {x: v for x, v in given.items() if x not in counts}
    return setting._replace(**counts, sizes={**setting.sizes, **sizes})


def simulate(name: str, setting: Setting, num_trials: int, rng_key: Array) -> Trials:
    """Draw parameters, then data, from the program itself.

    Each table is drawn with one row more, which is held out for the next table. Given its data, a
    table's own row is not independent of the truth, which would then be no draw like the others:
    log p(row | truth) would rank too high in the exact posterior.

    >>> drawn = simulate("bernoulli_product", setting_of("bernoulli_product", {}), 3, random.key(0))
    >>> drawn.data.shape, drawn.truth["probs"].shape
    ((3, 60, 4), (3, 4))
    """
    program = find_program(name)
    takes = python.signature(program).parameters
    wrong = [x for x in setting.sizes if x not in takes]
    if wrong and all(x.kind is not x.VAR_KEYWORD for x in takes.values()):
        raise InputError(f"--set {wrong[0]}: {name} takes {', '.join(takes)}")
    model = partial(program, **setting.priors) if setting.priors else program
    counts: dict[str, Any] = {"num_data": setting.num_data + 1}
    if setting.num_features is not None:
        counts["num_features"] = setting.num_features

    def draw(key: Array) -> dict[str, Array]:
        with handlers.trace() as trace, handlers.seed(rng_seed=key):
            table = model(**counts, **setting.sizes)
        sampled = [x for x in trace.values() if x["type"] == "sample"]
        outside = {x["name"]: x["value"] for x in sampled if not x["cond_indep_stack"]}
        if table is None:
            raise InputError(f"{name} returns no table: it must return what it simulates")
        return {**outside, "observed": table.astype(float)}

    with blame(name, "cannot be simulated"):
        sites = jax.jit(jax.vmap(draw))(random.split(rng_key, num_trials))
    data = sites.pop("observed")
    held_out = jnp.roll(data[:, -1:], 1, axis=0)
    return Trials(name, model, setting.sizes, sites, data[:, :-1], held_out, setting)


def describe(trials: Trials) -> dict[str, str]:
    """The prior of each site, in words; those of the program where nothing narrower is bound."""
    takes = python.signature(trials.model).parameters
    own = {x: p.default for x, p in takes.items() if x.startswith("prior_")}
    priors = {x.removeprefix("prior_"): v for x, v in {**own, **trials.setting.priors}.items()}

    def tell(prior: Any) -> str:
        if prior is None:
            return "uniform on the simplex"
        return f"Dirichlet({prior:g})" if isinstance(prior, float) else words(prior)

    drawn = [x for x in priors if any(site.startswith(x) for site in trials.truth)]
    return {x: tell(priors[x]) for x in drawn if priors[x] is not python.Parameter.empty}


class ManyDraws(NamedTuple):
    """Draws of the parameters given each data set."""

    params: Any  # (num_sets, num_samples, ...) by site
    diverging: Any  # (num_sets, num_samples), False where a method knows no divergence


def many_chains(
    model: Callable, rng_key: Array, data: Array, *, bits: samplers.Bits | None = None,
    num_samples: int = 300, **kwargs: Any,
) -> ManyDraws:  # fmt: skip
    """NUTS on all continuous sites, a chain for each of ``data[i]``.

    :param bits: how discrete latents are drawn in turn; by default they are summed out.
    """
    anatomy = inspect(model, (data[0],), kwargs)
    climbs = climbs_of(model, anatomy)
    make = partial(NUTS, max_tree_depth=MAX_TREE_DEPTH)

    def one(key: Array, table: Array) -> ManyDraws:
        # Kernels keep what they learn at `init`: one for each trace, none outlives it.
        if bits is None:
            kernel: Any = make(differentiable(model, anatomy))
        else:
            kernel = bits.kernel(model, anatomy, make(model, find_heuristic_step_size=False))
        key_start, key = random.split(key)
        place = None if climbs is None else climbs(key_start, (table,), kwargs)
        state = kernel.init(key, WARMUP, place, model_args=(table,), model_kwargs=kwargs)
        finish = kernel.postprocess_fn((table,), kwargs)

        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (table,), kwargs)
            sites = finish(getattr(state, kernel.sample_field))
            kept = {x: sites[x] for x in anatomy.parameters}  # not the latents of every row
            parts = [state, *getattr(state, "block_states", ())]
            flags = [x.diverging for x in parts if hasattr(x, "diverging")]
            return state, ManyDraws(kept, jnp.any(jnp.array(flags, bool)))

        # One loop for both: what is compiled twice takes twice as long.
        draws = lax.scan(step, state, None, length=WARMUP + num_samples)[1]
        return jax.tree.map(lambda x: x[WARMUP:], draws)

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def many_svi(
    model: Callable,
    rng_key: Array,
    data: Array,
    *,
    guide: str = "mean_field",
    num_steps: int = 1000,
    num_samples: int = 300,
    **kwargs: Any,
) -> ManyDraws:
    """Variational inference with one of `baselines.variational.GUIDES`, for each of ``data[i]``.

    >>> from latentbits.models import bernoulli_product
    >>> data = random.bernoulli(random.key(0), 0.3, (7, 20, 2)).astype(float)
    >>> draws = many_svi(bernoulli_product, random.key(1), data, num_steps=20, num_samples=10)
    >>> draws.params["probs"].shape
    (7, 10, 2)
    """
    anatomy = inspect(model, (data[0],), kwargs)
    program = differentiable(model, anatomy)
    rates = optax.cosine_decay_schedule(STEP_SIZES.get(guide, 0.03), num_steps)

    def one(key: Array, table: Array) -> ManyDraws:
        # A guide remembers where it began: one for each trace.
        chosen = GUIDES[guide](program)
        engine = SVI(program, chosen, optax.adam(rates), Trace_ELBO(2))
        key_init, key_draw = random.split(key)
        found = engine.run(key_init, num_steps, table, progress_bar=False, **kwargs).params
        draws = chosen.sample_posterior(key_draw, found, sample_shape=(num_samples,))
        never = jnp.zeros(num_samples, bool)
        return ManyDraws({x: draws[x] for x in anatomy.parameters}, never)

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def many_posteriors(
    model: Callable, rng_key: Array, data: Array, *, num_samples: int = 300, **kwargs: Any
) -> ManyDraws:
    """`posterior_draws` about the optimum of EM, for each of ``data[i]``.

    One table after the other, as people call it: what is compiled for the first serves all.
    """
    anatomy = inspect(model, (data[0],), kwargs)
    factors = any(x.num_values is None for x in anatomy.latents)
    engine: Any = (QuadratureEM if factors else EM)(model, prior=True)
    drawn = []
    for key, table in zip(random.split(rng_key, len(data)), np.asarray(data), strict=True):
        fit = engine.run(key, EM_STEPS, table, progress_bar=False, tolerance=1e-7, **kwargs)
        others = fit.optima.others if fit.optima else None
        found = posterior_draws(model, fit.params, table, others=others, rng_key=key, **kwargs)
        if found.how == "NUTS":  # which is compiled anew for each table
            jax.clear_caches()
        flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in found.params.items()}
        count = len(next(iter(flat.values())))
        drawn.append({x: v[np.arange(num_samples) * count // num_samples] for x, v in flat.items()})
    params = {x: np.stack([one[x] for one in drawn]) for x in drawn[0]}
    return ManyDraws(params, np.zeros((len(data), num_samples), bool))


def _not_collapsed(anatomy: Anatomy) -> str | None:
    """Why no draws about a fit: too many continuous latents."""
    factors = sum(x.size for x in anatomy.latents if x.num_values is None)
    return None if factors <= 3 else f"{factors} continuous latents are not integrated out"


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


METHODS: dict[str, Bayesian] = {
    "NUTS": Bayesian(many_chains, THIN),
    **{
        name: Bayesian(partial(many_chains, bits=bits), THIN_GIBBS, bits.problem)
        for name, bits in (("LatentGibbs", samplers.LATENT), ("DiscreteGibbs", samplers.DISCRETE))
    },
    "Laplace": Bayesian(many_posteriors, 1, _not_collapsed),
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
    coverage: dict[str, dict[str, float]]  # of central intervals, by level


class Judged(NamedTuple):
    """One method on all trials."""

    scalars: dict[str, Ranked]
    p_value: float  # of all scalars together
    seconds: float  # compiling and running
    diverging: float  # share of draws
    stuck: int  # trials whose chain never came near the likelihood of the truth
    lost: int  # trials with draws that are no numbers

    @property
    def calibrated(self) -> bool:
        return self.p_value > 1.0 - LEVEL and not self.lost

    @property
    def covers(self) -> bool:
        """Whether all intervals hold the truth as often as they say, within sampling error."""
        each = [x["p_value"] for r in self.scalars.values() for x in r.coverage.values()]
        return together(each) > 1.0 - LEVEL


class Calibration(NamedTuple):
    """All methods on all trials."""

    trials: Trials
    methods: dict[str, Judged]
    refused: dict[str, str]  # method -> why it does not apply
    failed: dict[str, str]  # method -> how it ended


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
    tables = jnp.concatenate([trials.data, trials.held_out], 1)
    measure = scalars(trials.model, tables[0], **trials.kwargs)
    over_trials = jax.jit(lambda params: lax.map(lambda x: measure(*x), (params, tables)))
    truth = over_trials(jax.tree.map(lambda x: x[:, None], trials.truth))
    truth = {name: np.asarray(value)[:, 0] for name, value in truth.items()}
    varying = distinct(truth)
    judged: dict[str, Judged] = {}
    failed: dict[str, str] = {}
    for name, key in zip(names, random.split(rng_key, len(names)), strict=True):
        began = time.perf_counter()
        method = METHODS[name]
        try:
            draws = method.run(
                trials.model, key, trials.data, num_samples=method.thin * NUM_DRAWS, **trials.kwargs
            )  # fmt: skip
            kept = jax.tree.map(lambda x: x[:, method.thin - 1 :: method.thin], draws.params)  # noqa: B023
            sampled = {x: np.asarray(v) for x, v in over_trials(kept).items()}
        except Exception as error:  # the others go on
            seconds = time.perf_counter() - began
            failed[name] = f"failed after {seconds:.0f} s: {in_one_line(error, 300)}"
            continue
        ranked = {x: _rank(truth[x], sampled[x]) for x in varying}
        judged[name] = Judged(
            ranked, together([x.p_value for x in ranked.values()]), time.perf_counter() - began,
            float(np.mean(draws.diverging)), stuck(truth[LIKELIHOOD], sampled[LIKELIHOOD]),
            int((~np.isfinite(sampled[LIKELIHOOD])).any(1).sum()),
        )  # fmt: skip
        if on_result is not None:
            on_result(name, judged[name])
    if not judged:
        raise InputError(f"no method finished: {failed}")
    return Calibration(trials, judged, refused, failed)


def distinct(truth: dict[str, np.ndarray]) -> list[str]:
    """Scalars to rank: those that vary, and are no linear function of one before. Log densities,
    which know all sites, come first.

    >>> values = np.array([0.2, 0.3, 0.9])
    >>> distinct({"flat": np.ones(3), "share": values, "rest": 1 - values, "log p": values**2})
    ['log p', 'share']
    """
    chosen: list[str] = []
    for name in sorted(truth, key=lambda x: not x.startswith("log ")):
        value = truth[name]
        if np.ptp(value) > 1e-4 * np.abs(value).max() and all(
            abs(np.corrcoef(value, truth[x])[0, 1]) < 1.0 - 1e-6 for x in chosen
        ):
            chosen.append(name)
    return chosen


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
    count = draws.shape[1]
    return Ranked(place, p_value(place, count), shape(place, count), worth, coverage(place, count))


def of_parameters(form: Known | None, params: Params, latents: bool = True) -> dict[str, Array]:
    """Invariant scalars of one set of parameters, by name.

    :param form: which of our programs it is; the names are then those of the form.
    :param latents: whether the program has latents. If so, and it is of no known form, its units
        may change places, signs or be turned: only sizes are invariant.

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
        if form is None and latents:
            out[f"{site} size"] = size
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

    It gives, beside `of_parameters`, log densities with latents summed out: of the table, of the
    parameters (the prior), of both (the log joint) and of the held-out row; and the largest and
    smallest share of each discrete latent. The first is the scalar most likely to show what is
    wrong with a posterior (Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman & Vehtari 2023).

    :param data: a table, the last row of which is the held-out one.

    >>> from latentbits.models import bernoulli_product
    >>> table = jnp.array([[1.0], [0.0], [1.0]])
    >>> values = scalars(bernoulli_product, table)({"probs": jnp.array([[0.5], [0.1]])}, table)
    >>> [round(x, 3) for x in jnp.exp(values["log likelihood"]).tolist()]
    [0.25, 0.09]
    >>> [round(x, 3) for x in jnp.exp(values["log p of a held-out row"]).tolist()]
    [0.5, 0.1]
    """
    anatomy = inspect(model, (data,), kwargs)
    form = form_of(model, ((data,), kwargs))
    rule = likelihood(model, data, num_nodes=QUADRATURE_NODES, **kwargs)
    hollow = rule.rows._replace(leaves=())

    def one(params: Params, table: Array) -> dict[str, Array]:
        each = rule.function(params, hollow._replace(leaves=(table,))).value
        rows = rows_of(anatomy, (table,), kwargs)
        density, prior = jnp.sum(each[:-1]), log_shared(model, anatomy, params, rows)
        return {
            LIKELIHOOD: density, "log prior": prior, "log joint": density + prior,
            "log p of a held-out row": each[-1], **shares(model, anatomy, params, rows),
            **of_parameters(form, params, bool(anatomy.latents)),
        }  # fmt: skip

    def many(draws: Params, table: Array) -> dict[str, Array]:
        return lax.map(lambda params: one(params, table), draws)

    return jax.jit(many)


def shares(model: Callable, anatomy: Anatomy, params: Params, rows: Rows) -> dict[str, Array]:
    """The largest and smallest share of rows, before data, of the values of each discrete latent.

    Of a vector of bits it is the share of rows in which each is on. Programs with continuous
    latents, or with too many states, have none here.

    >>> from latentbits.models import bernoulli_mixture
    >>> arguments = (jnp.ones((5, 2)),), {"num_components": 3}
    >>> parts = inspect(bernoulli_mixture, *arguments)
    >>> params = {"mixing": jnp.array([0.2, 0.7, 0.1]), "probs": jnp.full((3, 2), 0.5)}
    >>> found = shares(bernoulli_mixture, parts, params, rows_of(parts, *arguments))
    >>> {name: round(float(share), 3) for name, share in found.items()}
    {'component, largest share': 0.7, 'component, smallest share': 0.1}
    """
    listed = all(x.num_values is not None for x in anatomy.latents)
    if not anatomy.latents or not listed or anatomy.num_states > MOST_STATES:
        return {}
    states = jnp.asarray(AllStates().table(anatomy.num_values) + anatomy.lowest)[:, None]
    single = anatomy.with_rows(1)
    prior = jnp.exp(log_joint(model, single, params, states, rows.slice(0, 1), observed=()))
    tables, out = single.value_probabilities(states, prior), {}
    for latent in single.latents:
        units = latent.binary and latent.size > 1 and "Categorical" not in latent.kind
        share = tables[latent.name][..., 1] if units else tables[latent.name]
        out[f"{latent.name}, largest share"] = jnp.max(share)
        out[f"{latent.name}, smallest share"] = jnp.min(share)
    return out
