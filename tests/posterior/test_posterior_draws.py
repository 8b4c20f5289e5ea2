"""Draws of the parameters about a fit: against closed forms and integrals over the prior."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from latentbits.models import bernoulli_mixture, bernoulli_product, latent_trait
from numpy.polynomial.hermite_e import hermegauss
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density
from scipy.special import betaln, expit, logsumexp
from scipy.stats import beta

from inference.posterior.collapsed import collapsed
from inference.posterior.laplace import Hill, Mode, Proposal, find_mode, importance, weigh
from latentbits import EM, ProgramError, QuadratureEM, align, posterior_draws

NARROW = {
    "num_components": 2, "prior_mixing": dist.Dirichlet(jnp.full(2, 4.0)),
    "prior_probs": dist.Beta(4.0, 4.0),
}  # fmt: skip
UNIT = {"prior_weights": dist.Normal(0.0, 1.0), "prior_bias": dist.Normal(0.0, 1.0)}


def log_mean(values):
    """log of the mean of exponentials, and its relative standard error."""
    weights = np.exp(values - values.max())
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    return logsumexp(values) - np.log(len(values)), error


def test_draws_of_independent_bits_are_those_of_beta():
    data = np.asarray(random.bernoulli(random.key(0), jnp.array([0.02, 0.3, 0.9]), (60, 3)), float)
    ones = data.sum(0)
    posterior = posterior_draws(bernoulli_product, {"probs": ones / 60}, data, num_draws=4000)
    assert posterior.sound and posterior.notes == ()
    exact = beta(1 + ones, 61 - ones)
    error = exact.std() / np.sqrt(posterior.effective)
    drawn = posterior.params["probs"][0]
    assert np.all(np.abs(drawn.mean(0) - exact.mean()) < 4 * error)
    for level in (0.05, 0.5, 0.95):
        share = (drawn < exact.ppf(level)).mean(0)
        assert np.all(np.abs(share - level) < 4 * np.sqrt(level / posterior.effective))
    evidence = betaln(1 + ones, 61 - ones).sum()
    assert abs(posterior.log_evidence - evidence) < 4 * posterior.evidence_error


def mixture_evidence(data, num_components, count):
    """log p(data) by draws of the parameters from their priors, labels and all."""
    rng = np.random.default_rng(1)
    total = np.empty(count)
    for i in range(count):
        mixing = rng.dirichlet(np.full(num_components, 4.0))
        probs = rng.beta(4.0, 4.0, (num_components, 3))
        each = np.prod(np.where(data[:, None] == 1, probs, 1 - probs), 2)
        total[i] = np.log(each @ mixing).sum()
    return log_mean(total)


@functools.cache
def two_patterns():
    rows = np.array([[1, 1, 1]] * 4 + [[0, 0, 0]] * 4 + [[1, 0, 1]] + [[0, 1, 0]], float)
    fit = EM(bernoulli_mixture, prior=True).run(
        random.key(0), 100, rows, progress_bar=False, **NARROW
    )
    return rows, fit.params


def test_the_evidence_counts_every_labelling():
    rows, params = two_patterns()
    posterior = posterior_draws(bernoulli_mixture, params, rows, num_draws=4000, **NARROW)
    evidence, error = mixture_evidence(rows, 2, 80_000)
    assert error < 0.06
    assert posterior.sound and "2 components" in posterior.notes[0]
    assert abs(posterior.log_evidence - evidence) < 4 * np.hypot(error, posterior.evidence_error)


def trait_evidence(data, count):
    """log p(data) of two factors by draws of weights and biases from N(0, 1)."""
    rng, (nodes, weights) = np.random.default_rng(2), hermegauss(12)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    log_weights = np.log(np.outer(weights, weights) / weights.sum() ** 2).ravel()
    total = np.empty(count)
    for i in range(count):
        probs = expit(grid @ rng.normal(size=(2, data.shape[1])) + rng.normal(size=data.shape[1]))
        table = np.log(probs) @ data.T + np.log1p(-probs) @ (1 - data).T + log_weights[:, None]
        total[i] = logsumexp(table, 0).sum()
    return log_mean(total)


def test_rotations_are_integrated_on_a_slice():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(12, 2)) @ np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, -2.0]])
    data = (rng.random(factors.shape) < expit(factors)).astype(float)
    kwargs = {"num_factors": 2, **UNIT}
    fit = QuadratureEM(latent_trait, prior=True).run(
        random.key(0), 100, data, progress_bar=False, **kwargs
    )
    posterior = posterior_draws(latent_trait, fit.params, data, num_draws=4000, **kwargs)
    evidence, error = trait_evidence(data, 10_000)
    assert error < 0.05
    assert posterior.sound and "rotated" in posterior.notes[0]
    assert abs(posterior.log_evidence - evidence) < 4 * np.hypot(error, posterior.evidence_error)
    # The draws lie on the slice: to align them changes nothing.
    weights = posterior.params["weights"][0]
    reference = {"weights": fit.params["weights"], "bias": fit.params["bias"]}
    near = align(
        {x: v[0] for x, v in posterior.params.items()}, latent_trait, data, reference=reference,
        num_factors=2,
    )  # fmt: skip
    np.testing.assert_allclose(near["weights"], weights, atol=1e-4)


def test_a_start_at_a_bound_is_moved_inside():
    rows, _ = two_patterns()
    at_bound = {"mixing": np.array([1.0, 0.0]), "probs": np.array([[1.0, 0.5, 0.0]] * 2)}
    posterior = posterior_draws(
        bernoulli_mixture, at_bound, rows, num_draws=200, num_components=2, fall_back=False
    )
    assert all(np.isfinite(x).all() for x in posterior.params.values())


def products(data=None, *, num_data=None):
    """Logits that are products: the posterior lies along hyperbolas."""
    first = numpyro.sample("first", dist.Normal(0.0, 3.0).expand([6]).to_event(1))
    second = numpyro.sample("second", dist.Normal(0.0, 3.0).expand([6]).to_event(1))
    with numpyro.plate("data", num_data or len(data)):
        numpyro.sample("bits", dist.Bernoulli(logits=first * second).to_event(1), obs=data)


def test_nuts_goes_on_where_weights_cannot_be_trusted():
    data = (np.arange(360) % 4 < 3).astype(float).reshape(60, 6)
    start = {"first": np.ones(6), "second": np.ones(6)}
    posterior = posterior_draws(products, start, data, num_draws=400, budget=20.0)
    assert posterior.how == "NUTS" and posterior.pareto_k > 0.7
    assert posterior.params["first"].shape[0] == 4 and np.isnan(posterior.log_evidence)
    stopped = posterior_draws(products, start, data, num_draws=400, budget=1e-3)
    assert (
        not stopped.sound and stopped.how != "NUTS" and "NUTS did not follow" in stopped.notes[-1]
    )
    assert "not to be trusted" in str(stopped)


def test_too_many_components_are_said_and_enough_are_not():
    rng = np.random.default_rng(3)
    probs = np.array([[0.9] * 8, [0.1] * 8])
    data = (rng.random((200, 8)) < probs[rng.integers(2, size=200)]).astype(float)
    told = {}
    for count in (2, 4):
        fit = EM(bernoulli_mixture).run(
            random.key(0), 200, data, num_components=count, progress_bar=False
        )
        found = posterior_draws(
            bernoulli_mixture, fit.params, data, num_draws=300, num_components=count,
            fall_back=False,
        )  # fmt: skip
        told[count] = " ".join(found.notes)
    assert "prior" not in told[2] and "exchange" not in told[2]
    assert "prior" in told[4] or "exchange" in told[4]


def test_four_factors_are_refused():
    with pytest.raises(ProgramError, match="four or more continuous latents"):
        collapsed(latent_trait, (np.eye(6),), {"num_factors": 4})


def test_the_collapsed_program_is_the_integral():
    data, kwargs = np.eye(3), {"num_factors": 1}
    params = {
        "weights": jnp.array([[1.0, -2.0, 0.5]]),
        "bias": jnp.array([0.1, 0.0, -1.0]),
    }
    program = collapsed(latent_trait, (data,), kwargs)
    value, trace = log_density(program, (data,), kwargs, params)
    nodes, weights = hermegauss(80)
    probs = expit(np.outer(nodes, params["weights"][0]) + np.asarray(params["bias"]))
    rows = [np.prod(np.where(row == 1, probs, 1 - probs), 1) @ weights for row in data]
    prior = sum(trace[x]["fn"].log_prob(params[x]).sum() for x in params)
    expected = np.log(np.array(rows) / weights.sum()).sum() + prior
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    with handlers.trace() as first, handlers.seed(rng_seed=0):
        program(data, **kwargs)
    with handlers.trace() as second, handlers.seed(rng_seed=1):
        program(data, **kwargs)
    assert not np.allclose(first["bias"]["value"], second["bias"]["value"])


def test_newton_finds_a_mode_from_afar():
    def curved(x, at):
        return -jnp.sum(jnp.cosh(x - at)) - 0.1 * (x[0] * x[1]) ** 2

    with jax.enable_x64(True):
        places, far = np.array([[0.5, -1.0], [3.0, 4.0]]), np.full(2, 20.0)
        hill = Hill.of(curved, far, places[0])
        for at in places:
            mode = find_mode(hill, far, at)
            slope, hessian = jax.grad(curved)(mode.place, at), jax.hessian(curved)(mode.place, at)
            assert np.abs(slope).max() < 1e-2
            inverse = mode.root @ mode.root.T
            np.testing.assert_allclose(-inverse @ np.asarray(hessian), np.eye(2), atol=1e-2)


@pytest.mark.parametrize("tail", [4.0, 30.0])
def test_heavy_tails_are_met_by_other_proposals(tail):
    """The normaliser of a Student t, from a normal that is three times too narrow."""
    target = Proposal(np.full(3, 1.0), 3.0 * np.eye(3), tail)
    near = Mode(np.zeros(3), np.eye(3))
    found = importance(target.log_prob, [near], np.random.default_rng(0), 4000)
    assert found.how != "Laplace" and found.sound
    value, error = found.log_mean
    assert abs(value) < 4 * error


def test_more_is_drawn_until_enough_draws_are_effective():
    """A proposal 1.6 times too wide in ten dimensions: k̂ is small, one draw of ten effective."""
    target, wide = Proposal(np.zeros(10), np.eye(10)), Mode(np.zeros(10), 1.6 * np.eye(10))
    found = importance(target.log_prob, [wide], np.random.default_rng(0), 1000)
    assert found.how != "Laplace" and found.sound and found.effective >= 400
    assert abs(found.log_mean[0]) < 4 * found.log_mean[1]


def test_a_mode_apart_is_found_from_the_other_optima():
    """Bits of one column by a cosine: two modes, of which one holds three quarters."""

    def twofold(data):
        angle = numpyro.sample("angle", dist.Normal(0.0, 3.0))
        numpyro.factor("tilt", 0.6 * angle)
        with numpyro.plate("data", len(data)):
            numpyro.sample("bits", dist.Bernoulli(probs=jnp.exp(-((angle**2 - 4) ** 2))), obs=data)

    data, grid = np.ones(4), np.linspace(-4, 4, 20001)
    known = np.exp(-4 * (grid**2 - 4) ** 2 - grid**2 / 18 + 0.6 * grid)
    start, others = {"angle": np.array(-1.9)}, {"angle": np.array([1.9, 2.0])}
    found = posterior_draws(twofold, start, data, others=others)
    assert found.sound and "2 modes" in found.notes[0]
    above = known[grid > 0].sum() / known.sum()
    assert abs((found.params["angle"] > 0).mean() - above) < 4 * np.sqrt(0.25 / 400)
    evidence = np.log(known.sum() * (grid[1] - grid[0]) / np.sqrt(18 * np.pi))
    assert abs(found.log_evidence - evidence) < 4 * found.evidence_error
    alone = posterior_draws(twofold, start, data)
    assert (alone.params["angle"] < 0).all()


def test_a_proposal_is_scipys():
    from scipy.stats import multivariate_normal, multivariate_t

    root = np.array([[1.0, 0.0], [0.7, 2.0]])
    draws = np.random.default_rng(0).normal(size=(5, 2))
    scale = root @ root.T
    np.testing.assert_allclose(
        Proposal(np.ones(2), root).log_prob(draws),
        multivariate_normal(np.ones(2), scale).logpdf(draws),
    )
    np.testing.assert_allclose(
        Proposal(np.ones(2), root, 5.0).log_prob(draws),
        multivariate_t(np.ones(2), scale, 5.0).logpdf(draws),
    )


def test_draws_of_density_zero_weigh_nothing():
    logs = np.log(np.linspace(0.5, 1.5, 60))
    found = weigh("Laplace", np.zeros((60, 1)), np.where(np.arange(60) < 30, -np.inf, logs), logs)
    assert (found.weights[:30] == 0).all() and found.log_mean[0] == pytest.approx(np.log(0.5))
    assert found.resampled(np.random.default_rng(0), 100).min() >= 30


def weather(seen):
    """A chain of which the chance to stay is unknown."""
    stay = numpyro.sample("stay", dist.Beta(4.0, 2.0))

    def step(before, y):
        state = numpyro.sample("state", dist.Bernoulli(jnp.where(before == 1, stay, 1.0 - stay)))
        numpyro.sample("seen", dist.Bernoulli(jnp.where(state == 1, 0.8, 0.2)), obs=y)
        return state, None

    scan(step, 0, seen)


def forward(stay, seen):
    """p(seen) by the sum over paths, step by step."""
    off, on = 1.0, 0.0
    for y in seen:
        rain, dry = on * stay + off * (1 - stay), off * stay + on * (1 - stay)
        on, off = rain * (0.8 if y else 0.2), dry * (0.2 if y else 0.8)
    return on + off


def hard_items(item, right):
    """Items of two kinds in long format."""
    kind = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("items", 4):
        hard = numpyro.sample("hard", dist.Bernoulli(kind))
    with numpyro.plate("answers", len(right)):
        numpyro.sample("right", dist.Bernoulli(jnp.where(hard[item] == 1, 0.3, 0.8)), obs=right)


def of_items(share, item, right):
    """p(right) by the sum over both kinds of each item."""
    total = 1.0
    for i in range(4):
        mine = [y for j, y in zip(item, right, strict=True) if j == i]
        hard, easy = (np.prod([p if y else 1 - p for y in mine]) for p in (0.3, 0.8))
        total = total * (share * hard + (1 - share) * easy)
    return total


SEEN = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 1], float)


@pytest.mark.parametrize(
    ("model", "site", "arguments", "shape", "likelihood"),
    [
        (weather, "stay", (SEEN,), (4, 2), forward),
        (hard_items, "share", (np.arange(10) % 4, SEEN), (2, 2), of_items),
    ],
)
def test_latents_that_meet_beyond_their_rows_are_summed(model, site, arguments, shape, likelihood):
    grid = (np.arange(2000) + 0.5) / 2000
    density = beta(*shape).pdf(grid) * np.array([likelihood(x, *arguments) for x in grid])
    found = posterior_draws(model, {site: np.array(0.6)}, *arguments)
    assert found.sound
    assert abs(found.log_evidence - np.log(density.mean())) < 4 * found.evidence_error
    mean = density @ grid / density.sum()
    error = np.sqrt(density @ (grid - mean) ** 2 / density.sum() / 400)
    assert abs(found.params[site].mean() - mean) < 4 * error


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"rate": np.ones(3)}, "parameters are .'rate'., but those of the program .'probs'."),
        ({"probs": np.ones(2)}, r"'probs' has shape \(2,\), but the program's has \(3,\)"),
        ({"probs": np.array([0.5, np.nan, 0.5])}, "'probs' does not hold finite numbers"),
    ],
)
def test_parameters_of_another_program_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        posterior_draws(bernoulli_product, params, np.eye(3))
