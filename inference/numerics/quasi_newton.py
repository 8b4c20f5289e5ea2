"""L-BFGS with a backtracking line search, an evaluation at a time or as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree

from ..types import Params

Slope = Callable[[Params], tuple[Array, Params]]
Scaled = Callable[[Array], Array]
MEMORY = 10
"""Past steps that are kept."""
APART = 0.01
"""Distance of the second gradient of the finite difference that gives a curvature: near enough for
maps to the real line, far enough for float32."""


class Descent(NamedTuple):
    """The lowest point so far, and the step from it that is tried next."""

    point: Array  # (p,)
    value: Array
    slope: Array
    direction: Array
    length: Array
    steps: Array  # (MEMORY, p), the last first
    bends: Array  # (MEMORY, p), the change of the gradient along each step
    accepted: Array  # number of points accepted, the first one included

    @classmethod
    def at(cls, point: Array) -> Descent:
        """Before the first evaluation, which is at the point itself."""
        nowhere, none = jnp.zeros_like(point), jnp.zeros((MEMORY, len(point)), point.dtype)
        inf = jnp.full((), jnp.inf, point.dtype)
        return cls(point, inf, nowhere, nowhere, jnp.ones_like(inf), none, none, jnp.zeros((), int))

    @property
    def trial(self) -> Array:
        """The point to be evaluated."""
        return self.point + self.length * self.direction

    def after(self, value: Array, slope: Array, scaled: Scaled, largest: float) -> Descent:
        """The descent after the value and the gradient at the trial are known.

        :param scaled: the gradient in units in which the curvature is about the same everywhere.
        :param largest: no element of a step is larger.
        """
        fall = self.length * _dot(self.slope, self.direction)
        # The slack is the rounding error of a mean over the rows.
        slack = jnp.finfo(self.value.dtype).eps * jnp.abs(self.value)
        accepted = value <= self.value + 1e-4 * fall + slack
        step, bend = self.length * self.direction, slope - self.slope
        known = jnp.isfinite(self.value) & (_dot(step, bend) > 0)

        def push(rows: Array, row: Array) -> Array:
            return jnp.where(known, jnp.concatenate([row[None], rows[:-1]]), rows)

        steps, bends = push(self.steps, step), push(self.bends, bend)
        uphill = _times_inverse_hessian(slope, steps, bends, scaled)
        direction = -jnp.where(_dot(uphill, slope) > 0, uphill, scaled(slope))
        length = jnp.minimum(1.0, largest / (jnp.abs(direction).max() + 1e-30))
        count = self.accepted + 1
        on = Descent(self.trial, value, slope, direction, length, steps, bends, count)
        # Backwards to where the parabola through both values and the gradient is lowest.
        share = -0.5 * fall / (value - self.value - fall)
        share = jnp.where(jnp.isfinite(share), jnp.clip(share, 0.1, 0.5), 0.1)
        back = self._replace(length=self.length * share)
        return jax.tree.map(lambda a, b: jnp.where(accepted, a, b).astype(b.dtype), on, back)


def minimise(value_and_grad: Slope, free: Params, num_steps: int) -> Params:
    """`num_steps` of L-BFGS from `free`, each site measured in units of its own curvature.

    Without the units, a deviation and a matrix of weights differ by orders of magnitude in the
    effect of a step, and a few steps of L-BFGS move the one and leave the other where it is. The
    unit is one over the root of the mean curvature of a site, zᵀHz/p in a direction z of random
    signs.
    """
    vector, build = ravel_pytree(free)
    sizes = np.array([np.size(x) for x in free.values()])
    numbers = {name: jnp.full(jnp.shape(x), i) for i, (name, x) in enumerate(free.items())}
    site = ravel_pytree(numbers)[0]

    def evaluate(point: Array) -> tuple[Array, Array]:
        value, gradient = value_and_grad(build(point))
        return value, ravel_pytree(gradient)[0]

    signs = random.rademacher(random.key(0), vector.shape, vector.dtype)
    directions = jnp.where(site == np.arange(-1, len(sizes))[:, None], signs, 0.0)
    values, slopes = lax.map(lambda z: evaluate(vector + APART * z), directions)
    curvature = jnp.sum((slopes - slopes[0]) * directions, 1)[1:] / (APART * sizes)
    squares = jnp.where(jnp.isfinite(1.0 / curvature), jnp.abs(1.0 / curvature), 1.0)

    def after(descent: Descent, value: Array, slope: Array) -> Descent:
        return descent.after(value, slope, lambda x: squares[site] * x, jnp.inf)

    def unfinished(carry: tuple[Descent, Array]) -> Array:
        descent, tried = carry
        return (descent.accepted <= num_steps) & (tried < 3 * num_steps)

    def advance(carry: tuple[Descent, Array]) -> tuple[Descent, Array]:
        descent, tried = carry
        return after(descent, *evaluate(descent.trial)), tried + 1

    start = after(Descent.at(vector), values[0], slopes[0])
    return build(lax.while_loop(unfinished, advance, (start, jnp.zeros((), int)))[0].point)


def _times_inverse_hessian(slope: Array, steps: Array, bends: Array, scaled: Scaled) -> Array:
    """The inverse Hessian of L-BFGS times the gradient (Nocedal & Wright, 7.4).

    :param steps: (memory, p), the last first, with the changes of the gradient along them; zero: no
        step.
    :param scaled: the inverse Hessian before the first step, up to a factor.
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
    return lax.scan(up, vector, (steps, bends, weights, shares), reverse=True)[0]


def _dot(a: Array, b: Array) -> Array:
    return jnp.vdot(a, b, precision="highest")
