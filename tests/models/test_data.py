"""The generators against what the papers say of their data, and the truth against the data.

Three tolerances: exact for what is counted, 1e-6 for arithmetic in float32, and five standard
errors for what is drawn (keys are fixed, so a test that passes goes on passing).
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from tools import assert_rate

from ppl_models.data import (
    DATASETS,
    LINE_PATTERNS,
    bars,
    combination_target,
    lines,
    prototypes,
    ring,
    ring_moments,
    shifter,
    sum_constraint,
    sum_constraint_moments,
)
from ppl_models.distributions import CombinationCauses

SYNTHETIC = {
    "bars": lambda key: bars(key, num_data=40),
    "ring": lambda key: ring(key, num_data=40, num_features=8),
    "sum_constraint": lambda key: sum_constraint(key, num_data=40, num_features=6),
    "prototypes": lambda key: prototypes(key, copies=10),
    "combination": lambda key: combination_target(key, num_data=40),
    "lines": lambda key: lines(key, num_data=40),
    "shifter": lambda key: shifter(key, num_data=40),
}


def draw(make, seed, **options):
    """A set as NumPy's arrays, drawn in one compiled piece."""
    return jax.device_get(jax.jit(lambda key: make(key, **options))(random.key(seed)))


@pytest.mark.parametrize("name", SYNTHETIC)
def test_generator_is_a_pure_function_of_its_key(name):
    make = jax.jit(SYNTHETIC[name])
    one, again, other = (make(random.key(seed)) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert (one.data != other.data).any()
    assert one.data.dtype == jnp.float32
    assert one.data.ndim == 2


def test_bars_hold_half_of_each_sign_and_the_noise_that_was_asked_for():
    truth = draw(bars, 0, num_data=2000, size=4, active=1.5, amplitude=7.0, noise=3.0)
    pictures = np.asarray(truth.weights).reshape(8, 4, 4)
    for place in range(4):
        # A row is constant along its row and blank elsewhere; a column likewise.
        assert len(set(pictures[place, place].tolist())) == 1
        assert len(set(pictures[4 + place, :, place].tolist())) == 1
    assert (np.abs(pictures).sum(axis=(1, 2)) == 7.0 * 4).all()
    assert sorted(np.sign(pictures.sum(axis=(1, 2))).tolist()) == [-1.0] * 4 + [1.0] * 4
    residual = np.asarray(truth.data - truth.causes @ truth.weights)
    assert abs(residual.std() - 3.0) < 5.0 * 3.0 / np.sqrt(2 * residual.size)
    assert abs(residual.mean()) < 5.0 * 3.0 / np.sqrt(residual.size)
    assert_rate(truth.causes.mean(axis=0), 1.5 / 8, 2000)
    assert float(truth.sparsity) == 1.5 / 8
    assert float(truth.noise) == 3.0


def test_bars_choose_their_signs_anew_for_each_key():
    weights = jax.jit(jax.vmap(lambda key: bars(key, num_data=1).weights))
    many = np.asarray(weights(random.split(random.key(0), 400)))
    assert_rate((many.sum(axis=-1) > 0).mean(axis=0), 0.5, 400)


def test_ring_is_one_block_that_starts_where_it_says():
    truth = draw(ring, 0, num_data=300, num_features=10)
    data, position = np.asarray(truth.data), np.asarray(truth.position)
    for row, start in zip(data, position, strict=True):
        block = {(start + step) % 10 for step in range(5)}
        assert set(np.flatnonzero(row).tolist()) == block
    assert set(position.tolist()) == set(range(10))


def test_ring_moments_are_those_of_all_positions():
    size = 12
    spins = np.array([[1 if (i - p) % size < 6 else -1 for i in range(size)] for p in range(size)])
    exact = ring_moments(size)
    np.testing.assert_allclose(exact.mean, spins.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(exact.correlation, spins.T @ spins / size, atol=1e-6)


def test_ring_draws_have_the_exact_moments():
    spins = 2 * draw(ring, 4, num_data=4000, num_features=16).data - 1
    exact = ring_moments(16)
    np.testing.assert_allclose(spins.mean(axis=0), exact.mean, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(spins.T @ spins / 4000, exact.correlation, atol=5 / np.sqrt(4000))


def test_sum_constraint_is_uniform_over_its_states():
    data = draw(sum_constraint, 0, num_data=6000).data
    states = [state for state in itertools.product((0, 1), repeat=4) if sum(state) == 2]
    assert len(states) == 6
    counts = [int((data == state).all(axis=1).sum()) for state in states]
    assert sum(counts) == 6000
    assert_rate(np.array(counts) / 6000, 1 / 6, 6000)
    spins = 2 * np.array(states) - 1
    exact = sum_constraint_moments(4)
    np.testing.assert_allclose(exact.mean, spins.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(exact.correlation, spins.T @ spins / 6, atol=1e-6)


@pytest.mark.parametrize("make", [ring_moments, sum_constraint_moments])
@pytest.mark.parametrize("size", [0, 5])
def test_spins_need_an_even_number(make, size):
    with pytest.raises(ValueError, match=f"must be even and at least 2, found {size}"):
        make(size)
    with pytest.raises(ValueError, match="must be even"):
        ring(random.key(0), num_features=5)


def test_prototypes_are_copied_with_flips():
    truth = draw(prototypes, 0, num_prototypes=4, copies=500, num_features=12, flip=0.15)
    label = np.asarray(truth.label)
    assert label.tolist() == [0] * 500 + [1] * 500 + [2] * 500 + [3] * 500
    flipped = np.asarray(truth.data) != np.asarray(truth.prototypes)[label]
    assert_rate(flipped.mean(axis=0), 0.15, 2000)
    assert set(np.unique(truth.data).tolist()) == {0.0, 1.0}
    unflipped = draw(prototypes, 0, flip=0.0)
    np.testing.assert_array_equal(unflipped.data, unflipped.prototypes[unflipped.label])


def test_prototypes_are_fair_bits():
    many = jax.jit(jax.vmap(lambda key: prototypes(key, copies=1).prototypes))
    assert_rate(np.asarray(many(random.split(random.key(0), 400))).mean(axis=(0, 1)), 0.5, 1200)


@jax.jit
def mean_and_log_prob(weights, bias, states):
    machine = CombinationCauses(weights, bias)
    return machine.mean, machine.log_prob(states)


@pytest.mark.parametrize("scale", [1.0, 1 / 7])
def test_combination_target_is_drawn_from_its_machine(scale):
    truth = draw(combination_target, 0, num_data=20_000, scale=scale)
    assert abs(np.abs(truth.weights).max() - 6.0 * scale) < 1e-6
    # All 1024 hidden states, each as often as the machine's own distribution says.
    table = np.array(list(itertools.product((0.0, 1.0), repeat=10)), np.float32)
    mean, log_prob = mean_and_log_prob(truth.weights, truth.bias, table)
    np.testing.assert_allclose(mean, 0.4, atol=1e-3)
    probability = np.exp(np.asarray(log_prob))
    assert abs(probability.sum() - 1.0) < 1e-3
    place = np.asarray(truth.causes).astype(int) @ (2 ** np.arange(9, -1, -1))
    frequency = np.bincount(place, minlength=1024) / 20_000
    slack = 5.0 * np.sqrt(probability / 20_000) + 5.0 / 20_000
    assert (np.abs(frequency - probability) < slack).all()
    # Bits are ±1 with mean tanh(ω(h)): residuals have mean 0 and variance 1 − tanh².
    field = np.tanh((truth.causes @ truth.weights).astype(np.float64))
    residual = (2 * np.asarray(truth.data) - 1) - field
    slack = 5.0 * np.sqrt((1.0 - field**2).mean(axis=0) / 20_000)
    assert (np.abs(residual.mean(axis=0)) < slack).all()
    covered = np.abs(field) > 0.1
    assert abs((residual[covered] * field[covered]).mean()) < 5.0 / np.sqrt(covered.sum())


def test_combination_target_activates_several_units_at_once():
    truth = draw(combination_target, 1, activation=0.25)
    assert_rate(truth.causes.mean(axis=0), 0.25, 4000)
    active = np.asarray(truth.causes.sum(axis=1))
    assert 0.5 < (active >= 2).mean() < 0.95
    with pytest.raises(ValueError, match="`activation` must be between 0 and 1, found 1"):
        combination_target(random.key(0), activation=1.0)


def test_lines_are_covered_pixels():
    truth = draw(lines, 0, num_data=4000)
    for image, chosen in zip(np.asarray(truth.data)[:200], np.asarray(truth.lines), strict=False):
        picture = np.zeros((5, 5))
        for line in np.flatnonzero(chosen):
            if line < 5:
                picture[line, :] = 1
            else:
                picture[:, line - 5] = 1
        np.testing.assert_array_equal(image.reshape(5, 5), picture)
    pattern, chosen = np.asarray(truth.pattern), np.asarray(truth.lines)
    for place, members in enumerate(LINE_PATTERNS.values()):
        copies = chosen[pattern == place]
        assert_rate(len(copies) / 4000, 0.125, 4000)
        assert {tuple(np.flatnonzero(copy).tolist()) for copy in copies} == {members}
    alone = chosen[pattern == -1]
    assert_rate(len(alone) / 4000, 0.5, 4000)
    assert_rate(alone.mean(axis=0), 0.3, len(alone))


def test_line_patterns_look_like_their_names():
    assert LINE_PATTERNS == {"ll": (6, 8), "+": (2, 7), "=": (1, 3), "]": (0, 4, 9)}
    probabilities = (0.0, 0.0, 0.0, 1.0)
    truth = draw(lines, 0, num_data=3, pattern_probabilities=probabilities)
    bracket = ["#####", "....#", "....#", "....#", "#####"]
    for image in np.asarray(truth.data).reshape(3, 5, 5):
        assert ["".join(".#"[int(bit)] for bit in row) for row in image] == bracket
    none = draw(lines, 0, num_data=50, pattern_probabilities=(0.0,) * 4)
    assert set(none.pattern.tolist()) == {-1}
    with pytest.raises(ValueError, match="must hold 4 numbers"):
        lines(random.key(0), pattern_probabilities=(0.5, 0.5))


def test_shifter_shifts_with_wrap_around():
    truth = draw(shifter, 0, num_data=2000, width=6, on_probability=0.2)
    images = np.asarray(truth.data).reshape(-1, 4, 6)
    for image, row, step in zip(images[:200], truth.row, truth.direction, strict=False):
        for column in range(6):
            assert image[0, (column + int(step)) % 6] == row[column]
    np.testing.assert_array_equal(images[:, 0], images[:, 1])
    np.testing.assert_array_equal(images[:, 2], images[:, 3])
    np.testing.assert_array_equal(images[:, 3], truth.row)
    assert_rate((np.asarray(truth.direction) == 1).mean(), 0.5, 2000)
    assert_rate(truth.row.mean(axis=0), 0.2, 2000)


@pytest.mark.parametrize("name", DATASETS)
def test_every_listed_set_loads(name):
    entry = DATASETS[name]
    assert "\n" not in entry.description
    loaded = entry.load(random.key(0), num_data=12)
    values = np.asarray(loaded.data)
    assert values.shape[0] == 12
    assert np.isfinite(values).all()
    if entry.kind == "binary":
        assert set(np.unique(values).tolist()) <= {0.0, 1.0}
    if entry.image_shape is not None:
        assert values.shape[1] == entry.image_shape[0] * entry.image_shape[1]
    with pytest.raises(ValueError, match="must be at least 1"):
        entry.load(random.key(0), num_data=0)


def test_listed_sets_refuse_rows_they_do_not_have():
    with pytest.raises(ValueError, match="there are 500 of these digits"):
        DATASETS["twos"].load(random.key(0), num_data=501)
    with pytest.raises(ValueError, match="no multiple of 3"):
        DATASETS["prototypes"].load(random.key(0), num_data=100)
