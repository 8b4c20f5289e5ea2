r"""Log joints as functions that are concave between the bits, and bounds over a box of states.

A box fixes some bits of a datum and leaves the others free. Where the log joint is on the bits a
concave function q, each of its tangents lies above it, so that for any point m, with
:math:`g = \nabla q(m)`,

.. math:: \log \sum_{s \in \text{box}} p(y, s) \le q(m) - \sum_{i \text{ free}} g_i m_i
          + \sum_{i \text{ free}} \log(1 + e^{g_i}) .

It is convex in g and least where :math:`m = \sigma(g(m))`. No point has to be found: each gives a
proof. Two kinds of functions are held here, each of one row; whoever has many maps over them:

*Quadratic.* :math:`c + b \cdot s + \tfrac12 s^T A s` with zeros on the diagonal of A. Bits are
their own squares, so that :math:`\tfrac12 \sum_i d_i (s_i - s_i^2)` is zero on them for any d;
added, it leaves the Hessian :math:`A - \mathrm{diag}(d)`, which `moved_diagonal` makes negative
semidefinite. Independent bits with means m have the mean log joint
:math:`c + b \cdot m + \tfrac12 m^T A m`, so that, by Jensen, this and their entropy is a lower
bound of the log of the sum over the box: the two bounds differ by
:math:`\tfrac12 \sum_i d_i m_i (1 - m_i)`.

*By sites.* A part linear in the bits, and for each cell d of what is observed a function
:math:`f_d(u_d)`, concave in predictors :math:`u_d = \alpha_d + \sum_i s_i W_{id}` affine in the
bits (`inference.certificates.families`). A sum of concave functions of affine ones is concave.

Sums are rounded. Each bound comes with a margin, what float64 may have lost of it. A sum of n terms
loses at most n / 2 units of the last place of the sum of their absolute values, in whatever order
they are added; `rounding` takes twice that, and 64 for the functions that made the terms. `margin`
of a quadratic form also covers what its coefficients lost when they were read.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, nn
from jax.scipy.special import entr

from .families import Family

Row = dict[str, Any]

FREE = -1
"""Of a bit that a box does not fix."""
ROUNDING = 64 * float(np.finfo(np.float64).eps)
RANK = 6
"""Columns of the factor of a matrix that a diagonal is found by."""


def rounding(count: int) -> float:
    """What a sum of so many terms loses at most, relative to the sum of their absolute values."""
    return ROUNDING * (1.0 + count / 64.0)


class Relaxed(NamedTuple):
    """A concave function at a point between the bits."""

    value: Array
    slope: Array  # (bits,)
    curve: Array  # (bits,) minus the diagonal of its Hessian
    spread: Array  # (bits,) at least the sums of absolute values over each row of the Hessian
    margin: Array


class Lower(NamedTuple):
    """The log of sums over some states of a box, each at most that over all of them."""

    total: Array
    zero: Array  # (bits,) over those with this bit off
    one: Array  # (bits,) over those with it on
    peak: Array  # the largest log joint that was met
    state: Array  # (bits,) where

    def less(self, margin: Array) -> Lower:
        """Each lower by a margin."""
        return Lower._make([*(x - margin for x in self[:-1]), self.state])


def listed(state: Array, free: Array, value: Array, flips: Array) -> Lower:
    """Sums over a state and its single flips.

    :param value: its log joint.
    :param flips: that of the state with each bit turned, (bits,).
    """
    flips = jnp.where(free, flips, -jnp.inf)
    best = flips.max()
    level = jnp.maximum(value, best)
    level = jnp.where(jnp.isfinite(level), level, 0.0)  # if no state is possible
    own, each = jnp.exp(value - level), jnp.exp(flips - level)
    every = each.sum()
    lost = rounding(len(flips)) * (1.0 + jnp.abs(level))
    log = lambda x: level + jnp.log(x) - lost  # noqa: E731
    # The others than one: less than their rounded difference, and never less than nothing.
    others = log(own + jnp.maximum(every * (1.0 - rounding(len(flips))) - each, 0.0))
    on, turned = state > 0, (best > value) & (jnp.arange(len(state)) == jnp.argmax(flips))
    return Lower(
        log(own + every), jnp.where(on, flips, others), jnp.where(on, others, flips),
        jnp.maximum(value, best), jnp.where(turned, 1 - state, state),
    )  # fmt: skip


def larger(first: Lower, second: Lower) -> Lower:
    """Of two lower bounds the larger, of each sum by itself; the state that has the larger peak."""
    state = jnp.where(first.peak >= second.peak, first.state, second.state)
    return Lower._make([*map(jnp.maximum, first[:-1], second[:-1]), state])


class QuadraticKind(NamedTuple):
    """Rows of {constant (), linear (bits,), pairs (bits, bits), sums (bits,), margin ()}.

    `sums` are those of absolute values over the rows of `pairs`.
    """

    upper: int = 0

    def relaxed(self, row: Row, shift: Array, free: Array, point: Array) -> Relaxed:
        """At a point, with `shift` moved from the diagonal to the linear part."""
        del free
        pull = row["pairs"] @ point
        value = row["constant"] + point @ (row["linear"] + 0.5 * pull + 0.5 * shift * (1.0 - point))
        slope = row["linear"] + pull + shift * (0.5 - point)
        return Relaxed(value, slope, shift, row["sums"] + shift, row["margin"])

    def lower(self, row: Row, free: Array, point: Array) -> Lower:
        """The larger of the listed states and of Jensen's bound at independent bits."""
        state = jnp.round(point)
        pull = row["linear"] + row["pairs"] @ state
        value = row["constant"] + 0.5 * state @ (pull + row["linear"])
        few = listed(state, free, value, value + (1.0 - 2.0 * state) * pull)
        own = entr(point) + entr(1.0 - point)
        slope = row["linear"] + row["pairs"] @ point
        middle = row["constant"] + 0.5 * point @ (slope + row["linear"]) + own.sum()
        one, zero = middle - own + (1.0 - point) * slope, middle - own - point * slope
        one = jnp.where(free, one, jnp.where(point > 0.5, middle, -jnp.inf))
        zero = jnp.where(free, zero, jnp.where(point < 0.5, middle, -jnp.inf))
        total = jnp.maximum(middle, jnp.logaddexp(zero, one).max())
        wide = Lower(total, zero, one, few.peak, few.state)
        return larger(few, wide).less(row["margin"])

    def diagonal(self, row: Row, free: Array, point: Array, old: Array) -> Array:
        """The better of a diagonal and the one that is best where the box has its point."""
        weight = jnp.where(free, point * (1.0 - point), 0.0)
        weight = jnp.maximum(weight, 1e-3 * weight.max() + 1e-12)
        pairs = jnp.where(free[:, None] & free, row["pairs"], 0.0)
        new = jnp.where(free, moved_diagonal(pairs, weight, 20), 0.0)
        better = (new * weight).sum(where=free) < (old * weight).sum(where=free)
        return jnp.where(better, new, old)


