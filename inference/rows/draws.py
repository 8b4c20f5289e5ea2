"""Random numbers by row: those of a row are the same, however the rows are cut into chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.extend.random import threefry_2x32


def row_keys(key: Array, numbers: Array) -> Array:
    """A key for each of the rows of these numbers."""
    return jax.vmap(lambda number: random.fold_in(key, number))(numbers)


def row_uniforms(key: Array, numbers: Array) -> Array:
    """What ``random.uniform(key, (num_data,))`` holds for the rows of these numbers, (n,).

    JAX's generator turns the place of a draw into its bits, so that none before it must be made.

    >>> key = random.key(0)
    >>> drawn = row_uniforms(key, jnp.array([500, 7]))
    >>> bool((drawn == random.uniform(key, (1000,))[jnp.array([500, 7])]).all())
    True
    """
    kind = jnp.result_type(float)
    if str(random.key_impl(key)) != "threefry2x32" or kind != jnp.float32:
        # Other generators, and other widths: a key for each row.
        return jax.vmap(lambda own: random.uniform(own, dtype=kind))(row_keys(key, numbers))
    place = numbers.astype(jnp.uint32)
    both = threefry_2x32(random.key_data(key), jnp.concatenate([jnp.zeros_like(place), place]))
    high, low = jnp.split(both, 2)
    mantissa = ((high ^ low) >> 9) | jnp.uint32(0x3F800000)  # a float from 1 up to 2
    return lax.bitcast_convert_type(mantissa, kind) - 1.0
