"""Widths and boxes of proved brackets: `python benchmarks/certificates.py [PART ...] --rows 20`.

bars, noisy-or, hard, medical: how many boxes a row takes to 0.1 nats, of rows drawn from the
program. medical is a network of 600 diseases and 4000 findings; up to 14 positive findings its
brackets are held against quickscore. false: how many brackets of random rows miss the sum over all
states (H = 10). steps: the cost beside an E-step of `TruncatedEM`, bars with 40 causes.
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any

import jax
import numpy as np
from latentbits.models import binary_sparse_coding, noisy_or_network

from latentbits import TruncatedEM, certify


def bars(rng: np.random.Generator, side: int) -> np.ndarray:
    """Weights of 2 × side bars, off by what EM leaves."""
    weights = np.zeros((2 * side, side, side))
    for i in range(side):
        weights[i, i] = weights[side + i, :, i] = 10.0
    return weights.reshape(2 * side, -1) + rng.normal(0.0, 0.3, (2 * side, side * side))


def report(name: str, width: float, max_boxes: int, model, params, data, **sizes):
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
    return proved


def linear(rng: np.random.Generator, weights: np.ndarray, rows: int, rate: float, noise: float):
    on = rng.random((rows, len(weights))) < rate
    data = on @ weights + noise * rng.normal(size=(rows, weights.shape[1]))
    return {"weights": weights, "noise": noise, "sparsity": rate}, data


def network(rng: np.random.Generator, weights: np.ndarray, leak, prior, rows: int):
    on = rng.random((rows, len(weights))) < prior
    data = (rng.random((rows, weights.shape[1])) < -np.expm1(-(on @ weights + leak))) + 0.0
    return {"weights_1": weights, "leak_0": leak, "leak_1": -np.log1p(-prior)}, data


def quickscore(fails: Any, leaks: Any, priors: Any, row: np.ndarray) -> Any:
    """P(row) by a recursion over diseases of which every term is positive.

    Its table has the probability that those of the positive findings in a set are caused so far.

    :param fails: (diseases, findings) probability that a disease does not cause a finding.
    """
    absent, present = np.flatnonzero(row == 0), np.flatnonzero(row)
    exact = isinstance(priors[0], Fraction)
    table = np.zeros((2,) * len(present), object if exact else float)
    table[(0,) * len(present)] = prod(leaks[absent])

    def cause(table: np.ndarray, fail: Any) -> np.ndarray:
        for axis, q in enumerate(fail):
            if q != 1:
                table = np.moveaxis(table, axis, 0)
                table = np.moveaxis(
                    np.stack([q * table[0], table[1] + (1 - q) * table[0]]), 0, axis
                )
        return table

    table = cause(table, leaks[present])
    for fail, prior in zip(fails, priors, strict=True):
        on = prior * prod(fail[absent][fail[absent] != 1])
        table = (1 - prior) * table + on * cause(table, fail[present])
    return np.asarray(table)[(1,) * len(present)]


def alternating(fails: Any, leaks: Any, priors: Any, row: np.ndarray) -> Fraction:
    """The same by inclusion and exclusion (Heckerman 1989), in rational numbers."""
    absent, present = np.flatnonzero(row == 0), np.flatnonzero(row)
    total = Fraction(0)
    for size in range(len(present) + 1):
        for some in combinations(present, size):
            off = [*absent, *some]
            each = [1 - p + p * prod(fail[off]) for fail, p in zip(fails, priors, strict=True)]
            total += (-1) ** size * prod(leaks[off]) * prod(each)
    return total


def check_quickscore(rng: np.random.Generator) -> None:
    """The recursion against rational numbers, up to 8 positive findings."""
    ratio = np.vectorize(Fraction, otypes=[object])
    for count in range(9):
        fails = ratio(rng.integers(1, 11, (20, 12)), 10)
        leaks, priors = ratio(rng.integers(90, 100, 12), 100), ratio(rng.integers(1, 30, 20), 100)
        row = np.arange(12) < count
        exact = alternating(fails, leaks, priors, row)
        assert quickscore(fails, leaks, priors, row) == exact
        floats = (x.astype(float) for x in (fails, leaks, priors))
        assert abs(quickscore(*floats, row) / float(exact) - 1.0) < 1e-13


def medical(rng: np.random.Generator, rows: int) -> None:
    check_quickscore(rng)
    weights = np.zeros((600, 4000))
    for row in weights:
        here = rng.choice(4000, rng.integers(10, 101), replace=False)
        row[here] = -np.log(rng.uniform(0.2, 0.95, len(here)))
    prior = np.exp(rng.uniform(np.log(1e-4), np.log(2e-2), 600))
    leak = -np.log1p(-np.exp(rng.uniform(np.log(1e-4), np.log(1e-2), 4000)))
    params, data = network(rng, weights, leak, prior, 50 * rows)
    positive = data.sum(1)
    for least, most in ((0, 14), (15, 40), (41, 4000)):
        some = data[(positive >= least) & (positive <= most)][:rows]
        name = f"medical, {least} to {most} positive"
        proved = report(name, 0.1, 256, noisy_or_network, params, some, layers=(600,))
        if most <= 14:
            exact = [np.log(quickscore(np.exp(-weights), np.exp(-leak), prior, x)) for x in some]
            wrong = (proved.lower > np.array(exact) + 1e-9) | (
                proved.upper < np.array(exact) - 1e-9
            )
            print(f"  {wrong.sum()} of {len(some)} brackets miss quickscore", flush=True)


def steps(rng: np.random.Generator, rows: int) -> None:
    """CPU seconds of brackets in E-steps with the default sets, both compiled before."""
    params, data = linear(rng, bars(rng, 20), rows, 2 / 40, 2.0)
    typed = {x: jax.numpy.asarray(v, jax.numpy.float32) for x, v in params.items()}
    method = TruncatedEM(binary_sparse_coding)
    state = method.init(jax.random.key(0), data, init_params=typed, num_causes=40)
    update = jax.jit(lambda state: method.update(state, data, num_causes=40))
    jax.block_until_ready(update(state))
    began = time.process_time()
    for _ in range(20):
        state, loss = update(state)
    jax.block_until_ready(loss)
    step = (time.process_time() - began) / 20
    for _ in range(2):
        began = time.process_time()
        certify(binary_sparse_coding, params, data, num_causes=40)
    cost = time.process_time() - began
    print(f"bars, H = 40, {rows} rows: {cost:.2f} CPU-s for brackets, {cost / step:.0f} EM steps")


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
        "parts", nargs="*", default=["bars", "noisy-or", "hard", "medical", "false", "steps"]
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
        medical(rng, rows)
    if "steps" in given.parts:
        steps(rng, 25 * rows)
    if "false" in given.parts:
        missed(rng, 50 * rows)


if __name__ == "__main__":
    main()
