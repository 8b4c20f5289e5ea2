"""Products of halves against float64: as exact as float32, also inside of a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from tools import fast_jit

from inference import Structure, TruncatedEM
from inference.methods.discrete.step import EMState
from inference.numerics import products
from ppl_models import binary_sparse_coding


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Take every product for a large one on a GPU, and cut it into many parts."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    small = {"LEAST": 1, "TERMS": 24, "ROWS": 32, "MANY_ROWS": 100}
    for name, value in small.items():
        monkeypatch.setattr(products, name, value)


@pytest.mark.usefixtures("on_a_gpu")
def test_halves_have_the_digits_of_float32():
    """Whatever the size of a row, or of a column, over which they are added up."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((150, 70)), rng.standard_normal((150, 41))
    left, right = (x.astype(np.float32).astype(float) for x in (left, right))
    sizes, bits = 10.0 ** rng.integers(-9, 9, 150), rng.random((150, 41)) < 0.3

    @fast_jit
    def compute(left, right, sizes):
        scaled = (left * sizes[:, None]).T
        return (
            products.by_halves(left * sizes[:, None], left[:40]) / sizes[:, None],
            products.sum_by_halves(scaled.T / sizes[:, None] * sizes[:70], right)
            / sizes[:70, None],
            products.sum_by_halves(left, jnp.asarray(bits)),
            products.by_halves(jnp.asarray(bits.T), left.T),
            products.by_halves(left, left[:8]),
        )

    products_of_halves = compute(*(jnp.asarray(x, jnp.float32) for x in (left, right, sizes)))
    factors = (
        (left, left[:40].T),
        (left.T, right),
        (left.T, bits),
        (bits.T, left),
        (left, left[:8].T),
    )
    for value, (a, b) in zip(products_of_halves, factors, strict=True):
        off = np.abs(np.asarray(value, float) - a @ b) / (np.abs(a) @ np.abs(b))
        assert off.max() < 4e-7


@pytest.mark.usefixtures("on_a_gpu")
def test_an_iteration_in_halves():
    """The products of the program, of the states and of the M-step: the same digits."""
    keys = random.split(random.key(0), 3)
    weights = 0.5 * random.normal(keys[0], (40, 36))
    causes = random.bernoulli(keys[1], 0.06, (200, 40))
    data = causes @ weights + 0.3 * random.normal(keys[2], (200, 36))
    params = {"weights": weights + 0.02, "noise": jnp.array(0.5), "sparsity": jnp.array(0.06)}
    state = EMState(params, jnp.zeros((), int), random.key(0), None)
    em = TruncatedEM(
        binary_sparse_coding, max_active=2, num_candidates=8, keep=False, structure=Structure.SHARED
    )

    def step(state, data):
        return em.update(state, data, num_causes=40)

    in_halves = fast_jit(step).lower(state, data)
    products.LEAST = 1 << 60
    plainly = fast_jit(lambda *x: step(*x)).lower(state, data)
    # Two products for the form, for the states to and fro, and three for the M-step.
    texts = (x.as_text().splitlines() for x in (in_halves, plainly))
    assert [sum("dot_general" in x and "f16" in x for x in text) for text in texts] == [9, 0]
    (new, loss), (old, wanted) = (x.compile()(state, data) for x in (in_halves, plainly))
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    for name in params:
        size = float(jnp.abs(old.params[name]).max())
        np.testing.assert_allclose(new.params[name], old.params[name], atol=4e-6 * size)
