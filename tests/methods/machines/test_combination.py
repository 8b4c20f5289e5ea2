"""The combination machine: its likelihood, its gradient, and the methods that climb or pursue."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import oracle
import pytest
from jax import random
from numpyro.infer import NUTS
from tools import fast_jit, quick_run, sample

from inference import (
    EM,
    ContrastiveDivergence,
    ExactGradient,
    ProgramError,
    ProjectionPursuit,
    Structure,
    annealed,
    keep_best,
    marginal,
    truncated,
)
from inference.methods.machines.contrastive import sweeps
from inference.methods.machines.partition import causes_of
from inference.methods.machines.pursuit import active_units
from inference.reading.linear import linear_form
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    combination_machine,
    noisy_or_network,
    real_combination_machine,
    state_sums,
)
from ppl_models.data import prototypes
from ppl_models.distributions import CombinationCauses, RealCombinationCauses

UNITS, WIDTH, ROWS = 4, 5, 7
SIZES = {"num_causes": UNITS}
KINDS = pytest.mark.parametrize("kind", [CombinationCauses, RealCombinationCauses])


def numbers(seed=0, units=UNITS, width=WIDTH, scale=0.8):
    generator = np.random.default_rng(seed)
    weights = generator.normal(0.1, scale, (units, width))
    return weights, generator.normal(-0.5, 0.8, units)


def rows(kind="binary"):
    generator = np.random.default_rng(3)
    if kind == "real":
        return generator.normal(0.3, 1.2, (ROWS, WIDTH))
    return (generator.random((ROWS, WIDTH)) < [0.2, 0.8, 0.5, 0.4, 0.7]).astype(float)


def copied(**options):
    draw = fast_jit(lambda key: prototypes(key, num_features=8, **options).data)
    return np.asarray(draw(random.key(0)))


MACHINES = {
    "binary": (
        combination_machine,
        oracle.combination_log_evidence,
        oracle.combination_log_evidence_gradient,
    ),
    "real": (
        real_combination_machine,
        oracle.real_combination_log_evidence,
        oracle.real_combination_log_evidence_gradient,
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_gradient_is_that_of_the_paper(name):
    """(3.5) and (3.6), (3.8) and (3.9): clamped less sleep phase, in the oracle's loops."""
    model, log_evidence, gradient = MACHINES[name]
    weights, bias = numbers()
    data = rows(name)
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    method = ExactGradient(model)
    climb = method._open((jnp.asarray(data),), SIZES)
    # Chunks of rows make no difference.
    small = climb._replace(chunk_size=3)

    @fast_jit
    def compute(params):
        return climb.value_and_grad(params, model), small.value_and_grad(params, model)

    (value, slopes), (_, again) = compute(params)
    np.testing.assert_allclose(value, log_evidence(weights, bias, data).sum(), rtol=1e-5)
    for site, slope in gradient(weights, bias, data).items():
        np.testing.assert_allclose(slopes[site], slope, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again["weights"], slopes["weights"], rtol=1e-4, atol=1e-5)


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

    @fast_jit
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

    @fast_jit
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

    @fast_jit
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

    @fast_jit
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


# --- projection pursuit


def test_one_unit_em_is_that_of_the_paper():
    """(3.14) and (3.15) in loops; and a stationary point of the program's expected log joint."""
    weights, bias = numbers(6, units=1)
    data = rows("real")
    em = EM(real_combination_machine, structure=Structure.LINEAR)
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    state = em.init(random.key(0), jnp.asarray(data), num_causes=1, init_params=params)
    step = jax.jit(lambda state: em.update(state, jnp.asarray(data), num_causes=1)[0])
    new = step(state).params
    active, cross = 0.0, np.zeros(WIDTH)
    for row in data:
        probability = 1 / (1 + np.exp(-(sum(weights[0] * row) + bias[0])))
        active += probability / ROWS
        cross += probability * row / ROWS
    np.testing.assert_allclose(new["weights"][0], cross / active, rtol=1e-4)
    wanted = -np.log((1 - active) / active) - 0.5 * np.sum((cross / active) ** 2)
    np.testing.assert_allclose(new["bias"][0], wanted, rtol=1e-4)


