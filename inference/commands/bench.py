"""`latentbits bench`: the methods beside the packages one would take instead, and how they grow.

The benchmarks are files of a checkout, `tests/benchmarks/bench_*.py`; one takes part if it has a
table ``BENCHMARKS`` of name -> function(full) -> {"title", "rows"}. What a row holds is said in
`tests/benchmarks/measuring.py`. Everything runs on one core: threads that wait for each other would
count as processor seconds, and not for all contenders alike.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from latentbits.models.data import InputError

from ..studies.output import align, as_json, check_output, versions, write_whole
from .progress import Methods, stage

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "benchmarks"

LAST = ("growth", "rate")
"""What is no contest comes after those that are."""

Benchmark = Callable[[bool], dict[str, Any]]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="the methods beside other packages, how they grow, how close to the machine's limit",
        description="Measure every paper's method beside packages that do the like (pip install "
        "'latentbits[bench]'; those that are not there are left out), how the time grows with the "
        "data, and the share of the machine's matrix-product rate. On one core, in processor "
        "seconds, compilation apart.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers and what made them")
    parser.add_argument("--only", metavar="NAME,…", help="some of them; see --list")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, a line each")
    parser.add_argument("--full", action="store_true", help="larger tables: many minutes")


def main(namespace: argparse.Namespace) -> int:
    file = None if namespace.json is None else check_output("--json", namespace.json)
    chosen = choose(benchmarks(FOLDER), namespace.only)
    if namespace.list:
        rows = [[name, first_line(run)] for name, run in chosen.items()]
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"{name:{width}}   {words}" for name, words in rows))
        return 0
    tables = {}
    count = Methods(list(chosen))
    with one_core(), nothing_remembered():
        for name, run in chosen.items():
            began = time.process_time()
            with stage(count):
                tables[name] = run(namespace.full)
            count.done(name)
            tables[name]["cpu_in_all"] = time.process_time() - began
            print(tables[name]["title"], *table(tables[name]["rows"]), "", sep="\n", flush=True)
    print(f"{sum(x['cpu_in_all'] for x in tables.values()):.0f} CPU-seconds in all, to compile too")
    if file is not None:
        origin = {"full": namespace.full, "machine": machine(), "versions": versions()}
        write_whole(file, as_json({**tables, "made_by": origin}))
    return 0


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Every benchmark of the files in a folder, by name."""
    files = sorted(folder.glob("bench_*.py"))
    if not files:
        raise InputError(
            "the benchmarks are not part of the installed package: run this in a checkout "
            f"(pip install -e '.[bench]'), where they are in {FOLDER.parent.name}/{FOLDER.name}"
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


COLUMNS = {
    "cpu": ("CPU s", 3),
    "compile": ("compile s", 2),
    "log_likelihood": ("nats per row", 4),
    "error": ("error", 3),
    "rate": ("GFLOP/s", 3),
    "share": ("share", 2),
    "exponent": ("exponent", 2),
    "gradients": ("gradients/s", 3),
    "megabytes": ("MB", 3),
    "resident": ("resident MB", 3),
}
"""Key of a row -> (head of its column, digits)."""


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of a table; a column for each key that some row has, a note where numbers are missing.

    >>> print("\\n".join(table([{"method": "a", "cpu": 0.5}, {"method": "b", "note": "is gone"}])))
    method   CPU s
    a          0.5
    b        is gone
    """
    keys = [key for key in COLUMNS if any(key in row for row in rows)]
    grown = any("sizes" in row for row in rows)
    heads = ["method", *(["in", "sizes", "CPU ms"] if grown else [])]
    keys = [key for key in keys if not (grown and key == "cpu")]
    cells = [[*heads, *(COLUMNS[key][0] for key in keys)]]
    for row in rows:
        line = [row["method"]]
        if grown:
            line += [
                row["in"],
                " ".join(str(size) for size in row["sizes"]),
                " ".join(show(1e3 * seconds, 2) for seconds in row["cpu"]),
            ]
        cells.append(line + [show(row[key], COLUMNS[key][1]) if key in row else "" for key in keys])
    lines = align(cells)
    start = max(len(line[0]) for line in cells) + 3
    for place, row in enumerate(rows, start=1):
        if "note" in row:
            lines[place] = lines[place].ljust(start) + row["note"]
    return lines


def show(value: float, digits: int) -> str:
    """A number with so many digits, never in powers of ten.

    >>> show(0.01234, 2), show(1234.5, 2), show(-4.65432, 4)
    ('0.012', '1234', '-4.654')
    """
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else f"{value:.6f}" if "e-" in text else text


def first_line(function: Callable) -> str:
    return (function.__doc__ or "").strip().split("\n")[0].rstrip(".")


def machine() -> dict[str, Any]:
    import jax

    device = jax.devices()[0]
    return {"processor": platform.machine(), "cores": os.cpu_count(), "device": str(device)}


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """One thread for everybody: for JAX, if it has not counted the cores yet, and for BLAS."""
    from threadpoolctl import threadpool_limits

    pin = getattr(os, "sched_setaffinity", None)  # Linux has it
    before = os.sched_getaffinity(0) if pin else set()
    try:
        if pin:
            pin(0, {min(before)})
        with threadpool_limits(1):
            yield
    finally:
        if pin:
            pin(0, before)


@contextlib.contextmanager
def nothing_remembered() -> Iterator[None]:
    """Programs compiled by earlier runs are not used: what compilation takes is measured too."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # JAX asks once whether there is one
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()
