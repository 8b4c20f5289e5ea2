"""Annealed importance sampling against sums that can be written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference.numerics.annealed import anneal, log_mean


def test_likelihood_of_every_datum_at_once():
    """Two coins behind each datum, p(z) p(y | z)^β by Gibbs: all four states are summed by hand."""
    prior = jnp.array([0.2, 0.7])
    effect = jnp.array([[2.0, -3.0, 1.0], [-1.0, 2.5, 2.0]])
    data = jnp.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])

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

    start = random.bernoulli(random.key(0), prior, (400, 4, 2)) + 0.0
    annealed = anneal(random.key(1), start, log_density, transition, jnp.linspace(0.0, 1.0, 20))
    estimate = log_mean(annealed.log_weights)
    states = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]], float)[:, None, :]
    exact = jax.scipy.special.logsumexp(log_density(states, 1.0), axis=0)
    assert estimate.value.shape == (4,)
    # Four estimates with fixed keys: beyond four standard errors is 1 in 4000.
    assert (jnp.abs(estimate.value - exact) < 4 * estimate.standard_error).all()
    assert (estimate.standard_error < 0.1).all()
    # The weighted states are draws from the posterior.
    posterior = jnp.exp(log_density(states, 1.0) - exact)
    weights = jax.nn.softmax(annealed.log_weights, axis=0)
    mean = jnp.einsum("sn,snh->nh", weights, annealed.states)
    wanted = jnp.einsum("sn,sh->nh", posterior, states[:, 0])
    # 400 weighted draws of a bit: a standard error of at most 0.03 or so.
    np.testing.assert_allclose(mean, wanted, atol=0.12)


def test_more_steps_make_a_surer_estimate():
    log_density = lambda x, beta: -0.5 * (x * (1 + 9 * beta)) ** 2  # noqa: E731
    draw = lambda key, x, beta: random.normal(key, x.shape) / (1 + 9 * beta)  # noqa: E731
    start = random.normal(random.key(0), (500,))

    def estimate(steps):
        betas = jnp.linspace(0.0, 1.0, steps)
        return log_mean(anneal(random.key(1), start, log_density, draw, betas).log_weights)

    few, many = estimate(3), estimate(100)
    assert many.standard_error < few.standard_error / 2
    assert many.effective > few.effective
    assert abs(many.value - jnp.log(0.1)) < 4 * many.standard_error


def test_log_mean_has_the_standard_error_of_repeated_estimates():
    """The delta method, held to 2000 means of 50 weights each."""
    draws = 0.5 * random.normal(random.key(0), (50, 2000))
    estimate = log_mean(draws)
    np.testing.assert_allclose(
        estimate.standard_error.mean(), np.std(np.asarray(estimate.value)), rtol=0.1
    )
    # E[log-normal] = exp(σ²/2); the log of a mean of 50 lies a little lower.
    np.testing.assert_allclose(estimate.value.mean(), 0.125, atol=0.01)


def test_weights_far_apart_do_not_overflow():
    estimate = log_mean(jnp.array([-2000.0, 900.0, 901.0]))
    assert jnp.isfinite(estimate.value) and jnp.isfinite(estimate.standard_error)
    assert jnp.isnan(log_mean(jnp.array([1.0])).standard_error)


def test_one_beta_is_no_path():
    with pytest.raises(ValueError, match="at least two numbers"):
        anneal(random.key(0), jnp.zeros(3), jnp.multiply, max, jnp.ones(1))
