"""The one loop that drives every method: compiled once, run in blocks, saved as it goes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from ..compiling import remembered
from ..reading.tracing import ProgramError
from ..rows.chunks import counted, counting
from ..rows.devices import Devices, OneDevice, devices_of, using
from ..types import Params
from . import clock
from .checkpoint import Checkpoint
from .contract import DivergedError, Method, RunResult, Stop

BLOCK_SECONDS = 0.25
"""Blocks grow while they take less: so often is the bar moved, the clock read and Ctrl-C heard."""
SLACK = 0.05
"""Share of a budget by which the last step may end late, if it takes as long as the one before: of
steps that differ, a tenth."""


class Drive(NamedTuple):
    """How to run a method; see `Algorithm.run`."""

    num_steps: int
    progress_bar: bool
    tolerance: float | None
    record: Callable[[Params], Any] | None
    budget: float | None
    checkpoint_every: float
    mesh: Mesh | None

    @property
    def room(self) -> int:
        """Losses that are kept: runs of any length share what is compiled, up to twice as long."""
        return 1 << max(6, (self.num_steps - 1).bit_length())

    def has_room(self, spent: float, seconds: float) -> bool:
        """Whether so many seconds more are within the budget."""
        return self.budget is None or spent + seconds <= (1.0 + SLACK) * self.budget


class Spent(NamedTuple):
    """What a search before a run took."""

    seconds: float = 0.0
    compile_seconds: float = 0.0
    step_seconds: float = 0.0  # of a step of the run, where one was taken already


class Progress(NamedTuple):
    """Where a run stands."""

    state: Any
    good: Any  # the last state but one: the loss of `state` itself is not known yet
    losses: Array
    history: Any
    step: Array
    change: Array


def drive(
    method: Method,
    start: Callable[[], tuple[Any, Spent]],
    args: tuple,
    kwargs: dict[str, Any],
    how: Drive,
    saved: Checkpoint | None = None,
) -> RunResult:
    """Run `update` until there is a reason to stop.

    :param start: the state to begin with, or the progress that a search for it has made already,
        and what of the budget that took.

    A block is written over the one before it: of a state with an entry for each datum no more is
    held than the last, the last but one and the next.
    """
    devices = devices_for(method, args, kwargs, how.mesh)
    with using(how.mesh):
        first, search = start()
        progress = first if isinstance(first, Progress) else first_progress(method, first, how)
        del first  # its arrays are written over
    if saved is not None:
        progress = saved.resume(progress, how.num_steps)
    progress = devices.place(progress)
    limit = np.asarray(-1.0 if how.tolerance is None else how.tolerance, progress.change.dtype)

    began = time.perf_counter()
    block = block_of(method, devices, how.record, progress)
    count = counted()
    progress = block(progress, (np.int32(0), limit, count), devices.arrays)  # it is compiled
    compile_seconds = time.perf_counter() - began

    began, done, size = clock.seconds() - search.seconds, int(progress.step), 1
    last_saved = time.perf_counter()
    over, stop = done > 0 and not how.has_room(search.seconds, search.step_seconds), False
    each = search.step_seconds or np.inf
    with _bar(method, how, done) as bar, interrupts() as interrupted:
        while done < how.num_steps and np.asarray(progress.change) > limit and not (over or stop):
            block_began, computed = time.perf_counter(), clock.seconds()
            end = np.int32(min(done + size, how.num_steps))
            progress = block(progress, (end, limit, count), devices.arrays)
            new = int(progress.step)
            bar.update(new - done)
            last, each = each, (clock.seconds() - computed) / max(new - done, 1)
            longer = max(each, 2 * each - last)  # a step with a loop within may take ever longer
            done, spent, now = new, clock.seconds() - began, time.perf_counter()
            slow, long, due, over, stop = devices.agree([
                now - block_began > BLOCK_SECONDS or not how.has_room(spent, 2 * size * each),
                not how.has_room(spent, size * each),
                saved is not None and now - last_saved > how.checkpoint_every,
                how.budget is not None and (spent > how.budget or not how.has_room(spent, longer)),
                bool(interrupted),
            ])  # fmt: skip
            size = 1 if long else size if slow else 2 * size
            if saved is not None and due:
                saved.save(devices.gather(progress))
                last_saved = time.perf_counter()
            if not bar.disable:  # a number fetched from a GPU takes as long as a quick step
                bar.set_postfix_str(f"loss {float(progress.losses[done - 1]):.6g}", refresh=False)
    seconds = clock.seconds() - began

    progress = devices.gather(progress)
    params = method.get_params(progress.state)
    problem = _not_finite(progress, params, done)
    if problem:
        where = "" if saved is None else f"; the last good state is in {saved.keep(progress.good)}"
        raise DivergedError(f"{problem}{where}", progress.good)
    if saved is not None:
        saved.save(progress)
    why, reason = Stop.STEPS, Stop.STEPS.value
    if not np.asarray(progress.change) > limit:
        why, reason = Stop.TOLERANCE, f"{Stop.TOLERANCE.value} {how.tolerance} of the loss"
    elif stop or done < how.num_steps:
        why = Stop.INTERRUPTED if stop else Stop.BUDGET
        reason = f"{why.value} {done} of {how.num_steps} steps"
    losses, history = jax.tree.map(lambda x: x[:done], (progress.losses, progress.history))
    return RunResult(
        params, progress.state, losses, reason, seconds, compile_seconds + search.compile_seconds,
        history, why, search_seconds=search.seconds,
    )  # fmt: skip


def first_progress(method: Method, state: Any, how: Drive) -> Progress:
    """A run before its first step, in one compiled piece."""
    return remembered(partial(begin, copy(method), how.room, how.record))(state)


def begin(
    method: Method, room: int, record: Callable[[Params], Any] | None, state: Any
) -> Progress:
    """A run before its first step."""
    recorded = None if record is None else record(method.get_params(state))
    losses = jnp.full(room, jnp.nan, float)
    history = jax.tree.map(lambda x: jnp.zeros((room, *x.shape), x.dtype), recorded)
    # Copies: the caller's state is not written over, nor is one array in two places.
    state, good = (jax.tree.map(_copy, state) for _ in range(2))
    change = jnp.full((), jnp.inf, float)
    return Progress(state, good, losses, history, jnp.zeros((), int), change)


def _copy(x: Any) -> Array:
    """A copy of the type that a step gives: a weak one would make it compile a second time."""
    return jnp.array(x, jnp.asarray(x).dtype)


def devices_for(
    method: Method, args: tuple, kwargs: dict[str, Any], mesh: Mesh | None = None
) -> Devices | OneDevice:
    """Where the rows of a run are."""
    why = f"{type(method).__name__} takes no mesh: {method.why_no_mesh}"
    try:
        num_data = method.num_rows(args, kwargs)
    except ProgramError:
        if mesh is not None:
            raise
        num_data = 0  # a chain has steps, and a method may read a program in its own way
    return devices_of(args, kwargs, mesh, by_row=method.by_row, num_data=num_data, why=why)


def block_of(
    method: Method,
    devices: Devices | OneDevice,
    record: Callable[[Params], Any] | None,
    progress: Progress,
) -> Callable[[Progress, tuple, list], Progress]:
    """Steps up to a number of them or until the loss changes by no more than a limit.

    Of the method and the arguments it holds settings and sizes, no rows: the next run of an equal
    method, on other rows of the same shapes, uses it again.
    """
    method, hollow = copy(method), devices._replace(arrays=[])

    def advance(arrays: list[Array], p: Progress) -> Progress:
        args, kwargs = hollow.arguments(arrays)
        state, loss = method.update(p.state, *args, **kwargs)
        loss = loss.astype(p.losses.dtype)
        wide = method.window
        last, first = (p.losses[jnp.maximum(p.step - n * wide, 0)] for n in (1, 2))
        fall, before = jnp.abs(loss - last), jnp.abs(last - first)
        # Small steps towards a distant end are not the end: Aitken's estimate of what is left.
        known = (p.step >= 2 * wide) & (before > 0)
        rate = jnp.where(known, jnp.clip(fall / before, 0.0, 0.99**wide), 0.0)
        left = jnp.maximum(fall, fall * rate / (1.0 - rate))
        done = (p.step >= wide) & jnp.asarray(method.may_stop(state))
        change = jnp.where(done, left / (1e-30 + jnp.abs(loss)), jnp.inf)
        # A loss that is no number ends the loop: NaN is never larger than the limit.
        change = jnp.where(jnp.isfinite(loss), change, jnp.nan)
        losses = p.losses.at[p.step].set(loss)
        recorded = None if record is None else record(method.get_params(state))
        history = jax.tree.map(lambda h, x: h.at[p.step].set(x), p.history, recorded)
        # The loss is that of the state passed in: where it is no number, that state is bad.
        # (A branch, which moves arrays: to select is to compile a loop for each of them.)
        state, good = lax.cond(
            jnp.isfinite(loss), lambda new: (new, p.state), lambda _: (p.state, p.good), state
        )
        return Progress(state, good, losses, history, p.step + 1, change)

    def block(progress: Progress, bounds: tuple, arrays: list[Array]) -> Progress:
        end, limit, count = bounds

        def unfinished(p: Progress) -> Array:
            return (p.step < end) & (p.change > limit)

        with counting(count):
            return lax.while_loop(unfinished, partial(advance, arrays), progress)

    return remembered(hollow.spread(block, progress), donate_argnums=0)


def _not_finite(progress: Progress, params: Params, done: int) -> str | None:
    """What is no number any more, in words, or None."""
    bad = [site for site, x in params.items() if not np.isfinite(np.asarray(x)).all()]
    if np.isnan(progress.change):
        loss = float(progress.losses[done - 1])
        what = f"{bad[0]!r} is not finite" if bad else (
            "the parameters are finite; the log density of the data under them is not"
        )  # fmt: skip
        return f"the loss is {loss} at step {done}: {what}"
    return f"{bad[0]!r} is not finite after step {done}" if bad else None


def _bar(method: Any, how: Drive, done: int) -> Any:
    from tqdm import tqdm

    visible = how.progress_bar and sys.stderr.isatty() and "CI" not in os.environ
    name = type(getattr(method, "method", method)).__name__  # of what is started several times
    return tqdm(desc=name, total=how.num_steps, initial=done, disable=not visible)


@contextmanager
def interrupts() -> Iterator[list]:
    """Collects Ctrl-C, so that no block is lost; a second one is not waited for."""
    interrupted: list = []
    outside = threading.current_thread() is not threading.main_thread()
    if outside or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as `nohup` and `&` have it
        yield interrupted
        return

    def note(number: int, frame: Any) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append((number, frame is not None))

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
