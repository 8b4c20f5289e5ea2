"""What an experiment of a paper is: options, numbers, one figure.

Each file of `studies/papers` lists its own in ``EXPERIMENTS``; `latentbits list` and `latentbits
reproduce` find them there.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Outcome(NamedTuple):
    """What an experiment ends with."""

    numbers: dict[str, Any]  # goes into the JSON file as it is
    figure: Callable[[], Figure]  # drawn only if it is asked for


class Experiment(NamedTuple):
    """One experiment of a paper."""

    name: str
    summary: str  # one line
    run: Callable[[argparse.Namespace], Outcome]
    options: Callable[[argparse.ArgumentParser], None] = lambda _: None


def experiments() -> dict[str, Experiment]:
    """All experiments, by name."""
    from .. import papers

    found = {}
    for module in pkgutil.iter_modules(papers.__path__):
        listed = importlib.import_module(f"{papers.__name__}.{module.name}")
        found.update({x.name: x for x in getattr(listed, "EXPERIMENTS", ())})
    return found


def add_options(parser: argparse.ArgumentParser, experiment: Experiment) -> None:
    """Its settings, as opposed to where its results are written."""
    parser.add_argument("--seed", type=_seed, default=0, help="of all random numbers (default 0)")
    parser.add_argument("--full", action="store_true", help="at the size of the paper")
    experiment.options(parser)


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 2^32 - 1")
    return value
