"""A short form of a test: which items keep its information, and the full score predicted from them.

Items are taken one after another, each the one after which the factor is known best: the smallest
expected variance, 1 / (1 + information), of a factor from N(0, 1) (after van der Linden 2005,
*Linear Models for Optimal Test Design*, chapter 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .statistics import Values, nodes_of, number_right


class ShortForm(NamedTuple):
    """Items of a short form, and what it says of the whole test."""

    items: np.ndarray  # places of the items, the most telling first
    reliability: np.ndarray  # with the first, the first two, …
    score: np.ndarray  # (k + 1,) number right in the short form
    mean: np.ndarray  # of the number right in the whole test, given that
    low: np.ndarray  # 90 % interval
    high: np.ndarray
    whole: float  # reliability of the whole test


def short_form(values: Values, count: int) -> ShortForm:
    """The items of a one-factor model of bits.

    :param values: weights (1, P), bias (P,), and guessing (P,) where items have it.

    >>> values = {"weights": np.array([[0.5, 2.0, 1.0]]), "bias": np.zeros(3)}
    >>> form = short_form(values, 2)
    >>> form.items.tolist(), form.score.tolist(), bool(form.reliability[1] < form.whole)
    ([1, 2], [0, 1, 2], True)
    """
    points, weight = nodes_of(values)
    weight = weight / weight.sum()
    slope = values["weights"][0]
    sigma = 0.5 + 0.5 * np.tanh(0.5 * (points @ values["weights"] + values["bias"]))
    least = values.get("guessing", np.zeros(len(slope)))
    prob = least + (1.0 - least) * sigma
    information = (slope * sigma) ** 2 * (1.0 - prob) / prob  # (S, P)
    taken: list[int] = []
    kept, held = [], np.ones(len(weight))
    for _ in range(count):
        variance = weight @ (1.0 / (held[:, None] + information))
        variance[taken] = np.inf
        taken.append(int(variance.argmin()))
        held = held + information[:, taken[-1]]
        kept.append(1.0 - variance.min())
    others = np.setdiff1d(np.arange(len(slope)), taken)
    short, rest = number_right(prob[:, taken]), number_right(prob[:, others])
    joint = np.einsum("s,sk,sr->kr", weight, short, rest)
    chance = joint / joint.sum(1, keepdims=True)
    beyond, below = np.arange(len(others) + 1), chance.cumsum(1)
    score = np.arange(count + 1)
    low, high = (score + (below < p).sum(1) for p in (0.05, 0.95))
    whole = 1.0 - float(weight @ (1.0 / (1.0 + information.sum(1))))
    mean = score + chance @ beyond
    return ShortForm(np.array(taken), np.array(kept), score, mean, low, high, whole)
