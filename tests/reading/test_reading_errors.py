"""Readings refuse a program that they cannot handle, and say what to change."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from inference import AtMost, Given, ProgramError, inspect, marginal, states
from inference.reading.tracing import trace_shapes
from ppl_models import binary_sparse_coding


def late_latent(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        numpyro.sample("first", dist.Normal(on, 1.0), obs=data[:, 0])
        late = numpyro.sample("late", dist.Bernoulli(0.3))
        numpyro.sample("second", dist.Normal(late, 1.0), obs=data[:, 1])


def hanging(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        level = numpyro.sample("level", dist.Normal(on, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=data[:, 0])


def two_plates_of_factors(data):
    with numpyro.plate("items", data.shape[1]):
        ease = numpyro.sample("ease", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", len(data)):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        logits = level[..., None] + ease
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=data)


def test_the_plate_of_the_data_is_asked_for_where_nothing_discrete_shows_it():
    with pytest.raises(ProgramError, match=r"\['items', 'people'\]: say which one holds the data"):
        inspect(two_plates_of_factors, (jnp.zeros((4, 2)),))
    anatomy = inspect(two_plates_of_factors, (jnp.zeros((4, 2)),), plate="people")
    assert anatomy.names == ("level",) and anatomy.parameters == ("ease",)


def nothing_discrete(data):
    with numpyro.plate("data", len(data)):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=data[:, 0])


def many_bits(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(40, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1), 1.0), obs=data[:, 0])


def plate_around(data):
    with numpyro.plate("groups", 2, dim=-2), numpyro.plate("data", len(data), dim=-1):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(on, 1.0), obs=jnp.stack([data[:, 0], data[:, 1]]))


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (
            late_latent,
            {"states": AtMost(1)},
            "'first' comes before the latents|'late' is sampled after an observed",
        ),
        (hanging, {"states": AtMost(1)}, "'level' hangs on sites that are summed out"),
        (nothing_discrete, {}, "no discrete latent site"),
        (nothing_discrete, {"sites": ["level"]}, "'level' is not discrete"),
        (many_bits, {}, "treewidth 39"),
        (many_bits, {"sites": ["off"]}, "no site 'off' in the program"),
        (many_bits, {"sites": ["y"]}, "'y' is not an unobserved sample site"),
        (many_bits, {"plate": "rows"}, "no plate 'rows' in the program"),
        (many_bits, {"states": Given([[0, 1]])}, "the given states have 2 values each"),
        (plate_around, {"states": AtMost(1)}, "do not lie in one data plate"),
    ],
)
def test_marginal_errors(program, options, message):
    with pytest.raises(ProgramError, match=message):
        trace_shapes(marginal(program, **options), (jnp.ones((3, 2)),), {})


def test_states_error():
    program = states(binary_sparse_coding, {"observed": jnp.zeros((2, 1, 3))})
    with pytest.raises(ProgramError, match="'observed' is observed"):
        trace_shapes(program, (jnp.ones((4, 3)),), {"num_causes": 2})


def test_marginal_is_no_context():
    with (
        pytest.raises(ProgramError, match="not as a context manager"),
        marginal(binary_sparse_coding),
        handlers.seed(rng_seed=0),
    ):
        binary_sparse_coding(jnp.ones((4, 3)), num_causes=2)
