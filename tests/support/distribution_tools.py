"""Parameters, compiled calls and tolerances of the tests of distributions.

``IDENTITY`` is for what is equal but for rounding in double precision, ``LOG_DENSITY`` for single
precision; Monte Carlo bounds have their reason beside them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

IDENTITY = 1e-10
LOG_DENSITY = 2e-5
# A correct sampler exceeds a bound at this level once in a million keys.
RARE = 1e-6


# Compiled whole: many times faster than one operation after another, and what users do.
log_prob_of = jax.jit(lambda fn, value: fn.log_prob(value))
moments_of = jax.jit(lambda fn: (fn.mean, fn.variance))
sample_from = jax.jit(lambda fn, key, shape: fn.sample(key, shape), static_argnums=2)


def machine(num_causes, num_features, scale=1.0, seed=3):
    """Parameters without any symmetry."""
    rng = np.random.default_rng(seed)
    weights = scale * rng.normal(0.2, 1.0, (num_causes, num_features))
    return weights, rng.normal(-1.0, 1.5, num_causes)


def batched_machine():
    weights, bias = machine(3, 2)
    return jnp.array([weights, 0.5 * weights]), jnp.asarray(bias)
