"""Maxima at bounds, and limits from the profile of a log likelihood, on vectors.

Where the most likely value of a parameter is its bound, the likelihood falls off linearly from it
and a curvature says nothing. What it says is read off the *profile*, the log likelihood with all
other parameters at their most likely values: a limit is where it has fallen by half a quantile of
chi-square with one degree of freedom (Wilks 1938; at bounds Self & Liang 1987).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize import lsq_linear, minimize

Climb = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""The log likelihood of a vector, and its gradient."""
CLOSE = 0.02
"""Nats by which the log likelihood at a limit may miss its target: a hundredth of the distance."""
FAR = 1e5
"""Units from the start at which a limit that was not met is taken for none."""
FLAT = 1e-6
"""Information on a coordinate, in units of its own size, below which there is none."""
Box = tuple[np.ndarray, np.ndarray]
"""Bounds of a vector, (p,) each: minus and plus infinity where there are none."""


def flat(information: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Which coordinates the data say nothing of, (p,), as those of a class without members."""
    return np.abs(np.diagonal(information)) * np.maximum(1.0, np.abs(point)) ** 2 < FLAT


def newton(
    information: np.ndarray, slope: np.ndarray, point: np.ndarray, box: Box
) -> tuple[np.ndarray, float]:
    """Where Newton's step ends that stays within the bounds, and what it is to gain.

    It is the maximum of the quadratic form in the box. Where the form has none, which may be so
    until a bound is reached, it goes up as far as it would go to one of the same curvature.

    >>> box = np.zeros(2), np.full(2, np.inf)
    >>> newton(np.eye(2), np.array([-3.0, 0.5]), np.array([0.1, 0.1]), box)[0].tolist()
    [0.0, 0.6]
    """
    size = np.abs(np.diagonal(information))
    unit = 1.0 / np.sqrt(np.where(size > 0, size, 1.0))
    values, vectors = np.linalg.eigh(information * unit * unit[:, None])
    root = np.sqrt(np.maximum(np.abs(values), 1e-4))
    least, most = ((x - point) / unit for x in box)
    least, most = np.minimum(least, -1e-12), np.maximum(most, 1e-12)
    wanted = (vectors.T @ (unit * slope)) / root
    found = lsq_linear(root[:, None] * vectors.T, wanted, (least, most), method="bvls")
    there = np.select([found.active_mask < 0, found.active_mask > 0], box, point + unit * found.x)
    return there, float(0.5 * (wanted @ wanted) - found.cost)


def limit(
    climb: Climb, start: np.ndarray, ahead: np.ndarray, drop: float, box: Box, unit: np.ndarray
) -> float:  # fmt: skip
    """How large a·x can be until the profile of the log likelihood has fallen by `drop`.

    It is the largest value at any point of the box whose log likelihood is no less: sequential
    quadratic programming (Kraft 1988) finds it without the profile in between.

    :param start: (p,), in the box, from whose log likelihood it falls.
    :param ahead: (p,), a: of a single coordinate, one there; minus one for its smallest value.
    :param unit: (p,), by which each coordinate changes the log likelihood by about one.
    :return: the value of a·x; infinite where there is no limit, NaN where it was not found.

    >>> hill = lambda x: (-0.5 * (x[0] - x[1]) ** 2 - 0.5 * x[1] ** 2, np.array([x[1] - x[0],
    ...     x[0] - 2 * x[1]]))  # of variance 2 in its first coordinate
    >>> box = np.full(2, -np.inf), np.full(2, np.inf)
    >>> round(limit(hill, np.zeros(2), np.array([1.0, 0.0]), 1.0, box, np.ones(2)), 3)
    2.0
    """
    known = lru_cache(4)(lambda key: climb(start + unit * np.frombuffer(key)))
    down, target = -ahead * unit, known(np.zeros(len(start)).tobytes())[0] - drop
    above = {
        "type": "ineq",
        "fun": lambda u: known(u.tobytes())[0] - target,
        "jac": lambda u: known(u.tobytes())[1] * unit,
    }
    bounds = np.clip((np.stack(box, 1) - start[:, None]) / unit[:, None], -FAR, FAR)
    found = minimize(
        lambda u: down @ u, np.zeros(len(start)), jac=lambda _: down, method="SLSQP",
        bounds=bounds, constraints=[above], options={"maxiter": 200, "ftol": 1e-6},
    )  # fmt: skip
    if -found.fun > 0.9 * FAR * np.abs(down).max():
        return float("inf")
    rest = known(found.x.tobytes())[0] - target
    near = abs(rest) < CLOSE or (rest > 0 and found.success)  # or the box ends first
    return float(ahead @ start - found.fun) if near else float("nan")
