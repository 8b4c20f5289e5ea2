"""`quadratic_bound`: below the program, equal where it touches, composed with `marginal`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from numpyro.infer.util import log_density
from small_programs import CASES
from tools import density, in_double, near

from inference import ProgramError, Structure, marginal, quadratic_bound
from inference.reading.reader import open_program
from inference.reading.tracing import trace_shapes
from ppl_models import binary_sparse_coding, latent_trait


@in_double
def test_quadratic_bound_in_the_potential():
    """Below the program everywhere, equal where it touches, and the oracle's value between."""
    rng = np.random.default_rng(9)
    sites = {"weights": rng.normal(0.2, 1.0, (2, 5)), "bias": rng.normal(-0.3, 1.0, 5)}
    factors = rng.normal(size=(4, 2))
    data = (rng.random((4, 5)) < 0.4).astype(float)
    xi = rng.uniform(0.1, 3.0, (4, 5))
    latent = {**sites, "factors": factors}

    def value(program, latent):
        return log_density(program, (jnp.asarray(data),), {"num_factors": 2}, latent)[0]

    logits = factors @ sites["weights"] + sites["bias"]

    @jax.jit
    def compute(latent):
        programs = (latent_trait, *(quadratic_bound(latent_trait, xi=x) for x in (xi, logits)))
        return [value(program, latent) for program in programs]

    exact, bound, touching = compute(latent)
    assert bound < exact
    plain = sum(oracle.log_joint_latent_trait({**sites, "factors": factors}, data))
    signed = (2 * data - 1) * logits
    slope = -np.tanh(xi / 2) / (4 * xi)
    terms = -np.log1p(np.exp(-xi)) + (signed - xi) / 2 + slope * (signed**2 - xi**2)
    gap = (-np.log1p(np.exp(-signed)) - terms).sum()
    near(exact - bound, gap, 1e-9)
    assert np.isfinite(plain)
    near(touching, exact, 1e-9)


def test_bound_and_marginal_compose():
    """Bounded binary causes are quadratic, and summed out they stay below the true evidence."""

    def bits_behind_bits(data, *, num_causes):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Bernoulli(logits=on @ weights).to_event(1), obs=data)

    case = CASES["combination_machine"]
    args, kwargs = case.arguments
    bounded = quadratic_bound(bits_behind_bits, xi=1.3)
    assert open_program(bounded, args, kwargs)[0].structure is Structure.SHARED
    assert open_program(bits_behind_bits, args, kwargs)[0].structure is Structure.GENERAL
    params = {"weights": case.typed()["weights"]}
    case = case._replace(model=bits_behind_bits)
    below, exact = (
        density(marginal(program), case, params) for program in (bounded, bits_behind_bits)
    )
    assert below < exact


def test_bound_wants_bits():
    with pytest.raises(ProgramError, match="'observed' is Normal"):
        trace_shapes(quadratic_bound(binary_sparse_coding), (jnp.ones((4, 3)),), {"num_causes": 2})
