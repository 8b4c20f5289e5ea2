r"""Items that work differently in groups (DIF): likelihood-ratio tests by item, on one factor.

In group g the factor is :math:`\theta \sim \mathcal N(\mu_g, \sigma_g^2)`, standard in the largest
group, the reference, and :math:`P(t_i = 1) = \sigma(a_{ig} \theta + d_{ig})`. Anchors have the same
a and d in all groups and tie the groups' scales together. Each item is tested by three fits
(Thissen, Steinberg & Wainer 1993): nothing of it differs, d alone does, a and d do. The first
against the last is the test of the item, the first against the second of a uniform difference, the
second against the last of a non-uniform one.

At first all other items are anchors. Items found to differ (at `LEVEL`, by Benjamini & Hochberg's
correction for the number of items) are then free, and all are tested again, until the same items
are found. Every fit is EM on nodes that rows share (`continuous.grid`), from the fit before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..methods.continuous.climbing import arrived
from ..methods.continuous.grid import BitTable, distinct, posteriors
from ..methods.continuous.nodes import nodes_for

LEVEL = 0.05
"""Of the false discoveries among the items that are said to differ."""
ROUNDS = 4
"""In which anchors are chosen; then the last choice stands."""
FEWEST_ANCHORS = 2
FEWEST_ROWS = 20
"""Of a group."""
MOST_WORK = 30_000_000
"""Cells × items up to which the tests are made without being asked for."""
STEPS, TOLERANCE, MEMORY, MOST_MOVE = 300, 1e-9, 6, 3.0
POINTS = np.linspace(-4.0, 4.0, 81)
WEIGHTS = np.exp(-0.5 * POINTS**2) / np.exp(-0.5 * POINTS**2).sum()
"""A normal density, for effect sizes."""


class Groups(NamedTuple):
    """The parameters of all groups; the first is the reference."""

    items: np.ndarray  # (2, G, P): slopes a, intercepts d
    mean: np.ndarray  # (G,), of the factor
    log_deviation: np.ndarray  # (G,)

    def join(self) -> np.ndarray:
        return np.concatenate([self.items.ravel(), self.mean, self.log_deviation])

    def split(self, vector: np.ndarray) -> Groups:
        size, count = self.items.size, len(self.mean)
        return Groups(
            vector[:size].reshape(self.items.shape), vector[size : size + count],
            vector[size + count :],
        )  # fmt: skip


class GroupFit(NamedTuple):
    groups: Groups
    loss: float


def step(tables: Sequence[BitTable], at: Groups, free: np.ndarray) -> tuple[Groups, float]:
    """One step of EM: the parameters after it, and the loss before.

    :param free: (2, P), whether the slope and the intercept of an item differ between groups.
    """
    count, size = len(tables), at.items.shape[2]
    mean, log_deviation = at.mean.copy(), at.log_deviation.copy()
    loss = 0.0
    sums: list[tuple[Any, Any, Any]] = []
    for g, table in enumerate(tables):
        slope, intercept = at.items[:, g]
        deviation = np.exp(at.log_deviation[g])
        values = {
            "weights": (slope * deviation)[None], "bias": intercept + slope * at.mean[g]
        }  # fmt: skip
        nodes = nodes_for(values)
        theta = at.mean[g] + deviation * nodes.points[:, 0]
        right: Any = 0.0
        number: Any = 0.0
        mass = np.zeros(len(theta))
        for rows, evidence, probs in posteriors(table, values, nodes):
            times = table.times[rows]
            loss -= evidence @ times
            probs *= times[:, None].astype(probs.dtype)
            mass += probs.sum(0)
            right = right + probs.T @ table.bits[rows]
            if table.seen is not None:
                number = number + probs.T @ table.seen[rows]
        sums.append((theta, right, mass[:, None] if table.seen is None else number))
        if g:
            mean[g] = mass @ theta / mass.sum()
            spread = mass @ (theta - mean[g]) ** 2 / mass.sum()
            log_deviation[g] = 0.5 * np.log(spread)
    # An item's 2G numbers are C times its free ones: one column for all groups, or one for each.
    shared = np.zeros((count, count))
    shared[:, 0] = 1.0
    maps = np.zeros((size, 2, count, 2, count))
    for k in range(2):
        maps[:, k, :, k] = np.where(free[k][:, None, None], np.eye(count), shared)
    chart = maps.reshape(size, 2 * count, 2 * count)
    unused = np.eye(2 * count) * (np.abs(chart).sum(1) == 0)[:, None, :]
    items = at.items
    for _ in range(3):
        gradient, bend = np.zeros((size, 2, count)), np.zeros((size, 2, count, 2, count))
        for g, (theta, right, number) in enumerate(sums):
            design = np.stack([theta, np.ones_like(theta)])  # (2, S)
            probability = 0.5 + 0.5 * np.tanh(0.5 * (design.T @ items[:, g]))
            gradient[:, :, g] = (design @ (right - number * probability)).T
            weight = number * probability * (1.0 - probability)
            outer = design[:, None] * design[None]  # (2, 2, S)
            bend[:, :, g, :, g] = np.moveaxis(outer @ weight, -1, 0)
        along = np.einsum("pij,pi->pj", chart, gradient.reshape(size, -1))
        bent = chart.transpose(0, 2, 1) @ bend.reshape(size, 2 * count, -1) @ chart + unused
        bent += 1e-9 * np.eye(2 * count)
        move = np.einsum("pij,pj->ip", chart, np.linalg.solve(bent, along[..., None])[..., 0])
        move = move * (MOST_MOVE / np.maximum(np.abs(move).max(0), MOST_MOVE))
        items = items + move.reshape(items.shape)
    return Groups(items, mean, log_deviation), float(loss)


def fit_groups(tables: Sequence[BitTable], begin: Groups, free: np.ndarray) -> GroupFit:
    """Maximum likelihood, by steps of EM and Anderson's combination of the last few of them."""
    pooled = begin.items.mean(1, keepdims=True)
    at = begin._replace(items=np.where(free[:, None, :], begin.items, pooled))
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
        if arrived(losses, TOLERANCE):
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
    found = p_values.copy()
    place = np.flatnonzero(np.isfinite(p_values))
    order = place[np.argsort(p_values[place])]
    scaled = p_values[order] * len(order) / np.arange(1, len(order) + 1)
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return found


