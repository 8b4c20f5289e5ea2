"""Gaussians in a few dimensions, one per row: what the methods for continuous latents share."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular


def invert(precision: Array) -> tuple[Array, Array]:
    """Inverse (n, Q, Q) and log determinant (n,) of positive definite matrices.

    In one or two dimensions by formula: a call of LAPACK for each row costs more than the rest.

    >>> inverse, log_det = invert(jnp.array([[[2.0, 0.0], [0.0, 4.0]]]))
    >>> inverse[0].diagonal().tolist(), round(float(log_det[0]), 4)
    ([0.5, 0.25], 2.0794)
    """
    size = precision.shape[-1]
    if size == 1:
        return 1.0 / precision, jnp.log(precision[..., 0, 0])
    if size == 2:
        a, b, d = precision[..., 0, 0], precision[..., 0, 1], precision[..., 1, 1]
        det = a * d - b * b
        rows = [jnp.stack([d, -b], -1), jnp.stack([-b, a], -1)]
        return jnp.stack(rows, -2) / det[..., None, None], jnp.log(det)
    root = jnp.linalg.cholesky(precision)
    eye = jnp.broadcast_to(jnp.eye(size, dtype=root.dtype), root.shape)
    half = solve_triangular(root, eye, lower=True)
    inverse = jnp.einsum("...kq,...kr->...qr", half, half)
    return inverse, 2.0 * jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)).sum(-1)


def root(covariance: Array) -> Array:
    """Lower triangular L with L Lᵀ = covariance, (n, Q, Q)."""
    size = covariance.shape[-1]
    if size == 1:
        return jnp.sqrt(covariance)
    if size == 2:
        first = jnp.sqrt(covariance[..., 0, 0])
        below = covariance[..., 0, 1] / first
        last = jnp.sqrt(jnp.maximum(covariance[..., 1, 1] - below**2, 1e-30))
        zero = jnp.zeros_like(first)
        return jnp.stack([jnp.stack([first, zero], -1), jnp.stack([below, last], -1)], -2)
    return jnp.linalg.cholesky(covariance)


def log_normal(values: Array) -> Array:
    """log N(z; 0, I) over the last axis."""
    return -0.5 * jnp.sum(values**2, -1) - 0.5 * values.shape[-1] * math.log(2.0 * math.pi)


def with_one(values: Array) -> Array:
    """x̂ = (x, 1): (..., Q + 1)."""
    return jnp.concatenate([values, jnp.ones_like(values[..., :1])], -1)


def solve_each(matrix: Array, right: Array) -> Array:
    """matrix⁻¹ right of positive definite matrices (..., q, q) and vectors (..., q).

    >>> solve_each(jnp.array([[[4.0, 2.0], [2.0, 3.0]]]), jnp.array([[8.0, 8.0]])).round(4).tolist()
    [[1.0, 2.0]]
    """
    root = jnp.linalg.cholesky(matrix, symmetrize_input=False)
    return cho_solve((root, True), right[..., None])[..., 0]
