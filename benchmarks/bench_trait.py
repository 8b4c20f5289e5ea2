"""Latent trait: how good and how fast, against the figures that public implementations reach.

    python benchmarks/bench_trait.py [--json FILE] [--only NAME ...]

CPU seconds are those of the process, all threads, after a first call that compiles. The figures to
compare with were measured on other machines: a public implementation of the paper's equations takes
1.41 CPU-seconds for a fit of 32 iterations of 600×16 and ends at 4.89 nats per row, mean over 20
such sets; the package girth takes 50 s for two factors on 2000×20.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from measuring import cpu_of, fitted, learning, rival, timed, true_row

from inference import likelihood
from inference.methods.continuous.bound import BoundEM
from inference.methods.continuous.quadrature import QuadratureEM
from ppl_models import latent_trait
from ppl_models.data import prototypes


def clusters(num_sets=20):
    """600×16 prototypes, flips 0.05: NLL of the bound, of its equations to convergence, of ML."""
    yardstick = QuadratureEM(latent_trait, num_nodes=21)
    bound, plain = BoundEM(latent_trait), BoundEM(latent_trait, accelerate=False)
    exact = QuadratureEM(latent_trait, num_nodes=9)
    fits = {
        "bound, 32 iterations": (bound, learning(bound, 32)),
        "bound's equations, plain, to convergence (1000)": (plain, learning(plain, 1000)),
        "quadrature, 25 iterations": (exact, learning(exact, 25)),
    }
    nll = {name: [] for name in fits}
    for number in range(num_sets):
        data = prototypes(random.key(number), flip=0.05).data
        for name, (method, run) in fits.items():
            state = run(method.init(random.key(1000 + number), data), data)
            params = method.get_params(state)
            nll[name].append(-float(yardstick.evidence(params, data).mean()))
    return {name: {"mean nll": float(np.mean(x)), "each": x} for name, x in nll.items()}


def speed():
    """CPU seconds of a fit of 32 iterations of the paper's equations."""
    data = prototypes(random.key(0), flip=0.05).data
    out = {}
    for name, accelerate in (("plain", False), ("accelerated", True)):
        method = BoundEM(latent_trait, accelerate=accelerate)
        state = method.init(random.key(1), data)
        _, taken = timed(learning(method, 32), state, data, repeats=5)
        out[name] = {**taken._asdict(), "times faster": 1.41 / taken.cpu}
    return out


def answers(num_data, num_items, num_factors, keyed=False):
    """Rows of a latent trait model of large weights, and its parameters; keyed: none negative."""
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 1.2, (num_factors, num_items))
    weights = np.abs(weights) if keyed else weights
    bias = generator.normal(0, 1, num_items)
    logits = generator.normal(size=(num_data, num_factors)) @ weights + bias
    data = jnp.asarray(generator.random(logits.shape) < 1 / (1 + np.exp(-logits)), float)
    return data, {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}


def items():
    """Two factors on 2000×20 items: iterations and CPU seconds to 0.001 nats of the maximum."""
    data, _ = answers(2000, 20, 2)
    fine = QuadratureEM(latent_trait, num_nodes=15)
    top = fine.run(random.key(0), 60, data, progress_bar=False)
    least = -float(fine.evidence(top.params, data).mean())
    method = QuadratureEM(latent_trait, num_nodes=7)
    for steps in range(5, 40):
        state = method.init(random.key(1), data)
        state, taken = timed(learning(method, steps), state, data)
        gap = -float(fine.evidence(method.get_params(state), data).mean()) - least
        if gap <= 0.001:
            break
    return {
        "maximum-likelihood nll": least, "gap": gap, "iterations": steps, **taken._asdict()
    }  # fmt: skip


def many_rows(num_data, num_features, dtype):
    """Items of two factors, made a few rows at a time so that nothing else of that size is held."""
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 0.8, (2, num_features)).astype(np.float32)
    data = np.empty((num_data, num_features), dtype)
    for start in range(0, num_data, 5000):
        size = min(5000, num_data - start)
        here = generator.normal(size=(size, 2)).astype(np.float32) @ weights
        data[start : start + size] = generator.random(here.shape) < 1 / (1 + np.exp(-here))
    return data


def large(num_data=100_000, num_features=100, steps=40):
    """100 000 × 100, two factors, by the bound to a standstill."""
    data = many_rows(num_data, num_features, np.uint8)
    began, cpu = time.perf_counter(), time.process_time()
    result = BoundEM(latent_trait).run(
        random.key(0), steps, data, tolerance=1e-6, progress_bar=False
    )
    return {
        "seconds, all": time.perf_counter() - began,
        "cpu, all": time.process_time() - cpu,
        "seconds, iterations": result.seconds,
        "compile": result.compile_seconds,
        "iterations": len(result.losses),
        "bound": float(result.losses[-1]) / num_data,
    }


