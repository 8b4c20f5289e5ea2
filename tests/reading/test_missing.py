"""Responses that `obs_mask` leaves out for some rows, and latents that it shows for some."""

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import density
from jax import random
from numpyro import handlers
from scipy import stats
from tools import near
from zoo_programs import ZOO

from inference import EM, marginal

Y, SEEN = np.array([-1.2, 0.4, 1.1, 0.3, -0.2]), np.array([1, 0, 1, 1, 0], bool)
COUNTS = np.array([0, 2, 1, 3, 0])
MU = np.array([0.4, 1.6])


def mixture(likelihood):
    def program(y, seen):
        mu = numpyro.sample("mu", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", likelihood(mu[z]), obs=y, obs_mask=seen)

    return program


@pytest.mark.parametrize(("program", "y", "prob"), [
    (mixture(lambda mu: dist.Normal(mu, 1.0)), Y, lambda y, mu: stats.norm.pdf(y, mu)),
    (mixture(dist.Poisson), COUNTS, lambda y, mu: stats.poisson.pmf(y, mu)),
])  # fmt: skip
def test_a_missing_response_drops_out(program, y, prob):
    """A number, and a count that has no largest: of rows without it nothing is left."""
    own = np.log(0.6 * prob(y, MU[0]) + 0.4 * prob(y, MU[1]))[SEEN].sum()
    params = {"mu": jnp.asarray(MU)}
    near(density(program, (y, SEEN), params), own + stats.gamma.logpdf(MU, 2.0).sum())
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        marginal(program)(y, SEEN)
    free = [x["name"] for x in trace.values() if x["type"] == "sample" and not x["is_observed"]]
    assert free == ["mu"]
    result = EM(program, search=None).run(random.key(0), 4, y, SEEN, init_params=params)
    near(-result.losses[0], own)
    assert (np.diff(result.losses) < 1e-5).all()


def test_latents_that_are_seen_in_some_rows():
    """Where b is seen it counts, where it is not it is summed: by hand, row by row."""
    program, (a, b, seen, c), *_ = ZOO["discrete_imputation"][1:]
    pa, pb, pc = 0.3, np.array([0.2, 0.7]), np.array([[0.1, 0.6], [0.4, 0.9]])
    total = 0.0
    for n, one in itertools.product(range(len(a)), [stats.bernoulli.pmf]):
        values = [b[n]] if seen[n] else [0, 1]
        row = sum(one(v, pb[a[n]]) * one(c[n], pc[a[n], v]) for v in values)
        total += np.log(one(a[n], pa) * row)
    params = {"pa": jnp.array(pa), "pb": jnp.asarray(pb), "pc": jnp.asarray(pc)}
    near(density(program, (a, b, seen, c), params), total)
    result = EM(program, search=None).run(random.key(0), 3, a, b, seen, c, init_params=params)
    near(-result.losses[0], total)
    assert (np.diff(result.losses) < 1e-5).all()
