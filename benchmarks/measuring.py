"""What the benchmarks share: one clock, one kind of row for every contender, one table of them; and
what `latentbits bench` does.

A file `bench_*.py` takes part in that if it has a table ``BENCHMARKS`` of name -> function(full) ->
{"title", "rows"}. Everything runs on one core: threads that wait for each other would count as
processor seconds, and not for all contenders alike.

A row is a dictionary: ``method``, ``cpu`` and ``compile`` (processor seconds), ``log_likelihood``
(held-out nats per row) and ``error`` where there are such, or a ``note`` that says why not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax, random

from inference.commands.progress import stage
from inference.files.catalogue import summary
from inference.files.output import align, as_json, versions, write_whole
from ppl_models.data import InputError

LAST = ("growth", "rate")
"""What is no contest comes after those that are."""
MISSING = "not installed: pip install 'latentbits[bench]'"


class Taken(NamedTuple):
    """Seconds that a call took: of the processor (all threads), of the clock, and to compile."""

    cpu: float
    wall: float
    compile: float


def timed(function: Any, *inputs: Any, repeats: int = 1) -> tuple[Any, Taken]:
    """What a compiled function gives, the median times of its calls, and what compiling it took.

    Processor time: whoever else is at work on the machine does not count. With more than one
    repeat, a first call is not counted either.

    :param function: of `jax.jit`.
    """
    began = time.process_time()
    compiled = function.lower(*inputs).compile()
    compile_seconds = time.process_time() - began
    if repeats > 1:
        jax.block_until_ready(compiled(*inputs))
    cpu, wall = [], []
    for _ in range(repeats):
        began, clock = time.process_time(), time.perf_counter()
        out = jax.block_until_ready(compiled(*inputs))
        cpu.append(time.process_time() - began)
        wall.append(time.perf_counter() - clock)
    return out, Taken(statistics.median(cpu), statistics.median(wall), compile_seconds)


def row(method: str, taken: Taken, **numbers: float) -> dict[str, Any]:
    """One contender of ours."""
    return {"method": method, "cpu": taken.cpu, "compile": taken.compile, **numbers}


def true_row(judged: dict[str, float]) -> dict[str, Any]:
    """The truth, which takes no time and has no error."""
    return {"method": "(true parameters)", "log_likelihood": judged["log_likelihood"]}


def rival(package: str, what: str, run: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """The row of another package: its numbers, or in words why it has none.

    :param package: as PyPI has it.
    :param run: imports it, fits, and hands out ``cpu`` and whatever says how good it was.
    """
    try:
        name = f"{package} {importlib.metadata.version(package)}, {what}"
    except importlib.metadata.PackageNotFoundError:
        return {"method": f"{package}, {what}", "note": MISSING}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs to mend
            numbers = run()
    except Exception as error:  # a package that fails on these data is a result too
        words = " ".join(str(error).split()).partition(";")[0]
        return {"method": name, "note": f"fails: {words or type(error).__name__}"[:90]}
    return {"method": name, **{key: float(value) for key, value in numbers.items()}}


def cpu_of(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a call that compiles nothing gives, and its processor seconds."""
    began = time.process_time()
    out = function()
    return out, time.process_time() - began


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """b of seconds ∝ size^b, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def learning(method: Any, steps: int, **kwargs: Any) -> Callable[[Any, Any], Any]:
    """(state, data) -> state after so many updates of a method, compiled in one piece."""
    one = lambda data: lambda _, state: method.update(state, data, **kwargs)[0]  # noqa: E731
    return jax.jit(lambda state, data: lax.fori_loop(0, steps, one(data), state))


def fitted(
    name: str, method: Any, steps: int, train: Any, judge: Callable[[Any], dict], **kwargs: Any
) -> dict[str, Any]:
    """The row of a method of ours after so many updates: its times, and what `judge` makes of it.

    :param judge: parameters -> ``log_likelihood`` and ``error``, the same for all contenders.
    """
    state = jax.jit(lambda data: method.init(random.key(1), data, **kwargs))(train)
    end, taken = timed(learning(method, steps, **kwargs), state, train)
    return row(f"{name}, {steps} steps", taken, **judge(method.get_params(end)))


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


def machine() -> dict[str, Any]:
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
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # JAX asks once whether there is one
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()


Benchmark = Callable[[bool], dict[str, Any]]


def bench(namespace: argparse.Namespace, file: Path | None) -> int:
    """Run the benchmarks that the command names, and print a table of each.

    :param file: of all numbers and what made them.
    """
    chosen = choose(benchmarks(Path(__file__).parent), namespace.only)
    if namespace.list:
        width = max(map(len, chosen))
        for name, run in chosen.items():
            print(f"{name:{width}}   {summary(run).rstrip('.')}")
        return 0
    tables = {}
    with one_core(), nothing_remembered():
        for number, (name, run) in enumerate(chosen.items(), 1):
            began = time.process_time()
            with stage(f"compiling and running {name} ({number} of {len(chosen)})"):
                tables[name] = run(namespace.full)
            tables[name]["cpu_in_all"] = time.process_time() - began
            print(tables[name]["title"], *table(tables[name]["rows"]), "", sep="\n", flush=True)
    print(f"{sum(x['cpu_in_all'] for x in tables.values()):.0f} CPU-seconds in all, to compile too")
    if file is not None:
        origin = {"full": namespace.full, "machine": machine(), "versions": versions()}
        write_whole(file, as_json({**tables, "made_by": origin}), "--json")
    return 0


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Every benchmark of the files in a folder, by name."""
    modules = [importlib.import_module(x.stem) for x in sorted(folder.glob("bench_*.py"))]
    runs = {name: run for x in modules for name, run in getattr(x, "BENCHMARKS", {}).items()}
    return {name: runs[name] for name in sorted(runs, key=lambda name: name in LAST)}


def choose(known: dict[str, Benchmark], only: str | None) -> dict[str, Benchmark]:
    """Those that `--only` names, all without it."""
    if only is None:
        return known
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--only {name}: there are {', '.join(known)}")
    return {name: known[name] for name in known if name in names}
