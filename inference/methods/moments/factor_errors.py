r"""Standard errors of eigenvalues and loadings of inverted correlations, by the delta method.

A row n moves the correlation of columns i and j by (Brown & Benedetti 1977; see
`pairs.standard_errors`)

.. math:: d\rho_{ij}(n) = \big( t_i t_j - F_{ij} t_i - F_{ji} t_j - \text{mean} \big) / (n_{ij}
    \phi_{ij}),

and so an eigenvalue by :math:`v^T dC(n) v`, and the loadings :math:`\sqrt{\lambda_k} v_k` by the
first order of perturbation theory. All of it needs :math:`dC(n) v_k` only: two products of the rows
and a matrix of columns × columns for each factor. The sum of squares over rows is the variance.

Factors beside a uniqueness (principal axes) are the eigenvectors of a matrix whose diagonal h they
determine: dh is the solution of a linear equation.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ...rows.disk import pieces
from .inversion import MomentInfo
from .pairs import Inverted, Pairs, conditional, count_pairs, invert_pairs
from .spectrum import Factors
from .tetrachoric import slope


class FactorErrors(NamedTuple):
    """Standard errors; infinite for what involves a pair whose correlation has none."""

    eigenvalues: Array  # (rank,) of the largest of the inverted matrix
    loadings: Array  # (rank, num_features) of ``moments.factors.loadings``


def factor_errors(
    moments: MomentInfo, data: Any, mask: Any = None, *, noise: float = 1.0, smoothing: float = 0.0
) -> FactorErrors:
    """Standard errors of the eigenvalues and loadings that `MomentInversion` finds in these rows.

    Those of loadings are for factors distinguished by their eigenvalues: where two of these are
    closer than their errors, the factors may as well be turned, and the errors are large.

    :param moments: by ``MomentInversion(...).invert`` in ``data``, without ``nearest``: a
        projection has no derivative where it matters.
    :param noise: that of the program; 0: the factors are the paper's principal components.
    :param smoothing: that of the method.

    >>> from jax import random
    >>> from latentbits.inference.methods.moments.inversion import MomentInversion
    >>> from latentbits.models import clipped_gaussian
    >>> bits = random.bernoulli(random.key(0), 0.5, (400, 4)).astype(int)
    >>> moments = MomentInversion(clipped_gaussian, rank=1).invert(random.key(1), bits)
    >>> factor_errors(moments, bits).loadings.shape
    (1, 4)
    """
    if moments.moved is not None:
        raise ValueError("no standard errors with nearest=True: the matrix was moved; run without")
    pairs = count_pairs(data, mask)
    parts = _prepare(pairs, invert_pairs(pairs, smoothing), moments.factors, noise == 0)
    total = jnp.zeros(()), jnp.zeros(())
    traced = isinstance(data, jax.core.Tracer)
    for piece in [slice(None)] if traced else pieces(data):
        known = None if mask is None else jnp.asarray(mask[piece])
        total = jax.tree.map(jnp.add, total, _squares(parts, jnp.asarray(data[piece]), known))
    eigenvalues, loadings = (jnp.sqrt(x) for x in total)
    lost, held = parts.lost, moments.factors.held
    return FactorErrors(
        jnp.where(lost.any(), jnp.inf, eigenvalues),
        jnp.where(lost.any() | held, jnp.inf, loadings),
    )


class _Parts(NamedTuple):
    """What a row's influence is computed from; see the equations above."""

    scale: Array  # (D, D) 1/(n φ), zero on the diagonal and where there is no error
    first: Array  # (D, D) F times that
    mean: Array  # (D, D) and the mean
    lost: Array  # (D,) columns with a pair at the end of its range; constants are none
    vectors: Array  # (D, P) of the inverted matrix
    axes: Array  # (D, P) of the matrix of the factors
    turns: Array  # (P, D, D) S_k: loadings from dC v_k
    solve: Array  # (D, D) dh from what the loadings alone would make of it
    loadings: Array  # (D, P)


