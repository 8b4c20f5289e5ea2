"""Data sets of every public program, with their truth: what a comparison runs on by default.

Each is drawn from the program itself at the parameters on its card (`studies.cards`), so that the
truth is the program's own; where a paper's data come from elsewhere, the card says how, and what
their density is.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpyro import handlers

from .cards import CARDS
from .truths import Truth


class Example(NamedTuple):
    """A table, the sizes of its program, and what made it."""

    values: np.ndarray  # (num_data, num_features)
    sizes: dict[str, Any]  # keyword arguments of the program
    truth: dict[str, np.ndarray]  # parameters by site; empty where the program did not make it
    words: str
    image_shape: tuple[int, int] | None = None


def example(
    name: str, num_data: int | None = None, *, which: str = "paper", number: int = 0
) -> Example:
    """A data set of a public program; the same at every call.

    :param which: of the examples on its card.
    :param number: of the data set: others are drawn independently from the same truth.

    >>> data = example("latent_trait", which="small")
    >>> data.values.shape, sorted(data.truth)
    ((160, 12), ['bias', 'weights'])
    >>> example("latent_trait").values.shape
    (600, 16)
    """
    made = CARDS[name].examples[which]()
    count = made.num_data if num_data is None else num_data
    values = draw_rows(name, made, 2 * number + 1, count)
    return Example(values, made.sizes, made.params, made.words, made.image_shape)


def fresh_rows(name: str, which: str, number: int, num_data: int) -> np.ndarray:
    """Rows that a data set does not have, from what made it.

    >>> fresh_rows("bernoulli_product", "small", 0, 3).shape
    (3, 8)
    """
    return draw_rows(name, CARDS[name].examples[which](), 2 * number + 2, num_data)


def true_density(name: str, which: str, rows: np.ndarray) -> np.ndarray:
    """Log density of rows under what made an example, where that is not the program itself."""
    density = CARDS[name].examples[which]().density
    assert density is not None
    return density(rows)


def known_of(name: str, which: str, number: int) -> dict[str, Any]:
    """What is known of a data set: the arguments `truth`, `fresh` and `density` of `compare`."""
    made = CARDS[name].examples[which]()
    density = None if made.density is None else partial(true_density, name, which)
    fresh = partial(fresh_rows, name, which, number)
    return {"truth": made.params or None, "fresh": fresh, "density": density}


def draw_rows(name: str, made: Truth, seed: int, num_data: int) -> np.ndarray:
    """Rows of what made an example: those of another seed are fresh."""
    if made.draw is not None:
        return np.asarray(made.draw(seed, num_data), np.float32)
    from jax import random

    from latentbits import models

    from ..numerics.compiling import once

    width = {} if made.num_features is None else {"num_features": made.num_features}

    def simulate(params: dict, key: Any) -> Any:
        program = handlers.seed(getattr(models, name), key)
        program = handlers.substitute(program, data=params)
        return program(num_data=num_data, **width, **made.sizes)

    return np.asarray(once(simulate)(made.params, random.key(seed)), np.float32)