def test_pursuit_finds_how_many_units_there_are():
    """One unit in ten real dimensions: found, and nothing after it; in noise nothing at all."""
    weights = np.array([2.0, 2, 2, 0, 0, 0, -1, -1, -1, -1])
    generator = np.random.default_rng(0)
    causes = generator.random((600, 1)) < 0.3
    noise = generator.normal(size=(600, 10)).astype(np.float32)
    pursuit = ProjectionPursuit(real_combination_machine, num_starts=5)
    search = lambda data: pursuit.run(  # noqa: E731
        random.key(2), 6, data, num_causes=6, tolerance=0.0
    )
    result = search((causes * weights + noise).astype(np.float32))
    units = active_units(result.params)
    assert len(units["bias"]) == 1
    assert result.reason.startswith("left to gain by estimate")
    assert (np.diff(result.losses) <= 0).all()
    # A mean of 180 rows of unit variance: standard error 0.075.
    np.testing.assert_allclose(units["weights"][0], weights, atol=0.3)
    # What is left is noise about zero: its structure has been removed.
    np.testing.assert_allclose(np.cov(result.state.residual.T), np.eye(10), atol=0.25)
    assert len(active_units(search(noise).params)["bias"]) == 0


def test_pursuit_integrates_missing_cells_out():
    """The unit found is a maximum of the likelihood of the observed cells, which it reports."""
    weights = np.array([2.0, 2.0, -1.0, -1.0])
    generator = np.random.default_rng(0)
    causes = generator.random((400, 1)) < 0.3
    data = causes * weights + generator.normal(size=(400, 4))
    mask = generator.random(data.shape) < 0.6
    pursuit = ProjectionPursuit(
        real_combination_machine, significant=False, em_steps=200, num_starts=1
    )
    hidden = np.where(mask, data, 50.0)  # what a missing cell holds does not count
    result = quick_run(pursuit, 3, 1, jnp.asarray(hidden, float), mask=mask, num_causes=1)
    state = result.state

    def log_likelihood(weights, bias):
        """Of the observed cells beyond N(0, I): two Gaussians, at zero and at the weights."""
        share = 1 / (1 + np.exp(-(bias + 0.5 * weights @ weights)))
        ratio = np.where(mask, data * weights - 0.5 * weights**2, 0.0).sum(1)
        return np.log(1 - share + share * np.exp(ratio)).sum()

    unit, bias = np.asarray(state.params["weights"][0], float), float(state.bias[0])
    np.testing.assert_allclose(unit, weights, atol=0.4)  # 110 rows, 60 % of the cells: 0.12
    np.testing.assert_allclose(state.gains[0], log_likelihood(unit, bias), rtol=1e-4)
    for step in (*np.eye(4), None):
        there = [
            log_likelihood(unit + d * step, bias) if step is not None
            else log_likelihood(unit, bias + d)
            for d in (-1e-3, 1e-3)
        ]  # fmt: skip
        assert abs(there[1] - there[0]) / 2e-3 < 0.2  # of a log likelihood that curves by 100
    # A unit is taken from the cells that are there.
    assert not np.asarray(state.residual)[~mask].any()
    _, loss = fast_jit(
        lambda s: pursuit.update(
            s, jnp.asarray(hidden, float), mask=jnp.asarray(mask), num_causes=1
        )
    )(state)
    gaussian = np.where(mask, -0.5 * data**2 - 0.5 * np.log(2 * np.pi), 0.0).sum()
    np.testing.assert_allclose(-loss, gaussian + log_likelihood(unit, bias), rtol=1e-5)


@pytest.mark.parametrize("name", MACHINES)
def test_pursuit_reports_the_likelihood_of_the_machine_it_hands_out(name):
    """And its biases are those of most likelihood for its weights: the oracle's slope is zero."""
    model, log_evidence, gradient = MACHINES[name]
    data = rows(name) if name == "real" else copied(copies=15, flip=0.1)
    pursuit = ProjectionPursuit(model, significant=False, em_steps=4, num_starts=2)
    result = quick_run(pursuit, 1, 3, jnp.asarray(data, float), num_causes=3)
    weights, bias = (np.asarray(result.params[site], float) for site in ("weights", "bias"))
    _, loss = fast_jit(lambda s: pursuit.update(s, jnp.asarray(data, float), num_causes=3))(
        result.state
    )
    np.testing.assert_allclose(-loss, log_evidence(weights, bias, data).sum(), rtol=1e-5)
    found_by_pursuit = np.asarray(result.state.bias, float)
    before = log_evidence(weights, found_by_pursuit, data).sum()
    assert log_evidence(weights, bias, data).sum() >= before
    slope = gradient(weights, bias, data)["bias"] / len(data)
    np.testing.assert_allclose(slope, 0.0, atol=2e-3)


def links(table, given=None, *, units):
    """A combination machine under other names, its weights transposed."""
    level = numpyro.sample("level", dist.Normal(0.0, 9.0).expand((units,)).to_event(1))
    size = (table.shape[1], units)
    link = numpyro.sample("link", dist.Normal(0.0, 1.0).expand(size).to_event(2))
    with numpyro.plate("people", len(table)):
        hidden = numpyro.sample("hidden", CombinationCauses(link.T, level))
        answers = dist.Bernoulli(logits=2.0 * (hidden @ link.T))
        answers = answers if given is None else answers.mask(given)
        numpyro.sample("answers", answers.to_event(1), obs=table)


