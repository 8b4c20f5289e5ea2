"""L-BFGS with a line search that only goes back, in units of each site's own curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ..types import Params

Objective = Callable[[Params], Array]
MEMORY = 10
"""Past steps of L-BFGS that are kept."""


class _Search(NamedTuple):
    """A point, what is known there, and the step from it that is tried next."""

    point: Array  # (p,), all parameters as one vector
    value: Array
    slope: Array
    direction: Array
    length: Array
    steps: Array  # (MEMORY, p), the last first
    bends: Array  # (MEMORY, p), by which they changed the slope
    done: Array  # steps taken
    tried: Array  # evaluations


def minimise(total: Callable, free: Params, num_steps: int) -> Params:
    """L-BFGS from `free`, each site measured in units of its own curvature.

    Without the units, a deviation and a matrix of weights differ by orders of magnitude in what a
    step of one does, and a few steps of L-BFGS move the one and leave the other where it is. The
    line search only goes back, so that Q is compiled once and evaluated little more than once a
    step, and a step is taken only if it lowers −Q. (`optimistix.LBFGS` in these units ends where
    this does in the same time, on bars and lines from four keys; it needs four packages more.)
    """
    vector, build = ravel_pytree(free)
    units = _units(total, vector, build)

    def value_and_slope(point: Array) -> tuple[Array, Array]:
        value, slope = total(jax.value_and_grad, build(point * units))
        return value, ravel_pytree(slope)[0] * units

    def advance(now: _Search) -> _Search:
        trial = now.point + now.length * now.direction
        value, slope = value_and_slope(trial)
        fall = now.length * _dot(now.slope, now.direction)
        taken = value <= now.value + 1e-4 * fall
        push = lambda rows, row: jnp.roll(rows, 1, 0).at[0].set(row)  # noqa: E731
        steps, bends = push(now.steps, trial - now.point), push(now.bends, slope - now.slope)
        uphill = _times_inverse_hessian(slope, steps, bends)
        # Straight down where nothing is known, or it misleads.
        known = (now.done >= 0) & (_dot(steps[0], bends[0]) > 0) & (_dot(uphill, slope) > 0)
        direction = -jnp.where(known, uphill, slope)
        steps, bends = jnp.where(known, steps, 0.0), jnp.where(known, bends, 0.0)
        # The parabola through what is known has its lowest point here.
        shorter = -0.5 * fall / (value - now.value - fall)
        shorter = jnp.where(jnp.isfinite(shorter), jnp.clip(shorter, 0.1, 0.5), 0.1) * now.length
        back = now._replace(length=shorter, tried=now.tried + 1)
        one = jnp.ones_like(now.length)
        on = _Search(trial, value, slope, direction, one, steps, bends, now.done + 1, back.tried)
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b), on, back)

    nowhere, none = jnp.zeros_like(vector), jnp.zeros((MEMORY, len(vector)), vector.dtype)
    zero = jnp.zeros((), int)
    inf = jnp.full((), jnp.inf, jnp.result_type(float))
    # The first trial goes nowhere: it finds the value and the slope at the start.
    start = _Search(
        vector / units, inf, nowhere, nowhere, jnp.ones_like(inf), none, none, zero - 1, zero
    )
    unfinished = lambda s: (s.done < num_steps) & (s.tried < 1 + 3 * num_steps)  # noqa: E731
    return build(lax.while_loop(unfinished, advance, start).point * units)


def _times_inverse_hessian(slope: Array, steps: Array, bends: Array) -> Array:
    """What L-BFGS takes for the inverse of the Hessian, times the slope (Nocedal & Wright, 7.4).

    :param steps: (memory, p), the last first, and the changes of slope they made; zero: no step.
    """
    dots = jnp.sum(steps * bends, 1)
    weights = jnp.where(dots == 0.0, 0.0, 1.0 / dots)

    def down(vector: Array, past: tuple) -> tuple[Array, Array]:
        step, bend, weight = past
        share = weight * _dot(step, vector)
        return vector - share * bend, share

    def up(vector: Array, past: tuple) -> tuple[Array, None]:
        step, bend, weight, share = past
        return vector + (share - weight * _dot(bend, vector)) * step, None

    vector, shares = lax.scan(down, slope, (steps, bends, weights))
    size = _dot(bends[0], bends[0])
    vector = jnp.where(size > 0, dots[0] / size, 1.0) * vector
    return lax.scan(up, vector, (steps, bends, weights, shares), reverse=True)[0]


def _units(total: Callable, vector: Array, build: Callable[[Array], Params]) -> Array:
    """One over the root of the mean curvature of each parameter's site, (p,), from one direction z
    of random signs in it: zᵀHz."""
    # Mixed by hand: signs drawn from a key are sixty loops to compile.
    bits = lax.iota(jnp.uint32, len(vector)) + 1
    for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    signs = build(jnp.where(bits >> 31, 1.0, -1.0).astype(vector.dtype))
    free = build(vector)

    def curvature(which: Array) -> Array:
        z = {name: jnp.where(which == i, sign, 0.0) for i, (name, sign) in enumerate(signs.items())}

        def along(function: Objective) -> Callable[[Params], Array]:
            slope = lambda f: jax.jvp(function, (f,), (z,))[1]  # noqa: E731
            return lambda f: jax.jvp(slope, (f,), (z,))[1]

        return total(along, free)

    bent = lax.map(curvature, jnp.arange(len(free)))
    sizes = jnp.array([value.size for value in free.values()])
    units = 1.0 / jnp.sqrt(jnp.abs(bent) / sizes)
    units = jnp.where(jnp.isfinite(units), units, 1.0).astype(vector.dtype)
    each = {name: jnp.full_like(x, units[i]) for i, (name, x) in enumerate(free.items())}
    return ravel_pytree(each)[0]


def _dot(a: Array, b: Array) -> Array:
    return jnp.vdot(a, b, precision="highest")
