"""R̂, effective draws, Monte-Carlo errors (Vehtari et al. 2021) and Pareto's k̂ (2024), of ArviZ.

They are those of its part for arrays: ArviZ as a whole takes a second and a half to import, most of
it for figures, in every process that runs methods.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

RHAT, RHAT_PARAMETERS, ESS, DIVERGENT = 1.01, 1.05, 400.0, 0.001
"""What draws of a sampler must keep to: R̂ of the log joint and of the parameters, effective draws
in bulk and tail, share of divergences."""
FEWEST_DRAWS = 4
"""Of each chain: half of it has two, of which a variance can be taken (ArviZ asks for as many)."""
EQUAL = 1e-9
"""Log ratios that differ by less are equal: they have no tail."""

AXES = {"chain_axis": 0, "draw_axis": 1}


def diagnose(values: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """The worst R̂ and effective sample sizes of the scalars of each array (chains, draws, ...).

    >>> rng = np.random.default_rng(0)
    >>> checks = diagnose({"lp": rng.normal(size=(4, 200))})["lp"]
    >>> checks["rhat"] < 1.05, checks["ess_bulk"] > 400
    (True, True)
    """
    return {name: _worst(np.asarray(value, np.float64)) for name, value in values.items()}


def _worst(value: np.ndarray) -> dict[str, float]:
    from arviz_stats.base import array_stats

    with warnings.catch_warnings(action="ignore"):  # a scalar that never changes has no R̂
        rhat = array_stats.rhat(value, **AXES)
        bulk = array_stats.ess(value, method="bulk", **AXES)
        # The 5 % and 95 % quantiles (Vehtari et al. 2021): releases differ in their default.
        tail = array_stats.ess(value, method="tail", prob=(0.05, 0.95), **AXES)
    worst = {"rhat": np.max(rhat), "ess_bulk": np.min(bulk), "ess_tail": np.min(tail)}
    return {name: float(x) for name, x in worst.items()}


def mcse(draws: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard error of the mean of each scalar: (chains, draws, n) -> (n,).

    Of fewer draws than show how they hang together, as if they did not: such a sampler fails.

    >>> mcse(np.array([[[1.0], [2.0], [3.0]]])).round(3)
    array([0.577])
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return draws.std((0, 1), ddof=1) / np.sqrt(draws.shape[0] * draws.shape[1])
    from arviz_stats.base import array_stats

    with warnings.catch_warnings(action="ignore"):  # a scalar that never changes has none
        errors = array_stats.mcse(np.asarray(draws, np.float64), method="mean", **AXES)
    return np.nan_to_num(np.asarray(errors))


def pareto_k(log_ratios: Any) -> float:
    """Pareto's k̂ of importance ratios: below 0.7 they can be trusted.

    >>> logs = np.log1p(np.random.default_rng(0).pareto(2.0, 20_000))  # of k = 1/2
    >>> abs(pareto_k(logs) - 0.5) < 0.1, pareto_k(-logs) < 0.0
    (True, True)
    """
    return smoothed(log_ratios)[1]


def smoothed(log_ratios: Any) -> tuple[np.ndarray, float]:
    """Logs of Pareto-smoothed weights that sum to one, and k̂.

    >>> weights, k = smoothed(np.zeros(100))
    >>> round(float(np.exp(weights).sum()), 6)
    1.0
    """
    from arviz_stats.base import array_stats

    ratios = np.asarray(log_ratios, np.float64).ravel()
    if np.ptp(ratios) < EQUAL:
        return np.full(len(ratios), -np.log(len(ratios))), -np.inf
    # It takes log likelihoods, which are the logs of one over the ratios.
    with warnings.catch_warnings(action="ignore"):
        weights, k = array_stats.psislw(-ratios)
    return np.asarray(weights), float(k)


def every(values: dict[str, Any], step: int) -> dict[str, np.ndarray]:
    """Each `step`-th draw of arrays (num_chains, num_draws, ...)."""
    return {x: np.asarray(v)[:, step - 1 :: step] for x, v in values.items()}


def thin(params: dict[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
    """At most so many draws over all chains, evenly spaced: (num_chains, fewer, ...)."""
    chains, count = next(iter(params.values())).shape[:2]
    return every(params, max(1, -(-count * chains // most)))
