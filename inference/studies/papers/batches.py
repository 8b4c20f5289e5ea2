"""Trials in one compiled call, and the seconds that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random


def timed(function: Callable, *arguments: Any) -> tuple[Any, float, float]:
    """What a function gives, the seconds that it runs, and those to compile it."""
    began = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
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
    began = time.perf_counter()
    compiled = jax.jit(jax.vmap(trial)).lower(padded[:batch]).compile()
    seconds = {"compile_seconds": time.perf_counter() - began}
    began, began_cpu, parts = time.perf_counter(), time.process_time(), []
    for i in tqdm(range(0, len(padded), batch), disable=None, unit="batch"):
        parts.append(jax.device_get(compiled(padded[i : i + batch])))
    seconds["seconds_per_trial"] = (time.perf_counter() - began) / len(padded)
    seconds["cpu_seconds_per_trial"] = (time.process_time() - began_cpu) / len(padded)
    return jax.tree.map(lambda *x: np.concatenate(x)[:trials], *parts), seconds
