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
with it, and the study says that the choice did not settle. Every fit is EM on nodes that rows share
(`continuous.grid`), from the fit before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..methods.continuous.curves import Columns, Sums, asked, derivatives, gaps, logistic
from ..methods.continuous.grid import FEW_CELLS, BitTable, expect
from ..methods.continuous.nodes import Nodes, Values, nodes_for
from ..running.search import remaining

LEVEL = 0.05
"""Of the false discoveries among the items that are said to differ."""
ROUNDS = 4
"""In which anchors are chosen; then all items are tested with the last choice."""
FEWEST_ANCHORS = 2
FEWEST_ROWS = 20
"""Of a group."""
MOST_WORK = 30_000_000
"""Cells × items up to which the tests are made without being asked for."""
STEPS, TOLERANCE, MEMORY = 300, 1e-9, 6
MOST_MOVE, MOST_CLOSING = 3.0, 0.9
"""Of a number in a step of its regression, and of the gap between two intercepts that narrows."""
POINTS = np.linspace(-4.0, 4.0, 81)
WEIGHTS = np.exp(-0.5 * POINTS**2) / np.exp(-0.5 * POINTS**2).sum()
"""A normal density, for effect sizes."""


class Groups(NamedTuple):
    """The parameters of all groups; the first is the reference."""

    slopes: np.ndarray  # (G, P)
    intercepts: np.ndarray  # (G, C)
    mean: np.ndarray  # (G,), of the factor
    log_deviation: np.ndarray  # (G,)

    def join(self) -> np.ndarray:
        return np.concatenate([x.ravel() for x in self])

    def split(self, vector: np.ndarray) -> Groups:
        parts = np.split(vector, np.cumsum([x.size for x in self])[:-1])
        return Groups(*(x.reshape(y.shape) for x, y in zip(parts, self, strict=True)))

    def values(self, columns: Columns, g: int, standard: bool = True) -> Values:
        """Of one group, in units of its own deviation about its own mean, or of the reference's."""
        slope, bias = self.slopes[g][columns.column_of], self.intercepts[g]
        if standard:
            slope, bias = slope * np.exp(self.log_deviation[g]), bias + slope * self.mean[g]
        return {"weights": slope[None], "bias": bias}


class GroupFit(NamedTuple):
    groups: Groups
    loss: float


def step(tables: Sequence[BitTable], at: Groups, free: np.ndarray) -> tuple[Groups, float]:
    """One step of EM: the parameters after it, and the loss before.

    :param free: (2, P), whether the slope and the intercepts of an item differ between groups.
    """
    count, columns = len(tables), tables[0].columns
    mean, log_deviation = at.mean.copy(), at.log_deviation.copy()
    sums: list[tuple[Nodes, Sums]] = []
    if not columns.bits and any((gaps(columns, x) <= 0).any() for x in at.intercepts):
        return at, np.inf
    for g, table in enumerate(tables):
        values = at.values(columns, g)
        nodes = nodes_for(values, 1.0, table.share)
        expected = expect(table, values, nodes)
        theta = at.mean[g] + np.exp(at.log_deviation[g]) * nodes.points
        sums.append((nodes._replace(points=theta), expected))
        if g:
            mean[g] = expected.mass @ theta[:, 0] / expected.mass.sum()
            spread = expected.mass @ (theta[:, 0] - mean[g]) ** 2 / expected.mass.sum()
            log_deviation[g] = 0.5 * np.log(spread)
    charts = _charts(columns, free, count)
    slopes, intercepts = at.slopes.copy(), at.intercepts.copy()
    for _ in range(3):
        here = Groups(slopes, intercepts, mean, log_deviation)
        parts = [
            derivatives(columns, here.values(columns, g, False), nodes, x.right, asked(columns, x))
            for g, (nodes, x) in enumerate(sums)
        ]
        for k, (group, chart) in enumerate(zip(columns.groups, charts, strict=True)):
            up = np.stack([part[0][k] for part in parts], 1)  # (items, G, K)
            size, _, width = up.shape
            bend = np.zeros((size, count, width, count, width))
            for g, part in enumerate(parts):
                bend[:, g, :, g] = part[1][k]
            bent = chart.transpose(0, 2, 1) @ bend.reshape(size, count * width, -1) @ chart
            unused = np.abs(chart).sum(1) == 0
            bent += np.eye(count * width) * (1e-9 + unused[:, None, :])
            along = np.einsum("pij,pi->pj", chart, up.reshape(size, -1))
            move = chart @ np.linalg.solve(bent, along[..., None])
            move = move.reshape(size, count, width)
            most = MOST_MOVE / np.maximum(np.abs(move).max((1, 2)), MOST_MOVE)
            if width > 2:
                gap = np.moveaxis(-np.diff(intercepts[:, group]), 0, 1)  # (items, G, K - 2)
                closing = (np.diff(move[:, :, 1:]) / gap).max((1, 2))
                most = np.minimum(most, MOST_CLOSING / np.maximum(closing, MOST_CLOSING))
            move = np.moveaxis(move * most[:, None, None], 1, 0)
            slopes[:, columns.column_of[group[:, 0]]] += move[:, :, 0]
            intercepts[:, group] += move[:, :, 1:]
    return Groups(slopes, intercepts, mean, log_deviation), sum(x.loss for _, x in sums)


