"""Vectors of latents that interact sparsely: sums by elimination against every state."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import check, every
from jax import random
from jax.scipy.special import logsumexp
from numpyro.infer.util import log_density
from tools import near

from inference import TruncatedEM, marginal
from inference.reading.elimination import Elements
from inference.reading.strategy import find_elimination

RNG = np.random.default_rng(2)
NUM_BITS = 5
SEEN = jnp.asarray(RNG.normal(size=(3, NUM_BITS)))
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


def test_a_chain_of_spins_written_as_one_vector(monkeypatch):
    """Value, slope, probabilities, draws and the most probable state, in chunks of two rows."""
    monkeypatch.setattr("inference.reading.strategy.MANY_STATES", 8)
    runs, width = 4 * (NUM_BITS - 1) + 2, 2 * NUM_BITS
    monkeypatch.setattr("inference.rows.chunks.chunk_floats", lambda: 2 * runs * width)
    way = find_elimination(ising, (SEEN,), {})
    assert isinstance(way, Elements) and way.treewidth == 1 and way.num_runs == runs
    params = {"coupling": jnp.array(COUPLING)}
    check(ising, (SEEN,), params, {"spin": ((3, NUM_BITS), 2)}, draws=400, slopes=True)


@pytest.mark.parametrize("limit", ["strategy.MANY_STATES", "strategy.WORTH_A_TEST"])
def test_a_program_that_uses_a_value_of_an_outer_trace(limit, monkeypatch):
    """Its form cannot be tested, and all its states are summed."""
    monkeypatch.setattr(f"inference.reading.{limit}", 1)

    def compute(coupling):
        program = lambda seen: ising(seen, coupling)  # noqa: E731
        return log_density(marginal(program), (SEEN,), {}, {})[0]

    params = {"coupling": jnp.array(COUPLING)}
    wanted = logsumexp(every(ising, (SEEN,), params, {"spin": ((3, NUM_BITS), 2)})[1])
    wanted -= dist.Normal(0.0, 1.0).log_prob(COUPLING)
    for transformed in (jax.jit(compute), lambda c: jax.value_and_grad(compute)(c)[0]):
        near(transformed(COUPLING), wanted)


def test_a_method_that_must_test_such_a_program_says_so():
    method = lambda c: TruncatedEM(lambda seen: ising(seen, c), max_active=2, num_candidates=3)  # noqa: E731
    with pytest.raises(ValueError, match="values of an outer jit, grad or vmap"):
        jax.jit(lambda c: method(c).init(random.key(0), SEEN))(COUPLING)
