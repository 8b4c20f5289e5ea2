"""A data set for every public program, with its truth: what a comparison runs on by default.

Each is drawn from the program itself at the parameters on its card (`studies.cards`), so that the
truth is the program's own; where a paper's data come from elsewhere, the card says how.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .cards import CARDS
from .truths import Truth


class Example(NamedTuple):
    """A table, the sizes of its program, and what made it."""

    values: np.ndarray  # (num_data, num_features)
    sizes: dict[str, Any]  # keyword arguments of the program
    truth: dict[str, np.ndarray]  # parameters by site
    words: str
    image_shape: tuple[int, int] | None = None


def example(name: str, num_data: int | None = None, *, paper: bool = False) -> Example:
    """The default data of a public program; the same at every call.

    :param paper: at the size of the program's paper.

    >>> found = example("latent_trait")
    >>> found.values.shape, sorted(found.truth)
    ((160, 12), ['bias', 'weights'])
    >>> example("latent_trait", paper=True).values.shape
    (600, 16)
    """
    made = CARDS[name].paper() if paper else CARDS[name].example()
    values = draw(name, made, 1, made.num_data if num_data is None else num_data)
    return Example(values, made.sizes, made.params, made.words, made.image_shape)


def fresh_rows(name: str, num_data: int, *, paper: bool = False) -> np.ndarray:
    """Rows that an example does not have, from what made it.

    >>> fresh_rows("bernoulli_product", 3).shape
    (3, 8)
    """
    made = CARDS[name].paper() if paper else CARDS[name].example()
    return draw(name, made, 2, num_data)


def draw(name: str, made: Truth, seed: int, num_data: int) -> np.ndarray:
    """Rows of what made an example: those of another seed are fresh."""
    if made.draw is not None:
        return np.asarray(made.draw(seed, num_data), np.float32)
    from jax import random
    from numpyro import handlers

    from latentbits import models

    from ..numerics.compiling import once

    width = {} if made.num_features is None else {"num_features": made.num_features}

    def simulate(params: dict) -> Any:
        program = handlers.seed(getattr(models, name), random.key(seed))
        program = handlers.substitute(program, data=params)
        return program(num_data=num_data, **width, **made.sizes)

    return np.asarray(once(simulate)(made.params), np.float32)
