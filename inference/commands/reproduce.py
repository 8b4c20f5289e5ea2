"""`latentbits reproduce NAME`: run an experiment of a paper, print its numbers, draw its figure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from inference.studies.output import (
    FIGURES,
    as_json,
    as_picture,
    check_output,
    versions,
    write_whole,
)
from inference.studies.papers.experiment import Experiment, Outcome, experiments
from ppl_models.data import InputError

COMMON = ("json", "figure", "command", "experiment")
"""What a namespace holds beside the settings of an experiment."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="run an experiment of a paper",
        description="Run an experiment of a paper; `latentbits list` says which there are.",
    )
    names = parser.add_subparsers(metavar="NAME", required=True)
    for experiment in experiments().values():
        one = names.add_parser(
            experiment.name,
            help=experiment.summary.replace("%", "%%"),
            description=experiment.summary.replace("%", "%%"),
            allow_abbrev=False,
        )
        one.add_argument("--json", metavar="FILE", help="write settings, versions and numbers")
        one.add_argument("--figure", metavar="FILE", help="draw the figure, .png or .svg")
        add_options(one, experiment)
        one.set_defaults(experiment=experiment)


def add_options(parser: argparse.ArgumentParser, experiment: Experiment) -> None:
    """Its settings, as opposed to where its results are written."""
    parser.add_argument("--seed", type=_seed, default=0, help="of all random numbers (default 0)")
    parser.add_argument("--full", action="store_true", help="at the size of the paper")
    experiment.options(parser)


def main(namespace: argparse.Namespace) -> int:
    experiment: Experiment = namespace.experiment
    # Before the run: after an hour of it nobody wants to hear that a folder is missing.
    json_file = figure_file = None
    if namespace.json is not None:
        json_file = check_output("--json", namespace.json)
    if namespace.figure is not None:
        figure_file = check_output("--figure", namespace.figure, FIGURES)
    if json_file is not None and json_file == figure_file:
        raise InputError(f"--json and --figure are both {namespace.json}")

    outcome = experiment.run(namespace)
    for line in table_lines(outcome.numbers):
        print(line)
    # All contents first, then all files: either everything is written or nothing.
    contents: dict[Path, bytes] = {}
    if figure_file is not None:
        contents[figure_file] = _draw(outcome, figure_file.suffix)
    if json_file is not None:
        settings = {k: v for k, v in vars(namespace).items() if k not in COMMON}
        origin = {"experiment": experiment.name, "settings": settings, "versions": versions()}
        contents[json_file] = as_json({**outcome.numbers, "made_by": origin})
    for file, content in contents.items():
        write_whole(file, content)
    return 0


def _draw(outcome: Outcome, suffix: str) -> bytes:
    import matplotlib

    from inference.studies.figures import house_style

    matplotlib.use("Agg")  # a file is drawn, also where there is no screen
    with house_style():
        return as_picture(outcome.figure(), suffix)


def table_lines(numbers: dict[str, Any]) -> list[str]:
    """Numbers as a small table; a dictionary of like dictionaries gets a column for each key.

    >>> print("\\n".join(table_lines({"recovered": 0.95, "trials": {"a": 1, "b": 2.5}})))
    recovered   0.95
    trials
      a            1
      b          2.5
    """
    flat: list[tuple[str, Any]] = []
    blocks: list[tuple[str, Any]] = []
    for name, value in numbers.items():
        (blocks if isinstance(value, dict) else flat).append((str(name), value))
    rows = [[name, _show(value)] for name, value in flat]
    for name, block in blocks:
        inner = list(block.values())
        if inner and all(isinstance(x, dict) and x.keys() == inner[0].keys() for x in inner):
            rows.append([name, *map(str, inner[0])])
            rows += [[f"  {key}", *map(_show, x.values())] for key, x in block.items()]
        else:
            rows.append([name])
            rows += [[f"  {key}", _show(x)] for key, x in block.items()]
    return align(rows)


def align(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines: names to the left, numbers to the right."""
    width = max((len(row) for row in rows), default=0)
    sizes = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(width)]
    return [
        "   ".join(
            cell.ljust(size) if i == 0 else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=False))
        ).rstrip()
        for row in rows
    ]


def _show(value: Any) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | int | str) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        parts = [_show(x) for x in value[:6]]
        return " ".join(parts) + (f" … ({len(value)})" if len(value) > 6 else "")
    if isinstance(value, dict):
        return ", ".join(f"{key} {_show(part)}" for key, part in value.items())
    return str(value)


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 2^32 - 1")
    return value
