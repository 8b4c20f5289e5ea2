"""Sums over the sets of words that are explained, against sums over all states of the causes."""

import jax
import numpy as np
import oracle
from beyond import quickscore
from beyond.quickscore import Causes, grouped, learn, log_empty, log_likelihood, log_truncated

WIDTH = 4
STATES = np.indices((2, 2, 2)).reshape(3, -1).T
ROWS = np.indices((2,) * WIDTH).reshape(WIDTH, -1).T


def joints(causes):
    """Log p(y, s) of every row and state, from the program's equations: (rows, states)."""
    sites = {"weights_1": causes.strength, "leak_0": causes.leak, "leak_1": causes.prior}
    sites = {name: -np.log1p(-x) for name, x in sites.items()} | {"layer_1": STATES}
    every = np.ones((len(STATES), WIDTH))
    return np.stack([oracle.log_joint_noisy_or_network(sites, row * every) for row in ROWS])


def test_rows_are_summed_and_learned_from_as_by_all_states(monkeypatch):
    rng = np.random.default_rng(0)
    causes = Causes(rng.uniform(0.1, 0.7, (3, WIDTH)), rng.uniform(0.1, 0.4, 3),
                    rng.uniform(0.02, 0.2, WIDTH))  # fmt: skip
    causes = jax.tree.map(np.float32, causes)
    times = rng.integers(1, 9, len(ROWS) - 1)
    table = np.repeat(ROWS[1:], times, 0)
    all_rows, seen = grouped(ROWS, (4,)), grouped(table, (4,))
    smoothing = np.full(WIDTH, 0.3, np.float32)

    @jax.jit
    def compute(causes):
        chunk = jax.tree.map(lambda x: x[0], all_rows[0])
        values = log_likelihood(causes, chunk), log_truncated(causes, chunk)
        with monkeypatch.context() as patch:
            patch.setattr(quickscore, "CANDIDATES", 2)
            few = log_truncated(causes, chunk)
        steps = [learn(causes, seen, smoothing, 2.0, never_empty=given) for given in (False, True)]
        return values, few, log_empty(causes), steps

    values, few, empty, steps = jax.device_get(compute(causes))
    joint = joints(causes)
    evidence = np.log(np.exp(joint).sum(1))[all_rows[0].row[0]]
    np.testing.assert_allclose(values, [evidence, evidence], rtol=1e-5)
    assert (few <= evidence + 1e-5).all() and (few < evidence - 1e-3).any()
    np.testing.assert_allclose(empty, np.log(np.exp(joint[0]).sum()), rtol=1e-5)

    # Equation (9) from the posterior of all states; what was left out is learned from as well.
    g = 1 - (1 - causes.leak) * np.exp(STATES @ np.log1p(-causes.strength))
    for (new, loss), missing in zip(steps, (0.0, np.exp(empty)), strict=True):
        weight = np.r_[table.shape[0] * missing / (1 - missing), times]
        posterior = np.exp(joint - np.log(np.exp(joint).sum(1))[:, None]) * weight[:, None]
        on, ratio = posterior.sum(0) @ STATES, (posterior.T @ ROWS) / g
        share = causes.strength * (STATES.T @ ratio)
        np.testing.assert_allclose(new.strength, (share + 0.3) / (on[:, None] + 2), rtol=1e-4)
        np.testing.assert_allclose(new.prior, (on + 1) / (weight.sum() + 2), rtol=1e-4)
        alone = causes.leak * ratio.sum(0)
        np.testing.assert_allclose(new.leak, (alone + 1) / (weight.sum() + 2), rtol=1e-4)
        expected = times @ np.log(np.exp(joint[1:]).sum(1)) - times.sum() * np.log1p(-missing)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
