"""Trials in one compiled call, and the seconds that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ...numerics.compiling import executable, little_effort

FEW_TRIALS = 10


def timed(function: Callable, *arguments: Any) -> tuple[Any, float, float]:
    """What a function gives, the seconds that it runs, and those to compile it, once in a process.

    An equal function of arguments of the same shapes is one: rows must be arguments.
    """
    began = time.perf_counter()
    make = lambda: jax.jit(function).lower(*arguments).compile()  # noqa: E731
    compiled = executable(make, arguments, function)
    ready = time.perf_counter()
    result = jax.block_until_ready(compiled(*arguments))
    return result, time.perf_counter() - ready, ready - began


def in_batches(
    trial: Callable[[Array], Any], seed: int, trials: int, batch: int
) -> tuple[Any, dict[str, float]]:
    """Map a trial over keys, a batch in one compiled call; the results end to end, and seconds."""
    from tqdm import tqdm

    batch = min(batch, trials)
    keys = random.split(random.key(seed), trials)
    # The last batch is filled up with trials that are not counted: one shape, one compilation.
    padded = jnp.concatenate([keys, keys[: -trials % batch]]) if trials % batch else keys
    # A few trials on a processor take less time than it takes to compile them well.
    few = trials <= FEW_TRIALS and jax.default_backend() == "cpu"
    began = time.perf_counter()
    mapped = jax.jit(jax.vmap(trial), compiler_options=little_effort() if few else None)
    compiled = mapped.lower(padded[:batch]).compile()
    seconds = {"compile_seconds": time.perf_counter() - began}
    began, began_cpu, parts = time.perf_counter(), time.process_time(), []
    for i in tqdm(range(0, len(padded), batch), disable=None, unit="batch"):
        parts.append(jax.device_get(compiled(padded[i : i + batch])))
    seconds["seconds_per_trial"] = (time.perf_counter() - began) / len(padded)
    seconds["cpu_seconds_per_trial"] = (time.process_time() - began_cpu) / len(padded)
    return jax.tree.map(lambda *x: np.concatenate(x)[:trials], *parts), seconds
