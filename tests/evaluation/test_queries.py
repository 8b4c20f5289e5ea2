"""Queries, measures and the universal machine, against sums over every vector of a few bits."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random

from inference import (
    complete,
    log_conditional,
    measure,
    most_probable_state,
    universal_machine,
)
from inference.evaluation.measures import chosen_bits, log_loss, single_bit
from inference.reading.reader import LinearForm
from ppl_models import bernoulli_mixture, bernoulli_product, combination_machine
from ppl_models.data import prototypes

WIDTH = 4
VECTORS = np.asarray(oracle.all_states(WIDTH), float)
GENERATOR = np.random.default_rng(5)
WEIGHTS, BIAS = GENERATOR.normal(0.2, 1.0, (3, WIDTH)), GENERATOR.normal(-0.4, 0.7, 3)
PARAMS = {"weights": jnp.asarray(WEIGHTS, float), "bias": jnp.asarray(BIAS, float)}
PROBABILITY = np.exp(oracle.combination_log_evidence(WEIGHTS, BIAS, VECTORS))  # of every vector


def copied(seed, **options):
    return np.asarray(jax.jit(lambda key: prototypes(key, **options).data)(random.key(seed)))


def chance_of(row, mask):
    """P(the bits of `row` where `mask`): all vectors that agree with them."""
    return sum(
        chance
        for vector, chance in zip(VECTORS, PROBABILITY, strict=True)
        if all(vector[j] == row[j] for j in range(WIDTH) if mask[j])
    )


def test_some_bits_given_others():
    asked = np.array([True, False, False, True])
    given = np.array([False, True, False, False])
    conditional = log_conditional(
        combination_machine, PARAMS, jnp.asarray(VECTORS), num_causes=3, asked=asked, given=given
    )
    for row, value in zip(VECTORS, conditional, strict=True):
        wanted = chance_of(row, asked | given) / chance_of(row, given)
        np.testing.assert_allclose(np.exp(value), wanted, rtol=1e-4)
    with pytest.raises(ValueError, match="bit 1 of row 0 is both asked for and given"):
        log_conditional(
            combination_machine, PARAMS, VECTORS, num_causes=3, asked=given, given=given
        )


def covariate_mixture(data, x, mask=None):
    """A mixture of two whose bits follow a number that each row has of its own."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 3.0).expand((2,)).to_event(1))
    with numpyro.plate("data", len(data)):
        kind = numpyro.sample("kind", dist.Categorical(jnp.array([0.5, 0.5])))
        logits = shift[kind][..., None] * jnp.asarray(x)[:, None] * jnp.ones(data.shape[1])
        bits = dist.Bernoulli(logits=logits)
        numpyro.sample("bits", (bits if mask is None else bits.mask(mask)).to_event(1), obs=data)


def test_completion_of_a_row_by_its_own_covariate():
    data, mask = np.ones((3, 2), np.float32), np.array([[True, False]] * 3)
    x, shift = np.array([-2.0, 0.5, 2.0], np.float32), np.array([3.0, -1.0])
    filled = complete(covariate_mixture, {"shift": jnp.asarray(shift)}, data, mask=mask, x=x)
    on = 1.0 / (1.0 + np.exp(-shift * x[:, None]))  # (rows, kinds), either bit
    np.testing.assert_allclose(filled.probability[:, 1], (on * on).sum(1) / on.sum(1), rtol=1e-5)


def test_completion_of_what_is_partly_seen():
    mask = np.array([[True, False, True, False], [False, False, False, True]] * 8)
    compute = lambda p: complete(combination_machine, p, VECTORS, mask=mask, num_causes=3)  # noqa: E731
    filled = jax.device_get(jax.jit(compute)(PARAMS))
    states = oracle.joint_states(causes=3)
    table = oracle.log_joint_table(
        oracle.log_joint_combination_machine,
        {"weights": WEIGHTS, "bias": BIAS},
        states,
        np.where(mask, VECTORS, 0.0),
        mask,
    )
    for n, row in enumerate(VECTORS):
        for j in range(WIDTH):
            wanted = row[j]
            if not mask[n, j]:
                on = np.where(np.arange(WIDTH) == j, 1.0, row)
                more = mask[n] | (np.arange(WIDTH) == j)
                wanted = chance_of(on, more) / chance_of(row, mask[n])
            np.testing.assert_allclose(filled.probability[n, j], wanted, rtol=1e-4)
            assert filled.values[n, j] == (row[j] if mask[n, j] else wanted > 0.5)
    np.testing.assert_array_equal(filled.latents, states["causes"][table.argmax(0)])
    best = most_probable_state(
        combination_machine, PARAMS, np.where(mask, VECTORS, 0.0), mask=mask, num_causes=3
    )
    np.testing.assert_array_equal(best, filled.latents)


# --- measures


