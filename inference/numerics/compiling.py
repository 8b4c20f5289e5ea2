"""How hard the compiler tries. On small tables it works longer than all that it compiled.

XLA's defaults are for programs that run for hours. What runs a single time is compiled with as
little effort as there is (`once`); a whole process that works on a small table, with somewhat more
(`hurry`): there a sampler is ready in half the time and as fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import jax

LEVEL = "xla_backend_optimization_level"
EMITTERS = "xla_cpu_use_fusion_emitters"
"""XLA's newer way to write a fused loop: it takes twice as long to compile, and saves a tenth."""
SPLIT = "xla_cpu_parallel_codegen_split_count"
"""Pieces of a program that are compiled at once: on one core they cost, and gain nothing."""
LAST_WITH_BOTH = 0, 10
"""The last JAX that is known to have both switches: one without would end the process."""


@cache
def least_effort() -> dict[str, Any]:
    """Options of the compiler for what runs once."""
    options = {LEVEL: 0, EMITTERS: False}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # this XLA knows no such switch
        del options[EMITTERS]
    return options


def once(function: Callable, **how: Any) -> Any:
    """`jax.jit` for what runs a single time: to optimise it would take longer than it ever saves.

    >>> int(once(lambda x: x + 1)(1))
    2
    """
    return jax.jit(function, compiler_options=least_effort(), **how)


def hurry() -> None:
    """Compile quickly from here on, unless the user has told XLA how hard to try.

    It is heard only before JAX compiles anything in this process.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if LEVEL in flags:
        return
    more = f"--{LEVEL}=1"
    if jax.__version_info__[:2] <= LAST_WITH_BOTH:
        more += f" --{EMITTERS}=false --{SPLIT}=1"
    os.environ["XLA_FLAGS"] = f"{flags} {more}".strip()
