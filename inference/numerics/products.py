"""Sums of products over many rows with the digits of float32, on the tensor cores of a GPU.

Tensor cores multiply numbers of 11 bits. A number of float32 is the sum of two such halves, but for
its last bit, and of the four products of halves the least is below the rounding of float32:

    a b = a₁ b₁ + (a₁ b₂ + a₂ b₁) + a₂ b₂,   a₂ b₂ ≤ 2⁻²⁴ a b.

Powers of two that are taken out first keep halves inside the exponents of float16. When they add
up, tensor cores cut digits off instead of rounding: sums of a₁ b₁ are therefore short, and added up
in float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

ROWS = 512
"""Rows that tensor cores add up alone: then as exact as float32."""
MANY_ROWS = 10_000
"""The same of terms that are 2⁻¹¹ of others."""
LEAST = 1 << 28
"""Multiplications below which a product is too small to be split."""


def powers(x: Array, largest: Any = None) -> Array:
    """Powers of two, one per column, that bring numbers into the range of float16.

    :param largest: what they are known not to exceed in magnitude.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.ones((1, 1), jnp.float32)
    size = jnp.abs(x).max(0, keepdims=True) if largest is None else jnp.reshape(largest, (1, 1))
    bits = lax.bitcast_convert_type(jnp.maximum(size, 1e-30).astype(jnp.float32), jnp.uint32)
    power = lax.bitcast_convert_type(bits & jnp.uint32(0x7F800000), jnp.float32)
    return 2.0**14 / power


def halves(x: Array, power: Array) -> tuple[Array, Array | None]:
    """x · power in two parts of float16, the larger first; one for whole numbers, of bits say."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.float16), None
    x = x * power
    # Not a conversion there and back, which XLA would leave out.
    high = lax.reduce_precision(x, 5, 10)
    return high.astype(jnp.float16), (x - high).astype(jnp.float16)


def in_halves(*factors: Array, terms: int) -> bool:
    """Whether a product is made of halves: on a GPU, in float32, and if it is large."""
    kinds = {x.dtype for x in factors if jnp.issubdtype(x.dtype, jnp.floating)}
    sides = [x.size // terms for x in factors]
    large = min(sides) >= 32 and np.prod(sides, dtype=float) * terms >= LEAST
    return jax.default_backend() == "gpu" and kinds == {jnp.dtype("float32")} and bool(large)


def sum_by_halves(left: Array, right: Array, largest: Any = None) -> Array:
    """leftᵀ right, (A, B), of factors (n, A) and (n, B)."""
    shape = left.shape[1], right.shape[1]
    many = -(-len(left) // MANY_ROWS)
    blocks = many * -(-len(left) // (many * ROWS))
    lacking = -(-len(left) // (8 * blocks)) * 8 * blocks - len(left)
    power, other = powers(left, largest), powers(right)
    pad = lambda x: jnp.pad(x, ((0, lacking), (0, -x.shape[1] % 8)))  # noqa: E731
    a, b = (
        tuple(x if x is None else pad(x) for x in y)
        for y in (halves(left, power), halves(right, other))
    )

    def sums(x: Array | None, y: Array | None, blocks: int) -> Array | float:
        if x is None or y is None:
            return 0.0
        x, y = (z.reshape(blocks, -1, z.shape[1]) for z in (x, y))
        over = (((1,), (1,)), ((0,), (0,)))
        how = {"precision": lax.Precision.DEFAULT, "preferred_element_type": jnp.float32}
        return lax.dot_general(x, y, over, **how).sum(0)[: shape[0], : shape[1]]

    rest = sums(a[1], b[0], many) + sums(a[0], b[1], many)
    return (sums(a[0], b[0], blocks) + rest) * (1.0 / power).T * (1.0 / other)
