"""What all contenders of a comparison share: the rows to learn from, and those that judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...evaluation.evidence import likelihood
from ...evaluation.prediction import ask
from ...reading.anatomy import inspect
from ...types import Arguments
from .judge import Field
from .scoring import FRESH_EXACT, FRESH_INEXACT, Judges

BITS = {"BernoulliLogits", "BernoulliProbs", "NoisyOr", "ClippedNormal"}
"""Distributions of a bit."""
MOST_CELLS = 500
"""Held-out cells that are predicted from the rest of their rows, for calibration."""
NUM_NODES = 9
"""Of the quadrature that scores, in each dimension; its error is in every row of the table."""


def arguments_of(
    values: np.ndarray, mask: Any, rows: np.ndarray, sizes: dict[str, Any]
) -> Arguments:
    """What the program is called with, to see these rows."""
    holes = {} if mask is None else {"mask": jnp.asarray(np.asarray(mask, bool)[rows])}
    return (jnp.asarray(values[rows]),), {**holes, **sizes}


class Setup(NamedTuple):
    """What a field is made from, in this process or another."""

    model: Callable
    values: np.ndarray
    mask: Any
    train: np.ndarray  # rows to learn from
    test: np.ndarray  # rows held out
    sizes: dict[str, Any]
    truth: dict[str, Any] | None
    fresh: Callable[[int], np.ndarray] | None  # so many rows of what made the data
    density: Callable[[np.ndarray], np.ndarray] | None  # and their log density
    num_fresh: int | None = None  # None: as many as a difference of 0.003 nats needs


def field_of(setup: Setup) -> Field:
    """The rows, the likelihood and the truth, ready for any contender."""
    model, values, mask, train, test, sizes, truth, fresh, density, num_fresh = setup
    known = arguments_of(values, mask, train, sizes)
    args, kwargs = arguments_of(values, mask, np.concatenate([train, test]), sizes)
    rows = likelihood(model, *args, num_nodes=NUM_NODES, **kwargs)
    seen = np.ones(values.shape, bool) if mask is None else np.asarray(mask, bool)
    table, there = values[test], seen[test]
    anatomy = inspect(model, *known)
    listed = [float(x.num_values) ** x.size for x in anatomy.latents if x.num_values is not None]
    judges = Judges(rows, len(train), states=int(min(math.prod(listed), 1e9)))
    if fresh is not None:
        count = len(train)
        wanted = FRESH_EXACT if rows.exact else FRESH_INEXACT
        parts = -(-(wanted if num_fresh is None else min(wanted, num_fresh)) // count)
        new = np.asarray(fresh(parts * count), np.float32)
        judges = judges._replace(fresh=tuple(
            rows.rows._replace(leaves=(jnp.asarray(new[i * count : (i + 1) * count]),))
            for i in range(parts)
        ))  # fmt: skip
        table, there = new[:count], np.ones((count, new.shape[1]), bool)
    asked, bits = None, np.empty(0)
    if set(anatomy.likelihoods) <= BITS:
        cells = np.argwhere(there)
        cells = cells[np.random.default_rng(0).permutation(len(cells))[:MOST_CELLS]]
        asked = ask(model, table, cells, mask=there, like=rows, num_nodes=NUM_NODES, **sizes)
        bits = table[cells[:, 0], cells[:, 1]]
    true, scores = None, None
    if fresh is not None and density is not None:
        scores = np.asarray(density(new), np.float64)
    if truth:
        true = {x: np.asarray(v) for x, v in truth.items()}
        scores = np.asarray(judges.test({x: v[None] for x, v in true.items()})[0][0], np.float64)
    return Field(model, judges, known, true, asked, bits, scores)
