"""What is under way, on a terminal: one line that says what, since when, and how long it may take.

A run of a method has a bar of its own (`running.loop`), with the time that is left; where one moves
it has the line. Without a terminal, and under CI, nothing is shown.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size


def on_terminal() -> bool:
    """Whether somebody watches."""
    return sys.stderr.isatty() and "CI" not in os.environ


@contextmanager
def stage(words: str | Callable[[], str]) -> Iterator[None]:
    """Show `words` and the seconds since the stage began, until it ends."""
    if not on_terminal():
        yield
        return
    from tqdm import tqdm

    over, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while True:
            if not any(bar.n for bar in getattr(tqdm, "_instances", ())):
                said = words if isinstance(words, str) else words()
                line = f"{said} … {time.monotonic() - began:.0f} s"
                line = line[: get_terminal_size().columns - 1]  # of two only one is wiped
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            if over.wait(1.0):
                return

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """A line on stderr that stays, above that of the stage."""
    print(f"\r\033[K{line}" if on_terminal() else line, file=sys.stderr, flush=True)


class Methods:
    """How many of several methods are done, as words of a stage.

    >>> count = Methods(["EM", "NUTS", "MAP"], at_once=2)
    >>> count.done("EM")
    >>> count()  # doctest: +ELLIPSIS
    'compiling and running NUTS, MAP (1 of 3 done...)'
    """

    def __init__(self, names: list[str], at_once: int = 1):
        self.at_once = at_once
        self.again(names)

    def again(self, names: list[str]) -> None:
        """Begin anew, on the next data set."""
        self.left, self.total = list(names), len(names)
        self.began = self.last = time.monotonic()

    def done(self, name: str) -> None:
        self.last = time.monotonic()
        if name in self.left:
            self.left.remove(name)

    def __call__(self) -> str:
        count = self.total - len(self.left)
        each = (self.last - self.began) / max(1, count)
        left = each * len(self.left) - (time.monotonic() - self.last)
        rest = f", about {left:.0f} s left" if count and left >= 0 else ""
        now = ", ".join(self.left[: self.at_once])
        return f"compiling and running {now} ({count} of {self.total} done{rest})"
