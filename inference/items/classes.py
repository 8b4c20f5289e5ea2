"""Latent classes as analysts print them: shares, item probabilities, sizes, fit, memberships.

Of a program of the form of `bernoulli_mixture` or `categorical_mixture`, under whatever names.
Classes are numbered from 1, the largest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..evaluation.symmetry import LABELLED, form_of
from ..files.output import align
from ..reading.handlers import WEIGHTS
from ..reading.recognition.papers import Known
from ..types import Arguments
from .covariates import ARGUMENT, class_shares, reorder, without


class ClassStudy(NamedTuple):
    """Classes of a fitted program."""

    classes: dict[str, np.ndarray]  # name of a column -> an entry for each class
    profile: dict[str, Any]  # the same for each category of each item
    scores: dict[str, np.ndarray]  # and for each row
    measures: dict[str, float]
    lines: list[str]
    posterior: np.ndarray  # (num_data, C)


def open_classes(program: Callable, arguments: Arguments) -> Known | None:
    """A mixture of products of bits or categories, on its data; None for any other program.

    >>> from latentbits.models import bernoulli_mixture, latent_trait
    >>> open_classes(latent_trait, ((np.eye(4),), {})) is None
    True
    >>> open_classes(bernoulli_mixture, ((np.eye(4),), {"num_components": 2})).form.value
    'bernoulli_mixture'
    """
    args, kwargs = arguments
    known = form_of(program, (args, without(kwargs)))
    return known if known is not None and known.form in LABELLED else None


def by_size(
    known: Known, params: dict[str, np.ndarray], covariates: Any = None
) -> dict[str, np.ndarray]:
    """The same parameters, the largest class first.

    :param covariates: of the rows, where classes depend on such.
    """
    whole = with_shares(params, covariates)
    values = known.read({x: np.asarray(v) for x, v in whole.items()})
    order = np.argsort(-values["mixing"], kind="stable")
    moved = known.write({x: v[order] for x, v in values.items()})
    if covariates is not None:
        moved |= reorder(params, order)
    return {x: np.asarray(moved.get(x, v)) for x, v in params.items()}


def with_shares(params: dict[str, np.ndarray], covariates: Any) -> dict[str, np.ndarray]:
    """The parameters with the mean shares of classes that depend on covariates."""
    if covariates is None:
        return params
    return {**params, "mixing": class_shares(params, covariates).mean(0)}


def by_row(
    values: dict[str, np.ndarray], params: dict[str, np.ndarray], covariates: Any
) -> dict[str, np.ndarray]:
    """Values of the form with the shares of classes of each row, where there are covariates."""
    if covariates is None:
        return values
    return {**values, "mixing": class_shares(params, covariates)}


def category_probs(
    known: Known, values: dict[str, np.ndarray]
) -> tuple[list[int], list[int], np.ndarray]:
    """The place of the column and the category of each line of a table, and the table (lines,
    classes), in the order of the columns. Of bits, both categories."""
    columns = [x.column for x in known.columns or ()] or list(range(len(known.kinds)))
    at: dict[Any, int] = {}
    parts = []
    for kind, column in zip(known.kinds, columns, strict=True):
        number_before = at.get(kind, 0)
        at[kind] = number_before + 1
        if kind == "binary":
            one = values["probs"][:, number_before]
            probs = np.stack([1.0 - one, one])
        else:
            probs = values[f"probs_{kind}"][:, number_before].T
        parts += [(column, category, each) for category, each in enumerate(probs)]
    parts.sort(key=lambda part: part[:2])
    places, categories, table = zip(*parts, strict=True)
    return list(places), list(categories), np.array(table)


def memberships(
    known: Known, values: dict[str, np.ndarray], table: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of the class of each row (N, C), and its log likelihood (N,).

    :param values: of the form; ``mixing`` may be that of each row, (N, C).
    """
    places, categories, probs = category_probs(known, values)
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.asarray(probs, np.float64))
        mixing = np.log(np.asarray(values["mixing"], np.float64))
        joint = np.broadcast_to(mixing, (len(table), mixing.shape[-1])).copy()
    for place, category, each in zip(places, categories, log_probs, strict=True):
        hit = table[:, place] == category
        joint += np.where((hit if mask is None else hit & mask[:, place])[:, None], each, 0.0)
    log_likelihood = np.logaddexp.reduce(joint, axis=1)
    return np.exp(joint - log_likelihood[:, None]), log_likelihood


