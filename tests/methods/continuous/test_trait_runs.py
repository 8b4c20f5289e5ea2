"""Runs of the methods for latent traits: they fall, agree, and refuse by name; errors of items."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from scipy.special import expit
from scipy.stats import beta, multivariate_normal, norm
from tools import in_double, quick_run
from trait_examples import (
    KEY,
    KINDS,
    as_jax,
    bits_example,
    mixed_example,
    simulated,
)

import inference
from inference.comparison.checks import REMARKS, wrong
from inference.comparison.judge import information
from inference.evaluation.standard_errors import standard_errors, undetermined
from inference.files.cards import example
from inference.methods.continuous.bound import BoundEM
from inference.methods.continuous.factor_em import canonical
from inference.methods.continuous.factors import open_factors
from inference.methods.continuous.monte_carlo import MonteCarloEM
from inference.methods.continuous.quadrature import QuadratureEM
from inference.methods.continuous.regressions import Regressions
from inference.methods.continuous.rules import moments, peaks, prior_points
from inference.methods.continuous.starts import JITTER, principal_start
from inference.reading.anatomy import ProgramError
from inference.reading.log_joint import row_function
from ppl_models import clipped_gaussian, latent_trait, mixed_trait

# --- the methods


YARDSTICK = QuadratureEM(latent_trait, num_nodes=15)


@pytest.fixture(scope="module")
def fits():
    """By name, what several tests look at: a run of each method on the same data."""
    data = simulated()
    # 1500 points: the integral of a row errs by a few per cent, the fit by the square of that.
    quasi = MonteCarloEM(latent_trait, num_draws=1500, quasi=True)
    return {
        "bound": quick_run(BoundEM(latent_trait), 0, 60, data),
        "quadrature": quick_run(YARDSTICK, 0, 25, data),
        "monte_carlo": quick_run(quasi, 0, 25, data),
    }


@pytest.mark.parametrize(
    "kwargs",
    [{"prior_weights": dist.Normal(1.0, 0.5)}, {"guessing": True}],
    ids=["directed", "guessing"],
)
def test_loss_with_priors_is_the_negative_log_joint(kwargs, double):
    del double
    data = simulated()[:100]
    method = QuadratureEM(latent_trait, prior=True)
    result = method.run(KEY, 300, data, num_factors=1, tolerance=1e-12, **kwargs)
    params = {name: np.asarray(x) for name, x in result.params.items()}
    nodes = np.linspace(-9.0, 9.0, 2001)
    prior = (1.0, 0.5) if "prior_weights" in kwargs else (0.0, 3.0)
    log_joint = norm.logpdf(params["weights"], *prior).sum()
    log_joint += norm.logpdf(params["bias"], 0.0, 5.0).sum()
    probs = expit(nodes[:, None] * params["weights"] + params["bias"])
    if kwargs.get("guessing"):
        log_joint += beta.logpdf(params["guessing"], 5.0, 17.0).sum()
        probs = params["guessing"] + (1.0 - params["guessing"]) * probs
    for row in np.asarray(data):
        likelihood = np.where(row > 0, probs, 1.0 - probs).prod(1)
        log_joint += np.log(np.trapezoid(likelihood * norm.pdf(nodes), nodes))
    np.testing.assert_allclose(result.losses[-1], -log_joint, rtol=1e-7)


@pytest.mark.parametrize("name", ["bound", "quadrature", "monte_carlo"])
def test_loss_never_rises(name, fits):
    result = fits[name]
    rise = np.diff(result.losses).max() / abs(float(result.losses[-1]))
    # Quadrature is exact up to its own error only, which moves with the nodes.
    assert rise < (1e-5 if name == "quadrature" else 2e-6)
    gram = result.params["weights"] @ result.params["weights"].T
    assert abs(gram[0, 1]) < 1e-3 * gram[0, 0] and gram[0, 0] > gram[1, 1]


def test_mixed_columns_are_fitted():
    """By points with weights they have the slope of the program, as is tested above."""
    _, data, mask = mixed_example(num_data=150)
    method = BoundEM(mixed_trait, prior=True)
    result = quick_run(method, 0, 20, data, mask=mask, kinds=KINDS)
    assert np.diff(result.losses).max() < 1e-5 * abs(float(result.losses[-1]))
    # The gap has tests of its own.
    posterior = method.posterior(result.params, data, mask=mask, kinds=KINDS, gap=False)
    # A row with nothing observed sits at the prior.
    np.testing.assert_allclose(posterior.mean[1], 0.0, atol=1e-5)
    np.testing.assert_allclose(posterior.evidence[1], 0.0, atol=1e-5)


def test_the_three_agree(fits):
    data = simulated()
    best, quasi, bound = (fits[name] for name in ("quadrature", "monte_carlo", "bound"))
    nll = lambda params: -float(YARDSTICK.evidence(params, data).mean())  # noqa: E731
    least = nll(best.params)
    np.testing.assert_allclose(float(best.losses[-1]) / len(data), least, atol=1e-4)
    assert least - 1e-5 <= nll(quasi.params) < least + 0.01
    # The bound's optimum is another one, but near (Tipping 1998, table 1: 0.2 of 5 nats).
    assert least - 1e-5 <= nll(bound.params) < least + 0.05
    assert float(bound.losses[-1]) / len(data) > nll(bound.params)


def test_forgetting_the_posteriors_ends_at_the_same_bound(fits):
    """And nothing in the state grows with the rows."""
    data, ends = simulated(), {}
    method = BoundEM(latent_trait, remember=False, chunk_size=50)
    for remember, fit in ((True, fits["bound"]), (False, quick_run(method, 0, 60, data))):
        ends[remember] = float(fit.losses[-1]) / len(data)
        lengths = {x.shape[:1] for x in jax.tree.leaves(fit.state.memory)}
        assert lengths == ({(len(data),)} if remember else set())
    # Six rounds from the prior leave the bound a little looser than a memory that goes on.
    np.testing.assert_allclose(ends[False], ends[True], atol=1e-3)
    assert ends[False] > ends[True] - 1e-4


def test_plain_em_and_acceleration_reach_the_same_optimum(fits):
    data = simulated()
    fast = fits["quadrature"].losses[:15]
    slow = quick_run(QuadratureEM(latent_trait, num_nodes=7, accelerate=False), 0, 120, data)
    assert np.diff(slow.losses).max() < 1e-5 * float(slow.losses[-1])
    reached = -float(YARDSTICK.evidence(slow.params, data).sum())
    assert float(fast[-1]) <= reached + 1e-3 * len(data)


def test_many_factors_for_the_bound():
    result = quick_run(BoundEM(latent_trait), 0, 10, simulated(), num_factors=5)
    assert result.params["weights"].shape == (5, 8)
    assert np.diff(result.losses).max() < 1e-3


@in_double
def test_real_columns_alone_are_factor_analysis():
    """Normal columns are quadratic already: bound, quadrature and the Gaussian density agree."""
    rng = np.random.default_rng(2)
    data = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 4)) + rng.normal(0, 0.5, (200, 4)) + 1.0
    kinds = ("real",) * 4
    result = quick_run(BoundEM(mixed_trait), 0, 40, data, kinds=kinds, num_factors=1)
    weights, noise = result.params["weights"], result.params["noise"]
    cover = np.asarray(weights).T @ weights + np.diag(noise**2)
    exact = multivariate_normal(result.params["bias"], cover).logpdf(data)
    posterior = BoundEM(mixed_trait).posterior(result.params, data, kinds=kinds, num_factors=1)
    np.testing.assert_allclose(posterior.evidence, exact, atol=1e-8)
    np.testing.assert_allclose(posterior.gap, 0.0, atol=1e-8)
    np.testing.assert_allclose(result.params["bias"], data.mean(0), atol=1e-4)


# --- programs nobody told the methods about


def my_questionnaire(data, *, num_factors=1, power=1):
    """A user's own: a shared difficulty shift, logits linear in the factors or not."""
    columns = data.shape[1]
    weights = numpyro.sample(
        "weights", dist.Normal(0, 1).expand((num_factors, columns)).to_event(2)
    )
    shift = numpyro.sample("shift", dist.Normal(0, 2))
    with numpyro.plate("data", len(data)):
        ability = numpyro.sample("ability", dist.Normal(0, 1).expand((num_factors,)).to_event(1))
        fn = dist.Bernoulli(logits=ability**power @ weights + shift)
        numpyro.sample("answers", fn.to_event(1), obs=data)


