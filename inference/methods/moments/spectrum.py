r"""A matrix of correlations, and what is made of it: its spectrum, its repair, its factors.

A matrix of pairwise correlations need not be one that a Gaussian can have. Lee & Sompolinsky (1998)
find small negative eigenvalues for digits and explain them: a global constraint on the bits, which
pairs of a Gaussian cannot express. Sampling noise makes some too.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

SMALLEST_UNIQUENESS = 0.005
"""A column whose factors explain more than the rest of 1 (a Heywood case) is held there."""


class Spectrum(NamedTuple):
    """Eigenvalues, largest first, and what the negative ones amount to."""

    eigenvalues: Array  # (num_features,)
    num_negative: Array  # below what rounding can make of zero
    negative_share: Array  # Σ|λ < 0| / Σ|λ|

    def lines(self) -> list[str]:
        """In words."""
        if not self.num_negative:
            return ["no negative eigenvalue: a clipped Gaussian with these correlations exists"]
        return [
            f"{int(self.num_negative)} negative eigenvalues, the least "
            f"{float(self.eigenvalues[-1]):.3g}, {float(self.negative_share):.2%} of the spectrum: "
            "no clipped Gaussian has these correlations. A constraint on all bits together does "
            "that, or too few rows, or pairs at the end of their range; `nearest=True` takes the "
            "nearest correlation matrix instead"
        ]


@jax.jit
def spectrum(correlation: Array) -> Spectrum:
    """The eigenvalues of a symmetric matrix, largest first."""
    eigenvalues = jnp.linalg.eigvalsh(correlation)[::-1]
    negative = eigenvalues < -rounding(correlation)
    size = jnp.abs(eigenvalues)
    return Spectrum(eigenvalues, negative.sum(), jnp.sum(size * negative) / jnp.sum(size))


def rounding(correlation: Array) -> float:
    """How far from zero rounding can move an eigenvalue of inverted correlations."""
    each = 1e-5 if jnp.finfo(correlation.dtype).bits < 64 else 1e-10
    return each * float(np.sqrt(len(correlation)))


@jax.jit
def nearest_correlation(correlation: Array, num_steps: int = 200, tolerance: float = 1e-5) -> Array:
    """The nearest correlation matrix in the Frobenius norm (Higham 2002, algorithm 3.3).

    Projections in turn onto the positive matrices and those of unit diagonal, the first with
    Dykstra's correction, until both agree to `tolerance` or `num_steps` are done.

    >>> bad = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])  # Higham's example
    >>> [round(float(x), 3) for x in nearest_correlation(bad)[0]]
    [1.0, 0.761, 0.157]
    """
    diagonal = jnp.eye(len(correlation), dtype=bool)

    def positive(matrix: Array) -> Array:
        values, vectors = jnp.linalg.eigh(matrix)
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    def unfinished(carry: tuple[Array, Array, Array, Array]) -> Array:
        _, _, change, step = carry
        return (change > tolerance) & (step < num_steps)

    def project(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        matrix, correction, _, step = carry
        shifted = matrix - correction
        cone = positive(shifted)
        new = jnp.where(diagonal, 1.0, cone)
        change = jnp.linalg.norm(new - cone) / jnp.linalg.norm(new)
        return new, cone - shifted, change, step + 1

    far, zero = jnp.asarray(jnp.inf, correlation.dtype), jnp.zeros((), int)
    start = (correlation, jnp.zeros_like(correlation), far, zero)
    matrix, _, _, _ = lax.while_loop(unfinished, project, start)
    # The last projection made the diagonal right and the least eigenvalue a little negative.
    matrix = positive(matrix)
    scale = 1 / jnp.sqrt(jnp.diagonal(matrix))
    return jnp.where(diagonal, 1.0, matrix * scale[:, None] * scale)


class Factors(NamedTuple):
    """correlation ≈ loadingsᵀ loadings + diag(uniqueness), with a unit diagonal."""

    loadings: Array  # (rank, num_features) Ŵᵀ
    uniqueness: Array  # (num_features,) ψ = 1 − diag(Ŵ Ŵᵀ), not negative
    held: Array  # columns whose uniqueness was held at its least value


@partial(jax.jit, static_argnums=1)
def principal_components(correlation: Array, rank: int) -> Factors:
    """The paper's: the eigenvectors of the largest eigenvalues, times their roots."""
    values, vectors = jnp.linalg.eigh(correlation)
    order = slice(None, -rank - 1, -1)
    return _held((vectors[:, order] * jnp.sqrt(jnp.maximum(values[order], 0.0))).T, 0.0)


