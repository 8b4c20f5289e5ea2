"""R̂, effective draws, Monte-Carlo errors and Pareto's k̂, as ArviZ has them.

Where it is not installed, on a machine for long runs say, the same of NumPyro on ranks (Vehtari et
al. 2021), and no k̂: a guide is then neither trusted nor distrusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import FEWEST_DRAWS


def arviz_or_none() -> Any:
    """`studies.arviz`, or None where what it imports is missing."""
    try:
        from .. import arviz

        arviz.import_arviz()
    except ImportError:
        return None
    return arviz


def diagnose(values: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """The worst R̂ and effective sample sizes of the scalars of each array (chains, draws, ...).

    >>> rng = np.random.default_rng(0)
    >>> checks = diagnose({"lp": rng.normal(size=(4, 200))})["lp"]
    >>> checks["rhat"] < 1.05, checks["ess_bulk"] > 400
    (True, True)
    """
    arviz = arviz_or_none()
    if arviz is not None:
        return arviz.diagnose(arviz.dataset(values, ("chain", "draw")))
    return {name: without_arviz(np.asarray(value, np.float64)) for name, value in values.items()}


def without_arviz(value: np.ndarray) -> dict[str, float]:
    """The same of one array, by NumPyro."""
    from numpyro.diagnostics import split_gelman_rubin

    flat = value.reshape((*value.shape[:2], -1))
    folded = np.abs(flat - np.median(flat, axis=(0, 1)))
    ends = np.quantile(flat, [0.05, 0.95], axis=(0, 1))
    tails = [_effective((flat <= end).astype(float)) for end in ends]
    with np.errstate(all="ignore"):  # a scalar that never changes has no R̂
        rhat = [split_gelman_rubin(_normal_scores(x)) for x in (flat, folded)]
    return {
        "rhat": float(np.max(rhat)),
        "ess_bulk": float(np.min(_effective(_normal_scores(flat)))),
        "ess_tail": float(np.min(tails)),
    }


def mcse(draws: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard error of the mean of each scalar: (chains, draws, n) -> (n,).

    Of fewer draws than show how they hang together, as if they did not: such a sampler fails.

    >>> mcse(np.array([[[1.0], [2.0], [3.0]]])).round(3)
    array([0.577])
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return draws.std((0, 1), ddof=1) / np.sqrt(draws.shape[0] * draws.shape[1])
    arviz = arviz_or_none()
    if arviz is not None:
        return arviz.mcse(draws)
    values = np.asarray(draws, np.float64)
    return np.nan_to_num(values.std((0, 1), ddof=1) / np.sqrt(_effective(values)))


def pareto_k(log_ratios: Any) -> float | None:
    """Pareto's k̂ of importance ratios; None without ArviZ."""
    arviz = arviz_or_none()
    return None if arviz is None else arviz.pareto_k(log_ratios)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(values.reshape((-1, values.shape[-1])), axis=0).reshape(values.shape)
    return ndtri((ranks - 0.375) / (values.shape[0] * values.shape[1] + 0.25))


def _effective(values: np.ndarray) -> np.ndarray:
    """Effective draws of the mean of each scalar, (chains, draws, n) -> (n,), of split chains."""
    from numpyro.diagnostics import effective_sample_size

    half = values.shape[1] // 2
    with np.errstate(all="ignore"):
        return effective_sample_size(np.concatenate([values[:, :half], values[:, -half:]]))
