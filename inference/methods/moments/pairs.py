r"""Pairs of binary columns: counted in one pass over the data, turned into Gaussian correlations.

What real data bring, and what is done about it:

==========================  =====================================================================
a constant column           its bias would be infinite: that of half a count in n + 1 is taken, and
                            its correlations are 0
an empty cell of a table    ρ is at the end of its range, ±1, unless ``smoothing`` fills the cell
a moment outside its range  (moments that are given, not counted) it is moved to the end of the
                            range, so ρ = ±1
missing cells               a pair's margins are those of the rows in which both were observed
a pair never seen together  ρ = 0; also if one of the two is constant wherever both were observed
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

from ...rows.chunks import Rows, chunk_of, compiled, sum_over_chunks
from ...rows.devices import summed
from ...rows.disk import as_stored, stored
from .tetrachoric import correlation_of_cells, slope


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
    """
    return summed(partial(_counted, chunk_size), data.shape[0], data, mask)


def _counted(chunk_size: int | None, data: Any, mask: Any) -> Pairs:
    leaves, tree = jax.tree.flatten(((data, mask), {}))
    placed = tuple(as_stored(x) if stored(x) else jnp.asarray(x) for x in leaves)
    rows = Rows(placed, (None,) * len(leaves), tree, data.shape[0])
    size = chunk_of(chunk_size, data.shape[1], rows)

    def count(arguments: tuple, fresh: Array) -> tuple[Array, ...]:
        (bits, observed), _ = arguments
        kept = fresh[:, None] if observed is None else observed * fresh[:, None]
        on = bits.astype(fresh.dtype) * kept
        if observed is None:
            return on.T @ on, fresh.sum()
        off = kept - on
        return on.T @ on, on.T @ off, off.T @ off

    def total(rows: Rows) -> Pairs:
        totals = sum_over_chunks(count, rows, size)
        if len(totals) == 3:
            return Pairs(*totals)
        both, count_all = totals
        on = jnp.diagonal(both)
        one = on[:, None] - both
        return Pairs(both, one, count_all - on[:, None] - on + both)

    return compiled(total, rows)(rows.leaves)


class Repairs(NamedTuple):
    """What the data made necessary. Pairs are counted once."""

    constant: Array  # (num_features,) columns of one value
    empty: Array  # pairs with an empty cell: ρ = ±1
    outside: Array  # pairs whose moment was outside its range: ρ = ±1
    excess: Array  # by how much at most, in ⟨s_i s_j⟩
    unseen: Array  # pairs never observed together, or one of them only constant there: ρ = 0

    def lines(self) -> list[str]:
        """In words, one line for each kind that occurred."""
        constant = np.flatnonzero(np.asarray(self.constant))
        lines = []
        if len(constant):
            names = ", ".join(map(str, constant[:8])) + (", …" if len(constant) > 8 else "")
            lines.append(
                f"{len(constant)} constant columns ({names}): bias of half a count, correlations 0"
            )
        if self.empty:
            lines.append(f"{int(self.empty)} pairs have an empty cell: their correlation is ±1")
        if self.outside:
            lines.append(
                f"{int(self.outside)} pairs had a moment outside its range, by at most "
                f"{float(self.excess):.2g}: moved to its end, their correlation is ±1"
            )
        if self.unseen:
            lines.append(
                f"{int(self.unseen)} pairs were never observed together, or only where one of them "
                "is constant: correlation 0"
            )
        return lines


class Inverted(NamedTuple):
    """The Gaussian behind the bits, as far as pairs can tell."""

    correlation: Array  # (num_features, num_features) C^xx with a unit diagonal
    threshold: Array  # (num_features,) ξ_i/√C_ii, eq. (9)
    within: Array  # (num_features, num_features) that of i in the rows in which j was observed too
    repairs: Repairs


@jax.jit
def invert_pairs(pairs: Pairs, smoothing: float = 0.0) -> Inverted:
    r"""Eqs. (9) and (10) for counts.

    :param smoothing: so many rows are added to each pair's table in which its two columns are
        independent with the same means. It fills empty cells, and shrinks correlations a little.
    """
    on, off = jnp.diagonal(pairs.both), jnp.diagonal(pairs.neither)
    total = on + off
    constant = (on == 0) | (off == 0)
    # Half a count of each; only a constant column ever uses it.
    share_on = jnp.where(constant, (on + 0.5) / (total + 1), on / jnp.maximum(total, 1))
    share_off = jnp.where(constant, (off + 0.5) / (total + 1), off / jnp.maximum(total, 1))

    # Margins of a pair's own rows: those of all rows of a column are about other rows, and the
    # table's cells must add up.
    threshold = _threshold(share_on, share_off)
    observed, rows = pairs.seen, jnp.maximum(pairs.seen, 1)
    pair_on, pair_off = (pairs.both + pairs.one) / rows, (pairs.one.T + pairs.neither) / rows
    varies = (pair_on > 0) & (pair_off > 0)
    known = varies & varies.T & ~(constant[:, None] | constant)
    within = _threshold(jnp.where(known, pair_on, 0.5), jnp.where(known, pair_off, 0.5))
    counts = (pairs.both, pairs.one, pairs.one.T, pairs.neither)
    both_ways = (pair_on, pair_off)
    independent = [own * other.T for own in both_ways for other in both_ways]
    kept = observed / jnp.maximum(observed + smoothing, 1e-30)
    added = smoothing / jnp.maximum(observed + smoothing, 1e-30)
    cells = tuple(
        count / rows * kept + free * added for count, free in zip(counts, independent, strict=True)
    )
    unseen = ~(varies & varies.T) & (~(constant[:, None] | constant) | (observed == 0))
    return _invert(threshold, within, cells, constant, known, unseen, 0.0)


