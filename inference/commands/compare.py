"""`latentbits compare MODEL`: run every method that applies, judge all alike, write a report."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random
from latentbits.models.data import InputError, Table

from ..comparison.side_by_side import Workers
from ..comparison.verdict import lines, summary
from ..files.option import SEED, Option, add, settled
from ..files.output import (
    append_row,
    as_json,
    check_folder,
    check_output,
    read_json,
    versions,
    write_whole,
)
from ..reading.anatomy import inspect
from .options import Given, add_options, open_given, program_of, tell
from .progress import say, stage

OPTIONS = {
    "example": Option(
        str, "which example: data of the program's paper at its size (paper, the default), a "
        "small table (small), of noisy_or_network lines in patterns (patterns), or of "
        "binary_sparse_coding bars that hide each other (maximal)",
        metavar="NAME",
    ),
    "replicates": Option(
        int, "data sets, or of a table of your own other rows held out (default: 5, fewer where "
        "that takes long)",
        metavar="N", least=1,
    ),
    "reference": Option(
        float, "measure distances from a long chain of NUTS, given so long (default: from the best "
        "sampler of the run)",
        metavar="SECONDS", above=0,
    ),
    "methods": Option(str, "methods to run, by default all that apply", metavar="A,B,…"),
    "limit": Option(
        120.0, "when to end a method that is not yet trusted, without compiling; processor seconds "
        "on a CPU",
        metavar="SECONDS", above=0,
    ),
    "continue": Option(
        str, "go on with the comparison of this folder: methods that the limit ended run until a "
        "longer one",
        metavar="DIR",
    ),
    "memory": Option(
        float, "memory that the steps of a method may take (default: 60 %% of the machine's)",
        metavar="GB", above=0,
    ),
    "jobs": Option(
        int, "methods run side by side (default: 2 on an example, 1 on a table of your own), each "
        "in a process with its share of the cores",
        metavar="N", least=1,
    ),
    "out": Option(str, "by default compare_MODEL", metavar="DIR"),
    "results": Option(
        str, "add a row to a table of results: a JSON object on a line, with the times of every "
        "method, versions, machine and command",
        metavar="FILE.jsonl",
    ),
    "json": Option(False, "print the numbers as JSON"),
    "seed": SEED,
}  # fmt: skip
PARTS = "parts"
"""Folder beside the report with what --continue needs."""
MOST_REPLICATES = 1000
"""Of one seed: those of another have other data."""
DESCRIPTION = """Run every method that applies on one program and one table, judge all alike, and
write a report."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, optional=True)
    add(parser, OPTIONS)
    parser.add_argument("--budget", dest="limit", type=float, help=argparse.SUPPRESS)


def main(namespace: argparse.Namespace) -> int:
    # Before the work: after minutes of work it is too late to learn that a folder is missing.
    namespace = settled(OPTIONS, namespace)
    earlier: tuple[list, list] = [], []
    if getattr(namespace, "continue") is not None:
        namespace, earlier = _continued(namespace)
    if namespace.model is None:
        raise InputError("say which program to compare, as in latentbits compare latent_trait")
    if namespace.example is not None and namespace.data is not None:
        raise InputError("--example is a table of ours, --data one of yours: choose one")
    folder = check_folder("--out", namespace.out or f"compare_{namespace.model.replace(':', '_')}")
    results = namespace.results = check_output("--results", namespace.results, (".jsonl",))
    if results is not None and results.exists() and not os.access(results, os.W_OK):
        raise InputError(f"--results {results}: cannot be written (Permission denied)")
    program_of(namespace)
    pool = _processes(namespace)
    try:
        return _compare(namespace, folder, pool, *earlier)
    finally:
        if pool is not None:
            pool.close()


def _continued(namespace: argparse.Namespace) -> tuple[argparse.Namespace, tuple[list, list]]:
    """The command of the comparison that goes on, and what it found."""
    from ..comparison.files import load_parts

    folder = Path(getattr(namespace, "continue"))
    if namespace.model is not None:
        raise InputError("--continue goes on with the same command: leave out MODEL")
    if not (folder / PARTS).is_dir():
        raise InputError(f"--continue {folder}: holds no comparison that was ended early")
    about = read_json(folder / "manifest.json")["about"]
    if namespace.limit <= about["limit"] and not about["stopped"]:
        raise InputError(f"--limit {namespace.limit:g}: must be more than {about['limit']:g}, "
                         "which ended it")  # fmt: skip
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    before = vars(parser.parse_args(shlex.split(about["command"])[1:]))
    now = {x: getattr(namespace, x) for x in ("limit", "jobs", "json", "continue", "results")}
    asked = {**before, **now, "out": str(folder), "argv": shlex.split(about["command"])}
    return settled(OPTIONS, argparse.Namespace(**asked)), load_parts(folder / PARTS)


