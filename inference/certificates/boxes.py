"""Branch and bound over boxes of states, for all rows at once.

The boxes of a row cover all of its states and have none in common. The sum of their upper bounds
is above the sum over all states, that of their lower bounds below. In each round the box with the
largest gap is split on the bit that costs its bound most, its curvature times the variance of the
bit. For the most probable state the bounds are maxima in place of sums, and the box with the
largest bound is split: a box that lies below the best state met is done.

The halves of all rows are bounded together, by one compiled function of few padded sizes. Rows that
are done drop out.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, nn
from scipy.special import logsumexp

from .concave import FREE, Kind, Row, rounding, settings

FIRST_ROUNDS, ROUNDS = 100, 30
"""Most steps towards the best tangent, of the first box of a row and of a half, which begins at the
point of the whole."""
STILL = 1e-4
"""Nats that a step has to gain in some box, or the steps end."""
SIZES = 64, 512, 4096
"""Of what is bounded at once."""
HELD = 1 << 23
"""Numbers of the boxes that are bounded at once."""
MANY = 64
"""From so many boxes on a row is worth a diagonal for each, and rounds of several splits."""
MOST_SPLIT = 8


class Box(NamedTuple):
    """Some states of a row; empty if its bounds are −∞."""

    fixed: Any  # (bits,) the value of each bit, or FREE
    point: Any  # (bits,) where its tangent touches
    shift: Any  # (bits,) what is moved from the diagonal
    upper: Any  # of the log of the sum over its states
    lower: Any
    highest: Any  # at least the largest log joint
    peak: Any  # the largest that was met
    state: Any  # (bits,) where
    split: Any  # the bit to split next


EMPTY = Box(0, 0, 0, -np.inf, -np.inf, -np.inf, -np.inf, 0, 0)


Parts = tuple[Any, ...]
"""The most and the least of the sums over the states of a box with each bit on, and off: those of
the one, of the other, and the least of both, (bits,) each."""


class Rows(NamedTuple):
    """Rows of one kind: what each has of its own, and what all share."""

    kind: Kind
    own: Row
    shared: Row

    def take(self, which: Any) -> Rows:
        """Some of the rows."""
        return self._replace(own=jax.tree.map(lambda x: x[which], self.own))


class Tangent(NamedTuple):
    """The bound of a box by the tangent at a point."""

    upper: Array
    highest: Array
    point: Array
    slope: Array
    split: Array


def tangent(kind: Kind, row: Row, box: Box, point: Array, heat: Array) -> tuple[Tangent, Array]:
    """The tangent at a point, and the next point towards the best one.

    :param heat: of the distribution whose mean the best point is: 1 for sums, small for maxima.
    """
    free = box.fixed == FREE
    at = kind.relaxed(row, box.shift, free, point)
    slope = jnp.where(free, at.slope, 0.0)
    base = at.value - slope @ point
    soft = jnp.where(free, nn.softplus(slope), 0.0)
    size = jnp.abs(slope).sum() + jnp.abs(at.value) + soft.sum()
    margin = at.margin + rounding(len(point)) * size
    upper = base + soft.sum() + margin
    highest = base + jnp.maximum(slope, 0.0).sum() + margin
    none = jnp.isneginf(at.value)  # a point inside without probability: no state has any
    proved = lambda x: jnp.where(none, -jnp.inf, jnp.where(jnp.isnan(x), jnp.inf, x))  # noqa: E731
    unsure = point * (1.0 - point)
    logit = jnp.log(jnp.clip(point, 1e-15)) - jnp.log(jnp.clip(1.0 - point, 1e-15))
    step = (slope / heat - logit) / (1.0 + unsure * at.spread / heat)
    step = jnp.where(jnp.isfinite(step), jnp.clip(step, -8.0, 8.0), 0.0)
    cost = jnp.where(free, (at.curve + 1e-9) * unsure + 1e-200, -1.0)
    found = Tangent(proved(upper), proved(highest), point, slope, jnp.argmax(cost))
    return found, jnp.where(free, nn.sigmoid(logit + step), point)


def bounded(kind: Kind, row: Row, box: Box, best: Tangent) -> tuple[Box, Parts]:
    """A box with its bounds, and those of its parts, from a tangent.

    Above the sum over the states with a bit on lies the tangent's sum over those.
    """
    free = box.fixed == FREE
    upper = jnp.minimum(best.upper, box.upper)
    low = kind.lower(row, free, best.point)
    inside = [
        jnp.minimum(best.upper + jnp.where(free, nn.log_sigmoid(sign * best.slope), part), upper)
        for sign, value in ((1.0, 1), (-1.0, 0))
        for part in (jnp.where(box.fixed == value, 0.0, -jnp.inf),)
    ]
    box = box._replace(
        point=best.point, upper=upper, lower=jnp.minimum(low.total, upper),
        highest=jnp.minimum(best.highest, box.highest), peak=low.peak,
        state=low.state.astype(jnp.int8), split=best.split,
    )  # fmt: skip
    return box, (*inside, low.one, low.zero)


@partial(jax.jit, static_argnames=("kind", "refine"))
def bound(
    kind: Kind, own: Row, shared: Row, boxes: Box, rounds: Array, heat: Array, *, refine: bool
) -> tuple[Box, Parts]:
    """Boxes with their bounds, each from the best of the tangents at several points.

    :param own: of the row of each box.
    :param refine: look for a better diagonal first.
    """

    def joined(mine: Row) -> Row:
        none = lambda x: x is None  # noqa: E731
        return jax.tree.map(lambda a, b: b if a is None else a, mine, shared, is_leaf=none)

    def shift(mine: Row, box: Box) -> Array:
        return kind.diagonal(joined(mine), box.fixed == FREE, box.point, box.shift)

    each = jax.vmap(lambda mine, box, point: tangent(kind, joined(mine), box, point, heat))
    boxes = boxes._replace(shift=jax.vmap(shift)(own, boxes)) if refine else boxes
    score = lambda x: jnp.where(heat < 1.0, x.highest, x.upper)  # noqa: E731

    def going(carry: tuple) -> Array:
        return (carry[0] <= rounds) & carry[3].any()

    def step(carry: tuple) -> tuple:
        count, best, point, live = carry  # a box ends by itself, whatever the others do
        new, point = each(own, boxes, point)
        gain = jnp.where(live, score(best) - score(new), 0.0)
        keep = lambda a, b: jnp.where(_wide(gain > 0, a), a, b)  # noqa: E731
        live &= (gain > STILL) | (count < 4)
        return count + 1, jax.tree.map(keep, new, best), point, live

    start = jnp.where(boxes.fixed == FREE, boxes.point, boxes.fixed.astype(boxes.point.dtype))
    none = jnp.full(len(start), jnp.inf)
    first = Tangent(none, none, start, jnp.zeros_like(start), jnp.zeros(len(start), int))
    carry = jnp.zeros((), int), first, start, jnp.ones(len(start), bool)
    best = lax.while_loop(going, step, carry)[1]
    return jax.vmap(lambda mine, box, at: bounded(kind, joined(mine), box, at))(own, boxes, best)


def _wide(x: Array, like: Array) -> Array:
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def bound_all(
    rows: Rows, which: np.ndarray, boxes: Box, rounds: int, best: bool, refine: bool = False
) -> tuple[Box, Parts]:
    """`bound` of many boxes (n, ...), of the rows of these numbers, in pieces of few sizes."""
    floats = sum(x.size for x in jax.tree.leaves((rows.take(which[:1]).own, rows.shared)))
    most = max(SIZES[0], HELD // floats)
    size = next((x for x in SIZES if x >= min(len(which), most)), SIZES[-1])
    parts = []
    for start in range(0, len(which), size):
        here = np.arange(start, start + size).clip(max=len(which) - 1)
        own = rows.take(which[here]).own
        piece, heat = jax.tree.map(lambda x, here=here: x[here], boxes), 0.1 if best else 1.0
        done = bound(rows.kind, own, rows.shared, piece, rounds, heat, refine=refine)
        count = min(size, len(which) - start)
        parts.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], done))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


class Found(NamedTuple):
    """What the boxes of each row prove."""

    lower: np.ndarray  # (rows,)
    upper: np.ndarray
    boxes: np.ndarray  # how many
    states: np.ndarray  # how many were listed
    least: np.ndarray  # (rows, bits) of P(s = 1 | y)
    most: np.ndarray
    best: np.ndarray  # (rows, bits)
    peak: np.ndarray  # (rows,) the log joint of `best`
    highest: np.ndarray  # (rows,) of any state


def bracket(boxes: Box, best: bool) -> tuple[np.ndarray, np.ndarray]:
    """What the boxes of each row prove together: (lower, upper)."""
    if best:
        peak = boxes.peak.max(1)
        return peak, np.maximum(boxes.highest.max(1), peak)
    lower, upper = (logsumexp(x, axis=1) for x in (boxes.lower, boxes.upper))
    size = np.nan_to_num(np.abs([lower, upper]), posinf=0.0)
    lost = rounding(boxes.lower.shape[1]) * (1.0 + size)
    return lower - lost[0], upper + lost[1]


def gaps_of(boxes: Box, best: bool) -> np.ndarray:
    """How much each box leaves open, as a logarithm; −∞ where nothing can be split."""
    gap = np.where(boxes.highest > boxes.peak.max(1, keepdims=True), boxes.highest, -np.inf)
    if not best:
        with np.errstate(invalid="ignore", divide="ignore"):  # −∞ less −∞ of empty boxes
            part = np.exp(np.minimum(boxes.lower - boxes.upper, 0.0))
            gap = np.where(part < 1.0, boxes.upper + np.log1p(-part), -np.inf)
    return np.where((boxes.fixed == FREE).any(-1), gap, -np.inf)


def solve(rows: Rows, shift: np.ndarray, width: float, max_boxes: int, best: bool = False) -> Found:
    """Split until each row's bracket is as narrow as `width`, or has `max_boxes`.

    :param shift: (rows, bits) what is moved from the diagonal at first.
    :param best: look for the most probable state in place of the sum.
    """
    table, (num_rows, num_bits) = settings(rows.kind.upper), shift.shape
    used = len(table)
    fixed = np.full((num_rows, used, num_bits), FREE, np.int8)
    fixed[..., : rows.kind.upper] = table
    each = np.zeros((num_rows, used))
    boxes = Box(
        fixed, each[..., None] + np.full(num_bits, 0.5), each[..., None] + shift[:, None],
        each + np.inf, each - np.inf, each + np.inf, each - np.inf, fixed * 0, each.astype(int),
    )  # fmt: skip
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), boxes)
    flat, _ = bound_all(rows, np.repeat(np.arange(num_rows), used), flat, FIRST_ROUNDS, best)
    boxes = jax.tree.map(lambda x, like: x.reshape(like.shape), flat, boxes)
    here, count, ended = np.arange(num_rows), np.full(num_rows, used), []
    while len(here):
        lower, upper = bracket(boxes, best)
        gaps = gaps_of(boxes, best)
        splits = max(1, min(MOST_SPLIT, boxes.upper.shape[1] // MANY))
        done = (upper <= lower + width) | (count >= max_boxes) | (gaps.max(1) == -np.inf)
        if done.any():
            some = jax.tree.map(lambda x: x[done], boxes)  # noqa: B023
            ended.append((*_read(rows, here[done], some, count[done]), here[done]))
            boxes = jax.tree.map(lambda x: x[~done], boxes)  # noqa: B023
            here, count, gaps = here[~done], count[~done], gaps[~done]
            continue
        row, place = _largest(gaps, np.minimum(splits, max_boxes - count))
        parents = jax.tree.map(lambda x: x[row, place], boxes)  # noqa: B023
        refine = boxes.upper.shape[1] > MANY
        first, second = _halves(rows, here[row], parents, best, refine)
        after = count[row] + np.arange(len(row)) - np.searchsorted(row, row)
        lacking = after.max() + 1 - boxes.upper.shape[1]
        if lacking > 0:
            boxes = _with_room(boxes, max(lacking, boxes.upper.shape[1]))
        for whole, one, other in zip(boxes, first, second, strict=True):
            whole[row, place], whole[row, after] = one, other
        np.add.at(count, row, 1)
    *found, order = (np.concatenate(x) for x in zip(*ended, strict=True))
    return Found(*(x[np.argsort(order)] for x in found))


def _largest(gaps: np.ndarray, many: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, box) of the largest gaps of each row, `many` of them, in the order of rows."""
    order = np.argsort(-gaps, 1, kind="stable")[:, : many.max()]
    chosen = np.take_along_axis(gaps, order, 1) > -np.inf
    chosen &= np.arange(order.shape[1]) < many[:, None]
    row, place = np.nonzero(chosen)
    return row, order[row, place]


