"""`latentbits bench`: the methods beside the packages one would take instead, and how they grow.

The benchmarks are files of a checkout, `benchmarks/bench_*.py`; one takes part if it has a
table ``BENCHMARKS`` of name -> function(full) -> {"title", "rows"}. What a row holds is said in
`benchmarks/measuring.py`, which makes a table of it. Everything runs on one core: threads
that wait for each other would count as processor seconds, and not for all contenders alike.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latentbits.models.data import InputError

from ..files.catalogue import summary
from ..files.output import as_json, check_output, versions, write_whole
from .progress import stage

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

LAST = ("growth", "rate")
"""What is no contest comes after those that are."""

Benchmark = Callable[[bool], dict[str, Any]]


DESCRIPTION = """Measure every paper's method beside comparable packages (pip install
'latentbits[bench]'; those that are not there are left out), how the time grows with the data, and
the share of the machine's matrix-product rate. On one core, in processor seconds, compilation
apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the numbers and what made them")
    parser.add_argument("--only", metavar="NAME,…", help="some of the benchmarks; see --list")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, a line each")
    parser.add_argument("--full", action="store_true", help="larger tables: many minutes")


def main(namespace: argparse.Namespace) -> int:
    file = check_output("--json", namespace.json)
    chosen = choose(benchmarks(FOLDER), namespace.only)
    if namespace.list:
        width = max(map(len, chosen))
        for name, run in chosen.items():
            print(f"{name:{width}}   {summary(run).rstrip('.')}")
        return 0
    tables = {}
    measuring = sys.modules["measuring"]  # the benchmarks' own
    with measuring.one_core(), measuring.nothing_remembered():
        for number, (name, run) in enumerate(chosen.items(), 1):
            began = time.process_time()
            with stage(f"compiling and running {name} ({number} of {len(chosen)})"):
                tables[name] = run(namespace.full)
            tables[name]["cpu_in_all"] = time.process_time() - began
            lines = measuring.table(tables[name]["rows"])
            print(tables[name]["title"], *lines, "", sep="\n", flush=True)
    print(f"{sum(x['cpu_in_all'] for x in tables.values()):.0f} CPU-seconds in all, to compile too")
    if file is not None:
        origin = {"full": namespace.full, "machine": measuring.machine(), "versions": versions()}
        write_whole(file, as_json({**tables, "made_by": origin}), "--json")
    return 0


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Every benchmark of the files in a folder, by name."""
    files = sorted(folder.glob("bench_*.py"))
    if not files:
        raise InputError(
            "the benchmarks are not part of the installed package: run this in a checkout "
            f"(pip install -e '.[bench]'), where they are in {FOLDER.name}/"
        )
    sys.path.insert(0, str(folder))  # they share a clock, measuring.py
    try:
        modules = [importlib.import_module(file.stem) for file in files]
    finally:
        sys.path.remove(str(folder))
    runs = {name: run for x in modules for name, run in getattr(x, "BENCHMARKS", {}).items()}
    return {name: runs[name] for name in sorted(runs, key=lambda name: name in LAST)}


def choose(known: dict[str, Benchmark], only: str | None) -> dict[str, Benchmark]:
    """Those that `--only` names, all without it.

    >>> choose({"growth": print, "rate": print}, "rate").keys()
    dict_keys(['rate'])
    """
    if only is None:
        return known
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--only {name}: there are {', '.join(known)}")
    return {name: known[name] for name in known if name in names}
