"""A short run of EM on a small table, and whether two of them are the same."""

import jax.numpy as jnp
import numpy as np
from jax import random
from tools import noisy_copies

from inference import EM
from ppl_models import bernoulli_mixture

DATA = jnp.asarray(noisy_copies(0, 8, 5), jnp.float32)


def run(steps=40, data=DATA, method=None, **settings):
    method = method or EM(bernoulli_mixture, search=None)
    return method.run(random.key(1), steps, data, num_components=3, **settings)


def same(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    for site, value in one.params.items():
        np.testing.assert_array_equal(value, other.params[site])