@partial(jax.jit, static_argnums=(1, 2))
def principal_axes(correlation: Array, rank: int, num_steps: int = 200) -> Factors:
    """Factors beside a uniqueness: only what lies off the diagonal is to be explained.

    The diagonal is replaced by what the factors explain of it, again and again (principal axis
    factoring). Each round takes one step of subspace iteration, not a whole decomposition.
    """
    diagonal = jnp.eye(len(correlation), dtype=bool)
    start = principal_components(correlation, rank).loadings.T

    def improve(_: int, loadings: Array) -> Array:
        explained = jnp.minimum(jnp.sum(loadings**2, axis=1), 1 - SMALLEST_UNIQUENESS)
        reduced = jnp.where(diagonal, explained[:, None], correlation)
        # A factor of zero would make a basis of too few vectors: a trace of noise keeps it.
        basis = jnp.linalg.qr(reduced @ loadings + 1e-6 * start)[0]
        values, turn = jnp.linalg.eigh(basis.T @ reduced @ basis)
        return (basis @ turn * jnp.sqrt(jnp.maximum(values, 0.0)))[:, ::-1]

    return _held(lax.fori_loop(0, num_steps, improve, start).T, SMALLEST_UNIQUENESS)


def _held(loadings: Array, least: float) -> Factors:
    explained = jnp.sum(loadings**2, axis=0)
    most = 1 - least
    shrink = jnp.sqrt(jnp.minimum(1.0, most / jnp.maximum(explained, 1e-30)))
    return Factors(loadings * shrink, 1 - explained * shrink**2, explained > most + 1e-4)


@partial(jax.jit, static_argnums=2)
def noise_edge(rng_key: Array, errors: Array, num_draws: int = 20) -> Array:
    """The largest eigenvalue that independent columns would have, over `num_draws` draws.

    A rule for the rank: factors are the eigenvalues above this edge. It is Horn's parallel analysis
    (1965) with correlations drawn from their standard errors instead of permuted data, so that it
    also holds with missing cells.

    :param errors: standard errors of the correlations of independent columns, (D, D).
    """

    def one(key: Array) -> Array:
        draw = jnp.triu(jnp.clip(errors * random.normal(key, errors.shape), -1.0, 1.0), 1)
        return jnp.linalg.eigvalsh(draw + draw.T + jnp.eye(len(errors)))[-1]

    return jnp.max(lax.map(one, random.split(rng_key, num_draws)))


@jax.jit
def implied_correlation(params: dict[str, Array], noise: Array | float = 1.0) -> Array:
    """The Gaussian correlations of `clipped_gaussian` with these parameters, eq. (4) with noise.

    The one thing on which methods can be compared: weights are free up to a rotation and a scale.

    >>> weights = jnp.array([[1.0, -1.0]])
    >>> implied_correlation({"weights": weights}, noise=1.0).tolist()
    [[1.0, -0.5], [-0.5, 1.0]]
    """
    weights = params["weights"]
    covariance = jnp.swapaxes(weights, -1, -2) @ weights
    size = weights.shape[-1]
    covariance = covariance + jnp.eye(size) * jnp.broadcast_to(jnp.asarray(noise), (size,)) ** 2
    variance = jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), 1e-30)
    scaled = covariance / jnp.sqrt(variance[..., :, None] * variance[..., None, :])
    return jnp.where(jnp.eye(size, dtype=bool), 1.0, scaled)
