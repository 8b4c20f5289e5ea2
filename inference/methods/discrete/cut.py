"""Which rows to learn from: the paper's schedule of a growing cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...rows.chunks import Rows, sum_over_chunks


class Cut(NamedTuple):
    """Learn from the data that the truncation explains well (Henniges et al. 2010, §2).

    All data up to step `begin`, then linearly fewer, from step `end` on only the N·A(π) of highest
    evidence, as many as are expected to have at most `max_active` causes.

    >>> from latentbits import TruncatedEM
    >>> from latentbits.models import binary_sparse_coding
    >>> em = TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=3, cut=Cut(2, 4))
    >>> em.cut
    Cut(begin=2, end=4, sparsity='sparsity')
    """

    begin: int = 20
    end: int = 40
    sparsity: str = "sparsity"  # the site that holds π

    def num_kept(self, step: Array, num_data: int, mass: Array) -> Array:
        """How many of the data to learn from: the size of the set M, from all to N·A(π)."""
        progress = jnp.clip((step - self.begin) / max(1, self.end - self.begin), 0.0, 1.0)
        count = jnp.ceil(num_data * (1.0 - progress * (1.0 - mass))).astype(int)
        return jnp.clip(count, 1, num_data)

    def least(
        self,
        step: Array,
        mass: Array,
        rows: Rows,
        size: int,
        extra: Any,
        evidence: Callable[[Any, Any], Array],
    ) -> Array:
        """The log evidence from which on a row is learned from.

        :param evidence: that of the rows of a chunk, from their arguments and what goes with them.
        """

        def tally(count: Count) -> Array:
            each = lambda arguments, extra, fresh: count(evidence(arguments, extra), fresh)  # noqa: E731
            return sum_over_chunks(each, rows, size, extra)

        threshold = lax.cond(
            step > self.begin,
            lambda: kth_smallest(tally, rows.total - self.num_kept(step, rows.total, mass)),
            lambda: jnp.array(-jnp.inf, jnp.float32),
        )
        # Found anew, evidence may differ in its last digits: what is as good still counts.
        return threshold - 1e-6 * jnp.abs(threshold)


def as_good(evidence: Array, least: Array) -> Array:
    """1 for the data to learn from, 0 for the others; `least` is in float32."""
    return (evidence.astype(least.dtype) >= least).astype(evidence.dtype)


Count = Callable[[Array, Array], Array]

HALF = 1 << 16


def kth_smallest(tally: Callable[[Count], Array], rank: Array) -> Array:
    """The number with `rank` others before it in their order, exactly, in two passes over the rows.

    A float's bits are in the order of floats, but for the sign. The rows are counted by the upper
    half of these bits; then, of those that agree in it with the one that is looked for, by the
    lower. So memory is that of 65 536 counters, and devices have only those to add up.

    :param tally: ``tally(count)`` adds up ``count(values, fresh)`` over all rows, `fresh` being 1
        for rows to count and 0 for the others. Values are compared in float32.

    >>> values = jnp.array([0.5, -3.0, jnp.inf, 2.0, -0.25])
    >>> smallest = kth_smallest(lambda count: count(values, jnp.ones(5)), jnp.array(1))
    >>> float(smallest)
    -0.25
    """

    def upper(values: Array, fresh: Array) -> Array:
        return _counters(_ordered(values) >> 16, fresh)

    high, before = _find(tally(upper), rank)

    def lower(values: Array, fresh: Array) -> Array:
        code = _ordered(values)
        return _counters(code & (HALF - 1), jnp.where(code >> 16 == high, fresh, 0.0))

    low, _ = _find(tally(lower), rank - before)
    return _float(high << 16 | low)


def _counters(place: Array, fresh: Array) -> Array:
    return jnp.zeros(HALF, jnp.int32).at[place].add(fresh.astype(jnp.int32))


def _find(counts: Array, rank: Array) -> tuple[Array, Array]:
    """Where the one of this rank was counted, and how many were counted before that place."""
    total = jnp.cumsum(counts)
    place = jnp.searchsorted(total, rank, side="right")
    before = jnp.where(place > 0, total[place - 1], 0)
    return place.astype(jnp.uint32), before


def _ordered(values: Array) -> Array:
    """Whole numbers in the order of the floats: negative ones have all their bits turned."""
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _float(code: Array) -> Array:
    bits = jnp.where(code >> 31 == 1, code ^ jnp.uint32(1 << 31), ~code)
    return lax.bitcast_convert_type(bits, jnp.float32)
