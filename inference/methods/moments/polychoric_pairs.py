r"""Correlations behind columns of any two kinds, all pairs at once, by inversion of one moment.

A column of K ordered levels is a standard Gaussian cut at thresholds :math:`a_1 < … < a_{K-1}`,
P(t ≥ k) = Φ(−a_k); a real column is one that is seen. The covariance of two columns, levels counted
from 0, then is (Hoeffding's formula, and Plackett's :math:`d\Phi_2 / d\rho = \phi_2`)

.. math::
    \mathrm{cov}(t_i, t_j) &= \int_0^\rho \sum_{kl} \phi_2(a_k, b_l; r)\, dr
        && \text{two of levels: tetra- and polychoric} \\
    \mathrm{cov}(x_i, t_j) &= \rho\, \sigma_i \sum_l \phi(b_l) && \text{polyserial} \\
    \mathrm{cov}(x_i, x_j) &= \rho\, \sigma_i \sigma_j && \text{Pearson}

with thresholds from the margins. For two columns of two levels it is eq. (10) of Lee & Sompolinsky
(1998), and the correlation is that of `invert_pairs`. The first is solved for :math:`\theta =
\arcsin \rho`, in which the integrand is smooth, by Newton steps that keep to a bracket.

With ``likelihood=True`` the correlation of two columns of levels is the most likely one given those
thresholds (two steps, Olsson 1979), as polycor, psych and lavaan have it. Its error is by the delta
method, with that of the thresholds (Jöreskog 1994): of a row in cell (k, l), where :math:`s =
\partial \log \pi_{kl} / \partial\rho` and :math:`I` is the information,

.. math:: \hat\rho - \rho \approx \frac 1N \sum_n \frac{1}{I_{\rho\rho}}
          \Big[ s - \sum_i I_{\rho a_i} \frac{1[k \le i] - \Phi(a_i)}{\phi(a_i)}
          - \sum_j I_{\rho b_j} \frac{1[l \le j] - \Phi(b_j)}{\phi(b_j)} \Big] .
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri

NODES = 48
"""Of the Gauss–Legendre rule from 0 to θ: off by 1e-9 at ρ = 0.95."""
STEPS = 30
BLOCK = 1 << 16
"""Numbers that are held at a time of pairs × thresholds × thresholds × nodes."""
END = np.arcsin(1.0 - 1e-7)


class Polychoric(NamedTuple):
    """Correlations of the Gaussians behind the columns of a table.

    >>> bits = np.array([[0, 0], [0, 0], [1, 1], [1, 1], [1, 0], [0, 1]])
    >>> estimate = polychoric(bits, ("binary", "binary"))
    >>> round(float(estimate.correlation[0, 1]), 3), [len(x) for x in estimate.thresholds]
    (0.5, [1, 1])
    """

    correlation: np.ndarray  # (num_features, num_features), with a unit diagonal; 0 where unknown
    thresholds: tuple[np.ndarray, ...]  # of each column, (levels − 1,); of a real one none
    at_end: np.ndarray  # (num_features, num_features), where no correlation gives the covariance
    unseen: np.ndarray  # (num_features, num_features), never together, or one constant there
    error: np.ndarray | None = None  # of correlations by likelihood; NaN beside a real column


def polychoric(
    data: np.ndarray,
    kinds: Sequence[str | int],
    mask: np.ndarray | None = None,
    likelihood: bool = False,
) -> Polychoric:
    """Tetrachoric, polychoric, polyserial and Pearson correlations of all pairs of columns.

    :param data: (num_data, num_features): numbers, or levels from 0.
    :param kinds: of each column: 'real', 'binary', or its number of levels.
    :param mask: True where a cell was observed. The margins of a pair are those of the rows in
        which both were.
    :param likelihood: take the most likely correlations of two columns of levels, with standard
        errors, instead of those that the covariances give.

    >>> table = np.array([[0, 0, -1.2], [1, 1, 0.1], [1, 2, 0.8], [0, 1, -0.3], [1, 2, 1.9]])
    >>> estimate = polychoric(np.tile(table, (9, 1)), ("binary", 3, "real"))
    >>> estimate.correlation.shape, bool(estimate.correlation[1, 2] > 0.8)
    ((3, 3), True)
    """
    values, count = np.asarray(data, float), np.shape(data)[1]
    if len(kinds) != count:
        raise ValueError(f"`kinds` names {len(kinds)} columns, but `data` has {count}")
    observed = np.ones(values.shape) if mask is None else np.asarray(mask, float)
    steps = np.array([0 if k == "real" else (2 if k == "binary" else int(k)) - 1 for k in kinds])
    _check(values, observed, steps)
    column = np.repeat(np.arange(count), np.maximum(steps, 1))  # of each feature
    rung = np.concatenate([np.arange(1, max(k, 1) + 1) for k in steps])
    real = steps[column] == 0
    features = np.where(real, values[:, column], values[:, column] >= rung) * observed[:, column]

    both = np.maximum(observed.T @ observed, 1e-300)
    margin = (features.T @ observed) / both[column]  # (P, D): of a feature, in rows of both
    raised = features @ _by_column(column, count)
    cover = (raised.T @ raised) / both
    mean = _by_column(column, count).T @ margin  # (D, D)
    cover -= mean * mean.T
    square = ((values * observed) ** 2).T @ observed / both
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))

    # P(t ≥ k) of a column in the rows of each other one: thresholds (D, D, K − 1), ∞ as padding.
    wide = max(int(steps.max()), 1)
    cuts = np.full((count, count, wide), np.inf)
    with np.errstate(divide="ignore"):
        cuts[column[~real], :, rung[~real] - 1] = -ndtri(margin[~real])
    correlation, at_end = np.eye(count), np.zeros((count, count), bool)
    first, second = np.triu_indices(count, 1)
    constant = np.where(steps == 0, deviation.T == 0, ~np.isfinite(cuts).any(-1).T).T
    unseen = (observed.T @ observed == 0) | constant | constant.T
    known = ~unseen[first, second]
    first, second = first[known], second[known]
    serial = (steps[first] == 0) | (steps[second] == 0)
    total = np.exp(-0.5 * cuts**2).sum(-1) / np.sqrt(2.0 * np.pi)
    slope = np.where((steps == 0)[:, None], deviation, total)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = cover[first, second] / (slope[first, second] * slope[second, first])
    levels = np.flatnonzero(~serial)
    size = max(1, BLOCK // (wide * wide * NODES))
    for start in range(0, len(levels), size):
        at = levels[start : start + size]
        i, j = first[at], second[at]
        rho[at] = _solve(cuts[i, j], cuts[j, i], cover[i, j])
    error = np.full((count, count), np.nan)
    for one in levels if likelihood else ():
        i, j = first[one], second[one]
        seen = [features[:, column == x][(observed[:, i] * observed[:, j]) > 0] for x in (i, j)]
        places = [x.sum(1).astype(int) for x in seen]
        table = np.zeros((steps[i] + 1, steps[j] + 1))
        np.add.at(table, tuple(places), 1.0)
        a, b = (cuts[x][: steps[y]] for x, y in (((i, j), i), ((j, i), j)))
        rho[one], error[i, j] = _most_likely(table, a, b)
        error[j, i] = error[i, j]
    at_end[first, second] = at_end[second, first] = np.abs(rho) >= np.sin(END)
    correlation[first, second] = correlation[second, first] = np.clip(rho, -1.0, 1.0)
    np.fill_diagonal(unseen, False)
    own = np.arange(count)
    return Polychoric(
        correlation, tuple(cuts[own, own][i][:k] for i, k in enumerate(steps)), at_end, unseen,
        error if likelihood else None,
    )  # fmt: skip


def _by_column(column: np.ndarray, count: int) -> np.ndarray:
    """(P, D): which column a feature is of."""
    return (column[:, None] == np.arange(count)).astype(float)


def _check(values: np.ndarray, observed: np.ndarray, steps: np.ndarray) -> None:
    top = np.where(steps == 0, np.inf, steps)
    low = np.where(steps == 0, -np.inf, 0)
    whole = (steps == 0) | (values == np.round(values))
    wrong = (observed > 0) & ~((values >= low) & (values <= top) & whole)
    if wrong.any():
        row, place = (int(x) for x in np.argwhere(wrong)[0])
        wanted = "a finite number" if not steps[place] else f"a level from 0 to {steps[place]}"
        raise ValueError(f"row {row}, column {place} holds {values[row, place]:g}: wanted {wanted}")


def _solve(first: np.ndarray, second: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """ρ of pairs with thresholds (n, K) each, ∞ where there is none, and covariances (n,)."""
    a, b = first[:, :, None, None], second[:, None, :, None]
    some = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(some, a, 0.0), np.where(some, b, 0.0)
    square, cross = a**2 + b**2, 2.0 * a * b
    points, weights = np.polynomial.legendre.leggauss(NODES)

    def density(theta: np.ndarray) -> np.ndarray:
        """Σ φ₂ dρ/dθ at angles (n, m)."""
        sine, cosine = np.sin(theta)[:, None, None], np.cos(theta)[:, None, None]
        height = np.exp(-0.5 * (square - cross * sine) / cosine**2)
        return (height * some).sum((1, 2)) / (2.0 * np.pi)

    def integral(theta: np.ndarray) -> np.ndarray:
        nodes = 0.5 * theta[:, None] * (points + 1.0)
        return 0.5 * theta * (density(nodes) @ weights)

    # With thresholds given, the covariance rises with θ: a root is bracketed by the ends.
    low, high = np.full(len(cover), -END), np.full(len(cover), END)
    theta = np.clip(cover / density(np.zeros((len(cover), 1)))[:, 0], -1.2, 1.2)
    for _ in range(STEPS):
        gap = integral(theta) - cover
        low, high = np.where(gap < 0, theta, low), np.where(gap < 0, high, theta)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = theta - gap / density(theta[:, None])[:, 0]
        inside = (new > low) & (new < high)
        new = np.where(inside, new, 0.5 * (low + high))
        done = np.abs(new - theta).max(initial=0.0) < 1e-9  # its square is what is left
        theta = new
        if done:
            break
    # What no correlation explains ends at the end of the range.
    theta = np.where(cover >= integral(np.full_like(theta, END)), np.pi / 2, theta)
    theta = np.where(cover <= integral(np.full_like(theta, -END)), -np.pi / 2, theta)
    return np.sin(theta)


def _most_likely(table: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The most likely ρ of a table of counts (K, L), thresholds given, and its standard error.

    >>> rho, error = _most_likely(np.array([[30.0, 10.0], [10.0, 30.0]]), np.zeros(1), np.zeros(1))
    >>> round(rho, 4), round(error, 4)  # sin(π/4), and π cos(π/4) √(3/16 / N)
    (0.7071, 0.1075)
    """
    a, b = (np.concatenate([[-np.inf], x, [np.inf]]) for x in (first, second))
    some = np.isfinite(a)[:, None] & np.isfinite(b)
    x, y = (np.where(np.isfinite(v), v, 0.0) for v in (a, b))
    points, weights = np.polynomial.legendre.leggauss(NODES)

    def density(theta: np.ndarray) -> np.ndarray:
        """dΦ₂/dθ at all corners, (..., K + 1, L + 1)."""
        sine, cosine = np.sin(theta)[..., None, None], np.cos(theta)[..., None, None]
        square = x[:, None] ** 2 + y**2 - 2.0 * x[:, None] * y * sine
        return some * np.exp(-0.5 * square / cosine**2) / (2.0 * np.pi)

    def cells(corners: np.ndarray) -> np.ndarray:
        return np.diff(np.diff(corners, axis=0), axis=1)

    def probs(theta: float) -> np.ndarray:
        area = np.tensordot(weights, density(0.5 * theta * (points + 1.0)), 1)
        both = ndtr(a)[:, None] * ndtr(b) + 0.5 * theta * area
        return np.maximum(cells(both), 1e-15)

    loss = lambda theta: -np.sum(table * np.log(probs(theta)))  # noqa: E731
    theta = minimize_scalar(loss, bounds=(-END, END), method="bounded", options={"xatol": 1e-9}).x
    end = min(-END, END, key=loss)
    if loss(end) <= loss(theta) + 1e-9:
        return float(np.sign(end)), np.nan
    rho, root, pi = np.sin(theta), np.cos(theta), probs(theta)
    score = cells(density(theta)) / root
    influence = score / pi
    for u, v, turned in ((a, b, False), (b, a, True)):
        for i in np.flatnonzero(np.isfinite(u)):
            # The slopes of cells in a threshold, over the density there.
            strip = np.diff(ndtr((v - rho * u[i]) / root))
            slope = np.zeros((len(u) - 1, len(v) - 1))
            slope[i - 1], slope[i] = strip, -strip
            cross = np.sum((score.T if turned else score) * slope / (pi.T if turned else pi))
            below = (np.arange(len(u) - 1) < i) - ndtr(u[i])
            influence = influence - cross * (below if turned else below[:, None])
    influence /= np.sum(score**2 / pi)
    return float(rho), float(np.sqrt(np.sum(table * influence**2)) / table.sum())
