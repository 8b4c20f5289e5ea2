"""What is under way, on a terminal: one line that says what, since when, and how long it may take.

A run of a method has a bar of its own (`running.loop`), below that of the stage. Without a
terminal, and under CI, nothing is shown.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def stage(
    words: str = "compiling and running", names: Sequence[str] = (), at_once: int = 1
) -> Iterator[Callable[[str], None]]:
    """Show `words` and the time since the stage began; of several parts, how many are done.

    :param names: of the parts. The function given tells that one is done.
    :param at_once: parts that run side by side: so many of those left are named.

    >>> with stage(names=["EM", "NUTS"]) as done:
    ...     done("EM")
    """
    from tqdm import tqdm

    left, over = list(names), threading.Event()
    shown = sys.stderr.isatty() and "CI" not in os.environ
    form = None if names else "{desc} … {elapsed}"
    bar = tqdm(total=len(names) or None, bar_format=form, leave=False, disable=not shown)

    def describe() -> None:
        bar.set_description_str(" ".join([words, ", ".join(left[:at_once])]).rstrip())

    def done(name: str) -> None:
        left.remove(name)
        describe()
        bar.update()

    def tick() -> None:
        while not over.wait(1.0):
            bar.refresh()

    with bar:
        describe()
        if shown:
            threading.Thread(target=tick, daemon=True).start()
        try:
            yield done
        finally:
            over.set()


def say(line: str) -> None:
    """A line on stderr that stays, above that of the stage."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)
