"""Latent trait: how good and how fast, against the figures that public implementations reach.

    python tests/benchmarks/bench_trait.py [--json FILE] [--only NAME ...]

CPU seconds are those of the process, all threads, after a first call that compiles. The figures to
compare with were measured on other machines: a public implementation of the paper's equations takes
1.41 CPU-seconds for a fit of 32 iterations of 600×16 and ends at 4.89 nats a row on average over 20
such sets; the package girth takes 50 s for two factors on 2000×20.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from inference.methods.bound import BoundEM
from inference.methods.quadrature import QuadratureEM
from ppl_models import latent_trait
from ppl_models.data import prototypes


def cpu_seconds(function, *inputs):
    """CPU and wall seconds of a call that was made before; and seconds of that first one."""
    began = time.perf_counter()
    jax.block_until_ready(function(*inputs))
    first = time.perf_counter() - began
    cpu, wall = time.process_time(), time.perf_counter()
    out = jax.block_until_ready(function(*inputs))
    return out, time.process_time() - cpu, time.perf_counter() - wall, first


def fit(method, steps):
    """(state, data) -> state after so many updates, compiled."""
    return jax.jit(
        lambda state, data: lax.fori_loop(0, steps, lambda _, s: method.update(s, data)[0], state)
    )


def clusters(num_sets=20):
    """600×16 prototypes, flips 0.05: NLL of the bound, of its equations to convergence, of ML."""
    yardstick = QuadratureEM(latent_trait, num_nodes=21)
    bound, plain = BoundEM(latent_trait), BoundEM(latent_trait, accelerate=False)
    exact = QuadratureEM(latent_trait, num_nodes=9)
    fits = {
        "bound, 32 iterations": (bound, fit(bound, 32)),
        "bound's equations, plain, to convergence (1000)": (plain, fit(plain, 1000)),
        "quadrature, 25 iterations": (exact, fit(exact, 25)),
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
        _, cpu, wall, first = cpu_seconds(fit(method, 32), state, data)
        out[name] = {"cpu": cpu, "wall": wall, "compile": first, "times faster": 1.41 / cpu}
    return out


def items():
    """Two factors on 2000×20 items: iterations and CPU seconds to 0.001 nats of the maximum."""
    generator = np.random.default_rng(0)
    weights, bias = generator.normal(0, 1.2, (2, 20)), generator.normal(0, 1, 20)
    logits = generator.normal(size=(2000, 2)) @ weights + bias
    data = jnp.asarray(generator.random(logits.shape) < 1 / (1 + np.exp(-logits)), float)
    fine = QuadratureEM(latent_trait, num_nodes=15)
    top = fine.run(random.key(0), 60, data, progress_bar=False)
    least = -float(fine.evidence(top.params, data).mean())
    method = QuadratureEM(latent_trait, num_nodes=7)
    for steps in range(5, 40):
        run = fit(method, steps)
        state = method.init(random.key(1), data)
        state, cpu, wall, first = cpu_seconds(run, state, data)
        gap = -float(fine.evidence(method.get_params(state), data).mean()) - least
        if gap <= 0.001:
            break
    return {
        "maximum-likelihood nll": least, "gap": gap, "iterations": steps, "cpu": cpu,
        "wall": wall, "compile": first,
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


PARTS = {"clusters": clusters, "speed": speed, "items": items, "large": large, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args()
    found = {}
    for name in chosen.only:
        found[name] = PARTS[name]()
        print(name)
        for key, value in found[name].items():
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "each"}
            print(f"  {key}: {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
