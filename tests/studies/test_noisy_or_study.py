"""The experiments on noisy-OR networks, at small size."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax import random
from tools import fast_jit

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


def test_topics_are_named_by_their_words():
    params = {
        "weights_1": jnp.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]),
        "weights_2": jnp.array([[0.0, 2.0], [1.0, 0.0]]),
    }
    assert read_topics(params, ("a", "b", "c")) == [["c"], ["a b"]]


def test_independent_words_have_one_pseudo_count_each_way():
    table = np.random.default_rng(0).integers(0, 2, (50, 3))
    value = product_log_likelihood(jnp.asarray(table[:30], float), jnp.asarray(table[30:], float))
    rows = oracle.log_joint_bernoulli_product({"probs": (table[:30].sum(0) + 1) / 32}, table[30:])
    np.testing.assert_allclose(value, rows.mean(), rtol=1e-5)