def _processes(namespace: argparse.Namespace) -> Workers | None:
    """Workers where methods are to run side by side."""
    jobs = namespace.jobs
    if jobs is None:
        several = namespace.methods is None or "," in namespace.methods
        jobs = 2 if namespace.data is None and several and (os.cpu_count() or 1) > 1 else 1
    if jobs == 1:
        return None
    if jax.default_backend() != "cpu":  # which two processes cannot share
        return None
    # By name: they import while we do.
    return Workers(jobs, [__name__.replace("commands.compare", "comparison.compare")])


def _compare(
    namespace: argparse.Namespace, folder: Path, pool: Workers | None, earlier: list[Any],
    chains: list[dict[str, Any]],
) -> int:  # fmt: skip
    """:param earlier: what was found on each data set, and `chains` where samplers stopped."""
    opened = _open(namespace)
    given, context = opened.given, opened.context

    from ..comparison.compare import begin, compare, plan
    from ..comparison.contenders import chosen
    from ..comparison.replicates import combine, repeat

    kept: dict[str, Any] = {}
    kwargs = dict(given.kwargs)
    memory = None if namespace.memory is None else 1e9 * namespace.memory
    wanted = None if namespace.methods is None else namespace.methods.split(",")
    anatomy = inspect(given.program, (given.table.values,), kwargs)
    names = [x.name for x in chosen(anatomy, wanted)[0]]
    mask = kwargs.pop("mask", None)
    reference = opened.kept if namespace.reference is None else namespace.reference

    def on_result(done: Callable[[str], None], name: str, row: dict[str, Any]) -> None:
        done(name)
        words = row["reason"]
        if "held_out" in row:
            words = f"{row['held_out']:.4f} nats per row, {row['seconds']:.2f} s"
        say(f"  {name:<22} {words}")

    def on(number: int) -> dict[str, Any]:
        """What a comparison on one data set is made from."""
        return {
            "mask": mask, **opened.known(number), "limit": namespace.limit, "memory": memory,
            "replicate": number, "rng_key": random.key(namespace.seed), **kwargs,
        }  # fmt: skip

    def expect(number: int, names: list[str]) -> None:
        if pool is not None and not earlier:
            begin(pool, plan(given.program, opened.values(number), names, **on(number)))

    def one(number: int, passing: list[str] | None) -> Any:
        if passing is not None:
            say(f"data set {number + 1}: {', '.join(passing)}")
        chains.extend({} for _ in range(len(chains), number + 1))
        with stage(names=passing or names, at_once=1 if pool is None else pool.count) as done:
            return compare(
                given.program, opened.values(number), passing or wanted, name=given.name,
                reference=reference if number == 0 else None, on_result=partial(on_result, done),
                pool=pool, keep=kept if number == 0 else None, chains=chains[number],
                earlier=earlier[number] if number < len(earlier) else None, **on(number),
            )  # fmt: skip

    parts = repeat(one, namespace.replicates, expect)
    comparison = combine(parts)
    if pool is not None:
        pool.close()  # their memory is wanted for the report
    tell([x["lost_digits"] for x in comparison.rows.values() if "lost_digits" in x][:1])
    comparison.about.update(
        context, seed=namespace.seed, versions=versions(), command=shlex.join(namespace.argv)
    )
    comparison.table["columns"] = np.array(given.table.columns, dtype=str)
    start: list[str] = []
    if namespace.data is not None and not comparison.about["stopped"]:
        recommended = comparison.about["recommended"] = _recommended(namespace, given, comparison)
        start = [*recommended["lines"], *recommended["reasons"], ""]
    try:
        folder.mkdir(exist_ok=True)
        missing = _write(comparison, kept, given, kwargs, folder, earlier)
        if missing is None:
            _keep_going(parts, chains, folder / PARTS)
        write_whole(folder / "manifest.json", as_json(summary(comparison)), "--out")
    finally:  # shown also where the disk is full
        shown = as_json(summary(comparison)).decode()[:-1]
        print(shown if namespace.json else "\n".join([*start, *lines(comparison)]))
    if not namespace.json:
        print(f"\nreport    {missing or Path(namespace.out or folder.name) / 'report.html'}")
    if namespace.results is not None and not comparison.about["stopped"]:
        append_row(namespace.results, _results_row(comparison), "--results")
    return 130 if comparison.about["stopped"] else 0


def _keep_going(parts: list[Any], chains: list[dict[str, Any]], folder: Path) -> None:
    """What --continue needs, if the limit ended a method."""
    from ..comparison.compare import waiting
    from ..comparison.files import save_parts

    if any(waiting(row) for part in parts for row in part.rows.values()):
        save_parts(parts, chains, folder)
    elif folder.is_dir():
        shutil.rmtree(folder)


