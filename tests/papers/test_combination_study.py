"""The experiments of the combination machine, at small size."""

import jax.numpy as jnp
import numpy as np

from inference.methods.discrete.updates import OneUnitUpdate
from inference.papers import combination, combination_curves, combination_theory


def test_orderings_are_counted_over_the_seeds():
    def measures(losses):
        return dict.fromkeys(combination.MEASURES, np.stack([losses, losses], axis=-1))

    scores = {
        "true_model": measures([0.4, 0.4, 0.4]),
        "gradient": measures([0.5, 0.43, 0.5]),
        "pursuit": measures([0.9, 0.9, 0.45]),
        "pursuit_gradient_100": measures([0.6, 0.6, 0.6]),
        "pursuit_gradient": measures([0.41, 0.44, 0.42]),
    }
    numbers = combination.summary(combination.Trial({}, scores))
    np.testing.assert_allclose(
        list(numbers["orderings"].values()), [2 / 3, 2 / 3, 1.0, 0.04, 0.07 / 3], rtol=1e-6
    )
    np.testing.assert_allclose(numbers["table"]["gradient"]["log_loss"]["test"], 1.43 / 3)
    error = np.std([0.5, 0.43, 0.5], ddof=1) / 3**0.5
    np.testing.assert_allclose(numbers["standard_errors"]["gradient"]["log_loss"]["test"], error)


def wrong_bits(log_probs, x, columns):
    """The share of bits whose flipped row is the more probable one; a tie counts half."""
    change = np.stack([log_probs(np.where(np.arange(x.shape[1]) == j, -x, x)) for j in columns], 1)
    change = change - log_probs(x)[:, None]
    return ((change > 0) + 0.5 * (change == 0)).mean()


def test_errors_of_machine_and_mixture_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((30, 4)) < 0.4, 1.0, -1.0)
    columns = np.array([0, 2, 3])
    weights, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    machine = combination_curves.Machine(weights, bias)
    errors = machine.errors(x, columns)
    log_machine = lambda x: np.log1p(np.exp(x @ weights.T + bias)).sum(1)  # noqa: E731
    assert errors.single_bit == wrong_bits(log_machine, x, columns)
    on = 1 / (1 + np.exp(-2 * ((x @ weights.T + bias > 0) @ weights)))
    bits = -np.log2(np.where(x > 0, on, 1 - on)).mean()
    np.testing.assert_allclose(errors.reconstruction, bits)

    probs = rng.uniform(0.1, 0.9, (3, 4))
    mixing = np.array([0.5, 0.3, 0.2])
    errors = combination_curves.mixture_of(probs, mixing).errors(x, columns)
    joint = lambda x: mixing * np.where(x[:, None] > 0, probs, 1 - probs).prod(-1)  # noqa: E731
    assert errors.single_bit == wrong_bits(lambda x: np.log(joint(x).sum(1)), x, columns)
    chosen = probs[joint(x).argmax(1)]
    bits = -np.log2(np.where(x > 0, chosen, 1 - chosen)).mean()
    np.testing.assert_allclose(errors.reconstruction, bits)


def test_one_unit_learns_by_the_update_of_the_method_and_the_best_start_is_taken():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3)) + np.where(rng.random((40, 1)) < 0.5, 2.0, 0.0)
    starts = 0.5 * x[:2]
    bias = -0.5 * (starts**2).sum(1)
    ends = []
    for i in range(2):
        on = 1 / (1 + np.exp(-(x @ starts[i] + bias[i])))
        sums = {"count": 40.0, "active": on.sum(), "cross": jnp.asarray(on @ x)}
        new = OneUnitUpdate().maximise({}, sums)
        weights, level = np.asarray(new["weights"][0]), float(new["bias"][0])
        gain = np.log1p(np.exp(x @ weights + level)).sum()
        ends.append((gain - 40 * np.log1p(np.exp(level + 0.5 * weights @ weights)), weights, level))
    best = max(ends, key=lambda end: end[0])
    every = np.ones_like(x)
    weights, level, gain, _ = combination_curves.one_unit(x, every, starts, bias, steps=1)
    np.testing.assert_allclose(weights, best[1], rtol=1e-4)
    np.testing.assert_allclose([gain, level], [best[0], best[2]], rtol=1e-3)


def test_the_rotated_corner_is_the_largest_term_of_orthogonal_weights():
    rng = np.random.default_rng(2)
    weights = np.linalg.qr(rng.normal(size=(6, 6)))[0] * rng.uniform(0.5, 2.0, (6, 1))
    bias = rng.normal(size=6)
    states = np.indices((2,) * 6).reshape(6, -1).T.astype(float)
    value = combination_theory.exponents(states, weights, bias)
    best, _ = combination_theory.farthest(weights, bias, 1)
    corner = bias + 0.5 * (weights**2).sum(1) > 0
    assert best.tolist() == [value.argmax()] == [int(corner @ (1 << np.arange(5, -1, -1)))]
