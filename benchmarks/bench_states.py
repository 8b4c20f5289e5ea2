"""Truncated EM read off the program against the same algorithm written by hand, and the ceiling.

    python benchmarks/bench_states.py [--full] [--json FILE]

Measured in one run, compilation apart: seconds an EM iteration of binary sparse coding as read off
the program and as written by hand for this one model, and their largest difference; the kernels of
an iteration on a GPU, in milliseconds; log joints of states per second against a plain matrix
product of the same size, which is the ceiling. Sizes are the paper's (26×26 patches, 700 causes,
8 of 10 candidates) on fewer rows; `--full` takes all 200 000. For `latentbits bench`: the share of
the machine's matrix-product rate.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from measuring import timed

from inference import TruncatedEM
from inference.methods.discrete.candidates import (
    Candidates,
    Scene,
    _design,
    _log_joints,
    _scene,
)
from inference.methods.discrete.step import EMState, Precision
from inference.methods.shared import Chunk
from inference.numerics.log_sums import best_bits, normalise
from inference.reading.log_joint import Structure
from inference.reading.reader import open_program
from ppl_models import binary_sparse_coding


def seconds(function, *args) -> float:
    """Median seconds of a warm call: processor time on a CPU, which others do not disturb."""
    _, taken = timed(function, *args, repeats=5)
    return taken.cpu if jax.default_backend() == "cpu" else taken.wall


def by_hand(params: dict, data: Array, sets: Candidates, chunk: int) -> dict:
    """One iteration of eqs. (3)–(8) for binary sparse coding alone, no program in sight."""
    weights, noise, sparsity = params["weights"], params["noise"], params["sparsity"]
    num_causes = len(weights)
    design = _design(sets.table()).astype(np.float32)
    first, second = np.triu_indices(sets.num_candidates, 1)
    gram = weights @ weights.T / noise**2
    bias = jnp.log(sparsity / (1 - sparsity)) - 0.5 * jnp.diagonal(gram)

    def one(start: Array) -> dict:
        y = lax.dynamic_slice_in_dim(data, start, chunk)
        single = y @ weights.T / noise**2 + bias
        chosen = best_bits(single, sets.num_candidates)
        pairs = -gram[chosen[:, first], chosen[:, second]]
        features = jnp.concatenate([jnp.take_along_axis(single, chosen, 1), pairs], axis=1)
        inside = jnp.matmul(features, design.T, precision="highest")
        each = jnp.arange(chunk)[:, None]
        outside = single.at[each, chosen].set(-jnp.inf)
        _, (share, alone) = normalise((inside, outside), 1)
        moments = jnp.matmul(share, design, precision="highest")
        inner, joint = moments[:, : sets.num_candidates], moments[:, sets.num_candidates :]
        mean = alone.at[each, chosen].set(inner)
        where = chosen[:, first] * num_causes + chosen[:, second]
        upper = jnp.zeros(num_causes**2).at[where].add(joint).reshape(num_causes, num_causes)
        return {
            "cross": mean.T @ y,
            "second": upper + upper.T + jnp.diag(mean.sum(0)),
            "active": mean.sum(),
            "power": jnp.sum(y * y),
        }

    starts = jnp.arange(0, data.shape[0], chunk)
    if len(starts) == 1:
        sums = one(starts[0])
    else:
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(one, starts[0]))
        sums, _ = lax.scan(lambda c, s: (jax.tree.map(jnp.add, c, one(s)), None), zero, starts)
    ridge = 10 * jnp.finfo(gram.dtype).eps * jnp.trace(sums["second"]) / num_causes
    new = jnp.linalg.solve(sums["second"] + ridge * jnp.eye(num_causes), sums["cross"])
    residual = (
        sums["power"] - 2 * jnp.sum(new * sums["cross"]) + jnp.sum((new @ new.T) * sums["second"])
    )
    from inference.methods.discrete.updates import truncation

    a, b = truncation(sparsity, num_causes, sets.max_active)
    return {
        "weights": new,
        "noise": jnp.sqrt(residual / data.size),
        "sparsity": sparsity * a / b * sums["active"] / data.shape[0],
    }


def kernels(function, *args) -> dict[str, float]:
    """Milliseconds of each kernel of a call on a GPU, by JAX's profiler, the longest first."""
    if jax.default_backend() == "cpu":
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(function(*args))
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = {x["pid"]: x["args"]["name"] for x in events if x.get("name") == "process_name"}
    threads = {(x["pid"], x["tid"]): x["args"] for x in events if x.get("name") == "thread_name"}
    total: Counter[str] = Counter()
    for event in (x for x in events if x.get("ph") == "X" and "GPU" in named.get(x["pid"], "")):
        if "XLA" not in threads[event["pid"], event["tid"]]["name"]:  # whole modules, operations
            total[event["name"][:60]] += event["dur"] / 1e3
    return {name: round(value, 3) for name, value in total.most_common(30)}


def problem(
    num_data: int, columns: int, num_causes: int, active: float = 7.5
) -> tuple[Array, dict]:
    """Patches drawn from the model itself, near the paper's sparseness and noise."""
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 0.3, (num_causes, columns)).astype(np.float32)
    causes = generator.random((num_data, num_causes), np.float32) < active / num_causes
    data = causes.astype(np.float32) @ weights
    data += 0.6 * generator.standard_normal(data.shape, np.float32)
    params = {"weights": weights, "noise": 0.6, "sparsity": active / num_causes}
    return jnp.asarray(data), jax.tree.map(jnp.asarray, params)


