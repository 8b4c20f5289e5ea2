"""One card a program: all that is known of it beyond what its form says.

A new program of ours is one card here. A user's own has none: it is compared on the user's table,
calibrated under its own priors, and shown in the figures that every program has.

Examples are drawn from the program itself at the parameters on its card, so that the truth is the
program's own; where a paper's data come from elsewhere, the card says how, and what their density
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

from . import truths
from .truths import Truth


class Setting(NamedTuple):
    """Data sets to calibrate on: how large they are, and where their parameters come from."""

    num_data: int
    num_features: int | None
    sizes: dict[str, Any]
    priors: dict[str, Any]  # narrower than the program's own, which stand otherwise


class Figure(NamedTuple):
    """A kind of figure of a report: a function of `report.figures` and its settings."""

    kind: str
    settings: Mapping[str, Any] = MappingProxyType({})


class Card(NamedTuple):
    """What is known of one program beyond its form."""

    method: str  # recommended; the paper of the traits has `BoundEM`
    small: Callable[[], Truth]  # a table for tests and notebooks
    paper: Callable[[], Truth]  # the paper's, at its size: what a comparison runs on
    calibrate: Callable[[], Setting]  # a prior computes when it is made
    dims: dict[str, tuple[str, ...]]  # of its sites, in ArviZ's files
    figures: tuple[Figure, ...] = ()
    more: Mapping[str, Callable[[], Truth]] = MappingProxyType({})  # other data of the paper's
    prior: bool = False  # whether its paper maximises the posterior of the parameters

    @property
    def examples(self) -> dict[str, Callable[[], Truth]]:
        """All of its data, by name, the default first."""
        return {"paper": self.paper, "small": self.small, **self.more}


UNIT, NARROW = dist.Normal(0.0, 1.0), dist.Normal(0.0, 0.5)
TRAIT = {"prior_weights": UNIT, "prior_bias": UNIT}
"""The programs' own priors are weak: most of their draws are data sets that say little (bits all
equal) or that no sampler gets through (noise near zero). A calibration's are narrower: fewer than
one table in a thousand has a constant column."""
FACTORS = {"weights": ("latent", "column"), "bias": ("column",)}
UNITS = {"weights": ("latent", "column"), "bias": ("latent",)}


def few_causes() -> Setting:
    """Two causes of real columns, for calibration."""
    return Setting(
        40, 5, {"num_causes": 2},
        {
            "prior_weights": dist.Normal(0.0, 3.0),
            "prior_noise": dist.Gamma(20.0, 20.0),
            "prior_sparsity": dist.Beta(6.0, 12.0),
        },
    )  # fmt: skip


CARDS: dict[str, Card] = {
    "latent_trait": Card(
        "QuadratureEM",
        lambda: truths.items(160, 12),
        truths.three_prototypes,
        lambda: Setting(
            150, 5, {"num_factors": 1}, {**TRAIT, "prior_guessing": dist.Beta(5.0, 17.0)}
        ),
        FACTORS,
        (Figure("maps"),),
    ),
    "mixed_trait": Card(
        "QuadratureEM",
        lambda: truths.mixed(160),
        lambda: truths.mixed(600),
        lambda: Setting(
            100, None, {"num_factors": 1, "kinds": ("real", "real", "binary", "binary", 3)},
            {**TRAIT, "prior_bias": NARROW, "prior_noise": dist.Gamma(10.0, 10.0)},
        ),
        FACTORS,
        (Figure("maps"),),
    ),
    "trait_mixture": Card(
        "QuadratureEM",
        lambda: truths.maps(120, 8, 2),
        lambda: truths.maps(600, 16, 3),
        lambda: Setting(60, 6, {"num_components": 2, "num_factors": 1}, {"prior_bias": NARROW}),
        {
            "mixing": ("component",),
            "weights": ("component", "latent", "column"),
            "bias": ("component", "column"),
        },
        prior=True,
    ),
    "graded_trait": Card(
        "QuadratureEM",
        lambda: truths.scales(160),
        lambda: truths.scales(1000),
        lambda: Setting(
            150, None, {"num_factors": 1, "levels": (2, 3, 3, 4, 4)},
            {"prior_weights": UNIT, "prior_cutpoints": UNIT},
        ),
        {"weights": ("latent", "column")},
    ),
    "clipped_gaussian": Card(
        "MomentInversion",
        lambda: truths.items(120, 8, prior_weights=dist.Normal(0.0, 1.5)),
        lambda: truths.clipped(1000),
        lambda: Setting(100, 6, {"num_factors": 1}, {**TRAIT, "prior_bias": NARROW}),
        FACTORS,
        (Figure("maps"), Figure("spectra"), Figure("morphs")),
    ),
    "binary_sparse_coding": Card(
        "TruncatedEM",
        truths.four_bars,
        truths.ten_bars,
        few_causes,
        {"weights": ("latent", "column")},
        (Figure("basis_functions"),),
        {"maximal": truths.maximal_bars},
    ),
    "sparse_coding": Card(
        "QuadratureEM",
        lambda: truths.three_strong_bars(160),
        lambda: truths.three_strong_bars(1000),
        few_causes,
        {"weights": ("latent", "column")},
        (Figure("basis_functions"),),
    ),
    "bernoulli_mixture": Card(
        "EM",
        # The cost of DiscreteGibbs, on a mixture, grows as the square of the rows.
        lambda: truths.clusters(120, 3, 12),
        lambda: truths.clusters(4000, 10, 64),
        lambda: Setting(80, 6, {"num_components": 2}, {"prior_probs": dist.Beta(3.0, 3.0)}),
        {"probs": ("component", "column"), "mixing": ("component",)},
        (
            Figure("basis_functions", {
                "site": "probs", "units": "components", "what": "patterns",
                "words": "Probabilities of a 1 in each component",
            }),
        ),
    ),
    "categorical_mixture": Card(
        "EM",
        lambda: truths.classes(120),
        lambda: truths.classes(1000),
        lambda: Setting(
            60, None, {"num_components": 2, "levels": (2, 3, 3, 4)}, {"prior_probs": 3.0}
        ),
        {"mixing": ("component",)},
    ),
    "bernoulli_product": Card(
        "MAP",
        lambda: truths.coins(160, 8),
        lambda: truths.coins(4000, 64),
        lambda: Setting(60, 4, {}, {"prior_probs": dist.Beta(5.0, 5.0)}),
        {"probs": ("column",)},
    ),
    "combination_machine": Card(
        "ExactGradient",
        truths.two_units,
        truths.ten_units,
        lambda: Setting(
            150, 6, {"num_causes": 2},
            {"prior_weights": dist.Normal(0.0, 0.7), "prior_bias": dist.Normal(-2.0, 0.5)},
        ),
        UNITS,
        (
            Figure("influences", {
                "push": "bits when it is on: black squares push towards 1, white ones towards 0",
            }),
        ),
    ),
    "real_combination_machine": Card(
        "ExactGradient",
        truths.two_units,
        truths.ten_real_units,
        lambda: Setting(60, 4, {"num_causes": 2}, TRAIT),
        UNITS,
        (
            Figure("influences", {
                "push": "columns when it is on: black squares push up, white ones down",
            }),
        ),
    ),
    "noisy_or_network": Card(
        "GibbsEM",
        truths.four_lines,
        truths.ten_lines,
        lambda: Setting(
            80, 6, {"layers": (2,)},
            {"prior_weights": dist.Gamma(2.0, 1.5), "prior_leak": dist.Gamma(8.0, 20.0)},
        ),
        {},
        (Figure("layers"),),
        {"patterns": truths.patterned_lines},
        prior=True,
    ),
}  # fmt: skip


def dims_of(name: str = "") -> dict[str, tuple[str, ...]]:
    """Dimensions of a program's sites; without a card, what most cards call a site of that name.

    >>> dims_of("combination_machine")["bias"], dims_of("my_program")["bias"]
    (('latent',), ('column',))
    """
    table: dict[str, tuple[str, ...]]
    table = {"observed": ("row", "column"), "mask": ("row", "column")}
    if name in CARDS:
        return {**table, **CARDS[name].dims}
    for card in CARDS.values():
        table = {**card.dims, **table}  # the first that has one
    return table


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
    import jax
    from jax import random

    from latentbits import models

    width = {} if made.num_features is None else {"num_features": made.num_features}

    def simulate(params: dict, key: Any) -> Any:
        program = handlers.seed(getattr(models, name), key)
        program = handlers.substitute(program, data=params)
        return program(num_data=num_data, **width, **made.sizes)

    return np.asarray(jax.jit(simulate)(made.params, random.key(seed)), np.float32)
