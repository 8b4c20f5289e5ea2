"""What is compiled is kept for the next call; and how hard the compiler tries.

`remembered` is `jax.jit` for functions that are built anew in every call: an equal one that was
compiled before is used again, so that a second run on other data of the same shapes compiles
nothing.

On small tables the compiler works longer than all that it compiled. XLA's defaults are for programs
that run for hours. What runs a single time is compiled with as little effort as there is (`once`);
a whole process that works on a small table, with somewhat more (`hurry`): there a sampler is ready
in half the time and as fast.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE as under_jit
from numpyro.distributions import Distribution
from numpyro.primitives import _PYRO_STACK

from .generators import keys_of, split, words_of
from .identity import NoIdentityError, identity

LEVEL = "xla_backend_optimization_level"
EMITTERS = "xla_cpu_use_fusion_emitters"
"""XLA's newer way to write a fused loop: it takes twice as long to compile, and mostly saves a
tenth (but see `for_long`)."""
SPLIT = "xla_cpu_parallel_codegen_split_count"
"""Pieces of a program that are compiled at once: on one core they cost, and gain nothing."""
TRITON = "xla_gpu_enable_triton_gemm"
"""XLA's own matrix products on a GPU: of each it compiles dozens, to time them, half a minute a
product on one core. The library's have the same digits and are as fast."""
LAST_WITH_BOTH = 0, 10
"""The last JAX that is known to have both switches: one without would end the process."""
FEW_CELLS = 1 << 14
"""Of the arguments of a method: its steps then take less than it would take to optimise them."""
FEW_NUMBERS = 1 << 18
"""Of those that a step of NUTS computes for one chain, its loops run once. A table of 160 × 12 bits
and two factors makes 0.19 million, and a draw takes a tenth longer by XLA's older loops; one of
600 × 16 makes 0.86 million, and it takes two fifths longer (Neoverse N1)."""
MOST_KEPT = 512
"""Functions and facts that are kept, the latest used. A function holds what was compiled of it, and
no rows."""

RARELY = 100_000, 20, 100
"""Objects, and collections of the young, between two collections of garbage."""
MANY = 10_000
"""Objects that a run leaves behind if it compiled something."""

_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()
_collecting: list[tuple[int, int, int]] = []  # how often, before each that is at work


def remembered(function: Callable, *more: Any, **how: Any) -> Any:
    """`jax.jit(function, **how)`, or what that gave for an equal function before.

    Rows must be arguments of the function: one that closes over them is compiled anew each time.

    :param more: whatever else tells two functions apart that are built alike.

    >>> def power(n):
    ...     return remembered(lambda x: x**n)
    >>> power(2) is power(2), power(2) is power(3), int(power(3)(2))
    (True, False, 8)
    """
    # Inside of what is being compiled it is part of that, and its options are not heard.
    if under_jit():
        how.pop("compiler_options", None)
    # Handlers that are open outside see what the function does, each time that it is done.
    if _PYRO_STACK:
        return jax.jit(function, **how)
    try:
        context = jax.config.values["jax_enable_x64"], Distribution._validate_args
        key = identity((function, more, how, context))
    except NoIdentityError:
        return jax.jit(function, **how)
    return _keep(key, lambda: jax.jit(function, **how))


def executable(make: Callable[[], Any], inputs: Any, *key: Any) -> Any:
    """`make()`, what is compiled for inputs of these shapes, or what it gave for an equal key.

    For what must be compiled before the clock runs. The key says all that `make` closes over, which
    holds no rows.

    >>> import numpy as np
    >>> double = lambda n: jax.jit(lambda x: 2 * x).lower(np.zeros(n)).compile()
    >>> made = [executable(lambda n=n: double(n), np.zeros(n), "double") for n in (3, 3, 4)]
    >>> made[0] is made[1], made[1] is made[2]
    (True, False)
    """
    if _PYRO_STACK or under_jit():
        return make()
    leaves, tree = jax.tree.flatten(inputs)
    shapes = [(np.shape(x), str(x.dtype)) for x in leaves]
    context = jax.config.values["jax_enable_x64"], Distribution._validate_args
    return known(make, "executable", key, shapes, tree, context)


