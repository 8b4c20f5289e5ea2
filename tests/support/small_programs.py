"""Programs for the tests of the readings, each with the oracle's log joint and asymmetric numbers.

Four are the library's own. The others are what a user might write: other names, several latent
sites, other noise, causes that do not add up. Their log joints are loops, as the oracle's are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
from oracle.scalars import log_bernoulli, log_normal, weighted_sum

from inference import Structure
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    combination_machine,
    noisy_or_network,
)

NUM_DATA, NUM_FEATURES, NUM_CAUSES = 7, 5, 4


def max_of_causes(data, *, num_causes):
    """The strongest active cause wins, with Gaussian noise on top."""
    weights = numpyro.sample(
        "fields", dist.HalfNormal(5.0).expand((num_causes, data.shape[1])).to_event(2)
    )
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
    level = numpyro.sample("level", dist.HalfNormal(5.0))
    with numpyro.plate("data", len(data)):
        active = dist.Bernoulli(jnp.broadcast_to(rate, (num_causes,))).to_event(1)
        chosen = numpyro.sample("chosen", active)
        strongest = (chosen[..., None] * weights).max(-2)
        numpyro.sample("picture", dist.Normal(strongest, level).to_event(1), obs=data)


def log_joint_max_of_causes(sites, data, mask=None):
    del mask
    result = np.zeros(len(data))
    for n in range(len(data)):
        chosen = sites["chosen"][n]
        for h in range(len(chosen)):
            result[n] += log_bernoulli(chosen[h], float(sites["rate"]))
        for d in range(len(data[n])):
            strongest = max(chosen[h] * sites["fields"][h][d] for h in range(len(chosen)))
            result[n] += log_normal(data[n][d], strongest, float(sites["level"]))
    return result


def two_sites(table, *, first, second):
    """Two kinds of causes in one table of heavy-tailed noise, under names of their own."""
    columns = table.shape[1]
    loud = numpyro.sample("loud", dist.Normal(0.0, 3.0).expand((first, columns)).to_event(2))
    faint = numpyro.sample("faint", dist.Normal(0.0, 1.0).expand((second, columns)).to_event(2))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", len(table)):
        left = numpyro.sample("left", dist.Bernoulli(jnp.full(first, 0.2)).to_event(1))
        right = numpyro.sample("right", dist.Bernoulli(jnp.full(second, 0.6)).to_event(1))
        noise = dist.Laplace(left @ loud + right @ faint, scale)
        numpyro.sample("answer", noise.to_event(1), obs=table)


def log_joint_two_sites(sites, data, mask=None):
    del mask
    result = np.zeros(len(data))
    scale = float(sites["scale"])
    for n in range(len(data)):
        for bit in sites["left"][n]:
            result[n] += log_bernoulli(bit, 0.2)
        for bit in sites["right"][n]:
            result[n] += log_bernoulli(bit, 0.6)
        for d in range(len(data[n])):
            loud = weighted_sum(sites["left"][n], sites["loud"], d)
            mean = loud + weighted_sum(sites["right"][n], sites["faint"], d)
            result[n] -= math.log(2.0 * scale) + abs(data[n][d] - mean) / scale
    return result


def counts(data, *, num_causes):
    """Counts whose rates are multiplied by each active cause: log-linear Poisson."""
    gains = numpyro.sample(
        "gains", dist.Normal(0.0, 1.0).expand((num_causes, data.shape[1])).to_event(2)
    )
    base = numpyro.sample("base", dist.Normal(0.0, 1.0).expand((data.shape[1],)).to_event(1))
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("count", dist.Poisson(jnp.exp(on @ gains + base)).to_event(1), obs=data)


def log_joint_counts(sites, data, mask=None):
    del mask
    result = np.zeros(len(data))
    for n in range(len(data)):
        for bit in sites["on"][n]:
            result[n] += log_bernoulli(bit, 0.3)
        for d in range(len(data[n])):
            log_rate = sites["base"][d] + weighted_sum(sites["on"][n], sites["gains"], d)
            result[n] += data[n][d] * log_rate - math.exp(log_rate) - math.lgamma(data[n][d] + 1)
    return result


class Case(NamedTuple):
    """A program with numbers; ``latents`` holds the number of bits of each site, in its order."""

    model: Callable
    log_joint: Callable
    params: dict[str, np.ndarray]
    data: np.ndarray
    kwargs: dict[str, Any]
    latents: dict[str, int]
    structure: Structure
    mask: np.ndarray | None = None

    @property
    def arguments(self):
        """What the program is called with."""
        masked = {} if self.mask is None else {"mask": jnp.asarray(self.mask)}
        return (jnp.asarray(self.data),), {**masked, **self.kwargs}

    def typed(self):
        return {name: jnp.asarray(value, float) for name, value in self.params.items()}

    def table(self, params=None):
        """The oracle's (S, N) log joints, and the states as one (S, num_bits) array."""
        states = oracle.joint_states(**self.latents)
        table = oracle.log_joint_table(
            self.log_joint, params or self.params, states, self.data, self.mask
        )
        return table, np.concatenate(list(states.values()), axis=1)


