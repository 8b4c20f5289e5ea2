r"""The integral equation of a clipped Gaussian, solved for all pairs of columns at once.

Lee & Sompolinsky (1998), eq. (10): two standard Gaussians of correlation ρ, clipped at thresholds
a and b, have

.. math:: \langle s_i s_j\rangle = 4\Phi_2(a, b; \rho) - 2\Phi(a) - 2\Phi(b) + 1 .

The ρ that solves it is the tetrachoric correlation. What is solved here is the same equation for
the *smallest cell* of the pair's 2×2 table, since only that cell fixes ρ without loss of digits: a
relative error of it is never multiplied by more than 1.6, whatever the biases, while the moment
itself can be flat in ρ to the last digit.

Let q = P(X > h, Y > k; -cos φ) be the cell that vanishes as the correlation goes to its end, turned
such that h ≥ \|k\| (the end is then ρ = −1, φ = 0). Plackett's dΦ₂/dρ = φ₂, the substitution
ρ = −cos φ and y = tan(φ/2) give

.. math::
    q = \frac1\pi e^{-(h^2 + k^2)/4} \int_0^{\tan(\varphi/2)}
        e^{-(h + k)^2 / 8y^2 - (h - k)^2 y^2 / 8} \frac{dy}{1 + y^2},

and its neighbour P(X > h, Y < k) is Φ(−h)Φ(k) plus the same integral from tan(φ/2) to 1. Both have
positive terms only. The exponential vanishes at y = 0 on the scale of (h + k), however small that
is: y = c sinh w with c on that scale makes one Gauss–Legendre rule right for all pairs.

Newton steps are taken on Φ⁻¹(q/Φ(−h)) as a function of ζ = (k + m cos φ)/sin φ, m = E[X | X > h].
If X were fixed at its mean m, the one would be minus the other; so ζ starts at the answer to that,
and a fixed number of steps is enough everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import log_ndtr, ndtri

# Pairs solved together: small enough that a step's arrays stay in the cache.
BLOCK = 2048
LOG_TWO_PI = float(np.log(2 * np.pi))


class Rule(NamedTuple):
    """Effort of the solution in one precision."""

    num_steps: int  # of Newton
    num_nodes: int  # of Gauss and Legendre
    range: float  # exponents below the largest by more than this are left out
    floor: float  # of the width c, relative to y ≤ 1


def rule(dtype: jnp.dtype) -> Rule:
    """The steps and nodes that reach 1e-10 in float64 and 1e-5 in float32, everywhere."""
    if jnp.finfo(dtype).bits >= 64:
        return Rule(7, 40, 40.0, 1e-12)
    return Rule(5, 20, 20.0, 1e-7)


def correlation_of_cells(first: Array, second: Array, cells: tuple[Array, ...]) -> Array:
    """The ρ that makes the table of two clipped Gaussians, elementwise over arrays of one shape.

    :param first: the threshold a: P(first bit on) = Φ(a). Finite.
    :param second: the threshold b of the other.
    :param cells: probabilities of (on, on), (on, off), (off, on), (off, off), whose margins are
        those of the thresholds. An empty cell gives the end of the range, ±1.
    """
    shape = jnp.broadcast_shapes(first.shape, second.shape)
    flat = [jnp.broadcast_to(x, shape).reshape(-1) for x in (first, second, *cells)]
    return lax.map(lambda pair: _solve(*pair), flat, batch_size=BLOCK).reshape(shape)


def slope(first: Array, second: Array, correlation: Array) -> Array:
    """φ₂(a, b; ρ), by which the (on, on) cell grows with ρ; 0 at the ends."""
    left = jnp.maximum((1 - correlation) * (1 + correlation), jnp.finfo(correlation.dtype).tiny)
    exponent = first**2 + second**2 - 2 * correlation * first * second
    return jnp.exp(-0.5 * exponent / left) / (2 * jnp.pi * jnp.sqrt(left))


class _Corner(NamedTuple):
    """A pair turned such that its correlation is −cos φ ≤ 0 and h ≥ |k|."""

    high: Array  # h
    low: Array  # k
    closing: Array  # (h + k)²/8
    crossing: Array  # (h − k)²/8
    log_tail: Array  # log Φ(−h)
    conditional_mean: Array  # m = E[X | X > h]


def _corner(first: Array, second: Array, same: Array) -> tuple[_Corner, Array, Array]:
    """The pair, turned; whether the vanishing cell has the first bit off; whether h is the first's.

    Of the two cells that shrink towards the end, (on, off) and (off, on) if ρ > 0, else (on, on)
    and (off, off), the one that vanishes there is the one with h + k ≥ 0.
    """
    other = jnp.where(same, -second, second)
    off = first + other >= 0
    mine, yours = jnp.where(off, first, -first), jnp.where(off, other, -other)
    high, low = jnp.maximum(mine, yours), jnp.minimum(mine, yours)
    log_tail = log_ndtr(-high)
    mean = jnp.exp(-0.5 * high**2 - 0.5 * LOG_TWO_PI - log_tail)
    corner = _Corner(high, low, (high + low) ** 2 / 8, (high - low) ** 2 / 8, log_tail, mean)
    return corner, off, mine >= yours


def _log_integral(corner: _Corner, angle: Array, from_end: Array) -> Array:
    """Log of the integral above from 0 to tan(φ/2), or from there to 1, with its leading factor."""
    settings = rule(angle.dtype)
    tiny = jnp.finfo(angle.dtype).tiny ** 0.5
    closing, crossing, edge = corner.closing, corner.crossing, jnp.tan(angle / 2)
    peak = (closing / jnp.maximum(crossing, tiny)) ** 0.25
    peak = jnp.where(from_end, jnp.minimum(peak, edge), jnp.clip(peak, edge, 1.0))
    peak = jnp.maximum(peak, tiny)
    top = closing / peak**2 + crossing * peak**2
    # Where the exponent has fallen by `range`, on either side of its peak.
    near = jnp.sqrt(closing / (top + settings.range))
    far = jnp.sqrt((top + settings.range) / jnp.maximum(crossing, tiny))
    start = jnp.where(from_end, jnp.minimum(near, edge), jnp.maximum(near, edge))
    stop = jnp.maximum(jnp.minimum(far, jnp.where(from_end, edge, 1.0)), start)

    # Where h + k is zero nothing vanishes at y = 0, and no scale is wanted.
    width = jnp.where(closing > 0, 0.5 * jnp.sqrt(closing) + settings.floor, 1.0)
    begin, end = jnp.arcsinh(start / width), jnp.arcsinh(stop / width)
    half, middle = 0.5 * (end - begin), jnp.exp(0.5 * (end + begin))
    points, weights = np.polynomial.legendre.leggauss(settings.num_nodes)
    # Nodes lie symmetrically about the middle: two of them share an exponential.
    nodes = jnp.asarray(np.stack([points, weights], 1)[: settings.num_nodes // 2], angle.dtype)

    def height(growth: Array) -> Array:
        """The integrand at e^w = growth, times dy/dw."""
        shrink = 1 / growth
        square = (0.5 * width * (growth - shrink)) ** 2
        bell = jnp.exp(top - closing / square - crossing * square)
        return bell * (growth + shrink) / (1 + square)

    def add(total: Array, node: Array) -> tuple[Array, None]:
        away = jnp.exp(half * node[0])
        return total + node[1] * (height(middle * away) + height(middle / away)), None

    total = 0.5 * width * half * lax.scan(add, jnp.zeros_like(angle), nodes)[0]
    scale = -(corner.high**2 + corner.low**2) / 4 - top - np.log(np.pi)
    return scale + jnp.log(jnp.maximum(total, jnp.finfo(angle.dtype).tiny))


def _log_cell(corner: _Corner, angle: Array, vanishing: Array) -> Array:
    """Log of the vanishing cell P(X > h, Y > k), or of its neighbour P(X > h, Y < k)."""
    integral = _log_integral(corner, angle, vanishing)
    independent = corner.log_tail + log_ndtr(corner.low)
    return jnp.where(vanishing, integral, jnp.logaddexp(independent, integral))


def _angle(corner: _Corner, position: Array) -> Array:
    """φ of ζ: (k + m cos φ)/sin φ = ζ, which falls from ∞ at φ = 0 to k at φ = π/2."""
    radius = jnp.hypot(position, corner.conditional_mean)
    angle = jnp.arctan2(corner.conditional_mean, position) + jnp.arcsin(
        jnp.clip(corner.low / radius, -1.0, 1.0)
    )
    return jnp.clip(angle, rule(angle.dtype).floor, np.pi / 2)


def _solve(
    first: Array, second: Array, both: Array, one: Array, two: Array, neither: Array
) -> Array:
    """ρ of a block of tables with cells (on, on), (on, off), (off, on), (off, off)."""
    settings, tiny = rule(first.dtype), jnp.finfo(first.dtype).tiny
    largest = 1 - jnp.finfo(first.dtype).eps
    same = both * neither >= one * two
    corner, off, first_is_high = _corner(first, second, same)
    low, mean, log_tail = corner.low, corner.conditional_mean, corner.log_tail

    cell = jnp.where(off, jnp.where(same, two, neither), jnp.where(same, one, both))
    beside = jnp.where(
        off == first_is_high, jnp.where(same, neither, two), jnp.where(same, both, one)
    )
    vanishing = cell < beside
    sign = jnp.where(vanishing, -1.0, 1.0)

    def height(log_cell: Array) -> Array:
        """-Φ⁻¹ of the share that the vanishing cell has of Φ(−h)."""
        return sign * ndtri(jnp.clip(jnp.exp(log_cell - log_tail), tiny, largest))

    target = height(jnp.log(jnp.maximum(jnp.minimum(cell, beside), tiny)))

    def newton(_: Array, bracket: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        position, below, above = bracket
        angle = _angle(corner, position)
        level = height(_log_cell(corner, angle, vanishing))
        below = jnp.where(level < target, position, below)
        above = jnp.where(level < target, above, position)
        edge = jnp.tan(angle / 2)
        log_slope = -(corner.high**2 + low**2) / 4 - LOG_TWO_PI
        log_slope -= corner.closing / edge**2 + corner.crossing * edge**2
        rise = jnp.exp(log_slope - log_tail + 0.5 * level**2 + 0.5 * LOG_TWO_PI)
        rise *= jnp.sin(angle) ** 2 / (mean + low * jnp.cos(angle))
        proposed = position + (target - level) / rise
        # The last steps are of the size of rounding: they may touch the bracket.
        slack = 1e-4 * (1 + jnp.abs(position))
        inside = (proposed > below - slack) & (proposed < above + slack)
        middle = jnp.where(jnp.isinf(above), 2 * jnp.abs(position) + 1, 0.5 * (below + above))
        return jnp.where(inside, proposed, middle), below, above

    start = (jnp.maximum(target, low), low, jnp.full_like(low, jnp.inf))
    position, _, _ = lax.fori_loop(0, settings.num_steps, newton, start)
    angle = jnp.where(cell > tiny, _angle(corner, position), 0.0)
    # Without biases the integrand is constant: the arcsine law (7), to the last digit.
    angle = jnp.where((first == 0) & (second == 0), 2 * np.pi * jnp.maximum(cell, 0.0), angle)
    return jnp.where(same, 1.0, -1.0) * jnp.cos(jnp.minimum(angle, np.pi / 2))
