"""Truths of any size of each program, from which a survey grows its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from inference.files import truths
from inference.files.truths import Truth, linear_causes, noisy_or_causes


class Growth(NamedTuple):
    """Truths of any size, and the size of the paper's example."""

    make: Callable[[int, int, int], Truth]  # of rows, columns and latents of a row
    rows: int
    columns: int
    latents: int | None  # None: it has none


def bars(num_data: int, count: int, causes: int) -> Truth:
    """As `ten_bars`, of any size: each on a fifth of the columns, two in an image."""
    rng = np.random.default_rng(0)
    signs = rng.permutation(np.resize([1.0, -1.0], causes))
    weights = 10.0 * signs[:, None] * _patches(rng, causes, count)
    words = f"{causes} patches of {count} columns, two in a row"
    return linear_causes(num_data, weights, 2.0, min(0.5, 2.0 / causes), words)


def strong_bars(num_data: int, count: int, causes: int) -> Truth:
    """As `three_strong_bars`, of any size."""
    weights = 4.0 * _patches(np.random.default_rng(0), causes, count)
    words = f"{causes} patches of {count} columns, of any strength"
    return linear_causes(num_data, weights, 1.0, 0.4, words)


def pushes(num_data: int, count: int, causes: int, real: bool = False) -> Truth:
    """As `two_units`, of any size: each pushes columns of its own and is on half of the time.

    :param real: whether the columns are.
    """
    rng = np.random.default_rng(0)
    owner = np.arange(max(count, causes)) % causes
    weights = np.zeros((causes, count))
    weights[owner, np.arange(len(owner)) % count] = 1.5
    weights *= rng.choice([-1.0, 1.0], weights.shape)
    each = weights**2 / 2.0 if real else np.log(np.cosh(weights))
    params = {"weights": weights, "bias": -each.sum(1)}
    words = f"{count} columns that {causes} hidden units push"
    return Truth(num_data, count, {"num_causes": causes}, params, words)


def blots(num_data: int, count: int, causes: int) -> Truth:
    """As `ten_lines`, of any size: each on a fifth of the columns, three in an image."""
    weights = 6.0 * _patches(np.random.default_rng(0), causes, count)
    words = f"{causes} patches of {count} columns, three in a row"
    return noisy_or_causes(num_data, weights, 0.005, min(0.5, 3.0 / causes), words)


def _patches(rng: np.random.Generator, causes: int, count: int) -> np.ndarray:
    patches = rng.random((causes, count)) < 0.2
    patches[np.arange(causes), np.arange(causes) % count] = True  # none is empty
    return patches


GROWTHS = {
    "latent_trait": Growth(truths.items, 600, 16, 2),
    "mixed_trait": Growth(truths.mixed, 600, 7, 2),
    "trait_mixture": Growth(truths.maps, 600, 16, 3),
    "graded_trait": Growth(truths.scales, 1000, 10, 1),
    "clipped_gaussian": Growth(truths.items, 1000, 64, 2),
    "binary_sparse_coding": Growth(bars, 1000, 25, 10),
    "sparse_coding": Growth(strong_bars, 1000, 9, 3),
    "bernoulli_mixture": Growth(
        lambda rows, columns, k: truths.clusters(rows, k, columns), 4000, 64, 10
    ),
    "categorical_mixture": Growth(truths.classes, 1000, 8, 3),
    "bernoulli_product": Growth(
        lambda rows, columns, _: truths.coins(rows, columns), 4000, 64, None
    ),
    "combination_machine": Growth(pushes, 4000, 64, 10),
    "real_combination_machine": Growth(partial(pushes, real=True), 4000, 64, 10),
    "noisy_or_network": Growth(blots, 1000, 25, 10),
}
"""By program."""
