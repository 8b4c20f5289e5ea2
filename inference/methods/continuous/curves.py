r"""Columns of ordered levels as curves on nodes: their log probabilities, and their M-step.

A column of levels 0, …, K − 1 has a predictor :math:`A_c = w^T x + b_c` for each of its K − 1
cutpoints, and (see `graded`)

.. math:: P(t = c \mid x) = \sigma(A_c)\, \sigma(-A_{c+1})\, (1 - e^{-(b_c - b_{c+1})}),

where the lowest level lacks the first factor, the highest the second, and both the third: of two
levels it is the logistic curve. A column of bits may have a lower asymptote g instead,
:math:`P(t = 1 \mid x) = g + (1 - g)\,\sigma(A)`. Given how often each level is expected at each
node, the M-step is a regression for each column: Newton steps, by Fisher's information where there
is an asymptote.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .nodes import Nodes, Values

MOST_MOVE = 3.0
"""Of a parameter in a Newton step."""
MOST_CLOSING = 0.9
"""Of the gap between two cutpoints, by which a step may narrow it."""
SHARES = (1.0, 0.3, 0.05)
"""Of a step of Fisher's that are tried, and the best is taken."""
OVERLAP = 1.5
"""Cutpoints of a column whose information adds up, roughly."""
LEAST_LOGIT = -14.0
"""Of an asymptote: one in a million, where nothing shows it."""


class Sums(NamedTuple):
    """What the M-step needs of all rows."""

    loss: float
    right: np.ndarray  # (S, C) Σ_n r_ns 1[level of predictor c]
    number: np.ndarray  # (S, P) or (S, 1) Σ_n r_ns of those who answered
    mass: np.ndarray  # (S,) Σ_n r_ns


class Prior(NamedTuple):
    """Independent normal priors of weights (Q, C) and bias (C,), and Beta ones of asymptotes (P,).

    Columns with a prior have one predictor each, so that C = P.
    """

    weights: np.ndarray  # (2, Q, C): mean, precision
    bias: np.ndarray  # (2, C)
    guessing: np.ndarray | None  # (2, P): a − 1, b − 1 of Beta(a, b)
    constant: float = 0.0  # of the log density, all columns together

    @property
    def directed(self) -> bool:
        """Whether a rotation of the factors changes it."""
        mean, precision = self.weights
        return bool(mean.any() or (precision != precision[:1]).any())

    def log_density(self, values: Values) -> float:
        """The log prior of the program, as the compiled steps have it."""
        return float(self.each(values).sum()) + self.constant

    def each(self, values: Values) -> np.ndarray:
        """Of each column, (C,), up to a constant."""
        (mean, strength), (middle, precision) = self.weights, self.bias
        log_prior = -0.5 * (strength * (values["weights"] - mean) ** 2).sum(0)
        log_prior = log_prior - 0.5 * precision * (values["bias"] - middle) ** 2
        if self.guessing is not None:
            low, high = self.guessing
            log_prior = log_prior + low * np.log(values["guessing"])
            log_prior = log_prior + high * np.log1p(-values["guessing"])
        return log_prior


class Columns(NamedTuple):
    """Where the predictors of columns of these levels stand."""

    column_of: np.ndarray  # (C,)
    first: np.ndarray  # (P,) the first predictor of each column
    inner: np.ndarray  # (C,) whether another one of the same column follows
    level: np.ndarray  # (C,) from 1 to K − 1
    groups: tuple[np.ndarray, ...]  # (columns, K − 1) for each K
    share: np.ndarray  # (C,) of its information: a cell tells of two cutpoints at most
    bits: bool  # whether all have two levels

    def flat(self, values: Values) -> np.ndarray:
        """The free numbers as one vector: weights of each column, biases, logits of asymptotes."""
        parts = [values["weights"][:, self.first].ravel(), values["bias"]]
        if "guessing" in values:
            parts.append(np.log(values["guessing"]) - np.log1p(-values["guessing"]))
        return np.concatenate(parts)

    def whole(self, vector: np.ndarray, size: int) -> Values:
        """The other way round, of `size` factors."""
        cut = size * len(self.first)
        rest = vector[cut:]
        weights = vector[:cut].reshape(size, -1)
        values = {"weights": weights if self.bits else weights[:, self.column_of]}
        values["bias"] = rest[: len(self.level)]
        if len(rest) > len(self.level):
            values["guessing"] = logistic(np.clip(rest[len(self.level) :], LEAST_LOGIT, 30.0))
        return values


