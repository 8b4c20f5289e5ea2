"""A plate that draws its rows is read on all of them by a method that deals with rows itself."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

from inference import EM, Search, StepwiseEM, Structure
from inference.reading.reader import open_program


def mixture(data, size=None):
    mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.ones(2)))
    probs = numpyro.sample("probs", dist.Beta(1.0, 1.0).expand([2, 3]).to_event(2))
    with numpyro.plate("data", len(data), subsample_size=size) as rows:
        kind = numpyro.sample("kind", dist.Categorical(mixing))
        numpyro.sample("seen", dist.Bernoulli(probs[kind]).to_event(1), obs=data[rows])


def test_all_rows_are_read():
    """As of the same program without `subsample_size`; and a step of stepwise EM takes its own."""
    data = jnp.asarray(np.random.default_rng(0).integers(0, 2, (40, 3)))
    params = {
        "mixing": jnp.array([0.3, 0.7]),
        "probs": jnp.array([[0.2, 0.9, 0.4], [0.6, 0.1, 0.5]]),
    }
    table = jnp.array([[[0]], [[1]]])
    readings = []
    for size in (None, 5):
        arguments = ((data,), {"size": size})
        reader, rows = open_program(mixture, *arguments, structure=Structure.GENERAL)
        assert rows.num_data == reader.anatomy.num_data == 40
        run = jax.jit(lambda p, r=reader, a=arguments: r.log_joint(p, table, a))
        readings.append(np.asarray(run(params)))
    np.testing.assert_array_equal(*readings)
    losses = []
    for method, size in ((EM, None), (StepwiseEM, 5)):
        # All rows in one batch: the first loss is that of EM on the program without its draws.
        em = method(mixture, **({} if method is EM else {"batch_size": 40}))
        state = em.init(random.key(0), data, init_params=params, size=size)
        losses.append(float(jax.jit(lambda s, e=em, n=size: e.update(s, data, size=n)[1])(state)))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def pair(data, size=None):
    means = numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("data", len(data), subsample_size=size) as rows:
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        numpyro.sample("seen", dist.Normal(means[kind], 1), obs=data[rows])  # a whole number


def test_a_search_over_starts_reads_all_rows_too():
    data = jnp.asarray(np.random.default_rng(0).normal(size=30))
    em = EM(pair, search=Search(num_lineages=2, screening=0, rounds=0, least_steps=1))
    losses = [em.run(random.key(0), 2, data, size=size).losses for size in (None, 5)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
