"""Kernels that flip bits, one after the other, one by its gradient or all at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from measuring import row, timed
from numpyro.handlers import condition

from inference import EM, GradientFlips, LatentGibbs
from ppl_models import binary_sparse_coding, combination_machine, noisy_or_network


def posteriors(full: bool) -> dict[str, tuple[Any, dict, Any, dict]]:
    """Programs whose bits depend on each other given the data: (program, params, data, sizes).

    A machine's hidden units do so where cells are missing, here half of them.
    """
    rng = np.random.default_rng(0)
    rows, columns, few, many = (8, 64, 16, 20) if full else (4, 36, 10, 14)

    def bits(*shape: int) -> Any:
        return jnp.asarray(rng.random(shape) < 0.5, jnp.float32)

    unit = rng.normal(size=(many, columns)) / np.sqrt(columns)
    causes = rng.random((rows, many)) < 0.2
    noise = rng.normal(size=(rows, columns))
    overlap = 0.7 + rng.normal(size=(many, columns))  # causes that share a direction
    network = {
        "leak_0": jnp.full(columns, 0.05), "leak_1": jnp.full(many, 0.3),
        "weights_1": jnp.asarray(rng.gamma(0.3, 2.0, (many, columns))),
    }  # fmt: skip
    on = 1.0 - np.exp(-(causes @ network["weights_1"] + 0.05))
    machine = {"weights": jnp.asarray(8.0 * unit[:few] / 2), "bias": jnp.full(few, -1.0)}
    return {
        "combination_machine, half of the cells": (
            combination_machine, machine, bits(rows, columns),
            {"num_causes": few, "mask": bits(rows, columns) > 0},
        ),
        "noisy_or_network": (
            noisy_or_network, network, jnp.asarray(rng.random(on.shape) < on, jnp.float32),
            {"layers": (many,)},
        ),
        "binary_sparse_coding": (
            binary_sparse_coding,
            {"weights": jnp.asarray(3.0 * unit), "noise": 0.5, "sparsity": 0.2},
            jnp.asarray(causes @ (3.0 * unit) + 0.5 * noise), {"num_causes": many},
        ),
        "binary_sparse_coding, overlapping": (
            binary_sparse_coding, {"weights": jnp.asarray(overlap), "noise": 2.0, "sparsity": 0.2},
            jnp.asarray(causes @ overlap + 2.0 * noise), {"num_causes": many},
        ),
    }  # fmt: skip


def flips(full: bool) -> dict[str, Any]:
    """Bits one after the other, one by its gradient, all at once: errors after equal CPU seconds.

    The exact means are those of all states of a row, 2^20 with --full. Each kernel first says how
    fast it is; then it gets as many draws as fit into the same processor seconds, the first tenth
    of which are left out. The error is the root mean square over bits, rows and chains.
    """
    seconds, chains = (5.0, 4) if full else (1.0, 4)
    kernels = {
        "LatentGibbs": LatentGibbs,
        "GradientFlips": GradientFlips,
        "GradientFlips, step size 0.2": partial(GradientFlips, step_size=0.2),
        "GradientFlips, step size 1": partial(GradientFlips, step_size=1.0),
    }
    rows = []
    for name, (program, params, data, sizes) in posteriors(full).items():
        exact = EM(program, chunk_size=1).posterior(params, data, **sizes).mean
        for kind, kernel in kernels.items():
            taken, error, draws = _error(
                kernel(condition(program, data=params)), data, sizes, exact, seconds, chains
            )
            rows.append(row(f"{name}: {kind}, {draws} draws", taken, error=error))
    return {
        "title": f"flips: {chains} chains, about {seconds:g} CPU seconds each kernel; "
        "error: root mean square of (mean of a bit − exact)",
        "rows": rows,
    }


def _error(
    kernel: Any, data: Any, sizes: dict, exact: Any, seconds: float, chains: int
) -> tuple[Any, float, int]:
    def run(count: int) -> Any:
        def step(carry: Any, _: None) -> Any:
            state = kernel.sample(carry, (data,), sizes)
            return state, state.z[next(iter(state.z))]

        def each(key: Any) -> Any:
            state = kernel.init(key, 0, None, (data,), sizes)
            return lax.scan(step, state, None, length=count)[1][count // 10 :].mean(0)

        return timed(jax.jit(lambda keys: lax.map(each, keys)), random.split(random.key(0), chains))

    trial = 50
    draws = max(trial, int(trial * seconds / run(trial)[1].cpu))
    means, taken = run(draws)
    return taken, float(np.sqrt(np.mean((np.asarray(means) - np.asarray(exact)) ** 2))), draws


BENCHMARKS = {"flips": flips}
