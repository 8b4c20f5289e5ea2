"""Compiled blocks of steps against a clock, for what NumPyro runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ..compiling import executable
from ..rows.devices import OneDevice
from ..running import clock

MOST_DEPTH, LEAST_DEPTH = 10, 4
"""Of a trajectory of NUTS: 2^10 − 1 steps by default; what one draw may take of a budget is a
twentieth, or no clock could end it in time."""


class Budget:
    """Seconds that a run may take, counted from its first step by `running.clock`.

    >>> Budget(None).spent, Budget(0.0).spent
    (False, True)
    """

    def __init__(self, seconds: float | None):
        self.limit, self.began = seconds, clock.seconds()

    @property
    def seconds(self) -> float:
        return clock.seconds() - self.began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what runs within."""
        before = clock.seconds()
        yield
        self.began += clock.seconds() - before

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


class Course(NamedTuple):
    """Steps that were taken in blocks."""

    state: Any  # after the last step
    done: int
    ends: tuple[int, ...]  # steps done after each block
    seconds: tuple[float, ...]  # on the clock after each block
    results: tuple[Any, ...]  # of each block, arrays with an entry for each step
    seen: tuple[Any, ...]  # what `look` gave after each block


def in_blocks(
    advance: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    num_steps: int,
    timer: Budget,
    most: int,
    least: int = 0,
    look: Callable[[Any], Any] = lambda _: None,
) -> Course:
    """Steps in blocks until all are done or the budget is spent.

    :param advance: from a state and a number of steps to the next state and arrays with `most`
        entries, of which one for each step is used.
    :param most: steps of a block.
    :param least: steps that are taken whatever the clock says.
    """
    pace, done, blocks = Pace(timer, most), 0, []
    while done < num_steps and (done < least or not timer.spent):
        count = pace.next(num_steps - done)
        state, results = jax.block_until_ready(advance(state, np.int32(count)))
        results = jax.tree.map(lambda x: np.asarray(x)[:count], results)  # noqa: B023
        done += count
        blocks.append((done, timer.seconds, results, look(state)))
    return Course(state, done, *(zip(*blocks, strict=True) if blocks else 4 * [()]))


def lower(function: Callable, device: OneDevice, *inputs: Any) -> Any:
    """`function(*inputs, args, kwargs)` compiled as a function of the rows and the inputs.

    It holds no rows, and serves other rows of the same shapes.
    """
    hollow = device._replace(arrays=[])

    def whole(arrays: list[Array], *inputs: Any) -> Any:
        return function(*inputs, *hollow.arguments(arrays))

    return jax.jit(whole).lower(device.arrays, *inputs).compile()


def results(compiled: Any) -> Any:
    """The shapes of the results of a compiled function."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), compiled.out_info)


def kept(make: Callable[[], Any], device: OneDevice, inputs: Any, *settings: Any) -> Any:
    """What `make` compiles, or compiled before for equal settings and the same shapes."""
    return executable(make, (inputs, device.arrays), *settings, device.static, device.tree)


def timed(compiled: Any, device: OneDevice, *inputs: Any) -> tuple[Any, float]:
    """The result of a compiled function, and the seconds it took."""
    before = clock.seconds()
    result = jax.block_until_ready(compiled(device.arrays, *inputs))
    return result, clock.seconds() - before


class BudgetError(RuntimeError):
    """Nothing was finished in the time given.

    :param chains: where a sampler stopped, if it can go on.
    """

    def __init__(self, words: str, chains: Any = None):
        super().__init__(words, chains)
        self.chains = chains

    def __str__(self) -> str:
        return str(self.args[0])


def depth_within(gradient: float, budget: float | None) -> int:
    """The depth at which one trajectory takes at most a twentieth of the budget.

    >>> depth_within(0.001, None), depth_within(0.001, 20.0), depth_within(0.01, 20.0)
    (10, 9, 6)
    """
    if budget is None:
        return MOST_DEPTH
    steps = max(0.05 * budget / max(gradient, 1e-9), 1.0)
    return int(np.clip(np.floor(np.log2(steps)), LEAST_DEPTH, MOST_DEPTH))
