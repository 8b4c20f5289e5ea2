"""The rows of `latentbits bench` on two checkouts, before and now, call by call in turn.

    git worktree add --detach ../before 58e5ba9
    taskset -c 1 python tests/benchmarks/before_after.py ../before [--only NAME,…] [--turns 15]

A machine that others use too changes its pace from minute to minute: two runs one after the other
differ by a tenth or more on the same code. Here two processes, one for each checkout, come to the
same call of a benchmark, warm it up, and take turns at it, each of `TURN` processor seconds or one
call. A row is the median of its turns. Other packages are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
TURN = 0.1


def work() -> None:
    """Run the benchmarks of the checkout in the working folder; a line on stdin gives a turn."""
    folder = Path.cwd() / "tests" / "benchmarks"
    sys.path[:1] = [str(Path.cwd()), str(folder)]
    answers, sys.stdout = sys.stdout, sys.stderr
    import jax
    import measuring

    def say(**words: Any) -> None:
        print(json.dumps(words), file=answers, flush=True)

    def timed(function: Any, *inputs: Any, **_: int) -> tuple[Any, Any]:
        compiled = function.lower(*inputs).compile()
        out = jax.block_until_ready(compiled(*inputs))
        say(turn=True)
        seconds = []
        while sys.stdin.readline() == "go\n":
            calls, began = 0, time.process_time()
            while not calls or time.process_time() - began < TURN:
                jax.block_until_ready(compiled(*inputs))
                calls += 1
            seconds.append((time.process_time() - began) / calls)
            say(turn=True)
        return out, measuring.Taken(statistics.median(seconds), 0.0, 0.0)

    measuring.timed = timed
    measuring.rival = lambda package, *_: {"method": package, "note": "left out"}
    measuring.cpu_of = lambda function: (function(), math.nan)  # of no method of ours
    files = sorted(folder.glob("bench_*.py"))
    known: dict[str, Any] = {}
    for file in files:
        known |= getattr(importlib.import_module(file.stem), "BENCHMARKS", {})
    say(names=list(known))
    for name in json.loads(sys.stdin.readline()):
        say(rows=known[name](False)["rows"])


def flat(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """(name of a row, its processor seconds), each size of a row that grows by itself."""
    for row in rows:
        if "sizes" in row:
            for size, cpu in zip(row["sizes"], row["cpu"], strict=True):
                yield f"{row['method']}, {row['in']} {size}", cpu
        elif "cpu" in row and not math.isnan(row["cpu"]):
            yield row["method"].strip(), row["cpu"]


def start(folder: Path) -> subprocess.Popen:
    path = {"PYTHONPATH": str(folder), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    return subprocess.Popen(
        [sys.executable, __file__, "--work"],
        cwd=folder, env={**os.environ, **path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--only", metavar="NAME,…", help="some of the benchmarks")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    both = [start(options.before.resolve()), start(HERE)]

    def hear() -> list[dict[str, Any]]:
        return [json.loads(x.stdout.readline()) for x in both]

    def tell(words: str) -> None:
        for x in both:
            print(words, file=x.stdin, flush=True)

    names = [x["names"] for x in hear()]
    wanted = options.only.split(",") if options.only else names[1]
    shared = [name for name in wanted if name in names[0]]
    tell(json.dumps(shared))
    heads = "benchmark", "row", "before, CPU ms", "now, CPU ms", "now / before"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in shared:
        while "rows" not in (heard := hear())[0]:
            for turn in range(options.turns):
                for x in both[:: 1 if turn % 2 else -1]:
                    print("go", file=x.stdin, flush=True)
                    x.stdout.readline()
            tell("end")
        seen = set()  # the base of what grows comes once for each size
        for (_, old), (row, new) in zip(*(flat(x["rows"]) for x in heard), strict=True):
            if new not in seen:
                numbers = f"{1e3 * old:.3g} | {1e3 * new:.3g} | {new / old:.2f}"
                print(f"| {name} | {row} | {numbers} |", flush=True)
            seen.add(new)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
