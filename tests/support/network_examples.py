"""Lines as rows, and the exact evidence of a noisy-OR network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from inference import Structure, inspect
from inference.reading.marginal import row_evidence
from ppl_models import noisy_or_network
from ppl_models.data import lines


@functools.cache
def line_data():
    return np.asarray(jax.jit(lambda key: lines(key, 200).data)(random.key(0)))


def exact_evidence(params, data, **kwargs):
    anatomy = inspect(noisy_or_network, (data,), kwargs)
    given = ((data,), kwargs)
    return row_evidence(noisy_or_network, anatomy, params, given, Structure.GENERAL)


def typed(params):
    return {name: jnp.asarray(value, float) for name, value in params.items()}
