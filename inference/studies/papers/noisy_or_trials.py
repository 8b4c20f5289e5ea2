"""What the experiments on noisy-OR networks share: recipes and a fit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpyro.distributions as dist
from jax import Array, lax, random
from latentbits.models import noisy_or_network

from ...methods.gibbs.gibbs_em import GibbsEM
from ...methods.gibbs.gibbs_search import GibbsSearch
from ...types import Params
from ..option import Option
from .batches import in_batches


class Recipe(NamedTuple):
    """How a network is learned.

    The paper's: blocks of 200 patterns, at most 15 sweeps, 10 epochs a layer, lower layers first.
    The improved one: the same learning in a population, where stuck units are seeded anew
    (`GibbsSearch`), then a few epochs of all layers together, with all patterns as one block, so
    that the prior counts once and not once in 200 patterns.
    """

    population: int = 0  # 0: the paper's recipe
    rounds: int = 6  # for each layer
    epochs: int = 5  # in a round
    max_sweeps: int = 15
    tuning: int = 10  # epochs at the end

    def em(self, **options: Any) -> GibbsEM:
        return GibbsEM(
            noisy_or_network,
            max_sweeps=self.max_sweeps,
            prior=dist.Gamma(1.0, 1.5),
            learn_from="block",  # as the paper has it, and by draws
            max_states=1,
            **options,
        )


PAPER = Recipe()
IMPROVED = Recipe(population=20, max_sweeps=5)


BLOCK = 200
"""Patterns that the paper learns from at a time: there are at least as many."""


def recipe_options(improved: Recipe, **smallest: Any) -> dict[str, Option]:
    """Which recipe, and its sizes; `smallest` as those of an `Option`, by name."""
    made = {
        "recipe": Option(
            "improved", "improved: a population whose stuck units are seeded anew",
            choices=("improved", "paper"),
        ),
        "population": Option(improved.population, "networks of the improved recipe", least=2),
        "rounds": Option(improved.rounds, "for each layer", least=1),
    }  # fmt: skip
    return {name: option._replace(smallest=smallest.get(name)) for name, option in made.items()}


def recipe_of(options: argparse.Namespace, improved: Recipe) -> Recipe:
    """The recipe that was asked for."""
    if options.recipe == "paper":
        return PAPER
    return improved._replace(population=options.population, rounds=options.rounds)


def run_trials(
    options: argparse.Namespace, improved: Recipe, trial: Callable[[Recipe, int, Array], Any]
) -> tuple[Any, dict[str, Any], dict[str, float]]:
    """All trials, what they were made with, and the seconds that they took."""
    one = partial(trial, recipe_of(options, improved), options.num_data)
    trials, seconds = in_batches(one, options.seed, options.trials, options.batch)
    return trials, {x: getattr(options, x) for x in ("trials", "num_data", "recipe")}, seconds


def fit(recipe: Recipe, key: Array, data: Array, layers: tuple[int, ...]) -> Params:
    """Learn a network; a pure function, so that trials can be mapped over."""
    key_fit, key_tune = random.split(key)
    if recipe.population == 0:
        em = recipe.em()
        state = em.init(key_fit, data, layers=layers)
        steps = len(layers) * em.epochs_per_layer
        return _repeat(em, state, steps, data, layers).params
    search = GibbsSearch(
        recipe.em(), population=recipe.population, rounds=recipe.rounds, epochs=recipe.epochs
    )
    searched = _repeat(
        search, search.init(key_fit, data, layers=layers), len(layers) * recipe.rounds, data, layers
    )
    em = recipe.em(schedule="joint", block_size=len(data))
    state = em.init(key_tune, data, layers=layers, init_params=searched.params)
    state = state._replace(bits=searched.bits[0])
    return _repeat(em, state, recipe.tuning, data, layers).params


def _repeat(method: Any, state: Any, steps: int, data: Array, layers: tuple[int, ...]) -> Any:
    def step(state: Any, _: None) -> tuple[Any, None]:
        return method.update(state, data, layers=layers)[0], None

    return lax.scan(step, state, None, length=steps)[0]
