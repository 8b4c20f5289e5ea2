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

from ..reading.anatomy import ProgramError, inspect
from ..reading.arguments import check_data
from ..reading.tracing import drawn_shapes, run_abstractly
from ..rows.devices import one_device
from ..running.contract import Stop
from ..running.memory import check_fits
from ..types import Params
from .pacing import Budget, in_blocks, kept, lower, results
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
NUM_PARTICLES = 4
"""Draws of a guide that a step takes the objective from."""
MEMORY = "_init_locs", "_init_latent"
"""Attributes of a guide that `SVI.init` sets."""
STEP_SIZES = {"flow": 0.005}
"""Of Adam, where it is not 0.03: at that a flow diverged on three of eight programs."""


def svi(
    model: Callable,
    rng_key: Array,
    *args: Any,
    guide: str = "mean_field",
    num_steps: int = 2000,
    num_samples: int = 500,
    budget: float | None = None,
    memory: float | None = None,
    gain: float | None = None,
    **kwargs: Any,
) -> Draws:
    """Stochastic variational inference with one of `GUIDES`; ``guide="map"`` is its mode.

    Adam, its step falling to zero along a cosine; it begins at 0.03 (a flow: 0.005).

    :param gain: nats below which the objective has converged: a cycle of twice as many steps
        follows the last, its step size restored, until the best start gains no more than this.
        By default there is one cycle, of `num_steps`.
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
    key_init, key_draw = random.split(rng_key)
    keys = random.split(key_init, NUM_STARTS if mode else NUM_GUIDES)
    block = max(1, num_steps // SNAPSHOTS)
    device = one_device(args, kwargs)

    def make() -> Steps:
        import optax  # where it is used: a fit of another method need not wait for it

        chosen = GUIDES[guide](program)
        optimiser = optax.adam(partial(_cycles, STEP_SIZES.get(guide, 0.03), num_steps))
        engine = SVI(program, chosen, optimiser, Trace_ELBO(1 if mode else NUM_PARTICLES))

        def begin(keys: Array, args: tuple, kwargs: dict) -> tuple[Any, dict[str, Any]]:
            def one(key: Array) -> tuple[Any, dict[str, Any]]:
                state = engine.init(key, *args, **kwargs)
                return state, {x: getattr(chosen, x) for x in MEMORY if hasattr(chosen, x)}

            return jax.vmap(one)(keys)

        def advance(state: Any, count: Array, args: tuple, kwargs: dict) -> tuple[Any, Array]:
            def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
                state, loss = jax.vmap(lambda s: engine.update(s, *args, **kwargs))(carry[0])
                return state, carry[1].at[i].set(loss)

            return lax.fori_loop(0, count, one, (state, jnp.zeros((block, len(keys)))))

        def unconstrained(state: Any) -> Any:
            return engine.optim.get_params(state.optim_state)

        def look(key: Array, free: Any, args: tuple, kwargs: dict) -> Params:
            del args, kwargs
            count = 1 if mode else num_samples // 5
            draws = chosen.sample_posterior(key, engine.constrain_fn(free), sample_shape=(count,))
            return {x: draws[x] for x in anatomy.parameters}

        def draw(
            key: Array, free: Any, args: tuple, kwargs: dict
        ) -> tuple[Params, dict[str, Array]]:
            """Draws with log p and log q of each, so that they can be re-weighted."""
            params = engine.constrain_fn(free)

            def one(key: Array) -> tuple[Params, dict[str, Array]]:
                drawn = handlers.seed(chosen, key)
                log_q, trace = log_density(drawn, args, kwargs, params)
                replayed = handlers.replay(handlers.seed(program, key), trace)
                log_p, _ = log_density(replayed, args, kwargs, params)
                sites = {x: trace[x]["value"] for x in anatomy.parameters}
                return sites, {"log_p": log_p, "log_q": log_q}

            return lax.map(one, random.split(key, num_samples))

        begins = lower(begin, device, keys)
        state, remembered = results(begins)
        # The guide remembers where it started, of a trace that is over.
        for name, value in remembered.items():
            setattr(chosen, name, jax.tree.map(lambda x: np.zeros(x.shape[1:], x.dtype), value))
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), unconstrained(state)
        )
        return Steps(
            unconstrained, begins, lower(advance, device, state, np.int32(1)),
            lower(look, device, key_draw, one),
            None if mode else lower(draw, device, key_draw, one),
        )  # fmt: skip

    settings = model, anatomy, guide, num_steps, num_samples
    steps = kept(make, device, keys, *settings)
    check_fits(steps.advance, memory, "a block of its steps")
    state, _ = steps.begin(device.arrays, keys)
    compile_seconds = time.perf_counter() - began
    timer = Budget(budget)
    step = lambda state, count: steps.advance(device.arrays, state, count)  # noqa: E731
    look = lambda state: jax.tree.map(np.asarray, steps.params(state))  # noqa: E731
    losses: list[np.ndarray] = []
    ends: list[np.ndarray] = []  # of each cycle, by start
    seen: list[tuple[float, Any]] = []  # seconds and parameters
    stop, length = Stop.STEPS, num_steps
    while True:
        course = in_blocks(step, state, length, timer, block, least=1, look=look)
        stop = Stop.STEPS if course.done == length else Stop.BUDGET
        if stop is Stop.BUDGET and ends:  # the end of the last cycle is better than amid the next
            break
        state = course.state
        losses += course.results
        # Of a guide the last are estimates, whose step has fallen to next to nothing: their mean.
        ends.append(np.concatenate(losses)[-(1 if mode else block) :].mean(0))
        thinned = slice(None, None, -(length // num_steps))  # as many of each cycle, with the last
        seen += list(zip(course.seconds, course.seen, strict=True))[thinned][::-1]
        converged = len(ends) > 1 and np.nanmax(ends[-2] - ends[-1]) <= (gain or 0.0)
        if stop is Stop.BUDGET or gain is None or converged:
            break
        length *= 2
    last, every, seconds = ends[-1], np.concatenate(losses), timer.seconds
    done = len(every)
    if not np.isfinite(last).any():
        raise FloatingPointError(f"the ELBO is not finite after {done} steps")
    best = int(np.argmin(np.where(np.isfinite(last), last, np.inf)))

    free = [jax.tree.map(lambda x: x[best], params) for _, params in seen]
    looks = [steps.look(device.arrays, key_draw, x) for x in free]
    draws, stats = looks[-1], {}
    if steps.draw is not None:
        draws, stats = steps.draw(device.arrays, key_draw, free[-1])
    reason = stop.value if stop is Stop.STEPS else f"{stop.value} {done} steps"
    draws, stats = jax.tree.map(lambda x: np.asarray(x)[None], (draws, stats))
    return Draws(
        draws, stats, every[:, best], jax.tree.map(lambda *x: np.stack(x), *looks),
        np.array([x for x, _ in seen]), seconds, compile_seconds, reason, stop, last,
    )  # fmt: skip


def _cycles(step_size: float, length: int, count: Any) -> Array:
    """Step size after so many steps: a cosine to zero, then again over twice as many.

    >>> [round(float(_cycles(1.0, 4, x)), 2) for x in (0, 2, 4, 8, 11)]
    [1.0, 0.5, 1.0, 0.5, 0.04]
    """
    cycle = jnp.floor(jnp.log2(count / length + 1.0))
    done = (count - length * (2.0**cycle - 1.0)) / (length * 2.0**cycle)
    return step_size * 0.5 * (1.0 + jnp.cos(jnp.pi * done))


class Steps(NamedTuple):
    """What is compiled of a guide, for any rows of the same shape; all but `params` take rows."""

    params: Callable[[Any], Any]  # of the state, (num_starts, ...), unconstrained
    begin: Callable[..., tuple[Any, dict[str, Any]]]
    advance: Callable[..., tuple[Any, Array]]
    look: Callable[..., Params]  # some draws of the parameters
    draw: Callable[..., tuple[Params, dict[str, Array]]] | None  # the last, with log p and log q