def moved_diagonal(pairs: Array, weight: Array, rounds: int = 100) -> Array:
    r"""A diagonal d for which :math:`A - \mathrm{diag}(d)` is negative semidefinite, with a small
    sum of w d: (bits,).

    The least sum is that of a semidefinite program, of which the dual is the largest
    :math:`\mathrm{tr}(A X)` with X positive semidefinite and w on its diagonal. With
    :math:`X = R R^T` each round turns the rows of R towards :math:`(A + \mathrm{diag}(a)) R`, a the
    sums of absolute values that make this matrix positive semidefinite, which only raises the
    trace. At the optimum :math:`d_i = (A R)_i \cdot R_i / w_i`. Wherever it stops, what makes d a
    proof is the largest eigenvalue of :math:`A - \mathrm{diag}(d)`, which is added to it with a
    margin for its rounding.

    >>> pairs = jnp.array([[0.0, -1.0], [-1.0, 0.0]])
    >>> [round(float(x), 3) for x in moved_diagonal(pairs, jnp.ones(2))]
    [1.0, 1.0]
    """
    num_bits = len(weight)
    size = jnp.sqrt(weight)
    places = np.sin(1.0 + np.arange(num_bits * min(RANK, num_bits)) ** 1.5)
    shift = jnp.abs(pairs).sum(1)

    def turned(rows: Array) -> Array:
        norm = jnp.sqrt((rows**2).sum(1))
        return rows * (size / jnp.where(norm > 0, norm, 1.0))[:, None]

    def step(_: int, rows: Array) -> Array:
        return turned(pairs @ rows + shift[:, None] * rows)

    start = turned(jnp.asarray(places.reshape(num_bits, -1), pairs.dtype))
    rows = lax.fori_loop(0, rounds, step, start)
    diagonal = ((pairs @ rows) * rows).sum(1) / weight
    # The eigenvalue is shared out so that bits of little weight take more of it.
    share = jnp.sqrt(weight.max() / weight)
    root = jnp.sqrt(share)
    rest = (pairs - jnp.diag(diagonal)) / root / root[:, None]
    largest = jnp.linalg.eigvalsh(rest)[-1]
    return diagonal + (largest + ROUNDING * num_bits * jnp.abs(rest).sum(1).max()) * share