def _recommended(namespace: argparse.Namespace, given: Given, comparison: Any) -> dict[str, Any]:
    """The whole table as `fit` fits it by default, in lines, and which method to take, and why."""
    from ..comparison.judge import in_one_line
    from ..comparison.recommend import advice
    from . import fit

    parser = argparse.ArgumentParser()
    fit.add_arguments(parser)
    options = parser.parse_args([given.name, f"--data={namespace.data}", "--out=fit.nc"])
    options.seed, options.group, options.id = namespace.seed, namespace.group, namespace.id
    try:
        made = fit.fit_table(given, options)
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # the comparison is shown all the same
        why = in_one_line(error)
    else:
        reasons = advice(made.choice, comparison.rows)
        return {"method": made.choice.method.name, "reasons": reasons, "lines": made.lines}
    return {"method": "", "reasons": [], "lines": [f"no fit    {why}"]}


def _results_row(comparison: Any) -> dict[str, Any]:
    """What a table of results keeps of a comparison."""
    about = comparison.about
    kept = ("score", "uncertainty", "seconds_to_score", "seconds_to_uncertainty", "seconds")
    return {
        "program": comparison.model, "example": about.get("example"),
        "file": None if "example" in about else about["words"],
        "rows": about["num_data"], "columns": about["num_features"], "seed": about["seed"],
        "data_sets": about["replicates"],
        "methods": {x: {k: row.get(k) for k in kept} for x, row in comparison.rows.items()},
        "limit": about["limit"], "mark": about["mark"], "versions": about["versions"],
        "machine": {
            "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
            "backend": jax.default_backend(),
        },
        "command": about["command"],
    }  # fmt: skip


def _write(
    comparison: Any, kept: dict[str, Any], given: Given, sizes: dict[str, Any], folder: Path,
    earlier: list[Any],
) -> str | None:  # fmt: skip
    """The files of the methods and the report; or why there are none: deciding needs neither."""
    try:
        import h5netcdf  # noqa: F401  (what is written with it comes after all of the work)

        from ..comparison.files import save_comparison, save_method
        from ..comparison.report.page import render
        from ..files.arviz import prior_sensitivity
        from ..files.predictive import check_totals
    except ImportError as error:
        return f"none, nor netCDF files: {error.name} is not installed"
    checked = dict(earlier[0].about.get("predictive", {})) if earlier else {}
    for name, one in kept.items():
        file = folder / f"{name.replace(' ', '_')}.nc"
        groups = save_method(given.program, sizes, one, given.table, comparison, name, file)
        if "log_prior" in groups:
            comparison.rows[name]["prior_sensitivity"] = max(prior_sensitivity(groups).values())
        if "posterior_predictive" in groups:
            checked[name] = check_totals(groups)
    comparison.about["predictive"] = checked
    save_comparison(comparison, folder / "result.nc")
    write_whole(folder / "report.html", render(comparison), "--out")
    return None


class Opened(NamedTuple):
    """The program and its table, and where that comes from."""

    given: Given
    context: dict[str, Any]  # for the report
    values: Callable[[int], np.ndarray]  # the table of each replicate
    known: Callable[[int], dict[str, Any]] = lambda _: {}  # and what is known of what made it
    kept: Any = None  # the reference posterior of the first, where there is one


def _open(namespace: argparse.Namespace) -> Opened:
    if namespace.data is not None:
        given = open_given(namespace)
        context = {"words": Path(namespace.data).name, "image_shape": None}
        return Opened(given, context, lambda _: given.table.values)
    from ..comparison.reference import load
    from ..files.cards import CARDS, example, known_of

    name, program, settings = program_of(namespace)
    if name not in CARDS:
        raise InputError(f"{name} is your own: say which table with --data FILE")
    which, has = namespace.example or "paper", CARDS[name].examples
    if which not in has:
        raise InputError(f"--example {which}: {name} has {', '.join(has)}")
    first = MOST_REPLICATES * namespace.seed
    made = example(name, which=which, number=first)
    sizes = {**made.sizes, **settings}
    columns = tuple(f"x{i + 1}" for i in range(made.values.shape[1]))
    full = np.ones(made.values.shape, bool)
    table = Table(made.values, full, columns, ("",) * len(columns), "example")

    def known(number: int) -> dict[str, Any]:
        facts = known_of(name, which, first + number)
        # Other sizes, other parameters.
        return facts if sizes == made.sizes else {**facts, "truth": None}

    return Opened(
        Given(name, program, table, sizes),
        {"words": made.words, "image_shape": made.image_shape, "example": which},
        lambda number: example(name, which=which, number=first + number).values,
        known,
        load(name, which) if namespace.seed == 0 and sizes == made.sizes else None,
    )
