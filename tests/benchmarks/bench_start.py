"""From a method to its first answer: processor seconds to trace, to lower, to compile, and again.

    python tests/benchmarks/bench_start.py                       # all methods on small examples
    python tests/benchmarks/bench_start.py GibbsSearch           # some methods, programs or both
    python tests/benchmarks/bench_start.py --runs 3 --json 0.10.json
    python tests/benchmarks/bench_start.py --beside 0.10.json 0.11.json      # a table of both

Each row is a process of its own in which nothing was compiled, traced or tested before; with more
than one run, the least of each number. A second run, on other data of the same shapes, compiles
nothing; what it takes beyond its steps is the last column. To be reached: 3 processor seconds for
the first, 10 ms for the second. Loops are left as they stand, as in the commands.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax import random
from measuring import one_core

from inference.cli import EXTRA
from inference.reading.anatomy import inspect
from inference.running.algorithm import Algorithm
from inference.studies.cards import CARDS, example
from inference.studies.catalogue import methods, programs

STEPS = 5
PARTS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "xla",
}
"""JAX's names of what it does before a first step -> ours."""
FEW = {
    ("QuadratureEM", "latent_trait"),
    ("BoundEM", "latent_trait"),
    ("EM", "bernoulli_mixture"),
    ("EM", "binary_sparse_coding"),
    ("TruncatedEM", "binary_sparse_coding"),
}
"""What `latentbits bench` runs without `--full`."""
COLD = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "XLA_FLAGS": f"--{EXTRA}=xla_cpu_disable_loop_unrolling",
}


def pairs() -> Iterator[tuple[str, str]]:
    """Every method and program that it admits, program by program."""
    for program in CARDS:
        made = example(program, 13, which="small")
        anatomy = inspect(programs()[program], (made.values,), made.sizes)
        for name, method in methods().items():
            if issubclass(method, Algorithm) and method.admits(anatomy) is None:
                yield name, program


def row() -> None:
    """Measure one method on one program, which come from the process that started this one."""
    name, program, tables, sizes = pickle.load(sys.stdin.buffer)
    spent: Counter[str] = Counter()

    def hear(event: str, seconds: float, **_: Any) -> None:
        spent[PARTS.get(event.rpartition("/")[2], "other")] += seconds

    jax.monitoring.register_event_duration_secs_listener(hear)
    importlib.import_module("inference.public")  # what a first run imports is not compiled
    kind, model, times = methods()[name], programs()[program], []
    for seed, table in enumerate(tables):
        began = time.process_time()
        method = kind.of(model, inspect(model, (table,), sizes))
        result = method.run(random.key(seed), STEPS, table, **sizes)
        # Of the processor too, on a CPU.
        times.append(time.process_time() - began - result.seconds)
        if seed == 0:
            parts = {part: spent[part] for part in PARTS.values()}
    beyond = {"compile": times[0] - times[1], **parts, "beyond": 1000 * times[1]}
    print(json.dumps(beyond))


def measure(name: str, program: str, runs: int) -> dict[str, Any]:
    """The least of each number, of so many processes."""
    made = [example(program, which="small", number=number) for number in range(2)]
    asked = pickle.dumps((name, program, [x.values for x in made], made[0].sizes))
    command = [sys.executable, __file__, "--row"]
    every = []
    for _ in range(runs):
        done = subprocess.run(
            command, input=asked, stdout=subprocess.PIPE, env={**os.environ, **COLD}, check=True
        )
        every.append(json.loads(done.stdout.splitlines()[-1]))
    least = {part: min(x[part] for x in every) for part in every[0]}
    return {"method": name, "program": program, **least}


def start(full: bool) -> dict[str, Any]:
    """Start: what a first run compiles, and what a second takes beyond its steps."""
    rows = []
    for name, program in pairs():
        if full or (name, program) in FEW:
            found = measure(name, program, 1)
            row = {"method": f"{name}, {program}", "compile": found["compile"]}
            rows.append({**row, "note": note(found)})
    return {"title": f"start: first and second run of {STEPS} steps", "rows": rows}


def note(found: dict[str, Any]) -> str:
    words = ", ".join(f"{part} {found[part]:.2f}" for part in PARTS.values())
    return f"{found['compile']:.2f} CPU-s ({words} s); second run {found['beyond']:.0f} ms more"


BENCHMARKS = {"start": start}


def beside(files: list[Path]) -> Iterator[str]:
    """The table of the docs: a row a method and program, for each file what it says of them."""
    every = [json.loads(file.read_text()) for file in files]
    first = [(x["method"], x["program"]) for x in every[0]["rows"]]
    heads = [f"{words} ({x['jax']})" for x in every for words in ("CPU-s", "second run, ms")]
    yield "| " + " | ".join(["method", "program", *heads]) + " |"
    yield "|---" * (2 + len(heads)) + "|"
    found = [{(y["method"], y["program"]): y for y in x["rows"]} for x in every]
    for pair in first:
        cells = [f"{x[pair]['compile']:.1f} | {x[pair]['beyond']:.0f}" for x in found if pair in x]
        yield "| " + " | ".join([f"`{x}`" for x in pair] + cells) + " |"


def measure_all(options: argparse.Namespace) -> None:
    """Print each row as soon as it is there, and keep those so far."""
    rows = []
    chosen = [{x for x in options.names if x in known} for known in (methods(), programs())]
    for pair in pairs():
        if any(names and name not in names for names, name in zip(chosen, pair, strict=True)):
            continue
        rows.append(measure(*pair, options.runs))
        print(f"{pair[0]:22} {pair[1]:25} {note(rows[-1])}", flush=True)
        if options.json:
            made_by = {"jax": jax.__version__, "python": sys.version, "runs": options.runs}
            options.json.write_text(json.dumps({**made_by, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="methods and programs; by default all")
    parser.add_argument("--runs", type=int, default=1, help="processes a row")
    parser.add_argument("--json", type=Path, help="write the numbers there, row by row")
    parser.add_argument("--beside", type=Path, nargs="+", help="make a table of such files")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        row()
    elif options.beside:
        print("\n".join(beside(options.beside)))
    else:
        with one_core():
            measure_all(options)


if __name__ == "__main__":
    main()
