"""One program at many sizes: what a survey runs, and what it keeps of each run.

A cell is one size of a program: rows, columns and latents of a row. Its truth is drawn at that size
(`studies.cards`), its contenders and their judgement are those of `comparison`. What is found of a
method is written as soon as it is there, with its whole way to the end: the time to any excess is
read off later, and what is finished is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random
from latentbits.models.data import InputError

from latentbits import models

from ...reading.anatomy import inspect
from ..cards import CARDS, Growth, draw_rows
from ..comparison.checks import Status, standing
from ..comparison.compare import compare
from ..comparison.contenders import chosen
from ..comparison.judge import Judged
from ..comparison.turns import no_row
from ..output import as_json, read_json, versions, write_whole

AXES = ("rows", "columns", "latents")
GROWN = {"rows": (0.25, 1.0, 4.0), "columns": (0.5, 1.0, 2.0), "latents": (0.5, 1.0, 1.5, 2.0)}
"""Multiples of the example's size, along each axis, by default."""
KEPT = ("status", "reason", "bespoke", "kind", "excess", "excess_error", "seconds",
        "compile_seconds", "peak_memory")  # fmt: skip
"""Of a method's row."""
NUM_FRESH = 4000
"""Rows that judge: at 0.05 nats the error of fewer does not matter."""
NOT_RUN = "not run"
"""The status of a method whose turn did not come."""


class Cell(NamedTuple):
    """A size of a program; no latents: it has none."""

    rows: int
    columns: int
    latents: int

    @property
    def name(self) -> str:
        return "x".join(map(str, self))


class Settings(NamedTuple):
    """What every cell is run with."""

    budget: float
    memory: float | None = None  # bytes
    seed: int = 0
    methods: tuple[str, ...] | None = None  # None: all that apply


def base_of(growth: Growth) -> Cell:
    return Cell(growth.rows, growth.columns, growth.latents or 0)


def sizes_of(growth: Growth, asked: dict[str, list[int] | None]) -> dict[str, list[int]]:
    """The sizes along each axis, ascending, the example's own among them.

    :param asked: axis -> sizes; None: the default ones. An axis that is not there is left out.

    >>> sizes_of(CARDS["latent_trait"].grown, {"rows": [100], "latents": None})
    {'rows': [100, 600], 'latents': [1, 2, 3, 4]}
    """
    axes = {}
    for axis, sizes in asked.items():
        own = getattr(base_of(growth), axis)
        if own == 0:
            continue
        some = [max(1, round(own * x)) for x in GROWN[axis]] if sizes is None else sizes
        axes[axis] = sorted({*some, own})
    return axes


def cells_of(growth: Growth, sizes: dict[str, list[int]]) -> list[Cell]:
    """Every cell once, the smallest first: each axis grows alone.

    >>> cells_of(CARDS["bernoulli_product"].grown, {"rows": [1000, 4000], "columns": [32, 64]})
    [Cell(rows=1000, columns=64, latents=0), Cell(rows=4000, columns=32, latents=0), Cell(rows=4000, columns=64, latents=0)]
    """  # noqa: E501
    base = base_of(growth)
    cells = {base._replace(**{axis: x}) for axis, some in sizes.items() for x in some}
    return sorted(cells, key=lambda x: (x.rows * x.columns * (1 + x.latents), x))


def open_cell(folder: Path, program: str, cell: Cell, settings: Settings) -> dict[str, Any]:
    """What is known of a cell; an error if it was made otherwise."""
    made = {
        "program": program, "cell": list(cell), "budget": settings.budget, "seed": settings.seed,
        "device": jax.default_backend(),
    }  # fmt: skip
    file = folder / f"{cell.name}.json"
    if not file.exists():
        return {**made, **versions(), "methods": {}}
    known = read_json(file)
    for name, value in made.items():
        if known.get(name) != value:
            raise InputError(
                f"{file}: made with {name} {known.get(name)}, not {value}: choose another --out"
            )
    return known


def run_cell(
    program: str,
    cell: Cell,
    settings: Settings,
    folder: Path,
    until: float | None = None,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run what is missing of a cell, and give all that is known of it.

    :param until: of `time.time`, after which no further method begins.
    """
    known = open_cell(folder, program, cell, settings)
    if until is not None and time.time() > until:
        return known
    truth = CARDS[program].grown.make(*cell)
    model = getattr(models, program)
    values = draw_rows(program, truth, 2 * settings.seed + 1, cell.rows)
    wanted = None if settings.methods is None else list(settings.methods)
    anatomy = inspect(model, (values,), truth.sizes)
    picked, refused = chosen(anatomy, wanted)
    for name, why in refused.items():
        known["methods"][name] = no_row(Status.DOES_NOT_APPLY, why)
    missing = [x.name for x in picked if x.name not in known["methods"]]
    known["parameters"] = int(sum(np.size(x) for x in truth.params.values()))
    judged: dict[str, Judged] = {}

    def done(name: str, row: dict[str, Any]) -> None:
        known["methods"][name] = _kept(row, judged.get(name))
        write_whole(folder / f"{cell.name}.json", as_json(known), "--out")
        if on_result is not None:
            on_result(name, row)
        if until is not None and time.time() > until:
            raise KeyboardInterrupt  # as one would: what is finished stays

    if not missing:
        return known
    try:
        compare(
            model, values, missing, truth=truth.params, budget=settings.budget,
            limit=settings.memory, fresh=partial(draw_rows, program, truth, 2 * settings.seed + 2),
            rng_key=random.key(settings.seed), name=program, num_fresh=NUM_FRESH, on_result=done,
            keep=judged, **truth.sizes,
        )  # fmt: skip
    except Exception as error:  # what judges them all has failed: the other cells go on
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        failed = no_row(Status.FAILED, f"it could not be judged ({why})")
        known["methods"] |= {x: failed for x in missing if x not in known["methods"]}
        write_whole(folder / f"{cell.name}.json", as_json(known), "--out")
    return known


def _kept(row: dict[str, Any], judged: Judged | None) -> dict[str, Any]:
    """Of a method: its numbers, what its checks say, and its excess over the truth in time."""
    numbers = {x: row.get(x) for x in KEPT}
    if judged is None:
        return numbers
    path = np.append(judged.path[:-1], row["held_out"])
    true = row["excess"] + row["held_out"]  # the mean over rows of the truth's own score
    return {
        **numbers,
        "checks": standing(row).name.lower(),
        "path": (true - path).tolist(),
        "clock": np.asarray(judged.clock).tolist(),
    }
