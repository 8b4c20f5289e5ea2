"""The mode of a posterior with its curvature: for long chains to begin at, and to move by.

A unit of a combination machine is on half of the time when its bias is about minus the sum of its
weights: the posterior of ten units is a thousand times longer in some directions than in others,
none of them along a parameter. NUTS with a scale for each parameter was in warm-up after 580
processor seconds; with the covariance of Laplace's approximation it takes 31 steps a draw, and
warm-up has nothing to learn but the size of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model, unconstrain_fn

from ..reading.anatomy import Anatomy
from ..rows.devices import one_device
from ..running import clock
from ..types import Arguments, Params
from .starts import climb, climbs_of, differentiable

MOST_SITES = 2000
"""Unconstrained parameters whose curvature is computed."""
SHARE = 0.25
"""Of a budget that one matrix of curvatures may take."""
MOST_STEPS = 20
"""Of Newton's method."""
NEAR = 0.05
"""Nats that a step of Newton's still gains, at which the mode is reached."""
FLATTEST = 1e-6
"""Of the largest curvature: in float32 a smaller one cannot be distinguished from zero."""


class Laplace(NamedTuple):
    """A normal approximation at the best mode that was found, unconstrained."""

    mode: Params
    covariance: np.ndarray | None  # (size, size), sites in alphabetical order; None: too costly
    seconds: float  # by `running.clock`, compilation left out

    def starts(self, rng_key: Array, count: int) -> Params:
        """Draws of it, a leading axis of so many: all chains in the same mode, well apart."""
        flat, unravel = ravel_pytree(self.mode)
        places = jnp.repeat(flat[None], count, 0)
        if self.covariance is not None:
            root = np.linalg.cholesky(self.covariance).astype(np.float32)
            places = places + random.normal(rng_key, places.shape) @ root.T
        return jax.vmap(unravel)(places)


def laplace(
    model: Callable,
    anatomy: Anatomy,
    rng_key: Array,
    arguments: Arguments,
    budget: float | None = None,
    num_keys: int = 4,
    known: Sequence[dict[str, Any]] = (),
) -> Laplace | None:
    """From the best of all climbs of so many keys; None where a chain begins anywhere.

    :param known: parameters that may be better, as the truth.

    >>> from latentbits.inference.reading.anatomy import inspect
    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.5, (30, 4)).astype(float)
    >>> arguments = (data,), {"num_components": 2}
    >>> anatomy = inspect(bernoulli_mixture, *arguments)
    >>> normal = laplace(bernoulli_mixture, anatomy, random.key(1), arguments, num_keys=1)
    >>> normal.covariance.shape, normal.starts(random.key(2), 3)["probs"].shape
    ((9, 9), (3, 2, 4))
    """
    climbs = climbs_of(model, anatomy)
    if climbs is None:
        return None
    device = one_device(*arguments)
    arrays, hollow = device.arrays, device._replace(arrays=[])
    places, gradient, seconds = climb(climbs, device, random.split(rng_key, num_keys), budget, None)
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], places))[1]
    program = differentiable(model, anatomy)

    def potential(flat: Array, arrays: list[Array]) -> Array:
        args, kwargs = hollow.arguments(arrays)
        # Of where this one begins nothing is used: the compiler leaves it out.
        opened = initialize_model(
            random.key(0), program, model_args=args, model_kwargs=kwargs, validate_grad=False
        )
        return opened.potential_fn(unravel(flat))

    def unconstrain(params: Params, arrays: list[Array]) -> Array:
        return ravel_pytree(unconstrain_fn(program, *hollow.arguments(arrays), params))[0]

    ends = jax.vmap(lambda place: ravel_pytree(place)[0])(places)
    ends = jnp.stack([*ends, *(jax.jit(unconstrain)(params, arrays) for params in known)])
    values = jax.jit(lambda ends, arrays: lax.map(lambda x: potential(x, arrays), ends))
    reached = values(ends, arrays)  # not finite where one is on a boundary
    flat = ends[jnp.argmin(jnp.where(jnp.isfinite(reached), reached, jnp.inf))]
    size = len(flat)
    costly = budget is not None and 2 * size * gradient > SHARE * budget
    if size > MOST_SITES or costly:
        return Laplace(unravel(flat), None, seconds)
    flat, covariance, more = _newton(potential, flat, arrays)
    return Laplace(unravel(flat), covariance, seconds + more)


def _newton(
    potential: Callable[[Array, list[Array]], Array], flat: Array, arrays: list[Array]
) -> tuple[Array, np.ndarray, float]:
    """The mode that is near, the inverse of the curvature there, and the seconds to them."""

    def look(flat: Array, arrays: list[Array]) -> tuple[Array, Array, Array]:
        def slope(flat: Array) -> Array:
            return jax.grad(potential)(flat, arrays)

        def row(direction: Array) -> Array:
            return jax.jvp(slope, (flat,), (direction,))[1]

        return potential(flat, arrays), slope(flat), lax.map(row, jnp.eye(len(flat)))

    all_of = jax.jit(look).lower(flat, arrays).compile()
    value_at = jax.jit(potential).lower(flat, arrays).compile()
    began = clock.seconds()
    for _ in range(MOST_STEPS):
        value, gradient, curvature = (np.asarray(x, np.float64) for x in all_of(flat, arrays))
        scales, axes = np.linalg.eigh((curvature + curvature.T) / 2)
        # Downhill where the curvature is negative too: the mode is elsewhere.
        scales = np.maximum(np.abs(scales), FLATTEST * np.abs(scales).max())
        step = axes @ ((axes.T @ gradient) / scales)
        if 0.5 * gradient @ step < NEAR:
            break
        for halves in range(10):
            there = flat - jnp.asarray(step / 2.0**halves, flat.dtype)
            if float(value_at(there, arrays)) < value:
                break
        else:
            break
        flat = there
    return flat, (axes / scales) @ axes.T, clock.seconds() - began
