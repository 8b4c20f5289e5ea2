"""Tests of a program's form: a claim, compiled once, on a few random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np


class OuterTraceError(ValueError):
    """A program closes over a value of an outer `jit`, `grad` or `vmap`: no claim can be tested."""


def probe(claim: Callable, draws: Iterable[tuple]) -> list[Any]:
    """What a claim about a program gives for each draw, as NumPy arrays.

    :param claim: a function of arrays, say from a seed and some rows to the error of a form.
    :param draws: its inputs, of equal shapes.

    >>> [float(x) for x in probe(lambda seed: seed / 2, [(np.float32(i),) for i in range(2)])]
    [0.0, 0.5]
    """
    run = at_once(claim)
    return [run(*draw) for draw in draws]


def at_once(claim: Callable) -> Callable:
    """A claim as a compiled function, for inputs of the first call's shapes. It runs at once,
    inside of a trace too: what it finds decides what is traced.

    >>> positive = at_once(lambda x: x > 0)
    >>> float(jax.jit(lambda x: x if positive(1.0) else -x)(2.0))
    2.0
    """
    compiled: Any = None

    def run(*inputs: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            jitted = jax.jit(claim)
            held = jax.make_jaxpr(jitted)(*inputs).consts
            if any(isinstance(x, jax.core.Tracer) for x in held):
                raise OuterTraceError(
                    "the program uses values of an outer jit, grad or vmap, so that its form "
                    "cannot be tested: make them sites of the program, or run the method outside "
                    "of that"
                )
            compiled = jitted.lower(*inputs).compile()
        return jax.tree.map(np.asarray, compiled(*inputs))

    return run
