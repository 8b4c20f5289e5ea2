"""Which method is first at which size of the table and the program.

    python benchmarks/survey.py MODEL [--rows N,…] [--columns N,…] [--latents N,…] [--within 0.05]
                                [--methods A,B,…] [--budget 20] [--total SECONDS] [--out DIR]

Rows, columns and latents of a program grow one after another. A cell is one size; its truth is
drawn at that size (`survey_truths`), its contenders and their judgement are those of `compare`.
Each result is written when it is there: the same command goes on, and the time to another excess is
read off without running anything.

A method has arrived when its excess over the truth stays at most `within` nats per row above
p / 2n, the expected excess of maximum likelihood with p parameters and n rows.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentbits.models.data import InputError
from survey_truths import GROWTHS, Growth

from inference.comparison.checks import SCORE, Status, wrong
from inference.comparison.compare import compare
from inference.comparison.contenders import chosen
from inference.comparison.judge import Judged, no_row
from inference.comparison.verdict import arrival
from inference.files.cards import draw_rows
from inference.files.catalogue import find_program
from inference.files.figures import MANY, Figure
from inference.files.option import SEED, Option, add, settled
from inference.files.output import (
    as_csv,
    as_json,
    check_folder,
    draw_picture,
    read_json,
    versions,
    write_whole,
)
from inference.reading.anatomy import inspect
from latentbits import models

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

    >>> sizes_of(GROWTHS["latent_trait"], {"rows": [100], "latents": None})
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

    >>> cells_of(GROWTHS["bernoulli_product"], {"rows": [1000, 4000], "columns": [32, 64]})
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
    truth = GROWTHS[program].make(*cell)
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
            model, values, missing, truth=truth.params, limit=settings.budget,
            memory=settings.memory, fresh=partial(draw_rows, program, truth, 2 * settings.seed + 2),
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
        "checks": "; ".join(wrong(row, SCORE).values()),
        "path": (true - path).tolist(),
        "clock": np.asarray(judged.clock).tolist(),
    }


PAIRS = (
    ("BoundEM", "QuadratureEM"), ("BoundEM", "MonteCarloEM"), ("MomentInversion", "NUTS"),
    ("TruncatedEM", "EM"), ("TruncatedEM", "NUTS"), ("EM", "NUTS"), ("QuadratureEM", "NUTS"),
    ("GibbsEM", "EM"),
)  # fmt: skip
"""Pairs of methods whose crossover size is reported."""
GIBBS = ("GibbsEM", "GibbsSearch", "LatentGibbs", "GradientFlips", "DiscreteGibbs")


class Place(NamedTuple):
    """One method in one cell."""

    cell: Cell
    method: str
    row: dict[str, Any]
    seconds: float | None  # to the excess asked for; None: it did not arrive

    @property
    def late(self) -> float:
        """The same as a number: it never arrives in infinite time."""
        return math.inf if self.seconds is None else self.seconds

    @property
    def doubted(self) -> bool:
        return bool(self.row.get("checks"))


def target_of(known: dict[str, Any], within: float) -> float:
    """The excess at which a method has arrived, in nats per row."""
    return within + known["parameters"] / (2.0 * known["cell"][0])


def places(cells: Iterable[dict[str, Any]], within: float) -> list[Place]:
    """All methods of all cells, but those that apply in none; what was not run says so."""
    known = list(cells)
    methods = dict.fromkeys(x for one in known for x in one["methods"])
    applies = [
        x for x in methods
        if any(one["methods"].get(x, {}).get("status") not in (None, Status.DOES_NOT_APPLY.value)
               for one in known)
    ]  # fmt: skip
    placed = []
    for one in known:
        for name in applies:
            row = one["methods"].get(name, {"status": NOT_RUN, "reason": "its turn did not come"})
            seconds = None
            if "path" in row:
                near = np.array(row["path"], float) <= target_of(one, within)
                seconds = arrival(near, np.array(row["clock"]))
            placed.append(Place(Cell(*one["cell"]), name, row, seconds))
    return placed


def table(placed: list[Place]) -> dict[str, list[Any]]:
    """The columns of a CSV file."""
    shown: dict[str, list[Any]] = {
        "rows": [x.cell.rows for x in placed],
        "columns": [x.cell.columns for x in placed],
        "latents": [x.cell.latents for x in placed],
        "method": [x.method for x in placed],
        "seconds_to_excess": [x.seconds for x in placed],
    }
    for name in ("excess", "excess_error", "seconds", "compile_seconds", "peak_memory", "status",
                 "checks", "reason"):  # fmt: skip
        shown[name] = [x.row.get(name) for x in placed]
    return {name: ["" if x is None else x for x in each] for name, each in shown.items()}


def along(placed: list[Place], axis: str, base: Cell) -> dict[int, dict[str, Place]]:
    """Size -> method -> place, along one axis."""
    line = [x for x in placed if x.cell._replace(**{axis: 0}) == base._replace(**{axis: 0})]
    sizes = sorted({getattr(x.cell, axis) for x in line})
    return {size: {x.method: x for x in line if getattr(x.cell, axis) == size} for size in sizes}


def sentences(placed: list[Place], axis: str, base: Cell) -> list[str]:
    """Who is first at which size, who overtakes whom, and who is left."""
    line = along(placed, axis, base)
    said = [*_firsts(line, axis)]
    for pair in PAIRS:
        words = _crossing(line, axis, *pair)
        said += [words] if words else []
    return said + _left(line, axis)


def _arrived(each: dict[str, Place]) -> list[Place]:
    return sorted((x for x in each.values() if x.seconds is not None), key=lambda x: x.late)


def _firsts(line: dict[int, dict[str, Place]], axis: str) -> Iterable[str]:
    """Runs of sizes with the same first method."""
    first = [(size, next(iter(_arrived(each)), None)) for size, each in line.items()]
    for name, some in groupby(first, key=lambda x: x[1] and x[1].method):
        run = list(some)
        where = _range([size for size, _ in run], axis)
        if name is None:
            left = any(x.row["status"] == NOT_RUN for size, _ in run for x in line[size].values())
            none = "no method that was run" if left else "no method"
            yield _sentence(f"{where} {none} arrives{_nearest(line[run[-1][0]])}")
            continue
        times = " to ".join(dict.fromkeys(_seconds(x.seconds) for _, x in (run[0], run[-1]) if x))
        doubted = any(x is not None and x.doubted for _, x in run)
        though = ", though its checks do not pass" if doubted else ""
        yield _sentence(f"{where} {name} is first, in {times}{though}")


def _nearest(each: dict[str, Place]) -> str:
    ended = [x for x in each.values() if x.row.get("excess") is not None]
    if not ended:
        return ""
    best = min(ended, key=lambda x: x.row["excess"])
    return f" ({best.method} ends {best.row['excess']:.2f} nats per row from the truth)"


def _crossing(line: dict[int, dict[str, Place]], axis: str, a: str, b: str) -> str | None:
    """Where the first of two stops, or begins, to arrive before the second."""
    sides = []
    for size, each in line.items():
        if any(x not in each or each[x].row["status"] == NOT_RUN for x in (a, b)):
            continue
        one, other = each[a].late, each[b].late
        if min(one, other) < math.inf:
            sides.append((size, one <= other, each))
    if not sides:
        return None
    runs = [(ahead, list(some)) for ahead, some in groupby(sides, key=lambda x: x[1])]
    parts = []
    for ahead, run in runs:
        name, beaten = (a, b) if ahead else (b, a)
        size, _, each = run[-1]
        time, late = _seconds(each[name].seconds), each[beaten]
        if late.seconds is not None:
            detail = f"{time} against {_seconds(late.seconds)}"
        elif late.row.get("excess") is None:
            detail = f"{time}; {beaten}: {late.row['status']}"
        else:
            detail = f"{time}; {beaten} ends {late.row['excess']:.2f} nats per row from the truth"
        last = f"at {size}: " if len(run) > 1 else ""
        where = _range([x[0] for x in run], axis)
        parts.append(f"{where} {name} is before {beaten} ({last}{detail})")
    return _sentence("; ".join(parts))


def _left(line: dict[int, dict[str, Place]], axis: str) -> list[str]:
    """Sizes at which one method, or the Gibbs samplers alone, arrive."""
    said = []
    for size, each in line.items():
        if any(x.row["status"] == NOT_RUN for x in each.values()):
            continue  # of these nothing is known
        names = [x.method for x in _arrived(each)]
        where = _range([size], axis)
        if len(names) == 1 < len(each):
            said.append(_sentence(f"{where} {names[0]} is the only one left"))
        elif names and all(x in GIBBS for x in names):
            said.append(_sentence(f"{where} only Gibbs is left ({', '.join(names)})"))
    return said


def _range(sizes: list[int], axis: str) -> str:
    if len(sizes) > 1:
        return f"from {sizes[0]} to {sizes[-1]} {axis}"
    return f"at {sizes[0]} {axis[:-1] if sizes == [1] else axis}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _seconds(value: float | None) -> str:
    assert value is not None
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def text(program: str, placed: list[Place], sizes: dict[str, list[int]], base: Cell,
         within: float, device: str) -> str:  # fmt: skip
    """The whole of it, for a terminal and a file."""
    clock = "processor seconds" if device == "cpu" else f"seconds on a {device}"
    lines = [
        f"{program}: {clock} until a method is, for good, within {within:g} nats per row of what "
        "maximum likelihood with p parameters expects from n rows (p / 2n above the truth); "
        "compiling apart."
    ]
    for axis in sizes:
        rest = [f"{getattr(base, x)} {x}" for x in ("rows", "columns", "latents")
                if x != axis and getattr(base, x)]  # fmt: skip
        lines += ["", f"{axis} grow ({', '.join(rest)}):"]
        lines += [f"  {x}" for x in sentences(placed, axis, base)]
    ended = sum(x.row["status"] == NOT_RUN for x in placed)
    if ended:
        lines += ["", f"{ended} runs did not come to their turn; the same command goes on."]
    return "\n".join(lines) + "\n"


LINES = ("-", "--", ":")
MARKERS = ("o", "s", "^")


def draw(
    program: str, placed: list[Place], sizes: dict[str, list[int]], base: Cell, device: str
) -> Figure:
    """One panel per axis. Hollow: its checks do not pass. Crosses above: it does not arrive."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    methods = list(dict.fromkeys(x.method for x in placed))
    style = {
        name: (MANY[i % len(MANY)], LINES[i // len(MANY) % 3], MARKERS[i % 3])
        for i, name in enumerate(methods)
    }
    times = [x.seconds for x in placed if x.seconds is not None] or [1.0]
    low, high = min(times) / 2, max(times) * 2
    # Not wider than a page of text: names in the legend are read there.
    figure = Figure(figsize=(max(2.9 * len(sizes) + 0.6, 6.4), 4.2 + 0.25 * -(-len(methods) // 4)))
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, (axis, places) in zip(panels, sizes.items(), strict=True):
        line = along(placed, axis, base)
        for number, name in enumerate(methods):
            colour, dash, marker = style[name]
            here = [(size, each[name]) for size, each in line.items() if name in each]
            there = [(size, x) for size, x in here if x.seconds is not None]
            axes.plot(
                [size for size, _ in there], [x.seconds for _, x in there],
                dash, color=colour, label=name, marker=marker, ms=6, zorder=2,
            )  # fmt: skip
            for size, x in there:
                if x.doubted:
                    axes.plot(size, x.seconds, marker, color=colour, mfc="white", ms=6, zorder=3)
            # In ranks above the panel's times, so that none hides another.
            ran = [(size, x) for size, x in here if x.row["status"] != NOT_RUN]
            late = [size for size, x in ran if x.seconds is None]
            above = high * (high / low) ** (0.035 * (number + 1))
            axes.plot(late, [above] * len(late), "x", color=colour, ms=5)
        axes.axhline(high, color="#999999", lw=0.6)
        axes.set(xscale="log", yscale="log", xlabel=axis)
        axes.set_xticks(places, [str(x) for x in places])
        axes.minorticks_off()
    panels[0].set_ylim(low, high * (high / low) ** (0.035 * (len(methods) + 1)))
    if high < 100 * low:  # of one power of ten nothing could be read off
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].set_ylabel("CPU seconds" if device == "cpu" else f"seconds ({device})")
    below = "; " if len(sizes) > 2 else "\n"
    panels[0].set_title(f"{program}{below}crosses: does not arrive, hollow: its checks do not pass")
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if len(sizes) > 2 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
    return figure


def numbers(text: str) -> list[int]:
    """Sizes of an axis; none leaves it out."""
    some = [] if text == "none" else [int(x) for x in text.split(",")]
    if min(some, default=1) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers from 1 on: N,N,…")
    return some


def axis_option(what: str) -> Option:
    words = f"{what} (default: multiples of the example's); none leaves the axis out"
    return Option(str, words, metavar="N,…", parse=numbers)


OPTIONS = {
    "rows": axis_option("rows of the table"),
    "columns": axis_option("columns of the table"),
    "latents": axis_option("latents of a row: factors, causes or components"),
    "within": Option(0.05, "excess at which a method has arrived", metavar="NATS", above=0),
    "total": Option(float, "time after which no method begins", metavar="SECONDS", above=0),
    "methods": Option(str, "methods to run, by default all that apply", metavar="A,B,…"),
    "budget": Option(20.0, "of each method at each size", metavar="SECONDS", above=0),
    "memory": Option(float, "that the steps of a method may take", metavar="GB", above=0),
    "out": Option(str, "by default survey_MODEL", metavar="DIR"),
    "seed": SEED,
}


def survey(options: argparse.Namespace) -> str:
    """Run what is missing, write the table, the text and the map; the text."""
    find_program(options.model)
    folder = check_folder("--out", options.out or f"survey_{options.model}")
    where = folder / "cells"
    program, growth = options.model, GROWTHS[options.model]
    sizes = sizes_of(growth, {x: getattr(options, x) for x in AXES if getattr(options, x) != []})
    if not sizes:
        raise InputError("nothing is left to grow: name sizes of --rows, --columns or --latents")
    cells = cells_of(growth, sizes)
    methods = None if options.methods is None else tuple(options.methods.split(","))
    memory = None if options.memory is None else 1e9 * options.memory
    settings = Settings(options.budget, memory, options.seed, methods)
    until = None if options.total is None else time.time() + options.total
    where.mkdir(parents=True, exist_ok=True)
    for cell in cells:  # what was made with other settings is refused before any work
        open_cell(where, program, cell, settings)
    try:
        for cell in cells:
            print(cell.name, file=sys.stderr)
            run_cell(program, cell, settings, where, until)
    except KeyboardInterrupt:
        pass
    placed = places([open_cell(where, program, x, settings) for x in cells], options.within)
    base, device = base_of(growth), jax.default_backend()
    said = text(program, placed, sizes, base, options.within, device)
    report = {
        "program": program, "within": options.within, "device": device, "seed": options.seed,
        "budget": options.budget, "cores": os.cpu_count(), "sizes": sizes, "text": said,
        "places": [
            {**x.cell._asdict(), "method": x.method, "seconds_to_excess": x.seconds,
             **{k: v for k, v in x.row.items() if k not in ("path", "clock")}} for x in placed
        ],
        "versions": versions(),
    }  # fmt: skip
    picture = draw_picture(draw, ".png", program, placed, sizes, base, device)
    write_whole(folder / "survey.json", as_json(report), "--out")
    write_whole(folder / "survey.csv", as_csv(table(placed)), "--out")
    write_whole(folder / "survey.txt", said.encode(), "--out")
    write_whole(folder / "survey.png", picture, "--out")
    return said


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL", choices=list(GROWTHS), help="a public program")
    add(parser, OPTIONS)
    try:
        print(survey(settled(OPTIONS, parser.parse_args(arguments))), end="")
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
