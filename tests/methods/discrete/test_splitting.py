"""Splitting EM, on a mixture of Bernoulli products under names of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from inference import ProgramError, SplittingEM
from ppl_models import latent_trait
from ppl_models.data import prototypes


def classes(answers, *, groups):
    """A copy of `bernoulli_mixture`: latent classes."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(groups)))
    yes = numpyro.sample("yes", dist.Beta(1.0, 1.0).expand([answers.shape[1], groups]).to_event(2))
    with numpyro.plate("people", len(answers)):
        group = numpyro.sample("group", dist.Categorical(share))
        probability = jnp.moveaxis(yes, -1, 0)[group]
        numpyro.sample("answered", dist.Bernoulli(probability).to_event(1), obs=answers)


def test_components_double_until_there_are_enough():
    """1 → 2 → 4 → 6: of the four the first two split; EM goes down in between."""
    data = prototypes(random.key(1), copies=30, num_features=8, flip=0.15).data
    method = SplittingEM(classes, steps_per_size=4)
    assert method.num_steps(6) == 16 and SplittingEM(classes).num_steps(45) == 140

    @jax.jit
    def run(key):
        def step(state, _):
            state, loss = method.update(state, data, groups=6)
            params = method.get_params(state)
            return state, (loss, params["share"], params["yes"].T)

        return jax.lax.scan(step, method.init(key, data, groups=6), None, length=16)[1]

    losses, mixing, probs = jax.device_get(run(random.key(2)))
    different = [len(np.unique(p.round(6), axis=0)) for p in probs]
    assert different == [1] * 4 + [2] * 4 + [4] * 4 + [6] * 4
    np.testing.assert_allclose(mixing.sum(1), 1.0, rtol=1e-5)
    for begin in (0, 4, 8, 12):
        assert (np.diff(losses[begin : begin + 4]) <= 1e-3).all()
    assert losses[-1] < losses[0]
    # At four components the first two have two places each: together they weigh what one does.
    early = {tuple(p.round(6)): 0.0 for p in probs[9]}
    for weight, p in zip(mixing[9], probs[9], strict=True):
        early[tuple(p.round(6))] += weight
    assert len(early) == 4
    with pytest.raises(ValueError, match="starts from one component"):
        method.init(random.key(0), data, init_params={}, groups=6)
    with pytest.raises(ProgramError, match="one categorical latent"):
        SplittingEM(latent_trait).init(random.key(0), data, num_factors=1)
