"""L-BFGS with a line search that only goes back: whole, in units of each site's own curvature, and
an evaluation at a time, in units that are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ..types import Params

Slope = Callable[[Params], tuple[Array, Params]]
Scaled = Callable[[Array], Array]
MEMORY = 10
"""Past steps of L-BFGS that are kept."""
APART = 0.01
"""How far away a second slope is taken, from which the curvature follows: near enough for maps to
the real line, far enough for float32."""


class _Search(NamedTuple):
    """A point, what is known there, and the step from it that is tried next."""

    point: Array  # (p,), all parameters as one vector
    value: Array
    slope: Array
    direction: Array
    length: Array
    steps: Array  # (MEMORY, p), the last first
    bends: Array  # (MEMORY, p), by which they changed the slope
    squares: Array  # (sites,) of the unit of each site
    done: Array  # steps taken
    tried: Array  # evaluations


def minimise(value_and_grad: Slope, free: Params, num_steps: int) -> Params:
    """L-BFGS from `free`, each site measured in units of its own curvature.

    Without the units, a deviation and a matrix of weights differ by orders of magnitude in what a
    step of one does, and a few steps of L-BFGS move the one and leave the other where it is. A unit
    is one over the root of the mean curvature of a site, zᵀHz/p in a direction z of random signs.

    The slope at the start, those a little apart from it, by which the curvature is found, and those
    of the steps are evaluated in one loop, so that Q is compiled once. The line search only goes
    back: Q is evaluated little more than once a step, and a step is taken only if it lowers −Q.
    (`optimistix.LBFGS` in these units ends where this does in the same time, on bars and lines from
    four keys; it needs four packages more.)
    """
    vector, build = ravel_pytree(free)
    site = ravel_pytree({name: jnp.full_like(x, i) for i, (name, x) in enumerate(free.items())})[0]
    sizes = np.array([np.size(x) for x in free.values()])
    signs, most = _signs(vector), len(sizes) + 1 + 3 * num_steps

    def apart(which: Array) -> Array:
        return jnp.where(site == which, signs, 0.0)

    def advance(now: _Search) -> _Search:
        trial = now.point + now.length * now.direction
        value, gradient = value_and_grad(build(trial))
        slope = ravel_pytree(gradient)[0]
        # The first evaluation is at the start, those after it are apart from it by a site each.
        bent = _dot(slope - now.slope, now.direction) / (APART * sizes)
        square = jnp.where(jnp.isfinite(1.0 / bent), jnp.abs(1.0 / bent), 1.0)
        squares = jnp.where(now.tried == 1 + np.arange(len(sizes)), square, now.squares)
        units = squares[site.astype(int)]
        fall = now.length * _dot(now.slope, now.direction)
        apart_from_it = (now.tried > 0) & (now.tried <= len(sizes))
        taken = (value <= now.value + 1e-4 * fall) & ~apart_from_it
        push = lambda rows, row: jnp.concatenate([row[None], rows[:-1]])  # noqa: E731
        steps, bends = push(now.steps, trial - now.point), push(now.bends, slope - now.slope)
        uphill, curved = _times_inverse_hessian(slope, steps, bends, lambda x: units * x)
        # Straight down where nothing is known, or it misleads.
        known = (now.done >= 0) & (curved > 0) & (_dot(uphill, slope) > 0)
        direction = -jnp.where(known, uphill, units * slope)
        steps, bends = jnp.where(known, steps, 0.0), jnp.where(known, bends, 0.0)
        shorter = _shorter(value - now.value, fall) * now.length
        back = now._replace(length=shorter, squares=squares, tried=now.tried + 1)
        one = jnp.ones_like(now.length)
        on = back._replace(
            point=trial, value=value, slope=slope, direction=direction, length=one, steps=steps,
            bends=bends, done=now.done + 1,
        )  # fmt: skip
        new = jax.tree.map(lambda a, b: jnp.where(taken, a, b), on, back)
        first = jnp.where(now.tried < len(sizes), apart(now.tried), -units * new.slope)
        length = jnp.where(now.tried < len(sizes), APART, 1.0).astype(one.dtype)
        early = now.tried <= len(sizes)
        return new._replace(
            direction=jnp.where(early, first, new.direction),
            length=jnp.where(early, length, new.length),
        )

    nowhere, none = jnp.zeros_like(vector), jnp.zeros((MEMORY, len(vector)), vector.dtype)
    zero, ones = jnp.zeros((), int), jnp.ones(len(sizes), vector.dtype)
    inf = jnp.full((), jnp.inf, jnp.result_type(float))
    start = _Search(
        vector, inf, nowhere, nowhere, jnp.ones_like(inf), none, none, ones, zero - 1, zero
    )
    unfinished = lambda s: (s.done < num_steps) & (s.tried < most)  # noqa: E731
    return build(lax.while_loop(unfinished, advance, start).point)


class Descent(NamedTuple):
    """The lowest point so far, and the step from it that is tried next."""

    point: Array  # (p,)
    value: Array
    slope: Array
    direction: Array
    length: Array
    steps: Array  # (MEMORY, p), the last first
    bends: Array  # (MEMORY, p), by which they changed the slope

    @classmethod
    def at(cls, point: Array) -> Descent:
        """Before the first evaluation, which is at the point itself."""
        nowhere, none = jnp.zeros_like(point), jnp.zeros((MEMORY, len(point)), point.dtype)
        inf = jnp.full((), jnp.inf, point.dtype)
        return cls(point, inf, nowhere, nowhere, jnp.ones_like(inf), none, none)

    @property
    def trial(self) -> Array:
        """The point to be evaluated."""
        return self.point + self.length * self.direction

    def after(self, value: Array, slope: Array, scaled: Scaled, largest: float) -> Descent:
        """What follows from the value and the slope at the trial.

        :param scaled: the slope in units in which the curvature is about the same everywhere.
        :param largest: no element of a step is larger.
        """
        fall = self.length * _dot(self.slope, self.direction)
        # The slack is what a mean over the rows is rounded by.
        taken = value <= self.value + 1e-4 * fall + 1e-7 * jnp.abs(value)
        step, bend = self.length * self.direction, slope - self.slope
        known = jnp.isfinite(self.value) & (_dot(step, bend) > 0)

        def push(rows: Array, row: Array) -> Array:
            return jnp.where(known, jnp.concatenate([row[None], rows[:-1]]), rows)

        steps, bends = push(self.steps, step), push(self.bends, bend)
        uphill, _ = _times_inverse_hessian(slope, steps, bends, scaled)
        direction = -jnp.where(_dot(uphill, slope) > 0, uphill, scaled(slope))
        length = jnp.minimum(1.0, largest / (jnp.abs(direction).max() + 1e-30))
        on = Descent(self.trial, value, slope, direction, length, steps, bends)
        back = self._replace(length=self.length * _shorter(value - self.value, fall))
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b).astype(b.dtype), on, back)


def _shorter(rise: Array, fall: Array) -> Array:
    """How much shorter a step is to be: the parabola through what is known is lowest there."""
    share = -0.5 * fall / (rise - fall)
    return jnp.where(jnp.isfinite(share), jnp.clip(share, 0.1, 0.5), 0.1)


def _times_inverse_hessian(
    slope: Array, steps: Array, bends: Array, scaled: Scaled
) -> tuple[Array, Array]:
    """What L-BFGS takes for the inverse of the Hessian, times the slope (Nocedal & Wright, 7.4),
    and the product of the last step with the change that it made.

    :param steps: (memory, p), the last first, and the changes of slope they made; zero: no step.
    :param scaled: what is taken for it before the first step, but for a factor.
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
    size = _dot(scaled(bends[0]), bends[0])
    vector = jnp.where(size > 0, dots[0] / size, 1.0) * scaled(vector)
    return lax.scan(up, vector, (steps, bends, weights, shares), reverse=True)[0], dots[0]


def _signs(vector: Array) -> Array:
    """As many random signs."""
    # Mixed by hand: signs drawn from a key are sixty loops to compile.
    bits = lax.iota(jnp.uint32, len(vector)) + 1
    for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return jnp.where(bits >> 31, 1.0, -1.0).astype(vector.dtype)


def _dot(a: Array, b: Array) -> Array:
    return jnp.vdot(a, b, precision="highest")
