"""The generic approximations on the same programs: SVI with several guides, MAP.

Discrete latents are summed out by `marginal`; everything else is NumPyro's. As the samplers of
`inference.baselines.samplers`, they run in compiled blocks against a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import Array, lax, random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_uniform
from numpyro.infer.util import log_density

from ..numerics.compiling import once
from ..numerics.memory import check_fits
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import check_data
from ..running.contract import Stop
from ..types import Params
from .samplers import SNAPSHOTS, Budget, Draws
from .starts import differentiable

GUIDES: dict[str, Callable] = {
    "mean_field": autoguide.AutoNormal,
    "low_rank": autoguide.AutoLowRankMultivariateNormal,
    "flow": autoguide.AutoIAFNormal,
    # By default it begins at medians of the prior, for which many draws of it are compiled.
    "map": partial(autoguide.AutoDelta, init_loc_fn=init_to_uniform),
}
MOST_FLOW = 200
"""Unknowns that a flow is asked to bend at once. With 336, two factors of 150 rows among them, it
took as long as the other two guides together, and diverged."""
STEP_SIZES = {"flow": 0.005}
"""Of Adam, where it is not 0.03: at that a flow diverged on three of eight programs."""


def svi(
    model: Callable,
    rng_key: Array,
    *args: Any,
    guide: str = "mean_field",
    num_steps: int = 2000,
    step_size: float | None = None,
    num_samples: int = 500,
    num_particles: int = 4,
    budget: float | None = None,
    memory: float | None = None,
    **kwargs: Any,
) -> Draws:
    """Stochastic variational inference with one of `GUIDES`; ``guide="map"`` is its mode.

    Adam, its step falling to nought along a cosine; it begins at 0.03 (a flow: 0.005) by default.

    >>> from latentbits.models import bernoulli_product
    >>> data = random.bernoulli(random.key(0), 0.3, (20, 2)).astype(float)
    >>> svi(bernoulli_product, random.key(1), data, num_steps=100).params["probs"].shape
    (1, 500, 2)
    """
    began = time.perf_counter()
    check_data(args, kwargs)
    anatomy = inspect(model, args, kwargs)
    program = differentiable(model, anatomy)
    if guide == "flow":
        size = _num_continuous(program, args, kwargs)
        if size > MOST_FLOW:
            raise ProgramError(
                f"AutoIAFNormal is limited to {MOST_FLOW} latent dimensions; this model has "
                f"{size}, those of every row among them"
            )
    chosen = GUIDES[guide](program)
    step_size = STEP_SIZES.get(guide, 0.03) if step_size is None else step_size
    optimiser = optax.adam(optax.cosine_decay_schedule(step_size, num_steps))
    engine = SVI(program, chosen, optimiser, Trace_ELBO(1 if guide == "map" else num_particles))
    key_init, key_draw = random.split(rng_key)
    state = _begin(engine, chosen, key_init, args, kwargs)
    block = max(1, num_steps // SNAPSHOTS)

    def advance(state: Any) -> tuple[Any, Array]:
        return lax.scan(lambda s, _: engine.update(s, *args, **kwargs), state, None, length=block)

    compiled = jax.jit(advance).lower(state).compile()
    check_fits(compiled, memory, "a block of its steps")
    compile_seconds = time.perf_counter() - began
    clock: list[float] = []
    losses: list[np.ndarray] = []
    seen: list[Any] = []
    timer = Budget(budget)
    while len(losses) * block < num_steps and not timer.spent:
        state, loss = jax.block_until_ready(compiled(state))
        losses.append(np.asarray(loss))
        clock.append(timer.seconds)
        seen.append(engine.get_params(state))
    seconds = timer.seconds
    done = len(losses) * block
    if not losses or not np.isfinite(losses[-1]).all():
        raise FloatingPointError(f"the ELBO is not finite after {done} steps")

    few, count = (1, 1) if guide == "map" else (num_samples // 5, num_samples)
    looks = jax.tree.map(lambda *x: np.stack(x), *seen)  # JAX would compile it
    snapshots = once(
        lambda looks: lax.map(lambda p: _parameters(chosen, anatomy, key_draw, p, few), looks)
    )(looks)
    final = engine.get_params(state)
    draws, stats = once(
        lambda p: _weighed(program, chosen, anatomy, key_draw, p, count, args, kwargs)
    )(final)
    stop = Stop.STEPS if done >= num_steps else Stop.BUDGET
    reason = stop.value if stop is Stop.STEPS else f"{stop.value} {done} steps"
    return Draws(
        jax.tree.map(lambda x: np.asarray(x)[None], draws),
        {} if guide == "map" else jax.tree.map(lambda x: np.asarray(x)[None], stats),
        np.concatenate(losses), jax.tree.map(np.asarray, snapshots), np.asarray(clock),
        seconds, compile_seconds, reason, stop,
    )  # fmt: skip


def _begin(engine: SVI, guide: Any, key: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`SVI.init` in one compiled piece: by itself it compiles every operation of the program.

    The guide remembers where it started; what it remembers must not be of a trace that is over.
    """
    names = ("_init_locs", "_init_latent")

    def begin(key: Array) -> tuple[Any, dict[str, Any]]:
        state = engine.init(key, *args, **kwargs)
        return state, {x: getattr(guide, x) for x in names if hasattr(guide, x)}

    state, remembered = once(begin)(key)
    for name, value in remembered.items():
        setattr(guide, name, value)
    return state


def _parameters(guide: Any, anatomy: Anatomy, key: Array, params: Any, count: int) -> Params:
    draws = guide.sample_posterior(key, params, sample_shape=(count,))
    return {x: draws[x] for x in anatomy.parameters}


def _weighed(
    program: Callable,
    guide: Any,
    anatomy: Anatomy,
    key: Array,
    params: Any,
    count: int,
    args: tuple,
    kwargs: dict,
) -> tuple[Params, dict[str, Array]]:
    """Draws from a guide with log p and log q of each, so that they can be re-weighted."""

    def one(key: Array) -> tuple[Params, dict[str, Array]]:
        drawn = handlers.seed(guide, key)
        log_q, trace = log_density(drawn, args, kwargs, params)
        replayed = handlers.replay(handlers.seed(program, key), trace)
        log_p, _ = log_density(replayed, args, kwargs, params)
        sites = {x: trace[x]["value"] for x in anatomy.parameters}
        return sites, {"log_p": log_p, "log_q": log_q}

    return lax.map(one, random.split(key, count))


def _num_continuous(program: Callable, args: tuple, kwargs: dict) -> int:
    shapes = jax.eval_shape(
        lambda: {
            name: site["value"]
            for name, site in handlers.trace(handlers.seed(program, random.key(0)))
            .get_trace(*args, **kwargs)
            .items()
            if site["type"] == "sample" and not site["is_observed"]
        }
    )
    return sum(int(np.prod(x.shape)) for x in shapes.values())
