"""Widths and boxes of proved brackets: `python benchmarks/certificates.py [PART ...] --rows 20`.

bars, noisy-or, hard, medical: how many boxes a row takes to 0.1 nats, of rows drawn from the
program. false: how many brackets of random rows miss the sum over all states (H = 10).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from latentbits.models import binary_sparse_coding, noisy_or_network

from latentbits import certify


def bars(rng: np.random.Generator, side: int) -> np.ndarray:
    """Weights of 2 × side bars, off by what EM leaves."""
    weights = np.zeros((2 * side, side, side))
    for i in range(side):
        weights[i, i] = weights[side + i, :, i] = 10.0
    return weights.reshape(2 * side, -1) + rng.normal(0.0, 0.3, (2 * side, side * side))


def report(name: str, width: float, max_boxes: int, model, params, data, **sizes) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    proved = certify(model, params, data, width=width, max_boxes=max_boxes, max_states=0, **sizes)
    middle, most = np.median(proved.boxes), proved.boxes.max()
    print(
        f"{name:24} {len(data):5} rows, {(proved.width <= width).mean():6.1%} done within "
        f"{max_boxes} boxes: {middle:.0f} in the median, {most} at most; widths "
        f"{np.median(proved.width):.3f}, {proved.width.max():.3f}; "
        f"{time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} CPU-s",
        flush=True,
    )


def linear(rng: np.random.Generator, weights: np.ndarray, rows: int, rate: float, noise: float):
    on = rng.random((rows, len(weights))) < rate
    data = on @ weights + noise * rng.normal(size=(rows, weights.shape[1]))
    return {"weights": weights, "noise": noise, "sparsity": rate}, data


def network(rng: np.random.Generator, weights: np.ndarray, leak, prior, rows: int):
    on = rng.random((rows, len(weights))) < prior
    data = (rng.random((rows, weights.shape[1])) < -np.expm1(-(on @ weights + leak))) + 0.0
    return {"weights_1": weights, "leak_0": leak, "leak_1": -np.log1p(-prior)}, data


def missed(rng: np.random.Generator, rows: int) -> None:
    """Brackets of random rows against all states."""
    wrong = count = 0
    for kind in ("plain", "alike", "cancelling", "large", "noisy-or", "leak"):
        weights = rng.normal(0.0, 1.5, (10, 12))
        if kind == "alike":
            weights[5:] = weights[:5] + 1e-9 * rng.normal(size=(5, 12))
        weights[5:] = -weights[:5] if kind == "cancelling" else weights[5:]
        if kind in ("noisy-or", "leak"):
            leak = np.full(12, 1e-12 if kind == "leak" else 0.05)
            prior = rng.uniform(0.05, 0.5, 10)
            params, data = network(rng, np.abs(weights), leak, prior, rows)
            model, sizes = noisy_or_network, {"layers": (10,)}
        else:
            params, data = linear(rng, weights * (1e4 if kind == "large" else 1), rows, 0.3, 0.8)
            model, sizes = binary_sparse_coding, {"num_causes": 10}
        exact = certify(model, params, data, **sizes)
        proved = certify(model, params, data, max_states=0, max_boxes=64, **sizes)
        wrong += int(((proved.lower > exact.upper) | (proved.upper < exact.lower)).sum())
        count += rows
        print(f"false {kind:12} {wrong} of {count} so far", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=["bars", "noisy-or", "hard", "medical", "false"]
    )
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--boxes", type=int, default=3000)
    given = parser.parse_args()
    rng, rows = np.random.default_rng(0), given.rows
    for side in (5, 10, 20) if "bars" in given.parts else ():
        params, data = linear(rng, bars(rng, side), rows, 2 / (2 * side), 2.0)
        sizes = {"num_causes": 2 * side}
        report(f"bars, H = {2 * side}", 0.1, 64, binary_sparse_coding, params, data, **sizes)
    if "noisy-or" in given.parts:
        weights = rng.gamma(1.0, 1.0, (24, 64)) * (rng.random((24, 64)) < 0.25)
        both = network(rng, weights, np.full(64, 0.02), np.full(24, 0.1), rows)
        report("noisy-OR, 24 x 64", 0.1, 64, noisy_or_network, *both, layers=(24,))
    if "hard" in given.parts:
        params, data = linear(rng, rng.normal(size=(40, 64)), rows, 0.1, 2.0)
        report("hard, 40 x 64", 0.1, given.boxes, binary_sparse_coding, params, data, num_causes=40)
    if "medical" in given.parts:
        weights = np.zeros((600, 4000))
        for row in weights:
            here = rng.choice(4000, rng.integers(10, 101), replace=False)
            row[here] = -np.log1p(-rng.uniform(0.2, 0.95, len(here)))
        prior = np.exp(rng.uniform(np.log(1e-4), np.log(2e-2), 600))
        leak = -np.log1p(-np.exp(rng.uniform(np.log(1e-4), np.log(1e-2), 4000)))
        both = network(rng, weights, leak, prior, rows)
        report("medical, 600 x 4000", 0.1, 256, noisy_or_network, *both, layers=(600,))
    if "false" in given.parts:
        missed(rng, 50 * rows)


if __name__ == "__main__":
    main()
