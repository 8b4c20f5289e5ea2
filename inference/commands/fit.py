"""`latentbits fit MODEL --data FILE --out FIT.nc`: fit a program to a table, and keep the fit."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import random
from latentbits.models.data import InputError, Table

from ..files.catalogue import blame, find_method
from ..files.option import SEED, add
from ..files.output import FIGURES, as_csv, check_output, draw_picture, versions, write_whole
from ..items.classes import by_size, open_classes
from ..items.covariates import ARGUMENT, in_units, standardise
from ..items.fits import KIND, certified, read_rows
from ..items.known_items import Start, held_priors, read_items
from ..items.pictures import sheet
from ..numerics.rotation import ROTATIONS
from ..reading.anatomy import Anatomy, inspect
from ..reading.arguments import put
from ..reading.handlers import WEIGHTS
from ..reading.small_scales import ScaleWarning
from ..running.contract import Stop
from ..types import Arguments
from .options import METHOD, SIZE, Given, add_options, open_given, said, setting, tell
from .progress import stage

if TYPE_CHECKING:
    from ..comparison.recommend import Recommendation

DESCRIPTION = "Fit a program to a table. `transform`, `complete` and `score` use the fit."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    option = parser.add_argument
    parser.set_defaults(fractions=True)
    option("--plate", metavar="NAME", help="plate of the rows, if there are several")
    option("--out", metavar="FIT.nc", required=True, help="where the fit is kept")
    words = "most steps (default 500, or as many as the stages of the method have)"
    option("--steps", type=int, help=words)
    option("--starts", type=int, default=1, help="number of starts; the best is kept")
    option("--valid", metavar="FILE", help="rows not trained on: keep what predicts them best")
    words = "checks of --valid without gain before the end"
    option("--patience", type=int, default=20, help=words)
    words = "share of the cells of bits to hide from the fit, which is scored on them"
    option("--hold-out", type=float, metavar="SHARE", help=words)
    option(
        "--option", metavar="NAME=VALUE", type=setting, action="append", default=[],
        help="a setting of the method, such as learning_rate=0.1; may be repeated",
    )  # fmt: skip
    words = "save the state there; the same command goes on from it"
    option("--checkpoint", metavar="DIR", help=words)
    option("--budget", type=float, metavar="SECONDS", help="most seconds to run")
    words = "items with parameters that are known, as FIT_items.csv has them: these are not fitted"
    option("--fix", metavar="ITEMS.csv", help=words)
    words = "columns of numbers that the classes or the mean of the factor depend on"
    option("--covariates", metavar="A,B,…", type=_names, default=(), help=words)
    words = "columns that the classes predict, apart from the fit: corrected three steps"
    option("--outcomes", metavar="A,B,…", type=_names, default=(), help=words)
    words = "rotation of the loadings of several factors, and of their scores"
    option("--rotation", choices=ROTATIONS, default="none", help=words)
    words = (
        "draw the posterior of the parameters about the fit; `complete`, `score` average over it"
    )
    option("--posterior", action="store_true", help=words)
    words = "prove a bracket of the log likelihood, and write its widths beside the fit"
    option("--certify", action="store_true", help=words)
    words = "draw items, classes or parameters: .svg, .png or .pdf"
    option("--figure", metavar="FILE", help=words)
    option("--report", metavar="FILE.html", help="a page with tables, pictures, fit and warnings")
    words = "the columns are an image: draw parameters as such"
    option("--image", metavar="HxW", type=SIZE, help=words)
    add(parser, {"method": METHOD, "seed": SEED})


def _names(text: str) -> tuple[str, ...]:
    return tuple(x.strip() for x in text.split(","))


def _check_covariates(given: Given, contender: Any, namespace: argparse.Namespace) -> None:
    """What a regression on covariates does not go with."""
    takes = signature(given.program).parameters
    if "num_factors" in takes and given.kwargs.get("num_factors", takes["num_factors"].default) > 1:
        raise InputError("--covariates: wanted one factor, add --set num_factors=1")
    for option in ("valid", "posterior", "fix"):
        if getattr(namespace, option):
            raise InputError(f"--covariates goes without --{option}")
    if contender.kind != "point":
        raise InputError(f"--covariates: wanted a point estimate, and {contender.name} draws")


def _check_weights(namespace: argparse.Namespace, contender: Any, anatomy: Anatomy) -> None:
    """What weights that are no counts do not go with: they make no likelihood of rows."""
    wrong = "goes without weights that are no whole numbers"
    for option in ("valid", "posterior", "certify", "covariates", "group", "hold_out", "outcomes"):
        if getattr(namespace, option):
            raise InputError(f"--{option.replace('_', '-')} {wrong}")
    # NumPyro's own scale the latents of a row too.
    if contender.kind != "point" or (not contender.bespoke and anatomy.latents):
        raise InputError(f"--method {contender.name} {wrong}: leave it out")


class Fit(NamedTuple):
    """A table fitted: what the method found, and what is said of that."""

    given: Given  # with the priors of the recommendation
    choice: Recommendation
    facts: dict[str, Any]  # of the run
    groups: Any  # of the file
    lines: list[str]
    tables: dict[str, Any]


def fit_table(given: Given, namespace: argparse.Namespace, hidden: np.ndarray | None = None) -> Fit:
    """Fit a table by the recommended method, or by the one that is asked for.

    :param hidden: cells that the fit does not see and is scored on, (num_cells, 2).
    """
    from ..comparison.recommend import recommend
    from .fit_report import Written, held_out, report

    settings = dict(namespace.option)
    with blame(given.name):
        anatomy = inspect(given.program, (given.table.values,), given.kwargs, plate=namespace.plate)
    if namespace.rotation != "none":
        from ..items.study import open_items

        if open_items(given.program, ((given.table.values,), given.kwargs)) is None:
            raise InputError(
                f"--rotation {namespace.rotation}: {given.name} has no loadings of bits or levels "
                "on continuous factors to turn"
            )
    if namespace.plate is not None:
        settings.setdefault("plate", namespace.plate)
    known_items: dict[str, np.ndarray] = {}
    if namespace.fix is not None:
        known_items = read_items(namespace.fix, given)
        given = given._replace(kwargs={**given.kwargs, **held_priors(known_items)})
        settings |= {"prior": True, "start": Start(known_items, given.table)}
    choice = recommend(
        given.program, given.table, anatomy, given.kwargs,
        name=given.name, method=namespace.method, settings=settings,
    )  # fmt: skip
    contender, settings = choice.method, choice.settings
    if WEIGHTS in given.kwargs:
        _check_weights(namespace, contender, anatomy)
    if namespace.posterior and (contender.kind != "point" or namespace.rotation != "none"):
        raise InputError(
            f"--posterior: wanted a point estimate without --rotation, and {contender.name} "
            f"{'draws by itself' if contender.kind != 'point' else 'would be rotated'}"
        )
    if namespace.certify and contender.kind != "point":
        raise InputError(f"--certify: wanted a point estimate, and {contender.name} draws")
    if namespace.rotation != "none" and contender.kind != "point":
        raise InputError(
            f"--rotation {namespace.rotation}: {contender.name} draws, and a point estimate alone "
            "is rotated"
        )
    tell(choice.reasons)
    given = given._replace(kwargs=choice.kwargs)
    inner, covariates = given, given.kwargs.get(ARGUMENT)
    mean = deviation = np.zeros(0)
    if covariates is not None:
        _check_covariates(given, contender, namespace)
        standard, mean, deviation = standardise(covariates, namespace.covariates)
        inner = given._replace(kwargs={**given.kwargs, ARGUMENT: standard.astype(np.float32)})
    valid = None
    if namespace.valid is not None:
        valid = read_rows(
            namespace.valid, given.table.columns, _kind(given), namespace.key,
            said(namespace, guess=False), _levels(given),
        )  # fmt: skip
    params, facts = _fit(inner, contender, namespace, settings, valid)
    if covariates is not None:
        params = in_units(params, mean, deviation, given.kwargs.get("levels"))
    for site, value in known_items.items():
        params[site] = np.where(np.isnan(value), params[site], value)
    known = None
    if contender.kind == "point":
        known = open_classes(given.program, ((given.table.values,), given.kwargs))
    if known is not None:
        first = {x: np.asarray(v)[0, 0] for x, v in params.items()}
        largest_first = by_size(known, first, covariates)
        params = {x: v[None, None] for x, v in largest_first.items()}
    same_sign = given.kwargs.get("slope") == "equal" or covariates is not None
    if same_sign and "weights" in params and np.sum(params["weights"]) < 0:
        turned = {"weights", "effects"} & {*params}
        params = {x: -v if x in turned else v for x, v in params.items()}  # the same model
    groups = _groups(contender.kind, params, facts, given)
    if "posterior" in groups:  # print the draws that the file holds, brought together
        params = {x: groups["posterior"][x].values for x in params}
    lines, tables = report(
        given, contender.name, contender, params, facts, settings, namespace, known_items
    )
    if namespace.posterior and contender.kind == "point":
        more, shown = _posterior(given, params, facts.get("optima"), namespace)
        groups, lines = groups | more, [*lines, *shown]
    lines += [] if hidden is None else held_out(given, params, hidden)
    if namespace.certify:
        point: Any = {x: np.asarray(v)[0, 0] for x, v in params.items()}
        with stage("certificates"), blame(given.name):
            columns, proved = certified(given.program, point, given.table.values, given.kwargs)
        lines.append(proved)
        rows = given.table.ids or [str(i + 1) for i in range(len(columns["width"]))]
        tables["certificates"] = Written(columns, "row", rows, namespace.id or "row")
    return Fit(given, choice, facts, groups, lines, tables)


def main(namespace: argparse.Namespace) -> int:
    out = check_output("--out", namespace.out, (".nc",))
    figure = check_output("--figure", namespace.figure, FIGURES)
    page = check_output("--report", namespace.report, (".html",))
    namespace.drop = [*namespace.drop, *namespace.outcomes]
    given, hidden = hide(open_given(namespace, vary=True), namespace)
    if namespace.outcomes:
        from .fit_report import outcomes

        outcomes(given, namespace)  # before the work, since it may refuse
    if namespace.image is not None and math.prod(namespace.image) != len(given.table.columns):
        size, count = "x".join(map(str, namespace.image)), len(given.table.columns)
        raise InputError(f"--image {size}: the table has {count} columns")
    given, choice, facts, groups, lines, tables = fit_table(given, namespace, hidden)
    chosen = {x: getattr(namespace, x) for x in ("steps", "starts", "seed", "patience")}
    chosen |= {x: str(v) for x, v in choice.settings.items() if x != "start"}
    attrs = {
        "kind": KIND, "model": given.name, "method": choice.method.name, "cells": _kind(given),
        "sizes": json.dumps(_sizes(given.kwargs)),
        "columns": json.dumps(given.table.columns), "data": Path(namespace.data).name,
        "settings": json.dumps(chosen), "levels": json.dumps(_levels(given)),
        "missing": json.dumps(namespace.missing), "rotation": namespace.rotation,
        "covariates": json.dumps(namespace.covariates),
        "optima": json.dumps(_optima(facts.get("optima"))),
        "seconds": facts["seconds"], "compile_seconds": facts["compile_seconds"], **versions(),
    }  # fmt: skip

    import xarray as xr

    from ..files.arviz import save

    for what, table in tables.items():
        variables = {
            x: (table.dim, np.asarray(v)) for x, v in table.columns.items() if x != table.dim
        }
        groups[what] = xr.Dataset(variables, {table.dim: np.asarray(table.names)})
    for line in lines:
        print(line)
    save(groups, out, attrs, "--out")
    print(f"fit       {namespace.out}")
    for what, table in tables.items() if {"scores", "certificates"} & {*tables} else ():
        file = out.with_name(f"{out.stem}_{what}.csv")
        digits = 10 if what == "measures" else 6
        write_whole(file, as_csv({table.head: table.names, **table.columns}, digits), "--out")
        print(f"{what:9} {Path(namespace.out).with_name(file.name)}")
    if figure is not None or page is not None:
        from .fit_page import drawn, render

        pictures = drawn(tables, groups, given, namespace.image)
        if figure is not None and pictures:
            write_whole(figure, draw_picture(sheet, figure.suffix, pictures), "--figure")
        if figure is not None:
            nothing = f"none: nothing of {given.name} to draw"
            print(f"figure    {namespace.figure if pictures else nothing}")
        if page is not None:
            write_whole(page, render(lines, tables, pictures, attrs, out), "--report")
            print(f"report    {namespace.report}")
    if namespace.checkpoint is not None:
        print(f"state     {Path(namespace.checkpoint) / 'checkpoint.npz'}")
    return 130 if facts.get("stop") is Stop.INTERRUPTED else 0


STEPS = 500
"""Most steps of a method without stages."""


def hide(given: Given, namespace: argparse.Namespace) -> tuple[Given, np.ndarray | None]:
    """Some of the cells are masked, and these, (num_cells, 2)."""
    share = namespace.hold_out
    if share is None:
        return given, None
    other = {x.partition(",")[0] for x in given.table.coding} & {"real", "ordinal", "categorical"}
    if not 0.0 < share < 1.0 or namespace.valid is not None or other:
        raise InputError(f"--hold-out {share:g}: wanted a share between 0 and 1 of cells of bits, "
                         "without --valid")  # fmt: skip
    if "mask" not in signature(given.program).parameters:
        raise InputError(f"--hold-out {share:g}: {given.name} takes no argument mask")
    mask = given.table.mask
    hidden = mask & (np.random.default_rng(namespace.seed).random(mask.shape) < share)
    if not hidden.any() or (hidden == mask).all():
        raise InputError(f"--hold-out {share:g} leaves no cell, of {int(mask.sum())}")
    table = given.table._replace(mask=mask & ~hidden)
    kwargs = {**given.kwargs, "mask": table.mask}
    return given._replace(table=table, kwargs=kwargs), np.argwhere(hidden)


def _fit(
    given: Given, contender: Any, namespace: argparse.Namespace, settings: dict, valid: Table | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Parameters (chains, draws, ...), and what is to be said of the run."""
    from ..baselines.pacing import BudgetError
    from ..comparison.contenders import Limits
    from ..evaluation.evidence import likelihood
    from ..evaluation.validation import keep_best
    from ..items.estimates import finished
    from ..running.algorithm import Algorithm
    from ..running.restarts import Restarts
    from ..running.search import optima_of
    from .fit_report import stands_still

    key, data = random.key(namespace.seed), put(given.table.values)
    cls: Any = find_method(contender.name)
    if cls is None or not issubclass(cls, Algorithm):
        if valid is not None or settings:
            raise InputError(
                f"--valid, --option and --plate are for bespoke methods, not {contender.name}"
            )
        limits = Limits(namespace.budget)
        with stage(f"compiling and running {contender.name}"):
            try:
                arguments = ((data,), given.kwargs)
                draws, _ = contender.run(given.program, key, arguments, limits)
            except BudgetError as error:
                raise InputError(f"--budget {namespace.budget:g}: {error}") from None
        facts = draws._asdict()
        del facts["stop"]  # it says that there was no more time, not that anything converged
        if len(draws.starts) > 1:
            facts["optima"] = optima_of(np.tile(draws.starts, (3, 1)))
        if contender.kind != "point":
            facts["checks"] = _checks(contender.kind, draws, given.program, arguments)
        return draws.params, facts
    try:
        engine: Algorithm = cls(given.program, **settings)
    except TypeError as error:
        raise InputError(f"--option: {contender.name} does not take it ({error})") from None
    if namespace.steps is None:
        namespace.steps = STEPS
        if engine.staged:
            anatomy = inspect(given.program, (data,), given.kwargs, plate=engine.plate)
            namespace.steps = engine.default_steps(anatomy)
    if namespace.starts > 1:
        engine = _several(engine, namespace)
    if valid is not None:
        if not valid.mask.all() or not given.table.mask.all():
            raise InputError("--valid wants tables without missing cells")
        import time

        began = time.perf_counter()
        with stage(f"compiling and running {contender.name}"):
            best = keep_best(
                engine, key, namespace.steps, data, valid=put(valid.values),
                patience=namespace.patience, **given.kwargs,
            )  # fmt: skip
        score = best.score
        if not hasattr(engine, "log_likelihood"):  # in float64, as all that is printed
            evidence = likelihood(given.program, valid.values, **given.kwargs)(best.params)
            score = float(evidence.value.mean())
        facts = {"seconds": time.perf_counter() - began, "compile_seconds": float("nan"),
                 "reason": best.reason, "score": score, "step": best.step,
                 "losses": -best.scores}  # fmt: skip
        return {x: np.asarray(v)[None, None] for x, v in best.params.items()}, facts
    # The report says it in a line.
    unwarned = warnings.catch_warnings(action="ignore", category=ScaleWarning)
    with stage(f"compiling {contender.name}"), unwarned:
        result = engine.run(
            key, namespace.steps, data, tolerance=1e-7, budget=namespace.budget,
            checkpoint=namespace.checkpoint, **given.kwargs,
        )  # fmt: skip
    names = ("seconds", "compile_seconds", "reason", "losses", "stop", "optima")
    facts = {x: getattr(result, x) for x in names}
    if isinstance(engine, Restarts):
        facts["optima"] = optima_of(np.tile(np.asarray(result.state.losses), (3, 1)))
    params, ended = result.params, result.stop.converged or stands_still(result.losses)
    if contender.name == "EM" and ended and not {"plate", "start", "states"} & {*settings}:
        with stage("Newton's steps to the maximum"):
            params, facts["optima"], facts["left"] = finished(
                given.program, params, facts["optima"], given.table.values, given.kwargs,
                settings.get("prior") is True,
            )  # fmt: skip
    return {x: np.asarray(v)[None, None] for x, v in params.items()}, facts


