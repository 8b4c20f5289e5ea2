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
