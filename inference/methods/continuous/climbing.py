"""EM on a table of levels with Anderson steps, from a start to the maximum of the likelihood.

Most of the way needs neither all nodes nor all digits: a first stage, on fewer nodes and in single
precision, ends near the maximum, and a second one takes its last steps as it takes all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .curves import Prior, maximise
from .grid import BitTable, expect
from .nodes import BLUNT, Values

FINENESS = {1: 0.6, 2: 0.8, 3: 0.7}
"""Number of factors -> of the nodes of the first stage, which are off by 1e-5 nats per row."""
NEAR = 1e-5
"""What may be left to gain where the first stage is enough."""
MANY = 50
"""Steps after which `enough` is enough; few tables need as many."""
HISTORY = 8
"""Past steps that the acceleration uses."""
SLOWNESS = (10.0, 100.0)
"""What is left to gain after a step of EM in what it gained, where few accelerated steps are
enough, and where they are not: at least."""
SMALL_MOVE = 0.3
"""Of all parameters in a step, below which one Newton step is an M-step, else two."""


class Stage(NamedTuple):
    """How exactly the likelihood is computed, and up to which share of it."""

    table: BitTable
    fineness: float  # of the nodes
    tolerance: float
    near: float  # of a parameter, by which it may have moved since its nodes were made
    slack: float  # of the loss, by which a step may lead up


class Fitted(NamedTuple):
    """Where a start led to."""

    values: Values
    losses: list[float]
    converged: bool
    way: list[np.ndarray]  # after each step, flat


def stages(table: BitTable, size: int, tolerance: float) -> list[Stage]:
    """What a climb goes through, of so many factors."""
    whole = Stage(table, 1.0, tolerance, 0.05, 1e-8)
    if table.few_rows:  # which have nodes of their own, a few each
        return [whole]
    return [Stage(table.single(), FINENESS[size], tolerance, 0.5, 1e-7), whole]


def climb(
    table: BitTable,
    values: Values,
    num_steps: int,
    tolerance: float,
    stop: Callable[[], bool] = lambda: False,
    prior: Prior | None = None,
    rough: bool = False,
    enough: float = 0.0,
) -> Fitted:
    """EM with Anderson steps, each of them taken back if it leads up; see `acceleration`.

    :param tolerance: of the loss that may be left to gain.
    :param rough: the first stage is enough, unless a weight is too large for it.
    :param enough: the same after `MANY` steps. A factor too many lets the weights of a column grow
        without bound, and every tenth of what is left then takes as many steps again.
    """
    columns, size = table.columns, len(values["weights"])
    ahead = stages(table, size, max(tolerance, NEAR) if rough else tolerance)
    stage, nodes = ahead.pop(0), None
    point = safe = made_for = columns.flat(values)
    best, before = np.inf, None
    losses: list[float] = []
    gains: list[float] = []
    way: list[np.ndarray] = []
    changes: list[np.ndarray] = []
    images: list[np.ndarray] = []
    steps = 2
    while len(losses) < num_steps and not stop():
        here = columns.whole(point, size)
        if ahead and np.abs(here["weights"]).max() > BLUNT:  # few nodes do not follow its curve
            stage, nodes, best = ahead.pop(0), None, np.inf
        near = stage.near * (1.0 + np.abs(point))
        if nodes is None or table.few_rows or not (np.abs(point - made_for) <= near).all():
            nodes, made_for = stage.table.nodes(here, stage.fineness, nodes), point
        ordered = columns.bits or (np.diff(here["bias"])[columns.inner[:-1]] < 0).all()
        sums = expect(stage.table, here, nodes) if ordered else None
        loss = np.inf if sums is None else sums.loss
        loss -= 0.0 if prior is None else prior.log_density(here)
        if sums is None or (not loss <= best + stage.slack * abs(best) and point is not safe):
            if point is safe:  # the start itself is out of order
                return Fitted(here, [np.inf], False, [point])
            point, before = safe, None
            changes, images = [], []
            continue
        after, gain = maximise(columns, here, nodes, sums, prior, steps)
        image = columns.flat(after)
        residual = image - point
        if np.abs(residual).max() < SMALL_MOVE:
            steps = 1
        losses.append(loss)
        gains.append(gain)
        way.append(image)
        if before is not None:
            changes = [residual - before[0], *changes][:HISTORY]
            images = [image - before[1], *images][:HISTORY]
        best, before, safe = min(best, loss), (residual, image), image
        wanted = max(stage.tolerance, enough if len(losses) > MANY else 0.0)
        if _left(gains) <= wanted * abs(loss):
            if rough or not ahead:
                return Fitted(here, losses, True, way)
            stage, nodes, best = ahead.pop(0), None, np.inf
        point = image
        if changes:
            table_of = np.array(changes).T
            share = np.linalg.lstsq(table_of, residual, rcond=1e-8)[0]
            point = image - share @ np.array(images)
    return Fitted(columns.whole(safe, size), losses, False, way)


def _left(gains: list[float]) -> float:
    """What is left to gain, from what steps of EM gained so far: their likelihoods are rounded, so
    that differences of these tell less.

    >>> _left([8.0, 1.0]), _left([1.0] * MANY)
    (80.0, 100.0)
    """
    return max(gains[-2:]) * SLOWNESS[len(gains) > MANY // 2]
