"""Programs of the zoo: densities with latents summed out against sums over all of their states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every_state import density, every
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.primitives import Messenger
from tools import near
from zoo_programs import ZOO, with_counts

from inference.reading.tracing import is_masked


def values_of(fn, most):
    """The least value and the one after the last, of a site's distribution."""
    support = fn.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    low = int(np.min(getattr(support, "lower_bound", 0)))
    return range(low, 1 + int(np.max(getattr(support, "upper_bound", most or 1))))


class own_weight(Messenger):  # noqa: N801
    """A mask on a latent is not applied to it: its states sum to one, as docs/programs.md says."""

    def process_message(self, msg):
        if msg["type"] == "sample" and not msg["is_observed"] and is_masked(msg["fn"]):
            msg["fn"] = msg["fn"].base_dist


def split(entry):
    """Values of the continuous sites of a run, and shapes and values of the discrete latents."""
    latents = {}

    def run():
        with handlers.trace() as trace, handlers.seed(rng_seed=1):
            entry.program(*entry.args)
        free = [x for x in trace.values() if x["type"] == "sample" and not x["is_observed"]]
        for x in free:
            if x["fn"].support.is_discrete:
                latents[x["name"]] = jnp.shape(x["value"]), values_of(x["fn"], entry.most)
        return {x["name"]: x["value"] for x in free if x["name"] not in latents}

    return jax.jit(run)(), latents


TESTED = (
    "change_point", "cormack_jolly_seber", "dynamic_occupancy", "occupancy_long", "captures_long",
    "hurdle", "biopsies", "asia", "dina_long", "unigrams", "block_model",
)  # fmt: skip
"""One for each way to write a program."""


@pytest.mark.parametrize("name", TESTED)
def test_density(name):
    entry = ZOO[name]
    params, latents = split(entry)
    program = with_counts(entry)
    assert np.prod([float(len(x)) ** np.prod(shape) for shape, x in latents.values()]) < 1 << 13
    wanted = logsumexp(every(own_weight(program), entry.args, params, latents)[1])
    assert np.isfinite(wanted)
    near(density(program, entry.args, params), wanted)
