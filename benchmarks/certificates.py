"""Widths and boxes of proved brackets: `python benchmarks/certificates.py [PART ...] --rows 20`.

bars, noisy-or, hard, medical: how many boxes a row takes to 0.1 nats, of rows drawn from the
program. medical is a network of 600 diseases and 4000 findings; up to 14 positive findings its
brackets are held against quickscore. false: how many brackets, shares of bits and best states of
random rows all states contradict, in NumPy, for eight programs and five hard kinds of weights;
`false --rows 250` checks 100 000 rows. steps: the cost beside an E-step of `TruncatedEM`, bars
with 40 causes.
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from itertools import combinations, product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from latentbits.models import binary_sparse_coding, noisy_or_network
from scipy import special, stats

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


KINDS = ("normal", "laplace", "logistic", "logit", "poisson", "negative-binomial", "noisy-or",
         "two-layers")  # fmt: skip
TWISTS = "plain", "alike", "cancelling", "tie", "large"


def located(data, mask, kind: str):
    """Cells of one family, in predictors linear in the bits."""
    weights = numpyro.sample("weights", dist.Normal().expand((len(PRIOR), 12)).to_event(2))
    with numpyro.plate("data", len(data)):
        s = numpyro.sample("s", dist.Bernoulli(PRIOR).to_event(1))
        u = s @ weights
        fn = {
            "normal": lambda: dist.Normal(u, 0.8),
            "laplace": lambda: dist.Laplace(u, 0.8),
            "logistic": lambda: dist.Logistic(u, 0.8),
            "logit": lambda: dist.Bernoulli(logits=u),
            "poisson": lambda: dist.Poisson(jnp.exp(u)),
            "negative-binomial": lambda: dist.NegativeBinomialLogits(2.5, logits=u),
        }[kind]()
        numpyro.sample("x", fn.mask(mask).to_event(1), obs=data)


PRIOR = np.linspace(0.1, 0.5, 10)


def cell(kind: str, y: np.ndarray, u: np.ndarray) -> np.ndarray:
    """log p(y | u) in NumPy and SciPy, without JAX."""
    if kind == "normal":
        return stats.norm.logpdf(y, u, 0.8)
    if kind == "laplace":
        return stats.laplace.logpdf(y, u, 0.8)
    if kind == "logistic":
        return stats.logistic.logpdf(y, u, 0.8)
    if kind == "logit":
        return -np.logaddexp(0.0, np.where(y > 0, -u, u))
    if kind == "poisson":
        return y * u - np.exp(u) - special.gammaln(y + 1.0)
    if kind == "negative-binomial":
        ways = special.gammaln(y + 2.5) - special.gammaln(2.5) - special.gammaln(y + 1.0)
        return ways + y * u - (y + 2.5) * np.logaddexp(0.0, u)
    with np.errstate(divide="ignore"):
        return np.where(y > 0, np.log(-np.expm1(-u)), -u)


def drawn(rng: np.random.Generator, kind: str, u: np.ndarray) -> np.ndarray:
    """Rows that a state made, with predictors u; one of five is of no state at all."""
    rate = np.exp(np.minimum(u, 3.0))
    data = {
        "normal": lambda: rng.normal(u, 0.8),
        "laplace": lambda: rng.laplace(u, 0.8),
        "logistic": lambda: rng.logistic(u, 0.8),
        "logit": lambda: rng.random(u.shape) < special.expit(u),
        "poisson": lambda: rng.poisson(rate),
        "negative-binomial": lambda: rng.poisson(rate),
    }.get(kind, lambda: rng.random(u.shape) < -np.expm1(-u))() + 0.0
    strange = rng.random(len(data)) < 0.2
    return np.where(strange[:, None], rng.permuted(data, axis=1), data)


def false(rng: np.random.Generator, rows: int) -> None:
    """Brackets, shares of bits and best states of random rows against all states in float64.

    What NumPy itself loses is allowed for: 1e-14 of the terms that make the largest log joint, and
    of its predictors, times a bound of the slopes there.
    """
    states = np.array([*product((0, 1), repeat=10)])
    prior = (states * np.log(PRIOR) + (1 - states) * np.log1p(-PRIOR)).sum(1)
    wrong = count = 0
    for kind, twist in product(KINDS, TWISTS):
        weights = rng.normal(0.0, 1.5, (10, 12))
        if kind == "poisson":
            weights *= 0.5
        if kind in KINDS[-2:]:
            weights = np.abs(weights)
        if twist in ("alike", "tie"):
            weights[5:] = weights[:5] + (1e-9 * rng.random((5, 12)) if twist == "tie" else 0.0)
        if twist == "cancelling":
            weights[5:] = 0.0 if kind in KINDS[-2:] else -weights[:5]
        if twist == "large":
            weights *= 1e4 if kind in KINDS[:4] else 5.0 if kind in KINDS[-2:] else 1.5
        mask = rng.random((rows, 12)) < rng.choice([0.7, 1.0], (rows, 1))
        leak = np.full(12, {"plain": 0.05, "alike": 0.0}.get(twist, 1e-12))
        joint = prior[:, None]
        if kind in KINDS[-2:]:
            model, params = noisy_or_network, {"weights_1": weights, "leak_0": leak}
            params["leak_1"], given = -np.log1p(-PRIOR), {"layers": (10,)}
            u = states @ weights + leak
            if kind == "two-layers":  # three bits above seven
                above, below = np.abs(rng.normal(0.0, 1.5, (3, 7))), weights[3:]
                params = {"weights_1": below, "leak_0": leak, "weights_2": above,
                          "leak_1": np.full(7, 0.2), "leak_2": np.full(3, 0.5)}  # fmt: skip
                given, u = {"layers": (7, 3)}, states[:, 3:] @ below + leak
                top, low = states[:, :3], states[:, 3:]
                joint = cell(kind, top, 0.5 + 0.0 * top).sum(1)
                joint = (joint + cell(kind, low, top @ above + 0.2).sum(1))[:, None]
            share = np.exp(joint[:, 0])
        else:
            model, params, u = located, {"weights": weights}, states @ weights
            given, share = {"kind": kind}, np.exp(prior)
        size = np.abs(params["weights_1" if "weights_1" in params else "weights"])
        data = drawn(rng, kind, u[rng.choice(1024, rows, p=share / share.sum())])
        proved = certify(
            model, params, data, mask=mask, max_states=0, max_boxes=32, width=0.05, best=True,
            **given,
        )  # fmt: skip
        for start in range(0, rows, 500):
            here = slice(start, start + 500)
            # Column by column: all at once would be gigabytes.
            each, slack = np.broadcast_to(joint, (1024, len(data[here]))) + 0.0, 0.0
            for d in range(12):
                part = np.where(mask[here, d], cell(kind, data[here, d], u[:, [d]]), 0.0)
                reach = (states[:, -len(size) :] @ size[:, d])[:, None]
                each = each + part
                part = np.abs(np.where(np.isfinite(part), part, 0.0))
                slack = slack + part + 2.0 * reach * (1.0 + part)
            peak = each.argmax(0)
            exact = special.logsumexp(each, axis=0)
            possible = np.isfinite(exact)
            each_row = np.arange(len(exact))
            slack = 1e-14 * (1.0 + slack[peak, each_row]) + 1e-12
            with np.errstate(invalid="ignore"):
                bits = np.exp(each - exact).T @ states
                off = (proved.lower[here] > exact + slack) | (proved.upper[here] < exact - slack)
                least, most = np.moveaxis(proved.probability[here], 2, 0)
                room = 1e-12 + 4.0 * slack[:, None]
                off |= ((least > bits + room) | (most < bits - room)).any(1)
                place = proved.best[here] @ 2 ** np.arange(10)[::-1]
                own = each[place, each_row] + proved.best_gap[here]
                off |= own < each[peak, each_row] - slack
            off = np.where(possible, off, proved.lower[here] > -np.inf)
            wrong += int(off.sum())
        count += rows
        print(
            f"{kind:18} {twist:11} {wrong} false of {count}; width {np.median(proved.width):.2g} "
            f"in the median", flush=True,
        )  # fmt: skip


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
        false(rng, 10 * rows)


if __name__ == "__main__":
    main()