def _charts(columns: Columns, free: np.ndarray, count: int) -> list[np.ndarray]:
    """From an item's free numbers to its slope and intercepts in all groups, (items, GK, GK), by K:
    a column for all groups, or one for each."""
    shared = np.zeros((count, count))
    shared[:, 0] = 1.0
    charts = []
    for group in columns.groups:
        items, width = columns.column_of[group[:, 0]], 1 + group.shape[1]
        chart = np.zeros((len(items), count, width, count, width))
        for k in range(width):
            own = free[min(k, 1)][items]
            chart[:, :, k, :, k] = np.where(own[:, None, None], np.eye(count), shared)
        charts.append(chart.reshape(len(items), count * width, -1))
    return charts


def fit_groups(tables: Sequence[BitTable], begin: Groups, free: np.ndarray) -> GroupFit:
    """Maximum likelihood, by steps of EM and Anderson's combination of the last few of them."""
    own = free[0], free[1][tables[0].columns.column_of]
    slopes, intercepts = (np.where(x, y, y.mean(0)) for x, y in zip(own, begin[:2], strict=True))
    at = begin._replace(slopes=slopes, intercepts=intercepts)
    safe, best = at, np.inf
    losses: list[float] = []
    trail: list[tuple[np.ndarray, np.ndarray]] = []  # residuals and images
    for _ in range(STEPS):
        image, loss = step(tables, at, free)
        if not loss <= best + 1e-9 * abs(best) and trail:
            at, trail = safe, []  # the combination led up: the plain step cannot
            continue
        losses.append(loss)
        best, safe = min(best, loss), image
        trail = [(image.join() - at.join(), image.join()), *trail][: MEMORY + 1]
        left = remaining(np.array(losses[-3:])) if len(losses) > 2 else np.inf
        if max(left, abs(losses[-2:][0] - loss)) <= TOLERANCE * abs(loss):
            break
        at = image
        if len(trail) > 1:
            residuals, images = (np.stack(x, 1) for x in zip(*trail, strict=True))
            change = residuals[:, :1] - residuals[:, 1:]
            share = np.linalg.lstsq(change, residuals[:, 0], rcond=1e-8)[0]
            at = at.split(images[:, 0] - (images[:, :1] - images[:, 1:]) @ share)
    return GroupFit(at, losses[-1])


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


def study_groups(table: BitTable, labels: Sequence[str], start: Values) -> GroupStudy:
    """Test every item of a table for a difference between groups of its rows.

    :param table: bits or levels, dense.
    :param labels: (num_data,), the group of each row.
    :param start: weights (1, C) and bias (C,) of a fit to all rows.
    """
    from scipy.special import chdtrc

    labelled = np.asarray(labels)
    names, counts = np.unique(labelled, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    names, counts = names[order], counts[order]
    tables = [_rows_of(table, labelled == name) for name in names]
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


def _rows_of(table: BitTable, some: np.ndarray) -> BitTable:
    """Some rows of a table, as a table of its own."""
    first, place, count = np.unique(table.place[some], return_inverse=True, return_counts=True)
    kind = np.float64 if first.size * table.bits.shape[1] <= FEW_CELLS else table.bits.dtype
    seen = None if table.seen is None else table.seen[first].astype(kind)
    bits = table.bits[first].astype(kind)
    return table._replace(bits=bits, seen=seen, times=count.astype(float), place=place)


def _varies(table: BitTable) -> np.ndarray:
    """Items whose levels all occur, (P,): a difference can be tested for these only."""
    columns = table.columns
    counts = table.times @ table.bits
    answered = table.times.sum() if table.seen is None else table.times @ table.seen
    least = np.minimum.reduceat(counts, columns.first)
    return (least > 0) & (np.add.reduceat(counts, columns.first) < answered)


def _effects(groups: Groups, columns: Columns, item: int) -> tuple[float, float]:
    """The expected difference of the answer from the reference's, over the factor of a group, and
    that of its absolute value (Meade 2010): of the group where the latter is largest. Levels count
    as numbers from zero."""
    theta = groups.mean[1:, None] + np.exp(groups.log_deviation[1:, None]) * POINTS
    cuts = np.flatnonzero(columns.column_of == item)
    slope, intercept = groups.slopes[:, item], groups.intercepts[:, cuts]
    own = slope[1:, None, None] * theta[:, None] + intercept[1:, :, None]  # (G - 1, cuts, points)
    theirs = slope[0] * theta[:, None] + intercept[0][:, None]
    gap = (logistic(own) - logistic(theirs)).sum(1)
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
