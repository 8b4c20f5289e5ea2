r"""What an analyst asks of items: how they discriminate, how they fit, how precise the scores are.

Of a whole table of bits under a logistic model of few factors, all of it by sums over nodes that
rows share (`continuous.shared_nodes`):

* item fit S-X² (Orlando & Thissen 2000): proportions right at each number of other answers right,
  against those expected, by the recursion of Lord & Wingersky (1984);
* model fit M₂ (Maydeu-Olivares & Joe 2005): residuals of all means and pairs, and the RMSEA of it;
* reliability, the share of the factor's variance that the scores carry, and information.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from ..compiling import remembered
from ..methods.continuous.shared_nodes import one_rule

LOGISTIC = 1.702
"""By which a logistic curve is scaled to lie closest to a normal one, as loadings have it."""
LEAST_EXPECTED = 1.0
"""Of a cell of S-X²: those with less are joined to their neighbours."""
MOST_ITEMS = 60
"""For M₂, whose matrix has as many rows as there are pairs of items."""
MOST_FITTED = 300
"""For S-X², which holds nodes × items × items numbers."""


Values = dict[str, np.ndarray]
"""weights (Q, C) and bias (C,) of the predictors; guessing (P,) where items have it"""


class Fit(NamedTuple):
    """A statistic, its degrees of freedom and its p-value, each a number or one of each item."""

    statistic: np.ndarray
    df: np.ndarray
    p_value: np.ndarray


class ModelFit(NamedTuple):
    """M₂ and what is made of it, as mirt's `M2` prints it."""

    m2: float
    df: int
    p_value: float
    rmsea: float
    rmsea_low: float  # 90 % interval
    rmsea_high: float
    srmsr: float  # of the correlations of pairs
    tli: float  # against independent items
    cfi: float


def loadings(weights: np.ndarray) -> np.ndarray:
    """Standardised loadings (Q, P) of logistic weights.

    >>> loadings(np.array([[1.702, 0.0]])).round(4).tolist()
    [[0.7071, 0.0]]
    """
    return weights / np.sqrt(LOGISTIC**2 + (weights**2).sum(0))


