"""Items whose parameters are known from another fit: to score with them, or to link a new test.

Known parameters are held by priors so narrow that no answers move them, free ones have priors so
wide that they say nothing. The factor keeps the population of the fit that the items are from.
"""

from __future__ import annotations

import csv
import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from latentbits.models.data import InputError
from latentbits.models.data.cells import listed

NARROW, WIDE = 1e-3, 1e2
"""Scales of the priors of parameters that are known, and of others."""


def read_items(path: str, given: Any) -> dict[str, np.ndarray]:
    """weights (Q, P) and bias (P,) of the items of a table, NaN where the file has none.

    The file has columns item, discrimination (of several factors slope_1, slope_2, ...), and
    intercept or difficulty, as `latentbits fit` writes FIT_items.csv.

    :param given: the program and its table, as `commands.options.Given`.
    """
    takes = inspect.signature(given.program).parameters
    if not {"prior_weights", "prior_bias", "num_factors"} <= {*takes} or "slope" in given.kwargs:
        raise InputError(f"--fix: {given.name} has no slope and intercept for each item: 2PL has")
    size = given.kwargs.get("num_factors", takes["num_factors"].default)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # noqa: PTH123
            lines = {line.get("item", ""): line for line in csv.DictReader(file)}
    except OSError as error:
        raise InputError(f"--fix {path}: cannot be read ({error.strerror})") from None
    columns = given.table.columns
    found = [name for name in columns if name in lines]
    if not found:
        raise InputError(f"--fix {path}: has none of the items {listed(columns)} in a column item")
    slopes = ["discrimination"] if size == 1 else [f"slope_{q + 1}" for q in range(size)]
    weights, bias = np.full((size, len(columns)), np.nan), np.full(len(columns), np.nan)
    for name in found:
        place, line = columns.index(name), lines[name]

        def number(head: str, line: dict[str, Any] = line, name: str = name) -> float:
            try:
                return float(line[head])
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"--fix {path}: item {name!r} has no number in the column {head}"
                ) from None

        weights[:, place] = [number(head) for head in slopes]
        direct = size > 1 or line.get("intercept")
        bias[place] = number("intercept") if direct else -weights[0, place] * number("difficulty")
    return {"weights": weights, "bias": bias}


class Start:
    """Where a fit with known items starts: there, and at slopes of 1 of the others."""

    def __init__(self, known: dict[str, np.ndarray], table: Any) -> None:
        rate = (table.mask * table.values).sum(0) / np.maximum(table.mask.sum(0), 1)
        rate = rate.clip(0.01, 0.99)
        free = {"weights": np.ones_like(known["weights"]), "bias": np.log(rate / (1.0 - rate))}
        self.params = {x: np.where(np.isnan(v), free[x], v) for x, v in known.items()}

    def __call__(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {x: jnp.asarray(v, float) for x, v in self.params.items()}


def held_priors(known: dict[str, np.ndarray]) -> dict[str, Any]:
    """Arguments of the program that hold known parameters.

    >>> held_priors({"bias": np.array([0.5, np.nan])})["prior_bias"].loc.tolist()
    [0.5, 0.0]
    """
    return {
        f"prior_{site}": dist.Normal(
            np.nan_to_num(value).astype(np.float32),
            np.where(np.isnan(value), WIDE, NARROW).astype(np.float32),
        )
        for site, value in known.items()
    }
