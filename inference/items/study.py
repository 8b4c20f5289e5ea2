"""A fitted trait as tables: items, scores, information, fit, and differences between groups.

Of bits or of answers on a scale, on any number of factors; fit by item and of the whole model, and
groups, are for bits on nodes that rows share (`items`, `dif`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..evaluation.standard_errors import covariance_of
from ..methods.continuous.graded import columns_of
from ..methods.continuous.opening import Opened, open_columns
from ..methods.continuous.quadrature import QuadratureEM
from ..numerics.rotation import Rotated, rotate
from ..reading.anatomy import inspect
from ..reading.handlers import WEIGHTS
from ..reading.recognition.papers import Form
from ..types import Arguments
from .covariates import without
from .dif import FEWEST_ROWS, Answers, GroupStudy, group_lines, study_groups
from .dif import MOST_WORK as MOST_GROUP_WORK
from .statistics import MOST_FITTED, MOST_ITEMS, Values, item_fit, loadings, model_fit, reliability

PRINTED = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Values of a factor where the information is printed."""
POINTS = np.linspace(-4.0, 4.0, 33)
"""And where it is written."""


class ItemStudy(NamedTuple):
    """All of it: name of a column -> an entry for each item, row, or value of a factor."""

    items: dict[str, np.ndarray]
    scores: dict[str, np.ndarray]
    information: dict[str, np.ndarray]
    factors: dict[str, np.ndarray]  # their correlations, where a rotation makes some
    groups: dict[str, np.ndarray]  # tests by item
    measures: dict[str, float]
    lines: list[str]


class Labels(NamedTuple):
    """The groups of rows, by the column that says them, and the names of the items."""

    column: str
    of_rows: Sequence[str]
    items: Sequence[str]


def open_items(program: Any, arguments: Arguments) -> Opened | None:
    """A program that regresses bits or levels on factors, on its data; None for any other.

    >>> from latentbits.models import clipped_gaussian
    >>> open_items(clipped_gaussian, ((np.eye(4),), {"num_factors": 2})) is None
    True
    """
    latents = inspect(program, *arguments).latents
    if not latents or any(x.num_values is not None or x.odd for x in latents):
        return None
    opened = open_columns(program, *arguments, None)
    known = opened.known
    if known is None or known.form not in (Form.TRAIT, Form.GRADED, Form.GUESSING):
        return None
    return None if known.form is Form.TRAIT and set(known.kinds) != {"binary"} else opened


def rotated_loadings(opened: Opened, point: dict[str, np.ndarray], rotation: str) -> Rotated:
    """The standardised loadings of a fitted program, rotated; see `numerics.rotation`."""
    first = columns_of(_levels(opened)).first
    return rotate(loadings(values_of(opened, point)["weights"][:, first]), rotation)


def values_of(opened: Opened, point: dict[str, np.ndarray]) -> Values:
    """The numbers of the predictors, in float64."""
    known: Any = opened.known
    columns: Any = opened.columns
    values = known.read({x: np.asarray(v, np.float64) for x, v in point.items()})
    return values if columns is None else columns.read(values)


def _levels(opened: Opened) -> tuple[int, ...]:
    """The number of levels of each column."""
    known: Any = opened.known
    return known.kinds if known.form is Form.GRADED else (2,) * len(known.kinds)


