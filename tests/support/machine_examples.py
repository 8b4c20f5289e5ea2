"""Small combination machines, binary and real, with the oracle's functions of each."""

import jax
import numpy as np
import oracle
from jax import random

from ppl_models import (
    combination_machine,
    real_combination_machine,
)
from ppl_models.data import prototypes

UNITS, WIDTH, ROWS = 4, 5, 7
SIZES = {"num_causes": UNITS}


def numbers(seed=0, units=UNITS, width=WIDTH, scale=0.8):
    generator = np.random.default_rng(seed)
    weights = generator.normal(0.1, scale, (units, width))
    return weights, generator.normal(-0.5, 0.8, units)


def rows(kind="binary"):
    generator = np.random.default_rng(3)
    if kind == "real":
        return generator.normal(0.3, 1.2, (ROWS, WIDTH))
    return (generator.random((ROWS, WIDTH)) < [0.2, 0.8, 0.5, 0.4, 0.7]).astype(float)


def copied(**options):
    draw = jax.jit(lambda key: prototypes(key, num_features=8, **options).data)
    return np.asarray(draw(random.key(0)))


MACHINES = {
    "binary": (
        combination_machine,
        oracle.combination_log_evidence,
        oracle.combination_log_evidence_gradient,
    ),
    "real": (
        real_combination_machine,
        oracle.real_combination_log_evidence,
        oracle.real_combination_log_evidence_gradient,
    ),
}
