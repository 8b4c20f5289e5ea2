"""Sums over the states of chosen bits of each row, and the choice of those bits."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def means_of_bits(
    single: Array, chosen: Array, level: Array, inner: Array, inside: Array
) -> tuple[Array, Array]:
    """Means of all bits of a row, (n, bits), and the sum over its states, (n, 1), over exp(level).

    :param single: (n, bits), log joint of each bit alone.
    :param chosen: (n, C), bits whose joint states are summed already, each of them alone included.
    :param inner: (n, C), sums over the states with each chosen bit on, over exp(level).
    :param inside: (n, 1), sum over all states of the chosen bits, over exp(level).

    >>> single, chosen = jnp.log(jnp.array([[1.0, 2.0, 5.0]])), jnp.array([[2]])
    >>> level, inner, inside = jnp.zeros((1, 1)), jnp.array([[4.0]]), jnp.array([[5.0]])
    >>> [x.round(4).tolist() for x in means_of_bits(single, chosen, level, inner, inside)]
    [[[0.125, 0.25, 0.5]], [[8.0]]]
    """
    alone = jnp.exp(at_bits(single, chosen, jnp.full(chosen.shape, -jnp.inf)) - level)
    count = inside + alone.sum(1, keepdims=True)
    scale = 1.0 / jnp.where(count > 0, count, 1.0)
    return at_bits(scale * alone, chosen, scale * inner), count


def at_bits(table: Array, indices: Array, values: Array) -> Array:
    """A table (n, bits) with other values (n, C) at the bits `indices` (n, C) of each row.

    >>> at_bits(jnp.zeros((1, 3)), jnp.array([[2, 0]]), jnp.array([[1.0, 2.0]])).tolist()
    [[2.0, 0.0, 1.0]]
    """
    return table.at[jnp.arange(len(table))[:, None], indices].set(values)


def best_bits(scores: Array, count: int) -> Array:
    """Indices of the `count` largest scores of each row, (n, count), the largest first.

    >>> best_bits(jnp.array([[3.0, 1.0, 2.0, 3.0]]), 3).tolist()
    [[0, 3, 2]]
    """
    return lax.top_k(scores, count)[1].astype(jnp.int32)