def test_pursuit_takes_a_copy_under_other_names_of_as_many_units():
    """Thirty units, of which no method could sum the states: the copy's first unit is ours."""
    data = jnp.asarray(copied(copies=15, flip=0.1), float)
    mask = jnp.asarray(np.random.default_rng(1).random(data.shape) < 0.8)

    def first(model, *args, **kwargs):
        pursuit = ProjectionPursuit(model, significant=False, em_steps=4, num_starts=2)
        state = pursuit.init(random.key(0), *args, **kwargs)
        state, loss = fast_jit(lambda state: pursuit.update(state, *args, **kwargs))(state)
        return pursuit.get_params(state), loss

    ours, loss = first(combination_machine, data, mask=mask, num_causes=30)
    copy, other = first(links, data, mask, units=30)
    assert ours["weights"][0].any() and not ours["weights"][1:].any()
    np.testing.assert_array_equal(copy["link"].T, ours["weights"])
    np.testing.assert_array_equal(copy["level"], ours["bias"])
    np.testing.assert_array_equal(loss, other)


def test_a_scaled_step_has_the_gradient_of_the_program():
    data = jnp.asarray(rows())
    method = ExactGradient(combination_machine)
    weights, bias = numbers()
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    climb = method._open((data,), SIZES)
    total, slopes, _ = fast_jit(method._machine(climb).look)(params)
    wanted = oracle.combination_log_evidence(weights, bias, np.asarray(data)).sum()
    np.testing.assert_allclose(total, wanted, rtol=1e-5)
    each = oracle.combination_log_evidence_gradient(weights, bias, np.asarray(data))
    for site, slope in each.items():
        np.testing.assert_allclose(slopes[site], slope, rtol=1e-4, atol=1e-4)
    assert ExactGradient(combination_machine, momentum=0.9)._scaled(climb) is None


def test_a_variant_turns_the_units_that_a_unit_always_on_has_to_mend():
    """log(1 + e^z) = log(1 + e^-z) + z: two units for one shape become one, and one is free."""
    shapes = np.zeros((3, 6))
    shapes[0, :3], shapes[1, 3:], shapes[2, 1:5] = 2.0, 2.0, [2.0, -2.0, 2.0, -2.0]
    bias = np.array([-3.0, -3.0, -4.0])
    every = np.indices((2,) * 6).reshape(6, -1).T
    mass = np.exp(np.logaddexp(0.0, (2 * every - 1) @ shapes.T + bias).sum(1))
    rows = np.random.default_rng(0).choice(64, 600, p=mass / mass.sum())
    stuck = {
        "weights": jnp.asarray([-shapes[0], shapes[1], shapes[0]]),
        "bias": jnp.asarray([3.0, -3.0, 9.0]),
    }
    method, data = ExactGradient(combination_machine), jnp.asarray(every[rows], float)
    vary = fast_jit(lambda key: method.vary(key, stuck, data, num_causes=3)["weights"])
    varied = np.asarray(vary(random.key(0)))
    np.testing.assert_allclose(varied[:2], shapes[:2], atol=1e-6)
    assert varied[2] @ shapes[2] > 0.9 * np.linalg.norm(varied[2]) * np.linalg.norm(shapes[2])


def test_pursuit_refuses_what_it_cannot_do():
    data = jnp.asarray(rows())
    pursuit = ProjectionPursuit(combination_machine)
    with pytest.raises(ProgramError, match="not independent given a row"):
        pursuit.posterior({}, data, mask=data > -1, **SIZES)
    with pytest.raises(ValueError, match="takes no init_params"):
        pursuit.init(random.key(0), data, init_params={}, **SIZES)
    with pytest.raises(ProgramError, match="no combination machine"):
        ProjectionPursuit(bernoulli_mixture).init(random.key(0), data, num_components=2)


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
    form = fast_jit(lambda params: linear_form(climb.reader, params, arguments))(params)
    signs = 2 * np.asarray(data) - 1
    np.testing.assert_allclose(form.linear, signs @ weights.T + bias, rtol=1e-5, atol=1e-5)
    causes = causes_of(combination_machine, params, data, **SIZES)
    assert isinstance(causes, CombinationCauses)
    with pytest.raises(ProgramError, match="no site distributed as CombinationCauses"):
        mixture = {"mixing": jnp.ones(2) / 2, "probs": jnp.full((2, WIDTH), 0.5)}
        causes_of(bernoulli_mixture, mixture, data, num_components=2)
