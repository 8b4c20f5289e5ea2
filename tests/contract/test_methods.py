"""Settings that the contract's table does not have: padded rows count as if they were not there,
and rows may stay on disk."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from test_table import assert_small_steps
from tools import noisy_bars, noisy_copies

from inference import (
    EM,
    BoundEM,
    Cut,
    GibbsEM,
    GibbsSearch,
    Persistent,
    StepwiseEM,
    TruncatedEM,
)
from inference.running.restarts import Restarts
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    latent_trait,
    noisy_or_network,
)

# Two tables each, which are filled up to the same size.
SIZES = 103, 108
PIXELS = [noisy_bars(size, size) for size in SIZES]
BITS = [noisy_copies(size, 36, 6)[:size] for size in SIZES]
GIBBS = GibbsEM(noisy_or_network, block_size=20, keep_states=False)


def my_trait(data, *, num_factors=1):
    """A program that no method was told of."""
    return latent_trait(data, num_factors=num_factors)


CASES = {
    "gradient EM": (EM(noisy_or_network, chunk_size=20, gradient_steps=1), BITS, {"layers": (2,)}),
    "TruncatedEM, cut": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, max_active=1, num_candidates=2, keep=False,
                    cut=Cut(-1, 0)), PIXELS, {"num_causes": 3}),
    "TruncatedEM, persistent": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, persistent=Persistent(4, 2, rounds=3),
                    keep=False), PIXELS, {"num_causes": 3}),
    "BoundEM, any program": (
        BoundEM(my_trait, chunk_size=20, remember=False, gradient_steps=1, accelerate=False), BITS,
        {}),
    "StepwiseEM": (StepwiseEM(bernoulli_mixture, batch_size=20), BITS, {"num_components": 2}),
    "GibbsEM": (GIBBS, BITS, {"layers": (2,)}),
    # Rows on disk have one start: so have those in memory here.
    "GibbsSearch": (
        GibbsSearch(GIBBS, population=2, rounds=1, epochs=1, search=None), BITS, {"layers": (2,)},
    ),
    "Restarts": (Restarts(EM(bernoulli_mixture), 2), BITS, {"num_components": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_may_stay_on_disk(tmp_path, name):
    """On disk nothing in a step, nor what it leaves, is as long as the file."""
    method, (data, other), settings = CASES[name]

    def whole(key, data, num_steps, tolerance):
        return method.run(random.key(key), num_steps, data, tolerance=tolerance, **settings)

    assert method.pads == (method.fill((data,), settings) is not None)
    if not method.pads:
        other = other[: len(data)]
    data, other = jnp.asarray(data), jnp.asarray(other)
    held = whole(2, data, 3, None)
    second = whole(3, other, 5, 1e-9)
    assert np.isfinite(second.losses).all() and second.losses[-1] != held.losses[-1]

    if isinstance(method, Restarts):
        return  # its starts are side by side in memory
    path = tmp_path / "rows.npy"
    np.save(path, data)
    file = np.load(path, mmap_mode="r")
    stored = method.run(random.key(2), 3, file, **settings)
    np.testing.assert_allclose(stored.losses, held.losses, rtol=1e-6)
    for site, value in held.params.items():
        np.testing.assert_allclose(stored.params[site], value, rtol=1e-4, atol=1e-5)
    assert_small_steps(method, stored.state, file, settings)
