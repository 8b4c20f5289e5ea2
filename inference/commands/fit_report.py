"""What `latentbits fit` says of a fit, in lines, and the tables that it writes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from latentbits.models.data import InputError
from latentbits.models.data.encoding import Column
from latentbits.models.data.tables import read_cells

from ..files.catalogue import find_method
from ..items.classes import CLASS_TITLE, PROFILE_TITLE, open_classes, study_classes
from ..items.covariates import ARGUMENT, effects_table
from ..items.outcomes import TITLE as OUTCOME_TITLE
from ..items.outcomes import outcome_rows, three_step
from ..reading.anatomy import ProgramError
from ..reading.small_scales import at_floor, lost_digits
from ..running.contract import Stop
from .options import Given
from .progress import stage

MAXIMA = ("QuadratureEM", "EM", "SplittingEM")
"""Methods whose fixed points are maxima of the marginal likelihood that `standard_errors` takes."""
ITEM_TITLE = "Items: P = logistic(discrimination · factor + intercept); se: standard error"
GROUP_TITLE = "Differences between groups"
SHARP = 8.0
"""A discrimination, of a loading of 0.98."""


LEFT = 1e-3
"""Nats below the maximum that a fit may print as converged."""
STILL = 1e-6
"""Share of the loss by which it may fall over an eighth of the steps and still stand still."""


class Written(NamedTuple):
    """A table for the files: its columns, what its rows are called, and each of their names."""

    columns: dict[str, Any]
    dim: str
    names: Sequence[Any]
    head: str  # of the names, in a CSV file
    title: str = ""  # where a page shows it


def report(
    given: Given,
    name: str,
    contender: Any,
    params: dict,
    facts: dict,
    settings: dict,
    namespace: argparse.Namespace,
    known_items: dict[str, np.ndarray] | None = None,
) -> tuple[list[str], dict[str, Written]]:
    """What was estimated, how well it explains the rows, and how far it can be trusted; and tables
    of measures, and of items and scores where the program has such.

    :param known_items: by site, parameters that were not fitted; NaN where they were.
    """
    from ..items.classes import table_of
    from ..items.estimates import bound_lines, errors_of, measure_fit, parameter_lines, starts_lines

    values, columns = given.table.values, given.table.columns
    codings = {x: given.table.coding.count(x) for x in dict.fromkeys(given.table.coding)}
    coded = "; ".join(f"{count} {coding}" for coding, count in codings.items())
    lines = [
        f"model     {given.name}, {name}",
        f"rows      {len(values)}, {len(columns)} columns ({coded})",
        f"stopped   {facts['reason']}",
    ]
    stop = facts.get("stop")
    if "score" in facts:
        lines.append(f"valid     {facts['score']:.4f} nats per row after {facts['step']} steps")
    if stop is Stop.INTERRUPTED:
        lines.append("kept      the parameters of the last step, which are no maximum")
    point = {x: np.asarray(v)[-1, -1] for x, v in params.items()}
    args: Any = (given.program, point, (values,), given.kwargs, settings.get("plate"))
    problem = at_floor(*args) or partial(lost_digits, columns=columns)(*args)
    lines += [f"warning   {problem}"] if problem else []
    if contender.kind != "point":
        flat = {x: np.asarray(v).reshape((-1, *np.shape(v)[2:])) for x, v in params.items()}
        mean, deviation = ({x: f(v, axis=0) for x, v in flat.items()} for f in (np.mean, np.std))
        said = parameter_lines(mean, deviation, columns, given.table.levels, "sd")
        return [*lines, *check_lines(facts["checks"]), "", *_spread(name), *said, ""], {}
    lines += [*starts_lines(facts.get("optima")), f"converged {_converged(stop, facts)}"]
    if settings.get("prior") is True:
        words = "of the posterior, with the program's priors (--option prior=False: without)"
        lines.append(f"maximum   {words}")
    errors: dict[str, np.ndarray] = {}
    measures: dict[str, float] = {}
    words, bounds, prior = "", (), bool(settings.get("prior"))
    known_items = known_items or {}
    if stop is not Stop.INTERRUPTED:
        with stage("log likelihood"):
            try:
                fit = measure_fit(given.program, point, values, given.kwargs)
                held = sum(int(np.isfinite(x).sum()) for x in known_items.values())
                fit = fit._replace(num_free=fit.num_free - held)
            except ProgramError as error:
                lines.append(f"log likelihood not computed: {error}")
            else:
                spread = f" ± {fit.error:.2g}" if fit.error > 0.005 else ""
                mode = ", at the mode of the posterior" * prior
                lines += [
                    f"log likelihood {fit.log_likelihood:.3f}{spread} ({fit.how})",
                    f"AIC       {fit.aic:.2f} ({fit.num_free} free parameters{mode})",
                    f"BIC       {fit.bic:.2f} ({round(fit.num_rows, 3):.10g} rows{mode})",
                    f"SABIC     {fit.sabic:.2f}, CAIC {fit.caic:.2f}",
                ]
                measures = {
                    "log_likelihood": fit.log_likelihood, "free_parameters": fit.num_free,
                    "rows": fit.num_rows, "aic": fit.aic, "bic": fit.bic,
                    "sabic": fit.sabic, "caic": fit.caic,
                }  # fmt: skip
                words = "none: the fit has not converged, add --steps 5000"
                if name not in MAXIMA:
                    words = f"none: {name} gives no maximum of the likelihood, as --method "
                    words += f"{' or '.join(MAXIMA)} does"
                if name in MAXIMA and (stop is not Stop.STEPS or stands_still(facts["losses"])):
                    with stage("standard errors"):
                        errors, words, bounds = errors_of(
                            given.program, point, values, given.kwargs, fit.num_free, prior
                        )
    for site in {*errors} & {*known_items}:
        errors[site] = np.where(np.isnan(known_items[site]), errors[site], np.nan)
    lines += [f"errors    {words}"] if words else []
    study, classes = None, None
    if stop is not Stop.INTERRUPTED and not settings.get("plate"):
        with stage("items"):
            study = _items(given, name, point, errors, prior, namespace)
            classes = _classes(given, point, errors, measures.get("free_parameters", 0), bounds)
    if study is not None and known_items:
        held_at = np.isfinite(known_items["bias"])
        for head in [x for x in study.items if x.endswith("_se")]:
            study.items[head] = np.where(held_at, np.nan, study.items[head])
    lines += [] if classes is not None else bound_lines(bounds, point, columns)
    lines += study.lines + sharp_items(study.items, columns) if study is not None else []
    if not namespace.posterior:
        lines.append("draws     none in this file: --posterior adds draws of the parameters")
    tables: dict[str, Written] = {}
    if classes is not None:
        said = classes.lines
        measures |= classes.measures
        tables = _class_tables(classes, given, namespace)
    elif study is None:
        said = parameter_lines(point, errors, columns, given.table.levels)
    else:
        said = [ITEM_TITLE, *table_of({"item": columns, **study.items})]
        if study.groups:
            said += ["", GROUP_TITLE, *table_of({"item": columns, **study.groups})]
        measures |= study.measures
        tables = _tables(study, given, namespace)
    if "effects" in point and ARGUMENT in given.kwargs:
        title, effects = effects_table(point, errors, namespace.covariates)
        said = [*said, "", title, *table_of(effects)]
        lines_of = range(1, len(effects["effect"]) + 1)
        tables["effects"] = Written(effects, "line", list(lines_of), "line", title)
    if namespace.outcomes and classes is not None:
        rows = [
            row for name, (values, names) in outcomes(given, namespace).items()
            for row in outcome_rows(name, three_step(classes.posterior, values, bool(names)), names)
        ]  # fmt: skip
        found = {x: np.array([row[x] for row in rows]) for x in rows[0]}
        said, lines_of = [*said, "", OUTCOME_TITLE, *table_of(found)], range(1, len(rows) + 1)
        tables["outcomes"] = Written(found, "line", list(lines_of), "line", OUTCOME_TITLE)
    if measures:
        value = {"value": list(measures.values())}
        tables["measures"] = Written(value, "measure", list(measures), "measure")
    return [*lines, "", *said, ""], tables


def check_lines(row: dict[str, Any]) -> list[str]:
    """What shows whether draws can be trusted, and the verdict of `compare` on that.

    >>> print("\\n".join(check_lines({"kind": "variational", "pareto_k": 1.2})))
    k̂         1.20 of the guide's draws, weighed by the program
    checks    fails its checks (Pareto k̂ 1.20)
    """
    from ..comparison.checks import uncertainty

    lines = []
    if "rhat" in row:
        lines = [
            f"R̂         {row['rhat']:.3f} of the log joint, {row['rhat_parameters']:.3f} of the "
            "parameters",
            f"effective {row['ess_bulk']:.0f} draws of the log joint, {row['ess_tail']:.0f} of its "
            f"tails; {row['divergences'] or 0} divergences",
        ]
    if "pareto_k" in row:
        lines = [f"k̂         {row['pareto_k']:.2f} of the guide's draws, weighed by the program"]
    found = ", ".join(uncertainty(row)[1])
    return [*lines, f"checks    {f'fails its checks ({found})' if found else 'its checks pass'}"]


def _spread(name: str) -> list[str]:
    """What the mean and the deviation of the draws of a method are."""
    if not name.startswith("SVI"):
        return ["posterior mean, and standard deviation as sd"]
    lines = ["mean of the guide, and its standard deviation as sd: no standard error"]
    if name == "SVI mean_field":
        lines.append("(the guide takes all unknowns for independent: where they are not, its sd is "
                     "smaller than that of the posterior)")  # fmt: skip
    return lines


def sharp_items(items: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """A line on items that are almost steps: more factors than a table has make them.

    >>> print(sharp_items({"discrimination": np.array([1.0, 30.0])}, ["a", "b"])[0])
    warning   the slope of b grows without end: set fewer factors, or --option prior=True
    """
    sharp = [x for x, slope in zip(columns, items["discrimination"], strict=True) if slope > SHARP]
    listed = ", ".join(sharp[:12]) + (", …" if len(sharp) > 12 else "")
    words = f"the slope of {listed} grows without end: set fewer factors, or --option prior=True"
    return [f"warning   {words}"] if sharp else []


def held_out(given: Given, params: dict, cells: np.ndarray) -> list[str]:
    """How well the cells that the fit did not see are predicted, in a line."""
    from ..evaluation.prediction import cell_probabilities

    draws: Any = {x: np.asarray(v).reshape((-1, *np.shape(v)[2:])) for x, v in params.items()}
    values, mask = given.table.values, given.table.mask
    kwargs = {x: v for x, v in given.kwargs.items() if x != "mask"}
    with stage("cells held out"):
        probs = cell_probabilities(given.program, draws, values, cells, mask=mask, **kwargs)
    truth = values[tuple(cells.T)] > 0
    log_probs = np.log(np.where(truth, probs, 1.0 - probs).clip(1e-12))
    right = float(np.mean((probs > 0.5) == truth))
    share = np.where(mask, values, 0.0).sum(0) / np.maximum(mask.sum(0), 1)
    smooth = ((mask.sum(0) * share + 0.5) / (mask.sum(0) + 1.0))[cells[:, 1]]
    base = np.log(np.where(truth, smooth, 1.0 - smooth)).mean()
    said = f"{log_probs.mean():.4f} nats per cell, {right:.1%} right"
    return [f"held out  {len(cells)} cells: {said} "
            f"(by the share of ones in its column: {base:.4f})", ""]  # fmt: skip


def _items(
    given: Given,
    name: str,
    point: dict,
    errors: dict,
    prior: bool,
    namespace: argparse.Namespace,
) -> Any:
    from ..items.study import Labels, study_items

    values, table = given.table.values, given.table
    method: Any = find_method(name)

    def posterior() -> Any:
        return method(given.program).posterior(point, values, **given.kwargs)

    labels, kwargs, equal = None, dict(given.kwargs), given.kwargs.get("slope") == "equal"
    if equal:  # the same program with a slope for each item, and these alike
        del kwargs["slope"]
        shape = (*np.shape(point["weights"])[:1], values.shape[1])
        point = {**point, "weights": np.broadcast_to(point["weights"], shape)}
    if table.groups is not None:
        labels = Labels(namespace.group, table.groups, table.columns)
    study = study_items(
        given.program, point, {} if equal else errors, ((values,), kwargs), prior,
        rotation=namespace.rotation, judge=not equal,
        posterior=posterior if hasattr(method, "posterior") else None, labels=labels,
    )  # fmt: skip
    if equal and errors and study is not None:
        spread = np.broadcast_to(np.ravel(errors["weights"])[:1], np.shape(errors["bias"]))
        of = {"discrimination": spread, "intercept": errors["bias"]}
        each = {x: {x: v} | ({f"{x}_se": of[x]} if x in of else {}) for x, v in study.items.items()}
        return study._replace(items={x: v for part in each.values() for x, v in part.items()})
    return study


def _classes(given: Given, point: dict, errors: dict, num_free: float, bounds: Any) -> Any:
    table = given.table
    called = {"words": ("no", "yes"), "-1/+1": ("-1", "1")}
    own = table.levels or ((),) * len(table.columns)
    levels = [x or called.get(y, ()) for x, y in zip(own, table.coding, strict=True)]
    arguments = ((table.values,), given.kwargs)
    return study_classes(
        given.program, point, errors, arguments, table.columns, levels, int(num_free), bounds
    )


def outcomes(given: Given, namespace: argparse.Namespace) -> dict[str, tuple]:
    """Columns that classes are to predict, and names of categories: none of numbers."""
    if open_classes(given.program, ((given.table.values,), given.kwargs)) is None:
        raise InputError(f"--outcomes: {given.name} has no classes to predict them")
    cells = read_cells(namespace.data, header=namespace.header, key=namespace.key, kind="real")
    if len(cells.cells) != len(given.table.values):
        raise InputError("--outcomes: wanted one row for each person, without --weights or --long")
    found = {}
    for name in namespace.outcomes:
        column = Column.of(cells, cells.columns.index(name))
        real = ~np.isin(column.words, namespace.missing)
        names, place = np.unique(np.array(column.words)[real], return_inverse=True)
        if len(names) < 2:
            raise InputError(f"--outcomes: {name} has one value, and classes cannot differ in it")
        numbers = len(names) > 2 and bool((column.sorts == "number")[real].all())
        within = np.full(len(real), np.nan)
        within[real] = column.numbers[real] if numbers else place
        found[name] = column.spread(within, np.nan), () if numbers else tuple(names)
    return found


def _class_tables(study: Any, given: Given, namespace: argparse.Namespace) -> dict[str, Written]:
    size = len(study.classes["share"])
    rows = given.table.ids or [str(i + 1) for i in range(len(given.table.values))]
    lines = list(range(1, len(study.profile["item"]) + 1))
    return {
        "classes": Written(study.classes, "class", list(range(1, size + 1)), "class", CLASS_TITLE),
        "profile": Written(study.profile, "line", lines, "line", PROFILE_TITLE),
        "scores": Written(study.scores, "row", rows, namespace.id or "row"),
    }


def _tables(study: Any, given: Given, namespace: argparse.Namespace) -> dict[str, Written]:
    from ..items.study import POINTS

    columns = given.table.columns
    rows = given.table.ids or [str(i + 1) for i in range(len(given.table.values))]
    tables = {
        "items": Written(study.items, "column", columns, "item", ITEM_TITLE),
        "scores": Written(study.scores, "row", rows, namespace.id or "row"),
        "information": Written(study.information, "point", POINTS.tolist(), "at"),
        "factors": Written(study.factors, "factor", list(study.factors), "factor"),
        "groups": Written(study.groups, "column", columns, "item", GROUP_TITLE),
    }
    return {name: table for name, table in tables.items() if table.columns}


def _converged(stop: Stop | None, facts: dict) -> str:
    if stop is None:
        return "not tested: " + facts["reason"]
    if (left := facts.get("left", 0.0)) > LEFT:
        return f"no: {left:.2g} nats are left to gain by Newton's method, more --steps"
    if stop.converged or len(facts["losses"]) == 1:
        return "yes"
    if stop is Stop.STEPS and stands_still(facts["losses"]):
        return "yes: the loss has stood still, up to its rounding"
    return "no: more --steps, or a longer --budget" if stop is not Stop.INTERRUPTED else "no"


def stands_still(losses: Any) -> bool:
    """Whether the loss has not fallen over the last quarter of the steps, whatever its rounding.

    Where parameters are on their way to a bound, digits are lost from step to step that the mean
    over many has, and no step is seen to be the last.

    >>> noise = 3e-4 * np.random.default_rng(0).normal(size=100)
    >>> stands_still(293.7 + noise), stands_still(293.7 + noise + np.geomspace(30, 0.3, 100))
    (True, False)
    """
    last = np.asarray(losses, np.float64)[-max(len(losses) // 4, 20) :]
    before, after = (x.mean() for x in np.array_split(last, 2))
    return len(losses) >= 40 and bool(before - after <= STILL * abs(after))
