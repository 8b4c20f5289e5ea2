"""The distributions against NumPy, SciPy and the full table of states.

Three tiers of tolerance: ``IDENTITY`` for what is equal but for rounding in double precision,
``LOG_DENSITY`` for single precision, and Monte Carlo bounds with their reason beside them.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax import random
from numpyro.distributions.batch_util import vmap_over

from ppl_models.distributions import (
    ClippedNormal,
    CombinationCauses,
    NoisyOr,
    RealCombinationCauses,
)

IDENTITY = 1e-10
LOG_DENSITY = 2e-5
# A correct sampler exceeds a bound at this level once in a million keys.
RARE = 1e-6


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """These tests compile much and compute little."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(params=[False, True], ids=["single", "double"])
def double(request):
    if request.param:
        request.getfixturevalue("x64")
    return request.param


# Compiled whole: many times faster than one operation after another, and what users do.
log_prob_of = jax.jit(lambda fn, value: fn.log_prob(value))
moments_of = jax.jit(lambda fn: (fn.mean, fn.variance))
sample_from = jax.jit(lambda fn, key, shape: fn.sample(key, shape), static_argnums=2)


def all_states(num_causes):
    return np.array(list(itertools.product((0, 1), repeat=num_causes)))


def machine(num_causes, num_features, scale=1.0, seed=3):
    """Parameters without any symmetry."""
    rng = np.random.default_rng(seed)
    weights = scale * rng.normal(0.2, 1.0, (num_causes, num_features))
    return weights, rng.normal(-1.0, 1.5, num_causes)


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

# One of each kind, with a batch of 2; the real machine shares every line but one with the binary.
INSTANCES = {
    "noisy_or": lambda: NoisyOr(jnp.array([0.3, 2.0])),
    "clipped_normal": lambda: ClippedNormal(jnp.array([0.3, -2.0]), jnp.array([1.5, 0.8])),
    "causes": lambda: CombinationCauses(*batched_machine()),
}
EACH = pytest.mark.parametrize("name", INSTANCES)


def batched_machine():
    weights, bias = machine(3, 2)
    return jnp.array([weights, 0.5 * weights]), jnp.asarray(bias)


# ---- one bit ---------------------------------------------------------------------------------


def test_noisy_or_is_right_from_the_tiniest_to_the_largest_input(double):
    caused = np.array([1e-30, 1e-10, 1e-3, 0.6, 0.8, 5.0, 40.0, 1e4])
    fn = NoisyOr(jnp.asarray(caused))
    tolerance = 1e-13 if double else 1e-6
    one, zero = log_prob_of(fn, 1), log_prob_of(fn, 0)
    expected = [np.log(-np.expm1(-u)) if u < 1 else np.log1p(-np.exp(-u)) for u in caused]
    np.testing.assert_allclose(one, expected, rtol=tolerance)
    np.testing.assert_allclose(zero, -caused, rtol=tolerance)
    np.testing.assert_allclose(np.exp(one) + np.exp(zero), 1, rtol=tolerance)


@pytest.mark.usefixtures("x64")
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


def test_clipped_normal_is_the_probit_even_far_in_the_tail(double):
    loc = np.array([-1e6, -700.0, -42.0, -40.0, -1.3, 0.0, 0.4, 9.0, 41.0, 1e6])
    scale = 2.0
    fn = ClippedNormal(jnp.asarray(loc), scale)
    tolerance = 1e-11 if double else 1e-5
    for value, sign in ((1, 1), (0, -1)):
        expected = scipy.stats.norm.logcdf(sign * loc / scale)
        # Next to certainty, single precision knows the probability and not its distance from 1.
        allowed = 1e-30 if double else 1e-9
        log_prob = log_prob_of(fn, value)
        np.testing.assert_allclose(log_prob, expected, rtol=tolerance, atol=allowed)


def test_clipped_normal_gradients_hold_where_the_probability_underflows(double):
    ratio = np.array([-1e4, -300, -30.1, -29.9, -20.5, -19.5, -10.1, -9.9, -2.0, 0.0, 3.0, 50.0])

    def log_one(loc):
        return ClippedNormal(loc, 1.0).log_prob(1)

    # The inverse Mills ratio, and its derivative -r(x + r), by the scaled complementary error
    # function, which does not underflow.
    mills = np.sqrt(2 / np.pi) / scipy.special.erfcx(-ratio / np.sqrt(2))
    first = jax.jit(jax.vmap(jax.grad(log_one)))(jnp.asarray(ratio))
    np.testing.assert_allclose(first, mills, rtol=1e-12 if double else 2e-6, atol=1e-30)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(log_one))))(jnp.asarray(ratio))
    # Far off the sum cancels badly; there it is -1 + 1/x² - 6/x⁴ and so on.
    far = np.minimum(ratio, -100.0) ** -2.0
    expected = np.where(ratio > -100, -mills * (ratio + mills), -1 + far - 6 * far**2)
    np.testing.assert_allclose(second, expected, rtol=1e-9 if double else 1e-3, atol=1e-30)


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


# ---- the hidden units of the combination machine -----------------------------------------------


@MACHINES
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (4, 3), (7, 5)])
@pytest.mark.usefixtures("x64")
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


@pytest.mark.usefixtures("x64")
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


@pytest.mark.usefixtures("x64")
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
@pytest.mark.usefixtures("x64")
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
@pytest.mark.usefixtures("x64")
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
@pytest.mark.usefixtures("x64")
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


@pytest.mark.usefixtures("x64")
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


@EACH
@pytest.mark.usefixtures("x64")
def test_double_precision_when_asked(name):
    fn = INSTANCES[name]()
    assert log_prob_of(fn, sample_from(fn, random.key(0), ())).dtype == jnp.float64


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
