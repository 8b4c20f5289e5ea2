"""Wall and processor seconds of one comparison in this checkout and in one of the flat layout.

    git worktree add --detach ../before 58e5ba9
    python tests/benchmarks/compare_before_after.py ../before latent_trait mixed_trait --turns 2

The methods that both know on the same small table, 100 draws a chain, nothing kept from earlier
runs, and the compiler as the command `compare` sets it; from the start of a process to its end, in
two worker processes as both commands have by default on two cores. Checkouts take turns, the flat
one first. It does what it does by default, without a budget; then this one is given equal work:
the same steps, starts, draws, warm-up, scored draws and nodes, and nothing that the other does not
do (`equal_work` says how). `--rows` prints of each method what each side did.

With `--as-it-is` each does what it does by default, within a budget of 20 s a method. With
`--jobs 1` all methods run in one process, and the processor seconds of each, to compile, run and
judge, are printed with its row.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

BUDGET, DRAWS = 20.0, 100
EQUAL = "STEPS_TAKEN"
"""In the environment: method -> steps that it is to take; nothing: work as it is by default."""
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
TRAITS = ("BoundEM", "MonteCarloEM", "QuadratureEM", "NUTS", "MAP")
MACHINES = ("EM", "TruncatedEM", "ExactGradient", "ProjectionPursuit", "NUTS", "MAP")
METHODS = {
    "latent_trait": TRAITS,
    "mixed_trait": TRAITS,
    "clipped_gaussian": ("MonteCarloEM", "QuadratureEM", "MomentInversion", "NUTS", "MAP"),
    "binary_sparse_coding": ("EM", "TruncatedEM", "NUTS", "MAP"),
    "bernoulli_mixture": ("EM", "SplittingEM", "NUTS", "MAP"),
    "noisy_or_network": ("EM", "TruncatedEM", "GibbsEM", "GibbsSearch", "NUTS", "MAP"),
    "combination_machine": MACHINES,
    "real_combination_machine": MACHINES,
    "bernoulli_product": ("NUTS", "SVI mean_field", "SVI low_rank", "SVI flow", "MAP"),
}
"""Program -> methods that both checkouts know."""


def run(program: str, methods: list[str], jobs: int, file: str, budget: float | None) -> None:
    """One comparison by the code that is first on the path, of either layout."""
    names: Any = None
    try:
        from inference.effort import hurry
        from inference.studies.side_by_side import processes as workers

        hurry()
        pool: Any = None if jobs == 1 else workers(jobs)
        from inference.studies.compare import compare
    except ImportError:
        from inference.cli import EXTRA
        from inference.numerics.compiling import RARELY, hurry
        from inference.studies.comparison.side_by_side import processes

        gc.set_threshold(*RARELY)
        os.environ["XLA_FLAGS"] = f"--{EXTRA}=xla_cpu_disable_loop_unrolling"
        hurry()
        names = ["latentbits.inference.studies.comparison.compare"]
        names += ["equal_work"] if EQUAL in os.environ else []
        pool = None if jobs == 1 else processes(jobs, names)
        from inference.studies.comparison.compare import compare

        if pool is None:
            for name in names:
                importlib.import_module(name)
    from jax import random

    import ppl_models

    values, sizes = pickle.loads(Path(file).read_bytes())
    rows, kept, model = {}, {}, getattr(ppl_models, program)
    last = [time.process_time()]

    def on_result(name: str, row: dict) -> None:
        now = time.process_time()
        rows[name] = {"cpu": round(now - last[0], 1)} if pool is None else {}
        rows[name] |= {x: round(row[x], 1) for x in ("compile_seconds", "seconds") if x in row}
        rows[name] |= {"reason": row["reason"]}
        last[0] = now

    compare(
        model, values, methods, budget=budget, num_draws=DRAWS, rng_key=random.key(0),
        on_result=on_result, keep=kept, pool=pool, **sizes,
    )  # fmt: skip
    if pool is not None:
        pool.shutdown()  # their processor seconds are known when they have ended
        forkserver._forkserver._stop()  # and so has the process that they are copies of
    for name, judged in kept.items():
        rows[name] |= work(name, judged, flat=names is None)
    print(json.dumps(rows))


def work(name: str, judged: Any, flat: bool) -> dict[str, Any]:
    """What a method and those who judged it did."""
    draws, scored = judged.draws, judged.train if flat else judged.scores.train
    shape = next(iter(draws.params.values())).shape
    said: dict[str, Any] = {"steps": len(draws.losses)}
    if flat:
        from inference.studies.contenders import NUM_STARTS, SINGLE

        alone = name in SINGLE or name == "MAP" or name.startswith("SVI")
        said["starts"] = 1 if alone else NUM_STARTS
    else:
        said["starts"] = max(1, len(draws.starts))
    if not len(draws.losses):
        gradients = int(draws.stats["n_steps"].sum())
        said = {"chains": shape[0], "draws": shape[1], "gradients": gradients}
    return said | {"scored": scored.shape[0] * scored.shape[1], "by": judged.scored_by[0]}


def measure(
    tree: Path, program: str, methods: list[str], jobs: int, file: str, steps: dict | None
) -> dict[str, Any]:
    """One comparison by the code of a checkout, from the start of its process to the end.

    :param steps: of each method, for equal work; None: work as it is by default.
    """
    command = [sys.executable, __file__, "--row", program, ",".join(methods), str(jobs), file]
    env = {**os.environ, **COLD, "PYTHONPATH": str(tree)}
    env |= {} if steps is None else {EQUAL: json.dumps(steps)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=env, cwd=tree, stdout=subprocess.PIPE, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": spent, "rows": json.loads(done.stdout.decode().splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(METHODS)}; by default all")
    parser.add_argument("--methods", help="with commas between; by default those of both")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--turns", type=int, default=1, help="comparisons by each checkout")
    parser.add_argument("--rows", action="store_true", help="print what was done by each method")
    parser.add_argument("--as-it-is", action="store_true", help="the work of either by default")
    options = parser.parse_args()
    from inference.studies.cards import example

    trees = {"before": options.before.resolve(), "now": Path(__file__).parents[2]}
    for program in options.programs or METHODS:
        methods = options.methods.split(",") if options.methods else list(METHODS[program])
        made = example(program, which="small")
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(pickle.dumps((made.values, made.sizes)))
            for _ in range(options.turns):
                steps: dict[str, int] | None = None if options.as_it_is else {}
                for name, tree in trees.items():
                    one = measure(tree, program, methods, options.jobs, file.name, steps)
                    if steps is not None and name == "before":
                        steps = {x: y["steps"] for x, y in one["rows"].items() if "steps" in y}
                    found[name].append(one)
                    load = os.getloadavg()[0]
                    note = f"{one['wall']:.1f} s, {one['cpu']:.1f} CPU-s, load {load:.1f}"
                    print(f"{program:25} {name:7} {note}", flush=True)
                    for method, row in one["rows"].items() if options.rows else ():
                        print(f"    {method:20} {row}", flush=True)
        least = {x: [min(y[x] for y in found[name]) for name in trees] for x in ("wall", "cpu")}
        words = [f"{x} {b:.1f} → {n:.1f} ({n / b:.2f})" for x, (b, n) in least.items()]
        print(f"{program:25} least   {', '.join(words)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--row":
        run(
            sys.argv[2], sys.argv[3].split(","), int(sys.argv[4]), sys.argv[5],
            None if EQUAL in os.environ else BUDGET,
        )  # fmt: skip
    else:
        main()