def test_measures_of_a_machine_are_those_of_the_paper():
    rows = VECTORS[[0, 3, 5, 6, 9, 15, 15, 2]]
    judge = jax.jit(lambda p, data: measure(combination_machine, p, data, num_causes=3))
    measures = judge(PARAMS, jnp.asarray(rows))
    chance = {tuple(v): p for v, p in zip(VECTORS.tolist(), PROBABILITY, strict=True)}
    losses, errors, decoded = [], [], []
    for row in rows:
        losses.append(-np.log2(chance[tuple(row)]) / WIDTH)
        wrong = 0.0
        for j in range(WIDTH):
            flipped = tuple(1 - b if i == j else b for i, b in enumerate(row))
            wrong += chance[flipped] > chance[tuple(row)]
        errors.append(wrong / WIDTH)
        hidden = (WEIGHTS @ (2 * row - 1) + BIAS > 0).astype(float)
        on = 1 / (1 + np.exp(-2 * hidden @ WEIGHTS))
        decoded.append(-np.mean(np.where(row == 1, np.log2(on), np.log2(1 - on))))
    for name, each in {
        "log_loss": losses,
        "single_bit": errors,
        "reconstruction": decoded,
    }.items():
        np.testing.assert_allclose(measures[name].value, np.mean(each), rtol=1e-4)
        error = np.std(each, ddof=1) / len(each) ** 0.5
        np.testing.assert_allclose(measures[name].standard_error, error, rtol=1e-3)


def test_measures_of_mixture_and_product():
    data = copied(0, copies=10, num_features=6, flip=0.1)
    probs = np.array([[0.9, 0.2, 0.6, 0.3, 0.8, 0.5], [0.2, 0.7, 0.4, 0.6, 0.1, 0.5]])
    mixed = {"mixing": np.array([0.3, 0.7]), "probs": probs}
    judge = jax.jit(lambda p, data: measure(bernoulli_mixture, p, data, num_components=2))
    measures = judge(mixed, data)
    each = np.stack(
        [np.where(data == 1, np.log(p), np.log1p(-p)).sum(1) for p in np.asarray(probs)], axis=1
    )
    joint = each + np.log(np.asarray(mixed["mixing"]))
    bits = np.log(2) * 6
    np.testing.assert_allclose(
        measures["log_loss"].value, -np.log(np.exp(joint).sum(1)).mean() / bits, rtol=1e-4
    )
    decoded = each[np.arange(len(each)), joint.argmax(1)]
    np.testing.assert_allclose(measures["reconstruction"].value, -decoded.mean() / bits, rtol=1e-4)
    alone = jax.jit(lambda p, data: measure(bernoulli_product, p, data))({"probs": probs[0]}, data)
    assert alone["log_loss"].value == alone["reconstruction"].value
    # Bit by bit: wrong where the less probable value is seen; the last is a tie.
    wrong = np.where(np.asarray(probs[0]) > 0.5, 1 - data, data)
    wrong[:, 5] = 0.5
    np.testing.assert_allclose(alone["single_bit"].value, wrong.mean(), rtol=1e-5)


def test_single_bits_can_be_chosen():
    likes_ones = lambda rows: rows @ jnp.array([1.0, -1.0, 0.0, 2.0])  # noqa: E731
    wrong = jax.jit(lambda bits: single_bit(likes_ones, jnp.asarray(VECTORS), bits).value)
    np.testing.assert_allclose(wrong(np.array([2])), 0.5)
    np.testing.assert_allclose(wrong(np.array([0])), (VECTORS[:, 0] == 0).mean())
    own = np.arange(16)[:, None] % 4
    wanted = [[v[0] == 0, v[1] == 1, 0.5, v[3] == 0][n % 4] for n, v in enumerate(VECTORS)]
    np.testing.assert_allclose(wrong(own), np.mean(wanted))
    picked = np.asarray(jax.jit(lambda key: chosen_bits(key, 16, WIDTH, 3))(random.key(0)))
    assert all(len(set(row)) == 3 for row in picked.tolist())
    one = jax.jit(lambda data: log_loss(likes_ones, data))(VECTORS[:1])
    assert np.isnan(one.standard_error)


# --- any distribution at all


def test_any_distribution_has_a_machine():
    table = np.array([[[0.02, 0.2], [0.05, 0.02]], [[0.3, 0.0], [0.11, 0.3]]])
    params = universal_machine(table, accuracy=1e-5)
    rows = np.asarray(oracle.all_states(3), float)
    assert params["weights"].shape == (8, 3)
    # In closed form, (2.4), with Z by summing the eight vectors: no state of eight units is listed.
    inputs = (2 * rows - 1) @ np.asarray(params["weights"], float).T + np.asarray(params["bias"])
    log_mass = np.asarray(LinearForm(jnp.zeros(8), jnp.asarray(inputs)).evidence)
    chance = np.exp(log_mass - jax.scipy.special.logsumexp(log_mass))
    np.testing.assert_allclose(chance, table.ravel(), atol=1e-3)
    exact = np.exp(
        oracle.combination_log_evidence(
            np.asarray(params["weights"], float), np.asarray(params["bias"], float), rows
        )
    )
    np.testing.assert_allclose(exact, table.ravel(), atol=1e-3)
    with pytest.raises(ValueError, match=r"shape \(2, …, 2\)"):
        universal_machine(np.ones(3) / 3)
    with pytest.raises(ValueError, match="sum to 1"):
        universal_machine(np.ones((2, 2)))
