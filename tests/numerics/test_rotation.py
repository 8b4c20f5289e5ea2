"""Rotations against a search over all angles of two factors."""

import numpy as np
import pytest

from inference.numerics.rotation import rotate

LOADINGS = np.random.default_rng(1).normal(size=(2, 7)) * 0.5


def test_varimax_is_the_best_of_all_turns():
    """Kaiser's criterion: the variance of the squared loadings of each factor, rows of length 1."""
    length = np.sqrt((LOADINGS**2).sum(0))

    def criterion(table):
        return sum(np.var((row / length) ** 2) for row in table)

    best = max(
        criterion(np.array([[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]) @ LOADINGS)
        for t in np.linspace(0.0, np.pi / 2, 1001)
    )
    rotated = rotate(LOADINGS, "varimax")
    assert criterion(rotated.loadings) == pytest.approx(best, rel=1e-5)
    assert criterion(rotated.loadings) >= best
    np.testing.assert_allclose(rotated.correlations, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(rotated.turn @ rotated.loadings, LOADINGS, atol=1e-12)


def test_oblimin_is_the_best_of_all_pairs_of_axes():
    def criterion(table):
        return np.sum(table[0] ** 2 * table[1] ** 2)

    best = np.inf
    angles = np.linspace(0.0, np.pi, 73)
    for a in angles:
        for b in angles:
            axes = np.array([[np.cos(a), np.cos(b)], [np.sin(a), np.sin(b)]])
            if abs(np.linalg.det(axes)) > 0.05:
                best = min(best, criterion(np.linalg.inv(axes) @ LOADINGS))
    rotated = rotate(LOADINGS, "oblimin")
    assert best * 0.95 < criterion(rotated.loadings) <= best
    np.testing.assert_allclose(np.diagonal(rotated.correlations), 1.0)
    # The loadings and correlations reproduce what the factors explain of any two items.
    together = rotated.loadings.T @ rotated.correlations @ rotated.loadings
    np.testing.assert_allclose(together, LOADINGS.T @ LOADINGS, atol=1e-12)


def test_three_factors_as_factor_analyzer_has_them():
    """A table and its direct oblimin rotation by factor_analyzer 0.5.1 (gamma 0, no scaling)."""
    rng = np.random.default_rng(2)
    table = rng.normal(size=(3, 9)) * 0.3
    for q in range(3):
        table[q, 3 * q : 3 * q + 3] += (0.7, 0.6, 0.8)[q]
    wanted = [0.0729470, 0.0845940, 0.1490411]
    correlations = rotate(table, "oblimin").correlations
    np.testing.assert_allclose(correlations[np.triu_indices(3, 1)], wanted, atol=1e-6)
