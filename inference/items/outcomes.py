"""Outcomes that classes predict, such as income: by the corrected three steps of Vermunt (2010).

Classes are fitted first, without the outcome. Each row then goes to its likeliest class w, which is
the wrong one at known rates. With these, the outcome z has the likelihood

.. math:: \\prod_n \\sum_c \\pi_c \\, P(w_n | c) \\, f(z_n | c),

with f normal about a mean of each class with one variance (numbers), or the probabilities of
categories. Standard errors are those of this last step, its observed information.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtrc

MOST_STEPS, STILL = 10_000, 1e-13
"""Of EM, and by how much it then moves."""
AT_BOUND = 1e-6
"""A probability below has no standard error."""
TITLE = "Outcomes by class, corrected for rows in the wrong class; p: all classes alike"


class Outcome(NamedTuple):
    """What is estimated of one outcome."""

    share: np.ndarray  # (C,)
    mean: np.ndarray  # (C, K): of the number, or the probabilities of K categories
    variance: float  # of the number about its mean
    error: np.ndarray  # (C, K), standard errors of the means
    p_value: float  # of Wald's test that the classes are alike
    log_likelihood: float


def misplaced(posterior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest class of each row, and P(w | c), a line for each true class c.

    >>> misplaced(np.array([[0.75, 0.25], [0.25, 0.75]]))[1].tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    likeliest = posterior.argmax(1)
    together = posterior.T @ np.eye(posterior.shape[1])[likeliest]
    return likeliest, together / together.sum(1, keepdims=True)


def three_step(posterior: np.ndarray, outcome: np.ndarray, categories: bool) -> Outcome:
    """The third step, for rows whose outcome is known.

    :param posterior: of the class of each row, (num_data, C).
    :param outcome: numbers, or categories 0, 1, …, (num_data,).
    """
    likeliest, rates = misplaced(posterior)
    known = np.isfinite(outcome)
    z, size = outcome[known], posterior.shape[1]
    each = np.eye(int(z.max()) + 1)[z.astype(int)] if categories else z[:, None]
    rate, width = rates[:, likeliest[known]].T, each.shape[1]

    def members(share: np.ndarray, mean: np.ndarray, variance: float) -> tuple[Any, float]:
        """The posterior of each row's class given outcome and place, and the log likelihood."""
        if categories:
            density = each @ mean.T
        else:
            gap = z[:, None] - mean[:, 0]
            density = np.exp(-0.5 * gap**2 / variance) / np.sqrt(2.0 * np.pi * variance)
        joint = share * rate * density
        total = joint.sum(1, keepdims=True)
        return joint / total, float(np.log(total).sum())

    found = posterior[known]
    share, mean, variance = found.mean(0), np.zeros((size, width)), 0.0
    for _ in range(MOST_STEPS):
        old = np.append(share, mean)
        share = found.mean(0)
        mean = found.T @ each / found.sum(0)[:, None]
        variance = float((found * (z[:, None] - mean[:, 0]) ** 2).sum() / len(z))
        found, value = members(share, mean, variance)
        if np.abs(np.append(share, mean) - old).max() < STILL * max(1.0, np.abs(old).max()):
            break
    free = mean[:, : max(1, width - 1)]  # of categories the last follows

    def score(at: np.ndarray) -> np.ndarray:
        """The slope of the log likelihood in shares but the last, means, and the variance."""
        first, middle = at[: size - 1], at[size - 1 : size - 1 + free.size].reshape(free.shape)
        shares = np.append(first, 1.0 - first.sum())
        if categories:
            means = np.column_stack([middle, 1.0 - middle.sum(1)])
            own = members(shares, means, 1.0)[0]
            slopes = own.T @ each / means
            return np.append(_less_last(own.sum(0) / shares), _less_last(slopes))
        own = members(shares, middle, at[-1])[0]
        gap = z[:, None] - middle[:, 0]
        wide = 0.5 * (own * (gap**2 / at[-1] - 1.0)).sum() / at[-1]
        slopes = (own * gap).sum(0) / at[-1]
        return np.concatenate([_less_last(own.sum(0) / shares), slopes, [wide]])

    point = np.concatenate([share[:-1], free.ravel(), [] if categories else [variance]])
    inside = np.full(len(point), True)
    if categories:
        inside[size - 1 :] = ((mean > AT_BOUND) & (mean < 1.0 - AT_BOUND)).all(1).repeat(width - 1)
    covariance = _inverse_information(score, point, inside)
    part = covariance[size - 1 :, size - 1 :][: free.size, : free.size]
    error = np.sqrt(np.diagonal(part)).reshape(free.shape)
    if categories:  # of the last, that of the sum of the others
        blocks = part.reshape(*free.shape, *free.shape)
        last = [np.sqrt(blocks[c, :, c].sum()) for c in range(size)]
        error = np.column_stack([error, last])
    contrast = np.kron(np.eye(size)[1:] - np.eye(size)[0], np.eye(free.shape[1]))
    gaps, spread = contrast @ free.ravel(), contrast @ part @ contrast.T
    p = float("nan")
    if np.isfinite(spread).all():
        p = float(chdtrc(len(gaps), gaps @ np.linalg.solve(spread, gaps)))
    return Outcome(share, mean, variance, error, p, value)


def _less_last(slopes: np.ndarray) -> np.ndarray:
    """Slopes in probabilities of which the last is one minus the others."""
    return (slopes[..., :-1] - slopes[..., -1:]).ravel()


def _inverse_information(
    score: Callable[[np.ndarray], np.ndarray], point: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """The inverse of minus the slope of a score, of the parameters inside their bounds."""
    places = np.flatnonzero(inside)
    steps = 1e-5 * np.maximum(np.abs(point), 1e-2)
    slopes = [
        (score(point + h) - score(point - h))[places] / (2.0 * steps[i])
        for i, h in ((i, steps[i] * np.eye(len(point))[i]) for i in places)
    ]
    covariance = np.full((len(point), len(point)), np.nan)
    covariance[np.ix_(places, places)] = np.linalg.pinv(-np.array(slopes).T, hermitian=True)
    return covariance


def outcome_rows(name: str, found: Outcome, categories: tuple[str, ...]) -> list[dict[str, Any]]:
    """Lines of the table of outcomes: the mean, or each category, in each class."""
    lines = []
    for k, category in enumerate(categories or ("mean",)):
        line: dict[str, Any] = {"outcome": name, "category": category}
        for c in range(len(found.mean)):
            line[f"class_{c + 1}"] = found.mean[c, k]
            line[f"class_{c + 1}_se"] = found.error[c, k]
        lines.append(line | {"p_value": found.p_value})
    return lines
