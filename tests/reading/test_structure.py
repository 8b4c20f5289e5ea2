"""The form of a program's log joint: found by trial, never by the look of the data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_programs import CASES
from tools import close, in_double

from inference import EM, Structure
from inference.reading.reader import open_program


@in_double
@pytest.mark.parametrize("name", CASES)
def test_structure_is_found(name):
    case = CASES[name]
    reader, _ = open_program(case.model, *case.arguments)
    assert reader.structure is case.structure


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_a_mask_that_rarely_changes_is_no_shared_form(kind):
    """One cell of one row in forty is missing; also where the mask is not of bools."""

    def program(data, seen, *, num_causes):
        weights = numpyro.sample(
            "weights", dist.Normal(0.0, 1.0).expand((num_causes, 3)).to_event(2)
        )
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            noise = dist.Normal(on @ weights, 1.0).mask(jnp.asarray(seen) > 0)
            numpyro.sample("observed", noise.to_event(1), obs=data)

    data = np.random.default_rng(0).normal(size=(40, 3))
    seen = np.ones((40, 3), kind)
    seen[7, 1] = 0
    reader, _ = open_program(program, (data, seen), {"num_causes": 2})
    assert reader.structure is Structure.PER_DATUM


def test_a_narrow_prior_does_not_make_a_program_quadratic():
    """Where all weights are tiny, any smooth function looks quadratic; elsewhere it is not."""

    def logistic(data, *, num_causes):
        narrow = dist.Normal(0.0, 0.01).expand((num_causes, data.shape[1]))
        weights = numpyro.sample("weights", narrow.to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("bit", dist.Bernoulli(logits=on @ weights).to_event(1), obs=data)

    reader, _ = open_program(logistic, (jnp.ones((6, 3)),), {"num_causes": 2})
    assert reader.structure is Structure.GENERAL


def test_a_program_that_indexes_is_general():
    def lookup(data, *, num_causes):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Normal(level[on], 1.0).to_event(1), obs=data)

    data = np.random.default_rng(1).normal(size=(6, 2))
    reader, _ = open_program(lookup, (data,), {"num_causes": 2})
    assert reader.structure is Structure.GENERAL


def test_a_form_is_not_remembered_for_other_options():
    """A flag that changes the program is no array, but it changes the form."""

    def program(data, *, heavy):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((2, 3)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(2, 0.3)).to_event(1))
            noise = dist.Cauchy if heavy else dist.Normal
            numpyro.sample("observed", noise(on @ weights, 1.0).to_event(1), obs=data)

    method, data = EM(program), jnp.asarray(np.random.default_rng(2).normal(size=(6, 3)))
    assert method.open((data,), {"heavy": False})[0].structure is Structure.SHARED
    assert method.open((data,), {"heavy": True})[0].structure is Structure.GENERAL


@in_double
def test_an_argument_as_long_as_a_chunk_is_no_row():
    """Rows are told by the length of the data, not by that of a chunk."""

    def program(data, gain):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((3, 4)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(3, 0.3)).to_event(1))
            mean = (on * gain) @ weights
            numpyro.sample("observed", dist.Normal(mean, 1.0).to_event(1), obs=data)

    rng = np.random.default_rng(4)
    data, gain = jnp.asarray(rng.normal(size=(7, 4))), jnp.array([1.0, 2.0, 0.5])
    params = {"weights": jnp.asarray(rng.normal(size=(3, 4)))}
    whole, chunked = (
        EM(program, chunk_size=size, structure=Structure.SHARED)
        .posterior(params, data, gain)
        .evidence
        for size in (None, 3)
    )
    close(chunked, whole)