def _checks(kind: str, draws: Any, program: Any, arguments: Arguments) -> dict[str, Any]:
    """What `compare` would ask of the draws, but for rows that are held out."""
    from ..comparison.checks import Status
    from ..comparison.judge import diagnosis

    num_rows, shape = len(arguments[0][0]), np.shape(next(iter(draws.params.values())))[:2]
    return {
        "kind": kind, "status": Status.of(draws.stop).value, "num_scored": math.prod(shape),
        **diagnosis(kind, draws, program, arguments, num_rows),
    }  # fmt: skip


def _posterior(
    given: Given, params: dict[str, np.ndarray], optima: Any, namespace: argparse.Namespace
) -> tuple[Any, list[str]]:
    """Groups of draws about a point estimate, and what is said of them."""
    from ..files.predictive import draws_groups
    from ..items.estimates import parameter_lines
    from ..posterior.draws import posterior_draws

    point = {x: np.asarray(v)[0, 0] for x, v in params.items()}
    with stage("posterior"), blame(given.name, "has no posterior about its fit"):
        found = posterior_draws(
            given.program, point, given.table.values, rng_key=random.key(namespace.seed),
            others=optima.others if optima else None,
            **({} if namespace.budget is None else {"budget": namespace.budget}), **given.kwargs,
        )  # fmt: skip
    arguments = (given.table.values,), given.kwargs
    groups = draws_groups(given.program, found, arguments, given.table.columns)
    draws = groups["posterior"]
    mean, deviation = ({x: f(draws[x].values, (0, 1)) for x in point} for f in (np.mean, np.std))
    lines = [f"posterior {found}", *(f"          {note}" for note in found.notes)]
    if math.isfinite(found.log_evidence):
        error = f" ± {found.evidence_error:.2g}"
        lines.append(f"evidence  {found.log_evidence:.2f}{error} (log, all equal modes)")
    said = parameter_lines(mean, deviation, given.table.columns, given.table.levels, "sd")
    return groups, [*lines, "", "posterior mean, and standard deviation as sd", *said, ""]