@lru_cache(maxsize=64)
def columns_of(levels: tuple[int, ...]) -> Columns:
    """The predictors of columns with so many levels each.

    >>> columns = columns_of((2, 4))
    >>> columns.column_of.tolist(), columns.level.tolist(), columns.first.tolist()
    ([0, 1, 1, 1], [1, 1, 2, 3], [0, 1])
    """
    number = np.asarray(levels) - 1
    column = np.repeat(np.arange(len(number)), number)
    first = np.concatenate([[0], np.cumsum(number)[:-1]])
    groups = tuple(
        first[number == k][:, None] + np.arange(k) for k in np.unique(number)
    )  # fmt: skip
    level = 1 + np.arange(len(column)) - first[column]
    share = np.minimum(1.0, OVERLAP / number)[column]
    inner = np.append(column[1:] == column[:-1], False)
    return Columns(column, first, inner, level, groups, share, not inner.any())


def logistic(value: np.ndarray) -> np.ndarray:
    """
    >>> logistic(np.array([0.0, 800.0])).tolist()
    [0.5, 1.0]
    """
    return 0.5 + 0.5 * np.tanh(0.5 * value)


def tables(columns: Columns, values: Values, nodes: Nodes) -> tuple[np.ndarray, np.ndarray]:
    """log P(level) − log P(lowest) of each predictor (S, C), and log P(lowest) (S, P)."""
    predictors = nodes.points @ values["weights"] + values["bias"]
    above = np.logaddexp(0.0, predictors)
    if "guessing" in values:
        guess = values["guessing"]
        base = np.log1p(-guess) - above
        return np.logaddexp(np.log(guess), np.log1p(-guess) + predictors - above) - base, base
    if columns.bits:
        return predictors, -above
    more = predictors - above + above[:, columns.first[columns.column_of]]
    inner = np.flatnonzero(columns.inner)
    more[:, inner] += np.log(-np.expm1(-gaps(columns, values["bias"]))) - above[:, inner + 1]
    return more, -above[:, columns.first]


def gaps(columns: Columns, bias: np.ndarray) -> np.ndarray:
    """From each cutpoint to the next of its column."""
    inner = np.flatnonzero(columns.inner)
    return bias[inner] - bias[inner + 1]


def asked(columns: Columns, sums: Sums) -> np.ndarray:
    """Σ_n r_ns of the cells that tell of each predictor: its own level, and the one below."""
    if columns.bits:
        return sums.number
    lowest = sums.number - np.add.reduceat(sums.right, columns.first, axis=1)
    below = np.roll(sums.right, 1, axis=1)
    below[:, columns.first] = lowest
    return sums.right + below


def maximise(
    columns: Columns,
    values: Values,
    nodes: Nodes,
    sums: Sums,
    prior: Prior | None = None,
    num_steps: int = 3,
) -> tuple[Values, float]:
    """The M-step: a regression for each column, by Newton steps from where it is.

    :return: the values, and what the first of the steps adds to the expected log likelihood.
    """
    number = asked(columns, sums)
    gains = []
    for _ in range(num_steps):
        if "guessing" in values:
            values, gain = _scoring(values, nodes, sums, prior)
            gains.append(gain)
            continue
        gains.append(0.0)
        slope, bend = derivatives(columns, values, nodes, sums.right, number, prior)
        weights, bias = values["weights"].copy(), values["bias"].copy()
        size = len(weights)
        for group, up, square in zip(columns.groups, slope, bend, strict=True):
            square = square + 1e-9 * np.eye(square.shape[-1])
            move = np.linalg.solve(square, up[..., None])[..., 0]
            most = MOST_MOVE / np.maximum(np.abs(move).max(1), MOST_MOVE)
            if group.shape[1] > 1:
                gap = bias[group[:, :-1]] - bias[group[:, 1:]]
                closing = (np.diff(move[:, size:]) / gap).max(1)
                most = np.minimum(most, MOST_CLOSING / np.maximum(closing, MOST_CLOSING))
            move = move * most[:, None]
            gains[-1] += 0.5 * float(np.vdot(up, move))
            if columns.bits:
                weights, bias = weights + move[:, :size].T, bias + move[:, size]
                continue
            weights[:, group] += move[:, :size].T[:, :, None]
            bias[group] += move[:, size:]
        values = {"weights": weights, "bias": bias}
    return values, gains[0]


