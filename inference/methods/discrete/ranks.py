"""The k-th smallest of a number of each row, where the rows can be counted but not held."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

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
