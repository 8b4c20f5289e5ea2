"""The generic approximations on the same programs: SVI with several guides, MAP.

Discrete latents are summed out by `marginal`; everything else is NumPyro's. As the samplers of
`inference.baselines.samplers`, they run in compiled blocks against a clock.
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
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_uniform
from numpyro.infer.util import log_density

from ..numerics.compiling import executable
from ..numerics.memory import check_fits
from ..reading.abstract import drawn_shapes, run_abstractly
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import check_data
from ..rows.devices import OneDevice, one_device
from ..running.contract import Stop
from ..types import Params
from .pacing import Budget, Pace
from .samplers import SNAPSHOTS, Draws
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
NUM_STARTS, NUM_GUIDES = 4, 2
"""Of a mode, and of a guide, the best of which is taken: of one, nothing would show that another
ends there too. On a mixture of ten one guide in five finds all clusters, and its k̂ passes then."""
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

    Adam, its step falling to zero along a cosine; it begins at 0.03 (a flow: 0.005) by default.
    """
    began = time.perf_counter()
    check_data(args, kwargs)
    anatomy = inspect(model, args, kwargs)
    program = differentiable(model, anatomy)
    if guide == "flow":
        shapes = run_abstractly(program, args, kwargs, drawn_shapes)
        size = sum(int(np.prod(x.shape)) for x in shapes.values())
        if size > MOST_FLOW:
            raise ProgramError(
                f"AutoIAFNormal is limited to {MOST_FLOW} latent dimensions; this model has "
                f"{size}, those of every row among them"
            )
    mode = guide == "map"
    step_size = STEP_SIZES.get(guide, 0.03) if step_size is None else step_size
    key_init, key_draw = random.split(rng_key)
    keys = random.split(key_init, NUM_STARTS if mode else NUM_GUIDES)
    block = max(1, num_steps // SNAPSHOTS)
    device = one_device(args, kwargs)
    arrays, hollow = device.arrays, device._replace(arrays=[])

    def make() -> Steps:
        chosen = GUIDES[guide](program)
        import optax  # where it is used: a fit of another method need not wait for it

        optimiser = optax.adam(optax.cosine_decay_schedule(step_size, num_steps))
        engine = SVI(program, chosen, optimiser, Trace_ELBO(1 if mode else num_particles))
        begin, state = _begin(engine, chosen, keys, arrays, hollow)

        def advance(state: Any, count: Array, arrays: list[Array]) -> tuple[Any, Array]:
            args, kwargs = hollow.arguments(arrays)

            def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
                state, loss = jax.vmap(lambda s: engine.update(s, *args, **kwargs))(carry[0])
                return state, carry[1].at[i].set(loss)

            kept = jnp.zeros((block, len(keys)))
            return lax.fori_loop(0, count, one, (state, kept))

        def look(key: Array, free: Any) -> Params:
            few = 1 if mode else num_samples // 5
            return _parameters(chosen, anatomy, key, engine.constrain_fn(free), few)

        def draw(key: Array, free: Any, arrays: list[Array]) -> tuple[Params, dict[str, Array]]:
            args, kwargs = hollow.arguments(arrays)
            params = engine.constrain_fn(free)
            return _weighed(program, chosen, anatomy, key, params, num_samples, args, kwargs)

        def unconstrained(state: Any) -> Any:
            return engine.optim.get_params(state.optim_state)

        free = unconstrained(state)
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), free)
        return Steps(
            unconstrained, begin,
            jax.jit(advance).lower(state, np.int32(1), arrays).compile(),
            jax.jit(look).lower(key_draw, one).compile(),
            None if mode else jax.jit(draw).lower(key_draw, one, arrays).compile(),
        )  # fmt: skip

    settings = (model, anatomy, guide, step_size, num_steps, num_samples, num_particles)
    steps = executable(make, (keys, arrays), *settings, hollow.static, hollow.tree)
    check_fits(steps.advance, memory, "a block of its steps")
    state, _ = steps.begin(keys, arrays)
    compile_seconds = time.perf_counter() - began
    clock: list[float] = []
    losses: list[np.ndarray] = []
    history: list[Any] = []
    timer, done = Budget(budget), 0
    pace = Pace(timer, block)
    while done < num_steps and not timer.spent:
        count = pace.next(num_steps - done)
        state, loss = jax.block_until_ready(steps.advance(state, np.int32(count), arrays))
        losses.append(np.asarray(loss)[:count])
        clock.append(timer.seconds)
        history.append(jax.tree.map(np.asarray, steps.params(state)))
        done += count
    seconds = timer.seconds
    # Of a guide the last are estimates, whose step has fallen to next to nothing: their mean.
    every = np.concatenate(losses) if losses else np.full((1, 1), np.nan)
    last = every[-(1 if mode else block) :].mean(0)
    if not np.isfinite(last).any():
        raise FloatingPointError(f"the ELBO is not finite after {done} steps")
    best = int(np.nanargmin(np.where(np.isfinite(last), last, np.inf)))

    looks = [steps.look(key_draw, jax.tree.map(lambda x: x[best], params)) for params in history]
    draws, stats = looks[-1], {}
    if steps.draw is not None:
        draws, stats = steps.draw(key_draw, jax.tree.map(lambda x: x[best], history[-1]), arrays)
    stop = Stop.STEPS if done >= num_steps else Stop.BUDGET
    reason = stop.value if stop is Stop.STEPS else f"{stop.value} {done} steps"
    return Draws(
        jax.tree.map(lambda x: np.asarray(x)[None], draws),
        jax.tree.map(lambda x: np.asarray(x)[None], stats),
        every[:, best], jax.tree.map(lambda *x: np.stack(x), *looks),
        np.asarray(clock), seconds, compile_seconds, reason, stop, last,
    )  # fmt: skip


class Steps(NamedTuple):
    """What is compiled of a guide, for any rows of the same shape."""

    params: Callable[[Any], Any]  # of the state, (num_starts, ...), unconstrained
    begin: Any
    advance: Any
    look: Callable[[Array, Any], Params]  # some draws of the parameters
    draw: Callable[..., tuple[Params, dict[str, Array]]] | None  # the last, with log p and log q


def _begin(
    engine: SVI, guide: Any, keys: Array, arrays: list[Array], hollow: OneDevice
) -> tuple[Any, Any]:
    """`SVI.init` in one piece, which by itself compiles every operation; and a state.

    The guide remembers where it started; what it remembers must not be of a trace that is over,
    nor of these rows and this key: all that is compiled would be compiled anew for others.
    """
    names = ("_init_locs", "_init_latent")

    def begin(keys: Array, arrays: list[Array]) -> tuple[Any, dict[str, Any]]:
        args, kwargs = hollow.arguments(arrays)

        def one(key: Array) -> tuple[Any, dict[str, Any]]:
            state = engine.init(key, *args, **kwargs)
            return state, {x: getattr(guide, x) for x in names if hasattr(guide, x)}

        return jax.vmap(one)(keys)

    # Both before the guide forgets: what it remembers says what `init` gives.
    starter = jax.jit(begin).lower(keys, arrays).compile()
    state, remembered = jax.eval_shape(begin, keys, arrays)
    for name, value in remembered.items():
        setattr(guide, name, jax.tree.map(lambda x: np.zeros(x.shape[1:], x.dtype), value))
    return starter, state


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
