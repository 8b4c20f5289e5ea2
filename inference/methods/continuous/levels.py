"""Categorical columns: K levels have K − 1 predictors, for level 0 has predictor zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def softmax(predictors: Array) -> Array:
    """Probabilities of the levels 1, 2, …, whose first companion has predictor 0."""
    return jnp.exp(predictors - log_sum(predictors)[..., None])


def log_sum(predictors: Array) -> Array:
    """log(1 + Σ e^A) over the last axis."""
    top = jax.lax.stop_gradient(jnp.maximum(predictors.max(-1), 0.0))
    return top + jnp.log(jnp.exp(-top) + jnp.exp(predictors - top[..., None]).sum(-1))


def first(values: Array, levels: int) -> Array:
    """A number for a whole column (..., C), put to the first of its K − 1 predictors."""
    zeros = jnp.zeros((*values.shape, levels - 2), values.dtype)
    return jnp.concatenate([values[..., None], zeros], -1)


def spread_out(values: Array) -> Array:
    """B⁻¹ v = 2 (v + 1 Σv), the inverse of Böhning's ½ (I − 11ᵀ/K) on K − 1 levels."""
    return 2.0 * (values + values.sum(-1, keepdims=True))
