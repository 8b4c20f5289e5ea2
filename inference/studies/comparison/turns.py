"""Contenders in turn or side by side, each from its start to a row of the table."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import random

from ...baselines.pacing import BudgetError
from ...numerics import memory
from ...numerics.memory import DoesNotFitError
from ...reading.anatomy import ProgramError, inspect
from .checks import Status
from .contenders import Contender, Limits, contenders
from .field import Setup, field_of
from .judge import Field, Judged, judge
from .side_by_side import Task, as_done, shared

LARGEST = 1e6
"""Parameters beyond: sums of such terms keep no tenth of a nat in float32."""

Ended = tuple[dict[str, Any], Judged | None]  # a row, and what is behind it


def in_turn(
    field: Field, picked: list[Contender], keys: list[Any], limits: Limits
) -> Iterator[tuple[str, Ended]]:
    for contender, key in zip(picked, keys, strict=True):
        yield contender.name, _run(field, contender, key, limits)


def beside(
    pool: ProcessPoolExecutor,
    setup: Setup,
    picked: list[Contender],
    keys: list[Any],
    limits: Limits,
) -> Iterator[tuple[str, Ended]]:
    """The same in other processes. What takes longest must not begin last."""
    name = secrets.token_hex()
    kinds = ("sampler", "variational", "point")
    longest = sorted(zip(picked, keys, strict=True), key=lambda x: kinds.index(x[0].kind))
    tasks = {
        one.name: Task(
            _elsewhere, (name, setup, one.name, np.asarray(random.key_data(key)), limits)
        )
        for one, key in longest
    }
    for method, ended in as_done(pool, tasks):
        if isinstance(ended, Exception):
            ended = no_row(Status.FAILED, "its process ended, of memory say"), None
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
        draws, engine = contender.run(field.model, key, field.train_arguments, limits)
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


def no_row(status: Status, why: str, when: str = "") -> dict[str, Any]:
    """The row of a method without results."""
    return {"status": status.value, "reason": f"{status.value}{when}: {why}"}
