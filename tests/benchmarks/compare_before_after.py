"""Processor seconds of one comparison in this checkout and in one of the flat layout.

    git worktree add --detach ../before 58e5ba9
    python tests/benchmarks/compare_before_after.py ../before latent_trait BoundEM,QuadratureEM,NUTS

The same methods on the same small table, each to its end by its own rule or a budget of 20 s, 100
draws a chain, nothing kept from earlier runs, and the compiler as the command `compare` sets it;
each checkout in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET, DRAWS = 20.0, 100
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def run(program: str, methods: list[str], file: str) -> None:
    """One comparison by the code that is first on the path, of either layout."""
    try:
        from inference.effort import hurry
        from inference.studies.compare import compare
    except ImportError:
        from inference.cli import EXTRA
        from inference.numerics.compiling import RARELY, hurry

        gc.set_threshold(*RARELY)
        os.environ["XLA_FLAGS"] = f"--{EXTRA}=xla_cpu_disable_loop_unrolling"
        from inference.studies.comparison.compare import compare
    hurry()
    from jax import random

    import ppl_models

    values, sizes = pickle.loads(Path(file).read_bytes())
    rows, model, began = {}, getattr(ppl_models, program), time.process_time()
    last = [began]

    def on_result(name: str, row: dict) -> None:
        now = time.process_time()
        rows[name], last[0] = [round(now - last[0], 1), row["reason"]], now

    compare(
        model, values, methods, budget=BUDGET, num_draws=DRAWS, rng_key=random.key(0),
        on_result=on_result, **sizes,
    )  # fmt: skip
    print(json.dumps({"cpu": round(time.process_time() - began, 1), "rows": rows}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("program")
    parser.add_argument("methods", help="those of both checkouts, with commas between")
    options = parser.parse_args()
    from inference.studies.cards import example

    made = example(options.program, which="small")
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(pickle.dumps((made.values, made.sizes)))
        for tree in (options.before.resolve(), Path(__file__).parents[2]):
            command = [sys.executable, __file__, "--row", options.program, options.methods]
            env = {**os.environ, **COLD, "PYTHONPATH": str(tree)}
            done = subprocess.run(
                [*command, file.name], env=env, cwd=tree, stdout=subprocess.PIPE, check=True
            )
            print(tree.name, done.stdout.decode().splitlines()[-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--row":
        run(sys.argv[2], sys.argv[3].split(","), sys.argv[4])
    else:
        main()
