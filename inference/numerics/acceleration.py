"""Anderson acceleration of a fixed-point method, with a safeguard, so that it never goes down.

EM climbs in a straight line and ever more slowly near the top. The last few steps tell how its map
bends; the point where their residuals would cancel (Anderson 1965; for EM, with monotonicity kept,
Henderson & Varadhan 2019) is tried next. If the loss there is not lower than the last one, the
point is forgotten and the plain step, which cannot be worse, is taken in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ..types import Params

SMALLEST = 1e-20
"""Probability that is told from 0: a slope in its logarithm is a number."""
LATE = 1e-4
"""Share of the loss that a step gains, below which `finishing` accelerates."""
STILL = 1e-6
"""The same, below which it is computed what is left to gain."""


class Trail(NamedTuple):
    """The last steps, and the point to be tried next."""

    candidate: Array  # (p,), unconstrained parameters
    point: Array  # (p,), the last point that was accepted
    image: Array  # (p,), where the method led from it
    points: Array  # (memory, p), differences of residuals between steps
    images: Array  # (memory, p), differences of images
    loss: Array  # the lowest so far
    gain: Array  # what the last step promised


class Visit(NamedTuple):
    """What one evaluation of the method at some parameters gives."""

    loss: Array
    safe: Params  # a step that cannot raise the loss
    fast: Params  # a step to build the acceleration on; often the same
    memory: Any
    gain: Any = 0.0
    """what the step adds to the objective, to second order: near the optimum differences of losses
    are rounding"""


class Maps(dict[str, Any]):
    """Site -> the map from the real line to where the parameter lives."""

    def constrain(self, free: Params) -> Params:
        return {name: self[name](value) for name, value in free.items()}

    def free(self, params: Params) -> Params:
        """The way back: parameters as unconstrained numbers."""
        return {name: _inverse(self[name], value) for name, value in params.items()}


class Angles(NamedTuple):
    """Probabilities as angles: p = sin² x, in which Fisher's information is the same everywhere.

    A probability on its way to 0 comes to rest there, where its log odds would run for ever.
    """

    def __call__(self, free: Array) -> Array:
        return jnp.sin(free) ** 2

    def inv(self, probs: Array) -> Array:
        return jnp.arcsin(jnp.sqrt(jnp.clip(probs, SMALLEST, 1.0)))


class Roots(NamedTuple):
    """Shares as their roots, a point of a sphere, for the same reason."""

    def __call__(self, free: Array) -> Array:
        return free**2 / jnp.sum(free**2, -1, keepdims=True)

    def inv(self, shares: Array) -> Array:
        return jnp.sqrt(jnp.clip(shares, SMALLEST, 1.0))


class Chart(NamedTuple):
    """Parameters by site as one vector without constraints, and back."""

    flatten: Callable[[Params], Array]
    build: Callable[[Array], Params]


def chart(params: Params, maps: Maps) -> Chart:
    """The chart of parameters like `params`."""
    _, unravel = ravel_pytree(maps.free(params))
    return Chart(
        lambda tree: ravel_pytree(maps.free(tree))[0],
        lambda vector: maps.constrain(unravel(vector)),
    )


def begin(vector: Array, memory: int) -> Trail:
    """An empty trail at a starting point."""
    none = jnp.zeros((memory, vector.shape[0]), vector.dtype)
    far = jnp.array(jnp.inf, vector.dtype)
    return Trail(vector, vector, vector, none, none, far, far)


def step(
    visit: Callable[[Params, Any], Visit], space: Chart, trail: Trail, safe: Params, memory: Any
) -> tuple[Trail, Params, Any, Array]:
    """One accelerated step: (trail, safe parameters, memory, loss).

    :param visit: the method at some parameters.
    :param safe: the plain step from the last point, taken if the candidate is no good.
    """
    plain_step = space.flatten(safe)
    visit = jax.jit(visit)  # traced once: for its shapes below, and then in the loop

    # A loop of one or two rounds, not two calls in a branch: the method is compiled once.
    def attempt(carry: tuple) -> tuple:
        _, _, point, first = carry
        visited = visit(space.build(point), memory)
        # Rounding must not send a converged run back and forth.
        slack = 4.0 * jnp.finfo(visited.loss.dtype).eps * jnp.abs(visited.loss)
        good = visited.loss <= trail.loss + slack  # False for NaN
        again = first & ~good
        return again, visited, jnp.where(again, plain_step, point), first & good

    shapes = jax.eval_shape(visit, safe, memory)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    yes = jnp.array(True)
    _, visited, point, good = lax.while_loop(
        lambda carry: carry[0], attempt, (yes, nothing, trail.candidate, yes)
    )
    image = space.flatten(visited.fast)
    residual = image - point
    known = good & jnp.isfinite(trail.loss)
    change = residual - (trail.image - trail.point)

    def push(table: Array, row: Array) -> Array:
        return jnp.where(known, jnp.concatenate([row[None], table[:-1]]), 0.0)

    points = push(trail.points, change)
    images = push(trail.images, image - trail.image)
    candidate = image - _mix(points, images, residual)
    usable = jnp.isfinite(candidate).all()
    candidate = jnp.where(usable, candidate, image)
    lowest = jnp.fmin(trail.loss, visited.loss)
    gain = jnp.asarray(visited.gain, lowest.dtype)
    new = Trail(candidate, point, image, points, images, lowest, gain)
    return new, visited.safe, visited.memory, visited.loss


def finishing(
    visit: Callable[[Params, Any], Visit], total: Callable[[Params], Array], space: Chart,
    trail: Trail, safe: Params, memory: Any,
) -> tuple[Trail, Params, Any, Array]:  # fmt: skip
    """A step that is plain far from an optimum, and accelerated near it: as `step`.

    The trail's `gain` is what is left to gain: half of the slope of the loss along the step to
    where the residuals would vanish, which says it also where a difference of losses is rounding.

    :param total: the loss, which `visit` gives too.
    """
    new, safe, memory, loss = step(visit, space, trail, safe, memory)
    fall, size = trail.loss - new.loss, jnp.abs(new.loss)
    ahead, plain = new.candidate - new.point, new.image - new.point
    # Towards a saddle the method leads away from: on, and as far (Varadhan & Roland 2008).
    uphill = ahead @ plain < 0.0
    longer = jnp.linalg.norm(ahead) / jnp.maximum(jnp.linalg.norm(plain), 1e-30)
    ahead = jnp.where(uphill, longer * plain, ahead)

    def left() -> Array:
        slope = jax.jvp(lambda v: total(space.build(v)), (new.point,), (ahead,))[1]
        gain = 0.5 * jnp.abs(slope).astype(new.gain.dtype)
        # A single step may not see what is slow: it has to be so for some in a row.
        return jnp.maximum(gain, jnp.where(jnp.isfinite(trail.gain), 0.5 * trail.gain, 8.0 * gain))

    climbing = uphill | (fall > STILL * size)
    known = ~climbing & ((new.points != 0).any() | (plain == 0).all())
    gain = lax.cond(known, left, lambda: jnp.where(climbing, jnp.inf, trail.gain))
    candidate = jnp.where(fall <= LATE * size, new.point + ahead, new.image)
    return new._replace(candidate=candidate, gain=gain), safe, memory, loss


def _mix(points: Array, images: Array, residual: Array) -> Array:
    """The combination of past changes that takes the residual away, applied to the images."""
    size = jnp.linalg.norm(points, axis=1)
    scale = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)[:, None]
    # Near-parallel steps in float32 know nothing more of the bend: they are cut off.
    least = 30.0 * float(jnp.finfo(points.dtype).eps) ** 0.75
    # As `jnp.linalg.lstsq`, which finds more than the solution, and all of it is lowered.
    left, values, right = lax.linalg.svd((points * scale).T, full_matrices=False)
    large = (values > 0) & (values >= least * values[0])
    inverse = jnp.where(large, 1.0 / jnp.where(large, values, 1.0), 0.0)
    share = right.T @ (inverse * (left.T @ residual))
    return share @ (images * scale)


def _inverse(transform: Any, value: Array) -> Array:
    inverse = getattr(transform, "_inverse", None) or getattr(transform, "inv", None)
    value = jnp.asarray(value)
    value = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
    return value if inverse is None else inverse(value)


def plain(visit: Callable[[Params, Any], Visit], params: Params, memory: Any) -> Any:
    """One step without acceleration: (parameters, memory, loss)."""
    visited = visit(params, memory)
    return visited.safe, visited.memory, visited.loss
