"""Gibbs sampling of categories, shared latents and plates that cross, against all states."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import condition
from numpyro.infer.util import log_density
from tools import sample

from inference import LatentGibbs, ProgramError
from inference.evaluation.diagnostics import mcse

PARAMS = {"level": jnp.array(0.9)}


def crossed(data):
    """Kinds of rows and bits of columns that meet in every cell, and one bit that all share."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    shared = numpyro.sample("shared", dist.Bernoulli(0.3))
    with numpyro.plate("rows", 2, dim=-2):
        row = numpyro.sample("row", dist.Categorical(jnp.array([[0.2, 0.5, 0.3]])))
    with numpyro.plate("columns", 3, dim=-1):
        column = numpyro.sample("column", dist.Bernoulli(jnp.array([0.4, 0.7])[shared]))
    with numpyro.plate("rows", 2, dim=-2), numpyro.plate("columns", 3, dim=-1):
        numpyro.sample("data", dist.Normal(level * row * column - shared, 1.0), obs=data)


def test_every_latent_follows_its_posterior():
    """Means of indicators within five standard errors of those of all 2 · 3² · 2³ states."""
    data = jnp.array([[1.8, 0.1, -0.5], [0.6, 1.1, 0.2]])
    states = np.array(list(itertools.product((0, 1), range(3), range(3), *((0, 1),) * 3)))
    values = {
        "shared": states[:, 0],
        "row": states[:, 1:3].reshape(-1, 2, 1),
        "column": states[:, 3:],
    }
    one = lambda v: log_density(crossed, (data,), {}, {**PARAMS, **v})[0]  # noqa: E731
    logs = np.asarray(jax.jit(jax.vmap(one))(values), float)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    kernel = LatentGibbs(condition(crossed, data=PARAMS))
    draws, _ = sample(kernel, 50, 800, data, num_chains=4)
    for name, count in (("shared", 2), ("row", 3), ("column", 2)):
        for value in range(1, count):
            drawn = (draws[name] == value).reshape(4, 800, -1).astype(float)
            wanted = np.tensordot(weight, values[name] == value, 1).reshape(-1)
            assert (np.abs(drawn.mean((0, 1)) - wanted) < 5 * mcse(drawn) + 1e-6).all(), name


def test_indicators_of_a_spike_and_slab():
    """What `HMCGibbs` calls between two steps of NUTS: bits given their coefficients."""

    def program(design, response):
        on = numpyro.sample("on", dist.Bernoulli(jnp.array([0.3, 0.6])).to_event(1))
        effect = numpyro.sample(
            "effect", dist.Normal(0.0, jnp.where(on == 1, 2.0, 0.2)).to_event(1)
        )
        with numpyro.plate("rows", len(response)):
            numpyro.sample("response", dist.Normal(design @ effect, 1.0), obs=response)

    design, response = jnp.ones((4, 2)), jnp.zeros(4)
    effect = jnp.array([0.4, 0.1])
    update = LatentGibbs(program).gibbs_fn(design, response)
    start = {"on": jnp.array([1, 0])}
    keys = random.split(random.key(0), 4000)
    draws = jax.jit(jax.vmap(lambda key: update(key, start, {"effect": effect})["on"]))(keys)
    wide, narrow = (np.exp(dist.Normal(0.0, scale).log_prob(effect)) for scale in (2.0, 0.2))
    prior = np.array([0.3, 0.6])
    wanted = prior * wide / (prior * wide + (1 - prior) * narrow)
    assert np.abs(draws.mean(0) - wanted).max() < 5 * 0.5 / np.sqrt(4000)
    with pytest.raises(ProgramError, match="are not the bits of rows"):
        LatentGibbs(program).settle(random.key(0), {"effect": effect}, design, response)