@partial(jax.jit, static_argnums=3)
def _prepare(pairs: Pairs, inverted: Inverted, factors: Factors, hard: bool) -> _Parts:
    rho, count = inverted.correlation, jnp.maximum(pairs.seen, 1)
    constant = inverted.repairs.constant
    diagonal = jnp.eye(len(rho), dtype=bool)
    counted = ~(diagonal | constant[:, None] | constant)
    ends = counted & (jnp.abs(rho) >= 1)
    first = conditional(inverted)
    density = jnp.where(counted & ~ends, slope(inverted.within, inverted.within.T, rho), 1.0)
    scale = jnp.where(counted & ~ends, 1 / (count * density), 0.0)
    both, one = pairs.both / count, pairs.one / count
    mean = both - first * (both + one) - first.T * (both + one.T)
    loadings, held = factors.loadings, factors.held
    rank = len(loadings)
    explained = jnp.sum(loadings**2, axis=0)
    values, vectors = jnp.linalg.eigh(rho)
    own = vectors[:, ::-1][:, :rank]
    if not hard:
        values, vectors = jnp.linalg.eigh(jnp.where(diagonal, explained[:, None], rho))
    values, vectors = values[::-1], vectors[:, ::-1]
    # An eigenvector has no sign: that of the loadings.
    sign = jnp.where(jnp.sum(vectors[:, :rank].T * loadings, axis=1) < 0, -1.0, 1.0)
    vectors = vectors.at[:, :rank].multiply(sign)
    root = jnp.sqrt(jnp.maximum(values[:rank], 1e-30))
    apart = values[:rank, None] - values
    itself = jnp.eye(rank, len(values), dtype=bool)
    share = jnp.where(itself, 0.5 / root[:, None], root[:, None] / jnp.where(itself, 1.0, apart))
    turns = jnp.einsum("il,kl,jl->kij", vectors, share, vectors)
    axes, scaled = vectors[:, :rank], vectors[:, :rank] * root
    feedback = jnp.zeros_like(rho)
    if not hard:
        feedback = 2 * jnp.einsum("ik,kij,jk->ij", scaled, turns, axes)
    # The diagonal of a column that is held stays.
    solve = jnp.linalg.inv(jnp.eye(len(rho)) - jnp.where(held[:, None], 0.0, feedback))
    solve = jnp.zeros_like(rho) if hard else jnp.where(held, 0.0, solve)
    return _Parts(scale, first * scale, mean * scale, ends.any(axis=1), own, axes, turns, solve,
                  scaled)  # fmt: skip


@jax.jit
def _squares(parts: _Parts, data: Array, mask: Array | None) -> tuple[Array, Array]:
    """Squared influences on eigenvalues (P,) and loadings (P, D), summed over rows."""
    observed = jnp.ones(data.shape, parts.scale.dtype) if mask is None else mask.astype(float)
    bits = data.astype(observed.dtype) * observed

    def along(vector: Array) -> Array:
        """dC(n) v for each row, (n, D)."""
        on = (bits * vector) @ parts.scale - (observed * vector) @ parts.first.T
        off = (bits * vector) @ parts.first + (observed * vector) @ parts.mean
        return bits * on - observed * off

    eigen = jax.lax.map(lambda v: jnp.sum((along(v) @ v) ** 2), parts.vectors.T)
    moved = jax.lax.map(
        lambda x: along(x[0]) @ x[1].T, (parts.axes.T, parts.turns)
    )  # (P, n, D) loadings, if the diagonal stayed as it is
    change = 2 * jnp.einsum("knd,dk->nd", moved, parts.loadings) @ parts.solve.T
    moved = moved + jnp.einsum("nd,dk,ked->kne", change, parts.axes, parts.turns)
    return eigen, jnp.sum(moved**2, axis=1)
