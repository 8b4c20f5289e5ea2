"""What all contenders of a comparison share: the rows to learn from, and those that judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..evaluation.evidence import likelihood
from ..evaluation.prediction import ask, distinct
from ..methods.continuous.rules import default_nodes
from ..reading.anatomy import Anatomy, inspect
from ..types import Arguments
from .judge import Field
from .scoring import FRESH_EXACT, FRESH_INEXACT, Judges

BITS = {"BernoulliLogits", "BernoulliProbs", "NoisyOr", "ClippedNormal"}
"""Distributions of a bit."""
MOST_CELLS = 500
"""Held-out cells that are predicted from the rest of their rows, for calibration."""
NUM_NODES, COLUMNS = 9, 32
"""Of the quadrature that scores, in each dimension, where all rows differ and have so many columns
or more: as much time is spent on narrower ones."""


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
    most_train: int | None = None  # draws that training rows are scored by; None: all, to be saved


def enough_nodes(share: float, columns: int, anatomy: Anatomy) -> int | None:
    """Nodes in each dimension of the quadrature that scores; None where there is none.

    What repeated or short rows save is spent on them: few nodes are biased where weights are large
    (`default_nodes`).

    :param share: of the rows that differ.

    >>> from latentbits.models import latent_trait
    >>> parts = inspect(latent_trait, (np.eye(4),), {"num_factors": 2})
    >>> enough_nodes(1.0, 64, parts), enough_nodes(0.25, 64, parts), enough_nodes(1.0, 16, parts)
    (9, 18, 12)
    """
    count = sum(x.size for x in anatomy.latents if x.num_values is None)
    if not 0 < count <= 3:
        return None
    saved = max(COLUMNS / columns, 1.0) / share
    return min(default_nodes(count), int(NUM_NODES * saved ** (1.0 / count)))


def field_of(setup: Setup) -> Field:
    """The rows, the likelihood and the truth, ready for any contender."""
    model, values, mask, train, test, sizes, truth, fresh, density, num_fresh, few = setup
    known = arguments_of(values, mask, train, sizes)
    anatomy = inspect(model, *known)
    whole = np.concatenate([train, test])
    observed = np.ones(values.shape, bool) if mask is None else np.asarray(mask, bool)
    different, place = distinct(values[whole], observed[whole])
    args, kwargs = arguments_of(values, mask, whole[different], sizes)
    num_nodes = enough_nodes(len(different) / len(whole), values.shape[1], anatomy)
    rows = likelihood(model, *args, num_nodes=num_nodes, **kwargs)
    table, there = values[test], observed[test]
    listed = [float(x.num_values) ** x.size for x in anatomy.latents if x.num_values is not None]
    states = int(min(math.prod(listed), 1e9))
    judges = Judges(rows, place, len(train), states=states, most_train=few)
    if fresh is not None:
        wanted = FRESH_EXACT if rows.exact else FRESH_INEXACT
        wanted = wanted if num_fresh is None else min(wanted, num_fresh)
        new = np.asarray(fresh(wanted), np.float32)
        table, there = new[: len(train)], np.ones(new[: len(train)].shape, bool)
        first, fresh_place = distinct(new, np.ones(new.shape, bool))
        size, count = len(different), len(first)
        dealt = [first[np.arange(i, i + size) % count] for i in range(0, count, size)]
        parts = tuple(rows.rows._replace(leaves=(jnp.asarray(new[i]),)) for i in dealt)
        judges = judges._replace(fresh=parts, fresh_place=fresh_place)
    asked, bits = None, np.empty(0)
    if set(anatomy.likelihoods) <= BITS:
        cells = np.argwhere(there)
        cells = cells[np.random.default_rng(0).permutation(len(cells))[:MOST_CELLS]]
        asked = ask(model, table, cells, mask=there, num_nodes=num_nodes, **sizes)
        bits = table[cells[:, 0], cells[:, 1]]
    true, scores = None, None
    if fresh is not None and density is not None:
        scores = np.asarray(density(new), np.float64)
    if truth:
        true = {x: np.asarray(v) for x, v in truth.items()}
        scores = np.asarray(judges.test({x: v[None] for x, v in true.items()})[0][0], np.float64)
    return Field(model, judges, known, true, asked, bits, scores)
