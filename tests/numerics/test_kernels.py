"""Kernels for a GPU against the plain computations that they stand for, imitated on a CPU."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from tools import fast_jit

from inference.numerics import kernels, products, state_sums


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for name, value in {"LEAST_ROWS": 1, "SIDE": 16, "DEPTH": 16}.items():
        monkeypatch.setattr(kernels, name, value)
    for name in ("ROWS", "STATES"):
        monkeypatch.setattr(state_sums, name, 16)


DESIGN = np.array([x for x in itertools.product((0, 1), repeat=6) if sum(x) <= 3])  # 42 states


def compute(features, single, chosen):
    """All that kernels do: 41 rows are no whole number of blocks, 42 states neither."""
    level, sums = state_sums.sums_over_states(features, DESIGN)
    mean, count = state_sums.means_of_bits(single, chosen, level, sums[:, :3], sums[:, -1:])
    best = state_sums.best_bits(single, 5)
    return level, sums, mean, count, best, products.by_halves(features, single[:, 1:7])


@fast_jit
def arguments():
    keys = random.split(random.key(0), 3)
    features, single = 3 * random.normal(keys[0], (41, 6)), random.normal(keys[1], (41, 23))
    chosen = jnp.argsort(random.uniform(keys[2], (41, 23)))[:, :3].astype(jnp.int32)
    return features, single.at[:, 0].set(-jnp.inf), chosen


@pytest.mark.usefixtures("on_a_gpu")
def test_kernels_have_the_digits_of_float32(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    args = arguments()
    made = fast_jit(compute)(*args)
    monkeypatch.setattr(kernels, "LEAST_ROWS", 1 << 60)
    plain = fast_jit(lambda *args: compute(*args))(*args)  # traced anew
    for value, wanted in zip(made, plain, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-6, atol=2e-7 * np.abs(wanted).max())


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_kernels_are_accepted_by_triton():
    """So far as can be seen without a GPU."""
    device = AbstractDevice("NVIDIA H200", num_cores=None, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(lambda *x: compute(*x)).trace(*arguments())
        lowered = traced.lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("xla.gpu.triton") == 4
