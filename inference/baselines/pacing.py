"""A clock for what NumPyro runs: how long it may take, how much to do before it is read again."""

from __future__ import annotations

import numpy as np

from ..numerics import clock

MOST_DEPTH, LEAST_DEPTH = 10, 4
"""Of a trajectory of NUTS: 2^10 − 1 steps by default; what one draw may take of a budget is a
twentieth, or no clock could end it in time."""


class Budget:
    """Seconds that a run may take, counted from its first step by `numerics.clock`.

    >>> Budget(None).spent, Budget(0.0).spent
    (False, True)
    """

    def __init__(self, seconds: float | None):
        self.limit, self.began = seconds, clock.seconds()

    @property
    def seconds(self) -> float:
        return clock.seconds() - self.began

    @property
    def spent(self) -> bool:
        return self.limit is not None and self.seconds >= self.limit


class Pace:
    """How many steps to take before the clock is read again: no more than the budget has room for.

    Blocks grow while one takes less than a fiftieth of the budget.
    """

    def __init__(self, timer: Budget, most: int):
        self.timer, self.most, self.size = timer, most, 1 if timer.limit is not None else most
        self.last: tuple[float, int] | None = None

    def next(self, left: int) -> int:
        now = self.timer.seconds
        if self.last is not None and self.timer.limit is not None:
            each = max((now - self.last[0]) / self.last[1], 1e-9)
            if each * 2 * self.size < self.timer.limit / 50:
                self.size *= 2
            room = int(max(self.timer.limit - now, 0.0) / each)
            self.size = max(1, min(self.size, room))
        count = max(1, min(self.size, self.most, left))
        self.size, self.last = min(self.size, self.most), (now, count)
        return count


class BudgetError(RuntimeError):
    """Nothing was finished in the time given."""


def depth_within(gradient: float, budget: float | None) -> int:
    """The depth at which one trajectory takes at most a twentieth of the budget.

    >>> depth_within(0.001, None), depth_within(0.001, 20.0), depth_within(0.01, 20.0)
    (10, 9, 6)
    """
    if budget is None:
        return MOST_DEPTH
    steps = max(0.05 * budget / max(gradient, 1e-9), 1.0)
    return int(np.clip(np.floor(np.log2(steps)), LEAST_DEPTH, MOST_DEPTH))
