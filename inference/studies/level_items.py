"""Items on an ordered scale, or with guessing: thresholds, asymptotes, and their errors."""

from __future__ import annotations

import numpy as np

from ..methods.continuous.curves import Prior, logistic, tables
from ..methods.continuous.grid import BitTable
from ..methods.continuous.information import information
from ..methods.continuous.nodes import Nodes, Values

MOST_NUMBERS = 2_000
"""Parameters up to which their covariance is computed for the errors of thresholds."""


def level_items(
    table: BitTable, values: Values, errors: bool, prior: Prior | None = None
) -> dict[str, np.ndarray]:
    """Name of a column -> an entry for each item, NaN where an item has no such level.

    Difficulties are where the curves of the levels cross one half, :math:`-b_c / w`; their errors,
    by the delta method, are those of one factor.

    >>> from ..methods.continuous.grid import distinct
    >>> table = distinct(np.array([[0, 1], [2, 0], [1, 1]]), None, (3, 2))
    >>> values = {"weights": np.array([[2.0, 2.0, 1.0]]), "bias": np.array([2.0, -1.0, 0.5])}
    >>> items = level_items(table, values, errors=False)
    >>> items["difficulty_2"].tolist()
    [0.5, nan]
    """
    columns = table.columns
    weights = values["weights"][:, columns.first]
    length = weights[0] if len(weights) == 1 else np.sqrt((weights**2).sum(0))
    count = weights.size + len(columns.level) + ("guessing" in values) * len(length)
    errors = errors and len(weights) == 1 and count <= MOST_NUMBERS
    items = {"discrimination": length}
    bias, slope, of = values["bias"], length[columns.column_of], columns.column_of
    spread = deviation = np.zeros(0)
    if errors:
        covariance = np.linalg.inv(information(table, values, prior))
        deviation = np.sqrt(np.diagonal(covariance))
        items["discrimination_se"] = deviation[: len(length)]
        place = weights.size + np.arange(len(columns.level))
        along = np.stack([bias / slope**2, -1.0 / slope], 1)
        each = np.stack(
            [np.stack([covariance[a, b] for b in (of, place)], -1) for a in (of, place)], -1
        )
        spread = np.sqrt(np.einsum("ck,ckm,cm->c", along, each, along))
    most = int(columns.level.max())
    for level in range(1, most + 1):
        here = columns.level == level
        name = "difficulty" if most == 1 else f"difficulty_{level}"
        for suffix, numbers in (("", -bias / slope), ("_se", spread)):
            if suffix and not errors:
                continue
            full = np.full(len(length), np.nan)
            full[of[here]] = numbers[here]
            items[name + suffix] = full
    if "guessing" in values:
        guess = values["guessing"]
        items["guessing"] = guess
        if errors:
            items["guessing_se"] = guess * (1.0 - guess) * deviation[-len(guess) :]
    return items


def level_information(table: BitTable, values: Values, points: np.ndarray) -> np.ndarray:
    """What the test tells of a factor at these values of it, the others zero, (Q, points).

    The expectation of the squared slope of each column's log probability.
    """
    columns, curves = table.columns, []
    for q in range(len(values["weights"])):
        place = np.zeros((len(points), len(values["weights"])))
        place[:, q] = points
        nodes = Nodes(place, np.zeros(len(points)))
        more, base = tables(columns, values, nodes)
        sigma = logistic(place @ values["weights"] + values["bias"])
        weight = values["weights"][q]
        if "guessing" in values:
            prob = values["guessing"] + (1.0 - values["guessing"]) * sigma
            curves.append((weight**2 * sigma**2 * (1.0 - prob) / prob).sum(1))
            continue
        # Of level c the slope is w (1 − σ(A_c) − σ(A_{c+1})), of the lowest one −w σ(A_1).
        next_one = np.append(sigma[:, 1:], np.zeros((len(points), 1)), 1) * columns.inner
        prob = np.exp(more + base[:, columns.column_of])
        slopes = (1.0 - sigma - next_one) * weight
        low = np.exp(base) * (sigma * weight)[:, columns.first] ** 2
        curves.append((prob * slopes**2).sum(1) + low.sum(1))
    return np.stack(curves)
