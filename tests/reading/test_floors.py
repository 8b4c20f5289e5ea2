"""Noise that runs to zero is said, with its value, by a run and by the checks of a comparison."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from inference import EM
from inference.comparison.checks import REMARKS, wrong
from inference.reading.small_scales import FloorWarning, at_floor
from ppl_models import binary_sparse_coding, mixed_trait

DATA = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)
WEIGHTS = {"weights": DATA, "sparsity": 0.25}


def test_as_many_causes_as_rows():
    """Each row is a cause of its own: the likelihood grows without end as the noise shrinks."""
    with pytest.warns(FloorWarning, match="'noise' is .*its floor.*fewer latents"):
        result = EM(binary_sparse_coding).run(
            random.key(0), 20, DATA, num_causes=4, init_params={**WEIGHTS, "noise": 0.1}
        )
    assert result.params["noise"] < 1e-3
    said = at_floor(binary_sparse_coding, result.params, (DATA,), {"num_causes": 4})
    assert wrong({"floor": said}, REMARKS) == {"floor": said}


def test_a_floor_is_measured_by_each_column_and_only_of_scales():
    """A column in thousandths has little noise by nature; a weight of zero is no scale."""
    small = np.random.default_rng(1).normal(size=(50, 2)) * [1.0, 1e-3]
    params = {"weights": jnp.zeros((1, 2)), "bias": jnp.zeros(2), "noise": jnp.array([1.0, 1e-4])}
    settings = {"kinds": ("real", "real"), "num_factors": 1}
    assert at_floor(mixed_trait, params, (small,), settings) is None
    lost = {**params, "noise": jnp.array([1e-6, 1e-4])}
    assert "'noise' is 1e-06" in at_floor(mixed_trait, lost, (small,), settings)

    def parts(data):
        effect = numpyro.sample("effect", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(0.5))
            numpyro.sample("seen", dist.Normal(effect * on, 1.0), obs=data)

    assert at_floor(parts, {"effect": 0.0}, (DATA[:, 0],), {}) is None
