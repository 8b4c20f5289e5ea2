"""One Bayesian method on many data sets of one shape: one compiled run, `vmap` over the data sets.

What `baselines.samplers` does for one table with several chains, this does for several tables with
one chain each. Warm-up, draws and all happen in one call; there is no clock and no budget.

`coverage` says how often intervals hold the truth: EM's standard errors beside the quantiles of
NUTS's draws. The programs are those with continuous factors, `latent_trait` foremost, in canonical
form: rows of the weights orthogonal, longest first, their signs as in the truth. Over parameters
drawn from the prior, quantiles of the true posterior cover exactly; maximum likelihood ± z standard
errors covers as the number of rows grows. Every table counts: one whose information is not positive
definite has no interval, and what has no interval does not hold the truth.
"""

from __future__ import annotations

import inspect as python
import itertools
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax, random
from latentbits.models.data import InputError
from numpyro import handlers
from numpyro.infer import NUTS, SVI, Trace_ELBO
from numpyro.infer.mcmc import MCMCKernel

from ...baselines.starts import climbs_of, differentiable
from ...baselines.variational import GUIDES, STEP_SIZES
from ...evaluation.standard_errors import many_standard_errors
from ...evaluation.symmetry import form_of
from ...files.cards import CARDS, Setting
from ...files.catalogue import blame, find_program
from ...files.output import words
from ...methods.continuous.factor_em import canonical
from ...methods.continuous.opening import FORMS
from ...methods.continuous.quadrature import QuadratureEM
from ...reading.anatomy import Anatomy, inspect
from ...reading.recognition.papers import Known
from ...running.contract import follow
from ...types import Params

WARMUP = 200
MAX_TREE_DEPTH = 5
"""All data sets wait for the one whose trajectory is longest: NUTS may take 2⁵ − 1 steps a draw.
Wherever a trajectory is cut off, the posterior stays invariant; only the draws may be nearer."""


class ManyDraws(NamedTuple):
    """Draws of the parameters given each data set."""

    params: Params  # (num_sets, num_samples, ...) by site
    diverging: Array  # (num_sets, num_samples), False where a method knows no divergence


def nuts_kernel(model: Callable, anatomy: Anatomy) -> MCMCKernel:
    """NUTS on all continuous sites, discrete latents summed out."""
    return NUTS(differentiable(model, anatomy), max_tree_depth=MAX_TREE_DEPTH)


def gibbs_kernel(bits: Callable, model: Callable, anatomy: Anatomy) -> MCMCKernel:
    """NUTS for the parameters in turn with a kernel for the bits.

    :param bits: `discrete_gibbs_kernel`, NumPyro's own, or `binary_gibbs_kernel`, `LatentGibbs`.
    """
    others = NUTS(model, find_heuristic_step_size=False, max_tree_depth=MAX_TREE_DEPTH)
    return bits(model, anatomy, others)


def many_chains(
    kernel_of: Callable[[Callable, Anatomy], MCMCKernel],
    model: Callable,
    rng_key: Array,
    data: Array,
    *,
    num_samples: int = 300,
    **kwargs: Any,
) -> ManyDraws:
    """A chain for each of ``data[i]``.

    :param kernel_of: from the program and its anatomy to the kernel.
    """
    anatomy = inspect(model, (data[0],), kwargs)
    climbs = climbs_of(model, anatomy)

    def one(key: Array, table: Array) -> ManyDraws:
        # Kernels keep what they learn at `init`: one for each trace, none outlives it.
        kernel = kernel_of(model, anatomy)
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
        state = engine.init(key_init, table, **kwargs)
        state, _ = follow(engine, state, num_steps, table, **kwargs)
        draws = chosen.sample_posterior(
            key_draw, engine.get_params(state), sample_shape=(num_samples,)
        )
        never = jnp.zeros(num_samples, bool)
        return ManyDraws({x: draws[x] for x in anatomy.parameters}, never)

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


LEVELS = (0.5, 0.9, 0.95)
NUM_STEPS = 60
NUM_NODES = 15
"""Nodes a dimension: in one dimension, at weights of about one, the error is beyond float32."""


def has_coverage(model: Callable, data: Array, **kwargs: Any) -> bool:
    """Whether a program has standard errors to count: up to three factors that rotate.

    :param data: one table.
    """
    known = form_of(model, ((data,), kwargs))
    rotates = known is not None and known.form in FORMS
    return rotates and inspect(model, (data,), kwargs).num_bits <= 3


def fit_many(model: Callable, rng_key: Array, data: Array, **kwargs: Any) -> Params:
    """Maximum likelihood for each of ``data[i]``, all at once, in canonical form."""
    em = QuadratureEM(model, num_nodes=NUM_NODES)

    def one(key: Array, table: Array) -> Params:
        state = em.init(key, table, **kwargs)
        return em.get_params(follow(em, state, NUM_STEPS, table, **kwargs)[0])

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def with_signs(params: Params, truth: Params) -> Params:
    """Each row of the weights with the sign that brings it nearer to the truth's.

    >>> like = {"weights": jnp.array([[1.0, 2.0]])}
    >>> with_signs({"weights": jnp.array([[-1.0, -1.0]])}, like)["weights"].tolist()
    [[1.0, 1.0]]
    """
    inner = jnp.sum(params["weights"] * truth["weights"], -1, keepdims=True)
    return {**params, "weights": params["weights"] * jnp.where(inner < 0, -1.0, 1.0)}


