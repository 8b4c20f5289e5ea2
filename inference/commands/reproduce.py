"""`latentbits reproduce [NAME]`: run an experiment of a paper, print its numbers, draw its figure.

Without a name all run, one after the other at their default sizes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from latentbits.models.data import InputError

from ..files.output import (
    FIGURES,
    as_json,
    check_output,
    draw_picture,
    table_lines,
    versions,
    write_whole,
)
from ..papers.experiment import Experiment, add_options, experiments
from .progress import stage

COMMON = ("json", "figure", "command", "called", "argv", "experiment", "known")
"""What a namespace holds beside the settings of an experiment."""
DESCRIPTION = "Run an experiment of a paper, without a name all; `latentbits list` names them."


def add_arguments(
    parser: argparse.ArgumentParser, known: Mapping[str, Experiment] | None = None
) -> None:
    """:param known: experiments by name; by default those of the papers."""
    known = known or experiments()
    parser.set_defaults(experiment=None, known=known)
    names = parser.add_subparsers(metavar="NAME")
    for experiment in known.values():
        words = experiment.summary.replace("%", "%%")
        one = names.add_parser(experiment.name, help=words, description=words, allow_abbrev=False)
        one.add_argument("--json", metavar="FILE", help="write settings, versions and numbers")
        one.add_argument("--figure", metavar="FILE", help="draw the figure, .png or .svg")
        add_options(one, experiment)
        one.set_defaults(experiment=experiment)


def main(namespace: argparse.Namespace) -> int:
    experiment: Experiment | None = namespace.experiment
    if experiment is None:
        for experiment in namespace.known.values():
            with stage(f"compiling and running {experiment.name}"):
                outcome = experiment()
            print("", experiment.name, *table_lines(outcome.numbers), sep="\n")
        return 0
    # Before the run: after an hour of work it is too late to learn that a folder is missing.
    json_file = check_output("--json", namespace.json)
    figure_file = check_output("--figure", namespace.figure, FIGURES)
    if json_file is not None and json_file == figure_file:
        raise InputError(f"--json and --figure are both {namespace.json}")

    with stage(f"compiling and running {experiment.name}"):
        outcome = experiment.run(namespace)
    for line in table_lines(outcome.numbers):
        print(line)
    # All contents first, then all files: either everything is written or nothing.
    contents: list[tuple[Path, bytes, str]] = []
    if figure_file is not None:
        picture = draw_picture(outcome.figure, figure_file.suffix)
        contents.append((figure_file, picture, "--figure"))
    if json_file is not None:
        settings = {k: v for k, v in vars(namespace).items() if k not in COMMON}
        origin = {"experiment": experiment.name, "settings": settings, "versions": versions()}
        numbers = as_json({**outcome.numbers, "made_by": origin})
        contents.append((json_file, numbers, "--json"))
    for content in contents:
        write_whole(*content)
    return 0
