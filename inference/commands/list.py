"""`latentbits list`: models, methods, data sets and experiments, one line each."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

from latentbits.models.data import DATASETS

from ..files.catalogue import ALIASES, generics, methods, programs, summary

WIDTH = 100
DESCRIPTION = "Print what there is: models, methods, data sets, experiments, one line each."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def main(namespace: argparse.Namespace) -> int:
    del namespace
    for title, entries in contents().items():
        print(title)
        column = 4 + max(map(len, entries), default=0)
        for name, words in entries.items():
            print(f"  {name}".ljust(column) + fit(words.rstrip("."), WIDTH - column))
    return 0


def fit(words: str, width: int) -> str:
    """A line that is not too long: a source in brackets at its end goes first.

    >>> fit("four spins that add up to zero (Lee & Sompolinsky 1998)", 40)
    'four spins that add up to zero'
    """
    if len(words) > width and words.endswith(")"):
        words = words[: words.rindex(" (")]
    return textwrap.shorten(words, width, placeholder=" …")


def contents() -> dict[str, dict[str, str]]:
    """Section -> name -> one line."""
    from ..papers.experiment import experiments

    return {
        "models": {name: _program_line(program) for name, program in programs().items()},
        "other names": {
            name: " ".join(["for", program, *(f"--set {x}={v}" for x, v in settings.items())])
            for name, (program, settings) in ALIASES.items()
        },
        "methods": {
            **{name: summary(method) for name, method in methods().items()},
            **{name: generic.summary for name, generic in generics().items()},
        },
        "data sets": {name: dataset.description for name, dataset in DATASETS.items()},
        "experiments": {name: experiment.summary for name, experiment in experiments().items()},
    }


def _program_line(program: Any) -> str:
    # A program's own docstring begins with its citation; what it is stands above its file, unless
    # the file tells several.
    module = sys.modules[program.__module__]
    alone = module.__name__.endswith(f".{program.__name__}")
    return summary(module if alone else program)