def nodes_of(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (S, Q) for these weights and biases, and their weights (S,)."""
    with jax.enable_x64(True):
        rule = jax.device_get(remembered(one_rule)(dict(values)))
    used = np.isfinite(rule.log_weights)
    return rule.points[used], np.exp(rule.log_weights[used])


def curves(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a 1 on nodes (S, P), and the weights of the nodes (S,)."""
    points, weight = nodes_of(values)
    return 0.5 + 0.5 * np.tanh(0.5 * (points @ values["weights"] + values["bias"])), weight


def number_right(prob: np.ndarray) -> np.ndarray:
    """The distribution of how many of P answers are right, (..., P + 1), given their probabilities.

    >>> number_right(np.array([0.5, 0.5])).tolist()
    [0.25, 0.5, 0.25]
    """
    probs = np.ones((*prob.shape[:-1], 1))
    for each in np.moveaxis(prob, -1, 0):
        more = np.zeros((*probs.shape[:-1], probs.shape[-1] + 1))
        more[..., :-1] = probs * (1.0 - each[..., None])
        more[..., 1:] += probs * each[..., None]
        probs = more
    return probs


def item_fit(bits: np.ndarray, values: Values) -> Fit:
    """S-X² of each item, of rows without holes, (num_data, P)."""
    from scipy.special import chdtrc  # scipy.stats takes longer to import than all this to compute

    prob, weight = curves(values)
    size = prob.shape[1]
    total = bits.sum(1).astype(int)
    rows = np.bincount(total, minlength=size + 1)
    right = np.stack([np.bincount(total, x, size + 1) for x in bits.T], 1)
    whole = weight @ number_right(prob)  # (P + 1,)
    others = np.array([[k for k in range(size) if k != i] for i in range(size)])
    rest = number_right(prob[:, others])  # (S, P, P): of all items but one
    joint = np.einsum("s,si,sik->ki", weight, prob, rest)  # k others right, and this one
    expected = np.zeros((size + 1, size))
    expected[1:] = joint / whole[1:, None]
    statistic, df = np.zeros(size), np.zeros(size)
    for i in range(size):
        cells = _joined(rows[1:size], expected[1:size, i], right[1:size, i])
        count, mean, observed = cells.T
        statistic[i] = np.sum((observed - count * mean) ** 2 / (count * mean * (1.0 - mean)))
        df[i] = len(cells) - len(values["weights"]) - 1
    p = np.where(df > 0, chdtrc(np.maximum(df, 1), statistic), np.nan)
    return Fit(statistic, df, p)


def _joined(rows: np.ndarray, prob: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cells (rows, expected proportion, right), each with enough expected right and wrong."""
    cells: list[list[float]] = []
    held = np.zeros(3)
    for count, mean, observed in zip(rows, prob, right, strict=True):
        held += np.array([count, count * mean, observed])
        if min(held[1], held[0] - held[1]) >= LEAST_EXPECTED:
            cells.append(list(held))
            held = np.zeros(3)
    if cells:
        cells[-1] = list(np.array(cells[-1]) + held)
    joined = np.array(cells).reshape(-1, 3)
    return np.stack([joined[:, 0], joined[:, 1] / joined[:, 0], joined[:, 2]], 1)


def model_fit(bits: np.ndarray, values: Values) -> ModelFit:
    """M₂ of rows without holes, (num_data, P), and indices of fit against independent items."""
    m2, df, srmsr = _m2(bits, values)
    if df <= 0:
        none = float("nan")
        return ModelFit(m2, df, none, none, none, none, srmsr, none, none)
    from scipy.special import chdtrc, chndtrinc

    rate = bits.mean(0).clip(1e-6, 1.0 - 1e-6)
    alone = {"weights": np.zeros((0, bits.shape[1])), "bias": np.log(rate / (1.0 - rate))}
    null, null_df, _ = _m2(bits, alone)
    # Noncentralities at which M₂ is the quantile of 95 and of 5 %.
    central = 1.0 - float(chdtrc(df, m2))
    ends = [chndtrinc(m2, df, p) if central > p else 0.0 for p in (0.95, 0.05)]
    low, high = (np.sqrt(x / (df * len(bits))) for x in ends)
    excess, null_excess = max(m2 - df, 0.0), max(null - null_df, m2 - df, 1e-12)
    tli = (null / null_df - m2 / df) / (null / null_df - 1.0)
    rmsea = float(np.sqrt(excess / (df * len(bits))))
    return ModelFit(
        m2, df, float(chdtrc(df, m2)), rmsea, float(low), float(high), srmsr, float(tli),
        float(1.0 - excess / null_excess),
    )  # fmt: skip


def _m2(bits: np.ndarray, values: Values) -> tuple[float, int, float]:
    """M₂, its degrees of freedom, and the root mean square residual of correlations.

    With margins π (means, then pairs), their residuals e, their covariance Ξ over N and their
    slopes Δ in the parameters, it is N eᵀ C e, C = Ξ⁻¹ − Ξ⁻¹Δ (ΔᵀΞ⁻¹Δ)⁻ ΔᵀΞ⁻¹.
    """
    points, weight = np.zeros((1, 0)), np.ones(1)
    prob = 0.5 + 0.5 * np.tanh(0.5 * values["bias"])[None]
    if len(values["weights"]):
        points, (prob, weight) = nodes_of(values)[0], curves(values)
    size, factors = prob.shape[1], len(values["weights"])
    if size > MOST_ITEMS:
        raise ValueError(f"M2 is for up to {MOST_ITEMS} items, found {size}")
    first, second = np.triu_indices(size, 1)
    sets = np.zeros((size + len(first), size), bool)
    sets[np.arange(size), np.arange(size)] = True
    sets[size + np.arange(len(first)), first] = sets[size + np.arange(len(first)), second] = True
    margin = np.hstack([prob, prob[:, first] * prob[:, second]])  # (S, m)
    mean = weight @ margin
    count = len(bits)
    pairs = bits.T @ bits / count
    residual = np.concatenate([np.diagonal(pairs), pairs[first, second]]) - mean
    covariance = _unions(sets, margin, prob, weight) - np.outer(mean, mean)
    bend = prob * (1.0 - prob)
    design = np.hstack([points, np.ones((len(points), 1))])
    slope = np.zeros((len(mean), size, factors + 1))
    own = np.einsum("s,si,sk->ik", weight, bend, design)
    slope[np.arange(size), np.arange(size)] = own
    place = size + np.arange(len(first))
    for a, b in ((first, second), (second, first)):
        slope[place, a] = np.einsum("s,sm,sm,sk->mk", weight, bend[:, a], prob[:, b], design)
    flat = slope.reshape(len(mean), -1)
    inverse = np.linalg.solve(covariance, np.hstack([flat, residual[:, None]]))
    within = flat.T @ inverse[:, :-1]
    along = flat.T @ inverse[:, -1]
    lost = along @ np.linalg.pinv(within, rcond=1e-10, hermitian=True) @ along
    m2 = float(count * (residual @ inverse[:, -1] - lost))
    free = size * (factors + 1) - factors * (factors - 1) // 2
    one, two = mean[:size], mean[size:]
    sd = np.sqrt(one * (1.0 - one))
    wanted = (two - one[first] * one[second]) / (sd[first] * sd[second])
    found = np.corrcoef(bits.T)[first, second]
    return m2, len(mean) - free, float(np.sqrt(np.mean((found - wanted) ** 2)))


def _unions(
    sets: np.ndarray, margin: np.ndarray, prob: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """The probability that all items of two margins are right, (m, m): of an item of both, once."""
    joint = margin.T @ (margin * weight[:, None])
    shared = sets.astype(np.int8) @ sets.T.astype(np.int8)
    rows, columns = np.nonzero(shared)
    both = sets[rows] | sets[columns]
    # At most three items are in the union: padded by a prob of one.
    wide = np.hstack([prob, np.ones((len(prob), 1))])
    order = np.argsort(~both, axis=1, kind="stable")[:, :3]
    order = np.where(np.take_along_axis(both, order, 1), order, prob.shape[1])
    step = max(1, (1 << 22) // len(weight))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        joint[rows[part], columns[part]] = weight @ wide[:, order[part]].prod(-1)
    return joint


def reliability(mean: np.ndarray, covariance: np.ndarray, times: Any = None) -> np.ndarray:
    """Of each factor: the variance of the scores over that of the factor, (Q,).

    :param times: how often each row counts, (num_data,); by default once.

    >>> reliability(np.array([[1.0], [-1.0]]), np.full((2, 1, 1), 0.25)).tolist()
    [0.8]
    """
    error = np.average(np.diagonal(covariance, axis1=1, axis2=2), 0, times)
    spread = np.average((mean - np.average(mean, 0, times)) ** 2, 0, times)
    return spread / (spread + error)
