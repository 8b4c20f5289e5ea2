"""Sums over the paths of a chain, from its factors alone: linear in its length.

A chain of order d has one factor per step, φ_t(z_{t-d}, ..., z_t), here the logarithm of it as an
array (T, N, S, S^d) for T steps of N sequences with S states: first z_{t-d}, then the others as one
number, z_t its last digit. The start, (N, S^d), is α of what lies before the first step; where
there is nothing, that counts as state 0 (`no_start`). With

    α_t(z_{t-d+1}, ..., z_t) = log Σ_{z_{t-d}} exp{α_{t-1} + φ_t}

the log evidence is the log-sum of the last α; its gradient with respect to φ_t is the posterior of
the states that φ_t joins, which is all that Baum and Welch's algorithm adds up (1970); the maximum
in place of the sum gives Viterbi's path, and a draw in its place one from the posterior of paths.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax, random


def log_sum_exp(x: Array, axis: int) -> Array:
    """log Σ exp; where every term is zero, the slope is zero too and not NaN."""
    top = lax.stop_gradient(x.max(axis, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    total = jnp.exp(x - top).sum(axis)
    nothing = total == 0
    return jnp.where(nothing, -jnp.inf, jnp.log(jnp.where(nothing, 1.0, total)) + top.squeeze(axis))


def no_start(factors: Array) -> Array:
    """α before the first step where there is nothing before it, (N, S^d)."""
    _, num_sequences, _, width = factors.shape
    return jnp.full((num_sequences, width), -jnp.inf).at[:, 0].set(0.0)


def forward(
    factors: Array, start: Array, reduce: Callable[[Array, int], Array] = log_sum_exp
) -> tuple[Array, Array]:
    """The last α, (N, S^d), and those before each step, (T, N, S^d)."""
    _, num_sequences, num_states, width = factors.shape

    def step(alpha: Array, factor: Array) -> tuple[Array, Array]:
        old = alpha.reshape(num_sequences, num_states, -1, 1)
        new = reduce(old + factor.reshape(num_sequences, num_states, -1, num_states), 1)
        return new.reshape(num_sequences, width), alpha

    return lax.scan(step, start, factors)


def evidence(factors: Array, start: Array) -> Array:
    """The log of the sum over all paths, (N,).

    >>> fair = jnp.log(jnp.full((3, 1, 2, 2), 0.5))  # three steps of probability a half each
    >>> evidence(fair, no_start(fair)).tolist()
    [0.0]
    """
    return log_sum_exp(forward(factors, start)[0], 1)


def statistics(factors: Array, start: Array) -> tuple[Array, tuple[Array, Array]]:
    """The log evidence, (N,), and the posterior of what each factor and the start join.

    These are the gradients of the evidence: as large as the factors and the start.
    """
    value, pullback = jax.vjp(evidence, factors, start)
    return value, pullback(jnp.ones_like(value))


def paths(factors: Array, start: Array, rng_key: Array | None = None) -> tuple[Array, Array]:
    """A path per sequence, (T, N), and what stands before its first step, (N,).

    :param rng_key: of a draw from the posterior; without it the most probable path.

    >>> sticky = jnp.log(jnp.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> seen = jnp.log(jnp.array([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]]))  # of each state, by step
    >>> factors = sticky[None, None] + seen[:, None, None]
    >>> paths(factors, no_start(factors))[0][:, 0].tolist()
    [0, 1, 1]
    """
    length, num_sequences, num_states, width = factors.shape
    reduce = log_sum_exp if rng_key is not None else (lambda x, axis: x.max(axis))
    last, before = forward(factors, start, reduce)

    def choose(logits: Array, key: Array) -> Array:
        if rng_key is None:
            return jnp.argmax(logits, axis=1)
        return random.categorical(key, logits, axis=1)

    keys = random.split(random.key(0) if rng_key is None else rng_key, length + 1)
    rows = jnp.arange(num_sequences)
    window = choose(last, keys[-1])

    def back(window: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        factor, alpha, key = step
        alpha = alpha.reshape(num_sequences, num_states, -1)[rows, :, window // num_states]
        first = choose(alpha + factor[rows, :, window], key)
        return first * (width // num_states) + window // num_states, window % num_states

    window, path = lax.scan(back, window, (factors, before, keys[:-1]), reverse=True)
    return path, window % num_states