def peak(num_data, dtype, steps=3):
    """The most MiB that a process ever held which made such data, and fitted them."""
    data = many_rows(num_data, 100, dtype)
    BoundEM(latent_trait).run(random.key(0), steps, data, progress_bar=False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(small=100_000, large=400_000):
    """By how much memory grows from the one to the other number of rows, beyond the data's own.

    By 131 bytes a row of 100 bits in uint8 and 331 in float32: the data once more, on JAX's device
    (100 and up to 400), and nothing that the method keeps of a row. With `remember=True` it is 273
    and 559: each row's posterior is 24 bytes, of which the loop holds several generations.
    """
    out = {}
    fresh = multiprocessing.get_context("spawn")  # a peak never goes down: a process for each
    for dtype in ("uint8", "float32"):
        with fresh.Pool(1, maxtasksperchild=1) as pool:
            low, high = pool.starmap(peak, [(small, dtype), (large, dtype)], chunksize=1)
        data = (large - small) * 100 * np.dtype(dtype).itemsize
        grown = (high - low) * 2**20
        out[dtype] = {
            "peak MiB": (low, high),
            "data grow by MiB": data / 2**20,
            "peak grows by MiB": grown / 2**20,
            "bytes a row beyond the data": (grown - data) / (large - small),
        }
    return out


def trait(num_factors: int, num_data: int, num_items: int) -> dict[str, Any]:
    """A contest on rows of the model itself; as many others are held out."""
    from scipy.linalg import subspace_angles

    # Packages for tests of ability want every answer keyed such that the able give it.
    data, truth = answers(2 * num_data, num_items, num_factors, keyed=num_factors == 1)
    train, test = data[:num_data], data[num_data:]
    evidence = likelihood(latent_trait, test, num_factors=num_factors)

    def angle(weights: Any) -> float:
        """Degrees: factors may be rotated among themselves, and then mean the same."""
        learned, true = np.asarray(weights).T, np.asarray(truth["weights"]).T
        return float(np.degrees(subspace_angles(learned, true).max()))

    def judge(params: Any) -> dict[str, float]:
        each = evidence(jax.tree.map(jnp.asarray, dict(params))).value
        return {"log_likelihood": float(each.mean()), "error": angle(params["weights"])}

    def by_girth() -> dict[str, float]:
        answers = np.asarray(train, int).T
        if num_factors == 1:
            from girth import twopl_mml

            estimates, cpu = cpu_of(lambda: twopl_mml(answers))
            slope = estimates["Discrimination"]
            bias = -slope * estimates["Difficulty"]
        else:
            from girth.multidimensional import multidimensional_twopl_mml

            # Its own guess to start from wants a function that SciPy 1.17 has no more.
            plain = {"initial_guess": False}
            estimates, cpu = cpu_of(lambda: multidimensional_twopl_mml(answers, num_factors, plain))
            slope, bias = estimates["Discrimination"].T, estimates["Difficulty"]
        weights = np.reshape(slope, (num_factors, num_items)).astype(np.float32)
        return {"cpu": cpu, **judge({"weights": weights, "bias": bias.astype(np.float32)})}

    def by_factors() -> dict[str, float]:
        from sklearn.decomposition import FactorAnalysis

        estimator, cpu = cpu_of(lambda: FactorAnalysis(num_factors).fit(np.asarray(train)))
        return {"cpu": cpu, "error": angle(estimator.components_)}

    def by_components() -> dict[str, float]:
        from sklearn.decomposition import PCA

        estimator, cpu = cpu_of(lambda: PCA(num_factors).fit(np.asarray(train)))
        return {"cpu": cpu, "error": angle(estimator.components_)}

    sizes = {"num_factors": num_factors}
    words = "one factor" if num_factors == 1 else f"{num_factors} factors"
    return {
        "title": f"trait: {num_data} × {num_items} answers, {words}; nats of {num_data} others; "
        "error: degrees between found and true weights",
        "rows": [
            true_row(judge(truth)),
            fitted("BoundEM", BoundEM(latent_trait), 32, train, judge, **sizes),
            fitted(
                "QuadratureEM", QuadratureEM(latent_trait, num_nodes=7), 25, train, judge, **sizes
            ),
            rival("girth", "2PL by marginal likelihood", by_girth),
            rival("scikit-learn", "FactorAnalysis", by_factors),
            rival("scikit-learn", "PCA", by_components),
        ],
    }


def one_trait(full: bool) -> dict[str, Any]:
    """Latent trait: one factor, beside girth and scikit-learn."""
    return trait(1, 10_000 if full else 1000, 20)


def two_traits(full: bool) -> dict[str, Any]:
    """Latent trait: two factors, beside girth and scikit-learn."""
    return trait(2, *((2000, 20) if full else (500, 10)))


BENCHMARKS = {"one-trait": one_trait, "two-traits": two_traits}
PARTS = {"clusters": clusters, "speed": speed, "items": items, "large": large, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args()
    parts = {}
    for name in chosen.only:
        parts[name] = PARTS[name]()
        print(name)
        for key, value in parts[name].items():
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "each"}
            print(f"  {key}: {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(parts, indent=2) + "\n")


if __name__ == "__main__":
    main()
