"""A row of weight w counts as w equal rows: `numpyro.handlers.scale` inside the data plate, or
`weighted` around a program."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from tools import ROUNDED, close, in_double, quick_run

from inference import (
    EM,
    BoundEM,
    ContrastiveDivergence,
    ExactGradient,
    GibbsEM,
    GibbsSearch,
    MomentInversion,
    MonteCarloEM,
    ProgramError,
    ProjectionPursuit,
    QuadratureEM,
    SplittingEM,
    StepwiseEM,
    TruncatedEM,
    marginal,
    weighted,
)
from inference.reading.anatomy import inspect
from ppl_models import (
    bernoulli_mixture,
    clipped_gaussian,
    combination_machine,
    graded_trait,
    latent_trait,
    noisy_or_network,
)

DATA = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 1]], np.float32)
COUNTS = np.array([3, 4, 1, 2, 7])
PARAMS = {"mixing": jnp.array([0.3, 0.7]), "probs": jnp.array([[0.8, 0.6, 0.3], [0.2, 0.5, 0.6]])}
BITS = {"weights": jnp.array([[1.0, 0.2, -0.3], [0.1, 0.9, 0.6]]), "sparsity": jnp.array(0.4)}


def mixture(data, weights=1.0):
    """A mixture of Bernoulli products; a row counts as often as its weight says."""
    mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.ones(2)))
    probs = numpyro.sample("probs", dist.Beta(2.0, 2.0).expand([2, 3]).to_event(2))
    with numpyro.plate("data", len(data)), handlers.scale(scale=weights):
        kind = numpyro.sample("kind", dist.Categorical(mixing))
        numpyro.sample("y", dist.Bernoulli(probs[kind]).to_event(1), obs=data)


def causes(data, weights=1.0):
    """Bits that add up to the log odds of what is seen: no closed M-step."""
    weight = numpyro.sample("weights", dist.Normal().expand([2, 3]).to_event(2))
    sparsity = numpyro.sample("sparsity", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", len(data)), handlers.scale(scale=weights):
        bits = numpyro.sample("bits", dist.Bernoulli(sparsity).expand([2]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=bits @ weight).to_event(1), obs=data)


CASES = {
    "closed step with a prior": (EM(mixture, prior=True), mixture, PARAMS),
    "form in the datum": (EM(causes), causes, BITS),
    "states of each row": (TruncatedEM(causes, max_active=1, num_candidates=1), causes, BITS),
    # With the sums and the closed step of EM without a prior.
    "all rows in a batch": (StepwiseEM(mixture, power=0.0), mixture, PARAMS),
    "gradient": (ExactGradient(causes, prior=True), causes, BITS),
}


@in_double
@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_a_number_of_equal_rows(case):
    method, _, start = CASES[case]
    start = {name: np.asarray(value, float) for name, value in start.items()}
    wanted = quick_run(method, 0, 2, np.repeat(DATA, COUNTS, axis=0), init_params=start)
    weighted = quick_run(method, 0, 2, DATA, init_params=start, weights=COUNTS.astype(float))
    close(weighted.losses, wanted.losses)
    for name, value in wanted.params.items():
        close(weighted.params[name], value, 1e-6)  # line searches, on sums in another order
        assert np.abs(value - start[name]).max() > 1e-3


def test_the_loss_is_minus_the_density_of_the_marginal_program():
    """Weights that are no whole numbers, and a scale of everything: the prior is scaled too."""
    weights = np.array([0.5, 2.5, 1.0, 3.25, 0.1], np.float32)
    twice = handlers.scale(causes, scale=2.0)
    for program in (causes, twice):
        method = EM(program, prior=True)
        state = method.init(jax.random.key(0), DATA, init_params=BITS, weights=weights)
        loss = jax.jit(lambda s, m=method: m.update(s, DATA, weights=weights)[1])(state)
        density = lambda p, m=program: log_density(  # noqa: E731
            marginal(m), (DATA,), {"weights": weights}, p
        )[0]
        value = jax.jit(density)(BITS)
        close(loss, -value, ROUNDED)


def heavy_trait(data):
    """No closed M-step: a factor with heavy tails."""
    slope = numpyro.sample("slope", dist.Normal().expand([3]).to_event(1))
    with numpyro.plate("data", len(data)):
        x = numpyro.sample("x", dist.StudentT(5.0))
        numpyro.sample("y", dist.Bernoulli(logits=x[..., None] * slope).to_event(1), obs=data)


FACTORS = {"weights": np.array([[1.0, 0.4, -0.3]]), "bias": np.array([0.3, 0.8, 0.1])}
CUTS = {"weights": np.array([[1.0, 0.4, -0.3]]), "cutpoints_2": np.array([[0.3], [0.8], [0.1]])}
CONTINUOUS = {
    "form in the datum": (QuadratureEM, latent_trait, FACTORS, {"num_factors": 1}),
    "levels": (QuadratureEM, graded_trait, CUTS, {"num_factors": 1, "levels": (2, 2, 2)}),
    "draws": (MonteCarloEM, latent_trait, FACTORS, {"num_factors": 1}),
    "bound": (BoundEM, latent_trait, FACTORS, {"num_factors": 1}),
    "gradient": (QuadratureEM, heavy_trait, {"slope": np.array([1.0, 0.4, -0.3])}, {}),
}


@in_double
@pytest.mark.parametrize("case", CONTINUOUS)
def test_so_it_is_of_continuous_latents(case):
    """Of programs as they are, by the handler that weighs the rows of a plate."""
    method, program, start, more = CONTINUOUS[case]
    rows = DATA.astype(np.int8) if program is graded_trait else DATA
    how = {"init_params": start, **more}
    wanted = quick_run(method(program), 0, 3, np.repeat(rows, COUNTS, axis=0), **how)
    weights = COUNTS.astype(float)
    found = quick_run(method(weighted(program)), 0, 3, rows, row_weights=weights, **how)
    close(found.losses, wanted.losses, 1e-6)
    for name, value in wanted.params.items():
        close(found.params[name], value, 1e-4)  # nodes lie where chunks of other rows put them
        assert np.abs(value - start[name]).max() > 1e-3


def test_a_weighed_program_is_one_that_scales_its_rows():
    start = {name: np.asarray(value, np.float32) for name, value in PARAMS.items()}
    weights = np.array([0.5, 2.5, 1.0, 3.25, 0.1], np.float32)
    plain, by_handler = (
        log_density(marginal(f), (DATA,), {name: weights}, start)[0]
        for f, name in ((mixture, "weights"), (weighted(mixture), "row_weights"))
    )
    close(plain, by_handler, 1e-6)
    with pytest.raises(ProgramError, match="no site in a plate 'people' to weigh"):
        handlers.seed(weighted(mixture, "people"), 0)(DATA, row_weights=weights)


@pytest.mark.parametrize(
    ("method", "program", "size"),
    [(MomentInversion, clipped_gaussian, {"num_factors": 1}),
     (ContrastiveDivergence, combination_machine, {"num_causes": 2}),
     (ProjectionPursuit, combination_machine, {"num_causes": 2}),
     (GibbsEM, noisy_or_network, {"layers": (2,)}),
     (GibbsSearch, noisy_or_network, {"layers": (2,)})],
)  # fmt: skip
def test_a_method_that_counts_rows_once_refuses_weights(method, program, size):
    model, how = weighted(program), {**size, "row_weights": COUNTS.astype(np.float32)}
    with pytest.raises(ProgramError, match=r"rows of the plate 'data' are scaled"):
        method(model).init(jax.random.key(0), DATA, **how)
    assert "counts every row once" in method.admits(inspect(model, (DATA,), how))
    assert method.admits(inspect(program, (DATA,), size)) is None


def test_splitting_respects_them():
    how = {"num_components": 2}
    wanted = SplittingEM(bernoulli_mixture).run(
        jax.random.key(0), 40, np.repeat(DATA, COUNTS, axis=0), **how
    )
    how["row_weights"] = COUNTS.astype(np.float32)
    found = SplittingEM(weighted(bernoulli_mixture)).run(jax.random.key(0), 40, DATA, **how)
    close(found.losses[-1], wanted.losses[-1], 1e-4)
    close(found.params["probs"], wanted.params["probs"], 1e-2)
