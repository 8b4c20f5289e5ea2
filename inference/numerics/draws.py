"""Random numbers of several kinds by one call of the generator: each call is a hundred instructions
to compile, a tenth of a second."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

BITS = 23
"""Of a number between 0 and 1, as many as `jax.random.uniform` draws."""


def uniforms(key: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """Numbers between 0 and 1 of these shapes, all of them independent.

    >>> [x.shape for x in uniforms(random.key(0), (3, 2), (), (4,))]
    [(3, 2), (), (4,)]
    """
    return pieces(random.uniform(key, (sum(map(math.prod, shapes)),)), *shapes)


def pieces(flat: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """A vector cut into pieces of these shapes.

    >>> [x.tolist() for x in pieces(jnp.arange(3), (2,), ())]
    [[0, 1], 2]
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = jnp.split(flat, ends)
    return [x.reshape(shape) for x, shape in zip(parts, shapes, strict=True)]


def keys_and_uniforms(key: Array, num_keys: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Keys, as `jax.random.split` makes them, and numbers between 0 and 1.

    >>> keys, numbers = keys_and_uniforms(random.key(0), 3, (1000,))
    >>> keys.shape, bool((abs(numbers - 0.5) <= 0.5).all()), bool(abs(numbers.mean() - 0.5) < 0.05)
    ((3,), True, True)
    """
    data = random.key_data(key)
    many = num_keys * data.size
    words = random.bits(key, (many + math.prod(shape),), jnp.uint32)
    keys = words[:many].reshape(num_keys, *data.shape)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        keys = random.wrap_key_data(keys, impl=random.key_impl(key))
    return keys, (words[many:] >> (32 - BITS)).astype(float).reshape(shape) * 0.5**BITS


def drawn(x: Array) -> bool:
    """Whether these are numbers that were drawn already, not the key to draw them by.

    >>> drawn(random.key(0)), drawn(random.PRNGKey(0)), drawn(jnp.zeros((3, 2)))
    (False, False, True)
    """
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def below(draws: Array, limit: int) -> Array:
    """Whole numbers from 0 to `limit` - 1 for numbers between 0 and 1.

    >>> below(jnp.array([0.0, 0.49, 0.5, 0.999]), 2).tolist()
    [0, 0, 1, 1]
    """
    return jnp.minimum((draws * limit).astype(int), limit - 1)


def first_of(draws: Array, rates: Array) -> Array:
    """Along the last axis, an index drawn in proportion to the rates: the first of so many clocks.

    :param draws: numbers between 0 and 1, one a rate.

    >>> first_of(jnp.array([0.5, 0.5, 0.1]), jnp.array([1.0, 3.0, 0.0])).item()
    1
    """
    return jnp.argmin(-jnp.log1p(-draws) / rates, axis=-1)