def coverage(
    model: Callable, rng_key: Array, truth: Params, data: Array, draws: Params, **kwargs: Any
) -> dict[str, dict[str, Any]]:
    """Method -> site -> level -> share of the intervals that hold the truth, with its error.

    :param truth: (num_trials, ...) by site.
    :param draws: (num_trials, num_draws, ...) by site, of the posterior.
    """
    fitted = fit_many(model, rng_key, data, **kwargs)
    errors = many_standard_errors(model, fitted, data, num_nodes=NUM_NODES, **kwargs)
    known = form_of(model, ((data[0],), kwargs))
    assert known is not None
    return shares(known, truth, fitted, errors, draws)


def shares(
    known: Known, truth: Params, fitted: Params, errors: Params, draws: Params
) -> dict[str, dict[str, Any]]:
    """`coverage` of given estimates (num_trials, ...) with their errors, and of given draws.

    :param known: the form of the program, whose names the result has.
    """
    errors = jax.vmap(known.read)(errors)

    @jax.jit
    @jax.vmap
    def bring(truth: Params, fitted: Params, draws: Params) -> tuple[Params, Params, Params]:
        truth = canonical(known.read(truth))
        turned = jax.vmap(lambda one: with_signs(canonical(known.read(one)), truth))(draws)
        return truth, with_signs(known.read(fitted), truth), turned

    truth, fitted, draws = bring(truth, fitted, draws)
    out: dict[str, dict[str, Any]] = {"EM ± standard errors": {}, "NUTS quantiles": {}}
    for site, level in itertools.product(truth, LEVELS):
        half = NormalDist().inv_cdf(0.5 + level / 2) * np.asarray(errors[site])
        about = np.asarray(fitted[site])
        ends = np.quantile(np.asarray(draws[site]), [0.5 - level / 2, 0.5 + level / 2], axis=1)
        for name, (lower, upper) in zip(out, ((about - half, about + half), ends), strict=True):
            here = out[name].setdefault(site, {})
            here[f"{100 * level:g} %"] = _share(np.asarray(truth[site]), lower, upper)
    return out


def _share(truth: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> dict[str, float]:
    """Over all tables; the intervals of one table are dependent, so tables are counted.

    >>> truth, ends = np.zeros((4, 1)), np.array([[1.0], [1.0], [1.0], [np.nan]])
    >>> coverage = _share(truth, -ends, ends)
    >>> coverage["share"], coverage["without"]
    (0.75, 1)
    """
    width = (upper - lower).reshape(len(truth), -1)
    known = np.isfinite(width).all(1)
    held = ((lower <= truth) & (truth <= upper)).reshape(len(truth), -1).mean(1)
    return {
        "share": float(held.mean()),
        "error": float(held.std() / np.sqrt(len(held))),
        "median_width": float(np.median(width[known])) if known.any() else float("nan"),
        "trials": len(truth),
        "without": int((~known).sum()),
    }


class Trials(NamedTuple):
    """Parameters and data of every trial."""

    name: str
    model: Callable  # the program with the priors bound
    kwargs: dict[str, Any]  # its sizes
    truth: Params  # (num_trials, ...) by site
    data: Array  # (num_trials, num_data, num_features)
    setting: Setting


def setting_of(name: str, given: dict[str, Any]) -> Setting:
    """The setting of a program; `given` has sizes that a person wants otherwise."""
    setting = CARDS[name].calibrate() if name in CARDS else Setting(60, None, {}, {})
    counts = {x: given[x] for x in ("num_data", "num_features") if x in given}
    sizes = {x: v for x, v in given.items() if x not in counts}
    return setting._replace(**counts, sizes={**setting.sizes, **sizes})


def simulate(name: str, setting: Setting, num_trials: int, rng_key: Array) -> Trials:
    """Draw parameters, then data, from the program itself.

    >>> drawn = simulate("bernoulli_product", setting_of("bernoulli_product", {}), 3, random.key(0))
    >>> drawn.data.shape, drawn.truth["probs"].shape
    ((3, 40, 4), (3, 4))
    """
    program = find_program(name)
    takes = python.signature(program).parameters
    wrong = [x for x in setting.sizes if x not in takes]
    if wrong and all(x.kind is not x.VAR_KEYWORD for x in takes.values()):
        raise InputError(f"--set {wrong[0]}: {name} takes {', '.join(takes)}")
    model = partial(program, **setting.priors) if setting.priors else program
    counts: dict[str, Any] = {"num_data": setting.num_data}
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
    return Trials(name, model, setting.sizes, sites, data, setting)


def describe(model: Callable, setting: Setting) -> dict[str, str]:
    """The prior of each site, in words; those of the program where nothing narrower is bound."""
    takes = python.signature(model).parameters
    own = {x: p.default for x, p in takes.items() if x.startswith("prior_")}
    priors = {**own, **setting.priors}
    return {
        x.removeprefix("prior_"): "uniform on the simplex" if v is None else words(v)
        for x, v in priors.items()
        if v is not python.Parameter.empty
    }