def score_columns(posterior: np.ndarray) -> dict[str, np.ndarray]:
    """Name of a column -> an entry for each row: the posterior, the likeliest class and its
    probability.

    >>> {x: v.tolist() for x, v in score_columns(np.array([[0.25, 0.75]])).items()}
    {'class_1': [0.25], 'class_2': [0.75], 'class': [2], 'probability': [0.75]}
    """
    each = {f"class_{c + 1}": column for c, column in enumerate(posterior.T)}
    return {**each, "class": posterior.argmax(1) + 1, "probability": posterior.max(1)}


def study_classes(
    program: Callable,
    point: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    arguments: Arguments,
    columns: Sequence[str],
    levels: Sequence[Sequence[str]],
    num_free: int,
    bounds: Sequence[Any] = (),
) -> ClassStudy | None:
    """Tables of the classes of a fitted program; None unless it has such.

    :param errors: standard errors by site, where there are such.
    :param levels: what the categories of each column are called, if not 0, 1, …
    :param num_free: free parameters, for the degrees of freedom.
    :param bounds: parameters at a bound, each a `Bound`.
    """
    known = open_classes(program, arguments)
    if known is None:
        return None
    (table, *_), kwargs = arguments
    table, mask = np.asarray(table), kwargs.get("mask")
    covariates = kwargs.get(ARGUMENT)
    whole = with_shares(point, covariates)
    values = known.read({x: np.asarray(v, np.float64) for x, v in whole.items()})
    posterior, log_likelihood = memberships(known, by_row(values, point, covariates), table, mask)
    if errors and covariates is not None:
        errors = {**errors, "mixing": np.full(posterior.shape[1], np.nan)}
    spread = known.read({x: np.asarray(v) for x, v in errors.items()}) if errors else None
    size, times = posterior.shape[1], np.asarray(kwargs.get(WEIGHTS, np.ones(len(table))), float)
    share = times / times.sum()
    modal = np.bincount(posterior.argmax(1), share, size)
    classes = {"share": values["mixing"]}
    if spread is not None and covariates is None:
        classes["share_se"] = spread["mixing"]
    classes |= {"posterior_size": share @ posterior, "modal_size": modal}
    places, categories, probs = category_probs(known, values)
    named = [levels[p] if p < len(levels) and levels[p] else ("0", "1") for p in places]
    profile: dict[str, Any] = {
        "item": np.array([columns[p] for p in places]),
        "category": np.array([names[k] for names, k in zip(named, categories, strict=True)]),
    }
    deviation = None if spread is None else category_probs(known, spread)[2]
    if deviation is not None and "probs" in values:
        deviation[::2] = deviation[1::2]  # of 1 − p, that of p
    for c in range(size):
        profile[f"class_{c + 1}"] = probs[:, c]
        if deviation is not None:
            profile[f"class_{c + 1}_se"] = deviation[:, c]
    own = -(values["mixing"] * np.log(values["mixing"].clip(1e-300))).sum()
    within = -share @ (posterior * np.log(posterior.clip(1e-300))).sum(1)
    measures = {"entropy": 1.0 - within / np.log(size) if size > 1 else 1.0}
    measures["entropy_r2"] = float(1.0 - within / own) if own > 0 else 1.0
    measures["classification_error"] = float(1.0 - share @ posterior.max(1))
    words: list[str] = []
    if WEIGHTS in kwargs:
        words = ["G²        none: it counts rows, and the weights are no counts"]
    elif covariates is None:  # else rows of one pattern differ in its probability
        seen = np.ones(len(table), bool) if mask is None else np.asarray(mask).all(1)
        fit, words = pattern_fit(table[seen], log_likelihood[seen], named_sizes(known), num_free)
        measures |= fit
    lines = [
        *words,
        f"entropy   R² {measures['entropy_r2']:.3f}, relative {measures['entropy']:.3f}; "
        f"{measures['classification_error']:.1%} of rows misplaced by the likeliest class",
        "",
        CLASS_TITLE,
        *table_of({"class": [str(c + 1) for c in range(size)], **classes}),
        "",
        PROFILE_TITLE,
        *table_of(profile),
    ]
    if bounds:
        told = bound_names(known, bounds, profile)
        lines += [
            "",
            f"At a bound, so without se: {', '.join(told[:MOST_TOLD])}"
            + (", …" if len(told) > MOST_TOLD else ""),
            "In brackets: a one-sided limit of 95 %",
        ]
    return ClassStudy(classes, profile, score_columns(posterior), measures, lines, posterior)


CLASS_TITLE = (
    "Classes: share of the population, and of the rows by posterior and by likeliest class"
)
PROFILE_TITLE = "Probabilities of the answers in each class"
MOST_TOLD = 12
"""Bounds of a line."""
MOST_LINES = 120
"""Of a table that is printed: the file holds the rest."""


