"""Sums over the states of chosen bits of each row, and the choice of those bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def sums_over_states(
    features: Array, design: np.ndarray, moments: bool = True
) -> tuple[Array, Array]:
    """The largest log joint of each row and sums of exp(log joint − largest) over its states.

    Log joints are `log_joints(features, design)`. The first result is (n, 1). The second sums the
    terms times (design_s, 1), (n, F + 1); without moments it sums the terms alone, (n, 1).

    >>> features = jnp.log(jnp.array([[2.0, 3.0]]))
    >>> level, sums = sums_over_states(features, np.array([[0, 0], [1, 0], [1, 1]]))
    >>> [round(float(x), 3) for x in (jnp.exp(level) * sums)[0]]
    [8.0, 6.0, 9.0]
    """
    return sums_of_terms(log_joints(features, design), design, moments)


def log_joints(features: Array, design: np.ndarray) -> Array:
    """Features (n, F) times the design (S, F) of zeros and ones, transposed: (n, S)."""
    return jnp.matmul(features, jnp.asarray(design.T, features.dtype), precision="highest")


def sums_of_terms(logits: Array, design: np.ndarray, moments: bool = True) -> tuple[Array, Array]:
    """The results of `sums_over_states` for log joints (n, S) that are known."""
    largest = logits.max(1, keepdims=True)
    level = jnp.where(jnp.isfinite(largest), largest, 0.0)  # if no state is possible
    terms = jnp.exp(logits - level)
    if not moments:
        return largest, terms.sum(1, keepdims=True)
    counted = np.pad(design, ((0, 0), (0, 1)), constant_values=1)
    return largest, jnp.matmul(terms, jnp.asarray(counted, terms.dtype), precision="highest")


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
