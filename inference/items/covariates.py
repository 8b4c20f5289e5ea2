"""What covariates of the rows do to classes and factors: their units, and the table of effects.

The programs have them as an argument ``covariates`` (num_data, num_covariates), whose effects stand
in a site ``effects``: on the log odds of each class against the first, or on the mean of a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from latentbits.models.data import InputError
from scipy.special import ndtr, softmax

from ..reading.handlers import WEIGHTS

ARGUMENT = "covariates"
TITLES = {
    "class": "Effects of covariates on the log odds of a class against class 1",
    "factor": "Effects of covariates on the factor, about whose mean the variance is 1",
}


def without(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the same program for rows that do not differ in covariates or weights."""
    return {x: v for x, v in kwargs.items() if x not in (ARGUMENT, WEIGHTS)}


def class_shares(params: Any, covariates: Any) -> np.ndarray:
    """The probability of each class given the covariates of a row, (num_data, num_components)."""
    logits = np.asarray(covariates, np.float64) @ params["effects"] + params["class_intercept"]
    return softmax(np.pad(logits, ((0, 0), (1, 0))), axis=1)


def reorder(params: dict[str, Any], order: np.ndarray) -> dict[str, Any]:
    """The effects of classes in another order, against the class that is then the first.

    >>> old = {"class_intercept": np.array([2.0]), "effects": np.array([[0.5]])}
    >>> {x: float(v.item()) for x, v in reorder(old, np.array([1, 0])).items()}
    {'class_intercept': -2.0, 'effects': -0.5}
    """
    moved = {}
    for name in ("class_intercept", "effects"):
        whole = np.insert(np.asarray(params[name]), 0, 0.0, axis=-1)[..., order]
        moved[name] = whole[..., 1:] - whole[..., :1]
    return moved


def standardise(covariates: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Covariates of mean 0 and deviation 1, in which a fit climbs; their means and deviations."""
    mean, deviation = covariates.mean(0), covariates.std(0)
    for name, spread in zip(names, deviation, strict=True):
        if not spread > 0:
            raise InputError(f"--covariates: {name} has one value, and no effect to estimate")
    rank = np.linalg.matrix_rank(standard := (covariates - mean) / deviation)
    if rank < len(names):
        raise InputError(
            f"--covariates: of {len(names)}, {len(names) - rank} follow from the others: leave out "
            "one of each such set, as of 0/1 columns that add up to 1"
        )
    return standard, mean, deviation


def in_units(
    params: dict[str, Any], mean: np.ndarray, deviation: np.ndarray, levels: Any
) -> dict[str, Any]:
    """The same model in units of the covariates, from a fit to those of `standardise`.

    :param params: by site, with any axes in front.
    :param levels: the number of levels of each column, where there are cutpoints.
    """
    effects = np.asarray(params["effects"], np.float64) / deviation[:, None]
    shift = mean @ effects
    new = {**params, "effects": effects}
    if "class_intercept" in params:
        return {**new, "class_intercept": params["class_intercept"] - shift}
    moved = (shift[..., None, :] @ params["weights"])[..., 0, :]
    for name in params:
        if name == "bias":
            new[name] = params[name] - moved
        if name.startswith("cutpoints_"):
            own = np.asarray(levels) == int(name.removeprefix("cutpoints_"))
            new[name] = params[name] + moved[..., own, None]
    return new


def effects_table(
    point: dict[str, Any], errors: dict[str, Any], names: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The title and the columns of the table of effects."""
    effects = np.asarray(point["effects"], np.float64)
    spread = np.asarray(errors.get("effects", np.full(effects.shape, np.nan)), np.float64)
    of_class = "class_intercept" in point
    if of_class:
        effects = np.vstack([point["class_intercept"], effects])
        missing = np.full(effects.shape[1], np.nan)
        spread = np.vstack([errors.get("class_intercept", missing), spread])
        names = ["(intercept)", *names]
    size = effects.shape[1]
    columns: dict[str, Any] = {}
    if of_class:
        columns["class"] = [str(c + 2) for c in range(size) for _ in names]
    columns |= {"covariate": list(names) * size, "effect": effects.T.ravel()}
    if errors:
        columns["effect_se"] = spread.T.ravel()
        columns["z"] = columns["effect"] / columns["effect_se"]
        columns["p_value"] = 2.0 * ndtr(-np.abs(columns["z"]))
    return TITLES["class" if of_class else "factor"], columns
