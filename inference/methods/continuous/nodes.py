r"""Nodes that all rows share, for items of one to three factors.

They are equidistant in a metric in which every posterior is at least one unit wide,

.. math:: du = \sqrt{1 + \textstyle\sum_i \frac14 w_i^2 / (1 + \frac14 A_i^2)}\; dx, \qquad
          \frac14 / (1 + \frac14 A^2) \ge \sigma(A)(1 - \sigma(A)),

so that they are dense where items discriminate, however sharply. In several dimensions the axes
are those along which the sharpest items change, which need no fine nodes across; the others enter
by the largest value of their sum. The trapezoidal rule is off by
:math:`e^{-2\pi^2 / h^2}` or so at a distance of h. The bound in place of the information itself has
no pole near the real line where u(x) bends: without it that exponential rate would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Values = dict[str, np.ndarray]
"""weights (Q, C) and bias (C,) of the predictors; guessing (P,) where items have it"""

REACH = {1: 7.0, 2: 6.0, 3: 6.0}
"""Number of factors -> where the nodes end, in standard deviations of a factor."""
STEP = {1: 0.6, 2: 0.75, 3: 0.9}
"""Number of factors -> h."""
MOST_NODES = {1: 30_000, 2: 30_000, 3: 60_000}
"""Number of factors -> nodes of the box about them all; of three, half lie in the ball."""
MOST_NUMBERS = 1 << 25
"""Nodes times predictors: a few rows that tell each other apart by very many columns are better
served by nodes of their own."""
BLUNT = 4.0
"""Weights up to which a coarser mesh follows the curves."""
FLOATS = 1 << 20
"""Of what is held of a block of predictors: 8 MiB."""
LEAST_SINE = 0.5
"""Of the angle between two axes."""
MOST_OWN_ROWS, MANY_COLUMNS = 64, 1000
"""Rows up to which, and columns from which, each row has nodes of its own."""
OWN = {1: 5, 2: 4, 3: 3}
"""Number of factors -> their nodes along an axis: thousands of columns leave a posterior normal."""
MOST_MOVES, CENTRED = 30, 0.1
"""Of the search for a mode, and how far from it its nodes may lie, in standard deviations."""
APART = 0.3
"""Of the points of a difference, in these."""
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class Nodes(NamedTuple):
    """Points for rows, and log weights that hold the density N(0, I)."""

    points: np.ndarray  # (S, Q)
    log_weights: np.ndarray  # (S,)
    owner: np.ndarray | None = None  # (S,) the row that a node is for; None: they share all


class TooManyNodesError(ValueError):
    """The items discriminate so sharply, or are so many, that no grid can follow."""


def nodes_for(values: Values, fineness: float = 1.0, share: np.ndarray | float = 1.0) -> Nodes:
    """Nodes for items of these weights, `fineness` times as many in each dimension as needed.

    :param share: of its information that each predictor gives, (C,): those of a column of many
        levels overlap.

    >>> nodes = nodes_for({"weights": np.array([[1.0, 40.0]]), "bias": np.zeros(2)})
    >>> gaps = np.diff(nodes.points[:, 0])
    >>> round(float(np.exp(nodes.log_weights).sum()), 4), bool(gaps.min() < 0.05 < 0.3 < gaps.max())
    (1.0, True)
    """
    weights, bias = values["weights"], values["bias"]
    size = len(weights)
    reach, step = REACH[size], STEP[size] / fineness
    basis = np.eye(1) if size == 1 else _axes(weights)
    back = np.linalg.inv(basis)  # from coordinates to factors
    slope = back.T @ weights  # (Q, C): of each predictor along each axis
    sharp = np.abs(weights).max() > BLUNT
    fine = np.linspace(-reach, reach, 1201 if sharp else 601 if fineness >= 1.0 else 301)
    axes, logs = [], []
    for q in range(size):
        other = np.delete(slope, q, 0)
        # What changes along this axis alone is followed; of the rest counts the most they hold.
        own = (np.abs(other) <= 1e-9 * np.abs(slope[q])).all(0)
        power = share * slope[q] ** 2
        least = back[:, q] @ back[:, q]  # of the prior
        if not own.all():
            mesh = _mesh(*[np.linspace(-reach, reach, 41 if size < 3 else 15)] * size)
            least = least + _held(mesh, slope[:, ~own], bias[~own], power[~own]).max()
        speed = np.sqrt(least + _held(fine[:, None], slope[q : q + 1, own], bias[own], power[own]))
        place, gap = _spread(fine, speed, step)
        axes.append(place)
        logs.append(np.log(gap))
    count = np.prod([len(x) for x in axes])
    if (
        count > MOST_NODES[size] * fineness**size
        or count * len(bias) > MOST_NUMBERS * fineness**size
    ):
        raise TooManyNodesError(f"{count} nodes for {len(bias)} predictors")
    points, log_weights = _mesh(*axes), _mesh(*logs)
    points = points @ back.T
    radius = (points**2).sum(1)
    log_mass = log_weights.sum(1) - 0.5 * radius - 0.5 * size * np.log(2.0 * np.pi)
    log_mass = log_mass + np.log(np.abs(np.linalg.det(back)))
    inside = radius <= reach**2 + 1e-9
    return Nodes(points[inside], log_mass[inside])


def _mesh(*axes: np.ndarray) -> np.ndarray:
    """All points whose coordinates are these, (S, Q)."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def _held(places: np.ndarray, slope: np.ndarray, bias: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Σ ¼ w² / (1 + ¼ A²) of the predictors at each place, some of them at a time."""
    total = np.zeros(len(places))
    size = max(1, FLOATS // len(places))
    for start in range(0, len(bias), size):
        part = slice(start, start + size)
        predictors = places @ slope[:, part] + bias[part]
        predictors *= predictors
        total += (1.0 / (4.0 + predictors)) @ power[part]
    return total


def _axes(weights: np.ndarray) -> np.ndarray:
    """Directions of the factors along which the sharpest predictors change, (Q, Q).

    A predictor that changes along one axis alone needs no fine nodes along the others. Each further
    one is that of the predictor which changes most across those before, unless it is almost among
    them.
    """
    size = len(weights)
    length = np.sqrt((weights**2).sum(0))
    if length.max() <= BLUNT:
        return np.eye(size)
    axes: list[np.ndarray] = []
    rest = weights.copy()
    for _ in range(size):
        left = np.sqrt((rest**2).sum(0))
        most = left.argmax()
        across = rest[:, most] / max(left[most], 1e-30)
        sharp = left[most] >= LEAST_SINE * length[most] > 0.0
        axes.append(weights[:, most] / length[most] if sharp else across)
        rest = rest - np.outer(across, across @ rest)
    return np.stack(axes)


def _spread(fine: np.ndarray, speed: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Places x(u) at a distance of `step` in u, and the weights dx/du times that distance.

    x(u) is a cubic between the points of a mesh, and the weights are its own slope: what counts is
    that the two belong together.
    """
    width = fine[1] - fine[0]
    bend = np.diff(np.gradient(speed, width)) * width**2 / 12.0
    length = np.concatenate([[0.0], np.cumsum(0.5 * width * (speed[1:] + speed[:-1]) - bend)])
    ends = np.linspace(0.0, length[-1], int(np.ceil(length[-1] / step)) + 1)
    left = np.clip(np.searchsorted(length, ends, side="right") - 1, 0, len(fine) - 2)
    span = length[left + 1] - length[left]
    t = (ends - length[left]) / span
    # Slopes of more than three times the chord would turn the cubic back.
    first, last = (np.minimum(span / speed[x], 3.0 * width) for x in (left, left + 1))
    a, b = first + last - 2.0 * width, 3.0 * width - 2.0 * first - last
    place = fine[left] + t * (first + t * (b + t * a))
    return place, ends[1] * (first + t * (2.0 * b + 3.0 * t * a)) / span


def own_nodes(
    log_likelihood: Callable[[Values, np.ndarray], np.ndarray],
    num_rows: int,
    values: Values,
    fineness: float = 1.0,
    before: Nodes | None = None,
) -> Nodes:
    """Gauss and Hermite's nodes about the mode of each row, scaled by its curvature.

    Shared ones would have to be as dense as the narrowest posterior wherever a row could lie; a few
    rows of very many columns lie in few places.

    :param log_likelihood: of each row at points of its own, (rows, points, Q), of these values.
    :param before: nodes of values nearby, whose centres are where the search begins.
    """
    size = len(values["weights"])
    centre, spread = np.zeros((num_rows, size)), np.tile(np.eye(size), (num_rows, 1, 1))
    if before is not None and before.owner is not None:
        own = before.points.reshape(num_rows, -1, size)
        centre = own.mean(1)
        away = own - centre[:, None]
        spread = np.linalg.cholesky(np.swapaxes(away, 1, 2) @ away / own.shape[1])
    kept, top = centre, np.full(num_rows, -np.inf)
    for _ in range(MOST_MOVES):
        here, slope, bend = _curvature(log_likelihood, values, centre, spread)
        better = here >= top - 1e-12 * np.abs(here)
        kept, top = np.where(better[:, None], centre, kept), np.where(better, here, top)
        move = np.linalg.solve(bend, slope[..., None])[..., 0]  # in units of the spread
        length = np.where(better, np.abs(move).max(1), np.inf)
        ahead = np.einsum("nqk,nk->nq", spread, move / np.maximum(1.0, length / 4.0)[:, None])
        # A step that led down is cut: the curvature is small where all columns agree.
        centre = np.where(better[:, None], centre + ahead, 0.75 * kept + 0.25 * centre)
        narrow = spread @ np.linalg.cholesky(np.linalg.inv(bend))
        spread = np.where(better[:, None, None], narrow, spread)
        if length.max() < CENTRED:
            break
    place, weight = np.polynomial.hermite_e.hermegauss(round(OWN[size] * fineness))
    mesh, share = (_mesh(*[x] * size) for x in (place, np.log(weight) + 0.5 * place**2))
    points = centre[:, None] + np.einsum("nqk,sk->nsq", spread, mesh)
    area = np.log(np.abs(np.linalg.det(spread)))[:, None]
    log_weights = share.sum(1) + area - 0.5 * (points**2).sum(-1) - 0.5 * size * LOG_TWO_PI
    owner = np.repeat(np.arange(num_rows), len(mesh))
    return Nodes(points.reshape(-1, size), log_weights.ravel(), owner)


def _curvature(
    log_likelihood: Callable, values: Values, centre: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's log posterior, its slope (rows, Q) and minus its Hessian, in units of the spread.

    By differences: a fraction of a standard deviation is wide enough to lose no digits.
    """
    rows, size = centre.shape
    first, second = np.triu_indices(size)
    unit = APART * np.eye(size)
    steps = np.concatenate([np.zeros((1, size)), unit, -unit, unit[first] + unit[second]])
    points = centre[:, None] + np.einsum("nqk,sk->nsq", spread, steps)
    log_posterior = log_likelihood(values, points) - 0.5 * (points**2).sum(-1)
    here, up, down, both = np.split(log_posterior, [1, 1 + size, 1 + 2 * size], axis=1)
    bend = np.zeros((rows, size, size))
    mixed = -(both - up[:, first] - up[:, second] + here) / APART**2
    bend[:, first, second] = bend[:, second, first] = mixed
    bend[:, np.arange(size), np.arange(size)] = -(up - 2.0 * here + down) / APART**2
    least = 1e-3 * np.maximum(np.trace(bend, axis1=1, axis2=2), 1e-6)[:, None, None]
    return here[:, 0], (up - down) / (2.0 * APART), bend + least * np.eye(size)