def test_any_program_with_continuous_latents():
    """By quadrature: test_mixed_latents."""
    data = simulated(num_data=100, num_features=4)
    method = BoundEM(my_questionnaire, accelerate=False)
    result = quick_run(method, 0, 6, data)
    assert np.diff(result.losses).max() < 1e-3 * abs(float(result.losses[0]))
    assert float(result.losses[-1]) < float(result.losses[0])
    assert method.posterior(result.params, data).mean.shape == (100, 1)


def test_bound_refuses_what_is_not_quadratic():
    data = simulated(num_data=20, num_features=4)
    with pytest.raises(inference.ProgramError, match="not quadratic"):
        BoundEM(my_questionnaire).init(KEY, data, power=2)
    with pytest.raises(inference.ProgramError, match="ClippedNormal: the bound is for Bernoulli"):
        BoundEM(clipped_gaussian).init(KEY, data, num_factors=1)


# --- rotation, errors of items


@in_double
def test_canonical_form_changes_nothing_but_the_axes():
    params, data, mask = bits_example()
    turned = canonical(as_jax(params))
    gram = turned["weights"] @ turned["weights"].T
    np.testing.assert_allclose(gram[0, 1], 0.0, atol=1e-12)
    assert gram[0, 0] > gram[1, 1]
    largest = np.abs(turned["weights"]).argmax(1)
    assert (np.take_along_axis(np.asarray(turned["weights"]), largest[:, None], 1) > 0).all()
    method = QuadratureEM(latent_trait, num_nodes=20)
    before = method.evidence(as_jax(params), data, mask=mask)
    np.testing.assert_allclose(method.evidence(turned, data, mask=mask), before, atol=1e-6)
    again = canonical(turned)
    np.testing.assert_allclose(again["weights"], turned["weights"], atol=1e-12)


