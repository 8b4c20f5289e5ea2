"""The combination machine: its likelihood, its gradient, and the methods that climb it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import oracle
import pytest
from jax import random
from machine_examples import MACHINES, ROWS, SIZES, UNITS, WIDTH, copied, numbers, rows
from numpyro.infer import NUTS
from tools import quick_run, sample

from inference import (
    ContrastiveDivergence,
    ExactGradient,
    ProgramError,
    annealed,
    keep_best,
    marginal,
    truncated,
)
from inference.methods.machines.contrastive import sweeps
from inference.methods.machines.partition import causes_of
from inference.reading.reader import linear_form
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    combination_machine,
    noisy_or_network,
    real_combination_machine,
    state_sums,
)
from ppl_models.distributions import CombinationCauses, RealCombinationCauses

KINDS = pytest.mark.parametrize("kind", [CombinationCauses, RealCombinationCauses])


@pytest.mark.parametrize("name", MACHINES)
def test_gradient_is_that_of_the_paper(name):
    """(3.5) and (3.6), (3.8) and (3.9): clamped less sleep phase, in the oracle's loops. In chunks
    of rows and where steps are scaled it is the same."""
    model, log_evidence, gradient = MACHINES[name]
    weights, bias = numbers()
    data = rows(name)
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    method = ExactGradient(model)
    climb = method._open((jnp.asarray(data),), SIZES)
    small = climb._replace(chunk_size=3)

    @jax.jit
    def compute(params):
        scaled = method._machine(climb).evaluate(params)[:2]
        return climb.value_and_grad(params, model), small.value_and_grad(params, model), scaled

    every = compute(params)
    for value, slopes in every:
        np.testing.assert_allclose(value, log_evidence(weights, bias, data).sum(), rtol=1e-5)
        for site, slope in gradient(weights, bias, data).items():
            np.testing.assert_allclose(slopes[site], slope, rtol=1e-4, atol=1e-4)
    (_, whole), (_, by_chunk), _ = every
    np.testing.assert_allclose(by_chunk["weights"], whole["weights"], rtol=1e-4, atol=1e-5)
    assert ExactGradient(model, momentum=0.9)._scaled(climb) is None


def test_posterior_is_the_oracles():
    weights, bias = numbers()
    data = rows()
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    posterior = ExactGradient(combination_machine).posterior(params, jnp.asarray(data), **SIZES)
    states = oracle.joint_states(causes=UNITS)
    table = oracle.log_joint_table(
        oracle.log_joint_combination_machine, {"weights": weights, "bias": bias}, states, data, None
    )
    probability = oracle.posterior_table(table)
    np.testing.assert_allclose(
        posterior.mean, probability.T @ states["causes"], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(posterior.best, states["causes"][table.argmax(0)])
    np.testing.assert_allclose(posterior.evidence, oracle.log_evidence(table), rtol=1e-5)


def test_momentum_is_a_share_of_the_last_step():
    data = jnp.asarray(rows())
    method = ExactGradient(combination_machine, learning_rate=0.2, momentum=0.5)
    first = method.init(random.key(0), data, **SIZES)
    step = jax.jit(lambda state: method.update(state, data, **SIZES))
    second, loss = step(first)
    third, after = step(second)
    assert after < loss
    slope = lambda p: oracle.combination_log_evidence_gradient(  # noqa: E731
        np.asarray(p["weights"], float), np.asarray(p["bias"], float), np.asarray(data)
    )
    for site in ("weights", "bias"):
        uphill = [0.2 * slope(state.params)[site] / ROWS for state in (first, second)]
        np.testing.assert_allclose(
            second.params[site] - first.params[site], uphill[0], rtol=1e-3, atol=1e-5
        )
        np.testing.assert_allclose(
            third.params[site] - second.params[site],
            uphill[1] + 0.5 * uphill[0],
            rtol=1e-3,
            atol=1e-5,
        )


def test_any_program_of_discrete_latents_can_be_climbed():
    """A mixture has no linear form and bounded parameters; its loss is minus the log evidence."""
    data = jnp.asarray(rows())
    method = ExactGradient(bernoulli_mixture, optimizer=optax.adam(0.05))
    result = quick_run(method, 0, 30, data, num_components=2)
    assert result.losses[-1] < result.losses[0]
    np.testing.assert_allclose(result.params["mixing"].sum(), 1.0, rtol=1e-5)
    log_joints = oracle.log_joint_table(
        oracle.log_joint_bernoulli_mixture,
        {name: np.asarray(value, float) for name, value in result.params.items()},
        {"component": np.arange(2)},
        rows(),
        None,
    )
    log_evidence = oracle.log_evidence(log_joints)
    _, loss = jax.jit(lambda state: method.update(state, data, num_components=2))(result.state)
    np.testing.assert_allclose(loss, -log_evidence.sum(), rtol=1e-5)


def test_a_noise_far_from_the_data_does_not_throw_the_climb_away():
    """The first gradient is that of a noise much too small, and momentum adds to it."""
    rng = np.random.default_rng(0)
    truth = {"weights": np.array([[5.0, 5.0, 0.0, 5.0], [0.0, 5.0, 5.0, 5.0]])}
    truth |= {"noise": np.array(1.0), "sparsity": np.array(0.4)}
    data = (rng.random((60, 2)) < 0.4) @ truth["weights"] + rng.normal(size=(60, 4))
    method = ExactGradient(binary_sparse_coding)
    result = quick_run(method, 0, 120, jnp.asarray(data, float), num_causes=2)
    table = oracle.log_joint_table(
        oracle.log_joint_binary_sparse_coding, truth,
        {"causes": np.array([[0, 0], [0, 1], [1, 0], [1, 1]])}, data, None,
    )  # fmt: skip
    assert result.losses[-1] < -oracle.log_evidence(table).sum()  # the data's own maximum is higher


# --- the normaliser


@KINDS
def test_three_ways_to_the_normaliser_agree(kind):
    weights, bias = numbers(1, units=6)

    @jax.jit
    def compute(weights, bias, key):
        causes = kind(weights, bias)
        # 200 chains: the estimate lies within four of its standard errors.
        guess = annealed(key, causes, num_chains=200, num_steps=200, base=jnp.ones(WIDTH) / 3)
        return causes.log_normalizer, truncated(causes, 6).value, guess

    exact, listed, guess = compute(weights, bias, random.key(0))
    wanted = {
        CombinationCauses: oracle.combination_log_partition,
        RealCombinationCauses: oracle.real_combination_log_partition,
    }[kind](weights, bias)
    np.testing.assert_allclose(exact, wanted, rtol=1e-5)
    np.testing.assert_allclose(listed, exact, rtol=1e-6)
    assert abs(guess.value - exact) < 4 * guess.standard_error
    assert guess.standard_error < 0.2


@KINDS
def test_truncation_states_its_error(kind):
    weights, bias = numbers(2, units=6, scale=0.3)
    states = np.asarray(oracle.all_states(6))

    @jax.jit
    def compute(weights, bias):
        causes = kind(weights, bias)
        parts = [truncated(causes, most) for most in (1, 2, 3)]
        return causes.log_normalizer, causes.log_prob(jnp.asarray(states)), parts

    exact, log_mass, parts = compute(weights, bias - 2.0)
    mass = np.exp(np.asarray(log_mass))
    last = -np.inf
    for most, part in zip((1, 2, 3), parts, strict=True):
        missed = mass[states.sum(1) > most].sum()
        np.testing.assert_allclose(-np.expm1(part.value - exact), missed, atol=1e-5)
        assert last < part.value <= exact <= part.upper
        assert missed <= part.missed_at_most + 1e-6
        last = part.value


def test_gradient_of_a_sum_over_many_chunks(monkeypatch):
    """One pass gives value and slope, however the states are cut; so does a list of states."""
    monkeypatch.setattr(state_sums, "_cells_per_chunk", lambda: 24)  # 8 states of 3 bits: 3 units
    weights, bias = numbers(4, units=6, width=3)
    states = np.asarray(oracle.all_states(6)).astype(np.int8)

    def direct(weights, bias):
        combined = states @ weights
        return jax.scipy.special.logsumexp(
            states @ bias + jnp.logaddexp(combined, -combined).sum(1)
        )

    log_mass = CombinationCauses.log_mass
    ways = (
        lambda w, b: state_sums.log_normalizer(log_mass, w, b),
        lambda w, b: state_sums.log_partial_sum(log_mass, w, b, states[:50]),
        lambda w, b: state_sums.log_partial_sum(log_mass, w, b, states),
    )
    # Second derivatives: the variances of the units, by differentiating the means once more.
    bend = lambda f: jax.hessian(f, 1)(weights, bias)  # noqa: E731

    @jax.jit
    def compute(weights, bias):
        both = [jax.value_and_grad(f, (0, 1))(weights, bias) for f in (direct, *ways)]
        return both, bend(ways[0]), bend(direct)

    ((wanted, slopes), *others), bent, wanted_bent = compute(weights, bias)
    for number, (value, gradient) in enumerate(others):
        if number == 1:
            assert value < wanted
            continue
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
        for one, other in zip(gradient, slopes, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(bent, wanted_bent, atol=1e-5)


def test_truncated_sleep_phase():
    """Fifty units are too many to sum, not too many for pairs of active ones."""
    data = jnp.asarray(rows())
    part = ExactGradient(combination_machine, max_active=2)
    state = part.init(random.key(5), data, num_causes=50)
    step = jax.jit(lambda state: part.update(state, data, num_causes=50))
    state, before = step(state)
    assert step(state)[1] < before


# --- contrastive divergence


def test_sleep_phase_of_long_chains_is_the_exact_one():
    weights, bias = numbers(scale=0.5)

    @jax.jit
    def compute(weights, bias, key):
        causes = CombinationCauses(weights, bias)
        draws = sweeps(key, causes, jnp.zeros((20_000, UNITS)), 30)
        slope = jax.grad(lambda w: CombinationCauses(w, bias).log_normalizer)(weights)
        return draws, causes.mean, slope

    (hidden, observed), mean, slope = jax.device_get(compute(weights, bias, random.key(0)))
    # 20 000 draws of a number within ±1: three standard errors are 0.02.
    np.testing.assert_allclose(hidden.mean(0), mean, atol=0.02)
    inputs = 1.0 / (1.0 + np.exp(-(observed @ weights.T + bias)))
    np.testing.assert_allclose(inputs.T @ observed / len(observed), slope, atol=0.02)


def test_contrastive_divergence_climbs():
    data = copied(copies=40, flip=0.1)
    method = ContrastiveDivergence(combination_machine, learning_rate=0.05)
    params = quick_run(method, 1, 150, data, **SIZES).params
    weights, bias = (np.asarray(params[site], float) for site in ("weights", "bias"))
    after = oracle.combination_log_evidence(weights, bias, np.asarray(data))
    # From nearly uniform, 8 log 2 = 5.5 nats per row, part of the way to three prototypes.
    assert after.mean() > -8 * np.log(2) + 1.0


def test_contrastive_divergence_refuses_other_programs():
    data = jnp.asarray(rows())
    with pytest.raises(ProgramError, match="independent given the data"):
        ContrastiveDivergence(noisy_or_network).init(random.key(0), data, layers=(2,))


# --- early stopping, and NUTS


def test_early_stopping_keeps_the_best():
    data = copied(copies=20, flip=0.2)
    method = ExactGradient(combination_machine, optimizer=optax.adam(0.2))
    kept = keep_best(
        method, random.key(1), 400, data[:20], valid=data[20:], every=10, patience=5, **SIZES
    )
    weights, bias = (np.asarray(kept.params[site], float) for site in ("weights", "bias"))
    each = oracle.combination_log_evidence(weights, bias, np.asarray(data[20:]))
    np.testing.assert_allclose(each.mean(), kept.score, rtol=1e-4)
    assert kept.score == kept.scores.max() and kept.step < kept.steps[-1]
    assert len(kept.scores) < 40  # twenty rows are soon learned by heart


def test_nuts_on_a_small_machine():
    """One unit and one bit, whose posterior is a sum over a grid: mean of P(bit is 1)."""
    data = jnp.array([[1.0]] * 9 + [[0.0]] * 3)
    model = marginal(combination_machine)
    priors = {"prior_weights": dist.Normal(0.0, 1.0), "prior_bias": dist.Normal(0.0, 1.0)}
    draws, _ = sample(NUTS(model), 300, 1500, data, num_causes=1, **priors)

    def probability(weight, bias):  # (2.4) for the two values of the bit
        on, off = 1 + np.exp(weight + bias), 1 + np.exp(-weight + bias)
        return on / (on + off)

    side = np.linspace(-6, 6, 241)
    weight, bias = np.meshgrid(side, side)
    on = probability(weight, bias)
    density = np.exp(-0.5 * (weight**2 + bias**2)) * on**9 * (1 - on) ** 3
    mean = (density * on).sum() / density.sum()
    sampled = probability(draws["weights"][0, :, 0, 0], draws["bias"][0, :, 0])
    # The deviation is 0.11 or so; 1500 draws are worth some 300 independent ones: 0.006 each.
    assert abs(sampled.mean() - mean) < 0.03


def test_linear_form_of_the_machine():
    weights, bias = numbers()
    data = jnp.asarray(rows())
    method = ExactGradient(combination_machine)
    climb = method._open((data,), SIZES)
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    arguments = ((data,), SIZES)
    form = jax.jit(lambda params: linear_form(climb.reader, params, arguments))(params)
    signs = 2 * np.asarray(data) - 1
    np.testing.assert_allclose(form.linear, signs @ weights.T + bias, rtol=1e-5, atol=1e-5)
    causes = causes_of(combination_machine, params, data, **SIZES)
    assert isinstance(causes, CombinationCauses)
    with pytest.raises(ProgramError, match="no site distributed as CombinationCauses"):
        mixture = {"mixing": jnp.ones(2) / 2, "probs": jnp.full((2, WIDTH), 0.5)}
        causes_of(bernoulli_mixture, mixture, data, num_components=2)


@pytest.mark.parametrize("model", [combination_machine, real_combination_machine])
def test_many_equal_rows_lose_no_digits(model):
    """Two rows, 30 000 times each: sums, one addition after the other, would be off by 1e-5."""
    rng = np.random.default_rng(0)
    values = {"weights": rng.normal(size=(3, 8)), "bias": rng.normal(size=3)}
    params = {name: jnp.asarray(x, jnp.float32) for name, x in values.items()}
    weights, bias = (np.asarray(params[name], np.float64) for name in ("weights", "bias"))
    bits = rng.random((2, 8)) < 0.5
    data, sizes = np.tile(bits.astype(np.float32), (30_000, 1)), {"num_causes": 3}
    method = ExactGradient(model)

    def moments_of(data, params):
        return method._machine(method._open((data,), sizes)).evaluate(params)[2]

    moments = jax.jit(moments_of)(data, params)
    x = 2.0 * bits - 1.0 if model is combination_machine else bits.astype(float)
    on = 1.0 / (1.0 + np.exp(-(x @ weights.T + bias)))
    np.testing.assert_allclose(moments["on"], on.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments["cross"], on.T @ x / 2, rtol=3e-6, atol=1e-6)
