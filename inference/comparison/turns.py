"""Contenders in turn or side by side, each from its start to a row of the table."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import random

from ..baselines.pacing import BudgetError
from ..baselines.samplers import Draws
from ..reading.anatomy import ProgramError, inspect
from ..running import memory
from ..running.memory import DoesNotFitError
from .checks import Standing, Status
from .contenders import WITH_PRIOR, Contender, Limits, contenders
from .field import Setup, field_of
from .judge import Field, Judged, agree, judge
from .side_by_side import Task, Workers, as_done, shared

LARGEST = 1e6
"""Parameters beyond: sums of such terms keep no tenth of a nat in float32."""
MOST_ROUNDS = 8
"""Runs of a point estimate until two starts agree."""
SHORTEST = 0.5
"""Share of the longest run so far for which there must be room: the search before it, half of a
budget, is what finds an optimum."""

Ended = tuple[dict[str, Any], Judged | None]  # a row, and what is behind it


def in_turn(
    field: Field, picked: list[Contender], keys: list[Any], limits: Limits
) -> Iterator[tuple[str, Ended]]:
    for contender, key in zip(picked, keys, strict=True):
        yield contender.name, _run(field, contender, key, limits)


def tasks_of(
    setup: Setup, picked: list[Contender], keys: list[Any], limits: Limits, replicate: int
) -> dict[tuple[int, str], Task]:
    """The same for other processes. What takes longest must not begin last: of point estimates that
    is an exact E-step."""
    name = hashlib.sha256(pickle.dumps(setup)).hexdigest()
    kinds = ("sampler", "variational", "point")

    def order(task: tuple[Contender, Any]) -> tuple[int, bool]:
        return kinds.index(task[0].kind), task[0].name.removesuffix(" MAP") not in WITH_PRIOR

    longest = sorted(zip(picked, keys, strict=True), key=order)
    return {
        (replicate, one.name): Task(
            _elsewhere, (name, setup, one.name, np.asarray(random.key_data(key)), limits)
        )
        for one, key in longest
    }


def beside(
    pool: Workers, tasks: dict[tuple[int, str], Task], then: Callable[[], None] | None = None
) -> Iterator[tuple[str, Ended]]:
    """What comes of them, as they end."""
    for (_, method), ended in as_done(pool, tasks, then):
        if isinstance(ended, Exception):
            ended = no_row(Status.FAILED, "its process ended, perhaps for lack of memory"), None
        yield method, ended


def _elsewhere(name: str, setup: Setup, method: str, key: np.ndarray, limits: Limits) -> Ended:
    """One method, in a worker."""

    def make() -> tuple[Field, dict[str, Contender]]:
        field = field_of(setup)
        return field, contenders(inspect(field.model, *field.train_arguments))[0]

    field, known = shared(name, make)
    return _run(field, known[method], random.wrap_key_data(jnp.asarray(key)), limits)


def _run(field: Field, contender: Contender, key: Any, limits: Limits) -> Ended:
    """One method from start to row. Whatever goes wrong is a row that says so."""
    began = time.perf_counter()
    memory.start_peak()
    try:
        draws, engine = _rounds(field, contender, key, limits)
        peak = memory.peak()
        judged = judge(field, contender, draws, engine)
    except ProgramError as error:
        return no_row(Status.DOES_NOT_APPLY, str(error)), None
    except BudgetError as error:
        return no_row(Status.OUT_OF_BUDGET, str(error)), None
    except DoesNotFitError as error:
        return no_row(Status.DOES_NOT_FIT, str(error)), None
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        seconds = time.perf_counter() - began
        return no_row(Status.FAILED, words[:300], f" after {seconds:.0f} s"), None
    judged.row["peak_memory"] = peak
    largest = max(float(np.abs(x).max()) for x in draws.params.values())
    if largest > LARGEST:
        words = f"parameters as large as {largest:.0e}, at which float32 loses the likelihood"
        return no_row(Status.DIVERGED, words), None
    if not np.isfinite(judged.held_out).all():
        bad = int((~np.isfinite(judged.held_out)).sum())
        judged.row["status"] = Status.DIVERGED.value
        judged.row["reason"] = f"{bad} held-out rows have no finite likelihood"
    return judged.row, judged


def _rounds(field: Field, contender: Contender, key: Any, limits: Limits) -> tuple[Draws, Any]:
    """A run; of a point estimate whose starts disagree, more from others while there is room.

    Of two starts that end apart nothing says which one another would join; and where a method has
    few, whether they agree is chance, and a verdict with it.
    """
    draws, engine = contender.run(field.model, key, field.train_arguments, limits)
    longest, rounds = draws.seconds, MOST_ROUNDS if contender.kind == "point" else 1
    for number in range(1, rounds):
        if limits.seconds is None or agree(draws.starts, field.judges.num_train):
            break
        room = limits.seconds - draws.seconds
        if room < SHORTEST * longest:
            break
        more = limits._replace(seconds=room)
        other, again = contender.run(
            field.model, random.fold_in(key, number), field.train_arguments, more
        )
        longest = max(longest, other.seconds)
        engine = again if _best(other) < _best(draws) else engine
        draws = joined(draws, other)
    return draws, engine


def joined(one: Draws, other: Draws) -> Draws:
    """The better of two runs, as if the other had come first.

    >>> from latentbits.inference.running.contract import Stop
    >>> one, other = (
    ...     Draws({}, {}, np.ones(2), {}, np.array([1.0, 2.0]), 2.0, 0.5, "", Stop.STEPS, starts)
    ...     for starts in (np.array([5.0, 9.0]), np.array([7.0, 5.0]))
    ... )
    >>> joined(one, other).clock, joined(one, other).starts
    (array([3., 4.]), array([5., 9., 7., 5.]))
    """
    better, worse = (other, one) if _best(other) < _best(one) else (one, other)
    return better._replace(
        clock=better.clock + worse.seconds,
        seconds=one.seconds + other.seconds,
        compile_seconds=one.compile_seconds + other.compile_seconds,
        starts=np.concatenate([one.starts, other.starts]),
    )


def _best(draws: Draws) -> float:
    return float(np.fmin.reduce(draws.starts))


def no_row(status: Status, why: str, when: str = "") -> dict[str, Any]:
    """The row of a method without results.

    >>> no_row(Status.OUT_OF_BUDGET, "no draw was made")["reason"]
    'not finished when the budget ended: no draw was made'
    """
    if status is Status.OUT_OF_BUDGET:
        late = Standing.NOT_FINISHED
        return {"status": status.value, "reason": f"{late.value}: {why}", "standing": late.name}
    return {"status": status.value, "reason": f"{status.value}{when}: {why}"}
