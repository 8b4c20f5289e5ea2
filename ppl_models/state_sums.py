r"""Sums over all states of m hidden units, a chunk of states at a time.

A state h of weight :math:`\exp(\theta \cdot h + \sum_j A(\omega(h)_j))`, with
:math:`\omega(h) = \sum_i h_i \omega^{(i)}`, is one of :math:`2^m`. Neither their sum, nor its
gradient, nor a draw ever holds :math:`2^m \times n` numbers.

Throughout, ``log_mass`` is the function :math:`A`, elementwise; ``weights`` has shape
(num_causes, num_features) and ``bias`` (num_causes,).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.scipy.special import logsumexp

LogMass = Callable[[Array], Array]

# States are numbered by 32-bit integers.
MAX_CAUSES = 30
# Numbers held at once while the states are summed: a few megabytes.
_CELLS_PER_CHUNK = 2**18


def _bits(state: Array, num_bits: int) -> Array:
    return (state[..., None] >> jnp.arange(num_bits)) & 1


def _chunks(
    log_mass: LogMass, weights: Array, bias: Array
) -> tuple[int, int, Callable[[Array], Array]]:
    """Split the states: the lowest units run within a chunk, the others number the chunks.

    :return: the number of low units, the number of chunks, and the function from a chunk's number
        to the unnormalised log probabilities of its states.
    """
    num_causes, num_features = weights.shape
    num_low = (_CELLS_PER_CHUNK // max(num_features, 1)).bit_length() - 1
    num_low = min(max(num_low, 0), num_causes)
    low = _bits(jnp.arange(2**num_low), num_low).astype(weights.dtype)
    combined_low = jnp.matmul(low, weights[:num_low], precision="highest")
    bias_low = jnp.matmul(low, bias[:num_low], precision="highest")

    def log_masses(chunk: Array) -> Array:
        high = _bits(chunk, num_causes - num_low).astype(weights.dtype)
        combined = combined_low + jnp.matmul(high, weights[num_low:], precision="highest")
        bias_high = jnp.matmul(high, bias[num_low:], precision="highest")
        return bias_low + bias_high + log_mass(combined).sum(-1)

    return num_low, 2 ** (num_causes - num_low), log_masses


@partial(jax.jit, static_argnums=0)
def _log_chunk_masses(log_mass: LogMass, weights: Array, bias: Array) -> Array:
    """The log of the total mass of each chunk of states, shape (num_chunks,)."""
    _, num_chunks, log_masses = _chunks(log_mass, weights, bias)

    # Without checkpoint, reverse mode would keep the terms of all chunks.
    @partial(jax.checkpoint, prevent_cse=False)
    def total(carry: None, chunk: Array) -> tuple[None, Array]:
        return carry, logsumexp(log_masses(chunk))

    return lax.scan(total, None, jnp.arange(num_chunks))[1]


def log_normalizer(log_mass: LogMass, weights: Array, bias: Array) -> Array:
    """The log of the sum of the weights of all states, a scalar."""
    return logsumexp(_log_chunk_masses(log_mass, weights, bias))


@partial(jax.jit, static_argnums=(0, 1))
def draw_states(
    log_mass: LogMass, num_draws: int, key: Array, weights: Array, bias: Array
) -> Array:
    """Exact draws, (num_draws, num_causes): for each a chunk, then a state within that chunk."""
    key_chunk, key_state = random.split(key)
    num_low, num_chunks, log_masses = _chunks(log_mass, weights, bias)
    chunk_probs = jax.nn.softmax(_log_chunk_masses(log_mass, weights, bias))
    chunks = random.choice(key_chunk, num_chunks, (num_draws,), p=chunk_probs)

    # Every draw looks at every chunk, a binary search each, and keeps what its own chunk gives.
    def visit(states: Array, chunk: Array) -> tuple[Array, None]:
        probs = jax.nn.softmax(log_masses(chunk))
        low = random.choice(random.fold_in(key_state, chunk), 2**num_low, (num_draws,), p=probs)
        return jnp.where(chunks == chunk, low + (chunk << num_low), states), None

    states, _ = lax.scan(visit, jnp.zeros_like(chunks), jnp.arange(num_chunks))
    return _bits(states, weights.shape[-2])
