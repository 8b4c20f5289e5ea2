"""Vectors of latents that interact sparsely: sums by elimination against every state."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer.util import log_density
from tools import fast_jit, near

from inference import TruncatedEM, latent_posterior, marginal
from inference.reading.elimination import Elements
from inference.reading.strategy import find_elimination

RNG = np.random.default_rng(2)
NUM_BITS = 6
SEEN = RNG.normal(size=(3, NUM_BITS))
COUPLING = 0.8


def ising(seen, coupling=None):
    """A chain of spins as one vector, in noise."""
    if coupling is None:
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(seen)):
        on = dist.Bernoulli(0.3 * jnp.ones(seen.shape[1])).to_event(1)
        spin = 2.0 * numpyro.sample("spin", on) - 1.0
        numpyro.factor("pairs", coupling * (spin[..., 1:] * spin[..., :-1]).sum(-1))
        numpyro.sample("seen", dist.Normal(spin, 1.5).to_event(1), obs=seen)


def every_state(coupling):
    states = (np.arange(2**NUM_BITS)[:, None] >> np.arange(NUM_BITS)[::-1]) & 1
    spin = 2 * states - 1
    logs = np.log(np.where(states, 0.3, 0.7)).sum(1)
    logs = logs + coupling * (spin[:, 1:] * spin[:, :-1]).sum(1)
    far = ((SEEN[:, None] - spin) / 1.5) ** 2
    return states, logs - 0.5 * far.sum(-1) - NUM_BITS * np.log(1.5 * np.sqrt(2 * np.pi))


def log_evidence(coupling):
    logs = every_state(coupling)[1]
    return (logs.max(1) + np.log(np.exp(logs - logs.max(1, keepdims=True)).sum(1))).sum()


def test_a_chain_of_spins_written_as_one_vector(monkeypatch):
    """Value, slope, probabilities and the most probable state are those of all states."""
    monkeypatch.setattr("inference.reading.strategy.MANY_STATES", 8)
    runs, width = 4 * (NUM_BITS - 1) + 2, 2 * NUM_BITS
    two_rows = 2 * runs * width
    monkeypatch.setattr("inference.rows.chunks.chunk_floats", lambda: two_rows)
    seen = jnp.asarray(SEEN)
    way = find_elimination(ising, (seen,), {})
    assert isinstance(way, Elements) and way.treewidth == 1
    assert way.num_runs == runs
    compute = lambda c: log_density(marginal(ising), (seen,), {}, {"coupling": c})[0]  # noqa: E731
    value, slope = fast_jit(jax.value_and_grad(compute))(COUPLING)
    prior = -0.5 * COUPLING**2 - 0.5 * np.log(2 * np.pi)
    near(value, log_evidence(COUPLING) + prior)
    both = [log_evidence(COUPLING + step) for step in (-1e-3, 1e-3)]
    near(slope, (both[1] - both[0]) / 2e-3 - COUPLING, 1e-3)

    many = 400
    samples = {"coupling": jnp.full(many, COUPLING)}
    posterior = latent_posterior(random.key(0), marginal(ising), samples, seen)
    states, logs = every_state(COUPLING)
    weight = np.exp(logs - logs.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = weight @ states
    near(posterior.probabilities["spin"][0, ..., 1], mean, 1e-4)
    np.testing.assert_array_equal(posterior.best["spin"][0], states[weight.argmax(1)])
    assert posterior.draws["spin"].shape == (many, 3, NUM_BITS)
    assert np.abs(posterior.draws["spin"].mean(0) - mean).max() < 5 * 0.5 / np.sqrt(many)


@pytest.mark.parametrize("limit", ["strategy.MANY_STATES", "strategy.WORTH_A_TEST"])
def test_a_program_that_uses_a_value_of_an_outer_trace(limit, monkeypatch):
    """Its form cannot be tested, and all its states are summed."""
    monkeypatch.setattr(f"inference.reading.{limit}", 1)
    seen = jnp.asarray(SEEN)

    def compute(coupling):
        program = lambda seen: ising(seen, coupling)  # noqa: E731
        return log_density(marginal(program), (seen,), {}, {})[0]

    for transformed in (jax.jit(compute), lambda c: jax.value_and_grad(compute)(c)[0]):
        near(transformed(COUPLING), log_evidence(COUPLING))


def test_a_method_that_must_test_such_a_program_says_so():
    method = lambda c: TruncatedEM(lambda seen: ising(seen, c), max_active=2, num_candidates=3)  # noqa: E731
    with pytest.raises(ValueError, match="values of an outer jit, grad or vmap"):
        jax.jit(lambda c: method(c).init(random.key(0), jnp.asarray(SEEN)))(COUPLING)
