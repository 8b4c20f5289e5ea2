r"""Rotations of loadings: varimax (Kaiser 1958) and direct oblimin (Jennrich & Sampson 1966).

Both by gradient projection (Jennrich 2001, 2002; Bernaards & Jennrich 2005), of loadings A, (P, Q).
Varimax lowers :math:`-\frac14 \sum_{iq} (l_{iq}^2 - \overline{l_{\cdot q}^2})^2` over
:math:`L = A T`, T orthogonal, with rows of A scaled to length one (Kaiser). Oblimin, with
:math:`\gamma = 0`, lowers :math:`\frac14 \sum_i \sum_{q \ne r} l_{iq}^2 l_{ir}^2` over
:math:`L = A T^{-T}`, T with columns of length one: factors :math:`T^T x` then have the correlations
:math:`T^T T`. These are the defaults of R's ``varimax`` and of ``oblimin`` in GPArotation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ROTATIONS = ("none", "varimax", "oblimin")
STEPS, TOLERANCE = 1000, 1e-7
STARTS = 8
"""Of which the best counts: the criteria have more than one minimum."""


class Rotated(NamedTuple):
    """Rotated loadings (Q, P), T (Q, Q) that turns factors x into Tᵀ x, and their correlations."""

    loadings: np.ndarray
    turn: np.ndarray
    correlations: np.ndarray


def rotate(loadings: np.ndarray, kind: str) -> Rotated:
    """Loadings (Q, P) turned to be simple; the factor that explains most is the first.

    >>> simple = np.array([[0.8, 0.7, 0.0, 0.0], [0.0, 0.0, 0.6, 0.5]])
    >>> slant = np.array([[0.8, 0.6], [-0.6, 0.8]])
    >>> bool(np.allclose(rotate(slant @ simple, "varimax").loadings, simple))
    True
    """
    size = len(loadings)
    if kind == "none" or size == 1:
        return Rotated(loadings, np.eye(size), np.eye(size))
    table = loadings.T
    if kind == "varimax":
        length = np.sqrt((table**2).sum(1, keepdims=True))
        table, criterion, project = table / np.where(length > 0, length, 1.0), varimax, _orthogonal
    else:
        criterion, project = oblimin, _unit_columns
    draws = np.random.default_rng(0)
    starts = [np.eye(size), *(np.linalg.qr(x)[0] for x in draws.normal(size=(STARTS, size, size)))]
    turn = min((_descend(table, x, criterion, project) for x in starts), key=lambda x: x[1])[0]
    rotated = np.linalg.solve(turn, loadings)  # Lᵀ = T⁻¹ Aᵀ
    sign = np.where(rotated.sum(1) < 0, -1.0, 1.0)
    order = np.argsort(-(rotated**2).sum(1), kind="stable")
    turn = (turn * sign)[:, order]
    return Rotated((rotated * sign[:, None])[order], turn, turn.T @ turn)


def varimax(table: np.ndarray) -> tuple[float, np.ndarray]:
    """The criterion of loadings (P, Q), and its gradient."""
    gap = table**2 - (table**2).mean(0)
    return -0.25 * float((gap**2).sum()), -table * gap


def oblimin(table: np.ndarray) -> tuple[float, np.ndarray]:
    """The criterion of loadings (P, Q), and its gradient."""
    square = table**2
    others = square.sum(1, keepdims=True) - square
    return 0.25 * float((square * others).sum()), table * others


def _orthogonal(turn: np.ndarray, slope: np.ndarray | None) -> np.ndarray:
    """The orthogonal matrix next to one; of a slope, the part along such matrices."""
    if slope is None:
        left, _, right = np.linalg.svd(turn)
        return left @ right
    along = turn.T @ slope
    return slope - turn @ (along + along.T) * 0.5


def _unit_columns(turn: np.ndarray, slope: np.ndarray | None) -> np.ndarray:
    """The same with columns of length one in place of orthogonal ones."""
    if slope is None:
        return turn / np.sqrt((turn**2).sum(0))
    return slope - turn * (turn * slope).sum(0)


def _descend(
    table: np.ndarray, turn: np.ndarray, criterion: Callable, project: Callable
) -> tuple[np.ndarray, float]:
    """Gradient projection with steps halved until they lower the criterion enough."""
    inverse = np.linalg.inv(turn)
    value, slope = criterion(table @ inverse.T)
    step = 1.0
    for _ in range(STEPS):
        rotated = table @ inverse.T
        move = project(turn, -(rotated.T @ slope @ inverse).T)
        size = float((move**2).sum())
        if size < TOLERANCE**2:
            break
        step *= 2.0
        for _ in range(20):
            new = project(turn - step * move, None)
            inverse = np.linalg.inv(new)
            new_value, gradient = criterion(table @ inverse.T)
            if new_value < value - 0.5 * size * step:
                break
            step *= 0.5
        else:
            break
        turn, value, slope = new, new_value, gradient
    return turn, value
