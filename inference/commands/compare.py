"""`latentbits compare MODEL`: run every method that applies, judge all alike, write a report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from latentbits.models.data import InputError, Table

from ..numerics.compiling import hurry
from ..studies.catalogue import find_program
from ..studies.comparison.columns import lines, summary
from ..studies.comparison.side_by_side import close
from ..studies.output import as_json, check_folder, versions, write_whole
from .options import Given, add_options, open_given
from .progress import Methods, say, stage

BUDGET = 20.0
"""As `inference.studies.comparison.compare` has it, which takes seconds to import."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="bespoke and generic inference on one program and one table",
        description="Run every method that applies on one program and one table, judge all alike, "
        "and write a report.",
        allow_abbrev=False,
    )
    add_options(parser, optional=True)
    parser.add_argument(
        "--paper", action="store_true", help="the example at the size of the program's paper"
    )
    parser.add_argument("--methods", metavar="A,B,…", help="by default all that apply")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help=f"for each method, without compiling; processor seconds on a CPU (default {BUDGET:g})",
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="that the steps of a method may take (default: 60 %% of the machine's)",
    )
    parser.add_argument(
        "--reference",
        type=float,
        metavar="SECONDS",
        help="measure distances from a long chain of NUTS, given so long (default: from the best "
        "sampler of the run)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="methods run side by side, each in a process with its share of the cores (default: 2 "
        "on an example, 1 on a table of your own)",
    )
    parser.add_argument("--out", metavar="DIR", help="by default compare_MODEL")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (default 0)")


def main(namespace: argparse.Namespace) -> int:
    # Before the work: after minutes of it nobody wants to hear that a folder is missing.
    if not namespace.budget > 0:
        raise InputError(f"--budget {namespace.budget:g}: must be more than 0 seconds")
    if namespace.reference is not None and not namespace.reference > 0:
        raise InputError(f"--reference {namespace.reference:g}: must be more than 0 seconds")
    if namespace.memory is not None and not namespace.memory > 0:
        raise InputError(f"--memory {namespace.memory:g}: must be more than 0 GB")
    if namespace.paper and namespace.data is not None:
        raise InputError("--paper is an example of ours, --data a table of yours: choose one")
    folder = check_folder("--out", namespace.out or f"compare_{namespace.model.replace(':', '_')}")
    if namespace.jobs is not None and namespace.jobs < 1:
        raise InputError(f"--jobs {namespace.jobs}: must be at least 1")
    find_program(namespace.model)
    if namespace.data is None:  # an example: small, so that compiling takes most of the time
        hurry()
    pool = _processes(namespace)
    try:
        return _compare(namespace, folder, pool)
    finally:
        if pool is not None:
            close(pool)


def _processes(namespace: argparse.Namespace) -> Any:
    """Workers where methods are to run side by side."""
    jobs = namespace.jobs
    if jobs is None:
        several = namespace.methods is None or "," in namespace.methods
        jobs = 2 if namespace.data is None and several and (os.cpu_count() or 1) > 1 else 1
    if jobs == 1:
        return None
    import jax

    from ..studies.comparison.side_by_side import processes

    if jax.default_backend() != "cpu":  # which two processes cannot share
        return None
    # By name: they import while we do.
    wing = __name__.replace("commands.compare", "studies")
    return processes(jobs, [f"{wing}.comparison.compare", f"{wing}.arviz"])


def _compare(namespace: argparse.Namespace, folder: Path, pool: Any) -> int:
    given, told, truth, fresh = _open(namespace)

    from jax import random

    from ..reading.anatomy import inspect
    from ..studies.comparison.compare import compare
    from ..studies.comparison.contenders import chosen
    from ..studies.comparison.files import save_comparison, save_method
    from ..studies.report.page import render

    kept: dict[str, Any] = {}
    kwargs = dict(given.kwargs)
    memory = None if namespace.memory is None else 1e9 * namespace.memory
    wanted = None if namespace.methods is None else namespace.methods.split(",")
    anatomy = inspect(given.program, (given.table.values,), kwargs)
    names = [x.name for x in chosen(anatomy, wanted)[0]]
    count = Methods(names, getattr(pool, "_max_workers", 1))

    def on_result(name: str, row: dict[str, Any]) -> None:
        count.done(name)
        words = row["reason"]
        if "held_out" in row:
            words = f"{row['held_out']:.4f} nats per row, {row['seconds']:.2f} s"
        say(f"  {name:<22} {words}")

    with stage(count):
        found = compare(
            given.program, given.table.values, wanted, mask=kwargs.pop("mask", None), truth=truth,
            fresh=fresh,
            budget=namespace.budget, limit=memory, reference=namespace.reference, name=given.name,
            rng_key=random.key(namespace.seed), on_result=on_result, keep=kept, pool=pool, **kwargs,
        )  # fmt: skip
    found.about.update(told, seed=namespace.seed, versions=versions())
    found.table["columns"] = np.array(given.table.columns, dtype=str)
    folder.mkdir(exist_ok=True)
    for name, one in kept.items():
        save_method(
            given.program,
            kwargs,
            one,
            given.table,
            found,
            name,
            folder / f"{name.replace(' ', '_')}.nc",
        )
    save_comparison(found, folder / "result.nc")
    numbers = summary(found)
    write_whole(folder / "manifest.json", as_json(numbers))
    write_whole(folder / "report.html", render(found))
    if namespace.json:
        print(as_json(numbers).decode(), end="")
    else:
        print("\n".join(lines(found)))
        print(f"\nreport    {folder / 'report.html'}")
    return 130 if found.about["interrupted"] else 0


class Opened(NamedTuple):
    """The program and its table, and what is known of where that comes from."""

    given: Given
    told: dict[str, Any]  # for the report
    truth: dict[str, np.ndarray] | None = None
    fresh: Callable[[int], np.ndarray] | None = None  # so many more rows of what made the table


def _open(namespace: argparse.Namespace) -> Opened:
    if namespace.data is not None:
        words = Path(namespace.data).name
        return Opened(open_given(namespace), {"words": words, "image_shape": None})
    from ..studies.cards import CARDS
    from ..studies.examples import example, fresh_rows

    program = find_program(namespace.model)
    if namespace.model not in CARDS:
        raise InputError(f"{namespace.model} is your own: say which table with --data FILE")
    made = example(namespace.model, paper=namespace.paper)
    sizes = {**made.sizes, **dict(namespace.set)}
    columns = tuple(f"x{i + 1}" for i in range(made.values.shape[1]))
    full = np.ones(made.values.shape, bool)
    table = Table(made.values, full, columns, ("",) * len(columns), "example")
    told = {"words": made.words, "image_shape": made.image_shape}
    fresh = partial(fresh_rows, namespace.model, paper=namespace.paper)
    truth = made.truth if sizes == made.sizes else None  # other sizes, other parameters
    return Opened(Given(namespace.model, program, table, sizes), told, truth, fresh)
