"""What was compiled once is not compiled again, on other data of the same shapes."""

from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference import (
    EM,
    BoundEM,
    ContrastiveDivergence,
    ExactGradient,
    GibbsEM,
    GibbsSearch,
    MomentInversion,
    MonteCarloEM,
    ProjectionPursuit,
    QuadratureEM,
    SplittingEM,
    StepwiseEM,
    TruncatedEM,
    keep_best,
    log_likelihood,
    standard_errors,
)
from inference.numerics import compiling
from inference.numerics.compiling import remembered
from inference.numerics.identity import NoIdentityError, identity
from inference.running.restarts import Restarts
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    combination_machine,
    latent_trait,
    noisy_or_network,
)


class Case(NamedTuple):
    method: Any  # made anew for each run
    sizes: dict
    real: bool = False

    def data(self, seed):
        generator = np.random.default_rng(seed)
        if self.real:
            return generator.normal(size=(30, 6)).astype(np.float32)
        return (generator.random((30, 6)) < generator.uniform(0.3, 0.7, 6)).astype(np.float32)


CASES = {
    "EM": Case(lambda: EM(bernoulli_mixture), {"num_components": 2}),
    "EM by gradients": Case(lambda: EM(bernoulli_mixture, prior=True), {"num_components": 2}),
    "TruncatedEM": Case(
        lambda: TruncatedEM(binary_sparse_coding, num_candidates=3), {"num_causes": 4}, real=True
    ),
    "StepwiseEM": Case(lambda: StepwiseEM(bernoulli_mixture, batch_size=10), {"num_components": 2}),
    "SplittingEM": Case(lambda: SplittingEM(bernoulli_mixture), {"num_components": 2}),
    "QuadratureEM": Case(lambda: QuadratureEM(latent_trait, num_nodes=5), {"num_factors": 1}),
    "BoundEM": Case(lambda: BoundEM(latent_trait), {"num_factors": 2}),
    "MonteCarloEM": Case(lambda: MonteCarloEM(latent_trait, num_draws=9), {"num_factors": 1}),
    "GibbsEM": Case(lambda: GibbsEM(noisy_or_network), {"layers": (3,)}),
    "GibbsSearch": Case(lambda: GibbsSearch(GibbsEM(noisy_or_network)), {"layers": (3,)}),
    "ExactGradient": Case(lambda: ExactGradient(combination_machine), {"num_causes": 2}),
    "ContrastiveDivergence": Case(
        lambda: ContrastiveDivergence(combination_machine), {"num_causes": 2}
    ),
    "ProjectionPursuit": Case(
        lambda: ProjectionPursuit(combination_machine, significant=False), {"num_causes": 2}
    ),
    "MomentInversion": Case(lambda: MomentInversion(clipped_gaussian), {"num_factors": 1}),
    "Restarts": Case(lambda: Restarts(EM(bernoulli_mixture), 2), {"num_components": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_and_posterior_on_other_data_compile_nothing(name, compilations):
    case = CASES[name]

    def everything(seed, num_steps, tolerance):
        method, data = case.method(), jnp.asarray(case.data(seed))
        result = method.run(random.key(seed), num_steps, data, tolerance=tolerance, **case.sizes)
        if hasattr(method, "posterior"):
            method.posterior(result.params, data, **case.sizes)
        return result

    first = everything(0, 3, None)
    assert compilations
    compilations.clear()
    second = everything(1, 5, 1e-9)
    assert not compilations
    assert np.isfinite(second.losses).all() and second.losses[-1] != first.losses[-1]


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
