"""The grid that rows share: against integrals on a line, finite differences, and compiled steps."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from inference import QuadratureEM
from inference.methods.continuous import grid
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
    found = grid.score(grid.distinct(data, None), values)
    assert len(grid.nodes_for(values).points) < 90
    np.testing.assert_allclose(found.evidence, wanted, atol=tolerance)
    mean = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) @ line
    np.testing.assert_allclose(found.mean[:, 0], mean, atol=tolerance)


@pytest.mark.parametrize("factors", [1, 2])
def test_information_is_the_hessian_by_finite_differences(factors):
    weights, bias = np.array([[0.6, 1.5, 1.0], [1.0, -0.3, 0.4]])[:factors], np.array([-0.5, 0, 1])
    table = grid.distinct(bits(1, 60, weights, bias), None)
    nodes = grid.nodes_for({"weights": weights, "bias": bias}, 1.5)
    first = np.vstack([weights, bias]).T  # (P, Q + 1), as the information has them

    def loss(vector: np.ndarray) -> float:
        both = vector.reshape(first.shape).T
        return grid.expect(table, {"weights": both[:-1], "bias": both[-1]}, nodes).loss

    size, step = first.size, 1e-3
    basis = step * np.eye(size)
    wanted = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            a, b = basis[i], basis[j]
            around = [first.ravel() + x for x in (a + b, a - b, b - a, -a - b)]
            up, left, right, down = (loss(x) for x in around)
            wanted[i, j] = (up - left - right + down) / (4.0 * step**2)
    found = grid.information(table, {"weights": weights, "bias": bias}).reshape(size, size)
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_a_run_without_compilation_ends_where_the_compiled_one_does():
    data = bits(2, 150, WEIGHTS, BIAS)
    mask = np.random.default_rng(3).random(data.shape) < 0.85
    data = np.where(mask, data, 1.0)  # what a hole holds does not matter
    kwargs = {"num_factors": 1, "mask": mask}
    quick = QuadratureEM(latent_trait).run(jax.random.key(0), 300, data, tolerance=1e-7, **kwargs)
    slow = QuadratureEM(latent_trait, search=None, num_nodes=21)
    compiled = slow.run(jax.random.key(0), 300, data, tolerance=1e-8, **kwargs)
    assert quick.compile_seconds == 0.0 < compiled.compile_seconds
    assert quick.stop.converged and quick.optima.agree == 2
    assert abs(float(quick.losses[-1] - compiled.losses[-1])) < 2e-3
    for name, value in compiled.params.items():
        np.testing.assert_allclose(quick.params[name], value, atol=5e-3)


def begin(table, seed):
    first = grid.principal(table, 2)
    noise = np.random.default_rng(seed).normal(0.0, 0.3, first["weights"].shape)
    return {**first, "weights": first["weights"] + noise}


def test_two_factors_climb_further_or_as_far_and_sharp_ones_are_left_to_the_compiled_steps():
    weights = np.array(
        [[1.5, 1.0, 1.2, 0.2, -0.5, 0.1, 0.8], [0.1, -0.4, 0.5, 1.8, 1.1, 1.4, -0.6]]
    )
    table = grid.distinct(bits(4, 400, weights, np.zeros(7)), None)
    ends = [grid.climb(table, begin(table, key), 400, 1e-9) for key in range(2)]
    assert all(end.converged and (np.diff(end.losses) < 1e-6 * end.losses[0]).all() for end in ends)
    assert abs(ends[0].losses[-1] - ends[1].losses[-1]) < 1e-3
    truth = grid.expect(
        table, {"weights": weights, "bias": np.zeros(7)}, grid.nodes_for(ends[0].values)
    )
    assert ends[0].losses[-1] < truth.loss
    with pytest.raises(grid.TooManyNodesError):
        grid.nodes_for({"weights": 30.0 * weights, "bias": np.zeros(7)})