def known(find: Callable[[], Any], *key: Any) -> Any:
    """`find()`, or what it gave for an equal key before: a property of a program, say.

    >>> known(lambda: 1, "a fact about", len), known(lambda: 2, "a fact about", len)
    (1, 1)
    """
    try:
        return _keep(identity(key), find)
    except NoIdentityError:
        return find()


def _keep(key: Hashable, make: Callable[[], Any]) -> Any:
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    made = make()  # not under the lock: it may ask for others
    with _lock:
        _kept[key] = made
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return made


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage seldom: what JAX traces and lowers lives on, and to look through it every
    700 objects takes a tenth of the time to compile.

    >>> before = gc.get_threshold()
    >>> with rare_collections():
    ...     gc.get_threshold()[0] >= 100_000
    True
    >>> gc.get_threshold() == before
    True
    """
    # Runs in several threads share one setting: the last that ends puts back what the first found.
    with _lock:
        _collecting.append(gc.get_threshold())
        if 0 < _collecting[-1][0] < RARELY[0]:  # 0: the user has turned collections off
            gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        with _lock:
            before, last = _collecting.pop(), not _collecting
            if last:
                gc.set_threshold(*before)
        if last and gc.get_count()[0] > MANY:  # at once, not in the middle of the next run
            gc.collect(1)


@cache
def least_effort() -> dict[str, Any]:
    """Options of the compiler for what runs once."""
    options = {EMITTERS: False, SPLIT: 1}
    if jax.__version_info__[:2] != LAST_WITH_BOTH:
        options = {x: v for x, v in options.items() if _heard({x: v})}
    return {LEVEL: 0, **options, **by_library()}


@cache
def by_library() -> dict[str, Any]:
    """Options of the compiler: on a GPU its library makes all matrix products; none on a CPU, or
    where the user has set who makes them.

    >>> by_library() if jax.default_backend() == "cpu" else {}
    {}
    """
    set_already = TRITON in os.environ.get("XLA_FLAGS", "")
    return {} if set_already or jax.default_backend() == "cpu" else _heard({TRITON: False})


def _heard(options: dict[str, Any]) -> dict[str, Any]:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # this XLA knows no such switches
        return {}
    return options


def little_effort() -> dict[str, Any]:
    """Options of the compiler for what runs a few hundred steps on few rows; none, where the user
    has set how hard XLA tries.

    A third to a half of the time to compile. A step takes a tenth longer, where it is all
    exponentials and logarithms twice as long.
    """
    return {} if LEVEL in os.environ.get("XLA_FLAGS", "") else {**least_effort(), LEVEL: 1}


def enough_effort(arrays: Any) -> dict[str, Any]:
    """Options of the compiler for a method that goes through these arrays in every step.

    >>> import numpy as np
    >>> enough_effort([np.zeros((1000, 1000))]).get(LEVEL, 3)
    3
    """
    cells = sum(x.size for x in jax.tree.leaves(arrays))
    if jax.default_backend() != "cpu":
        return by_library()
    if cells <= FEW_CELLS:
        return little_effort()
    return {LEVEL: 3, **for_long()} if for_long() else {}  # after `hurry` as without it


def once(function: Callable, **how: Any) -> Any:
    """`jax.jit` for what runs a single time: to optimise it would take longer than it ever saves.

    >>> int(once(lambda x: x + 1)(1))
    2
    """
    return jax.jit(function, compiler_options=least_effort(), **how)


class OuterTraceError(ValueError):
    """A function that must run at once closes over a value of an outer `jit`, `grad` or `vmap`."""


def now(function: Callable) -> Callable:
    """`jax.jit` for what runs at once inside of a trace too: a test of a program's form, say.

    >>> positive = now(lambda x: x > 0)
    >>> float(jax.jit(lambda x: x if positive(1.0) else -x)(2.0))
    2.0
    """
    jitted = jax.jit(function)

    def run(*inputs: Any) -> Any:
        held = jax.make_jaxpr(jitted)(*inputs).consts
        if any(isinstance(x, jax.core.Tracer) for x in held):
            raise OuterTraceError(
                "the program uses values of an outer jit, grad or vmap, so that its form cannot be "
                "tested: make them sites of the program, or run the method outside of that"
            )
        with jax.ensure_compile_time_eval():
            return jitted(*inputs)

    return run


def for_long() -> dict[str, Any]:
    """Options of the compiler, after `hurry`, for what runs as long as a budget lasts.

    XLA's older loops take log1p one number at a time: without this a gradient of `latent_trait`
    takes four times as long on a Neoverse-N1.
    """
    hurried = f"--{EMITTERS}=false" in os.environ.get("XLA_FLAGS", "")
    return {EMITTERS: True} if hurried else {}


def for_draws(step: ClosedJaxpr) -> dict[str, Any]:
    """Options of the compiler, after `hurry`, for a step of a sampler, of which a budget has
    thousands: as `for_long`, unless it is so small that the calls of its loops take most of it.

    >>> for_draws(jax.make_jaxpr(lambda x: x + 1)(1.0))
    {}
    """
    return {} if numbers(step.jaxpr) < FEW_NUMBERS else for_long()


def numbers(program: Jaxpr) -> int:
    """Those that a program computes, a loop run once."""
    total = 0
    for line in program.eqns:
        inner = [numbers(x) for x in jaxprs_in_params(line.params)]
        total += sum(inner) if inner else sum(getattr(x.aval, "size", 1) for x in line.outvars)
    return total


def new_key(seed: int) -> Array:
    """`jax.random.key`, which would compile two programs.

    >>> bool(new_key(7) == jax.random.key(7))
    True
    """
    plain = jax.config.values["jax_default_prng_impl"] == "threefry2x32"
    if not (plain and 0 <= seed < 1 << 31):
        return jax.random.key(seed)
    return jax.random.wrap_key_data(jax.device_put(np.array([0, seed], np.uint32)))


def split_key(key: Array, count: int) -> tuple[Array, ...]:
    """`jax.random.split`, one by one. A key that is known is split here: to compile that takes a
    tenth of a second, and `jax.random.split` would compile twice.

    >>> key = jax.random.key(7)
    >>> all(map(lambda a, b: a == b, split_key(key, 3), jax.random.split(key, 3)))
    True
    """
    words = _split_words(key, count)
    if words is None:
        every = remembered(
            lambda key: tuple(jax.random.split(key, count)), compiler_options=least_effort()
        )
        return every(key)
    parts = jax.device_put(list(words))
    return tuple(jax.random.wrap_key_data(x, impl="threefry2x32") for x in parts)


def stacked(keys: Sequence[Array]) -> Array:
    """Keys in one array: `jnp.stack` would compile that.

    >>> key = jax.random.key(7)
    >>> bool((stacked(split_key(key, 3)) == jax.random.split(key, 3)).all())
    True
    """
    words = np.stack([np.asarray(jax.random.key_data(x)) for x in keys])
    return jax.random.wrap_key_data(jax.device_put(words), impl=jax.random.key_impl(keys[0]))


def split_keys(key: Array, count: int) -> Array | np.ndarray:
    """The same as one array, to be passed to what is compiled: `as_keys` of it there.

    >>> words = split_keys(jax.random.key(7), 3)
    >>> bool((as_keys(words) == jax.random.split(jax.random.key(7), 3)).all())
    True
    """
    words = _split_words(key, count)
    return jax.random.split(key, count) if words is None else words


def as_keys(words: Array | np.ndarray) -> Array:
    """Keys, or what keys consist of, as keys."""
    if jax.numpy.issubdtype(words.dtype, jax.dtypes.prng_key):
        return words  # type: ignore[return-value]
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl="threefry2x32")


def _split_words(key: Array, count: int) -> np.ndarray | None:
    """What the keys consist of, (count, 2), where that is known."""
    plain = jax.config.values["jax_threefry_partitionable"] and str(key.dtype) == "key<fry>"
    if under_jit() or isinstance(key, jax.core.Tracer) or not plain or key.ndim:
        return None
    return words_of(split(keys_of(np.asarray(jax.random.key_data(key))), (count,)))


def hurry() -> None:
    """Compile quickly from here on, unless the user has set how hard XLA tries.

    It is heard only before JAX compiles anything in this process.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if LEVEL in flags:
        return
    more = f"--{LEVEL}=1"
    if jax.__version_info__[:2] <= LAST_WITH_BOTH:
        more += f" --{EMITTERS}=false --{SPLIT}=1"
    os.environ["XLA_FLAGS"] = f"{flags} {more}".strip()
