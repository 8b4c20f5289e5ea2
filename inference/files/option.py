"""An option of a command: its default, what it means, and which numbers it takes.

``--num-data`` in a shell is ``num_data`` in Python. A number that is too small is refused in one
line before any work, whether the command or a notebook asks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from latentbits.models.data import InputError


class Option(NamedTuple):
    """One option.

    >>> parser = argparse.ArgumentParser()
    >>> options = {"num_sets": Option(3, "sets of data", least=1, full=10)}
    >>> add(parser, options)
    >>> settled(options, parser.parse_args(["--num-sets", "4"])).num_sets
    4
    """

    default: Any  # of its type; False: a switch; a list: several values; a type: none
    help: str
    smallest: Any = None  # with which all of an experiment runs in seconds, and little is learned
    least: float | None = None
    full: Any = None  # the default at the size of the paper
    metavar: str | None = None
    choices: Sequence[Any] | None = None
    above: float | None = None  # as `least`, without the number itself
    parse: Callable[[str], Any] | None = None  # in place of the type


SEED = Option(0, "seed of the random numbers")


def add(parser: argparse.ArgumentParser, options: Mapping[str, Option]) -> None:
    """All of them, in this order."""
    for name, option in options.items():
        flag, default = _flag(name), option.default
        if default is False:
            parser.add_argument(flag, action="store_true", help=option.help)
            continue
        how: dict[str, Any] = {"metavar": option.metavar, "choices": option.choices}
        several = isinstance(default, list | tuple)
        shown = " ".join(map(str, default)) if several else f"{default}"
        if isinstance(default, type):
            kind, default, shown = default, None, ""
        else:
            kind = type(default[0] if several else default)
        if several:
            how["nargs"] = "+"
        if option.full is not None:
            default, shown = None, f"{shown}, with --full {option.full}"
        words = f"{option.help} (default {shown})" if shown else option.help
        how |= {"type": option.parse or kind, "default": default, "help": words}
        parser.add_argument(flag, **how)


def settled(options: Mapping[str, Option], namespace: argparse.Namespace) -> argparse.Namespace:
    """What holds: what was asked for, or else the default.

    :raises InputError: if a number is too small.
    """
    chosen = dict(vars(namespace))
    for name, option in options.items():
        value = chosen[name]
        if value is None and option.full is not None:
            value = chosen[name] = option.full if namespace.full else option.default
        every = value if isinstance(value, list | tuple) else [value]
        for number in [x for x in every if isinstance(x, int | float)]:
            if option.least is not None and not number >= option.least:
                raise InputError(f"{_flag(name)} {number:g}: must be at least {option.least:g}")
            if option.above is not None and not number > option.above:
                raise InputError(f"{_flag(name)} {number:g}: must be more than {option.above:g}")
    return argparse.Namespace(**chosen)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


LIMITS: dict[str, tuple[float, float]] = {
    "steps": (1, 10**8),
    "starts": (1, 10**4),
    "patience": (1, 10**8),
    "trials": (1, 10**6),
    "jobs": (1, 10**3),
    "seed": (0, 2**32 - 1),
    "packed": (1, 10**5),
    "budget": (0, 10**9),
    "limit": (0, 10**9),
    "reference": (0, 10**9),
}
"""Option -> its least and largest value."""


def check_numbers(namespace: argparse.Namespace) -> None:
    """Refuse a number out of range.

    >>> check_numbers(argparse.Namespace(steps=100, budget=None))
    >>> check_numbers(argparse.Namespace(budget=float("nan")))
    Traceback (most recent call last):
    latentbits.models.data.cells.InputError: --budget nan: must be from 0 to 1000000000
    """
    for name, (low, high) in LIMITS.items():
        value = getattr(namespace, name, None)
        if value is not None and not low <= value <= high:  # NaN is neither
            raise InputError(f"--{name} {value}: must be from {low} to {high}")
