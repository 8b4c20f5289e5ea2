r"""Items that work differently in groups (DIF): likelihood-ratio tests by item, on one factor.

In group g the factor is :math:`\theta \sim \mathcal N(\mu_g, \sigma_g^2)`, standard in the largest
group, the reference, and :math:`P(t_i \ge c) = \sigma(a_{ig} \theta + d_{icg})`, with an intercept
for each level but the lowest: of bits one. Anchors have the same a and d in all groups and tie the
groups' scales together. Each item is tested by three fits
(Thissen, Steinberg & Wainer 1993): nothing of it differs, d alone does, a and d do. The first
against the last is the test of the item, the first against the second of a uniform difference, the
second against the last of a non-uniform one.

At first all other items are anchors. Items found to differ (at `LEVEL`, by Benjamini & Hochberg's
correction for the number of items) are then free, and all are tested again, until the same items
are found. Where the sets of anchors repeat in a cycle, the smallest of them is kept, since an item
that differs biases all tests as an anchor and costs little as none; all items are tested once more
with it, and the study says that the choice did not settle. Every fit is L-BFGS on the likelihood
over nodes that rows share (`continuous.shared_nodes`), from the fit before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from ..compiling import remembered
from ..methods.continuous.graded import Columns, Graded, columns_of
from ..methods.continuous.regressions import Responses
from ..methods.continuous.shared_nodes import log_table, one_rule
from ..numerics.quasi_newton import minimise
from ..types import Params
from .statistics import Values

LEVEL = 0.05
"""Of the false discoveries among the items that are said to differ."""
ROUNDS = 4
"""In which anchors are chosen; then all items are tested with the last choice."""
FEWEST_ANCHORS = 2
FEWEST_ROWS = 20
"""Of a group."""
MOST_WORK = 30_000_000
"""Cells × items up to which the tests are made without being asked for."""
STEPS = 60
"""Of L-BFGS in a fit, which begins near its end."""
POINTS = np.linspace(-4.0, 4.0, 81)
WEIGHTS = np.exp(-0.5 * POINTS**2) / np.exp(-0.5 * POINTS**2).sum()
"""A normal density, for effect sizes."""


class Answers(NamedTuple):
    """A table of levels: indicators of each level but the lowest."""

    bits: np.ndarray  # (num_data, C), zero where unseen
    seen: np.ndarray | None  # (num_data, P), one where observed; None if everything is
    levels: tuple[int, ...]

    @classmethod
    def of(cls, value: Any, mask: Any, levels: tuple[int, ...]) -> Answers:
        """
        >>> Answers.of(np.array([[2, 1]]), None, (3, 2)).bits.tolist()
        [[0.0, 1.0, 1.0]]
        """
        columns = columns_of(levels)
        bits = (np.asarray(value)[:, columns.column_of] == columns.level) + 0.0
        if mask is None or np.asarray(mask).all():
            return cls(bits, None, levels)
        seen = np.asarray(mask) + 0.0
        return cls(bits * seen[:, columns.column_of], seen, levels)

    @property
    def columns(self) -> Columns:
        return columns_of(self.levels)

    @property
    def binary(self) -> bool:
        """Whether all columns have two levels."""
        return max(self.levels) == 2

    def rows(self, some: np.ndarray) -> Answers:
        """Some of the rows."""
        seen = None if self.seen is None else self.seen[some]
        return self._replace(bits=self.bits[some], seen=seen)

    @property
    def responses(self) -> Responses:
        """The cells as the predictors of `Graded` see them: a level tells of two cutpoints."""
        first = self.columns.first
        shown = np.ones((len(self.bits), len(first))) if self.seen is None else self.seen
        bits: Any = self.bits
        below = np.roll(bits, 1, axis=1)
        below[:, first] = shown - np.add.reduceat(self.bits, first, axis=1)
        return Responses(bits, bits + below)


class Groups(NamedTuple):
    """The parameters of all groups; the first is the reference."""

    slopes: Any  # (G, P)
    intercepts: Any  # (G, C)
    mean: Any  # (G,), of the factor
    log_deviation: Any  # (G,)


class GroupFit(NamedTuple):
    groups: Groups
    loss: float


def fit_groups(tables: Sequence[Answers], begin: Groups, free: np.ndarray) -> GroupFit:
    """Maximum likelihood of all groups.

    :param free: (2, P), whether the slope and the intercepts of an item differ between groups.
    """
    columns = tables[0].columns
    own = free[0], free[1][columns.column_of]
    slopes, intercepts = (np.where(x, y, y.mean(0)) for x, y in zip(own, begin[:2], strict=True))
    start = begin._replace(slopes=slopes, intercepts=intercepts)
    with jax.enable_x64(True):
        fit = remembered(partial(_fit, tables[0].levels))
        found, loss = fit([x.responses for x in tables], start._asdict(), free)
    return GroupFit(Groups(**jax.device_get(found)), float(loss))


def _fit(
    levels: tuple[int, ...], responses: list[Responses], start: Params, free: Array
) -> tuple[Params, Array]:
    """The parameters of all groups at the maximum, and minus the log likelihood there."""
    columns = Graded.of(levels)
    of = columns.columns.column_of

    def tied(params: Params) -> Params:
        """What is not free is that of the reference, whose factor is standard."""
        slopes, intercepts = params["slopes"], params["intercepts"]
        reference = jnp.arange(len(slopes)) == 0
        return {
            "slopes": jnp.where(free[0], slopes, slopes[:1]),
            "intercepts": jnp.where(free[1][of], intercepts, intercepts[:1]),
            **{x: jnp.where(reference, 0.0, params[x]) for x in ("mean", "log_deviation")},
        }

    def loss(params: Params) -> Array:
        groups, total = tied(params), jnp.zeros(())
        for g, own in enumerate(responses):
            # In units of the deviation of the group about its mean.
            slope = groups["slopes"][g][of]
            weights = slope * jnp.exp(groups["log_deviation"][g])
            values = {
                "weights": weights[None],
                "bias": groups["intercepts"][g] + slope * groups["mean"][g],
            }
            nodes = lax.stop_gradient(one_rule(values, columns.share))
            total = total - logsumexp(log_table(columns, values, own, nodes), 0).sum()
        return total

    end = tied(minimise(jax.value_and_grad(loss), start, STEPS))
    return end, loss(end)


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """p values for all tests at once, by the rate of false discoveries (Benjamini & Hochberg 1995).

    >>> adjusted(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
    [0.03, 0.04, 0.04, nan]
    """
    q_values = p_values.copy()
    place = np.flatnonzero(np.isfinite(p_values))
    order = place[np.argsort(p_values[place])]
    scaled = p_values[order] * len(order) / np.arange(1, len(order) + 1)
    q_values[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return q_values


class GroupStudy(NamedTuple):
    """The tests by item, and the groups."""

    items: dict[str, np.ndarray]
    names: tuple[str, ...]  # of the groups, the reference first
    counts: np.ndarray  # (G,) rows
    mean: np.ndarray  # (G,) of the factor, anchors equal
    deviation: np.ndarray  # (G,)
    anchors: np.ndarray  # (P,) bool, those of the tests
    settled: bool  # whether these tests choose the same anchors again


def study_groups(table: Answers, labels: Sequence[str], start: Values) -> GroupStudy:
    """Test every item of a table for a difference between groups of its rows.

    :param labels: (num_data,), the group of each row.
    :param start: weights (1, C) and bias (C,) of a fit to all rows.
    """
    from scipy.special import chdtrc

    labelled = np.asarray(labels)
    names, counts = np.unique(labelled, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    names, counts = names[order], counts[order]
    tables = [table.rows(labelled == name) for name in names]
    columns, count = table.columns, len(names)
    size = len(columns.first)
    begin = Groups(
        np.tile(start["weights"][0, columns.first], (count, 1)), np.tile(start["bias"], (count, 1)),
        np.zeros(count), np.zeros(count),
    )  # fmt: skip
    testable = np.all([_varies(one) for one in tables], axis=0)
    anchors, last = np.ones(size, bool), False
    tried: list[np.ndarray] = []
    while True:
        base = fit_groups(tables, begin, np.tile(~anchors, (2, 1)))
        begin = base.groups
        losses = np.full((3, size), np.nan)  # nothing differs, the intercepts do, all does
        effects = np.full((2, size), np.nan)
        for i in np.flatnonzero(testable):
            fits = []
            for some in ((False, False), (False, True), (True, True)):
                free = np.tile(~anchors, (2, 1))
                same = free[0, i] == some[0] and free[1, i] == some[1]
                free[:, i] = some
                fits.append(base if same else fit_groups(tables, begin, free))
            losses[:, i] = [one.loss for one in fits]
            effects[:, i] = _effects(fits[-1].groups, columns, int(i))
        none, uniform, both = losses
        statistic, shift, bend = (
            2.0 * np.maximum(x, 0.0) for x in (none - both, none - uniform, uniform - both)
        )
        df = (count - 1) * np.asarray(table.levels)
        p_value = chdtrc(df, statistic)
        corrected = adjusted(p_value)
        new = ~(corrected < LEVEL)
        settled = bool((new == anchors).all())
        if settled or last or new.sum() < FEWEST_ANCHORS:
            break
        tried.append(anchors)
        anchors, last = new, len(tried) == ROUNDS
        again = [i for i, one in enumerate(tried) if (one == new).all()]
        if again:
            anchors, last = min(tried[again[0] :], key=np.sum), True
    items = {
        "chi2": statistic, "df": df, "p_value": p_value, "p_adjusted": corrected,
        "p_uniform": chdtrc(df - (count - 1), shift), "p_nonuniform": chdtrc(count - 1, bend),
        "difference": effects[0], "absolute_difference": effects[1], "anchor": anchors + 0,
    }  # fmt: skip
    fitted = base.groups
    return GroupStudy(
        items, tuple(map(str, names)), counts, fitted.mean, np.exp(fitted.log_deviation), anchors,
        settled,
    )  # fmt: skip


def _varies(table: Answers) -> np.ndarray:
    """Items whose levels all occur, (P,): a difference can be tested for these only."""
    first, counts = table.columns.first, table.bits.sum(0)
    answered = len(table.bits) if table.seen is None else table.seen.sum(0)
    least = np.minimum.reduceat(counts, first)
    return (least > 0) & (np.add.reduceat(counts, first) < answered)


def _effects(groups: Groups, columns: Columns, item: int) -> tuple[float, float]:
    """The expected difference of the answer from the reference's, over the factor of a group, and
    that of its absolute value (Meade 2010): of the group where the latter is largest. Levels count
    as numbers from zero."""
    theta = groups.mean[1:, None] + np.exp(groups.log_deviation[1:, None]) * POINTS
    cuts = np.flatnonzero(columns.column_of == item)
    slope, intercept = groups.slopes[:, item], groups.intercepts[:, cuts]
    own = slope[1:, None, None] * theta[:, None] + intercept[1:, :, None]  # (G - 1, cuts, points)
    theirs = slope[0] * theta[:, None] + intercept[0][:, None]
    gap = 0.5 * (np.tanh(0.5 * own) - np.tanh(0.5 * theirs)).sum(1)
    signed, absolute = gap @ WEIGHTS, np.abs(gap) @ WEIGHTS
    most = int(np.argmax(absolute))
    return float(signed[most]), float(absolute[most])


def group_lines(study: GroupStudy, column: str, items: Sequence[str]) -> list[str]:
    """What the study says, in lines."""
    about = [f"{study.names[0]} ({study.counts[0]} rows, the reference)"]
    parts = zip(study.names, study.counts, study.mean, study.deviation, strict=True)
    about += [f"{x} ({n} rows: mean {m:.2f}, deviation {d:.2f})" for x, n, m, d in parts][1:]
    kept = [x for x, is_anchor in zip(items, study.anchors, strict=True) if is_anchor]
    listed = ", ".join(kept[:12]) + (", …" if len(kept) > 12 else "")
    corrected = study.items["p_adjusted"]
    differ = [x for x, p in zip(items, corrected, strict=True) if p < LEVEL]
    tests = int(np.isfinite(corrected).sum())
    lines = [
        f"groups    {column}: {', '.join(about)}",
        f"anchors   {listed} ({len(kept)} of {len(items)} items)",
        f"differ    {', '.join(differ) or 'no item'} (likelihood ratio by item, p adjusted for "
        f"{tests} tests by Benjamini & Hochberg, at {LEVEL:g})",
    ]
    if not study.settled:
        lines.append(
            "caution   the choice of anchors did not settle: other anchors find other items"
        )
    return lines
