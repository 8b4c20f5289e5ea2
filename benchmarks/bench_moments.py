"""Moment inversion: processor seconds and error of the matrix of correlations, and its memory.

    python benchmarks/bench_moments.py [--large] [--x64] [--json FILE]

The data: 4000 rows of 256 bits, four factors of standard normal weights plus unit uniqueness,
thresholds uniform in ±1. Measured warm, compilation apart, counting and inverting all pairs: at
most 0.4 processor seconds and a mean absolute error of at most 0.023 are to be reached (girth takes
37.8, semopy about 1400). `--large`: 2000 columns as well, in under a minute.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measuring import cpu_of, rival, row, timed

from inference.methods.moments.pairs import count_pairs, invert_pairs

ROWS = 4000


def bits_and_truth(columns: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Data of four factors plus uniqueness, and the correlations behind them."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(4, columns))
    scale = np.sqrt((weights**2).sum(axis=0) + 1.0)
    weights, uniqueness = weights / scale, 1 / scale
    threshold = generator.uniform(-1, 1, columns)
    hidden = generator.normal(size=(rows, 4)) @ weights
    hidden += uniqueness * generator.normal(size=(rows, columns))
    correlation = weights.T @ weights
    np.fill_diagonal(correlation, 1.0)
    return (hidden > threshold).astype(np.float32), correlation


def mean_error(found: Any, truth: np.ndarray) -> float:
    """Mean absolute error over the pairs."""
    pairs = np.triu_indices(len(truth), k=1)
    return float(np.abs(np.asarray(found) - truth)[pairs].mean())


def measure(columns: int, repeats: int) -> dict[str, float]:
    data, truth = bits_and_truth(columns)
    function = jax.jit(lambda x: invert_pairs(count_pairs(x)).correlation)
    estimate, taken = timed(function, data, repeats=repeats)
    return {
        "columns": columns,
        "pairs": columns * (columns - 1) // 2,
        "processor_seconds": taken.cpu,
        "seconds": taken.wall,
        "compile_processor_seconds": taken.compile,
        "mean_abs_error": mean_error(estimate, truth),
        "largest_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def correlations(full: bool) -> dict[str, Any]:
    """Clipped Gaussian: the correlations behind bits, beside tetrachoric correlations."""
    columns = 256 if full else 64
    data, truth = bits_and_truth(columns)
    function = jax.jit(lambda x: invert_pairs(count_pairs(x)).correlation)
    estimate, taken = timed(function, data, repeats=5)

    def by_ordinalcorr() -> dict[str, float]:
        import pandas as pd
        from ordinalcorr import hetcor

        matrix, cpu = cpu_of(lambda: hetcor(pd.DataFrame(data.astype(int))))
        return {"cpu": cpu, "error": mean_error(matrix, truth)}

    def by_girth() -> dict[str, float]:
        from girth.common import polychoric_correlation_serial

        matrix, cpu = cpu_of(lambda: polychoric_correlation_serial(data.astype(int).T, 0, 1))
        return {"cpu": cpu, "error": mean_error(matrix, truth)}

    plain, cpu = cpu_of(lambda: np.corrcoef(data.T))
    return {
        "title": f"correlations: {ROWS} × {columns} bits of four factors, all pairs; "
        "error: mean |ρ − true ρ|",
        "rows": [
            row("MomentInversion", taken, error=mean_error(estimate, truth)),
            rival("ordinalcorr", "hetcor", by_ordinalcorr),
            rival("girth", "polychoric_correlation", by_girth),
            {"method": "numpy.corrcoef of the bits", "cpu": cpu, "error": mean_error(plain, truth)},
        ],
    }


BENCHMARKS = {"correlations": correlations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="2000 columns as well")
    parser.add_argument("--x64", action="store_true", help="in double precision")
    parser.add_argument("--json", metavar="FILE", type=Path)
    namespace = parser.parse_args()
    jax.config.update("jax_enable_x64", namespace.x64)
    rows = [measure(256, 5)]
    if namespace.large:
        rows.append(measure(2000, 2))
    for numbers in rows:
        for name, value in numbers.items():
            print(f"{name:28} {value:.4g}")
        print()
    if namespace.json is not None:
        namespace.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
