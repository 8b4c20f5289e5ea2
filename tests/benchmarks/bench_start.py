"""From a method to its first answer: processor seconds to trace, to lower, to compile, and again.

    python tests/benchmarks/bench_start.py

A second run, on other data of the same shapes, compiles nothing; what it takes beyond its steps is
the last column but one. To be reached: 3 processor seconds for the first, 10 ms for the second.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import jax
import numpy as np
from jax import random

from inference import EM, BoundEM, QuadratureEM, TruncatedEM
from ppl_models import bernoulli_mixture, binary_sparse_coding, latent_trait

STEPS = 20
PARTS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "xla",
}
"""JAX's names of what it does before a first step -> ours."""


def bits(seed: int, rows: int, columns: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.random((rows, columns)) < generator.uniform(0.2, 0.8, columns)) + 0.0


def reals(seed: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


CASES: dict[str, tuple[Any, Any, tuple[int, int], dict]] = {
    "QuadratureEM, latent_trait": (
        lambda: QuadratureEM(latent_trait), bits, (1000, 20), {"num_factors": 1}
    ),
    "BoundEM, latent_trait": (lambda: BoundEM(latent_trait), bits, (1000, 20), {"num_factors": 2}),
    "EM, bernoulli_mixture": (
        lambda: EM(bernoulli_mixture), bits, (200, 8), {"num_components": 3}
    ),
    "EM, binary_sparse_coding": (
        lambda: EM(binary_sparse_coding), reals, (200, 8), {"num_causes": 5}
    ),
    "TruncatedEM, binary_sparse_coding": (
        lambda: TruncatedEM(binary_sparse_coding, num_candidates=4), reals, (200, 9),
        {"num_causes": 8},
    ),
}  # fmt: skip


def start(full: bool) -> dict[str, Any]:
    """Start: what a first run compiles, and what a second takes beyond its steps."""
    del full
    spent: Counter[str] = Counter()

    def hear(name: str, seconds: float, **_: Any) -> None:
        spent[PARTS.get(name.rpartition("/")[2], "other")] += seconds

    jax.monitoring.register_event_duration_secs_listener(hear)
    rows = []
    try:
        for name, (method, draw, shape, sizes) in CASES.items():
            spent.clear()
            data = [draw(seed, *shape).astype(np.float32) for seed in range(2)]
            first = time.process_time()
            method().run(random.key(0), STEPS, data[0], **sizes)
            first, parts = time.process_time() - first, dict(spent)
            again = time.process_time()
            second = method().run(random.key(1), STEPS, data[1], **sizes)
            again = time.process_time() - again
            beyond = 1000 * (again - second.seconds)  # of the processor too, on a CPU
            words = ", ".join(f"{part} {parts.get(part, 0.0):.2f}" for part in PARTS.values())
            note = f"{words} s; second run {beyond:.0f} ms beyond its steps"
            rows.append({"method": name, "cpu": again, "compile": first - again, "note": note})
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    return {"title": f"start: first and second run of {STEPS} steps", "rows": rows}


BENCHMARKS = {"start": start}


def main() -> None:
    for each in start(False)["rows"]:
        print(f"{each['method']:36} compile {each['compile']:.2f} CPU-s   {each['note']}")


if __name__ == "__main__":
    main()
