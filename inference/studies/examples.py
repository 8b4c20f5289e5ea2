"""A small data set for every public program, with its truth: what a comparison runs on by default.

Each is drawn from the program itself at stated parameters, so that the truth is the program's own;
small enough that every method, NUTS among them, is done in about a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Example(NamedTuple):
    """A table, the sizes of its program, and what made it."""

    values: np.ndarray  # (num_data, num_features)
    sizes: dict[str, Any]  # keyword arguments of the program
    truth: dict[str, np.ndarray]  # parameters by site
    words: str
    image_shape: tuple[int, int] | None = None


NUM_DATA = 300


def example(name: str, num_data: int = NUM_DATA) -> Example:
    """The default data of a public program; the same at every call.

    >>> found = example("latent_trait")
    >>> found.values.shape, sorted(found.truth)
    ((300, 12), ['bias', 'weights'])
    """
    rng = np.random.default_rng(0)
    sizes, truth, words, shape = MAKERS[name](rng)
    return Example(_draw(name, sizes, truth, num_data), sizes, truth, words, shape)


def _draw(name: str, sizes: dict, truth: dict, num_data: int) -> np.ndarray:
    from jax import random
    from numpyro.handlers import seed, substitute

    import ppl_models

    program = substitute(seed(getattr(ppl_models, name), random.key(1)), data=truth)
    first = next(value for site, value in truth.items() if site in COLUMNS)
    columns = {} if name == "mixed_trait" else {"num_features": first.shape[-1]}
    return np.asarray(program(num_data=num_data, **columns, **sizes), np.float32)


COLUMNS = ("weights", "probs", "weights_1")
"""Sites whose last axis is that of the columns."""

Made = tuple[dict[str, Any], dict[str, np.ndarray], str, tuple[int, int] | None]


def _items(rng: np.random.Generator) -> Made:
    weights = rng.normal(0.0, 1.2, (2, 12))
    truth = {"weights": weights, "bias": rng.normal(0.0, 0.7, 12)}
    return {"num_factors": 2}, truth, "12 items that two factors explain", None


def _bars(rng: np.random.Generator) -> Made:
    del rng
    from ppl_models.data.strokes import stroke_masks

    truth = {
        "weights": 4.0 * stroke_masks(3),
        "noise": np.array(1.0),
        "sparsity": np.array(1 / 3),
    }
    return {"num_causes": 6}, truth, "bars on a 3×3 grid, two of six in an image", (3, 3)


def _influences(rng: np.random.Generator) -> Made:
    weights = np.where(np.kron(np.eye(3), np.ones((1, 3))) > 0, 1.5, 0.0)
    weights = weights * rng.choice([-1.0, 1.0], weights.shape)
    truth = {"weights": weights, "bias": np.full(3, -2.6)}
    return {"num_causes": 3}, truth, "9 bits that three hidden units push", (3, 3)


def _clusters(rng: np.random.Generator) -> Made:
    probs = np.where(rng.random((3, 12)) < 0.5, 0.9, 0.1)
    truth = {"mixing": np.array([0.5, 0.3, 0.2]), "probs": probs}
    return {"num_components": 3}, truth, "noisy copies of three 12-bit patterns", None


def _coins(rng: np.random.Generator) -> Made:
    return {}, {"probs": rng.uniform(0.1, 0.9, 8)}, "8 independent bits", None


def _strokes(rng: np.random.Generator) -> Made:
    del rng
    from ppl_models.data.strokes import stroke_masks

    pairs = np.zeros((2, 6))
    pairs[0, [0, 3]] = pairs[1, [2, 5]] = 3.0  # a cross of two lines each
    truth = {
        "weights_1": 3.0 * stroke_masks(3),
        "weights_2": pairs,
        "leak_0": np.full(9, 0.02),
        "leak_1": np.full(6, 0.15),
        "leak_2": np.full(2, 0.3),
    }
    return {"layers": (6, 2)}, truth, "lines on a 3×3 grid, some of them in pairs", (3, 3)


def _mixed(rng: np.random.Generator) -> Made:
    kinds = ("real", "real", "binary", "binary", "binary", "binary", 3, 3)
    truth = {
        "weights": rng.normal(0.0, 1.2, (2, 10)),
        "bias": rng.normal(0.0, 0.5, 10),
        "noise": np.array([0.5, 0.8]),
    }
    return {"kinds": kinds, "num_factors": 2}, truth, "two numbers, four bits, two categories", None


MAKERS: dict[str, Callable[[np.random.Generator], Made]] = {
    "latent_trait": _items,
    "clipped_gaussian": _items,
    "mixed_trait": _mixed,
    "binary_sparse_coding": _bars,
    "combination_machine": _influences,
    "real_combination_machine": _influences,
    "bernoulli_mixture": _clusters,
    "bernoulli_product": _coins,
    "noisy_or_network": _strokes,
}