def _several(engine: Any, namespace: argparse.Namespace) -> Any:
    """The method from several starts: its own search with as many lineages, or plain restarts."""
    from copy import copy

    from ..running.restarts import Restarts

    search = engine.search
    if search is None or namespace.steps < search.least_steps or namespace.valid is not None:
        return Restarts(engine, namespace.starts)
    engine = copy(engine)
    object.__setattr__(engine, "search", replace(search, num_lineages=namespace.starts))
    return engine


def _groups(kind: str, params: dict, facts: dict, given: Given) -> Any:
    from ..files.arviz import dataset, point_groups, posterior_groups

    columns = given.table.columns
    groups = {"observed_data": dataset({"observed": given.table.values}, columns=columns)}
    if kind == "point":
        point = {x: np.asarray(v)[0, 0] for x, v in params.items()}
        return groups | point_groups(given.program, point, facts["losses"], columns=columns)
    stats = facts.get("stats", {})
    return groups | posterior_groups(
        given.program, params, stats, columns=columns,
        arguments=((given.table.values,), given.kwargs),
    )  # fmt: skip


def _optima(optima: Any) -> dict[str, Any]:
    """Where the starts ended, as a file keeps it; one start says nothing of others."""
    if optima is None:
        return {"starts": 1}
    return {
        "starts": len(optima.values), "losses": np.asarray(optima.values, float).tolist(),
        "agree": optima.agree, "alone": optima.alone, "probability_of_another": optima.better,
    }  # fmt: skip


def _sizes(kwargs: dict[str, Any]) -> dict[str, str]:
    """What a program must be called with again; priors are for fitting only."""
    left_out = ("mask", ARGUMENT, WEIGHTS)
    return {x: repr(v) for x, v in kwargs.items() if x not in left_out and x[:6] != "prior_"}


def _levels(given: Given) -> dict[str, Any]:
    """Names of the levels, by column that has such."""
    pairs = zip(given.table.columns, given.table.levels, strict=True)
    return {column: pair for column, pair in pairs if pair}


def _kind(given: Given) -> str:
    """What a cell is, as `read_rows` wants to know it."""
    words = {coding.partition(",")[0] for coding in given.table.coding}
    return next((x for x in ("real", "ordinal", "categorical") if x in words), "binary")
