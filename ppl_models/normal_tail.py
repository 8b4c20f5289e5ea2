"""The log of the normal distribution function, right in its far tail, as its slopes are."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import erfc


class _Tail(NamedTuple):
    r"""What the log of :math:`\Phi(x)` and its slopes are made of, for x no more than 0 or so."""

    far: Array  # whether x is so low that the asymptotic series says more than erfc
    x: Array  # x itself where it is far and finite, else a number that does no harm
    less: Array  # Φ(x) = φ(x) (1 - less) / -x, from the series
    root: Array  # x / √2 where it is near, else 0
    near: Array  # Φ of that


def _tail(x: Array) -> _Tail:
    kind = jnp.finfo(x.dtype)
    # There both say the same to rounding: of the series 10395 / x¹² is neglected.
    first = -10.0 if kind.bits <= 32 else -30.0
    far = x <= first
    low = jnp.where(far & (x > -math.sqrt(float(kind.max))), x, first)
    y = 1 / low**2
    less = y * (1 - 3 * y * (1 - 5 * y * (1 - 7 * y * (1 - 9 * y))))
    root = jnp.where(far, 0.0, x) * math.sqrt(0.5)
    return _Tail(far, low, less, root, erfc(-root) / 2)


@jax.custom_jvp
def log_normal_cdf(x: Array) -> Array:
    r"""Log of :math:`\Phi(x)`, with derivatives that hold in the far tail and are never NaN.

    JAX's own gradient is the exponential of a difference of two numbers of size :math:`x^2/2`, of
    which nothing is right in single precision at :math:`x = -10^4`; and whatever selects between
    branches by autodiff pays for all of them, many times what the slopes themselves cost.
    """
    at = _tail(x)
    share = jnp.where(at.far, (1 - at.less) / (-at.x * math.sqrt(2 * math.pi)), at.near)
    value = jnp.log(share) - jnp.where(at.far, at.x**2 / 2, 0.0)
    return jnp.where(x <= -math.sqrt(float(jnp.finfo(x.dtype).max)), -jnp.inf, value)


@log_normal_cdf.defjvp
def _slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value = log_normal_cdf(*primals)
    return value, jnp.where(jnp.isneginf(value), 0.0, _hazard(*primals)) * tangents[0]


@jax.custom_jvp
def _hazard(x: Array) -> Array:
    r""":math:`\phi(x) / \Phi(x)`, the slope of the log of :math:`\Phi`."""
    at = _tail(x)
    near = jnp.exp(-(at.root**2)) / (at.near * math.sqrt(2 * math.pi))
    return jnp.where(at.far, -at.x / (1 - at.less), near)


@_hazard.defjvp
def _curvature(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), at, hazard = primals, _tail(primals[0]), _hazard(primals[0])
    # Far off the two are all but opposite: the series has their sum without a difference.
    total = jnp.where(at.far, -at.x * at.less / (1 - at.less), x + hazard)
    return hazard, -hazard * total * tangents[0]
