"""Hidden values of an image by the probit relaxation of a clipped Gaussian, and paths between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, random
from jax.typing import ArrayLike
from latentbits.models import clipped_gaussian

from ...numerics.gaussian import invert, log_normal
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks
from ...types import Arguments, Params
from ..continuous.factors import FactorPosterior, open_factors
from ..continuous.rules import Rule, about, peaks, weigh

# The log joint is concave, so Newton's steps arrive: for digits and 16 factors after about 10.
NEWTON_STEPS = 20


def modes(model: Callable, params: Params, args: tuple, kwargs: dict[str, Any]) -> Array:
    """The most probable factors of each row, (num_data, num_factors)."""
    reader, rows = open_factors(model, args, kwargs, None)

    def each(rows: Rows, params: Params) -> Array:
        size = chunk_of(None, rows.width, rows)

        def find(arguments: Arguments) -> Array:
            local = reader.at(size)
            return peaks(local, params, arguments, local.start(), NEWTON_STEPS).place

        return map_over_chunks(find, rows, size)

    return compiled(each, rows)(rows.leaves, params)


def laplace(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], num_draws: int
) -> FactorPosterior:
    """The mode of each row's factors and the Gaussian of the curvature there.

    ``evidence`` is Laplace's; ``gap`` is what `num_draws` importance draws from that Gaussian say
    less that; ``effective`` is how many of the draws carry the weight: all, if it is exact.
    """
    reader, rows = open_factors(model, args, kwargs, None)
    draws = random.normal(random.key(0), (num_draws, reader.num_factors))

    def each(rows: Rows, params: Params, draws: Array) -> FactorPosterior:
        size = chunk_of(None, num_draws * rows.width, rows)
        local = reader.at(size)
        peak = jnp.zeros_like(draws[:1])
        at_mode = Rule(peak, -log_normal(peak))
        by_draws = Rule(draws, -log_normal(draws) - math.log(num_draws))

        def summarise(arguments: Arguments) -> FactorPosterior:
            top = peaks(local, params, arguments, local.start(), NEWTON_STEPS)
            evidence, _ = weigh(local, params, arguments, about(local, top, at_mode))
            drawn, share = weigh(local, params, arguments, about(local, top, by_draws))
            effective = 1 / jnp.sum(share**2, axis=0)
            covariance, gap = invert(top.precision)[0], drawn - evidence
            return FactorPosterior(top.place, covariance, evidence, gap, effective)

        return map_over_chunks(summarise, rows, size)

    return compiled(each, rows)(rows.leaves, params, draws)


def reconstruct(params: Params, factors: Array) -> Array:
    """The image of hidden values, (..., num_features), 0/1: eq. (8) without noise."""
    return (factors @ params["weights"] + params["bias"] > 0).astype(factors.dtype)


class Morph(NamedTuple):
    """A path between two images. Every step of it is an image of bits."""

    images: Array  # (steps, num_features) 0/1; the first and last are the model's a and b
    factors: Array  # (steps, num_factors) y, on a straight line
    hamming: Array  # (steps - 1,) bits that change from one image to the next
    wrong: Array  # (2,) bits in which the ends differ from a and b


def morph(params: Params, a: Array, b: Array, steps: int, *, noise: ArrayLike = 1.0) -> Morph:
    """The path between two images (Lee & Sompolinsky 1998, figure 4).

    The hidden values of both are their modes under the probit relaxation; between them y moves on a
    straight line and is clipped. Each bit changes at most once on the way, so the path is no longer
    than the Hamming distance of its ends.

    :param a: (num_features,) 0/1, and so is ``b``.
    :param steps: images of the path, its ends among them.
    :param noise: the deviation before the clip for which ``params`` were found; positive.

    >>> params = {"weights": 5 * jnp.array([[1.0, 1.0, 1.0]]), "bias": jnp.array([2.0, 0.0, -2.0])}
    >>> path = morph(params, jnp.zeros(3), jnp.ones(3), 7)
    >>> path.images.sum(axis=1).tolist(), path.hamming.tolist()
    ([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0], [0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    """
    if steps < 2:
        raise ValueError(f"`steps` must be at least 2, a path has two ends: found {steps}")
    if not jnp.all(jnp.asarray(noise) > 0):
        raise ValueError(f"`noise` must be positive, found {noise}: a mode needs the relaxation")
    pair = jnp.stack([jnp.asarray(a, float), jnp.asarray(b, float)])
    sizes = {"num_factors": params["weights"].shape[0], "noise": noise}
    ends = modes(clipped_gaussian, params, (pair,), sizes)
    share = jnp.linspace(0.0, 1.0, steps)[:, None]
    factors = (1 - share) * ends[0] + share * ends[1]
    images = reconstruct(params, factors)
    hamming = jnp.abs(jnp.diff(images, axis=0)).sum(axis=1)
    return Morph(images, factors, hamming, jnp.abs(images[jnp.array([0, -1])] - pair).sum(axis=1))
