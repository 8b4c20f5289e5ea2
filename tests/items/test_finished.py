"""Fits of EM moved to the maximum, against plain EM in float64 until nothing moves."""

import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random

from inference import EM
from inference.evaluation.standard_errors import finish
from inference.items.estimates import finished
from inference.running.contract import Optima
from ppl_models import bernoulli_mixture, categorical_mixture

LEVELS = (3, 2, 3, 3)
SIZES = {"levels": LEVELS, "num_components": 3}


def overlapping_classes():
    """1202 rows of three classes, two of which answer alike."""
    rng = np.random.default_rng(1)
    member = rng.choice(3, 1202, p=rng.dirichlet(np.full(3, 3.0)))
    columns = []
    for k in LEVELS:
        probs = rng.dirichlet(np.ones(k), 3)
        columns.append(np.array([rng.choice(k, p=probs[i]) for i in member]))
    return np.stack(columns, 1)


def log_evidence(rows, mixing, probs):
    """log p of each row and the posterior of its class."""
    joint = np.tile(mixing, (len(rows), 1))
    for column, table in enumerate(probs):
        joint *= table[:, rows[:, column]].T
    return np.log(joint.sum(1)), joint / joint.sum(1, keepdims=True)


def slow_maximum(rows, count):
    """The log likelihood at the end of plain EM in float64, on patterns of answers."""
    rng = np.random.default_rng(0)
    mixing = np.full(3, 1.0 / 3)
    probs = [rng.dirichlet(np.ones(k), 3) for k in LEVELS]
    for _ in range(20_000):
        evidence, member = log_evidence(rows, mixing, probs)
        member *= count[:, None]
        mixing = member.sum(0) / count.sum()
        for column, k in enumerate(LEVELS):
            sums = np.stack([member[rows[:, column] == v].sum(0) for v in range(k)], 1)
            probs[column] = sums / member.sum(0)[:, None]
    return count @ evidence


def test_starts_that_agree_are_at_the_same_maximum():
    data = overlapping_classes()
    rows, count = np.unique(data, axis=0, return_counts=True)
    best = slow_maximum(rows, count)
    run = EM(categorical_mixture).run(random.key(0), 500, data, tolerance=1e-7, **SIZES)
    assert run.stop.converged and run.optima.values[0] > -best + 0.005  # what there is to gain
    params, optima, left = finished(categorical_mixture, run.params, run.optima, data, SIZES, False)
    of_three = params["probs_3"]
    probs = [of_three[:, 0], params["probs_2"][:, 0], of_three[:, 1], of_three[:, 2]]
    assert left < 1e-4
    assert abs(count @ log_evidence(rows, params["mixing"], probs)[0] - best) < 1e-4
    assert optima.agree == 3 and np.ptp(optima.values) < 1e-4
    np.testing.assert_array_equal(optima.params["mixing"][0], params["mixing"])


def test_optima_that_differ_by_a_hundredth_are_two():
    """Starts at two optima of a table, as close as steps of EM leave ends at the same one."""
    rng = np.random.default_rng(4)
    data = (rng.random((300, 6)) < 0.5).astype(float)
    ends = [
        EM(bernoulli_mixture, search=None).run(random.key(k), 400, data, num_components=2)
        for k in range(2)
    ]
    values = [finish(bernoulli_mixture, x.params, data, num_components=2)[1] for x in ends]
    assert abs(values[0] - values[1]) > 0.01
    both = {x: np.stack([e.params[x] for e in ends]) for x in ends[0].params}
    losses = np.array([float(e.losses[-1]) for e in ends])
    order = np.argsort(losses)
    told = Optima(losses[order], 2, 0, {x: v[order] for x, v in both.items()})
    sizes = {"num_components": 2}
    _, optima, _ = finished(bernoulli_mixture, ends[0].params, told, data, sizes, False)
    assert optima.agree == 1 and optima.alone == 2
    np.testing.assert_allclose(optima.values, np.sort(-np.array(values)), atol=1e-6)


def test_a_mode_of_the_posterior_is_reached_by_its_slope():
    rng = np.random.default_rng(2)
    data = (rng.random((40, 3)) < 0.3).astype(float)
    start = {"mixing": np.ones(1), "probs": np.full((1, 3), 0.6)}
    sizes = {"num_components": 1, "prior_probs": dist.Beta(2.0, 3.0)}
    there, _, left = finish(bernoulli_mixture, start, data, prior=True, **sizes)
    expected = (data.sum(0) + 1) / (len(data) + 3)  # the mode of Beta(2 + ones, 3 + zeros)
    assert left < 1e-7
    np.testing.assert_allclose(there["probs"][0], expected, atol=1e-4)


@pytest.mark.parametrize("column", [np.zeros(30), np.ones(30)])
def test_a_bound_is_met_and_not_passed(column):
    data = np.stack([column, np.arange(30) % 2], 1)
    start = {"mixing": np.ones(1), "probs": np.full((1, 2), 0.5)}
    there, value, _ = finish(bernoulli_mixture, start, data, num_components=1)
    assert 0.0 < there["probs"][0, 0] < 1.0 and abs(there["probs"][0, 0] - column[0]) < 1e-9
    assert abs(value - 30 * np.log(0.5)) < 1e-4
