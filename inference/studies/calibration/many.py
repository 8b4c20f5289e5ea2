"""One Bayesian method on many data sets of one shape: one compiled run, `vmap` over the data sets.

What `baselines.samplers` does for one table with several chains, this does for several tables with
one chain each. Warm-up, draws and all happen in one call; there is no clock and no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from numpyro.infer import NUTS, SVI, Trace_ELBO
from numpyro.infer.mcmc import MCMCKernel

from ...baselines.samplers import (
    binary_gibbs_kernel,
    discrete_gibbs_kernel,
    no_binary_gibbs,
    no_discrete_gibbs,
)
from ...baselines.starts import differentiable, good_start
from ...baselines.variational import GUIDES, STEP_SIZES
from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...types import Params

MAX_TREE_DEPTH = 5
"""All data sets wait for the one whose trajectory is longest: NUTS may take 2⁵ − 1 steps a draw.
Wherever a trajectory is cut off, the posterior stays invariant; only the draws may be nearer."""


class ManyDraws(NamedTuple):
    """Draws of the parameters given each data set."""

    params: Params  # (num_sets, num_samples, ...) by site
    diverging: Array  # (num_sets, num_samples), False where a method knows no divergence


Runner = Callable[..., ManyDraws]


def many_nuts(
    model: Callable,
    rng_key: Array,
    data: Array,
    *,
    num_warmup: int = 200,
    num_samples: int = 300,
    **kwargs: Any,
) -> ManyDraws:
    """NUTS on all continuous sites, discrete latents summed out, for each of ``data[i]``."""
    anatomy = inspect(model, (data[0],), kwargs)

    def kernel() -> MCMCKernel:
        return NUTS(differentiable(model, anatomy), max_tree_depth=MAX_TREE_DEPTH)

    return _sample(kernel, model, anatomy, rng_key, data, num_warmup, num_samples, kwargs)


def many_gibbs(
    model: Callable, rng_key: Array, data: Array, *, num_warmup: int = 200, num_samples: int = 300,
    latent: bool = False, **kwargs: Any,
) -> ManyDraws:  # fmt: skip
    """NumPyro's own `DiscreteGibbs`, and NUTS for the parameters, for each of ``data[i]``.

    :param latent: `LatentGibbs` for the bits.
    """
    anatomy = inspect(model, (data[0],), kwargs)
    problem = (no_binary_gibbs if latent else no_discrete_gibbs)(anatomy)
    if problem is not None:
        raise ProgramError(problem)
    others = NUTS(model, find_heuristic_step_size=False, max_tree_depth=MAX_TREE_DEPTH)
    bits = binary_gibbs_kernel if latent else discrete_gibbs_kernel
    make = lambda: bits(model, anatomy, others)  # noqa: E731
    return _sample(make, model, anatomy, rng_key, data, num_warmup, num_samples, kwargs)


def many_svi(
    model: Callable,
    rng_key: Array,
    data: Array,
    *,
    guide: str = "mean_field",
    num_steps: int = 1000,
    step_size: float | None = None,
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
    step_size = STEP_SIZES.get(guide, 0.03) if step_size is None else step_size
    optimiser = optax.adam(optax.cosine_decay_schedule(step_size, num_steps))

    def one(key: Array, table: Array) -> ManyDraws:
        # A guide remembers where it began: one for each trace.
        chosen = GUIDES[guide](program)
        engine = SVI(program, chosen, optimiser, Trace_ELBO(2))
        key_init, key_draw = random.split(key)
        state = engine.init(key_init, table, **kwargs)

        def step(state: Any, _: None) -> tuple[Any, None]:
            return engine.update(state, table, **kwargs)[0], None

        state = lax.scan(step, state, None, length=num_steps)[0]
        draws = chosen.sample_posterior(
            key_draw, engine.get_params(state), sample_shape=(num_samples,)
        )
        never = jnp.zeros(num_samples, bool)
        return ManyDraws({x: draws[x] for x in anatomy.parameters}, never)

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def _sample(
    make_kernel: Callable[[], MCMCKernel],
    model: Callable,
    anatomy: Anatomy,
    rng_key: Array,
    data: Array,
    num_warmup: int,
    num_samples: int,
    kwargs: dict[str, Any],
) -> ManyDraws:
    def one(key: Array, table: Array) -> ManyDraws:
        # Kernels keep what they learn at `init`: one for each trace, none outlives it.
        kernel = make_kernel()
        key_start, key = random.split(key)
        start = good_start(model, anatomy, (table,), kwargs)
        place = None if start is None else start(key_start)
        state = kernel.init(key, num_warmup, place, model_args=(table,), model_kwargs=kwargs)
        finish = kernel.postprocess_fn((table,), kwargs)

        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (table,), kwargs)
            sites = finish(getattr(state, kernel.sample_field))
            kept = {x: sites[x] for x in anatomy.parameters}  # not the latents of every row
            return state, ManyDraws(kept, _diverging(state))

        # One loop for both: what is compiled twice takes twice as long.
        draws = lax.scan(step, state, None, length=num_warmup + num_samples)[1]
        return jax.tree.map(lambda x: x[num_warmup:], draws)

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def _diverging(state: Any) -> Array:
    parts = [state, *getattr(state, "block_states", ())]
    flags = [x.diverging for x in parts if hasattr(x, "diverging")]
    return jnp.any(jnp.stack(flags)) if flags else jnp.zeros((), bool)
