"""Where the rows of a table lie under two factors, for the map in a report.

A report is made again from saved results, quickly and without compiling anything, so the posterior
of two factors is summed over a grid in NumPy: the programs with factors are few and the plane is
small. `latentbits map` and the methods use adaptive quadrature instead, to which tests compare.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, logsumexp, softmax

if TYPE_CHECKING:
    from ..compare import Comparison

GRID = np.linspace(-5.0, 5.0, 101)
"""Of each factor, whose prior is a standard normal."""


class Places(NamedTuple):
    """The posterior of each row's factors."""

    mean: np.ndarray  # (num_rows, 2)
    covariance: np.ndarray  # (num_rows, 2, 2)


def locate(comparison: Comparison, method: str, kind: str) -> Places | None:
    """Posterior means and covariances under a method's parameters; None without two factors.

    :param kind: what a row is given its factors, one of `KINDS`.
    """
    params, table = comparison.params[method], comparison.table
    if "values" not in table or len(params["weights"]) != 2:
        return None
    nodes = np.stack(np.meshgrid(GRID, GRID, indexing="ij"), -1).reshape(-1, 2)
    score = log_likelihoods(comparison, params, nodes, kind)
    if score is None:
        return None
    share = softmax(score - 0.5 * (nodes**2).sum(1), axis=1)
    mean = share @ nodes
    pairs = (nodes[:, :, None] * nodes[:, None, :]).reshape(-1, 4)
    second = (share @ pairs).reshape(-1, 2, 2)
    return Places(mean, second - mean[:, :, None] * mean[:, None, :])


def log_likelihoods(
    comparison: Comparison, params: dict[str, np.ndarray], nodes: np.ndarray, kind: str
) -> np.ndarray | None:
    """log p(row | factors) at each node, (num_rows, num_nodes); cells not seen are left out."""
    values = np.asarray(comparison.table["values"], float)
    mask = np.asarray(comparison.table["mask"], float)
    predictors = nodes @ params["weights"] + params["bias"]
    return KINDS[kind](comparison, params, values, mask, predictors)


def _logistic(
    comparison: Any, params: Any, values: np.ndarray, mask: np.ndarray, predictors: np.ndarray
) -> np.ndarray:
    del comparison, params
    return _bits(values, mask, -np.logaddexp(0, -predictors), -np.logaddexp(0, predictors))


def _probit(
    comparison: Comparison,
    params: Any,
    values: np.ndarray,
    mask: np.ndarray,
    predictors: np.ndarray,
) -> np.ndarray | None:
    del params
    noise = np.asarray(setting(comparison, "noise", 1.0), float)
    if not (noise > 0).all():
        return None  # a hard clip leaves no posterior to sum on a grid
    return _bits(values, mask, log_ndtr(predictors / noise), log_ndtr(-predictors / noise))


def _bits(values: np.ndarray, mask: np.ndarray, one: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return (mask * values) @ one.T + (mask * (1 - values)) @ zero.T


def _mixed(
    comparison: Comparison,
    params: dict[str, np.ndarray],
    values: np.ndarray,
    mask: np.ndarray,
    predictors: np.ndarray,
) -> np.ndarray:
    from latentbits.models.mixed_trait import Layout

    layout = Layout.of(setting(comparison, "kinds", None))
    each_kind: Any = predictors
    real, bits, levels = layout.split(each_kind)
    at = layout.binary
    total = _bits(values[:, at], mask[:, at], -np.logaddexp(0, -bits), -np.logaddexp(0, bits))
    noise = np.broadcast_to(params.get("noise", 1.0), len(layout.real))
    for place, column in enumerate(layout.real):
        away = (values[:, column, None] - real[:, place]) / noise[place]
        total = total - 0.5 * mask[:, column, None] * away**2
    for part, columns in zip(levels.values(), layout.categorical.values(), strict=True):
        for place, column in enumerate(columns):
            each = np.pad(part[:, place], ((0, 0), (1, 0)))
            each = each - logsumexp(each, axis=1, keepdims=True)
            chosen = values[:, column].astype(int)
            total = total + mask[:, column, None] * each[:, chosen].T
    return total


KINDS = {"logistic": _logistic, "probit": _probit, "mixed": _mixed}
"""What a row can be given its factors, by the name that a card has for it."""


def setting(comparison: Comparison, name: str, default: Any) -> Any:
    """An argument of the program, as it was when the comparison was made."""
    text = comparison.about["sizes"].get(name)
    return default if text is None else ast.literal_eval(text)


def predictors_of_bits(comparison: Comparison) -> tuple[slice, list[str]]:
    """Which predictors are those of bits, and the names of their columns."""
    columns = [str(x) for x in comparison.table.get("columns", ())]
    kinds = setting(comparison, "kinds", None)
    if kinds is None:
        return slice(None), columns
    from latentbits.models.mixed_trait import Layout

    layout = Layout.of(kinds)
    return layout.bits, [columns[i] for i in layout.binary] if columns else []
