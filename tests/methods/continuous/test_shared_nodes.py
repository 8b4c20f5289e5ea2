"""Nodes that rows share: against integrals on a line, and nodes about modes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.special import expit, logsumexp
from tools import in_double

from inference import QuadratureEM
from inference.evaluation.prediction import cell_probabilities
from inference.methods.continuous import quadrature
from inference.running.contract import Stop
from ppl_models import graded_trait, latent_trait


def bits(seed: int, rows: int, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    predictors = rng.normal(size=(rows, len(weights))) @ weights + bias
    return (rng.random(predictors.shape) < 1.0 / (1.0 + np.exp(-predictors))) + 0.0


WEIGHTS = np.array([[0.6, 1.0, 1.5, 2.0, 0.8, 1.2]])
BIAS = np.linspace(-1.0, 1.0, 6)


def posterior(weights: np.ndarray, bias: np.ndarray, data: np.ndarray, **kwargs) -> tuple:
    point = {"weights": weights, "bias": bias}
    method = QuadratureEM(latent_trait)
    return method.posterior(point, data, num_factors=len(weights), **kwargs)


@pytest.mark.parametrize(("sharp", "tolerance"), [(1.0, 1e-8), (6.0, 1e-6), (25.0, 1e-4)])
@in_double
def test_evidence_is_that_of_a_fine_line(sharp, tolerance):
    """Also where items are steps: the nodes crowd there. What `default_nodes` promises of large
    weights, 1e-4 nats per row, holds for weights of fifty."""
    weights, bias = sharp * WEIGHTS[0], sharp * BIAS
    line = np.linspace(-8.0, 8.0, 60001)
    predictors = line[:, None] * weights + bias
    data = bits(0, 12, sharp * WEIGHTS, bias)
    joint = data @ predictors.T - np.logaddexp(0.0, predictors).sum(1) - 0.5 * line**2
    wanted = logsumexp(joint, axis=1) + np.log(line[1] - line[0]) - 0.5 * np.log(2.0 * np.pi)
    found = posterior(weights[None], bias, data)
    np.testing.assert_allclose(found.evidence, wanted, atol=tolerance)
    mean = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ line
    np.testing.assert_allclose(found.mean[:, 0], mean, atol=tolerance)


@in_double
def test_evidence_of_two_factors_is_that_of_a_fine_plane():
    """Two of the items are steps, in directions that are not at right angles."""
    weights = np.array([[1.0, 18.0, 0.4, 6.0], [-0.6, 5.0, 1.2, -9.0]])
    bias = np.array([0.3, -4.0, 0.5, 2.0])
    line = np.linspace(-6.0, 6.0, 701)
    plane = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    predictors = plane @ weights + bias
    data = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
    joint = data @ predictors.T - np.logaddexp(0.0, predictors).sum(1) - 0.5 * (plane**2).sum(1)
    wanted = logsumexp(joint, axis=1) + 2.0 * np.log(line[1] - line[0]) - np.log(2.0 * np.pi)
    found = posterior(weights, bias, data)
    np.testing.assert_allclose(found.evidence, wanted, atol=2e-5)
    mean = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ plane
    np.testing.assert_allclose(found.mean, mean, atol=2e-5)


@pytest.mark.parametrize(("sharp", "tolerance"), [(2.0, 2e-6), (15.0, 1e-4)])
@in_double
def test_evidence_of_three_factors_is_that_of_each_alone(sharp, tolerance):
    """Two items a factor, one of them a step, and the factors turned: rows are what they were."""
    rng = np.random.default_rng(2)
    parts, bias = rng.normal(1.2, 0.4, (3, 2)), rng.normal(size=6)
    parts[0, 1] = sharp
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    weights = turn @ (np.repeat(np.eye(3), 2, axis=1) * parts.ravel())
    data = bits(0, 30, weights, bias)
    alone = 0.0
    for k, own in enumerate(parts):
        some = slice(2 * k, 2 * k + 2)
        alone = alone + np.asarray(posterior(own[None], bias[some], data[:, some]).evidence)
    np.testing.assert_allclose(posterior(weights, bias, data).evidence, alone, atol=tolerance)


LEVELS = (2, 3, 4)
CUTS = {"cutpoints_2": [[0.5]], "cutpoints_3": [[-0.8, 0.6]], "cutpoints_4": [[-1.2, -0.3, 1.0]]}


def levels_case() -> tuple[dict, np.ndarray, dict]:
    """Columns of 2, 3 and 4 levels on one factor, and some rows of them with holes."""
    point = {"weights": np.array([[0.6, 1.5, 1.0]]), **{x: np.array(v) for x, v in CUTS.items()}}
    rng = np.random.default_rng(1)
    trait = rng.normal(size=(60, 1)) * point["weights"] + rng.logistic(size=(60, 3))
    cuts = list(CUTS.values())
    data = np.stack([(trait[:, [i]] > np.array(cuts[i])).sum(1) for i in range(3)], 1)
    mask = np.random.default_rng(3).random(data.shape) < 0.8
    return point, data, {"mask": mask, "levels": LEVELS, "num_factors": 1}


def loop_evidence(point: dict, data: np.ndarray, mask: np.ndarray) -> float:
    """From the probabilities of the levels as differences of curves, row by row on a line."""
    line = np.linspace(-8.0, 8.0, 801)
    total = 0.0
    for row, shown in zip(data, mask, strict=True):
        log = -0.5 * line**2 - 0.5 * np.log(2.0 * np.pi) + np.log(line[1] - line[0])
        for i in np.flatnonzero(shown):
            cuts = point[f"cutpoints_{LEVELS[i]}"][0]
            above = expit(line[:, None] * point["weights"][0, i] - cuts)
            ends = np.ones((len(line), 1)), np.zeros((len(line), 1))
            log = log + np.log(-np.diff(np.hstack([ends[0], above, ends[1]]))[:, row[i]])
        total += logsumexp(log)
    return total


@in_double
def test_evidence_of_levels_is_that_of_loops():
    point, data, kwargs = levels_case()
    found = QuadratureEM(graded_trait).posterior(point, data, **kwargs).evidence.sum()
    assert float(found) == pytest.approx(loop_evidence(point, data, kwargs["mask"]), abs=1e-5)


def test_a_run_on_shared_nodes_ends_where_one_about_modes_does():
    """And reports the steps done; bits may be True and False."""
    data = bits(2, 150, WEIGHTS, BIAS)
    mask = np.random.default_rng(3).random(data.shape) < 0.85
    data = np.where(mask, data, 1.0)  # what a hole holds does not matter
    kwargs = {"num_factors": 1, "mask": mask}
    method = QuadratureEM(latent_trait)
    how = {"record": dict, **kwargs}
    quick = method.run(jax.random.key(0), 300, data > 0, tolerance=1e-7, **how)
    slow = QuadratureEM(latent_trait, search=None, num_nodes=21)
    compiled = slow.run(jax.random.key(0), 300, data, tolerance=1e-8, **kwargs)
    assert abs(float(quick.losses[-1] - compiled.losses[-1])) < 2e-3
    for name, value in compiled.params.items():
        np.testing.assert_allclose(quick.params[name], value, atol=5e-3)
    done = len(quick.losses)
    assert quick.stop.converged and done < 300 and quick.optima.agree == 2
    assert quick.reason == f"{Stop.TOLERANCE.value} 1e-07 of the loss"
    assert quick.history["weights"].shape == (done, 1, len(BIAS))
    assert quick.losses[0] - quick.losses[-1] > 1.0
    np.testing.assert_allclose(quick.history["weights"][-1], quick.params["weights"], atol=1e-4)
    few = method.run(jax.random.key(0), 5, data > 0, **how)
    assert len(few.losses) == 5
    assert not few.stop.converged and few.reason == "all steps done"


def test_two_factors_climb_from_all_keys_beyond_the_truth():
    weights = np.array(
        [[1.5, 1.0, 1.2, 0.2, -0.5, 0.1, 0.8], [0.1, -0.4, 0.5, 1.8, 1.1, 1.4, -0.6]]
    )
    data = bits(4, 400, weights, np.zeros(7))
    how = {"tolerance": 1e-7, "num_factors": 2}
    ends = [
        QuadratureEM(latent_trait).run(jax.random.key(key), 400, data, **how) for key in range(2)
    ]
    assert all(end.stop.converged and end.optima.agree == 2 for end in ends)
    assert abs(float(ends[0].losses[-1] - ends[1].losses[-1])) < 1e-2
    truth = -float(posterior(weights, np.zeros(7), data).evidence.sum())
    assert float(ends[0].losses[-1]) < truth


@in_double
def test_few_rows_of_very_many_columns_have_nodes_of_their_own(monkeypatch):
    """The same evidence, moments and predictions as on nodes that all rows share."""
    rng = np.random.default_rng(7)
    weights = np.vstack([rng.normal(1.0, 0.3, 1000), rng.normal(0.0, 0.3, 1000)])
    bias = rng.normal(size=1000)
    data = bits(8, 5, weights, bias)
    mask = rng.random(data.shape) < 0.8
    mask[4, 30:] = False  # a row with little to go by
    own = posterior(weights, bias, data, mask=mask)
    monkeypatch.setattr(quadrature, "MOST_OWN_ROWS", 0)
    shared = posterior(weights, bias, data, mask=mask)
    for name in ("mean", "covariance", "evidence"):
        np.testing.assert_allclose(getattr(own, name), getattr(shared, name), atol=1e-3)
    cells = np.argwhere(~mask)[::7]
    draws = {"weights": weights[None], "bias": bias[None]}
    found = cell_probabilities(latent_trait, draws, data, cells, mask=mask, num_factors=2)
    # One row with little to go by: averaged over a wide posterior, the others over narrow ones.
    mean = np.asarray(shared.mean)[cells[:, 0]]
    at_mean = expit((mean * weights[:, cells[:, 1]].T).sum(1) + bias[cells[:, 1]])
    narrow = cells[:, 0] < 4
    np.testing.assert_allclose(np.ravel(found)[narrow], at_mean[narrow], atol=5e-3)
    assert np.abs(np.ravel(found) - 0.5)[~narrow].mean() < np.abs(at_mean - 0.5)[~narrow].mean()
