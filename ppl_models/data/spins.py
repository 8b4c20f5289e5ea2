"""Two distributions of spins whose moments are known exactly: one a Gaussian can make, one not.

Lee & Sompolinsky (1998) speak of spins s in {−1, +1}; the data here are bits t in {0, 1}, as
everywhere in this package: s = 2t − 1. The moments are the paper's, of the spins.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, random


class Moments(NamedTuple):
    """First and second moments of the spins s = 2t − 1.

    >>> moments = ring_moments(4)
    >>> moments.mean.tolist(), moments.correlation.shape
    ([0.0, 0.0, 0.0, 0.0], (4, 4))
    """

    mean: Array
    """(num_features,): ⟨s_i⟩"""
    correlation: Array
    """(num_features, num_features): ⟨s_i s_j⟩"""


class Ring(NamedTuple):
    """Blocks on a ring and where they start.

    >>> truth = ring(random.key(3), num_data=2, num_features=6)
    >>> [row[start] for row, start in zip(truth.data.tolist(), truth.position.tolist())]
    [1.0, 1.0]
    """

    data: Array
    """(num_data, num_features), 0/1"""
    position: Array
    """(num_data,), int: the first unit of the block that is on"""


def _even(num_features: int) -> int:
    if num_features < 2 or num_features % 2:
        raise ValueError(f"`num_features` must be even and at least 2, found {num_features}")
    return num_features // 2


def ring(key: Array, num_data: int = 1000, num_features: int = 256) -> Ring:
    """The translation-invariant distribution of Lee & Sompolinsky (1998), figure 3.

    Units sit on a ring; half of them, in one block, are on; the block starts anywhere with equal
    probability.

    >>> ring(random.key(3), num_data=2, num_features=6).data.sum(axis=1).tolist()
    [3.0, 3.0]
    """
    half = _even(num_features)
    position = random.randint(key, (num_data,), 0, num_features)
    place = (jnp.arange(num_features) - position[:, None]) % num_features
    return Ring((place < half).astype(float), position)


def ring_moments(num_features: int = 256) -> Moments:
    """Exact moments of :func:`ring`: ⟨s_i⟩ = 0 and ⟨s_i s_j⟩ = 1 − 4d/N at distance d on the ring.

    Spins i and j differ when one of the block's two ends lies between them: 2d of N positions.

    >>> ring_moments(4).correlation[0].tolist()
    [1.0, 0.0, -1.0, 0.0]
    """
    _even(num_features)
    unit = jnp.arange(num_features)
    apart = jnp.abs(unit[:, None] - unit)
    distance = jnp.minimum(apart, num_features - apart)
    return Moments(jnp.zeros(num_features), 1.0 - 4.0 * distance / num_features)


class SumConstraint(NamedTuple):
    """Spins that add up to zero.

    >>> sorted(sum_constraint(random.key(0), num_data=3).data[0].tolist())
    [0.0, 0.0, 1.0, 1.0]
    """

    data: Array
    """(num_data, num_features), 0/1, with num_features/2 ones in every row"""


def sum_constraint(key: Array, num_data: int = 1000, num_features: int = 4) -> SumConstraint:
    """Uniform over the states with Σ s_i = 0 (Lee & Sompolinsky 1998, discussion).

    No clipped Gaussian has these correlations: each pair is so negative that the matrix which the
    inversion gives is not positive.

    >>> sum_constraint(random.key(0), num_data=3).data.sum(axis=1).tolist()
    [2.0, 2.0, 2.0]
    """
    half = _even(num_features)
    # Ranks, not the values themselves: a tie in float32 would otherwise switch on too many.
    rank = jnp.argsort(random.uniform(key, (num_data, num_features)), axis=1)
    return SumConstraint((rank < half).astype(float))


def sum_constraint_moments(num_features: int = 4) -> Moments:
    """Exact moments of :func:`sum_constraint`: ⟨s_i⟩ = 0 and ⟨s_i s_j⟩ = −1/(N − 1).

    From 0 = ⟨(Σ s)²⟩ = N + N(N − 1)⟨s_i s_j⟩ and symmetry.

    >>> [round(value, 3) for value in sum_constraint_moments(4).correlation[0].tolist()]
    [1.0, -0.333, -0.333, -0.333]
    """
    _even(num_features)
    pair = -1.0 / (num_features - 1)
    return Moments(jnp.zeros(num_features), pair + (1.0 - pair) * jnp.eye(num_features))
