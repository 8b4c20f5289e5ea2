"""The clock that budgets and results are counted by.

On a CPU it counts what the process computes, on all its threads: what else the machine does in the
meantime changes no budget and no comparison. An accelerator computes while the process waits, so
there it is the wall clock.
"""

from __future__ import annotations

import time

import jax


def seconds() -> float:
    """Processor seconds of this process on a CPU, else those of the wall clock.

    Only differences mean something.

    >>> before = seconds()
    >>> time.sleep(0.2)
    >>> jax.default_backend() != "cpu" or seconds() - before < 0.2
    True
    """
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()
