r"""Sums over states of m hidden units, a chunk of states at a time.

A state h of weight :math:`\exp(\theta \cdot h + \sum_j A(\omega(h)_j))`, with
:math:`\omega(h) = \sum_i h_i \omega^{(i)}`, is one of :math:`2^m`. Neither their sum, nor its
gradient, nor a draw ever holds :math:`2^m \times n` numbers.

The gradient of the log of the sum is a mean over the same states,

.. math:: \partial_{\theta^{(i)}} = \langle h_i \rangle, \qquad
          \partial_{\omega^{(i)}_j} = \langle h_i A'(\omega(h)_j) \rangle,

and is taken in one pass with it: reverse mode through the sum would visit every state twice more.

Throughout, ``log_mass`` is :math:`\sum_j A(x_j)` over the last axis of its argument; ``weights``
has shape (num_causes, num_features) and ``bias`` (num_causes,).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.scipy.special import logsumexp

LogMass = Callable[[Array], Array]

# States are numbered by 32-bit integers.
MAX_CAUSES = 30


def _cells_per_chunk() -> int:
    """Numbers held at once while the states are summed: what fits a cache, or fills a GPU."""
    return 2**18 if jax.default_backend() == "cpu" else 2**26


def _bits(state: Array, num_bits: int) -> Array:
    return (state[..., None] >> jnp.arange(num_bits)) & 1


class _Split(NamedTuple):
    """All states: the lowest units run within a chunk, the others number the chunks."""

    num_low: int
    num_chunks: int
    low: Array  # (2^num_low, num_low): the states within a chunk
    combined: Callable[[Array], Array]  # chunk -> ω(h) of its states, (2^num_low, num_features)
    biased: Callable[[Array], Array]  # chunk -> θ·h of its states, (2^num_low,)
    high: Callable[[Array], Array]  # chunk -> the units that its states share


def _split(weights: Array, bias: Array) -> _Split:
    num_causes, num_features = weights.shape
    num_low = (_cells_per_chunk() // max(num_features, 1)).bit_length() - 1
    num_low = min(max(num_low, 0), num_causes)
    low = _bits(jnp.arange(2**num_low), num_low).astype(weights.dtype)
    combined_low = jnp.matmul(low, weights[:num_low], precision="highest")
    bias_low = jnp.matmul(low, bias[:num_low], precision="highest")

    def high(chunk: Array) -> Array:
        return _bits(chunk, num_causes - num_low).astype(weights.dtype)

    def combined(chunk: Array) -> Array:
        return combined_low + jnp.matmul(high(chunk), weights[num_low:], precision="highest")

    def biased(chunk: Array) -> Array:
        return bias_low + jnp.matmul(high(chunk), bias[num_low:], precision="highest")

    return _Split(num_low, 2 ** (num_causes - num_low), low, combined, biased, high)


@partial(jax.jit, static_argnums=0)
def _log_chunk_masses(log_mass: LogMass, weights: Array, bias: Array) -> Array:
    """The log of the total mass of each chunk of states, shape (num_chunks,)."""
    split = _split(weights, bias)

    def total(carry: None, chunk: Array) -> tuple[None, Array]:
        log_masses = split.biased(chunk) + log_mass(split.combined(chunk))
        return carry, logsumexp(log_masses)

    return lax.scan(total, None, jnp.arange(split.num_chunks))[1]


class _Part(NamedTuple):
    """A chunk of states: the log of its mass, and the means within it."""

    log_total: Array
    mean: Array  # (num_causes,), ⟨h⟩
    cross: Array  # (num_causes, num_features), ⟨h A'(ω(h))⟩


def _join(parts: Callable[[Any], _Part], chunks: Any, weights: Array) -> _Part:
    """The sum of all chunks, weighed relative to the heaviest so far: nothing over- or underflows.

    The log of the total comes from the chunks' own, not from a running sum of logs, which would be
    rounded once a chunk.
    """
    if len(jax.tree.leaves(chunks)[0]) == 1:
        return parts(jax.tree.map(lambda x: x[0], chunks))

    # Checkpoint: should somebody differentiate this again, the terms of a chunk are not kept.
    @partial(jax.checkpoint, prevent_cse=False)
    def step(carry: tuple[Array, Array, Array, Array], chunk: Any) -> tuple[Any, Array]:
        largest, count, mean, cross = carry
        part = parts(chunk)
        new = jnp.maximum(largest, part.log_total)
        keep, take = jnp.exp(largest - new), jnp.exp(part.log_total - new)
        sums = (count * keep + take, mean * keep + part.mean * take)
        return (new, *sums, cross * keep + part.cross * take), part.log_total

    start = (jnp.full((), -jnp.inf, weights.dtype), jnp.zeros((), weights.dtype))
    zeros = (jnp.zeros(weights.shape[0], weights.dtype), jnp.zeros_like(weights))
    (_, count, mean, cross), log_totals = lax.scan(step, (*start, *zeros), chunks)
    return _Part(logsumexp(log_totals), mean / count, cross / count)


def _means(
    log_mass: LogMass, combined: Array, biased: Array, valid: Array | None = None
) -> tuple[Array, Array, Array]:
    """Of some states: the log of their mass, their shares of it, and the shares times A'."""
    mass, pullback = jax.vjp(log_mass, combined)
    log_masses = biased + mass
    if valid is not None:
        log_masses = jnp.where(valid, log_masses, -jnp.inf)
    log_total = logsumexp(log_masses)
    share = jnp.exp(log_masses - log_total)
    return log_total, share, pullback(share)[0]