@in_double
def test_standard_errors_are_those_of_the_oracles_hessian():
    params = {"weights": np.array([[1.4, -1.1, 1.2]]), "bias": np.array([-0.6, 0.3, 0.1])}
    nodes, log_weights = oracle.gauss_hermite(1, 24)

    def row_evidence(params, data):
        table = oracle.quadrature_table(
            oracle.log_joint_latent_trait, params, nodes, log_weights, data
        )
        return oracle.log_evidence(table)

    # Each pattern as often as these parameters make it: next to a maximum.
    patterns = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], float)
    count = np.round(60 * np.exp(row_evidence(params, patterns))).astype(int)
    data = np.repeat(patterns, count, axis=0)

    def slope(params):
        total = lambda params: count @ row_evidence(params, patterns)  # noqa: E731
        slopes = oracle.finite_difference(total, params, step=1e-4)
        return np.concatenate([slopes["bias"].ravel(), slopes["weights"].ravel()])

    second = oracle.finite_difference(slope, params, step=1e-3)
    hessian = np.concatenate([second["bias"].reshape(3, 6), second["weights"].reshape(3, 6)])
    wanted = np.sqrt(np.diagonal(np.linalg.inv(-hessian)))
    by_site = standard_errors(latent_trait, as_jax(params), data, num_factors=1)
    errors = np.concatenate([by_site["bias"], by_site["weights"][0]])
    np.testing.assert_allclose(errors, wanted, rtol=1e-3)