def settings(num_bits: int) -> np.ndarray:
    """All states of a few bits, in the order of binary numbers: (2^bits, bits)."""
    return np.array([*product((0, 1), repeat=num_bits)], np.int32).reshape(2**num_bits, num_bits)


class SitesKind(NamedTuple):
    """Rows of {constant (configs,), linear (configs, bits), sites, margin (), lost ()}.

    `lost` is `rounding` of sums over the bits and the cells of all sites. The linear part hangs on
    what the upper bits of a datum are: `upper` of them, the first, number the configurations. A
    site is {family's arguments, weights (bits, cells, predictors), bias (cells, predictors), power
    (cells,)}, the power zero where a cell is masked.
    """

    families: tuple[Family, ...]
    upper: int = 0

    def _linear(self, row: Row, point: Array) -> tuple[Array, Array]:
        if not self.upper:
            return row["constant"][0], row["linear"][0]
        places = 2 ** np.arange(self.upper)[::-1]
        which = (point[: self.upper] > 0.5) @ places
        return row["constant"][which], row["linear"][which]

    def relaxed(self, row: Row, shift: Array, free: Array, point: Array) -> Relaxed:
        """At a point."""
        del shift
        constant, slope = self._linear(row, point)
        value, curve = constant + slope @ point, jnp.zeros(len(point))
        spread = curve
        margin = jnp.abs(constant) + jnp.abs(slope).sum()
        for family, site in zip(self.families, row["sites"], strict=True):
            weights, bias = site["weights"], site["bias"]
            predictor = bias + jnp.tensordot(point, weights, 1)
            each, steep, sharp = family.at(predictor, site)
            size = jnp.abs(weights)
            # −∞ of other families is an overflow, and says nothing of other points.
            over = jnp.isneginf(each) & (not family.nonnegative)
            value = value + jnp.where(over, jnp.nan, each).sum()
            slope = slope + jnp.tensordot(weights, steep, 2)
            curve = curve + jnp.tensordot(weights**2, sharp, 2)
            spread = spread + jnp.tensordot(size, sharp * jnp.tensordot(free + 0.0, size, 1), 2)
            whole = predictor if family.nonnegative else jnp.abs(bias) + size.sum(0)
            margin = margin + jnp.abs(each).sum() + ((1.0 + jnp.abs(steep)) * whole).sum()
        margin = row["margin"] + row["lost"] * margin
        return Relaxed(value, slope, curve, spread + curve, margin)

    def lower(self, row: Row, free: Array, point: Array) -> Lower:
        """The listed states, or those that only add bits to the rounded one."""
        state = jnp.round(point)
        constant, slope = self._linear(row, point)
        prior = jnp.abs(constant) + jnp.abs(slope).sum()
        value, share, lost, wide, ends = constant + slope @ state, row["lost"], prior, prior, prior
        turned, chord = value + (1.0 - 2.0 * state) * slope, slope
        more = free & (state < 0.5)
        level, sharp = jnp.zeros(()), jnp.zeros(len(point))
        mean, lean, count = constant + slope @ point, slope, len(point)
        for family, site in zip(self.families, row["sites"], strict=True):
            weights, bias = site["weights"], site["bias"]
            part = state[:, None, None] * weights
            # Without one bit: sums of the others from both ends, so that nothing is subtracted.
            zero = jnp.zeros_like(part[:1])
            before = jnp.concatenate([zero, jnp.cumsum(part, 0)[:-1]])
            after = jnp.concatenate([jnp.cumsum(part[::-1], 0)[::-1][1:], zero])
            other = bias + before + after + (1.0 - state)[:, None, None] * weights
            own = bias + part.sum(0)
            up, down = (jnp.maximum(weights, 0.0), jnp.minimum(weights, 0.0))
            high, low = (jnp.tensordot(more + 0.0, x, 1) for x in (up, down))
            still = bias + jnp.tensordot(jnp.where(free, 0.0, state), weights, 1)
            least, top = (still + jnp.tensordot(free + 0.0, x, 1) for x in (down, up))
            most = family.sharpest(least, top, site)
            middle = bias + jnp.tensordot(point, weights, 1)
            points = [own, own + low, own + high, middle, least, top, most]
            both = jnp.concatenate([other, jnp.stack(points)])
            each, steep, bent = jax.vmap(lambda u, f=family, site=site: f.at(u, site))(both)
            sizes = both if family.nonnegative else jnp.abs(bias) + jnp.abs(weights).sum(0)
            lost_each = jnp.abs(each).sum(1) + ((1.0 + jnp.abs(steep)) * sizes).sum((1, 2))
            value, lost = value + each[count].sum(), lost + lost_each[count]
            wide, ends = wide + lost_each[count + 3], ends + lost_each[count + 1 : count + 3].sum()
            turned = turned + each[:count].sum(1) - share * lost_each[:count]
            mean = mean + each[count + 3].sum()
            lean = lean + jnp.tensordot(weights, steep[count + 3], 2)
            most = bent[count + 4 :].max(0) if family.smooth else jnp.full_like(own, jnp.inf)
            sharp = sharp + jnp.tensordot(weights**2, most * jnp.ones_like(own), 2)
            # Chords: what is concave lies above them between their ends.
            width = (high - low)[..., 0]
            rise = (each[count + 2] - each[count + 1]) / jnp.where(width > 0, width, jnp.inf)
            level = level + (each[count + 1] - rise * low[..., 0] - each[count]).sum()
            level = level if weights.shape[-1] == 1 else level - jnp.inf
            chord = chord + weights[..., 0] @ rise
        value, turned = (jnp.where(jnp.isnan(x), -jnp.inf, x) for x in (value, turned))
        few = listed(state, free, value - share * lost, turned - share * prior)
        added = jnp.where(more, nn.softplus(chord), 0.0)
        total = value + level + added.sum() - share * (lost + ends + added.sum())
        total = jnp.where(jnp.isnan(total), -jnp.inf, total)
        zero = jnp.where(more, total - added, jnp.where(state < 0.5, total, -jnp.inf))
        one = jnp.where(more, total - added + chord, jnp.where(state > 0.5, total, -jnp.inf))
        best = larger(few, Lower(total, zero, one, few.peak, few.state))
        mean = mean - share * (wide + jnp.abs(lean).sum())
        best = larger(best, self._jensen(free, point, mean, lean, sharp, few))
        return best.less(row["margin"])

    def _jensen(
        self, free: Array, point: Array, mean: Array, slope: Array, sharp: Array, few: Lower
    ) -> Lower:
        """The mean log joint of independent bits, and their entropy.

        With C the largest curvature of f over all states of the box, the mean of f(u) is at least
        f of the mean less ½ C var u. Given one bit the mean of u moves by that bit's weight.
        """
        own, unsure = entr(point) + entr(1.0 - point), point * (1.0 - point)
        bent = jnp.where(free, 0.5 * sharp, 0.0)
        middle = mean - bent @ unsure + own.sum()
        middle = middle - rounding(len(point)) * (bent @ unsure + own.sum())
        away = jnp.where(free, 1.0 - point, 0.0), jnp.where(free, -point, 0.0)
        one, zero = (middle - own + x * slope - (x**2 - unsure) * bent for x in away)
        one = jnp.where(free | (point > 0.5), one, -jnp.inf)
        zero = jnp.where(free | (point < 0.5), zero, -jnp.inf)
        parts = (jnp.where(jnp.isnan(x), -jnp.inf, x) for x in (middle, zero, one))
        return Lower._make([*parts, few.peak, few.state])

    def diagonal(self, row: Row, free: Array, point: Array, old: Array) -> Array:
        """Nothing is moved."""
        del row, free, point
        return old


Kind = QuadraticKind | SitesKind