def study_items(
    program: Any,
    point: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    arguments: Arguments,
    prior: bool = False,
    *,
    rotation: str = "none",
    posterior: Callable[[], Any] | None = None,
    labels: Labels | None = None,
    judge: bool = True,
) -> ItemStudy | None:
    """Items and scores of a fitted program; None unless it regresses bits or levels on factors.

    :param prior: the point is a maximum of the posterior, and so are its errors.
    :param rotation: of the loadings, one of `numerics.rotation.ROTATIONS`; scores and information
        are then those of the factors turned.
    :param posterior: gives the mean and covariance of the factors of each row where they are more
        than three.
    :param labels: test every item for a difference between these groups.
    :param judge: compute statistics of fit, whose degrees of freedom are those of free items and of
        rows without covariates or weights.
    """
    args, kwargs = arguments
    bare = without(kwargs)
    opened = open_items(program, (args, bare))
    if opened is None:
        return None
    found: Any = point
    known: Any = opened.known
    judge = judge and bare.keys() == kwargs.keys()
    values, levels = values_of(opened, point), _levels(opened)
    answers, shown = known.cells(program, (args, bare))
    table = Answers.of(answers, shown, levels)
    columns, weights = table.columns, values["weights"]
    first, many = columns.first, len(weights) > 1
    placed = None
    if len(weights) <= 3:
        placed = QuadratureEM(program).posterior(found, *args, **kwargs)
    elif posterior is not None:
        placed = posterior()
    standard = rotated_loadings(opened, point, rotation)
    covariance = None
    if errors and not many and sum(np.size(x) for x in point.values()) <= MOST_NUMBERS:
        names = dict.fromkeys([*known.shapes, *point])  # the form's first, as it places them
        ordered: Any = {name: np.asarray(point[name]) for name in names}
        how = {"prior": prior, "sandwich": WEIGHTS in kwargs}
        covariance = covariance_of(program, ordered, args, kwargs, **how)
        last = ["guessing"] if "guessing" in values else []
        others = [x for x in known.places if x not in ("weights", "guessing")]
        parts = [known.places[x].positions.ravel() for x in ("weights", *others, *last)]
        covariance = covariance[np.ix_(*[np.concatenate(parts)] * 2)]
    with np.errstate(invalid="ignore"):  # where the point is no maximum, an error is NaN
        items = level_items(table, values, covariance)
    if "discrimination_se" in items:
        items["discrimination_se"] = known.read(errors)["weights"][0]
    spread = known.read({x: np.asarray(v) for x, v in errors.items()}) if errors else {}
    for q in range(len(weights) if many else 0):
        items[f"slope_{q + 1}"] = weights[q, first]
        if errors:
            items[f"slope_{q + 1}_se"] = spread["weights"][q]
    for q, each in enumerate(standard.loadings, start=1):
        items[f"loading_{q}" if many else "loading"] = each
    items["communality"] = (loadings(weights[:, first]) ** 2).sum(0)
    plain = table.binary and "guessing" not in values and judge
    measures: dict[str, float] = {}
    lines: list[str] = []
    factors = [f"factor_{q + 1}" for q in range(len(weights))]
    turned = {}
    if rotation != "none" and many:
        lines.append(f"rotation  {rotation} of the loadings")
        turned = dict(zip(factors, standard.correlations, strict=True))
        for a, b in zip(*np.triu_indices(len(weights), 1), strict=True):
            measures[f"correlation_{a + 1}_{b + 1}"] = float(standard.correlations[a, b])
            if rotation == "oblimin":
                value = standard.correlations[a, b]
                lines.append(f"correlation {value:.3f} of factors {a + 1} and {b + 1}")
    total = (standard.loadings**2).sum(1)
    measures |= {f"ss_loadings_{q + 1}": float(x) for q, x in enumerate(total)}
    shares = ", ".join(f"{x:.3f} ({x / len(first):.1%} of the variance)" for x in total)
    lines.append(f"SS loadings {shares}")
    scores: dict[str, np.ndarray] = {}
    if placed is not None:
        turn = standard.turn
        mean = np.asarray(placed.mean, float) @ turn
        covariance = turn.T @ np.asarray(placed.covariance, float) @ turn
        deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        for q, name in enumerate(factors):
            scores |= {name: mean[:, q], f"{name}_se": deviation[:, q]}
        share = reliability(mean, covariance, kwargs.get(WEIGHTS))
        measures |= {f"reliability_{q + 1}": float(x) for q, x in enumerate(share)}
        lines.append(f"reliability {' '.join(f'{x:.3f}' for x in share)} (of the scores)")
    along = {**values, "weights": np.linalg.solve(standard.turn, weights)}
    curves = level_information(table, along, POINTS)
    for q, each in enumerate(curves, start=1):
        shown = [f"{np.interp(at, POINTS, each):.2f} at {at:+.0f}" for at in PRINTED]
        lines.append(f"information of factor {q}: {', '.join(shown)}")
    if len(weights) <= 3 and table.seen is None and plain and len(first) > 3:
        if len(first) <= MOST_FITTED:
            fit = item_fit(table.bits, values)
            items |= {"s_x2": fit.statistic, "df": fit.df, "p_value": fit.p_value}
        else:
            lines.append(f"item fit  not computed for more than {MOST_FITTED} items")
        lines += _fit_lines(table, values, measures)
    # The form has its columns by their number of levels, the table as the file has them.
    places = known.columns or ()
    order = np.arange(len(first))
    if len(places):
        order = np.lexsort([[x.column for x in places], [x.leaf for x in places]])
    groups = {}
    if labels is not None:
        study, said = _grouped(table, values, labels, order)
        lines += said
        groups = {} if study is None else study.items
    return ItemStudy(
        {x: v[order] for x, v in items.items()}, scores,
        dict(zip(factors, curves, strict=True)), turned, groups, measures, lines,
    )  # fmt: skip


def _fit_lines(table: Answers, values: Values, measures: dict[str, float]) -> list[str]:
    if table.bits.shape[1] > MOST_ITEMS:
        return [
            f"M2        not computed for more than {MOST_ITEMS} items: it takes all pairs of pairs"
        ]
    of = model_fit(table.bits, values)
    if of.df <= 0:
        return []
    names = {"df": "m2_df", "p_value": "m2_p_value"}
    measures |= {names.get(x, x): float(value) for x, value in of._asdict().items()}
    return [
        f"M2        {of.m2:.2f}, df {of.df}, p {of.p_value:.3g}",
        f"RMSEA     {of.rmsea:.4f} (90 %: {of.rmsea_low:.4f} to {of.rmsea_high:.4f}), "
        f"SRMSR {of.srmsr:.4f}, TLI {of.tli:.4f}, CFI {of.cfi:.4f}",
    ]