def test_nothing_is_said_of_what_is_not_determined():
    """Two factors on four bits leave a direction free; clipped at zero its errors would be 0.00."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(150, 1)) @ np.array([[1.5, 1.0, 2.0, 0.8]])
    data = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    fit = quick_run(QuadratureEM(latent_trait, num_nodes=15), 0, 25, data)
    with pytest.warns(inference.UndeterminedWarning, match="1 direction is not determined"):
        errors = standard_errors(latent_trait, fit.params, data)
    assert all(np.isnan(x).all() for x in errors.values())
    # A comparison remarks it.
    field = SimpleNamespace(model=latent_trait, train_arguments=((data,), {}))
    facts = information(field, fit.params)
    assert [*wrong(facts, REMARKS).values()] == ["1 direction is not determined by these data"]
    with pytest.raises(ProgramError, match="too large"):
        undetermined(latent_trait, fit.params, (data,), {}, most_work=1e4)


@in_double
def test_errors_on_a_simplex_are_those_of_shares():
    """Of a share p in n rows the error is √(p(1 − p)/n), whatever the transform of the simplex."""

    def program(data, group):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        ease = numpyro.sample("ease", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(data)):
            skill = numpyro.sample("skill", dist.Normal(0.0, 1.0).expand((1,)).to_event(1))
            numpyro.sample("group", dist.Categorical(share), obs=group)
            answers = dist.Normal((skill + ease) * jnp.ones(2), 1.0)
            numpyro.sample("answers", answers.to_event(1), obs=data)

    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], [9, 20, 31])
    data = rng.normal(size=(60, 1)) + rng.normal(0.5, 1.0, (60, 2))
    share = np.array([9, 20, 31]) / 60
    params = {"share": share, "ease": np.array(data.mean())}
    errors = standard_errors(program, params, data, group)
    np.testing.assert_allclose(errors["share"], np.sqrt(share * (1 - share) / 60), rtol=1e-6)
    np.testing.assert_allclose(errors["ease"], np.sqrt(1.5 / 60), rtol=1e-6)


def test_start_from_principal_components_is_far_better_than_the_mean():
    data = simulated()
    _, rows = open_factors(latent_trait, (data,), {}, None)
    columns = Regressions(("binary",) * 8)
    responses = lambda arguments: columns.responses(arguments[0][0])  # noqa: E731
    noise = JITTER * jax.random.normal(KEY, (2, 8))
    params = jax.jit(lambda noise: principal_start(columns, responses, rows, noise))(noise)
    alone = {**params, "weights": np.zeros((2, 8), np.float32)}
    start, mean = (np.mean(YARDSTICK.evidence(x, data)) for x in (params, alone))
    assert start - mean > 0.05


def test_draws_and_rules_integrate():
    for quasi in (False, True):

        @jax.jit
        def compute(key, quasi=quasi):
            rule = prior_points(key, 2000, 2, quasi)
            return moments(rule.points, jnp.full((2000, 1), 1 / 2000))

        mean, spread = jax.device_get(compute(KEY))
        assert np.abs(mean).max() < (0.005 if quasi else 0.1)  # 1/√2000 is 0.022
        assert np.abs(spread - np.eye(2)).max() < (0.02 if quasi else 0.15)


def test_modes_are_found_however_sharp():
    data = jnp.ones((1, 60))
    params = {"weights": jnp.full((1, 60), 3.0), "bias": jnp.full(60, -4.0)}
    reader, _ = open_factors(latent_trait, (data,), {"num_factors": 1}, None)
    arguments = ((data,), {"num_factors": 1})

    @jax.jit
    def slope_at_mode(params):
        mode = peaks(reader, params, arguments, jnp.zeros((1, 1)), 15).place
        function = row_function(latent_trait, reader.anatomy, params, arguments)
        return jax.grad(lambda x: function(x)[0])(mode)

    assert jnp.abs(slope_at_mode(params)).max() < 1e-2


# --- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d * 2, "row 1, column 0 holds 2"),
        (lambda d: np.where(np.arange(4) == 2, 0.0, d), "column 2 is 0 in every row"),
        (lambda d: np.where(d > 0, np.nan, d), "mark missing cells"),
    ],
)
def test_bad_data_is_refused_by_name(change, message):
    data = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 1.0]])
    for method in (BoundEM, QuadratureEM, MonteCarloEM):
        with pytest.raises(ValueError, match=message):
            method(latent_trait).init(KEY, change(data))


def test_settings_are_refused_by_name():
    data = simulated(num_data=20)
    with pytest.raises(inference.ProgramError, match="up to 3"):
        QuadratureEM(latent_trait).init(KEY, data, num_factors=4)
    with pytest.raises(ValueError, match="num_draws"):
        MonteCarloEM(latent_trait, num_draws=0)
    with pytest.raises(ValueError, match="tighten"):
        BoundEM(latent_trait, tighten=0)
    with pytest.raises(ValueError, match="kinds"):
        BoundEM(mixed_trait).init(KEY, data, kinds=("real",) * 7 + ("odd",))
    with pytest.raises(ValueError, match="level 2 of 3"):
        BoundEM(mixed_trait).init(KEY, data, kinds=(3,) + ("binary",) * 7)


def test_a_sharp_item_on_two_factors_is_determined():
    """The smallest eigenvalue of the information needs more nodes than the likelihood."""
    made = example("latent_trait", number=2)
    method = QuadratureEM(latent_trait)
    result = method.run(
        jax.random.key(0), 300, made.values, tolerance=1e-7, progress_bar=False, **made.sizes
    )
    errors = standard_errors(latent_trait, result.params, made.values, **made.sizes)
    finer = standard_errors(latent_trait, result.params, made.values, num_nodes=61, **made.sizes)
    for site, value in errors.items():  # with half of the nodes all are NaN
        np.testing.assert_allclose(value, finer[site], rtol=0.1)
