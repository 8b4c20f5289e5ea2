"""The hidden units of the combination machines against the full table of their states."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from distribution_tools import (
    IDENTITY,
    LOG_DENSITY,
    RARE,
    batched_machine,
    log_prob_of,
    machine,
    moments_of,
    sample_from,
)
from jax import random

from ppl_models.distributions import CombinationCauses, RealCombinationCauses


def all_states(num_causes):
    return np.array(list(itertools.product((0, 1), repeat=num_causes)))


def log_mass(kind, weights, bias, state):
    """The exponent of (3.4) or of (3.7), with the constants of the observed units."""
    combined = state @ weights
    if kind is CombinationCauses:
        return np.dot(bias, state) + np.log(2 * np.cosh(combined)).sum()
    return np.dot(bias, state) + (combined**2 / 2 + np.log(2 * np.pi) / 2).sum()


def log_table(kind, weights, bias):
    masses = [log_mass(kind, weights, bias, state) for state in all_states(len(bias))]
    return np.array(masses), scipy.special.logsumexp(masses)


MACHINES = pytest.mark.parametrize("kind", [CombinationCauses, RealCombinationCauses])


# ---- the hidden units of the combination machine -----------------------------------------------


@MACHINES
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (4, 3), (7, 5)])
@pytest.mark.usefixtures("double")
def test_log_probability_of_every_state(kind, shape):
    weights, bias = machine(*shape)
    masses, log_total = log_table(kind, weights, bias)
    fn = kind(weights, bias)
    log_probs = log_prob_of(fn, jnp.asarray(all_states(shape[0])))
    np.testing.assert_allclose(log_probs, masses - log_total, atol=IDENTITY)
    np.testing.assert_allclose(fn.log_normalizer, log_total, rtol=IDENTITY)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1, rtol=IDENTITY)
    mean = np.exp(log_probs) @ all_states(shape[0])
    exact_mean, exact_variance = moments_of(fn)
    np.testing.assert_allclose(exact_mean, mean, atol=IDENTITY)
    np.testing.assert_allclose(exact_variance, mean * (1 - mean), atol=IDENTITY)


@MACHINES
def test_single_precision(kind):
    weights, bias = machine(6, 16)
    masses, log_total = log_table(kind, weights, bias)
    log_probs = log_prob_of(kind(weights, bias), jnp.asarray(all_states(6)))
    assert log_probs.dtype == jnp.float32
    # The rounding is that of log Z, which is larger than the log probability it is taken from.
    np.testing.assert_allclose(log_probs, masses - log_total, atol=LOG_DENSITY * abs(log_total))


@MACHINES
def test_large_weights_do_not_overflow(kind):
    fn = kind(jnp.full((3, 2), 100.0), jnp.zeros(3))
    np.testing.assert_allclose(log_prob_of(fn, jnp.ones(3)), 0, atol=1e-2)
    gradient = jax.jit(jax.grad(lambda w: kind(w, jnp.zeros(3)).log_normalizer))(fn.weights)
    assert jnp.isfinite(gradient).all()


@pytest.mark.usefixtures("double")
def test_joint_with_bernoulli_units_is_the_exponential_of_the_energy():
    """P(h) P(x|h) = exp(Σ h_i(ω_i·x + θ_i)) / Z_B, Z_B summed over x and h by brute force."""
    weights, bias = machine(3, 4)
    fn = CombinationCauses(weights, bias)
    table = np.zeros((8, 16))
    for i, hidden in enumerate(all_states(3)):
        for j, bits in enumerate(all_states(4)):
            table[i, j] = hidden @ (weights @ (2 * bits - 1) + bias)
    units = dist.Bernoulli(logits=2 * all_states(3)[:, None] @ weights).to_event(1)
    log_causes = log_prob_of(fn, all_states(3))
    log_joint = log_causes[:, None] + log_prob_of(units, all_states(4))
    log_total = scipy.special.logsumexp(table)
    np.testing.assert_allclose(log_joint, table - log_total, atol=IDENTITY)
    np.testing.assert_allclose(fn.log_normalizer, log_total, rtol=IDENTITY)


@pytest.mark.usefixtures("double")
def test_joint_with_gaussian_units_is_the_exponential_of_the_energy():
    """Equation (2.5), with Z_R by quadrature over one real unit."""
    weights, bias = machine(3, 1)
    fn = RealCombinationCauses(weights, bias)
    total, _ = scipy.integrate.quad(
        lambda x: sum(np.exp(h @ (weights[:, 0] * x + bias) - x**2 / 2) for h in all_states(3)),
        -40,
        40,
        points=[-5, 0, 5],
    )
    np.testing.assert_allclose(fn.log_normalizer, np.log(total), rtol=1e-8)
    log_causes = log_prob_of(fn, all_states(3))
    for x in (-1.3, 0.2, 2.5):
        energy = all_states(3) @ (weights[:, 0] * x + bias) - x**2 / 2
        log_joint = log_causes + scipy.stats.norm.logpdf(x, all_states(3) @ weights[:, 0])
        np.testing.assert_allclose(log_joint, energy - np.log(total), atol=1e-8)


@MACHINES
@pytest.mark.usefixtures("double")
def test_gradients_against_finite_differences(kind):
    weights, bias = machine(4, 3)
    hidden = np.array([0.7, 0.1, 1.0, -0.4])

    @jax.jit
    def log_prob(arguments):
        weights, bias, hidden = arguments
        return kind(weights, bias, validate_args=False).log_prob(hidden)

    arguments = (weights, bias, hidden)
    gradient = jax.device_get(jax.jit(jax.grad(log_prob))(arguments))
    for position, array in enumerate(arguments):
        for index in np.ndindex(array.shape):
            step = 1e-5

            def shifted(by, position=position, index=index):
                moved = [array.copy() for array in arguments]
                moved[position][index] += by
                return float(log_prob(tuple(moved)))

            slope = (shifted(step) - shifted(-step)) / (2 * step)
            # The error of a central difference of this step is of the order of 1e-10.
            np.testing.assert_allclose(gradient[position][index], slope, atol=1e-8)


@MACHINES
@pytest.mark.usefixtures("double")
def test_curvature_in_the_causes_at_the_origin(kind):
    """ω(0) = 0 is where a careless log cosh has no curvature: both have WWᵀ there."""
    weights, bias = machine(4, 3)

    @jax.jit
    def derivatives(hidden):
        log_prob = kind(weights, bias, validate_args=False).log_prob
        return jax.grad(log_prob)(hidden), jax.hessian(log_prob)(hidden)

    slope, curvature = derivatives(np.zeros(4))
    np.testing.assert_allclose(curvature, weights @ weights.T)
    np.testing.assert_allclose(slope, bias, rtol=IDENTITY)


# So many features that only 16 states fit into a chunk: 4 chunks.
WIDE = (6, 2**14)


@MACHINES
@pytest.mark.usefixtures("double")
def test_several_chunks_make_the_same_sum(kind):
    weights, bias = machine(*WIDE, scale=0.02)
    masses, log_total = log_table(kind, weights, bias)
    fn = kind(weights, bias)
    np.testing.assert_allclose(fn.log_normalizer, log_total, rtol=1e-12)
    mean = np.exp(masses - log_total) @ all_states(6)
    np.testing.assert_allclose(moments_of(fn)[0], mean, atol=IDENTITY)


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad])
def test_memory_does_not_grow_with_the_number_of_states(transform):
    def log_normalizer(weights, bias):
        return CombinationCauses(weights, bias).log_normalizer

    weights, bias = jnp.zeros((20, 64)), jnp.zeros(20)
    compiled = jax.jit(transform(log_normalizer)).lower(weights, bias).compile()
    all_at_once = 2**20 * 64 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < all_at_once / 16


@MACHINES
@pytest.mark.parametrize("shape", [(3, 2), (4, 2**16)], ids=["one chunk", "four chunks"])
def test_causes_are_drawn_from_their_own_distribution(kind, shape):
    weights, bias = machine(*shape, scale=1.0 if shape[1] == 2 else 0.004)
    fn = kind(weights, bias)
    num_draws = 5000
    draws = sample_from(fn, random.key(2), (num_draws,))
    masses, log_total = log_table(kind, weights, bias)
    expected = num_draws * np.exp(masses - log_total)
    observed = np.bincount(draws @ (2 ** np.arange(shape[0])[::-1]), minlength=2 ** shape[0])
    # Cells too rare for the χ² approximation count as one.
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    present = expected > 0
    statistic = ((observed - expected)[present] ** 2 / expected[present]).sum()
    assert present.sum() > 4
    assert statistic < scipy.stats.chi2.isf(RARE, present.sum() - 1)


@pytest.mark.usefixtures("double")
def test_batches_are_independent_machines():
    weights, bias = batched_machine()
    fn = CombinationCauses(weights, bias)
    assert (fn.batch_shape, fn.event_shape) == ((2,), (3,))
    hidden = jnp.asarray(all_states(3))[:, None]
    each = [log_prob_of(CombinationCauses(w, bias), hidden[:, 0]) for w in weights]
    np.testing.assert_allclose(log_prob_of(fn, hidden), np.stack(each, -1), atol=IDENTITY)
    draws = sample_from(fn, random.key(0), (4000,))
    # Of 4000 bits, the mean has a standard error of at most 0.008; 4.9 of them are rare.
    np.testing.assert_allclose(draws.mean(0), moments_of(fn)[0], atol=4.9 * 0.008)
