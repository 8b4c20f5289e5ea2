r"""Minus the Hessian of the log likelihood of a table on nodes (Louis 1982).

What the data would tell if the factors were known, less the covariance of each row's score over its
posterior.
"""

from __future__ import annotations

import numpy as np

from .curves import Columns, Prior, Sums, asked, derivatives, logistic
from .grid import BitTable, expect, posteriors
from .nodes import Nodes, Values

FLOATS = 1 << 21
"""Of the scores of a block of rows on all nodes: 16 MiB."""


def information(table: BitTable, values: Values, prior: Prior | None = None) -> np.ndarray:
    """Minus the Hessian of the log likelihood, (D, D), or of the log posterior.

    In the numbers of `Columns.flat`: weights of each column, biases, logits of asymptotes.
    """
    plain = table.seen is None and table.columns.bits and "guessing" not in values
    curvature = _of_bits(table, values) if plain else _of_rows(table, values)
    if prior is not None:
        place = np.arange(len(curvature))
        own = [prior.weights[1].ravel(), prior.bias[1]]
        if prior.guessing is not None:
            guess = values["guessing"]
            own.append(prior.guessing.sum(0) * guess * (1.0 - guess))
        curvature[place, place] += np.concatenate(own)
    return curvature


def _of_rows(table: BitTable, values: Values) -> np.ndarray:
    """Of any columns: the scores of a block of rows at a time."""
    columns = table.columns
    nodes = table.nodes(values)
    sums = expect(table, values, nodes)
    curvature = _complete(columns, values, nodes, sums)
    count = len(curvature)
    step = max(1, FLOATS // (len(nodes.points) * count))
    for rows, _, probs in posteriors(table, values, nodes):
        bits, observed = table.block(rows)
        for start in range(0, len(probs), step):
            part = slice(start, start + step)
            weight = probs[part] * table.times[rows][part, None]
            scores = _scores(
                columns, values, nodes, bits[part], None if observed is None else observed[part]
            )
            mean = (probs[part][:, None] @ scores)[:, 0]
            flat = scores * np.sqrt(weight)[..., None]
            flat = flat.reshape(-1, count)
            curvature -= flat.T @ flat - mean.T @ (mean * table.times[rows][part, None])
    return curvature


def _of_bits(table: BitTable, values: Values) -> np.ndarray:
    """Of bits without a hole: products of tables of rows × columns and of nodes × columns.

    With residuals t − p(x_s), the second moments of the scores are such products, weighted by the
    posterior moments of x.
    """
    nodes = table.nodes(values)
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
    squares = np.zeros((size, size, columns, columns))
    for k in range(size):
        for m in range(size):
            a = k * size + m
            cross = (probability * outer[:, a, None]).T @ sums.right
            squares[k, m] = table.bits.T @ (table.bits * moment[:, a, None]) - cross - cross.T
            squares[k, m] += probability.T @ (probability * (sums.number * outer[:, a, None]))
    lacking = squares.transpose(2, 0, 3, 1).reshape(size * columns, -1)
    lacking = lacking - mean.T @ (mean * table.times[:, None])
    own = (outer.T @ (sums.number * probability * (1.0 - probability))).T.reshape(-1, size, size)
    full = np.zeros((columns, size, columns, size))
    full[np.arange(columns), :, np.arange(columns), :] = own
    full = full - lacking.reshape(columns, size, columns, size)
    return full.transpose(1, 0, 3, 2).reshape(size * columns, -1)


def _scores(
    columns: Columns, values: Values, nodes: Nodes, bits: np.ndarray, observed: np.ndarray | None
) -> np.ndarray:
    """The slope of log p(row | node) in all numbers, (rows, S, D)."""
    sigma = logistic(nodes.points @ values["weights"] + values["bias"])  # (S, C)
    shown = np.ones((1, len(columns.first))) if observed is None else observed
    if "guessing" in values:
        guess = values["guessing"]
        prob = guess + (1.0 - guess) * sigma
        slope = (1.0 - guess) * sigma * (1.0 - sigma) / prob + sigma
        low = guess * (1.0 - guess) * (1.0 - sigma) / prob + guess
        along = bits[:, None] * slope - shown[:, None] * sigma
        aside = [bits[:, None] * low - shown[:, None] * guess]
    else:
        below = np.roll(bits, 1, axis=1)
        below[:, columns.first] = shown - np.add.reduceat(bits, columns.first, axis=1)
        along = bits[:, None] - (bits + below)[:, None] * sigma
        aside = []
    each = along if columns.bits else np.add.reduceat(along, columns.first, axis=2)
    weights = [each * x[:, None] for x in nodes.points.T]
    return np.concatenate([*weights, along, *aside], -1)


def _complete(columns: Columns, values: Values, nodes: Nodes, sums: Sums) -> np.ndarray:
    """Minus the Hessian of the expected log likelihood, in all numbers, (D, D)."""
    size, width = len(values["weights"]), len(columns.first)
    if "guessing" in values:
        blocks, groups = [_guessing_bend(values, nodes, sums)], [np.arange(width)[:, None]]
    else:
        _, blocks = derivatives(columns, values, nodes, sums.right, asked(columns, sums))
        groups = list(columns.groups)
    start = size * width + len(columns.level)
    count = start + ("guessing" in values) * width
    curvature = np.zeros((count, count))
    for group, block in zip(groups, blocks, strict=True):
        column = columns.column_of[group[:, 0]]
        places = [column + q * width for q in range(size)] + list(size * width + group.T)
        places += [start + column] if "guessing" in values else []
        place = np.stack(places, 1)
        curvature[place[:, :, None], place[:, None, :]] = block
    return curvature


def _guessing_bend(values: Values, nodes: Nodes, sums: Sums) -> np.ndarray:
    """Of columns with a lower asymptote, (P, Q + 2, Q + 2)."""
    guess, size = values["guessing"], len(values["weights"])
    design = np.hstack([nodes.points, np.ones((len(nodes.points), 1))])
    outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    sigma = logistic(nodes.points @ values["weights"] + values["bias"])
    prob, wrong = guess + (1.0 - guess) * sigma, sums.number - sums.right
    bent = sigma * (1.0 - sigma)
    along, aside = (1.0 - guess) * bent / prob, guess * (1.0 - guess) * (1.0 - sigma) / prob
    own = sums.right * (along**2 - along * (1.0 - 2.0 * sigma)) + wrong * bent
    cross = sums.right * (along * aside + guess * (1.0 - guess) * bent / prob)
    low = sums.right * (aside**2 - aside * (1.0 - 2.0 * guess)) + wrong * guess * (1.0 - guess)
    bend = np.zeros((size + 2, size + 2, len(guess)))
    bend[:-1, :-1] = (outer.T @ own).reshape(size + 1, size + 1, -1)
    bend[:-1, -1] = bend[-1, :-1] = design.T @ cross
    bend[-1, -1] = low.sum(0)
    return np.moveaxis(bend, -1, 0)
