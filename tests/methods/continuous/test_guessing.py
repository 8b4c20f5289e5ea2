"""Guessing (3PL): a copy under other names, against the oracle's posterior and its differences."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import beta, norm

from inference import QuadratureEM, standard_errors
from inference.methods.continuous.opening import open_columns
from ppl_models import latent_trait

ITEMS = 3
RNG = np.random.default_rng(0)
SLOPE, BIAS = np.array([1.2, 0.8, 2.0]), np.array([-1.0, 0.8, 0.2])
GUESS = np.array([0.1, 0.3, 0.2])
TRAIT = RNG.normal(size=(500, 1)) * SLOPE + BIAS
PROBABILITY = GUESS + (1.0 - GUESS) / (1.0 + np.exp(-TRAIT))
DATA = (RNG.random(PROBABILITY.shape) < PROBABILITY) + 0.0


def exam(answers):
    """The 3PL under other names, by probabilities, the items' luck in two sites."""
    steep = numpyro.sample("steep", dist.Normal(1.0, 0.5).expand((ITEMS, 1)).to_event(2))
    easy = numpyro.sample("easy", dist.Normal(0.0, 2.0).expand((ITEMS,)).to_event(1))
    some = numpyro.sample("luck", dist.Beta(4.0, 12.0).expand((2,)).to_event(1))
    rest = numpyro.sample("more luck", dist.Beta(2.0, 9.0).expand((ITEMS - 2,)).to_event(1))
    luck = jnp.concatenate([some, rest])
    with numpyro.plate("people", len(answers)):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0))[..., None]
        probability = luck + (1.0 - luck) / (1.0 + jnp.exp(-(skill * steep[:, 0] + easy)))
        numpyro.sample("right", dist.Bernoulli(probability).to_event(1), obs=answers)


@pytest.fixture(scope="module")
def fits():
    method = QuadratureEM(exam, prior=True)
    return [method.run(random.key(i), 200, DATA, tolerance=1e-7) for i in range(12)]


def test_all_starts_end_at_one_optimum(fits):
    assert open_columns(exam, (DATA,), {}, None).known is not None
    assert all(fit.stop.converged and fit.optima.agree == 2 for fit in fits)
    assert np.ptp([float(fit.losses[-1]) for fit in fits]) < 1e-3
    for fit in fits:
        np.testing.assert_allclose(fit.params["luck"], fits[0].params["luck"], atol=1e-4)


def log_posterior(vector):
    """Of weights, biases and logits, by the oracle's loops on a line; priors by SciPy."""
    weights, bias, logits = np.split(vector, [ITEMS, 2 * ITEMS])
    guess = 1.0 / (1.0 + np.exp(-logits))
    patterns, count = np.unique(DATA, axis=0, return_counts=True)
    line = np.linspace(-7.0, 7.0, 61)
    sites = {"weights": weights[None], "bias": bias, "guessing": guess}
    joint = [
        oracle.log_joint_latent_trait(
            {**sites, "factors": np.full((len(patterns), 1), x)}, patterns
        )
        for x in line
    ]
    evidence = np.logaddexp.reduce(np.stack(joint)) + np.log(line[1] - line[0])
    prior = norm.logpdf(weights, 1.0, 0.5).sum() + norm.logpdf(bias, 0.0, 2.0).sum()
    prior += beta.logpdf(guess[:2], 4.0, 12.0).sum() + beta.logpdf(guess[2:], 2.0, 9.0).sum()
    return count @ evidence + prior


def test_the_optimum_and_its_errors_are_those_of_the_oracles_posterior(fits):
    params = fits[0].params
    guess = np.concatenate([params["luck"], params["more luck"]]).astype(float)
    at = np.concatenate(
        [np.ravel(params["steep"]), params["easy"], np.log(guess) - np.log1p(-guess)]
    ).astype(float)
    size, step = len(at), 1e-3
    value, moves = log_posterior(at), step * np.eye(size)
    ups, downs = (np.array([log_posterior(at + s * x) for x in moves]) for s in (1.0, -1.0))
    np.testing.assert_allclose((ups - downs) / (2.0 * step), 0.0, atol=0.02)
    errors = standard_errors(exam, params, DATA, prior=True)
    spread = np.concatenate([errors["luck"], errors["more luck"]]) / (guess * (1.0 - guess))
    spread = np.concatenate([np.ravel(errors["steep"]), errors["easy"], spread])
    bend = np.diag(2.0 * value - ups - downs)
    for i in range(size):
        for j in range(i):
            both = [log_posterior(at + s * (moves[i] + moves[j])) for s in (1.0, -1.0)]
            cross = ups[i] + ups[j] + downs[i] + downs[j] - 2.0 * value - sum(both)
            bend[i, j] = bend[j, i] = 0.5 * cross
    wanted = np.sqrt(np.diagonal(np.linalg.inv(bend / step**2)))
    np.testing.assert_allclose(spread, wanted, rtol=5e-3)


def minus_log_likelihood(vector, answers):
    """Without a prior, and its gradient: Bock and Aitkin's table of expected answers."""
    line = np.linspace(-6.0, 6.0, 81)
    slope, bias, logits = vector.reshape(3, -1)
    guess, known = expit(logits), expit(line[:, None] * slope + bias)
    right = guess + (1.0 - guess) * known
    joint = answers @ np.log(right).T + (1.0 - answers) @ np.log1p(-right).T + norm.logpdf(line)
    evidence = np.logaddexp.reduce(joint, axis=1)
    share = np.exp(joint - evidence[:, None])
    pull = (share.T @ answers - share.sum(0)[:, None] * right) / (right * (1.0 - right))
    bent = pull * (1.0 - guess) * known * (1.0 - known)
    slopes = [(line[:, None] * bent).sum(0), bent.sum(0)]
    slopes.append((pull * (1.0 - known)).sum(0) * guess * (1.0 - guess))
    total = evidence.sum() + len(answers) * np.log(line[1] - line[0])
    return -total, -np.concatenate(slopes)


def test_every_start_ends_at_the_maximum_of_a_flat_likelihood():
    """Two items that most can guess, one on which the able do worse, and no prior."""
    rng, items = np.random.default_rng(2), 24
    slope, bias = rng.lognormal(0.2, 0.3, items), rng.normal(size=items)
    slope[0] *= -1.0
    guess = rng.beta(1.0, 3.0, items)
    guess[1:3] = 0.8
    chance = guess + (1.0 - guess) * expit(rng.normal(size=(1000, 1)) * slope + bias)
    answers = (rng.random(chance.shape) < chance) + 0.0

    method = QuadratureEM(latent_trait, prior=False)
    run = {"tolerance": 1e-7, "num_factors": 1, "guessing": True}
    fits = [method.run(random.key(key), 500, answers, **run) for key in range(4)]
    assert np.ptp([float(fit.losses[-1]) for fit in fits]) < 0.05
    found = {name: np.ravel(x).astype(float) for name, x in fits[0].params.items()}
    at = np.concatenate([found["weights"], found["bias"], logit(found["guessing"])])
    polish = {"jac": True, "method": "L-BFGS-B", "options": {"maxiter": 200}}
    best = minimize(minus_log_likelihood, at, args=(answers,), **polish)
    assert abs(float(fits[0].losses[-1]) - best.fun) < 0.05
