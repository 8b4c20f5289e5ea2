"""A short run of EM on a small table, and whether two of them are the same; and a longer one.

    python tests/support/short_runs.py answer.json folder

is the longer one in a process of its own, which may be killed.
"""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import random
from tools import noisy_copies

from inference import EM, Search, Structure, TruncatedEM
from ppl_models import bernoulli_mixture, binary_sparse_coding

DATA = jnp.asarray(noisy_copies(0, 8, 5), jnp.float32)


def run(steps=40, data=DATA, method=None, **settings):
    method = method or EM(bernoulli_mixture, search=None)
    return method.run(random.key(1), steps, data, num_components=3, **settings)


def same(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    for site, value in one.params.items():
        np.testing.assert_array_equal(value, other.params[site])


def longer(folder=None):
    """Parameters and losses. The state holds a key, and something of each row, of two starts."""
    data = np.random.default_rng(1).normal(size=(100, 9)).astype(np.float32)
    em = TruncatedEM(
        binary_sparse_coding, parameter_noise={"weights": 0.01}, num_candidates=3,
        structure=Structure.SHARED, search=Search(num_lineages=2, screening=0, rounds=0),
    )  # fmt: skip
    saving = {"checkpoint": folder, "checkpoint_every": 0.0} if folder else {}
    result = em.run(random.key(0), 3000, data, num_causes=6, **saving)
    return [{x: np.asarray(v).tolist() for x, v in result.params.items()}, result.losses.tolist()]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(longer(sys.argv[2])))