def table_of(columns: dict[str, Any]) -> list[str]:
    """Columns as lines, standard errors headed se; names that repeat the line above are left out.

    >>> columns = {"item": ["a", "a"], "share": [0.25, 0.5], "share_se": [0.1, np.nan]}
    >>> print("\\n".join(table_of(columns)))
    item    share       se
    a      0.2500   0.1000
           0.5000        —
    """
    return align(table_rows(columns))


def table_rows(columns: dict[str, Any]) -> list[list[str]]:
    """The heads and the rows of `table_of`."""
    rows = [["se" if name.endswith("_se") else HEADS.get(name, name) for name in columns]]
    shown = [_cells(name, column) for name, column in columns.items()]
    before = ""
    for line in list(zip(*shown, strict=True))[:MOST_LINES]:
        rows.append(["" if line[0] == before else line[0], *line[1:]])
        before = line[0]
    length = len(next(iter(columns.values())))
    rows += [[f"… {length - MOST_LINES} more"]] if length > MOST_LINES else []
    return rows


def _cells(name: str, column: Any) -> list[str]:
    """Words as they are, whole numbers of counts without decimals, others with four."""
    digits = 0 if name in WHOLE else 4
    return [x if isinstance(x, str) else "—" if np.isnan(x) else f"{x:.{digits}f}" for x in column]


WHOLE = ("df", "class", "low", "high")
HEADS = {
    "s_x2": "S-X²", "p_value": "p", "posterior_size": "by posterior", "modal_size": "by likeliest",
}  # fmt: skip
"""Columns that are headed otherwise than in the files."""


def bound_names(known: Known, bounds: Sequence[Any], profile: dict[str, Any]) -> list[str]:
    """A line on probabilities at a bound, by item, category and class."""
    each = np.arange(sum(int(np.prod(shape)) for shape in known.shapes.values()))
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in known.shapes.values())])
    starts = dict(zip(known.shapes, ends, strict=False))
    roles = known.read({
        x: each[starts[x] : starts[x] + int(np.prod(shape))].reshape(shape)
        for x, shape in known.shapes.items()
    })  # fmt: skip
    table = category_probs(known, roles)[2]
    told = []
    for bound in bounds:
        at = starts[bound.site] + np.ravel_multi_index(bound.place, known.shapes[bound.site])
        for line, c in np.argwhere(table == at):
            where = f"{profile['item'][line]} = {profile['category'][line]} in class {c + 1}"
            told.append(str(bound._replace(site=where, place=())))
    return told


def named_sizes(known: Known) -> list[int]:
    """The number of categories of each column."""
    return [2 if kind == "binary" else int(kind) for kind in known.kinds]


def pattern_fit(
    table: np.ndarray, log_likelihood: np.ndarray, sizes: Sequence[int], num_free: int
) -> tuple[dict[str, float], list[str]]:
    r"""G² and Pearson's χ² of the patterns of answers, of rows without holes.

    With n rows of a pattern and m expected, :math:`G^2 = 2 \sum n \log(n / m)` and
    :math:`\chi^2 = \sum (n - m)^2 / m`, patterns without rows included. The degrees of freedom are
    those of poLCA: the patterns less one, or the rows if these are fewer, less the parameters.

    >>> rows, even = np.array([[0], [1], [1], [1]]), np.full(4, np.log(0.5))
    >>> {x: round(v, 3) for x, v in pattern_fit(rows, even, [2], 0)[0].items()}
    {'g2': 1.046, 'chi2': 1.0, 'df': 1, 'g2_p_value': 0.306}
    """
    if not len(table):
        return {}, []
    _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    expected = len(table) * np.exp(log_likelihood[first])
    g2 = float(2.0 * (counts * np.log(counts / expected)).sum())
    rest = max(len(table) - expected.sum(), 0.0)
    chi2 = float(((counts - expected) ** 2 / expected).sum() + rest)
    df = int(min(np.prod(np.asarray(sizes, float)) - 1, len(table)) - num_free)
    from scipy.special import chdtrc

    p = float(chdtrc(df, g2)) if df > 0 else float("nan")
    # An expected count below 1 or so makes the distribution of neither known.
    words = f"G²        {g2:.2f}, χ² {chi2:.2f}, df {df} (p of G² {p:.3g})"
    if counts.mean() < 5.0:
        words += "; patterns are too rare for that p"
    return {"g2": g2, "chi2": chi2, "df": df} | ({"g2_p_value": p} if df > 0 else {}), [words]