class GroupStudy(NamedTuple):
    """The tests by item, and the groups."""

    items: dict[str, np.ndarray]
    names: tuple[str, ...]  # of the groups, the reference first
    counts: np.ndarray  # (G,) rows
    mean: np.ndarray  # (G,) of the factor, anchors equal
    deviation: np.ndarray  # (G,)
    anchors: np.ndarray  # (P,) bool


def study_groups(
    data: np.ndarray, mask: np.ndarray | None, labels: Sequence[str], start: dict[str, np.ndarray]
) -> GroupStudy:
    """Test every item of a table of bits for a difference between groups of its rows.

    :param data: (num_data, P), with `mask` True where a cell was observed.
    :param labels: (num_data,), the group of each row.
    :param start: weights (1, P) and bias (P,) of a fit to all rows.
    """
    from scipy.special import chdtrc

    labelled = np.asarray(labels)
    names, counts = np.unique(labelled, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    names, counts = names[order], counts[order]
    rows = [labelled == name for name in names]
    tables = [distinct(data[x], None if mask is None else mask[x]) for x in rows]
    count, size = len(names), data.shape[1]
    fixed = np.stack([start["weights"][0], start["bias"]])[:, None]
    begin = Groups(np.tile(fixed, (1, count, 1)), np.zeros(count), np.zeros(count))
    testable = _vary(tables)
    anchors = np.ones(size, bool)
    for _ in range(ROUNDS):
        base = fit_groups(tables, begin, np.tile(~anchors, (2, 1)))
        begin = base.groups
        losses = np.full((3, size), np.nan)  # nothing differs, the intercept does, both do
        effects = np.full((2, size), np.nan)
        for i in np.flatnonzero(testable):
            fits = []
            for some in ((False, False), (False, True), (True, True)):
                free = np.tile(~anchors, (2, 1))
                same = free[0, i] == some[0] and free[1, i] == some[1]
                free[:, i] = some
                fits.append(base if same else fit_groups(tables, begin, free))
            losses[:, i] = [one.loss for one in fits]
            effects[:, i] = _effects(fits[-1].groups, int(i))
        none, uniform, both = losses
        statistic, shift, bend = (
            2.0 * np.maximum(x, 0.0) for x in (none - both, none - uniform, uniform - both)
        )
        df = count - 1
        p_value = chdtrc(2 * df, statistic)
        corrected = adjusted(p_value)
        new = ~(corrected < LEVEL)
        if (new == anchors).all() or new.sum() < FEWEST_ANCHORS:
            break
        anchors = new
    items = {
        "chi2": statistic, "df": np.full(size, 2 * df), "p_value": p_value, "p_adjusted": corrected,
        "p_uniform": chdtrc(df, shift), "p_nonuniform": chdtrc(df, bend),
        "difference": effects[0], "absolute_difference": effects[1], "anchor": anchors + 0,
    }  # fmt: skip
    found = base.groups
    return GroupStudy(
        items, tuple(map(str, names)), counts, found.mean, np.exp(found.log_deviation), anchors
    )


def _vary(tables: Sequence[BitTable]) -> np.ndarray:
    """Items that have both answers in every group, (P,): others cannot be tested."""
    found = []
    for table in tables:
        ones = table.times @ table.bits
        seen = table.times.sum() if table.seen is None else table.times @ table.seen
        found.append((ones > 0) & (ones < seen))
    return np.all(found, axis=0)


def _effects(groups: Groups, item: int) -> tuple[float, float]:
    """The expected difference of the answer from the reference's, over the factor of a group, and
    that of its absolute value (Meade 2010): of the group where the latter is largest."""
    theta = groups.mean[1:, None] + np.exp(groups.log_deviation[1:, None]) * POINTS
    slope, intercept = groups.items[:, :, item]
    own = slope[1:, None] * theta + intercept[1:, None]
    theirs = slope[0] * theta + intercept[0]
    gap = 0.5 * (np.tanh(0.5 * own) - np.tanh(0.5 * theirs))
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
    return [
        f"groups    {column}: {', '.join(about)}",
        f"anchors   {listed} ({len(kept)} of {len(items)} items)",
        f"differ    {', '.join(differ) or 'no item'} (likelihood ratio by item, p adjusted for "
        f"{tests} tests by Benjamini & Hochberg, at {LEVEL:g})",
    ]