@partial(jax.jit, static_argnums=0)
def _all_states(log_mass: LogMass, weights: Array, bias: Array) -> _Part:
    split = _split(weights, bias)

    def part(chunk: Array) -> _Part:
        log_total, share, pull = _means(log_mass, split.combined(chunk), split.biased(chunk))
        high = split.high(chunk)
        cross_low = jnp.matmul(split.low.T, pull, precision="highest")
        mean_low = jnp.matmul(share, split.low, precision="highest")
        cross = jnp.concatenate([cross_low, high[:, None] * pull.sum(0)])
        return _Part(log_total, jnp.concatenate([mean_low, high]), cross)

    return _join(part, jnp.arange(split.num_chunks), weights)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_normalizer(log_mass: LogMass, weights: Array, bias: Array) -> Array:
    """The log of the sum of the weights of all states, a scalar."""
    return logsumexp(_log_chunk_masses(log_mass, weights, bias))


@log_normalizer.defjvp
def _log_normalizer_jvp(log_mass: LogMass, primals: Any, tangents: Any) -> tuple[Array, Array]:
    return _along(_all_states(log_mass, *primals), tangents)


def _along(sums: _Part, tangents: Any) -> tuple[Array, Array]:
    weights, bias = tangents
    return sums.log_total, jnp.vdot(sums.cross, weights) + jnp.vdot(sums.mean, bias)


@partial(jax.jit, static_argnums=0)
def _listed_states(log_mass: LogMass, weights: Array, bias: Array, states: Array) -> _Part:
    size = min(max(_cells_per_chunk() // max(weights.shape[1], 1), 1), len(states))
    num_chunks = -(-len(states) // size)
    padded = jnp.pad(states, ((0, num_chunks * size - len(states)), (0, 0)))
    valid = jnp.arange(num_chunks * size) < len(states)

    def part(chunk: tuple[Array, Array]) -> _Part:
        bits, valid = chunk[0].astype(weights.dtype), chunk[1]
        combined = jnp.matmul(bits, weights, precision="highest")
        biased = jnp.matmul(bits, bias, precision="highest")
        log_total, share, pull = _means(log_mass, combined, biased, valid)
        cross = jnp.matmul(bits.T, pull, precision="highest")
        return _Part(log_total, jnp.matmul(share, bits, precision="highest"), cross)

    chunks = (padded.reshape(num_chunks, size, -1), valid.reshape(num_chunks, size))
    return _join(part, chunks, weights)


@partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def log_partial_sum(log_mass: LogMass, weights: Array, bias: Array, states: Any) -> Array:
    """The log of the sum of the weights of the listed states, (num_states, num_causes) of 0 and 1.

    A lower bound of :func:`log_normalizer`. The list is a NumPy array: it is not differentiated.
    """
    return _listed_states(log_mass, weights, bias, jnp.asarray(states)).log_total


@log_partial_sum.defjvp
def _log_partial_sum_jvp(
    log_mass: LogMass, states: Any, primals: Any, tangents: Any
) -> tuple[Array, Array]:
    return _along(_listed_states(log_mass, *primals, jnp.asarray(states)), tangents)


@partial(jax.jit, static_argnums=(0, 1))
def draw_states(
    log_mass: LogMass, num_draws: int, key: Array, weights: Array, bias: Array
) -> Array:
    """Exact draws, (num_draws, num_causes): for each a chunk, then a state within that chunk."""
    key_chunk, key_state = random.split(key)
    split = _split(weights, bias)
    chunk_probs = jax.nn.softmax(_log_chunk_masses(log_mass, weights, bias))
    chunks = random.choice(key_chunk, split.num_chunks, (num_draws,), p=chunk_probs)

    # Every draw looks at every chunk, a binary search each, and keeps what its own chunk gives.
    def visit(states: Array, chunk: Array) -> tuple[Array, None]:
        probs = jax.nn.softmax(split.biased(chunk) + log_mass(split.combined(chunk)))
        key = random.fold_in(key_state, chunk)
        low = random.choice(key, 2**split.num_low, (num_draws,), p=probs)
        return jnp.where(chunks == chunk, low + (chunk << split.num_low), states), None

    states, _ = lax.scan(visit, jnp.zeros_like(chunks), jnp.arange(split.num_chunks))
    return _bits(states, weights.shape[-2])


# Enough for machines that mix at all; those that do not are not helped by ten times as many.
GIBBS_SWEEPS = 200


@partial(jax.jit, static_argnums=(0, 1))
def gibbs_states(
    draw_observed: Callable[[Array, Array], Array],
    num_draws: int,
    key: Array,
    weights: Array,
    bias: Array,
) -> Array:
    """Draws by block Gibbs sampling from states at random, (num_draws, num_causes): not exact."""

    def sweep(hidden: Array, key: Array) -> tuple[Array, None]:
        key_observed, key_hidden = random.split(key)
        observed = draw_observed(key_observed, hidden @ weights)
        probability = jax.nn.sigmoid(observed @ weights.T + bias)
        return random.bernoulli(key_hidden, probability).astype(weights.dtype), None

    keys = random.split(key, GIBBS_SWEEPS + 1)
    start = random.bernoulli(keys[0], 0.5, (num_draws, len(bias))).astype(weights.dtype)
    return lax.scan(sweep, start, keys[1:])[0].astype(jnp.int32)
