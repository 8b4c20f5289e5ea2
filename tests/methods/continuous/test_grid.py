"""The grid that rows share: against integrals on a line, finite differences, and compiled steps."""

from __future__ import annotations

import tracemalloc

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from inference import QuadratureEM
from inference.methods.continuous import (
    at_once,
    climbing,
    curves,
    grid,
    information,
    nodes,
    principal,
)
from inference.methods.continuous.curves import logistic
from inference.running.contract import Stop
from ppl_models import latent_trait


def bits(seed: int, rows: int, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    predictors = rng.normal(size=(rows, len(weights))) @ weights + bias
    return (rng.random(predictors.shape) < 1.0 / (1.0 + np.exp(-predictors))) + 0.0


WEIGHTS = np.array([[0.6, 1.0, 1.5, 2.0, 0.8, 1.2]])
BIAS = np.linspace(-1.0, 1.0, 6)


@pytest.mark.parametrize(("sharp", "tolerance"), [(1.0, 1e-8), (6.0, 1e-6), (25.0, 1e-4)])
def test_evidence_is_that_of_a_fine_line(sharp, tolerance):
    """Also where items are steps: the nodes crowd there, and do not get many. What `default_nodes`
    promises of large weights, 1e-4 nats per row, holds for weights of fifty."""
    weights, bias = sharp * WEIGHTS[0], sharp * BIAS
    line = np.linspace(-8.0, 8.0, 60001)
    predictors = line[:, None] * weights + bias
    data = bits(0, 12, sharp * WEIGHTS, bias)
    joint = data @ predictors.T - np.logaddexp(0.0, predictors).sum(1) - 0.5 * line**2
    wanted = logsumexp(joint, axis=1) + np.log(line[1] - line[0]) - 0.5 * np.log(2.0 * np.pi)
    values = {"weights": weights[None], "bias": bias}
    score = grid.score(grid.distinct(data, None), values)
    assert len(nodes.nodes_for(values).points) < 90
    np.testing.assert_allclose(score.evidence, wanted, atol=tolerance)
    mean = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ line
    np.testing.assert_allclose(score.mean[:, 0], mean, atol=tolerance)


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
    values = {"weights": weights, "bias": bias}
    score = grid.score(grid.distinct(data, None), values)
    assert len(nodes.nodes_for(values).points) < 2000
    np.testing.assert_allclose(score.evidence, wanted, atol=2e-5)
    mean = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ plane
    np.testing.assert_allclose(score.mean, mean, atol=2e-5)


@pytest.mark.parametrize(("sharp", "tolerance"), [(2.0, 2e-6), (15.0, 1e-4)])
def test_evidence_of_three_factors_is_that_of_each_alone(sharp, tolerance):
    """Two items a factor, one of them a step, and the factors turned: rows are what they were."""
    rng = np.random.default_rng(2)
    parts, bias = rng.normal(1.2, 0.4, (3, 2)), rng.normal(size=6)
    parts[0, 1] = sharp
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    weights = turn @ (np.repeat(np.eye(3), 2, axis=1) * parts.ravel())
    data = bits(0, 30, weights, bias)
    score = grid.score(grid.distinct(data, None), {"weights": weights, "bias": bias})
    alone = 0.0
    for k, own in enumerate(parts):
        some = slice(2 * k, 2 * k + 2)
        values = {"weights": own[None], "bias": bias[some]}
        alone = alone + grid.score(grid.distinct(data[:, some], None), values, 2.0).evidence
    np.testing.assert_allclose(score.evidence, alone, atol=tolerance)


def levels_of(num_factors: int) -> tuple[dict, np.ndarray, tuple[int, ...]]:
    """Columns of 2, 3 and 4 levels, and some rows of them."""
    columns = curves.columns_of((2, 3, 4))
    weights = np.array([[0.6, 1.5, 1.0], [1.0, -0.3, 0.4]])[:num_factors]
    values = {
        "weights": weights[:, columns.column_of],
        "bias": np.array([-0.5, 0.8, -0.6, 1.2, 0.3, -1.0]),
    }
    rng = np.random.default_rng(1)
    trait = rng.normal(size=(60, num_factors)) @ weights + rng.logistic(size=(60, 3))
    above = trait[:, columns.column_of] > -values["bias"]
    return values, np.add.reduceat(above, columns.first, axis=1), (2, 3, 4)


def guessed() -> tuple[dict, np.ndarray, tuple[int, ...]]:
    values = {
        "weights": WEIGHTS[:, :4],
        "bias": BIAS[:4],
        "guessing": np.array([0.1, 0.3, 0.2, 0.25]),
    }
    data = bits(1, 60, WEIGHTS[:, :4], BIAS[:4])
    lucky = np.random.default_rng(2).random(data.shape) < values["guessing"]
    return values, np.maximum(data, lucky), (2,) * 4


def case(name: str) -> tuple[dict, grid.BitTable]:
    if name.startswith("bits"):
        factors = int(name[-1])
        weights = np.array([[0.6, 1.5, 1.0], [1.0, -0.3, 0.4]])[:factors]
        values = {"weights": weights, "bias": np.array([-0.5, 0, 1])}
        return values, grid.distinct(bits(1, 60, weights, values["bias"]), None)
    values, data, levels = guessed() if name == "guessing" else levels_of(int(name[-1]))
    seen = np.random.default_rng(3).random(data.shape) < 0.8
    return values, grid.distinct(data, seen, levels)


CASES = ["bits on 1", "bits on 2", "levels on 1", "levels on 2", "guessing"]


def loss_of(table, vector, size, nodes):
    return grid.expect(table, table.columns.whole(vector, size), nodes).loss


@pytest.mark.parametrize("name", CASES)
def test_information_is_the_hessian_by_finite_differences(name):
    values, table = case(name)
    size = len(values["weights"])
    fine = nodes.nodes_for(values, 1.5)
    first = table.columns.flat(values)
    count, step = len(first), 1e-3
    basis = step * np.eye(count)
    wanted = np.empty((count, count))
    for i in range(count):
        for j in range(i + 1):
            a, b = basis[i], basis[j]
            around = [first + x for x in (a + b, a - b, b - a, -a - b)]
            up, left, right, down = (loss_of(table, x, size, fine) for x in around)
            wanted[i, j] = wanted[j, i] = (up - left - right + down) / (4.0 * step**2)
    np.testing.assert_allclose(information.information(table, values), wanted, atol=2e-3)


@pytest.mark.parametrize("name", ["levels on 1", "levels on 2", "guessing"])
def test_evidence_is_that_of_sums_over_the_cells(name):
    """Each row on its own, from the probabilities of the levels as differences of curves."""
    values, table = case(name)
    fine = nodes.nodes_for(values, 2.0, table.columns.share)
    evidence = grid.score(table, values).evidence
    guess = values.get("guessing", np.zeros(len(table.levels)))
    for row, place in enumerate(table.place):
        log = fine.log_weights.copy()
        for column, start in enumerate(table.columns.first):
            own = slice(start, start + table.levels[column] - 1)
            if not table.seen[place, column]:
                continue
            level = int(table.bits[place, own] @ np.arange(1, table.levels[column]))
            sigma = logistic(fine.points @ values["weights"][:, own] + values["bias"][own])
            curve = guess[column] + (1.0 - guess[column]) * sigma
            ends = np.ones((len(sigma), 1)), np.zeros((len(sigma), 1))
            log += np.log(-np.diff(np.hstack([ends[0], curve, ends[1]]))[:, level])
        assert evidence[row] == pytest.approx(logsumexp(log), abs=1e-5)


def test_a_run_on_shared_nodes_ends_where_one_about_modes_does():
    data = bits(2, 150, WEIGHTS, BIAS)
    mask = np.random.default_rng(3).random(data.shape) < 0.85
    data = np.where(mask, data, 1.0)  # what a hole holds does not matter
    kwargs = {"num_factors": 1, "mask": mask}
    quick = QuadratureEM(latent_trait).run(jax.random.key(0), 300, data, tolerance=1e-7, **kwargs)
    slow = QuadratureEM(latent_trait, search=None, num_nodes=21)
    compiled = slow.run(jax.random.key(0), 300, data, tolerance=1e-8, **kwargs)
    assert quick.stop.converged and quick.optima.agree == 2
    assert abs(float(quick.losses[-1] - compiled.losses[-1])) < 2e-3
    for name, value in compiled.params.items():
        np.testing.assert_allclose(quick.params[name], value, atol=5e-3)


def test_a_run_reports_the_steps_done_and_bits_may_be_true_and_false():
    data = bits(2, 150, WEIGHTS, BIAS)
    method = QuadratureEM(latent_trait)
    how = {"num_factors": 1, "record": dict, "tolerance": 1e-7}
    end = method.run(jax.random.key(0), 300, data > 0, **how)
    done = len(end.losses)
    assert end.stop.converged and done < 300 and end.optima.agree == 2
    assert end.reason == f"{Stop.TOLERANCE.value} 1e-07 of the loss"
    assert end.history["weights"].shape == (done, 1, len(BIAS))
    assert end.losses[0] - end.losses[-1] > 1.0
    np.testing.assert_allclose(end.history["weights"][-1], end.params["weights"], atol=1e-4)
    few = method.run(jax.random.key(0), 5, data, num_factors=1)
    assert len(few.losses) == 5
    assert not few.stop.converged and few.reason == "all steps done"


def begin(table, seed):
    first = principal.principal(table, 2)
    noise = np.random.default_rng(seed).normal(0.0, 0.3, first["weights"].shape)
    return {**first, "weights": first["weights"] + noise}


def test_two_factors_climb_further_or_as_far_and_sharp_ones_are_left_to_the_compiled_steps():
    weights = np.array(
        [[1.5, 1.0, 1.2, 0.2, -0.5, 0.1, 0.8], [0.1, -0.4, 0.5, 1.8, 1.1, 1.4, -0.6]]
    )
    table = grid.distinct(bits(4, 400, weights, np.zeros(7)), None)
    ends = [climbing.climb(table, begin(table, key), 400, 1e-9) for key in range(2)]
    assert all(end.converged and (np.diff(end.losses) < 1e-6 * end.losses[0]).all() for end in ends)
    assert abs(ends[0].losses[-1] - ends[1].losses[-1]) < 1e-3
    truth = grid.expect(
        table, {"weights": weights, "bias": np.zeros(7)}, nodes.nodes_for(ends[0].values)
    )
    assert ends[0].losses[-1] < truth.loss
    with pytest.raises(nodes.TooManyNodesError):
        nodes.nodes_for({"weights": 30.0 * weights, "bias": np.zeros(7)})


def sparse_case(num_data: int, num_items: int, answered: int) -> tuple[np.ndarray, np.ndarray]:
    """Levels 0, 1, 2 of a few items of each row, the rest unseen."""
    rng = np.random.default_rng(0)
    mask = np.zeros((num_data, num_items), bool)
    where = rng.random(mask.shape).argpartition(answered, axis=1)[:, :answered]
    mask[np.arange(num_data)[:, None], where] = True
    slope = np.exp(rng.normal(0.0, 0.3, num_items))
    trait = rng.normal(size=(num_data, 1)) * slope + rng.logistic(size=mask.shape)
    return ((trait > -0.7).astype(np.int8) + (trait > 0.6)) * mask, mask


def test_few_observed_cells_are_kept_alone_and_fitted_to_the_same_end():
    data, mask = sparse_case(400, 30, 5)
    levels = (3,) * 30
    dense, sparse = (
        grid.distinct(data, mask, levels),
        grid.observed_cells(data, mask, np.arange(30), levels),
    )
    first = principal.principal(dense, 1)
    ends = [climbing.climb(table, first, 200, 1e-9) for table in (dense, sparse)]
    assert ends[0].losses[-1] == pytest.approx(ends[1].losses[-1], rel=1e-8)
    np.testing.assert_allclose(ends[0].values["weights"], ends[1].values["weights"], atol=1e-3)


@pytest.mark.parametrize("observed", [1.0, 0.9])
def test_principal_components_by_powers(monkeypatch, observed):
    weights = np.array([[1.5, 1.0, 1.2, 0.2, -0.5, 0.9], [0.1, -0.4, 0.5, 1.8, 1.1, 1.4]])
    data = bits(5, 3000, weights, np.zeros(6))
    mask = np.random.default_rng(6).random(data.shape) < observed
    table = grid.distinct(data, mask)
    wanted = principal.principal(table, 2)
    monkeypatch.setattr(principal, "FEW_COLUMNS", 0)
    components = principal.principal(table, 2)
    np.testing.assert_allclose(components["bias"], wanted["bias"])
    for one, other in zip(components["weights"], wanted["weights"], strict=True):
        gap = min(np.abs(one - other).max(), np.abs(one + other).max())
        assert gap < (1e-2 if observed == 1.0 else 0.2)


def test_a_sparse_table_takes_the_memory_of_its_cells():
    """Six million cells of which two in a hundred are observed: no table of floats is made."""
    data, mask = sparse_case(6000, 1000, 20)
    tracemalloc.start()
    try:
        table = grid.observed_cells(data, mask, np.arange(1000), (3,) * 1000)
        climbing.climb(table, principal.principal(table, 1), 5, 1e-6)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    floats = 4 * 3 * data.size  # bytes, for two cutpoints and what was seen
    assert peak < floats / 2


@pytest.mark.parametrize("size", [1, 2])
def test_few_rows_of_very_many_columns_have_nodes_of_their_own(size, monkeypatch):
    """The same evidence, moments, predictions and fit as on nodes that all rows share."""
    rng = np.random.default_rng(7)
    weights = np.vstack([rng.normal(1.0, 0.3, 1000), rng.normal(0.0, 0.3, 1000)])[:size]
    values = {"weights": weights, "bias": rng.normal(size=1000)}
    data = bits(8, 5, weights, values["bias"])
    mask = rng.random(data.shape) < 0.8
    mask[4, 30:] = False  # a row with little to go by
    table = grid.distinct(data, mask)
    kwargs = {"mask": mask, "num_factors": size}
    opened = QuadratureEM(latent_trait)._open((data,), kwargs)
    cells = np.argwhere(~mask)[::7]
    zero, one = np.zeros((size, 1000)), np.eye(size, 1) * np.ones((1, 1000))
    held = curves.Prior(
        np.stack([one, zero + 4.0]), np.stack([np.zeros(1000), np.full(1000, 0.25)]), None
    )
    readings = []
    end = climbing.climb(table, values, 60, 1e-11, prior=held) if size == 1 else None
    for most in (nodes.MOST_OWN_ROWS, 0):
        monkeypatch.setattr(grid, "MOST_OWN_ROWS", most)
        scores = grid.score(table, values)
        readings.append((*scores[:3], at_once.unseen_cells(opened, values, cells)))
    for own, shared in zip(*readings, strict=True):
        np.testing.assert_allclose(own, shared, atol=1e-3)
    if end is None:  # the prior does not hold the scale of a second factor
        return
    # Where it ends nothing is left to gain on the shared nodes either.
    points = nodes.nodes_for(end.values)
    sums = grid.expect(table, end.values, points)
    loss = sums.loss - held.log_density(end.values)
    assert end.converged and end.losses[-1] == pytest.approx(loss, abs=2e-3)
    again, _ = curves.maximise(table.columns, end.values, points, sums, held)
    np.testing.assert_allclose(again["weights"], end.values["weights"], atol=1e-2)
