"""`latentbits calibrate MODEL`: can the posteriors of a method be trusted? Ranks of the truth."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jax import random

from ..files.option import SEED, Option, add, settled
from ..files.output import FIGURES, as_json, as_picture, check_output, versions, write_whole
from ..reading.anatomy import inspect
from .options import add_program_options, program_of
from .progress import say, stage

if TYPE_CHECKING:
    from ..comparison.calibration.calibrate import Judged
from ..comparison.calibration.telling import draw, lines, summary

OPTIONS = {
    "methods": Option(str, "methods to run, by default all that apply", metavar="A,B,…"),
    "trials": Option(100, "data sets simulated", least=10),
    "json": Option(str, "write the numbers there", metavar="FILE"),
    "figure": Option(str, "draw the ranks there, .png or .svg", metavar="FILE"),
    "seed": SEED,
}
DESCRIPTION = """Draw parameters from a prior and data from the program, many times; run each
Bayesian method on all of them at once; rank the truth among its draws."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_options(parser)
    add(parser, OPTIONS)


def main(namespace: argparse.Namespace) -> int:
    # Before the work: after minutes of work it is too late to learn that a folder is missing.
    namespace = settled(OPTIONS, namespace)
    json_file = check_output("--json", namespace.json)
    picture = check_output("--figure", namespace.figure, FIGURES)

    from ..comparison.calibration.calibrate import calibrate, chosen, setting_of, simulate

    wanted = None if namespace.methods is None else namespace.methods.split(",")
    key_trials, key_methods = random.split(random.key(namespace.seed))
    name, _, settings = program_of(namespace)
    setting = setting_of(name, settings)
    trials = simulate(name, setting, namespace.trials, key_trials)
    anatomy = inspect(trials.model, (trials.data[0],), trials.kwargs)
    with stage(names=list(chosen(anatomy, wanted)[0])) as done:

        def progress(name: str, judged: Judged) -> None:
            """One line on stderr as a method ends."""
            say(f"  {name:<16} {judged.seconds:.0f} s")
            done(name)

        calibration = calibrate(trials, key_methods, wanted, progress)
    numbers = summary(calibration)
    numbers["made_by"] = {"seed": namespace.seed, **versions()}
    print("\n".join(lines(calibration)))
    if json_file is not None:
        write_whole(json_file, as_json(numbers), "--json")
    if picture is not None:
        write_whole(picture, as_picture(draw(calibration), picture.suffix), "--figure")
        print(f"\nfigure    {picture}")
    return 0