def _numbers():
    rng = np.random.default_rng(7)
    real = rng.normal(0.5, 2.0, (NUM_DATA, NUM_FEATURES))
    bits = (rng.random((NUM_DATA, NUM_FEATURES)) < [0.2, 0.8, 0.5, 0.4, 0.7]).astype(float)
    whole = rng.poisson(2.0, (NUM_DATA, NUM_FEATURES)).astype(float)
    mask = rng.random((NUM_DATA, NUM_FEATURES)) < 0.7
    mask[:2] = True  # what a look at the first rows would take for no mask at all
    weights = rng.normal(0.3, 1.5, (NUM_CAUSES, NUM_FEATURES))
    coding = {"weights": weights, "noise": np.array(0.9), "sparsity": np.array(0.3)}
    return rng, real, bits, whole, mask, coding


def _cases():
    rng, real, bits, whole, mask, coding = _numbers()
    wide = (NUM_CAUSES, NUM_FEATURES)
    causes = {"num_causes": NUM_CAUSES}
    log_coding = oracle.log_joint_binary_sparse_coding
    return {
        "sparse_coding": Case(
            binary_sparse_coding, log_coding, coding, real, causes, {"causes": 4}, Structure.SHARED
        ),
        "sparse_coding_masked": Case(
            binary_sparse_coding, log_coding, coding, np.where(mask, real, 0.0), causes,
            {"causes": 4}, Structure.PER_DATUM, mask,
        ),
        "combination_machine": Case(
            combination_machine, oracle.log_joint_combination_machine,
            {"weights": rng.normal(0.1, 0.8, wide), "bias": rng.normal(-0.5, 0.8, NUM_CAUSES)},
            bits, causes, {"causes": 4}, Structure.LINEAR,
        ),
        "noisy_or": Case(
            noisy_or_network, oracle.log_joint_noisy_or_network,
            {
                "leak_0": rng.uniform(0.1, 0.8, NUM_FEATURES),
                "leak_1": rng.uniform(0.1, 0.8, NUM_CAUSES),
                "weights_1": rng.gamma(1.0, 1.0, wide),
            },
            bits, {"layers": (NUM_CAUSES,)}, {"layer_1": 4}, Structure.GENERAL,
        ),
        "max_of_causes": Case(
            max_of_causes, log_joint_max_of_causes,
            {"fields": rng.gamma(2.0, 1.0, wide), "rate": np.array(0.3), "level": np.array(0.8)},
            np.abs(real), causes, {"chosen": 4}, Structure.GENERAL,
        ),
        "two_sites": Case(
            two_sites, log_joint_two_sites,
            {
                "loud": rng.normal(0.0, 2.0, (1, NUM_FEATURES)),
                "faint": rng.normal(0.0, 1.0, (3, NUM_FEATURES)),
                "scale": np.array(0.7),
            },
            real, {"first": 1, "second": 3}, {"left": 1, "right": 3}, Structure.GENERAL,
        ),
        "counts": Case(
            counts, log_joint_counts,
            {"gains": rng.normal(0.3, 0.6, wide), "base": rng.normal(0.2, 0.3, NUM_FEATURES)},
            whole, causes, {"on": 4}, Structure.GENERAL,
        ),
    }  # fmt: skip


CASES = _cases()


def mixture_case():
    """Three components: the latent is a category, so it has a table and no bits."""
    rng, _, bits, _, _, _ = _numbers()
    bits[3, 1] = 0.0  # no column of ones, whose probability would be at its end
    params = {
        "mixing": rng.dirichlet(np.full(3, 3.0)),
        "probs": rng.uniform(0.1, 0.9, (3, NUM_FEATURES)),
    }
    return Case(
        bernoulli_mixture, oracle.log_joint_bernoulli_mixture, params, bits,
        {"num_components": 3}, {}, Structure.GENERAL,
    )  # fmt: skip
