"""Latent classes of polytomous items: the closed M-step under other names, against the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
from jax import random
from tools import close, in_double

from inference import EM

LEVELS = (3, 2, 3)
RNG = np.random.default_rng(0)
TABLE = RNG.integers(0, LEVELS, (40, 3))
SEEN = RNG.random(TABLE.shape) < 0.8
PARAMS = {
    "mixing": np.array([0.6, 0.4]),
    "probs_2": RNG.dirichlet(np.ones(2), (2, 1)),
    "probs_3": RNG.dirichlet(np.ones(3), (2, 2)),
}


def customers(table, seen):
    """The same program with a site for each column, and its probabilities by column."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(2, 3.0)))
    likes = [
        numpyro.sample(f"likes {i}", dist.Dirichlet(jnp.ones(k)).expand((2,)).to_event(1))
        for i, k in enumerate(LEVELS)
    ]
    with numpyro.plate("people", len(table)):
        kind = numpyro.sample("kind", dist.Categorical(share))
        for i, probs in enumerate(likes):
            fn = dist.Categorical(jnp.asarray(probs)[kind]).mask(seen[:, i])
            numpyro.sample(f"choice {i}", fn, obs=table[:, i])


@in_double
def test_a_step_of_a_copy_is_the_oracles():
    wanted, value = oracle.polytomous_em_step(PARAMS, TABLE, SEEN, levels=LEVELS)
    start = {
        "share": PARAMS["mixing"],
        "likes 0": PARAMS["probs_3"][:, 0],
        "likes 1": PARAMS["probs_2"][:, 0],
        "likes 2": PARAMS["probs_3"][:, 1],
    }
    em = EM(customers)
    state = em.init(random.key(0), TABLE, SEEN, init_params=start)
    state, loss = jax.jit(em.update)(state, TABLE, SEEN)
    params = em.get_params(state)
    close(loss, -value)
    # The M-step takes every class to have seen a millionth of a cell of each level.
    close(params["share"], wanted["mixing"])
    close(params["likes 1"], wanted["probs_2"][:, 0], 1e-6)
    close(params["likes 0"], wanted["probs_3"][:, 0], 1e-6)
    close(params["likes 2"], wanted["probs_3"][:, 1], 1e-6)
