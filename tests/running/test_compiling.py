"""What was compiled once is not compiled again, on other data of the same shapes."""

from collections import OrderedDict
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference import (
    EM,
    keep_best,
    log_likelihood,
    standard_errors,
)
from inference.numerics import compiling
from inference.numerics.compiling import remembered
from inference.numerics.identity import NoIdentityError, identity
from ppl_models import (
    bernoulli_mixture,
    latent_trait,
)

TRAIT = {"weights": np.full((1, 6), 1.5, np.float32), "bias": np.zeros(6, np.float32)}
MIXTURE = {"num_components": 2}


def traits(seed):
    """Rows of the program itself, at whose parameters the information is positive."""
    generator = np.random.default_rng(seed)
    chance = 1 / (1 + np.exp(-1.5 * generator.normal(size=(300, 1))))
    return jnp.asarray(generator.random((300, 6)) < chance, float)


CALLS = {
    "log_likelihood": lambda data: log_likelihood(latent_trait, TRAIT, data, num_factors=1).value,
    "standard_errors": lambda data: standard_errors(
        latent_trait, TRAIT, data, num_factors=1, num_nodes=7
    )["bias"],
    "keep_best": lambda data: (
        keep_best(
            EM(bernoulli_mixture), random.key(0), 4, data, valid=data[::2], every=2, **MIXTURE
        ).scores
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_on_other_data_compiles_nothing(name, compilations):
    first, second = (traits(seed) for seed in range(2))
    second[::2]  # the slice of the caller
    before = CALLS[name](first)
    assert compilations
    compilations.clear()
    after = CALLS[name](second)
    assert not compilations
    assert np.isfinite(after).all() and not np.array_equal(before, after)


RATE = 1.0


def test_functions_are_one_if_their_code_and_all_that_it_reads_are(monkeypatch):
    def model(scale):
        return lambda x: RATE * scale * x

    assert identity(model(2.0)) == identity(model(2.0)) != identity(model(3.0))
    before = identity(model(2.0))
    monkeypatch.setitem(globals(), "RATE", 3.0)  # as a notebook that is run again does
    assert identity(model(2.0)) != before
    first, second = (EM(partial(bernoulli_mixture, num_components=k)) for k in (2, 3))
    assert identity(first) != identity(second) != identity(EM(bernoulli_mixture))
    with pytest.raises(NoIdentityError):
        identity(lambda: rows)  # too large to be held: it is compiled anew
    np.testing.assert_array_equal(remembered(lambda: rows.sum())(), rows.sum())


rows = np.ones((600, 600), np.float32)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(compiling, "_kept", OrderedDict())
    monkeypatch.setattr(compiling, "MOST_KEPT", 2)
    found = [remembered(lambda x, n=n: x + n) for n in range(3)]
    assert len(compiling._kept) == 2
    assert remembered(lambda x, n=2: x + n) is not found[0]