def derivatives(
    columns: Columns,
    values: Values,
    nodes: Nodes,
    right: np.ndarray,
    number: np.ndarray,
    prior: Prior | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Slopes (columns, Q + K − 1) and minus the Hessians of the expected log likelihood, by K.

    :param number: see `asked`.
    """
    design = np.hstack([nodes.points, np.ones((len(nodes.points), 1))])
    size = design.shape[1] - 1
    outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    probability = logistic(nodes.points @ values["weights"] + values["bias"])
    slope = design.T @ (right - number * probability)  # (Q + 1, C)
    bend = outer.T @ (number * probability * (1.0 - probability))
    bend = bend.reshape(size + 1, size + 1, -1)
    if prior is not None:
        (mean, strength), (middle, precision) = prior.weights, prior.bias
        slope[:-1] -= strength * (values["weights"] - mean)
        slope[-1] -= precision * (values["bias"] - middle)
        bend[np.arange(size), np.arange(size)] += strength
        bend[size, size] += precision
    if columns.bits:
        return [slope.T], [bend.transpose(2, 0, 1)]
    ones = right.sum(0)
    slopes, bends = [], []
    for group in columns.groups:
        cuts = group.shape[1]
        some = slope[:, group]  # (Q + 1, columns, K − 1)
        up = np.concatenate([some[:size].sum(-1).T, some[size]], 1)
        bent = bend[:, :, group]
        square = np.zeros((len(group), size + cuts, size + cuts))
        square[:, :size, :size] = np.moveaxis(bent[:size, :size].sum(-1), -1, 0)
        square[:, :size, size:] = np.moveaxis(bent[:size, size], 0, 1)
        square[:, size:, :size] = np.swapaxes(square[:, :size, size:], 1, 2)
        place = size + np.arange(cuts)
        square[:, place, place] = bent[size, size]
        if cuts > 1:
            gap = values["bias"][group[:, :-1]] - values["bias"][group[:, 1:]]
            first = ones[group[:, :-1]] / np.expm1(gap)
            second = first * (1.0 + 1.0 / np.expm1(gap))
            up[:, place[:-1]] += first
            up[:, place[1:]] -= first
            square[:, place[:-1], place[:-1]] += second
            square[:, place[1:], place[1:]] += second
            square[:, place[:-1], place[1:]] -= second
            square[:, place[1:], place[:-1]] -= second
        slopes.append(up)
        bends.append(square)
    return slopes, bends


def _scoring(values: Values, nodes: Nodes, sums: Sums, prior: Prior | None) -> tuple[Values, float]:
    """A step of Fisher's for columns with a lower asymptote, of which the best share is taken, and
    what it gains."""
    size = len(values["weights"])
    guess = values["guessing"]
    design = np.hstack([nodes.points, np.ones((len(nodes.points), 1))])
    outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    sigma = logistic(nodes.points @ values["weights"] + values["bias"])
    prob = guess + (1.0 - guess) * sigma
    along, aside = (1.0 - guess) * sigma * (1.0 - sigma), guess * (1.0 - guess) * (1.0 - sigma)
    left = (sums.right - sums.number * prob) / prob
    up = np.vstack([design.T @ (left * sigma), (left * guess).sum(0)])  # (Q + 2, P)
    weight = sums.number / prob
    bend = np.zeros((size + 2, size + 2, len(guess)))
    bend[:-1, :-1] = (outer.T @ (weight * along * sigma)).reshape(size + 1, size + 1, -1)
    bend[:-1, -1] = bend[-1, :-1] = design.T @ (weight * along * guess)
    bend[-1, -1] = (weight * aside * guess).sum(0)
    if prior is not None:
        (mean, strength), (middle, precision) = prior.weights, prior.bias
        up[:size] -= strength * (values["weights"] - mean)
        up[size] -= precision * (values["bias"] - middle)
        bend[np.arange(size), np.arange(size)] += strength
        bend[size, size] += precision
        if prior.guessing is not None:
            low, high = prior.guessing
            up[-1] += low * (1.0 - guess) - high * guess
            bend[-1, -1] += (low + high) * guess * (1.0 - guess)
    square = np.moveaxis(bend, -1, 0) + 1e-9 * np.eye(size + 2)
    move = np.linalg.solve(square, up.T[..., None])[..., 0].T
    move = move * np.minimum(1.0, MOST_MOVE / np.maximum(np.abs(move).max(0), MOST_MOVE))
    now = np.vstack([values["weights"], values["bias"], np.log(guess) - np.log1p(-guess)])
    tried = [now + share * move for share in (0.0, *SHARES)]
    expected = np.stack([_expected(x, nodes, sums, prior) for x in tried])
    best = np.stack(tried)[expected.argmax(0), :, np.arange(len(guess))].T
    return _guessed(best), float((expected.max(0) - expected[0]).sum())


def _guessed(numbers: np.ndarray) -> Values:
    """The values of columns of bits from (Q + 2, P): weights, biases, logits of asymptotes."""
    low = logistic(np.maximum(numbers[-1], LEAST_LOGIT))
    return {"weights": numbers[:-2], "bias": numbers[-2], "guessing": low}


def _expected(numbers: np.ndarray, nodes: Nodes, sums: Sums, prior: Prior | None) -> np.ndarray:
    """The expected log likelihood of each column, with its prior, (P,)."""
    values = _guessed(numbers)
    more, base = tables(columns_of((2,) * numbers.shape[1]), values, nodes)
    expected = (sums.right * more + sums.number * base).sum(0)
    return expected if prior is None else expected + prior.each(values)
