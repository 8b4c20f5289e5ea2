"""Sums of exponentials, the share of each term, and how much is kept for their gradient.

Every sum over states, nodes or draws is one of these: the log of the sum is the evidence, the
shares are the posterior, and the slopes of the one are made of the other (Fisher's identity).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

KEPT = "log total", "share"
"""Names of what is kept inside `jax.checkpoint`."""


def normalise(logits: Any, axis: int) -> tuple[Array, Any]:
    """log Σ exp over an axis, and the share of each term: zero where no term is possible.

    :param logits: an array, or several that are summed together; None stands for no terms.

    >>> total, share = normalise(jnp.log(jnp.array([1.0, 3.0, 0.0])), 0)
    >>> round(float(jnp.exp(total)), 4), [round(float(x), 4) for x in share]
    (4.0, [0.25, 0.75, 0.0])
    >>> normalise(jnp.array([-jnp.inf, -jnp.inf]), 0)[1].tolist()
    [0.0, 0.0]
    """
    total, terms, count = shares(logits, axis)
    scale = jnp.expand_dims(1.0 / count, axis)
    return total, jax.tree.map(lambda x: x * scale, terms)


def shares(logits: Any, axis: int) -> tuple[Array, Any, Array]:
    """The log of the sum, and terms whose share in it is theirs in the third, which is not zero.

    >>> total, terms, count = shares(jnp.log(jnp.array([1.0, 3.0])), 0)
    >>> [round(float(x), 4) for x in terms / count]
    [0.25, 0.75]
    """
    parts = jax.tree.leaves(logits)
    largest = lax.stop_gradient(parts[0].max(axis, keepdims=True))
    for part in parts[1:]:
        largest = jnp.maximum(largest, lax.stop_gradient(part.max(axis, keepdims=True)))
    level = jnp.where(jnp.isfinite(largest), largest, 0.0)  # if no term is possible
    terms = jax.tree.map(lambda x: jnp.exp(x - level), logits)
    count = sum((x.sum(axis) for x in jax.tree.leaves(terms)), jnp.zeros(()))
    total = jnp.log(count) + largest.squeeze(axis)
    return total, terms, jnp.where(count > 0, count, 1.0)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def log_total(logits: Array, axis: int, keep: bool) -> Array:
    """log Σ exp over an axis.

    Exponentials are most of its cost, so that not all of them are made twice inside
    `jax.checkpoint` with the policy `kept`: the shares of the terms in the sum, which are its
    slopes, are kept if `keep` says so, and the sum itself always.

    >>> round(float(log_total(jnp.zeros((4, 1)), 0, False)[0] / jnp.log(2.0)), 4)
    2.0
    """
    del keep
    return shares(logits, axis)[0]


@log_total.defjvp
def _log_total_jvp(
    axis: int, keep: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (logits,), (slopes,) = primals, tangents
    if keep:
        total, share = normalise(logits, axis)
        share = checkpoint_name(share, KEPT[1])
    else:
        total = checkpoint_name(log_total(logits, axis, keep), KEPT[0])
        finite = jnp.where(jnp.isfinite(total), total, 0.0)  # if no state is possible
        share = jnp.exp(logits - jnp.expand_dims(finite, axis))
    return total, jnp.sum(share * slopes, axis)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def log_product(design: Array, features: Array, level: Array | None, keep: bool) -> Array:
    """log Σ_s exp(design_s · features_n + level_s) of each column, (n,).

    Its slopes are an E-step: the mean of the design for the features, how often each row of it was
    met for its level. The means are few and always kept; the terms if `keep` says so.

    :param design: (S, F), of which nothing is differentiated.
    :param features: (F, n).
    :param level: (S,).

    >>> round(float(log_product(jnp.array([[1.0], [2.0]]), jnp.log(jnp.array([[3.0]])),
    ...                         None, False)[0] - jnp.log(12.0)), 4)
    0.0
    """
    del keep
    return shares(scores(design, features, level), 0)[0]


def scores(design: Array, features: Array, level: Array | None) -> Array:
    """design_s · features_n + level_s, (S, n), in full precision: a log joint has none to lose."""
    product = jnp.matmul(design, features, precision="highest")
    return product if level is None else product + level[:, None]


@log_product.defjvp
def _log_product_jvp(
    keep: bool, primals: tuple[Array, Array, Any], tangents: tuple[Array, Array, Any]
) -> tuple[Array, Array]:
    (design, features, level), (_, slopes, rise) = primals, tangents
    total, terms, count = shares(scores(design, features, level), 0)
    terms = checkpoint_name(terms, KEPT[1]) if keep else terms
    mean = jnp.matmul(design.T, terms, precision="highest") / count
    total, mean, count = (checkpoint_name(x, KEPT[0]) for x in (total, mean, count))
    change = jnp.sum(mean * slopes, 0)
    if level is not None:
        change = change + jnp.matmul(rise, terms, precision="highest") / count
    return total, change


kept = jax.checkpoint_policies.save_only_these_names(*KEPT)


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
    none = jnp.full(chosen.shape, -jnp.inf, single.dtype)
    alone = jnp.exp(at_bits(single, chosen, none) - level)
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
    """Indices of the `count` largest scores of each row, (n, count), the largest first."""
    return lax.top_k(scores, count)[1].astype(jnp.int32)
