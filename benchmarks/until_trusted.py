"""Comparisons of programs and seeds, each on cores of its own, that go on where they stopped.

    python benchmarks/until_trusted.py --out DIR [--limit 300] [--seeds 0 1 11] [--cores 1]
                                       [--stop SECONDS] [MODEL …]

Each is `latentbits compare MODEL --seed N --replicates 1` in a process of its own, in the folder
DIR/MODEL-N; its times are a line of DIR/MODEL-N.jsonl. A second call goes on with those that are
there: what is not yet trusted runs until a longer `--limit`. `--stop` interrupts what still runs
after so many seconds, as Ctrl-C does: methods that ended are kept.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from inference.files.cards import CARDS


def compare(options: argparse.Namespace, free: queue.Queue, ends: float, job: tuple) -> str:
    """One comparison, from its start or from where it stopped: its headline."""
    name = f"{job[0]}-{job[1]}"
    folder, log = options.out / name, options.out / f"{name}.log"
    if (folder / "parts").is_dir():
        asked = ["--continue", str(folder)]
    elif (folder / "manifest.json").is_file():
        return f"{name}: all ended"
    else:
        asked = [job[0], "--seed", str(job[1]), "--replicates", "1", "--out", str(folder)]
    asked += ["--limit", str(options.limit), "--jobs", str(options.cores)]
    cores = free.get()
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "latentbits", "compare", *asked, "--results", f"{folder}.jsonl"],
            stdout=out, stderr=out, preexec_fn=partial(os.sched_setaffinity, 0, cores),
            # Programs do not share what is compiled: processes that start at once would race.
            env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(options.out / "compiled" / job[0])},
        )  # fmt: skip
        try:
            process.wait(max(1.0, ends - time.time()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    free.put(cores)
    said = [
        line for line in log.read_text().splitlines() if " first, " in line or "arrived" in line
    ]
    return f"{name}: {said[0] if said else log.read_text().strip().splitlines()[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*CARDS], metavar="MODEL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 11])
    parser.add_argument("--cores", type=int, default=1, help="of one comparison")
    parser.add_argument("--stop", type=float, default=float("inf"), help="seconds")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    cores, free = sorted(os.sched_getaffinity(0)), queue.Queue()
    for i in range(0, len(cores) - options.cores + 1, options.cores):
        free.put(cores[i : i + options.cores])
    jobs = [(model, seed) for seed in options.seeds for model in options.models]
    with ThreadPoolExecutor(free.qsize()) as pool:
        run = partial(compare, options, free, time.time() + options.stop)
        for line in pool.map(run, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
