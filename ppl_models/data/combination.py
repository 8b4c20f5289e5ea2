"""Targets known exactly: a combination machine of ten simple shapes on 8×8 images, and spins.

The weights of figure 4.1(a) of Freund & Haussler (1994) exist only as a picture, of weights within
±6. These are shapes of the same kind, drawn so that the ten units overlap in two pixels at most
where they agree, and disagree in few pairs only (such a pair is all but exclusive: each pixel on
which weights of +6 and −6 meet costs ten nats). So several units are active at a time.

Lee & Sompolinsky (1998) speak of spins s in {−1, +1}; the data here are bits t in {0, 1}, as
everywhere in this package: s = 2t − 1. The moments are the paper's, of the spins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random

# One unit per column of pictures: '#' is +6, '=' is −6, '.' is 0.
SHAPES = """
.....#.. .##..... ....#### ====.... ........   ........ ........ ........ ........ ........
.....#.. ####.... ....#==# ====.... ........   ........ ........ ........ ........ ........
.....#.. ####.... ....#==# ==...... .......#   ........ ........ ........ ........ ........
.....#.. .##..... ....#### ==...... .......#   ........ =....... ...#.... .....##. ........
.....#.. ........ ........ ........ .......#   ........ .=...... ..###... ....#### ........
........ ........ ........ ........ .......#   ===..... ..=..... ...#.... ....#### ........
........ ........ ........ ........ .......#   ===..... ...=.... ........ .....##. ........
........ ........ ........ ........ .......#   ===..... ....=... ........ ........ .======.
"""


class CombinationTarget(NamedTuple):
    """Data of a combination machine, and the machine.

    >>> truth = combination_target(random.key(0), num_data=5)
    >>> sorted(set(truth.weights.ravel().tolist())), truth.bias.shape
    ([-6.0, 0.0, 6.0], (10,))
    """

    data: Array
    """(num_data, 64), 0/1: x = 2t − 1 are the paper's ±1"""
    weights: Array
    """(10, 64): ω"""
    bias: Array
    """(10,): θ"""
    causes: Array
    """(num_data, 10), 0/1: h"""


def _probabilities(weights: np.ndarray, bias: np.ndarray, table: np.ndarray) -> np.ndarray:
    """(num_states,): the probability of each hidden state, equation (3.4)."""
    field = table @ weights
    logits = table @ bias + np.logaddexp(field, -field).sum(axis=1)  # of the numerator
    share = np.exp(logits - logits.max())
    return share / share.sum()


@lru_cache
def _design(scale: float, activation: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, biases and the table of hidden states of the target.

    The biases are those that make every unit active with probability ``activation``. The mean of h
    is the gradient of ln Z in θ, and ln Z is convex: Newton's method finds the only solution.
    """
    if not 0.0 < activation < 1.0:
        raise ValueError(f"`activation` must be between 0 and 1, found {activation}")
    level = {"#": 6.0, "=": -6.0, ".": 0.0}
    pictures = np.array([row.split() for row in SHAPES.split("\n") if row]).T
    weights = scale * np.array([[level[mark] for mark in "".join(unit)] for unit in pictures])
    units = len(weights)
    table = ((np.arange(2**units)[:, None] >> np.arange(units)) & 1).astype(float)
    # Alone, a unit with this bias would have even odds.
    bias = -np.log(np.cosh(weights)).sum(axis=1)
    for _ in range(200):
        share = _probabilities(weights, bias, table)
        mean = share @ table
        if np.abs(mean - activation).max() < 1e-10:
            break
        covariance = (table * share[:, None]).T @ table - np.outer(mean, mean)
        step = np.linalg.solve(covariance, activation - mean)
        bias += step / max(1.0, np.abs(step).max())
    return weights, bias, table


def combination_target(
    key: Array, num_data: int = 4000, scale: float = 1.0, activation: float = 0.4
) -> CombinationTarget:
    r"""Exact draws from a combination machine of simple shapes (Freund & Haussler 1994, section 4).

    .. math::

        P(h) \propto \prod_i e^{h_i \theta^{(i)}} \prod_j 2 \cosh\Big(\sum_i h_i \omega^{(i)}_j\Big)
        \qquad (3.4)

    over all 2¹⁰ states, then bits with log odds :math:`2 \sum_i h_i \omega^{(i)}`.

    :param scale: multiplies the weights, which are within ±6; 1/7 is the paper's second target.
        A Python number.
    :param activation: how often each unit is active. The biases follow from it, at every scale: the
        biases of the large weights would leave units of small weights for ever idle.

    >>> truth = combination_target(random.key(0), num_data=5)
    >>> truth.data.shape, truth.weights.shape, truth.causes.shape
    ((5, 64), (10, 64), (5, 10))
    """
    weights, bias, table = _design(float(scale), float(activation))
    key_causes, key_bits = random.split(key)
    # By inversion of the cumulative table, made in float64: exact to the last bit of a uniform.
    edges = jnp.asarray(np.cumsum(_probabilities(weights, bias, table))[:-1], float)
    state = jnp.searchsorted(edges, random.uniform(key_causes, (num_data,)), side="right")
    causes = jnp.asarray(table, float)[state]
    on = jnp.asarray(1.0 / (1.0 + np.exp(-2.0 * table @ weights)), float)[state]
    data = random.bernoulli(key_bits, on).astype(on.dtype)
    return CombinationTarget(data, jnp.asarray(weights, float), jnp.asarray(bias, float), causes)


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
