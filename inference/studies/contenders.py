"""Who takes part in a comparison: every bespoke method that admits the program, and the generic.

A contender runs on (model, key, args, kwargs) within a budget of seconds and hands out draws of the
parameters: one of them if it estimates a point, many if it samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from inference.algorithm import Algorithm
from inference.anatomy import Anatomy, ProgramError
from inference.baselines import Draws, discrete_gibbs, nuts, sample, svi
from inference.restarts import Restarts
from inference.rows import Arguments
from inference.studies.catalogue import methods

Kind = Literal["point", "sampler", "variational"]


class Limits(NamedTuple):
    """How long a contender may take."""

    seconds: float | None = None  # of running, compilation left out
    num_draws: int = 500  # of each of a sampler's four chains, after as many of warm-up


class Contender(NamedTuple):
    """One method, ready to run."""

    name: str
    bespoke: bool
    kind: Kind
    run: Callable[..., tuple[Draws, Algorithm | None]]


NUM_STEPS = 300
NUM_STARTS = 4
TOLERANCE = 1e-7
"""A point method stops when its loss changes by less than this share of itself."""

SINGLE = {"MomentInversion", "ProjectionPursuit", "SplittingEM", "GibbsEM", "BoundEM",
          "QuadratureEM", "MonteCarloEM"}  # fmt: skip
"""Methods that start where the data say, or choose among starts by themselves."""


def contenders(anatomy: Anatomy) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that apply, by name, and why the others do not."""
    found: dict[str, Contender] = {}
    refused: dict[str, str] = {}
    for name, method in methods().items():
        reason = method.admits(anatomy) if hasattr(method, "admits") else None
        if reason is not None:
            refused[name] = reason
        elif issubclass(method, Algorithm):
            found[name] = Contender(name, True, "point", _bespoke(name, method, anatomy))
        elif anatomy.binary:
            found[name] = Contender(name, True, "sampler", _with_nuts(method))
        else:
            refused[name] = "it samples binary latents"
    found["NUTS"] = Contender("NUTS", False, "sampler", _generic(nuts))
    for guide in ("mean_field", "low_rank", "flow"):
        found[f"SVI {guide}"] = Contender(
            f"SVI {guide}", False, "variational", _generic(svi, guide=guide)
        )
    found["MAP"] = Contender("MAP", False, "point", _generic(svi, guide="map"))
    found["DiscreteGibbs"] = Contender("DiscreteGibbs", False, "sampler", _generic(discrete_gibbs))
    return found, refused


def _bespoke(name: str, method: Any, anatomy: Anatomy) -> Callable:
    def run(model: Callable, key: Any, arguments: Arguments, limits: Limits) -> Any:
        args, kwargs = arguments
        settings: dict[str, Any] = {}
        if name == "TruncatedEM":
            most = anatomy.num_bits
            settings = {"max_active": min(3, most), "num_candidates": min(5, most)}
        engine: Algorithm = method(model, **settings)
        runner = engine if name in SINGLE else Restarts(engine, NUM_STARTS)
        steps = NUM_STEPS
        if hasattr(engine, "num_steps"):
            steps = engine.num_steps(*(kwargs[x] for x in ("num_components",) if x in kwargs))
        if name == "MomentInversion":
            steps = 1
        result = runner.run(
            key, steps, *args, progress_bar=False, tolerance=TOLERANCE, record=dict,
            budget=limits.seconds, **kwargs,
        )  # fmt: skip
        point = {site: np.asarray(value)[None, None] for site, value in result.params.items()}
        way = {site: np.asarray(value)[:, None] for site, value in result.history.items()}
        count = len(result.losses)
        clock = result.seconds * np.arange(1, count + 1) / count
        found = Draws(
            point, {}, np.asarray(result.losses), way, clock, result.seconds,
            result.compile_seconds, result.reason,
        )  # fmt: skip
        return found, engine

    return run


def _with_nuts(kernel: Any) -> Callable:
    """A Gibbs kernel for the bits, NUTS for the parameters, as blocks of NumPyro's Gibbs."""

    def run(model: Callable, key: Any, arguments: Arguments, limits: Limits) -> Any:
        args, kwargs = arguments
        import numpyro.infer

        from inference.anatomy import inspect

        if not hasattr(numpyro.infer, "Gibbs"):
            raise ProgramError("NumPyro has Gibbs from 0.22 on: this one is older")
        anatomy = inspect(model, args, kwargs)
        blocks = [
            (kernel(model), list(anatomy.names)),
            (numpyro.infer.NUTS(model, find_heuristic_step_size=False), None),
        ]
        engine = numpyro.infer.Gibbs(blocks)
        count = limits.num_draws
        return sample(engine, anatomy, key, args, kwargs, count, count, 4, limits.seconds), None

    return run


def _generic(function: Callable, **settings: Any) -> Callable:
    def run(model: Callable, key: Any, arguments: Arguments, limits: Limits) -> Any:
        args, kwargs = arguments
        more: dict[str, Any] = dict(settings)
        if function is not svi:
            more |= {"num_warmup": limits.num_draws, "num_samples": limits.num_draws}
        return function(model, key, *args, budget=limits.seconds, **more, **kwargs), None

    return run


def chosen(anatomy: Anatomy, wanted: list[str] | None) -> tuple[list[Contender], dict[str, str]]:
    """The contenders asked for, by default all; and why some do not apply."""
    found, refused = contenders(anatomy)
    if wanted is None:
        return list(found.values()), refused
    names = {name.lower().replace("_", " "): name for name in (*found, *refused)}
    picked, out = [], {}
    for word in wanted:
        name = names.get(word.strip().lower().replace("_", " "))
        if name is None:
            known = ", ".join(sorted(names.values(), key=str.lower))
            raise ValueError(f"there is no method {word.strip()!r}: choose from {known}")
        if name in refused:
            out[name] = refused[name]
        else:
            picked.append(found[name])
    return picked, out