def _grouped(
    table: Answers, values: Values, labels: Labels, order: np.ndarray
) -> tuple[GroupStudy | None, list[str]]:
    """The tests by item, or the reason why there are none."""
    names, counts = np.unique(np.asarray(labels.of_rows), return_counts=True)
    why = None
    if len(values["weights"]) > 1 or "guessing" in values:
        why = "differences between groups are tested on one factor without guessing: --set "
        why += "num_factors=1"
    elif len(names) < 2:
        why = f"there is one group, {names[0]}"
    elif counts.min() < FEWEST_ROWS:
        least = names[int(np.argmin(counts))]
        why = f"{least} has {counts.min()} rows: a group wants {FEWEST_ROWS}"
    elif len(table.levels) < 3:
        why = "an item is tested against at least two others"
    elif len(table.bits) * table.bits.shape[1] ** 2 > MOST_GROUP_WORK:
        why = "not tested for so large a table: latentbits.inference.items.dif does it"
    if why is not None:
        return None, [f"groups    {labels.column}: {why}"]
    study = study_groups(table, labels.of_rows, values)
    items = {x: v[order] for x, v in study.items.items()}
    study = study._replace(items=items, anchors=study.anchors[order])
    return study, group_lines(study, labels.column, labels.items)


MOST_NUMBERS = 2_000
"""Parameters up to which their covariance is computed for the errors of thresholds."""


def level_items(
    table: Answers, values: Values, covariance: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Name of a column -> an entry for each item, NaN where an item has no such level.

    Difficulties are where the curves of the levels cross one half, :math:`-b_c / w`; their errors,
    by the delta method, are those of one factor.

    :param covariance: of weights, biases (or cutpoints, which are minus these) and asymptotes.

    >>> table = Answers.of(np.array([[0, 1], [2, 0], [1, 1]]), None, (3, 2))
    >>> values = {"weights": np.array([[2.0, 2.0, 1.0]]), "bias": np.array([2.0, -1.0, 0.5])}
    >>> items = level_items(table, values, None)
    >>> items["difficulty_2"].tolist()
    [0.5, nan]
    """
    columns, errors = table.columns, covariance is not None
    weights = values["weights"][:, columns.first]
    length = weights[0] if len(weights) == 1 else np.sqrt((weights**2).sum(0))
    items = {"discrimination": length}
    bias, slope, of = values["bias"], length[columns.column_of], columns.column_of
    spread = deviation = np.zeros(0)
    if covariance is not None:
        variance = np.diagonal(covariance)
        deviation = np.sqrt(np.where(variance == 0.0, np.nan, variance))  # zero: at a bound
        items["discrimination_se"] = deviation[: len(length)]
        place = weights.size + np.arange(len(columns.level))
        sign = 1.0 if table.binary else -1.0
        along = np.stack([bias / slope**2, -sign / slope], 1)
        each = np.stack(
            [np.stack([covariance[a, b] for b in (of, place)], -1) for a in (of, place)], -1
        )
        spread = np.sqrt(np.einsum("ck,ckm,cm->c", along, each, along))
    most = int(columns.level.max())
    for level in range(1, most + 1):
        here = columns.level == level
        name = "difficulty" if most == 1 else f"difficulty_{level}"
        own = deviation[weights.size :][: len(bias)] if errors else spread
        both = {name: (-bias / slope, spread), name.replace("difficulty", "intercept"): (bias, own)}
        for called, pair in both.items():
            for suffix, numbers in zip(("", "_se")[: 1 + errors], pair, strict=False):
                full = np.full(len(length), np.nan)
                full[of[here]] = numbers[here]
                items[called + suffix] = full
    if "guessing" in values:
        guess = values["guessing"]
        items["guessing"] = guess
        if errors:
            items["guessing_se"] = deviation[-len(guess) :]
    return items


def level_information(table: Answers, values: Values, points: np.ndarray) -> np.ndarray:
    """What the test tells of a factor at these values of it, the others zero, (Q, points).

    The expectation of the squared slope of each column's log probability.
    """
    columns, curves = table.columns, []
    for q in range(len(values["weights"])):
        weight = values["weights"][q]
        sigma = 0.5 + 0.5 * np.tanh(0.5 * (np.outer(points, weight) + values["bias"]))
        if "guessing" in values:
            prob = values["guessing"] + (1.0 - values["guessing"]) * sigma
            curves.append((weight**2 * sigma**2 * (1.0 - prob) / prob).sum(1))
            continue
        # Of level c the slope is w (1 − σ(A_c) − σ(A_{c+1})), of the lowest one −w σ(A_1).
        above = np.append(sigma[:, 1:], np.zeros((len(points), 1)), 1) * columns.inner
        slopes = (1.0 - sigma - above) * weight
        lowest = sigma[:, columns.first]
        low = (1.0 - lowest) * (lowest * weight[columns.first]) ** 2
        curves.append(((sigma - above) * slopes**2).sum(1) + low.sum(1))
    return np.stack(curves)
