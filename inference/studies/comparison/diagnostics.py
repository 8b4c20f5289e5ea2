"""R̂, effective draws, Monte-Carlo errors (Vehtari et al. 2021) and Pareto's k̂ (2024), as ArviZ has
them.

ArviZ itself takes a second and a half to import, most of it for figures, in every process that runs
methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import FEWEST_DRAWS


def diagnose(values: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """The worst R̂ and effective sample sizes of the scalars of each array (chains, draws, ...).

    >>> rng = np.random.default_rng(0)
    >>> checks = diagnose({"lp": rng.normal(size=(4, 200))})["lp"]
    >>> checks["rhat"] < 1.05, checks["ess_bulk"] > 400
    (True, True)
    """
    return {name: _worst(np.asarray(value, np.float64)) for name, value in values.items()}


def _worst(value: np.ndarray) -> dict[str, float]:
    flat = value.reshape((*value.shape[:2], -1))
    if np.isnan(flat).any():
        return dict.fromkeys(("rhat", "ess_bulk", "ess_tail"), np.nan)
    halves = _split(flat)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    ends = np.quantile(flat, [0.05, 0.95], axis=(0, 1))
    with np.errstate(all="ignore"):  # a scalar that never changes has no R̂
        scores = _normal_scores(halves)
        return {
            "rhat": float(np.maximum(_rhat(scores), _rhat(_normal_scores(folded))).max()),
            "ess_bulk": float(_effective(scores).min()),
            "ess_tail": float(min(_effective(_split(flat <= end)).min() for end in ends)),
        }


def mcse(draws: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard error of the mean of each scalar: (chains, draws, n) -> (n,).

    Of fewer draws than show how they hang together, as if they did not: such a sampler fails.

    >>> mcse(np.array([[[1.0], [2.0], [3.0]]])).round(3)
    array([0.577])
    """
    count = draws.shape[0] * draws.shape[1]
    spread = np.asarray(draws, np.float64).reshape(count, -1).std(0, ddof=1)
    if draws.shape[1] < FEWEST_DRAWS:
        return spread / np.sqrt(count)
    with np.errstate(all="ignore"):
        return np.nan_to_num(spread / np.sqrt(_effective(_split(draws))))


def pareto_k(log_ratios: Any) -> float:
    """Pareto's k̂ of importance ratios: below 0.7 they can be trusted.

    >>> rng = np.random.default_rng(0)
    >>> bool(pareto_k(rng.normal(size=2000)) < 0.7 < pareto_k(9 * rng.normal(size=2000)))
    True
    """
    ratios = np.sort(np.asarray(log_ratios, np.float64).ravel())
    ratios = ratios - ratios[-1]
    count = int(np.ceil(min(len(ratios) / 5.0, 3.0 * np.sqrt(len(ratios)))))
    cut = max(ratios[-1 - count], np.log(np.finfo(float).tiny))
    tail = np.exp(ratios[ratios > cut]) - np.exp(cut)
    return _tail_index(tail) if len(tail) > 4 else np.inf


def _tail_index(tail: np.ndarray) -> float:
    """k of a generalised Pareto distribution, sorted draws of which are given (Zhang & Stephens
    2009), with a prior worth ten of them at 0.5."""
    count = len(tail)
    grid = 30 + int(np.sqrt(count))
    slopes = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    slopes = slopes / (3.0 * tail[int(count / 4 + 0.5) - 1]) + 1.0 / tail[-1]
    with np.errstate(all="ignore"):
        shapes = np.log1p(-slopes[:, None] * tail).mean(1)
        fit = count * (np.log(-slopes / shapes) - shapes - 1.0)
        weights = 1.0 / np.exp(fit - fit[:, None]).sum(1)
        some = weights >= 10 * np.finfo(float).eps
        slope = np.sum(slopes[some] * weights[some]) / weights[some].sum()
        shape = np.log1p(-slope * tail).mean()
    return float((count * shape + 5.0) / (count + 10.0))


def _split(values: np.ndarray) -> np.ndarray:
    """Chains in halves."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]]).astype(np.float64)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(values.reshape((-1, values.shape[-1])), axis=0).reshape(values.shape)
    return ndtri((ranks - 0.375) / (values.shape[0] * values.shape[1] + 0.25))


def _rhat(values: np.ndarray) -> np.ndarray:
    """Of halves of at least two chains: (halves, draws, n) -> (n,)."""
    count = values.shape[1]
    if len(values) < 4:
        return np.full(values.shape[2:], np.nan)
    between, within = count * values.mean(1).var(0, ddof=1), values.var(1, ddof=1).mean(0)
    return np.sqrt((between / within + count - 1.0) / count)


def _effective(values: np.ndarray) -> np.ndarray:
    """Effective draws of the mean of each scalar: (chains, draws, n) -> (n,)."""
    from scipy.fft import irfft, next_fast_len, rfft

    chains, count = values.shape[:2]
    length = next_fast_len(2 * count)
    spectrum = rfft(values - values.mean(1, keepdims=True), length, axis=1)
    covariance = irfft(np.abs(spectrum) ** 2, length, axis=1)[:, :count].mean(0) / count
    within = covariance[0] * count / (count - 1.0)
    total = covariance[0] + (values.mean(1).var(0, ddof=1) if chains > 1 else 0.0)
    correlations = 1.0 - (within - covariance) / total
    correlations[0] = 1.0
    still = np.ptp(values, axis=(0, 1)) < np.finfo(float).resolution
    each = [_sequence(x.tolist()) for x in correlations.T]
    least = 1.0 / np.log10(chains * count)
    return chains * count / np.where(still, 1.0, np.maximum(each, least))


def _sequence(rho: list[float]) -> float:
    """1 + 2 Σ of autocorrelations, by Geyer's initial monotone sequence; NaN where they are."""
    if np.isnan(rho[1]):
        return np.nan
    kept, even, odd = 2, rho[0], rho[1]
    while kept < len(rho) - 2 and even + odd > 0.0:
        even, odd = rho[kept], rho[kept + 1]
        kept += 2
    total, least = 0.0, np.inf
    for i in range(0, kept - 3, 2):  # but the last pair, of which the first is counted once
        least = min(least, rho[i] + rho[i + 1])
        total += least
    return -1.0 + 2.0 * total + (even if even > 0.0 or even + odd >= 0.0 else 0.0)