@jax.jit
def invert_moments(mean: Array, second_moment: Array) -> Inverted:
    """Eqs. (7), (9) and (10) for moments of spins s = ±1.

    :param mean: (num_features,) ⟨s_i⟩.
    :param second_moment: (num_features, num_features) ⟨s_i s_j⟩.
    """
    left, right, product = mean[:, None], mean[None, :], second_moment
    signs = [(a, b) for a in (1, -1) for b in (1, -1)]
    cells = tuple(0.25 * (1 + a * left + b * right + a * b * product) for a, b in signs)
    share_on, share_off = 0.5 * (1 + mean), 0.5 * (1 - mean)
    constant = jnp.abs(mean) >= 1
    # What rounding alone can make of an empty cell.
    rounding = float(jnp.finfo(product.dtype).eps)
    threshold = _threshold(share_on, share_off)
    known = ~(constant[:, None] | constant)
    within = jnp.where(known, threshold[:, None], 0.0)
    return _invert(threshold, within, cells, constant, known, jnp.zeros_like(known), rounding)


def _threshold(share_on: Array, share_off: Array) -> Array:
    # From the smaller share: the larger has lost the digits that its quantile needs.
    return jnp.where(share_on < share_off, 1.0, -1.0) * ndtri(jnp.minimum(share_on, share_off))


def _invert(
    threshold: Array,
    within: Array,
    cells: tuple,
    constant: Array,
    known: Array,
    unseen: Array,
    rounding: float,
) -> Inverted:
    """The correlations of tables, (num_features, num_features) each, where a pair is `known`."""
    first, second = np.triu_indices(len(threshold), 1)
    usable = known[first, second]
    table = jnp.stack([cell[first, second] for cell in cells])  # (4, pairs)
    smallest = table.min(0)
    outside = usable & (smallest < -4 * jnp.finfo(smallest.dtype).eps)
    empty = usable & ~outside & (smallest <= rounding)
    gone = (empty | outside) & (table == smallest)
    kept = jnp.where(usable, jnp.where(gone, 0.0, jnp.maximum(table, 0.0)), 0.25)
    own, other = within[first, second], within[second, first]
    rho = jnp.where(usable, correlation_of_cells(own, other, tuple(kept)), 0.0)
    upper = jnp.zeros_like(within).at[first, second].set(rho)
    correlation = upper + upper.T + jnp.eye(len(threshold), dtype=rho.dtype)
    repairs = Repairs(
        constant,
        empty.sum(),
        outside.sum(),
        jnp.max(-4 * smallest, initial=0.0, where=outside),
        unseen[first, second].sum(),
    )
    return Inverted(correlation, threshold, within, repairs)


def conditional(inverted: Inverted) -> Array:
    """Φ((a_j − ρ a_i)/√(1 − ρ²)), the factor A of `standard_errors`; its transpose is B."""
    rho, threshold = inverted.correlation, inverted.within
    spread = jnp.sqrt(jnp.maximum((1 - rho) * (1 + rho), jnp.finfo(rho.dtype).tiny))
    return ndtr((threshold.T - rho * threshold) / spread)


@jax.jit
def standard_errors(pairs: Pairs, inverted: Inverted) -> Array:
    r"""Standard errors of the correlations, (num_features, num_features), zero on the diagonal.

    By the delta method, the means being estimated too, from the rows in which both columns were
    observed (Brown & Benedetti 1977): one row moves ρ by

    .. math:: \big( t_i t_j - A t_i - B t_j - \text{mean} \big) / (n\,\phi_2(a_i, a_j; \rho)),

    with :math:`A = \Phi((a_j - \rho a_i)/\sqrt{1 - \rho^2})` and B the other way round. Infinite
    where ρ is at the end of its range, where no such expansion exists, and where a column is
    constant.
    """
    rho, n = inverted.correlation, jnp.maximum(pairs.seen, 1)
    first = conditional(inverted)
    shares = (pairs.both / n, pairs.one / n, pairs.one.T / n)
    effects = (1 - first - first.T, -first, -first.T)
    mean = sum(p * e for p, e in zip(shares, effects, strict=True))
    square = sum(p * e**2 for p, e in zip(shares, effects, strict=True))
    density = slope(inverted.within, inverted.within.T, rho)
    error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) / n) / density
    constant = inverted.repairs.constant
    margins = ((pairs.both + pairs.one) > 0) & ((pairs.one.T + pairs.neither) > 0)
    lost = (jnp.abs(rho) >= 1) | constant[:, None] | constant | ~(margins & margins.T)
    return jnp.where(jnp.eye(len(rho), dtype=bool), 0.0, jnp.where(lost, jnp.inf, error))


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
