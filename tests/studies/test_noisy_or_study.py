"""The experiments on noisy-OR networks, at small size."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import random
from tools import fast_jit

from inference.cli import main
from inference.studies.papers import noisy_or_lines as line_study
from inference.studies.papers import noisy_or_shifter as shift_study
from inference.studies.papers.noisy_or_words import product_log_likelihood, read_topics
from ppl_models.data import lines, shifter
from ppl_models.data.strokes import stroke_masks


def test_the_network_drawn_by_hand_is_found_complete_and_a_blend_is_not():
    @fast_jit
    def find(params):
        owner = line_study.line_units(params)
        return owner.any(0), line_study.patterns_found(params, owner)

    params = {name: np.asarray(value) for name, value in line_study.true_network().items()}
    strokes, patterns = find(params)
    assert strokes.all() and patterns.all()
    order = np.random.default_rng(0).permutation(10)
    mixed = {
        **params,
        "weights_1": params["weights_1"][order],
        "weights_2": params["weights_2"][:, order],
    }
    assert find(mixed)[1].all()
    # A top unit that turns on one line more than its pattern is not that pattern.
    more = {**params, "weights_2": params["weights_2"].copy()}
    more["weights_2"][0, 0] = 3.0
    assert find(more)[1].tolist() == [0, 1, 1, 1]
    blend = params["weights_1"].copy()
    blend[3] += blend[4]
    assert find({**params, "weights_1": blend})[0].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]


def test_likelihoods_of_the_generator_and_of_a_network():
    states = np.indices((2,) * 10).reshape(10, -1).T
    pictures = np.unique(states @ stroke_masks(5) > 0, axis=0).astype(np.float32)

    @fast_jit
    def compute(key, pictures, params):
        data = lines(key, 400).data
        return (
            line_study.generator_log_likelihood(data),
            line_study.generator_log_likelihood(pictures),
            line_study.mean_log_likelihood(params, data),
        )

    found, every, network = jax.device_get(
        compute(random.key(1), pictures, line_study.true_network())
    )
    # All pictures together have probability one.
    np.testing.assert_allclose(np.exp(every).sum(), 1.0, rtol=1e-4)
    # The process is its own best model, up to the noise of 400 patterns; the network is close.
    assert found.mean() - 1.5 < network < found.mean()


def test_which_shifts_can_be_told_and_what_their_features_are():
    row = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
    assert fast_jit(shift_study.decidable)(row).tolist() == [False, False, True]
    truth = jax.device_get(fast_jit(lambda key: shifter(key, 200))(random.key(0)))
    masks = shift_study.feature_masks()
    # Each pattern is the union of the features of its own direction at its bits.
    start = np.where(np.asarray(truth.direction) > 0, 0, 8)
    for data, bits, first in zip(truth.data, truth.row, start, strict=True):
        drawn = (np.asarray(bits)[:, None] * masks[first : first + 8]).any(0)
        np.testing.assert_array_equal(drawn, np.asarray(data) > 0)


def by_hand():
    """The shifter network that a person would draw; four lower units are left over."""
    masks = shift_study.feature_masks()
    weights = np.concatenate([6.0 * masks, np.full((4, 32), 1e-6)])
    above = np.zeros((2, 20))
    above[0, :8], above[1, 8:16] = 0.35, 0.35
    return {
        "weights_1": jnp.asarray(weights, float),
        "leak_0": jnp.full(32, 1e-3),
        "weights_2": jnp.asarray(above + 1e-6, float),
        "leak_1": jnp.full(20, 1e-3),
        "leak_2": jnp.full(2, 0.7),
    }


def test_with_feedback_the_direction_is_seen_and_without_it_is_not():

    @fast_jit
    def compute(params, keys):
        truth = shifter(keys[0], 60)
        votes = shift_study.vote(shift_study.look(params, truth.data, keys[1]))
        states, top = shift_study.look_upwards(params, truth.data, jnp.full(20, 0.5), keys[2])
        seen = shift_study.decidable(truth.row), truth.direction, votes
        found = shift_study.features_found(params), shift_study.mean_rates(params)
        return *seen, states, shift_study.vote(top), *found

    keys = jnp.stack([random.key(seed) for seed in (3, 0, 1)])
    everything = jax.device_get(compute(by_hand(), keys))
    can, direction, votes, states, alone, features, rates = everything
    assert features.all()
    direction, votes, alone = direction[can], votes[can], alone[can]
    # Seen by a network that is right, directions are told but for a few where chains stick.
    assert (votes == direction).mean() > 0.95
    assert (alone == direction).mean() < 0.9
    # Without feedback units of the other direction come on where others explain their pixels.
    other = np.where(direction[:, None] > 0, states[can, 8:16], states[can, :8])
    assert other.any(1).mean() > 0.3
    np.testing.assert_allclose(rates[0], (1 - np.exp(-0.7)) * (1 - np.exp(-0.351)), atol=2e-3)


def test_lines_command_writes_numbers_and_figure(tmp_path, monkeypatch):
    recipe = line_study.IMPROVED._replace(population=2, rounds=1, epochs=1, max_sweeps=2, tuning=1)
    monkeypatch.setattr(line_study, "IMPROVED", recipe)
    out, figure = tmp_path / "lines.json", tmp_path / "lines.png"
    arguments = ["--trials", "3", "--batch", "2", "--num-data", "200"]
    files = ["--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "noisyor-lines", *arguments, *files]) == 0
    numbers = json.loads(out.read_text())
    wanted = {"trials", "lines_recovered", "all_lines", "patterns_recovered", "test_log_likelihood"}
    assert wanted <= set(numbers)
    assert sum(kind["trials"] for kind in numbers["failures"].values()) == 3
    assert numbers["test_log_likelihood"] < numbers["true_network_log_likelihood"]
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_words_command_finds_two_groups_of_words(tmp_path):
    rng = np.random.default_rng(0)
    names = ["bat", "ball", "team", "disk", "file", "code"]
    group = rng.integers(0, 2, 500)
    chance = np.where(np.arange(6) // 3 == group[:, None], 0.7, 0.02)
    table = (rng.random((500, 6)) < chance).astype(int)
    file = tmp_path / "words.csv"
    np.savetxt(file, table, fmt="%d", delimiter=",", header=",".join(names), comments="")
    out = tmp_path / "words.json"
    options = ["--layers", "3", "2", "--population", "3", "--rounds", "2"]
    command = ["reproduce", "noisyor-words", "--data", str(file), *options, "--json", str(out)]
    assert main(command) == 0
    numbers = json.loads(out.read_text())
    assert numbers["test_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert numbers["test_log_likelihood_error"] == 0.0
    assert len(numbers["topics"]) == 2
    product = product_log_likelihood(jnp.asarray(table[:300], float), jnp.asarray(table[300:]))
    rate = (table[:300].sum(0) + 1) / 302
    rows = oracle.log_joint_bernoulli_product({"probs": rate}, table[300:])
    np.testing.assert_allclose(product, rows.mean(), rtol=1e-5)


def test_topics_are_named_by_their_words():
    params = {
        "weights_1": jnp.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]),
        "weights_2": jnp.array([[0.0, 2.0], [1.0, 0.0]]),
    }
    assert read_topics(params, ("a", "b", "c")) == [["c"], ["a b"]]


@pytest.mark.parametrize(
    "wrong",
    [
        ["noisyor-lines", "--trials", "0"],
        ["noisyor-lines", "--num-data", "50"],
        ["noisyor-shifter", "--trials", "0"],
        ["noisyor-words"],
        ["noisyor-words", "--data", "nowhere.csv"],
        ["noisyor-words", "--data", "nowhere.csv", "--layers", "3"],
    ],
)
def test_commands_refuse_nonsense(wrong, capsys):
    assert main(["reproduce", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
