r"""Pairs of binary columns: counted in one pass over the data, turned into Gaussian correlations.

What real data bring, and what is done about it:

==========================  =====================================================================
a constant column           its bias would be infinite: that of half a count in n + 1 is taken, and
                            its correlations are 0
an empty cell of a table    ρ is at the end of its range, ±1, unless ``smoothing`` fills the cell
a moment outside its range  with missing cells, a pair's own rows need not agree with the columns'
                            means: the moment is moved to the end of the range, so ρ = ±1
a pair never seen together  ρ = 0
==========================  =====================================================================

All of these are counted in `Repairs`. None is silent, none makes a NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri

from ...rows.chunks import Rows, sum_over_chunks
from ...rows.devices import summed
from ...rows.disk import as_stored, stored
from .tetrachoric import correlation_of_cells, slope

CHUNK_FLOATS = 1 << 24  # 64 MiB in float32


class Pairs(NamedTuple):
    """How often two columns were seen in each of their four states. Counts of chunks add up."""

    both: Array  # (num_features, num_features) i on and j on; the diagonal: i on
    one: Array  # (num_features, num_features) i on, j off; its transpose is the other way round
    neither: Array  # (num_features, num_features) both off; the diagonal: i off

    @property
    def seen(self) -> Array:
        """Rows in which both were observed, (num_features, num_features)."""
        return self.both + self.one + self.one.T + self.neither

    @property
    def mean(self) -> Array:
        """⟨s_i⟩ over the rows in which i was observed, (num_features,)."""
        on, off = jnp.diagonal(self.both), jnp.diagonal(self.neither)
        return (on - off) / jnp.maximum(on + off, 1)

    @property
    def second_moment(self) -> Array:
        """⟨s_i s_j⟩ over the rows in which both were observed, (num_features, num_features)."""
        agree, differ = self.both + self.neither, self.one + self.one.T
        return (agree - differ) / jnp.maximum(agree + differ, 1)


def count_pairs(data: Array, mask: Array | None = None, chunk_size: int | None = None) -> Pairs:
    """Count the states of all pairs of columns in one pass.

    Data that do not fit into memory: a memory map, or count each part and add up,
    ``jax.tree.map(jnp.add, a, b)``.

    :param data: (num_data, num_features), 0/1, of any type.
    :param mask: (num_data, num_features), True where a cell was observed.

    >>> bits = jnp.array([[1, 1], [1, 0], [0, 0], [1, 1]])
    >>> count_pairs(bits).both.tolist(), count_pairs(bits).one.tolist()
    ([[3.0, 2.0], [2.0, 2.0]], [[0.0, 1.0], [0.0, 0.0]])
    """
    return summed(partial(_counted, chunk_size), data.shape[0], data, mask)


def _counted(chunk_size: int | None, data: Any, mask: Any) -> Pairs:
    if stored(data) or stored(mask):  # a file is part of what is compiled
        return jax.jit(lambda: _count(data, mask, chunk_size))()
    return _count_arrays(data, mask, chunk_size)


def _count(data: Any, mask: Any, chunk_size: int | None) -> Pairs:
    leaves, tree = jax.tree.flatten(((data, mask), {}))
    num_data, num_features = data.shape
    placed = tuple(as_stored(x) if stored(x) else jnp.asarray(x) for x in leaves)
    rows = Rows(placed, (None,) * len(leaves), tree, num_data)
    size = chunk_size or max(1, CHUNK_FLOATS // num_features)

    def count(arguments: tuple, extra: None, fresh: Array) -> tuple[Array, ...]:
        del extra
        (bits, observed), _ = arguments
        kept = fresh[:, None] if observed is None else observed * fresh[:, None]
        on = bits.astype(fresh.dtype) * kept
        if observed is None:
            return on.T @ on, fresh.sum()
        off = kept - on
        return on.T @ on, on.T @ off, off.T @ off

    totals = sum_over_chunks(count, rows, size, None)
    if mask is not None:
        return Pairs(*totals)
    both, count_all = totals
    on = jnp.diagonal(both)
    one = on[:, None] - both
    return Pairs(both, one, count_all - on[:, None] - on + both)


_count_arrays = jax.jit(_count, static_argnums=2)


class Repairs(NamedTuple):
    """What the data made necessary. Pairs are counted once."""

    constant: Array  # (num_features,) columns of one value
    empty: Array  # pairs with an empty cell: ρ = ±1
    outside: Array  # pairs whose moment was outside its range: ρ = ±1
    excess: Array  # by how much at most, in ⟨s_i s_j⟩
    unseen: Array  # pairs never observed together: ρ = 0

    def lines(self) -> list[str]:
        """In words, one line for each kind that occurred."""
        constant = np.flatnonzero(np.asarray(self.constant))
        said = []
        if len(constant):
            names = ", ".join(map(str, constant[:8])) + (", …" if len(constant) > 8 else "")
            said.append(
                f"{len(constant)} constant columns ({names}): bias of half a count, correlations 0"
            )
        if self.empty:
            said.append(f"{int(self.empty)} pairs have an empty cell: their correlation is ±1")
        if self.outside:
            said.append(
                f"{int(self.outside)} pairs had a moment outside its range, by at most "
                f"{float(self.excess):.2g}: moved to its end, their correlation is ±1"
            )
        if self.unseen:
            said.append(f"{int(self.unseen)} pairs were never observed together: correlation 0")
        return said


class Inverted(NamedTuple):
    """The Gaussian behind the bits, as far as pairs can tell."""

    correlation: Array  # (num_features, num_features) C^xx with a unit diagonal
    threshold: Array  # (num_features,) ξ_i/√C_ii, eq. (9)
    repairs: Repairs


@jax.jit
def invert_pairs(pairs: Pairs, smoothing: float = 0.0) -> Inverted:
    r"""Eqs. (9) and (10) for counts.

    :param smoothing: so many rows are added to each pair's table in which its two columns are
        independent with the same means. It fills empty cells, and shrinks correlations a little.

    >>> both = jnp.array([[50.0, 40.0], [40.0, 50.0]])
    >>> one = jnp.array([[0.0, 10.0], [10.0, 0.0]])
    >>> inverted = invert_pairs(Pairs(both, one, both))
    >>> round(float(inverted.correlation[0, 1]), 4)  # sin(π/2 · 0.6): the arcsine law (7)
    0.809
    """
    on, off = jnp.diagonal(pairs.both), jnp.diagonal(pairs.neither)
    total = on + off
    constant = (on == 0) | (off == 0)
    # Half a count of each; only a constant column ever uses it.
    share_on = jnp.where(constant, (on + 0.5) / (total + 1), on / jnp.maximum(total, 1))
    share_off = jnp.where(constant, (off + 0.5) / (total + 1), off / jnp.maximum(total, 1))

    first, second, _ = _upper(len(on))
    seen = pairs.seen[first, second]
    rows = jnp.maximum(seen, 1)
    counts = (
        pairs.both[first, second],
        pairs.one[first, second],
        pairs.one[second, first],
        pairs.neither[first, second],
    )
    # The pair's own margins, moved to those of the columns while ⟨s_i s_j⟩ stays. Without missing
    # cells nothing moves, to the last bit.
    move = 0.5 * (share_on[first] - (counts[0] + counts[1]) / rows)
    slide = 0.5 * (share_on[second] - (counts[0] + counts[2]) / rows)
    moves = (move + slide, move - slide, slide - move, -move - slide)
    independent = (
        share_on[first] * share_on[second],
        share_on[first] * share_off[second],
        share_off[first] * share_on[second],
        share_off[first] * share_off[second],
    )
    cells = tuple(
        (count / rows + shift) * (seen / jnp.maximum(seen + smoothing, 1e-30))
        + free * (smoothing / jnp.maximum(seen + smoothing, 1e-30))
        for count, shift, free in zip(counts, moves, independent, strict=True)
    )
    return _invert(share_on, share_off, cells, constant, seen, 0.0)


@jax.jit
def invert_moments(mean: Array, second_moment: Array) -> Inverted:
    """Eqs. (7), (9) and (10) for moments of spins s = ±1.

    :param mean: (num_features,) ⟨s_i⟩.
    :param second_moment: (num_features, num_features) ⟨s_i s_j⟩.

    >>> moments = invert_moments(jnp.zeros(2), jnp.array([[1.0, 1 / 3], [1 / 3, 1.0]]))
    >>> round(float(moments.correlation[0, 1]), 5)
    0.5
    """
    first, second, _ = _upper(len(mean))
    left, right, product = mean[first], mean[second], second_moment[first, second]
    cells = (
        0.25 * (1 + left + right + product),
        0.25 * (1 + left - right - product),
        0.25 * (1 - left + right - product),
        0.25 * (1 - left - right + product),
    )
    share_on, share_off = 0.5 * (1 + mean), 0.5 * (1 - mean)
    constant = jnp.abs(mean) >= 1
    # What rounding alone can make of an empty cell.
    rounding = float(jnp.finfo(product.dtype).eps)
    return _invert(share_on, share_off, cells, constant, jnp.ones_like(product), rounding)


def _upper(size: int) -> tuple[Array, Array, Array]:
    """Every pair once: columns i and (i + d) mod size, each (size // 2, size), and what to count.

    On the ring of columns no two are further apart than half of it. Sums of ranges instead of a
    list of indices, because the compiler would take a list apart, number by number. If the size is
    even, the pairs furthest apart come twice; the third array is False for the second time.
    """
    offset = jnp.arange(1, max(size // 2, 1) + 1)[:, None]
    first = jnp.broadcast_to(jnp.arange(size), (len(offset), size))
    second = (first + offset) % size
    return first, second, (2 * offset < size) | (first < second)


def _square(values: Array, size: int) -> Array:
    """The symmetric matrix of values laid out as by `_upper`, with 1 on its diagonal."""
    row, column = jnp.arange(size)[:, None], jnp.arange(size)
    ahead, behind = (column - row) % size, (row - column) % size
    start = jnp.where(ahead <= behind, row, column)
    found = values[jnp.maximum(jnp.minimum(ahead, behind) - 1, 0), start]
    return jnp.where(row == column, 1.0, found)


def _invert(
    share_on: Array,
    share_off: Array,
    cells: tuple,
    constant: Array,
    seen: Array,
    rounding: float,
) -> Inverted:
    # From the smaller share: the larger has lost the digits that its quantile needs.
    threshold = jnp.where(share_on < share_off, ndtri(share_on), -ndtri(share_off))
    first, second, counted = _upper(len(threshold))
    usable = ~(constant[first] | constant[second]) & (seen > 0)
    smallest = jnp.minimum(jnp.minimum(cells[0], cells[1]), jnp.minimum(cells[2], cells[3]))
    outside = usable & (smallest < -4 * jnp.finfo(smallest.dtype).eps)
    empty = usable & ~outside & (smallest <= rounding)
    safe = jnp.where(constant, 0.0, threshold)
    gone = empty | outside
    kept = tuple(
        jnp.where(usable, jnp.where(gone & (cell == smallest), 0.0, jnp.maximum(cell, 0.0)), 0.25)
        for cell in cells
    )
    found = jnp.where(usable, correlation_of_cells(safe[first], safe[second], kept), 0.0)
    correlation = _square(found, len(threshold))
    repairs = Repairs(
        constant,
        (empty & counted).sum(),
        (outside & counted).sum(),
        jnp.max(jnp.where(outside, -4 * smallest, 0.0)),
        ((seen == 0) & counted).sum(),
    )
    return Inverted(correlation, threshold, repairs)


@jax.jit
def standard_errors(pairs: Pairs, inverted: Inverted) -> Array:
    r"""Standard errors of the correlations, (num_features, num_features), nought on the diagonal.

    By the delta method, the means being estimated too (Brown & Benedetti 1977): one row moves ρ by

    .. math:: \big( t_i t_j - A t_i - B t_j - \text{mean} \big) / (n\,\phi_2(a_i, a_j; \rho)),

    with :math:`A = \Phi((a_j - \rho a_i)/\sqrt{1 - \rho^2})` and B the other way round. Infinite
    where ρ is at the end of its range, where no such expansion exists, and where a column is
    constant.
    """
    rho, a, n = inverted.correlation, inverted.threshold, jnp.maximum(pairs.seen, 1)
    left, right = a[:, None], a[None, :]
    spread = jnp.sqrt(jnp.maximum((1 - rho) * (1 + rho), jnp.finfo(rho.dtype).tiny))
    first = ndtr((right - rho * left) / spread)
    second = ndtr((left - rho * right) / spread)
    shares = (pairs.both / n, pairs.one / n, pairs.one.T / n)
    effects = (1 - first - second, -first, -second)
    mean = sum(p * e for p, e in zip(shares, effects, strict=True))
    square = sum(p * e**2 for p, e in zip(shares, effects, strict=True))
    error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) / n) / slope(left, right, rho)
    constant = inverted.repairs.constant
    lost = (jnp.abs(rho) >= 1) | constant[:, None] | constant | (pairs.seen == 0)
    return jnp.where(jnp.eye(len(a), dtype=bool), 0.0, jnp.where(lost, jnp.inf, error))


def independence_errors(pairs: Pairs, inverted: Inverted) -> Array:
    r"""Standard errors that the correlations would have if all columns were independent.

    There the delta method gives :math:`\sqrt{p_i q_i p_j q_j / n} / \phi(a_i)\phi(a_j)`.
    """
    on, off = jnp.diagonal(pairs.both), jnp.diagonal(pairs.neither)
    share = on / jnp.maximum(on + off, 1)
    density = jnp.exp(-0.5 * inverted.threshold**2) / np.sqrt(2 * np.pi)
    each = jnp.where(inverted.repairs.constant, 0.0, jnp.sqrt(share * (1 - share)) / density)
    error = each[:, None] * each / jnp.sqrt(jnp.maximum(pairs.seen, 1))
    return jnp.where(jnp.eye(len(on), dtype=bool), 0.0, error)