def _halves(
    rows: Rows, which: np.ndarray, parents: Box, best: bool, refine: bool
) -> tuple[Box, Box]:
    """Both halves of each box, (n, ...), with their bounds."""
    both = jax.tree.map(lambda x: np.concatenate([x, x]), parents)
    each = np.arange(len(both.split))
    both.fixed[each, both.split] = each >= len(which)
    new, _ = bound_all(rows, np.tile(which, 2), both, ROUNDS, best, refine)
    cut = len(which)
    return Box(*(x[:cut] for x in new)), Box(*(x[cut:] for x in new))


def _with_room(boxes: Box, more: int) -> Box:
    """The same boxes of each row and empty ones behind them."""
    empty = lambda x, fill: np.full((len(x), more, *x.shape[2:]), fill, x.dtype)  # noqa: E731
    return jax.tree.map(lambda x, fill: np.concatenate([x, empty(x, fill)], 1), boxes, EMPTY)


def _read(rows: Rows, here: np.ndarray, boxes: Box, count: np.ndarray) -> Found:
    """What the boxes of some rows prove: the share of a bit lies between L₁ / (L₁ + U₀) and
    U₁ / (U₁ + L₀)."""
    lower, upper = bracket(boxes, False)
    used = boxes.upper > -np.inf
    used[:, 0] = True  # also of a row that no state explains
    row, place = np.nonzero(used)
    parts = bound_all(rows, here[row], jax.tree.map(lambda x: x[row, place], boxes), 0, False)[1]
    whole = np.full((4, *boxes.point.shape), -np.inf)
    whole[:, row, place] = parts
    on, off, least_on, least_off = logsumexp(whole, axis=2)
    with np.errstate(over="ignore", invalid="ignore"):
        least = 1.0 / (1.0 + np.exp(off - least_on))
        most = 1.0 - 1.0 / (1.0 + np.exp(on - least_off))
    lost = rounding(boxes.upper.shape[1])
    least = np.where(np.isnan(least), 0.0, least * (1.0 - lost))
    most = np.where(np.isnan(most), 1.0, most + lost).clip(max=1.0)
    listed = np.where(used, 1 + (boxes.fixed == FREE).sum(-1), 0).sum(1)
    best = np.take_along_axis(boxes.state, boxes.peak.argmax(1)[:, None, None], 1)[:, 0]
    peak = boxes.peak.max(1)
    highest = np.maximum(boxes.highest.max(1), peak)
    return Found(lower, upper, count, listed, least, most, best, peak, highest)
