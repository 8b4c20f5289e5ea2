"""Small data sets from a program whose parameters are drawn from a stated prior: many at once."""

from __future__ import annotations

import inspect as python
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array, random
from latentbits.models.data import InputError
from numpyro import handlers

from ...types import Params
from ..cards import CARDS, Setting
from ..catalogue import blame, find_program
from ..output import words


class Trials(NamedTuple):
    """Parameters and data of every trial."""

    name: str
    model: Callable  # the program with the priors bound
    kwargs: dict[str, Any]  # its sizes
    truth: Params  # (num_trials, ...) by site
    data: Array  # (num_trials, num_data, num_features)
    setting: Setting


def setting_of(name: str, given: dict[str, Any]) -> Setting:
    """The setting of a program; `given` has sizes that a person wants otherwise."""
    setting = CARDS[name].calibrate() if name in CARDS else Setting(60, None, {}, {})
    given = dict(given)
    num_data = given.pop("num_data", setting.num_data)
    num_features = given.pop("num_features", setting.num_features)
    return setting._replace(
        num_data=num_data, num_features=num_features, sizes={**setting.sizes, **given}
    )


def simulate(name: str, setting: Setting, num_trials: int, rng_key: Array) -> Trials:
    """Draw parameters, then data, from the program itself.

    >>> drawn = simulate("bernoulli_product", setting_of("bernoulli_product", {}), 3, random.key(0))
    >>> drawn.data.shape, drawn.truth["probs"].shape
    ((3, 40, 4), (3, 4))
    """
    program = find_program(name)
    takes = python.signature(program).parameters
    wrong = [x for x in setting.sizes if x not in takes]
    if wrong and all(x.kind is not x.VAR_KEYWORD for x in takes.values()):
        raise InputError(f"--set {wrong[0]}: {name} takes {', '.join(takes)}")
    model = partial(program, **setting.priors) if setting.priors else program
    counts: dict[str, Any] = {"num_data": setting.num_data}
    if setting.num_features is not None:
        counts["num_features"] = setting.num_features

    def draw(key: Array) -> dict[str, Array]:
        with handlers.trace() as trace, handlers.seed(rng_seed=key):
            table = model(**counts, **setting.sizes)
        outside = {
            x: site["value"]
            for x, site in trace.items()
            if site["type"] == "sample" and not site["cond_indep_stack"]
        }
        if table is None:
            raise InputError(f"{name} returns no table: it must return what it simulates")
        return {**outside, "observed": table.astype(float)}

    with blame(name, "cannot be simulated"):
        sites = jax.jit(jax.vmap(draw))(random.split(rng_key, num_trials))
    data = sites.pop("observed")
    return Trials(name, model, setting.sizes, sites, data, setting)


def describe(model: Callable, setting: Setting) -> dict[str, str]:
    """The prior of each site, in words; those of the program where nothing narrower is bound."""
    takes = python.signature(model).parameters
    own = {x: p.default for x, p in takes.items() if x.startswith("prior_")}
    priors = {**own, **setting.priors}
    return {
        x.removeprefix("prior_"): "uniform on the simplex" if v is None else words(v)
        for x, v in priors.items()
        if v is not python.Parameter.empty
    }
