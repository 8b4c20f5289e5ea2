"""Annealed importance sampling against sums that can be written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy.special import logsumexp, softmax

from inference.numerics.annealed import anneal, log_mean


def test_likelihood_of_every_datum_at_once():
    """Two coins behind each datum, p(z) p(y | z)^β by Gibbs: all four states are summed by hand."""
    prior = np.array([0.2, 0.7])
    effect = np.array([[2.0, -3.0, 1.0], [-1.0, 2.5, 2.0]])
    data = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], float)[:, None, :]

    def log_density(bits, beta):
        """(chains, data): log p(z) + β log p(y | z)."""
        log_prior = jnp.where(bits == 1, jnp.log(prior), jnp.log1p(-prior)).sum(-1)
        logits = bits @ effect - 0.5
        return log_prior + beta * (data * logits - jax.nn.softplus(logits)).sum(-1)

    def transition(key, bits, beta):
        for i, key_bit in enumerate(random.split(key, 2)):
            odds = log_density(bits.at[..., i].set(1.0), beta)
            odds = odds - log_density(bits.at[..., i].set(0.0), beta)
            bits = bits.at[..., i].set(random.bernoulli(key_bit, jax.nn.sigmoid(odds)) + 0.0)
        return bits

    @jax.jit
    def run():
        start = random.bernoulli(random.key(0), prior, (400, 4, 2)) + 0.0
        betas = jnp.linspace(0.0, 1.0, 20)
        annealed = anneal(random.key(1), start, log_density, transition, betas)
        return annealed, log_mean(annealed.log_weights), log_density(states, 1.0)

    annealed, estimate, joint = jax.device_get(run())
    exact = logsumexp(joint, axis=0)
    assert estimate.value.shape == (4,)
    # Four estimates with fixed keys: beyond four standard errors is 1 in 4000.
    assert (np.abs(estimate.value - exact) < 4 * estimate.standard_error).all()
    assert (estimate.standard_error < 0.1).all()
    # The weighted states are draws from the posterior.
    posterior = np.exp(joint - exact)
    weights = softmax(annealed.log_weights, axis=0)
    mean = np.einsum("sn,snh->nh", weights, annealed.states)
    wanted = np.einsum("sn,sh->nh", posterior, states[:, 0])
    # 400 weighted draws of a bit: a standard error of at most 0.03 or so.
    np.testing.assert_allclose(mean, wanted, atol=0.12)


def test_more_steps_make_a_surer_estimate():
    log_density = lambda x, beta: -0.5 * (x * (1 + 9 * beta)) ** 2  # noqa: E731
    draw = lambda key, x, beta: random.normal(key, x.shape) / (1 + 9 * beta)  # noqa: E731

    @jax.jit
    def estimate():
        start = random.normal(random.key(0), (500,))
        paths = (jnp.linspace(0.0, 1.0, steps) for steps in (3, 100))
        runs = (anneal(random.key(1), start, log_density, draw, betas) for betas in paths)
        return [log_mean(run.log_weights) for run in runs]

    few, many = jax.device_get(estimate())
    assert many.standard_error < few.standard_error / 2
    assert many.effective > few.effective
    assert abs(many.value - np.log(0.1)) < 4 * many.standard_error


def test_log_mean_has_the_standard_error_of_repeated_estimates():
    """The delta method, held to 2000 means of 50 weights each."""
    run = jax.jit(lambda: log_mean(0.5 * random.normal(random.key(0), (50, 2000))))
    estimate = jax.device_get(run())
    np.testing.assert_allclose(estimate.standard_error.mean(), np.std(estimate.value), rtol=0.1)
    # E[log-normal] = exp(σ²/2); the log of a mean of 50 lies a little lower.
    np.testing.assert_allclose(estimate.value.mean(), 0.125, atol=0.01)


def test_weights_far_apart_do_not_overflow():
    estimate = log_mean(jnp.array([-2000.0, 900.0, 901.0]))
    assert jnp.isfinite(estimate.value) and jnp.isfinite(estimate.standard_error)
    assert jnp.isnan(log_mean(jnp.array([1.0])).standard_error)


def test_one_beta_is_no_path():
    with pytest.raises(ValueError, match="at least two numbers"):
        anneal(random.key(0), jnp.zeros(3), jnp.multiply, max, jnp.ones(1))
