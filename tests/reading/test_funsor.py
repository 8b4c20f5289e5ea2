"""`marginal` beside NumPyro's own enumeration by funsor, where that can do it."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from small_programs import CASES
from tools import fast_jit, near

from inference import (
    marginal,
)


def separate(data, *, num_causes):
    """Binary sparse coding with a scalar site for each cause: what funsor can enumerate."""
    shape = (num_causes, data.shape[1])
    weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand(shape).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    sparsity = numpyro.sample("sparsity", dist.Uniform(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        mean = 0.0
        for h in range(num_causes):
            cause = numpyro.sample(
                f"cause_{h}", dist.Bernoulli(sparsity), infer={"enumerate": "parallel"}
            )
            mean = mean + cause[..., None] * weights[h]
        numpyro.sample("observed", dist.Normal(mean, noise).to_event(1), obs=data)


def test_funsor_agrees_on_scalar_sites():
    """Value and gradient to 1e-5 of their size in float32."""
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor import log_density as enumerated

    case = CASES["sparse_coding"]
    args, kwargs = case.arguments

    @fast_jit
    @jax.value_and_grad
    def by_funsor(params):
        program = enum(separate, first_available_dim=-2)
        return enumerated(program, args, kwargs, params)[0]

    @fast_jit
    @jax.value_and_grad
    def by_reading(params):
        return log_density(marginal(case.model), args, kwargs, params)[0]

    (wanted, wanted_slopes), (value, slopes) = by_funsor(case.typed()), by_reading(case.typed())
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for site, slope in wanted_slopes.items():
        near(slopes[site] / np.abs(slope).max(), slope / np.abs(slope).max())
    # The separate sites can be summed out here too.
    again = fast_jit(lambda p: log_density(marginal(separate), args, kwargs, p)[0])(case.typed())
    np.testing.assert_allclose(again, wanted, rtol=1e-5)


def test_funsor_refuses_a_vector_of_causes():
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    program = enum(config_enumerate(case.model), first_available_dim=-2)
    with pytest.raises((NotImplementedError, ValueError, AssertionError)):
        enumerated(program, args, kwargs, case.typed())
