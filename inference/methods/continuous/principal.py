"""Where EM on a table of levels starts: principal components, and shares of the levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .curves import Columns
from .grid import BitTable
from .nodes import Values

LOGISTIC = 1.7
"""A logistic curve is about a normal one of this deviation."""
FEW_COLUMNS = 500
"""Up to which principal components are those of a matrix of correlations."""
FIRST_GUESS = 0.15
"""Of an asymptote."""


def principal(table: BitTable, num_factors: int, guessing: bool = False) -> Values:
    """Where EM starts: principal components, and shares of the levels."""
    columns = table.columns
    total = table.times.sum()
    weight = table.times.astype(table.bits.dtype)
    counts = np.asarray(table.bits.T @ weight, float)  # (C,)
    answered = np.full(len(columns.first), total)
    if table.seen is not None:
        answered = np.asarray(table.seen.T @ weight, float)
    above = np.cumsum(counts[::-1])[::-1]
    last = np.append(columns.first[1:], len(counts))
    above = above - np.append(above, 0.0)[last][columns.column_of]  # of this level or a higher one
    share = np.clip(above / answered[columns.column_of], 0.5 / total, 1.0 - 0.5 / total)
    loading, spread = _components(table, columns, counts, answered, num_factors)
    if columns.bits:
        if guessing:
            share = np.clip((share - FIRST_GUESS) / (1.0 - FIRST_GUESS), 0.1, 1.0 - 0.5 / total)
        weights = np.clip(loading * spread / (share * (1.0 - share)), -4.0, 4.0)
        values = {"weights": weights, "bias": np.log(share) - np.log1p(-share)}
        return values | ({"guessing": np.full(len(share), FIRST_GUESS)} if guessing else {})
    length = (loading**2).sum(0)
    loading = loading / np.sqrt(1.0 + np.maximum(length - 0.8, 0.0))
    # A factor of deviation w flattens the logistic curve: the marginal logits are smaller.
    flat = np.sqrt(1.0 - np.minimum(length, 0.8))
    weights = (LOGISTIC * loading / flat)[:, columns.column_of]
    bias = (np.log(share) - np.log1p(-share)) / flat[columns.column_of]
    return {"weights": weights, "bias": bias}


def _components(
    table: BitTable, columns: Columns, counts: np.ndarray, answered: np.ndarray, num_factors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Loadings (num_factors, P) of the levels as numbers, and the deviations of these (P,)."""
    numbers: Any = table.bits
    if not columns.bits:
        numbers = table.bits.copy()
        if table.sparse:
            numbers.data = numbers.data * columns.level[numbers.indices]
            numbers.indices = columns.column_of[numbers.indices].astype(numbers.indices.dtype)
            numbers._shape = table.seen.shape
        else:
            numbers = np.add.reduceat(numbers * columns.level, columns.first, axis=1)
    weight = table.times.astype(table.bits.dtype)[:, None]
    power = np.add.reduceat(counts * columns.level**2, columns.first) / answered
    mean = np.add.reduceat(counts * columns.level, columns.first) / answered
    spread = np.sqrt(np.maximum(power - mean**2, 1e-6))
    width = len(mean)
    count = min(num_factors, width)
    if width <= FEW_COLUMNS and not table.sparse:
        away = numbers - mean.astype(numbers.dtype)
        both = table.times.sum()
        if table.seen is not None:
            away = away * table.seen
            both = np.maximum(table.seen.T @ (table.seen * weight), 1.0)
        cover = (away.T @ (away * weight)).astype(float) / both
        size, vectors = np.linalg.eigh(cover / np.outer(spread, spread))
        size, vectors = size[::-1][:count], vectors[:, ::-1][:, :count]
    else:
        size, vectors = _leading(numbers, table.seen, weight, mean, spread, count)
    loadings = np.zeros((num_factors, width))
    loadings[:count] = (vectors * np.sqrt(np.maximum(size - 1.0, 0.1))).T
    return loadings, spread


def _leading(
    numbers: Any, mask: Any, weight: np.ndarray, mean: np.ndarray, spread: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The leading correlations of many columns by powers, a hole read as the mean of its column."""
    total = weight.sum()

    def apply(vectors: np.ndarray) -> np.ndarray:
        scaled = vectors / spread[:, None]
        some = scaled * mean[:, None]
        away = numbers @ scaled - (some.sum(0) if mask is None else mask @ some)
        away = away * weight
        back = numbers.T @ away
        back = back - mean[:, None] * (away.sum(0) if mask is None else mask.T @ away)
        return np.asarray(back, float) / (spread[:, None] * total)

    share = 1.0 if mask is None else float((mask.T @ weight).mean() / total)
    vectors = np.random.default_rng(0).normal(size=(len(mean), count))
    for _ in range(30):
        vectors = np.linalg.qr(apply(vectors))[0]
    size = np.einsum("pk,pk->k", vectors, apply(vectors))
    # Two columns are both observed in the square of that share of all rows.
    return 1.0 + np.maximum(size - share, 0.0) / share**2, vectors
