"""Sums of products of halves against float64: as exact as float32."""

import jax.numpy as jnp
import numpy as np
from tools import fast_jit

from inference.numerics import products


def test_halves_have_the_digits_of_float32(monkeypatch):
    """Whatever the size of a column, with the rows cut into many parts."""
    monkeypatch.setattr(products, "ROWS", 32)
    monkeypatch.setattr(products, "MANY_ROWS", 100)
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((150, 70)), rng.standard_normal((150, 41))
    left, right = (x.astype(np.float32).astype(float) for x in (left, right))
    sizes, bits = 10.0 ** rng.integers(-9, 9, 70), rng.random((150, 41)) < 0.3

    @fast_jit
    def compute(left, right, sizes):
        scaled = products.sum_by_halves(left * sizes, right) / sizes[:, None]
        return scaled, products.sum_by_halves(left, jnp.asarray(bits))

    sums = compute(*(jnp.asarray(x, jnp.float32) for x in (left, right, sizes)))
    for value, other in zip(sums, (right, bits), strict=True):
        off = np.abs(np.asarray(value, float) - left.T @ other)
        assert (off / (np.abs(left.T) @ np.abs(other))).max() < 4e-7
