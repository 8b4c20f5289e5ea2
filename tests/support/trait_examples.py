"""Tables and parameters for the tests of traits: bits, and columns of every kind, with holes."""

import jax.numpy as jnp
import numpy as np
from jax import random

NUM_DATA, NUM_FEATURES, NUM_FACTORS = 7, 5, 2
KINDS = ("real", "binary", 3, "binary", 4, "real")
KEY = random.key(0)


def bits_example(seed=0, num_data=NUM_DATA):
    """Asymmetric parameters, data with holes, and one row with nothing observed."""
    rng = np.random.default_rng(seed)
    params = {
        "weights": rng.normal(0.3, 1.2, (NUM_FACTORS, NUM_FEATURES)),
        "bias": rng.normal(-0.4, 0.8, NUM_FEATURES),
    }
    data = (rng.random((num_data, NUM_FEATURES)) < [0.2, 0.8, 0.5, 0.4, 0.7]).astype(float)
    mask = rng.random(data.shape) < 0.8
    mask[2] = False
    return params, np.where(mask, data, 0.0), mask


def mixed_example(num_data=60, seed=0):
    rng = np.random.default_rng(seed)
    num_predictors = 2 + 2 + 2 + 3
    params = {
        "weights": rng.normal(0.2, 1.0, (NUM_FACTORS, num_predictors)),
        "bias": rng.normal(0.1, 0.6, num_predictors),
        "noise": np.array([0.6, 1.3]),
    }
    data = np.zeros((num_data, len(KINDS)))
    for column, kind in enumerate(KINDS):
        if kind == "real":
            data[:, column] = rng.normal(0.5, 1.5, num_data)
        else:
            levels = 2 if kind == "binary" else kind
            data[:, column] = rng.integers(0, levels, num_data)
    mask = rng.random(data.shape) < 0.85
    mask[1] = False
    return params, np.where(mask, data, 0.0), mask


def simulated(num_data=300, num_features=8, seed=1):
    rng = np.random.default_rng(seed)
    weights = rng.normal(0.0, 1.5, (NUM_FACTORS, num_features))
    bias = rng.normal(0.2, 0.8, num_features)
    logits = rng.normal(size=(num_data, NUM_FACTORS)) @ weights + bias
    return (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def as_jax(params):
    return {name: jnp.asarray(value, float) for name, value in params.items()}
