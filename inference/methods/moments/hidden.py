r"""Hidden values of an image under the hard clip, for any number of factors.

An image is a cell of the space of factors, all y with :math:`\pm(\xi_i + w_i \cdot y) > 0`: linear
inequalities. Whether there is such a y, and which lies deepest inside, is a linear programme; from
there a chain of truncated normals on random lines stays in the cell and draws from p(y | image).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...types import Params

REACH = 8.0
"""No hidden value is looked for further out: a standard normal has 1e-15 there."""
MARGIN = 1e-6
"""A bit that is right by less counts as undecided."""


class Hidden(NamedTuple):
    """A point for each image."""

    factors: np.ndarray  # (num_data, num_factors) y
    depth: np.ndarray  # (num_data,) distance to the nearest hyperplane; not positive: no such cell
    wrong: np.ndarray  # (num_data,) bits in which the image of y differs from the row


def hidden_values(params: Params, data: ArrayLike, mask: ArrayLike | None = None) -> Hidden:
    """The point of each image's cell that is farthest from all its hyperplanes, within `REACH`.

    A row that is no image of the model gets the y with the least sum of distances by which its
    inequalities fail: few bits are wrong there, not provably the fewest, which is a hard problem.

    :param params: ``weights`` (num_factors, num_features) and ``bias``, of a run with ``noise=0``.
    :param data: (num_data, num_features) 0/1.
    :param mask: True where a cell was observed; the others ask for nothing.

    >>> params = {"weights": np.eye(3), "bias": np.zeros(3)}
    >>> hidden = hidden_values(params, [[1, 0, 1]])
    >>> np.sign(hidden.factors).tolist(), hidden.wrong.tolist()
    ([[1.0, -1.0, 1.0]], [0])
    """
    bits = np.atleast_2d(np.asarray(data))
    observed = np.ones(bits.shape, bool) if mask is None else np.atleast_2d(np.asarray(mask, bool))
    normal, offset = _planes(params)
    parts = [
        _deepest(normal, offset, row, known) for row, known in zip(bits, observed, strict=True)
    ]
    factors = np.array([place for place, _ in parts])
    wrong = ((factors @ normal + offset > 0) != (bits > 0)) & observed
    return Hidden(factors, np.array([depth for _, depth in parts]), wrong.sum(axis=1))


def draw_hidden(
    seed: int,
    params: Params,
    data: ArrayLike,
    start: ArrayLike,
    num_draws: int = 500,
    *,
    thin: int = 4,
) -> np.ndarray:
    """Draws of p(y | image) under the hard clip, all rows at once: (num_draws, num_data, P).

    Hit and run (Smith 1984): in a random direction y is a normal truncated to the cell. The first
    fifth of a chain is dropped.

    :param start: (num_data, P) inside the cells, from `hidden_values` with ``wrong`` zero.
    :param thin: moves per draw.

    >>> params = {"weights": np.eye(2), "bias": np.zeros(2)}
    >>> drawn = draw_hidden(0, params, [[1, 0]], [[1.0, -1.0]], 2000)
    >>> bool(np.abs(drawn.mean(axis=0) - [0.8, -0.8]).max() < 0.1)  # √(2/π)
    True
    """
    from scipy.special import ndtr, ndtri

    bits, place = np.atleast_2d(np.asarray(data)), np.array(start, float)
    normal, offset = _planes(params)
    side = np.where(bits > 0, 1.0, -1.0)
    if (side * (place @ normal + offset) < 0)[:, normal.any(axis=0)].any():
        raise ValueError("`start` is outside of some row's cell: take rows whose `wrong` is 0")
    rng = np.random.default_rng(seed)
    skipped = num_draws // 4
    kept = np.empty((num_draws, *place.shape))
    for move in range((skipped + num_draws) * thin):
        direction = rng.normal(size=place.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        height, rate = side * (place @ normal + offset), side * (direction @ normal)
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = -np.maximum(height, 0.0) / rate
        low = np.where(rate > 0, reached, -np.inf).max(axis=1)
        high = np.where(rate < 0, reached, np.inf).min(axis=1)
        centre = -(place * direction).sum(axis=1)
        # On the side of the tail where both ends have their digits.
        flip = np.where(low - centre > 0, -1.0, 1.0)
        ends = np.sort(np.stack([flip * (low - centre), flip * (high - centre)]), axis=0)
        share = ndtr(ends)
        step = flip * ndtri(share[0] + rng.random(len(place)) * (share[1] - share[0])) + centre
        step = np.clip(np.where(np.isfinite(step), step, 0.5 * (low + high)), low, high)
        place = place + step[:, None] * direction
        if move % thin == thin - 1 and move >= skipped * thin:
            kept[move // thin - skipped] = place
    return kept


def _planes(params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Unit normals (P, D) and offsets (D,); a column without weights keeps its bias alone."""
    weights, bias = np.asarray(params["weights"], float), np.asarray(params["bias"], float)
    size = np.linalg.norm(weights, axis=0)
    size = np.where(size > 0, size, 1.0)
    return weights / size, bias / size


def _deepest(
    normal: np.ndarray, offset: np.ndarray, row: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, float]:
    from scipy.optimize import linprog

    known = known & normal.any(axis=0)
    side = np.where(row[known] > 0, 1.0, -1.0)
    slope, level = -side[:, None] * normal[:, known].T, side * offset[known]
    count, size = slope.shape
    box = [(-REACH, REACH)] * size

    def solve(cost: np.ndarray, slack: np.ndarray, demand: Any, bounds: list) -> np.ndarray:
        solution = linprog(cost, np.column_stack([slope, slack]), demand, bounds=bounds)
        if solution.x is None:
            raise RuntimeError(f"the linear programme of a row failed: {solution.message}")
        return solution.x

    inside = solve(
        np.append(np.zeros(size), -1.0), np.ones((count, 1)), level, [*box, (None, REACH)]
    )
    if inside[-1] > MARGIN:
        return inside[:size], float(inside[-1])
    # Nothing is inside: fail by as little as possible.
    near = solve(
        np.append(np.zeros(size), np.ones(count)), -np.eye(count), level - MARGIN,
        [*box, *[(0.0, None)] * count],
    )  # fmt: skip
    return near[:size], float(inside[-1])
