"""A small data set for every public program, with its truth: what a comparison runs on by default.

Each is drawn from the program itself at stated parameters, so that the truth is the program's own;
small enough that all methods, NUTS among them, are done in about a minute on two cores, most of
which is compiling (README has the times). Where the program's own prior is too wide for that, the
example has a narrower one, which the report shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist


class Example(NamedTuple):
    """A table, the sizes of its program, and what made it."""

    values: np.ndarray  # (num_data, num_features)
    sizes: dict[str, Any]  # keyword arguments of the program
    truth: dict[str, np.ndarray]  # parameters by site
    words: str
    image_shape: tuple[int, int] | None = None


NUM_DATA = 160
FEWER = {"bernoulli_mixture": 120, "clipped_gaussian": 120, "noisy_or_network": 120}
"""Rows where one is dear. The cost of DiscreteGibbs, on a mixture, grows as their square."""


def example(name: str, num_data: int | None = None) -> Example:
    """The default data of a public program; the same at every call.

    >>> found = example("latent_trait")
    >>> found.values.shape, sorted(found.truth)
    ((160, 12), ['bias', 'weights'])
    """
    rng = np.random.default_rng(0)
    num_data = FEWER.get(name, NUM_DATA) if num_data is None else num_data
    sizes, truth, words, shape = MAKERS[name](rng)
    return Example(_draw(name, sizes, truth, num_data), sizes, truth, words, shape)


def _draw(name: str, sizes: dict, truth: dict, num_data: int) -> np.ndarray:
    from jax import random
    from numpyro.handlers import seed, substitute

    from latentbits import models

    from ..numerics.compiling import once

    first = next(value for site, value in truth.items() if site in COLUMNS)
    columns = {} if name == "mixed_trait" else {"num_features": first.shape[-1]}

    def draw(truth: dict) -> Any:
        program = substitute(seed(getattr(models, name), random.key(1)), data=truth)
        return program(num_data=num_data, **columns, **sizes)

    return np.asarray(once(draw)(truth), np.float32)


COLUMNS = ("weights", "probs", "weights_1")
"""Sites whose last axis is that of the columns."""

Made = tuple[dict[str, Any], dict[str, np.ndarray], str, tuple[int, int] | None]


def _items(rng: np.random.Generator, count: int = 12) -> Made:
    weights = rng.normal(0.0, 1.2, (2, count))
    truth = {"weights": weights, "bias": rng.normal(0.0, 0.7, count)}
    return {"num_factors": 2}, truth, f"{count} items that two factors explain", None


def _few_items(rng: np.random.Generator) -> Made:
    sizes, truth, words, shape = _items(rng, 8)
    return {**sizes, "prior_weights": dist.Normal(0.0, 1.5)}, truth, words, shape


def _lines(side: int = 3) -> np.ndarray:
    """The outer rows and columns of a grid, (4, side²)."""
    from latentbits.models.data.strokes import stroke_masks

    return stroke_masks(side)[[0, side - 1, side, 2 * side - 1]]


def _bars(rng: np.random.Generator) -> Made:
    del rng
    truth = {"weights": 4.0 * _lines(), "noise": np.array(1.0), "sparsity": np.array(0.4)}
    return {"num_causes": 4}, truth, "four bars on a 3×3 grid, each in two images of five", (3, 3)


def _influences(rng: np.random.Generator) -> Made:
    weights = np.where(np.kron(np.eye(2), np.ones((1, 4))) > 0, 1.5, 0.0)
    weights = weights * rng.choice([-1.0, 1.0], weights.shape)
    truth = {"weights": weights, "bias": np.full(2, -3.4)}
    # The program's own priors are so wide that NUTS would be at it for minutes.
    sizes = {
        "num_causes": 2,
        "prior_weights": dist.Normal(0.0, 1.0),
        "prior_bias": dist.Normal(0.0, 5.0),
    }
    return sizes, truth, "8 columns that two hidden units push", (2, 4)


def _clusters(rng: np.random.Generator) -> Made:
    probs = np.where(rng.random((3, 12)) < 0.5, 0.9, 0.1)
    truth = {"mixing": np.array([0.5, 0.3, 0.2]), "probs": probs}
    return {"num_components": 3}, truth, "noisy copies of three 12-bit patterns", None


def _coins(rng: np.random.Generator) -> Made:
    return {}, {"probs": rng.uniform(0.1, 0.9, 8)}, "8 independent bits", None


def _strokes(rng: np.random.Generator) -> Made:
    del rng
    truth = {
        "weights_1": 3.0 * _lines(4),
        "leak_0": np.full(16, 0.02),
        "leak_1": np.array([0.3, 0.5, 0.5, 0.7]),
    }
    return (
        {"layers": (4,)},
        truth,
        "four lines on a 4×4 grid, more or less often",
        (4, 4),
    )


def _mixed(rng: np.random.Generator) -> Made:
    kinds = ("real", "real", "binary", "binary", "binary", "binary", 3)
    truth = {
        "weights": rng.normal(0.0, 1.2, (2, 8)),
        "bias": rng.normal(0.0, 0.5, 8),
        "noise": np.array([0.8, 1.0]),
    }
    # Two factors can take up two numbers whole: noise near nought is kept away by its prior.
    sizes = {
        "kinds": kinds,
        "num_factors": 2,
        "prior_weights": dist.Normal(0.0, 1.5),
        "prior_noise": dist.Gamma(10.0, 10.0),
    }
    return sizes, truth, "two numbers, four bits, one of three categories", None


MAKERS: dict[str, Callable[[np.random.Generator], Made]] = {
    "latent_trait": _items,
    "clipped_gaussian": _few_items,
    "mixed_trait": _mixed,
    "binary_sparse_coding": _bars,
    "combination_machine": _influences,
    "real_combination_machine": _influences,
    "bernoulli_mixture": _clusters,
    "bernoulli_product": _coins,
    "noisy_or_network": _strokes,
}
