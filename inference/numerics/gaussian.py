"""Gaussians in a few dimensions, one per row: what the methods for continuous latents share."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax
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


SMALL = 8
"""Of a matrix: up to here elimination in place takes less time than to call LAPACK for each."""


def solve_each(matrix: Array, right: Array) -> Array:
    """matrix⁻¹ right of many small positive definite matrices (..., q, q) and (..., q).

    By Gauss and Jordan's elimination, all matrices side by side: such matrices need no pivots, and
    LU with its permutations is twenty loops to compile.

    >>> solve_each(jnp.array([[[4.0, 2.0], [2.0, 3.0]]]), jnp.array([[8.0, 8.0]])).tolist()
    [[1.0, 2.0]]
    """
    size = matrix.shape[-1]
    if size > SMALL:
        return jnp.linalg.solve(matrix, right[..., None])[..., 0]
    place = jnp.arange(size)[:, None]

    def eliminate(i: Array, table: Array) -> Array:
        row = lax.dynamic_index_in_dim(table, i, -2)
        row = row / lax.dynamic_index_in_dim(row, i, -1)
        rest = table - lax.dynamic_index_in_dim(table, i, -1) * row
        return jnp.where(place == i, row, rest)

    table = jnp.concatenate([matrix, right[..., None]], -1)
    return lax.fori_loop(0, size, eliminate, table)[..., -1]


def solve_moments(matrix: Array, right: Array) -> Array:
    """matrix⁻¹ right, where the matrix is one of second moments: positive, but for rounding.

    On a GPU by its Cholesky factor, in half the time of LU, which is left for a matrix that
    rounding has made indefinite.

    >>> solve = jax.jit(solve_by_cholesky)
    >>> for matrix in (jnp.array([[4.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 2.0], [4.0, 0.0]])):
    ...     solve(matrix, jnp.array([[4.0], [8.0]])).tolist()
    [[1.0], [8.0]]
    [[2.0], [2.0]]
    """
    if jax.default_backend() == "cpu":
        return jnp.linalg.solve(matrix, right)
    return solve_by_cholesky(matrix, right)


def solve_by_cholesky(matrix: Array, right: Array) -> Array:
    solution = cho_solve((jnp.linalg.cholesky(matrix), True), right)
    general = lambda: jnp.linalg.solve(matrix, right)  # noqa: E731
    return lax.cond(jnp.isfinite(solution).all(), lambda: solution, general)
