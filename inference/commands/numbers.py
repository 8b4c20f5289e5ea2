"""Numbers that commands take, and what they may be: checked for every command in one place."""

from __future__ import annotations

import argparse

from latentbits.models.data import InputError

LIMITS: dict[str, tuple[float, float]] = {
    "steps": (1, 10**8),
    "starts": (1, 10**4),
    "patience": (1, 10**8),
    "trials": (1, 10**6),
    "jobs": (1, 10**3),
    "seed": (0, 2**32 - 1),
    "packed": (1, 10**5),
    "budget": (0, 10**9),
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
