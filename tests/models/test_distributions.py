"""The distributions against NumPy and SciPy, and what NumPyro expects of any."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import scipy.stats
from distribution_tools import (
    LOG_DENSITY,
    RARE,
    batched_machine,
    log_prob_of,
    moments_of,
    sample_from,
)
from jax import random
from numpyro.distributions.batch_util import vmap_over

from ppl_models.distributions import (
    ClippedNormal,
    CombinationCauses,
    NoisyOr,
    RealCombinationCauses,
)


@pytest.fixture(params=[False, True], ids=["single", "double"])
def precise(request):
    if request.param:
        request.getfixturevalue("double")
    return request.param


# One of each kind, with a batch of 2; the real machine shares every line but one with the binary.
INSTANCES = {
    "noisy_or": lambda: NoisyOr(jnp.array([0.3, 2.0])),
    "clipped_normal": lambda: ClippedNormal(jnp.array([0.3, -2.0]), jnp.array([1.5, 0.8])),
    "causes": lambda: CombinationCauses(*batched_machine()),
}
EACH = pytest.mark.parametrize("name", INSTANCES)


# ---- one bit ---------------------------------------------------------------------------------


def test_noisy_or_is_right_from_the_tiniest_to_the_largest_input(precise):
    caused = np.array([1e-30, 1e-10, 1e-3, 0.6, 0.8, 5.0, 40.0, 1e4])
    fn = NoisyOr(jnp.asarray(caused))
    tolerance = 1e-13 if precise else 1e-6
    one, zero = log_prob_of(fn, 1), log_prob_of(fn, 0)
    expected = [np.log(-np.expm1(-u)) if u < 1 else np.log1p(-np.exp(-u)) for u in caused]
    np.testing.assert_allclose(one, expected, rtol=tolerance)
    np.testing.assert_allclose(zero, -caused, rtol=tolerance)
    np.testing.assert_allclose(np.exp(one) + np.exp(zero), 1, rtol=tolerance)


@pytest.mark.usefixtures("double")
def test_noisy_or_gradients():
    caused = jnp.array([1e-30, 1e-3, 0.6, 0.8, 5.0, 40.0])
    slope = jax.jit(jax.vmap(jax.grad(lambda u, v: NoisyOr(u).log_prob(v)), (0, None)))
    on, off = slope(caused, 1), slope(caused, 0)
    np.testing.assert_allclose(on, 1 / np.expm1(caused), rtol=1e-12)
    np.testing.assert_allclose(off, -1.0)


def test_noisy_or_without_input_is_never_on_and_harms_no_gradient():
    """Column 0 has no cause at all; the gradient of the others must not notice."""
    causes = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    weights = np.array([[0.0, 0.7], [0.0, 0.4]], np.float32)

    @jax.jit
    def total(weights, bits):
        return NoisyOr(causes @ weights).log_prob(bits).sum()

    impossible = np.array([[1, 1], [0, 1]])
    assert log_prob_of(NoisyOr(0.0), 1) == -np.inf
    assert log_prob_of(NoisyOr(0.0), 0) == 0
    assert total(weights, impossible) == -jnp.inf
    slope = jax.jit(jax.grad(total))
    gradient = np.asarray(slope(weights, impossible))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[:, 1], 1 / np.expm1(weights[:, 1]), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(slope(weights, 1 - impossible))[1, 0], 0.0)
    np.testing.assert_allclose(np.asarray(slope(weights, 0 * impossible))[:, 0], -1.0)


def test_noisy_or_with_endless_input_is_always_on():
    assert log_prob_of(NoisyOr(np.inf), 1) == 0
    assert log_prob_of(NoisyOr(np.inf), 0) == -np.inf
    assert jax.jit(jax.grad(lambda u: NoisyOr(u).log_prob(1)))(np.inf) == 0


def test_clipped_normal_is_the_probit_even_far_in_the_tail(precise):
    loc = np.array([-1e6, -700.0, -42.0, -40.0, -1.3, 0.0, 0.4, 9.0, 41.0, 1e6])
    scale = 2.0
    fn = ClippedNormal(jnp.asarray(loc), scale)
    tolerance = 1e-11 if precise else 1e-5
    for value, sign in ((1, 1), (0, -1)):
        expected = scipy.stats.norm.logcdf(sign * loc / scale)
        # Next to certainty, single precision knows the probability and not its distance from 1.
        allowed = 1e-30 if precise else 1e-9
        log_prob = log_prob_of(fn, value)
        np.testing.assert_allclose(log_prob, expected, rtol=tolerance, atol=allowed)


def test_clipped_normal_gradients_hold_where_the_probability_underflows(precise):
    ratio = np.array([-1e4, -300, -30.1, -29.9, -20.5, -19.5, -10.1, -9.9, -2.0, 0.0, 3.0, 50.0])

    def log_one(loc):
        return ClippedNormal(loc, 1.0).log_prob(1)

    # The inverse Mills ratio, and its derivative -r(x + r), by the scaled complementary error
    # function, which does not underflow.
    mills = np.sqrt(2 / np.pi) / scipy.special.erfcx(-ratio / np.sqrt(2))
    first = jax.jit(jax.vmap(jax.grad(log_one)))(jnp.asarray(ratio))
    np.testing.assert_allclose(first, mills, rtol=1e-12 if precise else 2e-6, atol=1e-30)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(log_one))))(jnp.asarray(ratio))
    # Far off the sum cancels badly; there it is -1 + 1/x² - 6/x⁴ and so on.
    far = np.minimum(ratio, -100.0) ** -2.0
    expected = np.where(ratio > -100, -mills * (ratio + mills), -1 + far - 6 * far**2)
    np.testing.assert_allclose(second, expected, rtol=1e-9 if precise else 1e-3, atol=1e-30)


def test_hard_clip_is_zero_or_minus_infinity_and_never_nan():
    fn = ClippedNormal(jnp.array([-2.0, 0.0, 1e-20]), jnp.array([0.0, 0.0, 0.0]))
    np.testing.assert_array_equal(log_prob_of(fn, 1), [-np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(log_prob_of(fn, 0), [0.0, 0.0, -np.inf])
    mean, variance = moments_of(fn)
    np.testing.assert_array_equal(mean, [0, 0, 1])
    np.testing.assert_array_equal(variance, [0, 0, 0])
    draws = sample_from(fn, random.key(0), (100,))
    np.testing.assert_array_equal(draws, np.tile([0, 0, 1], (100, 1)))

    def total(loc, scale, value):
        return ClippedNormal(loc, scale).log_prob(value).sum()

    slope = jax.jit(jax.grad(total, (0, 1)))
    for value in (0, 1):
        # A column with noise beside hard ones: its own gradient, and nothing but zeros.
        scale = np.array([0.0, 0.0, 2.0], np.float32)
        loc = np.array([-1.0, 1.0, 1.0], np.float32)
        by_loc, by_scale = jax.device_get(slope(loc, scale, value))
        assert np.isfinite(by_loc).all()
        assert np.isfinite(by_scale).all()
        np.testing.assert_array_equal(by_loc[:2], 0)
        assert by_loc[2] != 0


def test_infinite_location_is_certain():
    fn = ClippedNormal(jnp.array([-jnp.inf, jnp.inf]), 1.0, validate_args=False)
    np.testing.assert_array_equal(log_prob_of(fn, jnp.array([0, 1])), [0, 0])
    np.testing.assert_array_equal(log_prob_of(fn, jnp.array([1, 0])), [-np.inf, -np.inf])


@pytest.mark.parametrize("name", ["noisy_or", "clipped_normal"])
def test_bits_are_drawn_with_their_own_probability(name):
    fn = INSTANCES[name]()
    num_draws = 20_000
    draws = np.asarray(sample_from(fn, random.key(1), (num_draws,)))
    assert set(np.unique(draws)) == {0, 1}
    probs = np.exp(log_prob_of(fn, 1))
    # The mean of n bits has standard error √(p(1-p)/n); 4.9 of them are rare.
    bound = scipy.stats.norm.isf(RARE / 2) * np.sqrt(probs * (1 - probs) / num_draws)
    assert (np.abs(draws.mean(0) - probs) < bound).all()
    mean, variance = moments_of(fn)
    np.testing.assert_allclose(mean, probs, rtol=1e-6)
    np.testing.assert_allclose(variance, probs * (1 - probs), rtol=1e-5)


@pytest.mark.parametrize("name", ["noisy_or", "clipped_normal"])
def test_bits_enumerate_and_are_linear_in_their_value(name):
    fn = INSTANCES[name]()
    assert fn.enumerate_support().shape == (2, 2)
    assert fn.enumerate_support(expand=False).shape == (2, 1)
    log_odds = log_prob_of(fn, 1) - log_prob_of(fn, 0)
    slope = jax.jit(jax.vmap(jax.grad(lambda v: fn.log_prob(v).sum())))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(slope, log_odds.sum(), rtol=LOG_DENSITY)


# ---- what every distribution can do ------------------------------------------------------------


@EACH
def test_shapes_types_and_both_kinds_of_key(name):
    fn = INSTANCES[name]()
    for key in (random.key(0), random.PRNGKey(0)):
        draws = sample_from(fn, key, (5, 4))
        assert draws.shape == (5, 4, 2, *fn.event_shape)
        assert jnp.issubdtype(draws.dtype, jnp.integer)
    assert log_prob_of(fn, draws).shape == (5, 4, 2)
    assert [moment.shape for moment in moments_of(fn)] == [fn.shape()] * 2
    assert not fn.has_rsample
    assert fn.support(draws).all()
    with jax.enable_x64(True):
        assert log_prob_of(INSTANCES[name](), draws[0, 0]).dtype == jnp.float64


@EACH
def test_expand_mask_and_to_event(name):
    fn = INSTANCES[name]()
    value = sample_from(fn, random.key(0), (7,))
    log_prob = log_prob_of(fn, value)
    expanded = fn.expand((7, 2))
    assert sample_from(expanded, random.key(1), ()).shape == value.shape
    np.testing.assert_allclose(log_prob_of(expanded, value), log_prob, rtol=1e-6)
    np.testing.assert_allclose(log_prob_of(fn.to_event(1), value), log_prob.sum(-1), rtol=1e-6)
    mask = jnp.array([True, False])
    masked = log_prob_of(fn.mask(mask), value)
    np.testing.assert_allclose(masked, jnp.where(mask, log_prob, 0), rtol=1e-6)


@EACH
def test_pytree_and_jit(name):
    fn = INSTANCES[name]()
    value = sample_from(fn, random.key(0), (7,))
    leaves, structure = jax.tree_util.tree_flatten(fn)
    again = jax.tree_util.tree_unflatten(structure, leaves)
    assert type(again) is type(fn)
    assert (again.batch_shape, again.event_shape) == (fn.batch_shape, fn.event_shape)
    np.testing.assert_array_equal(log_prob_of(again, value), log_prob_of(fn, value))
    eager = fn.log_prob(value)
    np.testing.assert_allclose(log_prob_of(fn, value), eager, rtol=LOG_DENSITY, atol=1e-6)


@EACH
def test_vmap_over_keys_values_and_the_distribution_itself(name):
    batched = INSTANCES[name]()
    value = sample_from(batched, random.key(0), ())
    arguments = {key: jnp.asarray(array) for key, array in batched.get_args().items()}
    # The batch of two as a vmap over two distributions without a batch.
    over = [key for key, array in arguments.items() if jnp.shape(array)[:1] == (2,)]
    kind = type(batched)

    def build(moving):
        return kind(**{**arguments, **moving})

    moving = {key: arguments[key] for key in over}
    axes = vmap_over(build({key: moving[key][0] for key in over}), **dict.fromkeys(over, 0))
    many = jax.vmap(build, out_axes=axes)(moving)
    log_probs = jax.jit(jax.vmap(lambda fn, v: fn.log_prob(v), in_axes=(axes, 0)))(many, value)
    np.testing.assert_allclose(log_probs, log_prob_of(batched, value), rtol=LOG_DENSITY)
    keys = random.split(random.key(1), 2)
    draws = jax.jit(jax.vmap(lambda fn, key: fn.sample(key), in_axes=(axes, 0)))(many, keys)
    assert draws.shape == value.shape


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NoisyOr(-0.1), "NoisyOr distribution got invalid causal_input"),
        (lambda: ClippedNormal(0.0, -1.0), "ClippedNormal distribution got invalid scale"),
        (lambda: ClippedNormal(np.nan, 1.0), "ClippedNormal distribution got invalid loc"),
        (lambda: CombinationCauses(np.ones(3), np.ones(3)), r"found shapes \(3,\) and \(3,\)"),
        (lambda: CombinationCauses(np.ones((3, 2)), np.ones(2)), "3 causes .* but `bias` has 2"),
        (
            lambda: RealCombinationCauses(np.ones((31, 2)), np.ones(31)).log_normalizer,
            "at most 30 causes",
        ),
        (lambda: CombinationCauses(np.full((3, 2), np.nan), np.ones(3)), "invalid weights"),
    ],
)
def test_wrong_arguments_are_refused(build, message):
    # NumPyro validates by default since 0.22.
    with numpyro.validation_enabled(), pytest.raises(ValueError, match=message):
        build()


@EACH
def test_values_out_of_support_are_told(name):
    fn = INSTANCES[name]()
    with numpyro.validation_enabled(), pytest.warns(UserWarning, match="Out-of-support"):
        assert (fn.log_prob(jnp.full(fn.shape(), 0.5)) == -jnp.inf).all()
