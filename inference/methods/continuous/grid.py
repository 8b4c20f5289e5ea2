r"""Maximum likelihood of a table of bits on one or two factors, in NumPy, on nodes that rows share.

With nodes :math:`x_s` that do not depend on the row, all log likelihoods are one matrix product,

.. math:: \log p(t_n \mid x_s) = t_n^T A_s - \sum_i \log(1 + e^{A_{si}}), \qquad A_s = W^T x_s + b,

and the M-step needs :math:`\sum_n r_{ns} t_{ni}` alone, a table of nodes × columns. Where rows are
answered alike, they are one row that counts several times. Nothing is compiled: a small table is
fitted in less time than a compiler takes to start.

The nodes are equidistant in a metric in which every posterior is at least one unit wide,

.. math:: du = \sqrt{1 + \textstyle\sum_i \frac14 w_i^2 / (1 + \frac14 A_i^2)}\; dx, \qquad
          \frac14 / (1 + \frac14 A^2) \ge \sigma(A)(1 - \sigma(A)),

so that they are dense where items discriminate, however sharply. In two dimensions they are at a
constant distance, by the largest value of the root for each factor. The trapezoidal rule is off by
:math:`e^{-2\pi^2 / h^2}` or so at a distance of h. The bound in place of the information itself has
no pole near the real line where u(x) bends: without it that exponential rate would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Values = dict[str, np.ndarray]
"""weights (Q, P) and bias (P,), by the names of the form"""

REACH = {1: 7.0, 2: 6.0}
"""Number of factors -> where the nodes end, in standard deviations of a factor."""
STEP = {1: 0.6, 2: 0.9}
"""Number of factors -> h."""
MOST_NODES = 8_000
FLOATS = 1 << 20
"""Of what is held of a block of rows on all nodes: 8 MiB."""
FEW_CELLS = 1 << 16
"""Of a table up to which it is held in float64; beyond, a row keeps seven digits, and so their sum:
the noise of rounding grows as the root of the number of rows."""
HISTORY = 8
"""Past steps that the acceleration looks at."""
SLACK = 1e-9
"""Of the loss, by which a step may lead up."""
MOST_MOVE = 3.0
"""Of a weight or bias in a Newton step."""


class BitTable(NamedTuple):
    """The distinct rows of a table of bits."""

    bits: np.ndarray  # (rows, P), zero where unseen
    seen: np.ndarray | None  # (rows, P), one where observed; None if everything is
    times: np.ndarray  # (rows,) how often each row occurs
    place: np.ndarray  # (num_data,) which of them a row of the table is


def distinct(data: np.ndarray, mask: np.ndarray | None) -> BitTable:
    """Rows that are alike, once.

    >>> found = distinct(np.array([[0, 1], [1, 1], [0, 1]]), None)
    >>> found.bits.tolist(), found.times.tolist(), found.place.tolist()
    ([[0.0, 1.0], [1.0, 1.0]], [2.0, 1.0], [0, 1, 0])
    """
    seen = np.ones(data.shape, bool) if mask is None else mask.astype(bool)
    bits = (data > 0) & seen
    codes = np.packbits(bits if mask is None else np.hstack([bits, seen]), axis=1)
    codes = np.ascontiguousarray(codes).view([("", np.uint8)] * codes.shape[1]).ravel()
    _, first, index, count = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    kind = np.float64 if data.size <= FEW_CELLS else np.float32
    some = None if seen.all() else seen[first].astype(kind)
    return BitTable(bits[first].astype(kind), some, count.astype(float), index)


class Nodes(NamedTuple):
    """Points that all rows share, and log weights that hold the density N(0, I)."""

    points: np.ndarray  # (S, Q)
    log_weights: np.ndarray  # (S,)


class TooManyNodesError(ValueError):
    """The items discriminate so sharply in more than one dimension that no grid can follow."""


def nodes_for(values: Values, fineness: float = 1.0) -> Nodes:
    """Nodes for items of these weights, `fineness` times as many in each dimension as needed.

    >>> found = nodes_for({"weights": np.array([[1.0, 40.0]]), "bias": np.zeros(2)})
    >>> gaps = np.diff(found.points[:, 0])
    >>> round(float(np.exp(found.log_weights).sum()), 4), bool(gaps.min() < 0.05 < 0.3 < gaps.max())
    (1.0, True)
    """
    weights, bias = values["weights"], values["bias"]
    size = len(weights)
    reach, step = REACH[size], STEP[size] / fineness
    fine = np.linspace(-reach, reach, 1201 if size == 1 else 41)
    mesh = np.stack(np.meshgrid(*[fine] * size, indexing="ij"), -1).reshape(-1, size)
    held = 0.25 / (1.0 + 0.25 * (mesh @ weights + bias) ** 2)  # ≥ p (1 − p) of each item
    speed = np.sqrt(1.0 + held @ (weights**2).T)  # (mesh, Q)
    if size > 1:
        speed = np.broadcast_to(speed.max(0), (len(fine), size))
    axes, logs = [], []
    for each in speed.T:
        place, gap = _spread(fine, each, step)
        axes.append(place)
        logs.append(np.log(gap) - 0.5 * place**2 - 0.5 * np.log(2.0 * np.pi))
    if np.prod([len(x) for x in axes]) > MOST_NODES * fineness**size:
        raise TooManyNodesError(f"more than {MOST_NODES} nodes")
    points, log_weights = (
        np.stack(np.meshgrid(*each, indexing="ij"), -1).reshape(-1, size) for each in (axes, logs)
    )
    return Nodes(points, log_weights.sum(1))


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
    first, last = span / speed[left], span / speed[left + 1]
    a, b = first + last - 2.0 * width, 3.0 * width - 2.0 * first - last
    place = fine[left] + t * (first + t * (b + t * a))
    return place, ends[1] * (first + t * (2.0 * b + 3.0 * t * a)) / span


class Sums(NamedTuple):
    """What the M-step needs of all rows."""

    loss: float
    right: np.ndarray  # (S, P) Σ_n r_ns t_ni
    number: np.ndarray  # (S, P) or (S, 1) Σ_n r_ns of those who answered


def posteriors(table: BitTable, values: Values, nodes: Nodes) -> Any:
    """Block by block: its rows, their log evidence, and their probabilities on the nodes."""
    predictors = nodes.points @ values["weights"] + values["bias"]
    partition = np.logaddexp(0.0, predictors)
    fixed = nodes.log_weights - (partition.sum(1) if table.seen is None else 0.0)
    kind = table.bits.dtype
    predictors, partition, fixed = (x.astype(kind) for x in (predictors, partition, fixed))
    size = max(1, FLOATS // len(nodes.points))
    for start in range(0, len(table.bits), size):
        rows = slice(start, start + size)
        probs = table.bits[rows] @ predictors.T
        if table.seen is not None:
            probs -= table.seen[rows] @ partition.T
        probs += fixed
        top = probs.max(1, keepdims=True)
        probs -= top
        np.exp(probs, out=probs)
        total = probs.sum(1, keepdims=True)
        probs *= 1.0 / total
        yield rows, (top + np.log(total))[:, 0].astype(float), probs


def expect(table: BitTable, values: Values, nodes: Nodes) -> Sums:
    """The E-step."""
    loss, right, number = 0.0, 0.0, 0.0
    for rows, evidence, probs in posteriors(table, values, nodes):
        count = table.times[rows]
        loss -= evidence @ count
        probs *= count[:, None].astype(probs.dtype)
        right = right + probs.T @ table.bits[rows]
        seen = table.seen
        number = number + (
            probs.sum(0)[:, None] if seen is None else probs.T @ seen[rows]
        )  # fmt: skip
    return Sums(float(loss), np.asarray(right), np.asarray(number))


def maximise(values: Values, nodes: Nodes, sums: Sums, num_steps: int = 3) -> Values:
    """The M-step: a logistic regression for each column, by Newton steps from where it is."""
    design = np.hstack([nodes.points, np.ones((len(nodes.points), 1))])
    size = design.shape[1]
    outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    found = np.vstack([values["weights"], values["bias"]])  # (Q + 1, P)
    for _ in range(num_steps):
        probability = 0.5 + 0.5 * np.tanh(0.5 * (design @ found))
        slope = design.T @ (sums.right - sums.number * probability)
        bend = (outer.T @ (sums.number * probability * (1.0 - probability))).T
        bend = bend.reshape(-1, size, size) + 1e-9 * np.eye(size)
        move = np.linalg.solve(bend, slope.T[..., None])[..., 0].T
        found = found + move * np.minimum(1.0, MOST_MOVE / np.abs(move).max(0))
    return {"weights": found[:-1], "bias": found[-1]}


def principal(table: BitTable, num_factors: int) -> Values:
    """Where EM starts: principal components; see `starts.principal_start`."""
    weight = table.times[:, None].astype(table.bits.dtype)
    total, both = table.times.sum(), table.times.sum()
    mean = (table.bits * weight).sum(0) / total
    if table.seen is not None:
        both = np.maximum(table.seen.T @ (table.seen * weight), 1.0)
        mean = (table.bits * weight).sum(0) / np.diagonal(both)
    away = table.bits - mean
    if table.seen is not None:
        away = away * table.seen
    cover = (away.T @ (away * weight)).astype(float) / both
    probs = np.clip(mean.astype(float), 0.5 / total, 1.0 - 0.5 / total)
    spread = np.sqrt(np.maximum(np.diagonal(cover), 1e-6))
    size, vectors = np.linalg.eigh(cover / np.outer(spread, spread))
    count = min(num_factors, len(size))
    size, vectors = size[::-1][:count], vectors[:, ::-1][:, :count]
    found = (vectors * np.sqrt(np.maximum(size - 1.0, 0.1))).T * spread / (probs * (1.0 - probs))
    weights = np.zeros((num_factors, len(mean)))
    weights[:count] = np.clip(found, -4.0, 4.0)
    return {"weights": weights, "bias": np.log(probs) - np.log1p(-probs)}


class Scores(NamedTuple):
    """Of every row of the table: log evidence, and the moments of its factors."""

    evidence: np.ndarray  # (num_data,)
    mean: np.ndarray  # (num_data, Q)
    covariance: np.ndarray  # (num_data, Q, Q)
    effective: np.ndarray  # (num_data,) how many nodes carry the posterior


def score(table: BitTable, values: Values, fineness: float = 1.0) -> Scores:
    """Expected a posteriori factors of each row, and its evidence.

    >>> table = distinct(np.array([[1, 1], [0, 1]]), None)
    >>> found = score(table, {"weights": np.array([[1.0, 0.0]]), "bias": np.zeros(2)})
    >>> bool(np.allclose(np.exp(found.evidence), 0.25)), found.mean.round(3).tolist()
    (True, [[0.413], [-0.413]])
    """
    nodes = nodes_for(values, fineness)
    size = nodes.points.shape[1]
    outer = (nodes.points[:, :, None] * nodes.points[:, None, :]).reshape(len(nodes.points), -1)
    parts = [
        (evidence, probs @ nodes.points, probs @ outer, 1.0 / (probs * probs).sum(1))
        for _, evidence, probs in posteriors(table, values, nodes)
    ]
    evidence, mean, second, effective = map(np.concatenate, zip(*parts, strict=True))
    covariance = second.reshape(-1, size, size) - mean[:, :, None] * mean[:, None, :]
    return Scores(*(x[table.place] for x in (evidence, mean, covariance, effective)))


def information(table: BitTable, values: Values) -> np.ndarray:
    r"""Minus the Hessian of the log likelihood (Louis 1982), (P, Q + 1, P, Q + 1); no cell missing.

    What the data would tell if the factors were known, less the covariance of each row's score over
    its posterior. With residuals t − p(x_s), the second moments of the scores are products of
    tables: of rows × columns, weighted by the posterior moments of x, and of nodes × columns.
    """
    if table.seen is not None:
        raise ValueError("cells are missing: the residuals of a row are then its own")
    nodes = nodes_for(values)
    design = np.hstack([nodes.points, np.ones((len(nodes.points), 1))])
    size, columns = design.shape[1], table.bits.shape[1]
    outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    probability = 0.5 + 0.5 * np.tanh(
        0.5 * (design @ np.vstack([*values["weights"], values["bias"]]))
    )
    sums = expect(table, values, nodes)
    moments, means = [], []
    spread = (probability[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    for rows, _, probs in posteriors(table, values, nodes):
        moments.append(probs @ outer)
        centre = table.bits[rows][:, :, None] * (probs @ design)[:, None, :]
        means.append(centre.reshape(len(probs), -1) - probs @ spread)
    moment, mean = np.concatenate(moments) * table.times[:, None], np.concatenate(means)
    found = np.zeros((size, size, columns, columns))
    for k in range(size):
        for m in range(size):
            a = k * size + m
            cross = (probability * outer[:, a, None]).T @ sums.right
            found[k, m] = table.bits.T @ (table.bits * moment[:, a, None]) - cross - cross.T
            found[k, m] += probability.T @ (probability * (sums.number * outer[:, a, None]))
    lacking = found.transpose(2, 0, 3, 1).reshape(size * columns, -1)
    lacking = lacking - mean.T @ (mean * table.times[:, None])
    own = (outer.T @ (sums.number * probability * (1.0 - probability))).T.reshape(-1, size, size)
    full = np.zeros((columns, size, columns, size))
    full[np.arange(columns), :, np.arange(columns), :] = own
    return full - lacking.reshape(columns, size, columns, size)


class Fitted(NamedTuple):
    """Where a start led to."""

    values: Values
    losses: list[float]
    converged: bool


def climb(
    table: BitTable,
    values: Values,
    num_steps: int,
    tolerance: float,
    stop: Callable[[], bool] = lambda: False,
) -> Fitted:
    """EM with Anderson steps, each of them taken back if it leads up; see `acceleration`."""
    size = len(values["weights"])
    join = lambda values: np.vstack([values["weights"], values["bias"]]).ravel()  # noqa: E731
    split = lambda vector: {  # noqa: E731
        "weights": vector.reshape(size + 1, -1)[:-1], "bias": vector.reshape(size + 1, -1)[-1]
    }  # fmt: skip
    point, safe = join(values), join(values)
    best, before = np.inf, None
    losses: list[float] = []
    changes: list[np.ndarray] = []
    images: list[np.ndarray] = []
    while len(losses) < num_steps and not stop():
        nodes = nodes_for(split(point))
        sums = expect(table, split(point), nodes)
        if not sums.loss <= best + SLACK * abs(best) and before is not None and point is not safe:
            point, before = safe, None
            changes, images = [], []
            continue
        image = join(maximise(split(point), nodes, sums))
        residual = image - point
        losses.append(sums.loss)
        if before is not None:
            changes = [residual - before[0], *changes][:HISTORY]
            images = [image - before[1], *images][:HISTORY]
        best, before, safe = min(best, sums.loss), (residual, image), image
        if arrived(losses, tolerance):
            return Fitted(split(point), losses, True)
        point = image
        if changes:
            table_of = np.array(changes).T
            share = np.linalg.lstsq(table_of, residual, rcond=1e-8)[0]
            point = image - share @ np.array(images)
    return Fitted(split(safe), losses, False)


def arrived(losses: list[float], tolerance: float) -> bool:
    """Whether the loss will not change by more than a share of itself (Aitken's estimate).

    >>> arrived([8.0, 4.0, 2.0, 1.0], 1e-3), arrived([8.0, 1.0, 1.0, 1.0], 1e-3)
    (False, True)
    """
    if len(losses) < 3:
        return False
    before, fall = abs(losses[-3] - losses[-2]), abs(losses[-2] - losses[-1])
    rate = min(fall / before, 0.99) if before > 0 else 0.0
    return max(fall, fall * rate / (1.0 - rate)) <= tolerance * abs(losses[-1])
