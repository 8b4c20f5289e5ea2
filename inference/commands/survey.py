"""`latentbits survey MODEL`: which method is first at which size of the table and the program."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import jax
from latentbits.models.data import InputError

from ..studies.catalogue import find_program
from ..studies.option import Option, add, settled
from ..studies.output import as_csv, as_json, check_folder, draw_picture, versions, write_whole
from .options import contest_options
from .progress import say, stage


def _numbers(text: str) -> list[int]:
    if text == "none":
        return []
    try:
        numbers = [int(x) for x in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers from 1 on: N,N,…")
    return numbers


def _axis(what: str) -> Option:
    words = f"{what} (default: multiples of the example's); none leaves the axis out"
    return Option(str, words, metavar="N,…", parse=_numbers)


OPTIONS = {
    "rows": _axis("rows of the table"),
    "columns": _axis("columns of the table"),
    "latents": _axis("latents of a row: factors, causes or components"),
    "within": Option(
        0.05, "a method arrives when its excess over the truth, per row, is within this of that "
        "expected of maximum likelihood",
        metavar="NATS", above=0,
    ),
    "total": Option(float, "time after which no method begins", metavar="SECONDS", above=0),
    **contest_options("method at each size", "sizes run side by side (default 1)", "survey"),
}  # fmt: skip
DESCRIPTION = """Grow rows, columns and latents of a program one after another, run the methods of
`compare` on data drawn from it, and draw the time that each takes to come near the truth. What is
finished is not run again: the same command goes on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a public program: `latentbits list`")
    add(parser, OPTIONS)


def main(namespace: argparse.Namespace) -> int:
    from ..studies.cards import CARDS

    namespace = settled(OPTIONS, namespace)
    find_program(namespace.model)
    if namespace.model not in CARDS:
        raise InputError(f"{namespace.model} is your own: data of any size are drawn of ours alone")
    folder = check_folder("--out", namespace.out or f"survey_{namespace.model}")
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    return _survey(namespace, folder)


def _survey(namespace: argparse.Namespace, folder: Path) -> int:
    from ..studies.cards import CARDS
    from ..studies.survey.cells import AXES, Settings, base_of, cells_of, open_cell, sizes_of
    from ..studies.survey.words import places, table, text

    program, growth = namespace.model, CARDS[namespace.model].grown
    asked = {x: getattr(namespace, x) for x in AXES if getattr(namespace, x) != []}
    sizes = sizes_of(growth, asked)
    if not sizes:
        raise InputError("nothing is left to grow: name sizes of --rows, --columns or --latents")
    cells = cells_of(growth, sizes)
    methods = None if namespace.methods is None else tuple(namespace.methods.split(","))
    memory = None if namespace.memory is None else 1e9 * namespace.memory
    settings = Settings(namespace.budget, memory, namespace.seed, methods)
    until = None if namespace.total is None else time.time() + namespace.total
    where = folder / "cells"
    for cell in cells:  # of what was made otherwise it is said before any work
        open_cell(where, program, cell, settings)
    stopped = False
    try:
        _run(program, cells, settings, where, until, namespace.jobs or 1)
    except KeyboardInterrupt:
        stopped = True
    known = [open_cell(where, program, cell, settings) for cell in cells]
    placed = places(known, namespace.within)
    base, device = base_of(growth), jax.default_backend()
    said = text(program, placed, sizes, base, namespace.within, device)
    numbers = {
        "program": program, "within": namespace.within, "device": device, "seed": namespace.seed,
        "budget": namespace.budget, "cores": os.cpu_count(), "sizes": sizes, "text": said,
        "places": [
            {**x.cell._asdict(), "method": x.method, "seconds_to_excess": x.seconds,
             **{k: v for k, v in x.row.items() if k not in ("path", "clock")}} for x in placed
        ],
        "versions": versions(),
    }  # fmt: skip
    print(as_json(numbers).decode() if namespace.json else said, end="")
    write_whole(folder / "survey.json", as_json(numbers), "--out")
    write_whole(folder / "survey.csv", as_csv(table(placed)), "--out")
    write_whole(folder / "survey.txt", said.encode(), "--out")
    drawn = _draw(program, placed, sizes, base, device, folder)
    if not namespace.json:
        print(f"\nmap       {drawn}")
    return 130 if stopped else 0


def _draw(
    program: str, placed: Any, sizes: dict[str, list[int]], base: Any, device: str, folder: Path
) -> str:
    """Where the map is; or why there is none: the numbers need no matplotlib."""
    try:
        from ..studies.survey.words import draw

        picture = draw_picture(draw, ".png", program, placed, sizes, base, device)
    except ImportError as error:
        return f"none: {error.name} is not installed"
    write_whole(folder / "survey.png", picture, "--out")
    return str(folder / "survey.png")


def _run(
    program: str, cells: list[Any], settings: Any, where: Path, until: float | None, jobs: int
) -> None:
    """What is missing of all cells, in this process or in several."""
    from ..studies.comparison.side_by_side import Task, as_done, close, processes
    from ..studies.survey.cells import run_cell

    if jobs == 1 or jax.default_backend() != "cpu":  # which two processes cannot share

        def on_result(name: str, row: dict[str, Any]) -> None:
            say(f"  {name:<22} {row['reason']}")

        for cell in cells:
            with stage(f"{program} {cell.name}"):
                say(f"{cell.name}")
                run_cell(program, cell, settings, where, until, on_result)
        return
    wing = __name__.replace("commands.survey", "studies")
    pool = processes(jobs, [f"{wing}.survey.cells"])
    # What takes longest must not begin last.
    tasks = {x.name: Task(run_cell, (program, x, settings, where, until)) for x in reversed(cells)}
    try:
        with stage(f"{program}, {len(cells)} sizes"):
            for name, ended in as_done(pool, tasks):
                failed = isinstance(ended, Exception)
                say(f"{name}: {'ended, perhaps for lack of memory' if failed else 'done'}")
    finally:
        close(pool)
