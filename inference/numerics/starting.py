"""What runs once before steps that are compiled: by NumPy, where it computes few numbers.

To compile the start of a chain takes as long as that of its steps would with less effort, most of
it for random numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .by_numpy import LISTED, MOST, compute, operations
from .compiling import least_effort, numbers, under_jit
from .generators import BY_THREEFRY, is_key, keys_of, words_of

MOST_NUMBERS = 1 << 22
"""Of those that a start computes, its loops run once: some hundredths of a second."""
MOST_RUNS = 4
"""By NumPy, of some hundredths of a second each: of more, compiling is sooner done."""
MOST_OTHERS = 16
"""Operations that are not NumPy's: each is compiled by itself."""


class Starter:
    """A function for arrays and keys of these shapes, and the shapes of what it gives.

    By NumPy, unless that would be slow or lacks something, or it has run often; else compiled with
    the least effort. Either draws the same random numbers.

    >>> from jax import random
    >>> start = Starter(lambda key, x: x + random.uniform(key, (2,)), random.key(0), 1.0)
    >>> draws = start.ready()(random.key(3), 0.0)
    >>> start.shapes.shape, bool((draws == random.uniform(random.key(3), (2,))).all())
    ((2,), True)
    """

    def __init__(self, function: Callable, *inputs: Any):
        self.traced = jax.jit(function, compiler_options=least_effort()).trace(*inputs)
        self.shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.traced.out_info
        )
        self.runs, self.compiled, self.first = 0, None, None
        if not (_plain(inputs) and _few(self.traced.jaxpr.jaxpr)):
            self.compiled = self.traced.lower().compile()
            return
        try:
            self.first = inputs, self._by_numpy(*inputs)  # what is asked for next, as a rule
        except Exception:  # something is neither NumPy's nor JAX's outside of a trace
            self.compiled = self.traced.lower().compile()

    def ready(self) -> Callable:
        """What to call, once, on inputs of these shapes: nothing is compiled in that call."""
        self.runs += 1
        if self.compiled is None and self.runs > MOST_RUNS:
            self.compiled = self.traced.lower().compile()
        return self._by_numpy if self.compiled is None else self.compiled

    def _by_numpy(self, *inputs: Any) -> Any:
        leaves, first, self.first = jax.tree.leaves(inputs), self.first, None
        if first is not None and all(map(operator.is_, jax.tree.leaves(first[0]), leaves)):
            return first[1]
        arrays = [_key_numbers(x) if is_key(x) else x for x in leaves]
        program = self.traced.jaxpr
        with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
            results = compute(program, arrays, BY_THREEFRY)
        tree = jax.tree.structure(self.shapes)
        return jax.tree.unflatten(tree, map(_key_or_array, results, program.out_avals))


def _plain(inputs: Any) -> bool:
    """Whether NumPy knows these numbers, and draws what JAX would."""
    kinds = {str(x.dtype) for x in jax.tree.leaves(inputs) if is_key(x)}
    same = jax.config.values["jax_threefry_partitionable"] and kinds <= {"key<fry>"}
    return same and jax.default_backend() == "cpu" and not under_jit()


def _few(program: Any) -> bool:
    """Whether to compute a program takes less time than to compile it."""
    return (
        operations(program) <= MOST
        and numbers(program) <= MOST_NUMBERS
        and _others(program) <= MOST_OTHERS
    )


def _others(program: Any) -> int:
    """How many operations there are that are not NumPy's."""
    count = 0
    for line in program.eqns:
        leaves = jax.tree.leaves(list(line.params.values()))
        inner = [x for x in (getattr(x, "jaxpr", x) for x in leaves) if hasattr(x, "eqns")]
        name = line.primitive.name
        count += name not in LISTED and name not in BY_THREEFRY and not inner
        count += sum(map(_others, inner))
    return count


def _key_numbers(keys: Any) -> np.ndarray:
    return keys_of(np.asarray(jax.random.key_data(keys)))


def _key_or_array(value: Any, kind: Any) -> Any:
    if not is_key(kind):
        return value
    return jax.random.wrap_key_data(jax.device_put(words_of(value)), impl="threefry2x32")