def iteration(
    num_data: int,
    num_causes: int,
    sets: Candidates,
    chunk: int,
    columns: int = 676,
    precision: Precision = "highest",
) -> dict:
    """Seconds an iteration, read off the program and written by hand, and how far they differ."""
    data, params = problem(num_data, columns, num_causes)
    em = TruncatedEM(
        binary_sparse_coding,
        max_active=sets.max_active,
        num_candidates=sets.num_candidates,
        keep=False,
        chunk_size=chunk,
        structure=Structure.SHARED,
        precision=precision,
    )
    state = EMState(params, jnp.zeros((), int), random.key(0), None)
    quick = partial(jax.jit)
    read = quick(lambda state, data: em.update(state, data, num_causes=num_causes)[0].params)
    # A GPU would take ten bits by default.
    written = jax.default_matmul_precision(precision)(by_hand)
    hand = quick(partial(written, sets=sets, chunk=chunk))
    began = time.perf_counter()
    ours, theirs = read(state, data), hand(params, data)
    jax.block_until_ready((ours, theirs))
    compile_seconds = time.perf_counter() - began
    apart = max(float(jnp.abs(ours[k] - theirs[k]).max() / jnp.abs(theirs[k]).max()) for k in ours)
    slow, fast = seconds(read, state, data), seconds(hand, params, data)
    return {
        "num_data": num_data, "num_causes": num_causes, "num_candidates": sets.num_candidates,
        "chunk_size": chunk, "precision": precision,
        "read_seconds": slow, "hand_seconds": fast, "ratio": slow / fast,
        "largest_relative_difference": apart, "compile_seconds": compile_seconds,
        "kernels": kernels(read, state, data),
    }  # fmt: skip


def ceiling(num_data: int, num_causes: int, sets: Candidates, columns: int = 676) -> dict:
    """Log joints of states per second, and a plain product of the same size."""
    data, params = problem(num_data, columns, num_causes)
    reader, _ = open_program(
        binary_sparse_coding, (data,), {"num_causes": num_causes}, structure=Structure.SHARED
    )
    design = jnp.asarray(_design(sets.table()), jnp.float32)

    def prepare(params: dict, data: Array):
        arguments = ((data,), {"num_causes": num_causes})
        scene = _scene(sets, Chunk(reader, params, arguments))
        return scene[1:], best_bits(scene.single, sets.num_candidates)

    def evaluate(params: dict, data: Array, scene, chosen: Array) -> Array:
        arguments = ((data,), {"num_causes": num_causes})
        whole = Scene(Chunk(reader, params, arguments), *scene)
        return _log_joints(sets, whole, chosen)

    quick = partial(jax.jit)
    prepare, evaluate = quick(prepare), quick(evaluate)
    scene, chosen = prepare(params, data)
    features = random.normal(random.key(1), (num_data, design.shape[1]))
    product = quick(lambda f: jnp.matmul(f, design.T, precision=lax.Precision.HIGHEST))
    states = num_data * len(sets.table())
    ours = seconds(evaluate, params, data, scene, chosen)
    plain = seconds(product, features)
    form = seconds(prepare, params, data)
    return {
        "states_per_second": states / ours, "ceiling_per_second": states / plain,
        "share_of_ceiling": plain / ours, "form_and_candidates_seconds": form,
        "flops": 2 * states * design.shape[1],
    }  # fmt: skip


def rate(full: bool) -> dict[str, Any]:
    """The share of the machine's matrix-product rate, for states and for whole iterations.

    Counted are the products alone: single causes 2NHD, states 2NSF and back again, the M-step's
    2NHD; F are the H' bits and their pairs. What else an iteration does counts as time only.
    """
    size, num_data = 2048, 20_000 if full else 3000
    square = random.normal(random.key(0), (size, size))
    product = jax.jit(lambda x: jnp.matmul(x, x, precision=lax.Precision.HIGHEST))
    best = 2 * size**3 / seconds(product, square)
    rows = [{"method": f"matrix product, {size}³", "rate": best / 1e9, "share": 1.0}]

    def add(method: str, flops: float, taken: float) -> None:
        speed = flops / taken
        rows.append({"method": method, "cpu": taken, "rate": speed / 1e9, "share": speed / best})

    causes, columns, sets = 700, 676, Candidates(10, 8)
    states = ceiling(num_data, causes, sets, columns)
    num_states, num_terms = _design(sets.table()).shape
    each = num_data * num_states
    add("plain product of the states' shape", states["flops"], each / states["ceiling_per_second"])
    add("log joints of these states", states["flops"], each / states["states_per_second"])
    # Single causes and the M-step, then the states, to and fro.
    flops = 4 * num_data * (causes * columns + num_states * num_terms)
    timing = iteration(num_data, causes, sets, num_data, columns)
    add("TruncatedEM, an iteration", flops, timing["read_seconds"])
    add("  the same written by hand", flops, timing["hand_seconds"])
    return {
        "title": f"rate: {num_data} × {columns}, {causes} causes, {num_states} states a row; "
        "share of a large matrix product's rate",
        "rows": rows,
    }


BENCHMARKS = {"rate": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all 200 000 rows")
    parser.add_argument("--num-data", type=int, default=20_000)
    parser.add_argument("--chunk-size", type=int, default=None)
    parser.add_argument("--precision", choices=get_args(Precision), default="highest")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    num_data = 200_000 if options.full else options.num_data
    on_cpu = jax.default_backend() == "cpu"
    chunk = options.chunk_size or (10_000 if on_cpu else num_data)
    sets = Candidates(10, 8)
    out = {
        "backend": jax.default_backend(),
        "iteration": iteration(num_data, 700, sets, chunk, precision=options.precision),
        "ceiling": ceiling(min(num_data, chunk), 700, sets),
    }
    text = json.dumps(out, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
