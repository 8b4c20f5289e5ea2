"""Sums of exponentials, and how much of them is kept for their gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.scipy.special import logsumexp

KEPT = "log total", "share"
"""Names of what `log_total` keeps inside `jax.checkpoint`."""


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
    return logsumexp(logits, axis=axis)


@log_total.defjvp
def _log_total_jvp(
    axis: int, keep: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (logits,), (slopes,) = primals, tangents
    if keep:
        largest = jax.lax.stop_gradient(logits.max(axis, keepdims=True))
        terms = jnp.exp(logits - jnp.where(jnp.isfinite(largest), largest, 0.0))
        count = terms.sum(axis, keepdims=True)
        total = (jnp.log(count) + largest).squeeze(axis)
        share = checkpoint_name(terms / jnp.where(count > 0, count, 1.0), KEPT[1])
    else:
        total = checkpoint_name(log_total(logits, axis, keep), KEPT[0])
        finite = jnp.where(jnp.isfinite(total), total, 0.0)  # if no state is possible
        share = jnp.exp(logits - jnp.expand_dims(finite, axis))
    return total, jnp.sum(share * slopes, axis)


kept = jax.checkpoint_policies.save_only_these_names(*KEPT)
