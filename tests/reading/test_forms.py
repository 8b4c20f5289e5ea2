"""Which form `marginal` takes, and that value and slopes are those of the program on its states."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.infer.util import log_density
from tools import close

from inference import AllStates, AtMost, Given, Structure, inspect, marginal
from inference.reading import marginal as marginal_module
from inference.reading import state_sums, strategy
from inference.reading.handlers import table_of
from inference.reading.log_joint import log_joint
from inference.reading.strategy import make_plan
from ppl_models import binary_sparse_coding, combination_machine, noisy_or_network

ROWS, COLUMNS, BITS = 7, 24, 4


def shifted(data, shift, *, num_causes):
    """Rows have means of their own, and two observed sites each."""
    weights = numpyro.sample(
        "weights", dist.Normal(0.0, 1.0).expand((num_causes, data.shape[1])).to_event(2)
    )
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        rates = jnp.broadcast_to(rate, (num_causes,))
        on = numpyro.sample("on", dist.Bernoulli(rates).to_event(1))
        mean = on @ weights + jnp.asarray(shift)[:, None]
        numpyro.sample("first", dist.Laplace(mean[..., :20], 1.0).to_event(1), obs=data[:, :20])
        numpyro.sample("second", dist.Normal(mean[..., 20:], 1.0).to_event(1), obs=data[:, 20:])


class Example(NamedTuple):
    """A program, what it is given, its parameters, and the form that is to be found."""

    model: Any
    arguments: tuple
    params: dict
    states: Any
    structure: Structure | None
    form: str


def examples():
    rng = np.random.default_rng(3)
    real = rng.normal(0.5, 2.0, (ROWS, COLUMNS))
    bits = (rng.random((ROWS, COLUMNS)) < 0.4).astype(float)
    mask = rng.random((ROWS, COLUMNS)) < 0.8
    weights = rng.normal(0.3, 0.7, (BITS, COLUMNS))
    coding = {"weights": weights, "noise": 0.9, "sparsity": 0.3}
    machine = {"weights": 0.3 * weights, "bias": rng.normal(-0.5, 0.8, BITS)}
    network = {
        "leak_0": rng.uniform(0.1, 0.8, COLUMNS),
        "leak_1": rng.uniform(0.1, 0.8, BITS),
        "leak_2": rng.uniform(0.1, 0.8, 3),
        "weights_1": rng.gamma(1.0, 1.0, (BITS, COLUMNS)),
        "weights_2": rng.gamma(1.0, 1.0, (3, BITS)),
    }
    causes = {"num_causes": BITS}
    every = np.array(list(itertools.product([0, 1], repeat=BITS)))
    own = np.stack([np.roll(every, n, axis=0)[:12] for n in range(ROWS)], axis=1)
    lone = {
        "weights_1": network["weights_1"],
        "leak_0": network["leak_0"],
        "leak_1": network["leak_1"],
    }
    return {
        "quadratic": Example(
            binary_sparse_coding, ((real,), causes), coding, AllStates(), Structure.SHARED, "bits"
        ),
        "quadratic, truncated": Example(
            binary_sparse_coding, ((real,), causes), coding, AtMost(3), Structure.SHARED, "bits"
        ),
        "quadratic, states by row": Example(
            binary_sparse_coding, ((real,), causes), coding, Given(own), Structure.SHARED, "bits"
        ),
        "quadratic by row": Example(
            binary_sparse_coding, ((real,), {**causes, "mask": mask}), coding, AllStates(),
            Structure.PER_DATUM, "bits",
        ),
        "linear": Example(
            combination_machine, ((bits,), causes), machine, AllStates(), None, "bits"
        ),
        "linear, truncated": Example(
            combination_machine, ((bits,), causes), machine, AtMost(3), Structure.LINEAR, "bits"
        ),
        "layers": Example(
            noisy_or_network, ((bits,), {"layers": (BITS, 3), "mask": mask}), network, AllStates(),
            None, "layers",
        ),
        "rows that differ": Example(
            shifted, ((real, rng.normal(size=ROWS)), causes), {"weights": weights, "rate": 0.3},
            AllStates(), None, "by chunk",
        ),
        "states by row": Example(
            noisy_or_network, ((bits,), {"layers": (BITS,)}), lone, Given(own), None, "by chunk"
        ),
    }  # fmt: skip


# Other sets of states are sums over the same forms.
ROUNDED = "quadratic", "quadratic by row", "linear", "layers"


@pytest.fixture
def two_rows(monkeypatch):
    """Chunks of two rows, and no test of a form too expensive."""
    for module in (state_sums, marginal_module, strategy):
        monkeypatch.setattr(module, "product_floats", lambda: 1200)
    monkeypatch.setattr(strategy, "WORTH_A_TEST", -np.inf)


@pytest.mark.usefixtures("two_rows")
@pytest.mark.parametrize(
    ("name", "digits"),
    [pytest.param(name, 1e-10, id=f"{name}-double") for name in examples()]
    + [pytest.param(name, 1e-5, id=f"{name}-single") for name in ROUNDED],
)
def test_forms_are_the_program_on_its_states(name, digits, request):
    """Value by row, and slopes relative to the largest of a site."""
    if digits < 1e-6:
        request.getfixturevalue("double")
    example = examples()[name]
    args, kwargs = example.arguments
    anatomy = inspect(example.model, args, kwargs)
    chosen_plan = make_plan(
        example.model, anatomy, True, example.states, example.structure, args, kwargs
    )
    assert (chosen_plan.bits is not None) == (example.form == "bits")
    assert (len(chosen_plan.layers) > 1) == (example.form == "layers")
    assert (chosen_plan.by_chunk is not None) == (example.form == "by chunk")
    table = table_of(anatomy, example.states)

    def fast(params):
        program = marginal(example.model, example.states, structure=example.structure)
        _, trace = log_density(program, args, kwargs, params)
        return sum(trace[x]["fn"].log_prob(trace[x]["value"]) for x in anatomy.observed)

    def slow(params):
        return logsumexp(log_joint(example.model, anatomy, params, table, (args, kwargs)), axis=0)

    @jax.jit
    def both(params):
        (value, pull), (wanted, pull_slowly) = jax.vjp(fast, params), jax.vjp(slow, params)
        return value, wanted, pull(jnp.ones(ROWS))[0], pull_slowly(jnp.ones(ROWS))[0]

    value, wanted, slopes, by_states = both(jax.tree.map(jnp.asarray, example.params))
    close(value, wanted, digits)
    for site in slopes:
        close(slopes[site], by_states[site], digits)
