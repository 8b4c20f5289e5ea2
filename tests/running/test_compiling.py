"""What was compiled once is not compiled again, on other data of nearly the same shapes."""

import gc
import weakref
from functools import partial
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from tools import close

from inference import (
    EM,
    log_likelihood,
    standard_errors,
)
from inference.compiling import MOST_KEPT, NoValueError, known, remembered, value_of
from inference.reading.anatomy import inspect
from inference.rows.padding import size_class
from inference.running.algorithm import pad
from inference.running.search import Lineages, Search
from ppl_models import (
    bernoulli_mixture,
    latent_trait,
)

TRAIT = {"weights": np.full((1, 6), 1.5, np.float32), "bias": np.zeros(6, np.float32)}
MIXTURE = {"num_components": 2}


def traits(num_rows, seed=0):
    """Rows of the program itself, at whose parameters the information is positive."""
    generator = np.random.default_rng(seed)
    probability = 1 / (1 + np.exp(-1.5 * generator.normal(size=(num_rows, 1))))
    return jnp.asarray(generator.random((num_rows, 6)) < probability, float)


CALLS = {
    "log_likelihood": lambda data: (
        log_likelihood(latent_trait, TRAIT, data, num_factors=1, num_nodes=7).value
    ),
    "standard_errors": lambda data: standard_errors(
        latent_trait, TRAIT, data, num_factors=1, num_nodes=7
    )["bias"],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_on_other_data_compiles_nothing(name, compilations):
    # Of 287 rows and 300 what is compiled is for 300.
    first, second = traits(287), traits(300, seed=1)
    before = CALLS[name](first)
    assert compilations
    compilations.clear()
    after = CALLS[name](second)
    assert not compilations
    assert np.isfinite(after).all() and not np.array_equal(before, after)


def test_a_fit_of_another_table_within_another_budget_compiles_nothing(compilations):
    losses = []
    for seed, budget in ((0, 50.0), (1, 40.0)):
        compilations.clear()
        data = np.asarray(traits(60, seed), np.int8)
        result = EM(bernoulli_mixture).run(
            random.key(0), 20, data, budget=budget, progress_bar=False, **MIXTURE
        )
        losses.append(float(result.losses[-1]))
    assert not compilations and losses[0] != losses[1]


def test_a_start_follows_its_key_and_data_are_checked_before_it():
    method, keys = EM(bernoulli_mixture), [random.key(k) for k in (0, 0, 1)]
    data = np.array(traits(30))
    first, again, other = (method.init(key, data, **MIXTURE).params for key in keys)
    data[3, 2] = 2
    with pytest.raises(ValueError, match=r"2.0 at index \(3, 2\), outside its support: 0 and 1"):
        method.init(keys[0], data, **MIXTURE)
    assert np.array_equal(first["probs"], again["probs"])
    assert not np.isclose(first["probs"], other["probs"]).any()
    close(first["mixing"].sum(), 1.0)
    assert first["probs"].shape == (2, 6) and (np.abs(first["probs"] - 0.5) < 0.5).all()


RATE = 1.0


def test_functions_are_one_if_their_code_and_all_that_it_reads_are(monkeypatch):
    def model(scale):
        return lambda x: RATE * scale * x

    assert value_of(model(2.0)) == value_of(model(2.0)) != value_of(model(3.0))
    before = value_of(model(2.0))
    monkeypatch.setitem(globals(), "RATE", 3.0)  # as a notebook that is run again does
    assert value_of(model(2.0)) != before
    first, second = (EM(partial(bernoulli_mixture, num_components=k)) for k in (2, 3))
    assert value_of(first) != value_of(second) != value_of(EM(bernoulli_mixture))
    with pytest.raises(NoValueError):
        value_of(lambda: rows)  # too large to be held: it is compiled anew
    np.testing.assert_array_equal(remembered(lambda: rows.sum())(), rows.sum())


rows = np.ones((600, 600), np.float32)


def test_what_is_kept_is_bounded_and_holds_no_rows():
    class Held:
        pass

    def find(held):
        return lambda: held and object()

    finding = find(Held())
    gone = weakref.ref(finding.__closure__[0].cell_contents)
    first = known(finding, "kept", 0)
    assert known(object, "kept", 0) is first
    del finding
    gc.collect()
    assert gone() is None
    for n in range(MOST_KEPT):
        known(object, "others", n)
    assert known(object, "kept", 0) is not first


def test_sizes_are_few_and_close():
    sizes = [size_class(n) for n in range(1, 20_000)]
    assert all(n <= size < 1.1 * n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes) and all(size_class(size) == size for size in sizes)
    assert len(set(sizes[100:])) == 35 + 35 + 10  # 35 in each decade


def test_programs_that_look_at_other_rows_are_not_filled_up():
    """Nor those whose other arguments are as long as the table, or that are told their rows."""

    def centred(data):
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", len(data)):
            kind = numpyro.sample("kind", dist.Bernoulli(0.5))
            logits = (rate + kind[..., None]) * data.mean()
            numpyro.sample("bits", dist.Bernoulli(logits=logits).to_event(1), obs=data)

    def shifted(data, prior):
        bias = numpyro.sample("bias", dist.Normal(prior, 1.0).to_event(1))
        with numpyro.plate("data", len(data)):
            factor = numpyro.sample("factor", dist.Normal(0.0, 1.0))
            logits = factor[..., None] + bias[: data.shape[-1]]
            numpyro.sample("bits", dist.Bernoulli(logits=logits).to_event(1), obs=data)

    data = np.asarray(traits(103))[:, :3]
    assert pad(centred, (data,), {}, None) is None
    assert pad(shifted, (data, np.zeros(103)), {}, None) is None
    padded = pad(bernoulli_mixture, (data,), MIXTURE, None)
    assert (padded.num_data, padded.size) == (103, 110)
    assert pad(bernoulli_mixture, (data,), {**MIXTURE, "num_data": 103}, None) is None


def test_a_search_uses_all_rows_of_a_table_that_is_little_longer():
    """Those of another number would be compiled for a second time."""
    lineages = Lineages(EM(bernoulli_mixture), Search(num_rows=50))
    rows = [lineages.rows((traits(num_rows),), MIXTURE) for num_rows in (100, 101)]
    assert [lineages.fewer(random.key(0), x).num_data for x in rows] == [100, 50]


def test_a_program_that_looks_at_its_data_is_read_with_each():
    """Others are read once for all data of a shape."""
    runs = count()

    def levels(data, look):
        next(runs)
        size = int(data.max()) + 1 if look else 5
        with numpyro.plate("data", len(data)):
            kind = numpyro.sample("kind", dist.Categorical(jnp.full(size, 1 / size)))
            numpyro.sample("seen", dist.Normal(kind, 1.0), obs=data)

    def found(look):
        parts = [inspect(levels, (np.arange(3.0) * k, look)) for k in (1, 2)]
        return [part.latents[0].num_values for part in parts]

    assert found(True) == [3, 5]
    before = next(runs)
    assert found(False) == [5, 5]
    assert next(runs) == before + 3  # of the first it was run with its values and without


def test_a_posterior_inside_jit_is_that_outside():
    data, method = np.asarray(traits(103)), EM(bernoulli_mixture)
    params = {"mixing": jnp.array([0.4, 0.6]), "probs": jnp.full((2, 6), 0.3).at[0].set(0.6)}
    filled = method.posterior(params, data, **MIXTURE)
    inside = jax.jit(lambda params: method.posterior(params, data, **MIXTURE))(params)
    np.testing.assert_allclose(filled.evidence, inside.evidence, rtol=1e-6)
