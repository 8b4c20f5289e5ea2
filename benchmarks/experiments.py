"""Run every experiment, of the papers and beyond, at its default size; check what it must show.

    python benchmarks/experiments.py [NAME ...] [--jobs 4] [--limit 1800] [--out FILE]

Each runs as `latentbits reproduce NAME`, or by `benchmarks/reproduce.py`, in a process of its own.
The claims stand in `claims.py` and in `tests/support/paper_checks.py`. The exit status is 1 if one
fails. An experiment that has no data of its own is listed as "needs FILE" and counts neither way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import beyond  # noqa: E402
from claims import AT_DEFAULT  # noqa: E402
from paper_checks import CHECKS, finite  # noqa: E402

from inference.papers.experiment import experiments  # noqa: E402


def run(name: str, limit: float) -> dict[str, Any]:
    """One experiment: its seconds, its numbers, and "holds", "needs FILE" or what failed."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "numbers.json"
        of_a_paper = ["-m", "inference", "reproduce"]
        runner = of_a_paper if name in experiments() else ["benchmarks/reproduce.py"]
        command = [sys.executable, *runner, name, "--json", str(file)]
        command += ["--figure", str(Path(folder) / "figure.png")]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return {"seconds": limit, "outcome": f"fails: not done after {limit:g} s"}
        seconds = round(time.perf_counter() - began, 1)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            missing = done.returncode == 2 and "FILE" in last
            return {"seconds": seconds, "outcome": "needs FILE" if missing else f"fails: {last}"}
        numbers = json.loads(file.read_text())
    settings = numbers.pop("made_by")["settings"]
    del numbers["sha256"]
    return {"seconds": seconds, "outcome": judge(name, numbers, settings), "numbers": numbers}


def judge(name: str, numbers: dict[str, Any], settings: dict[str, Any]) -> str:
    """Whether what must hold does, or else the line that fails."""
    try:
        assert finite(numbers), "numbers that are not finite"
        CHECKS[name](numbers, settings)
        AT_DEFAULT.get(name, lambda _: None)(numbers)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"fails: {where.line} {error}".strip()
    return "holds"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; default all")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at once")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds of each")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write outcomes and numbers, JSON")
    options = parser.parse_args()
    known = {**experiments(), **experiments(beyond)}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"{unknown[0]} is no experiment: {', '.join(known)}")
    results: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run, x, options.limit): x for x in options.names or known}
        for done in as_completed(running):
            results[running[done]] = one = done.result()
            print(f"{running[done]:28} {one['seconds']:7.1f}  {one['outcome']}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    outcomes = [x["outcome"].partition(":")[0] for x in results.values()]
    print(", ".join(f"{outcomes.count(x)} {x}" for x in ("holds", "fails", "needs FILE")))
    return int("fails" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
