"""`latentbits choose MODEL --data FILE --over num_factors=1..4`: how many of them a table wants."""

from __future__ import annotations

import argparse
import math
from typing import Any

from latentbits.models.data import InputError

from ..files.catalogue import called, find_program, methods
from ..files.option import SEED, Option, add, settled
from ..files.output import FIGURES, align, as_picture, check_output, write_whole
from ..reading.anatomy import inspect as anatomy_of
from .options import METHOD, add_options, open_given, own_names
from .progress import stage

MOST_SIZES = 50
OPTIONS = {
    "method": METHOD,
    "folds": Option(5, "folds of the cross-validation"),
    "steps": Option(500, "most steps of a fit"),
    "seed": SEED,
    "bootstrap": Option(
        99, "tables drawn from the smaller fit, for each test of a size against the one before; "
        "0: no test",
        metavar="N", least=0,
    ),
    "budget": Option(
        60.0, "budget of computing for all these tests, which report how many tables they drew",
        metavar="SECONDS", above=0,
    ),
    "figure": Option(str, "draw the curve", metavar="FILE.svg"),
}  # fmt: skip
DESCRIPTION = """Fit a program at several sizes: the likelihood of rows held out, AIC, BIC, the
entropy of classes and a bootstrap likelihood-ratio test; and which size it would take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    how: Any = {"metavar": "NAME=LOW..HIGH", "required": True, "type": _over}
    parser.add_argument("--over", help="such as num_factors=1..4", **how)
    add(parser, OPTIONS)


def _over(text: str) -> tuple[str, range]:
    name, equals, span = text.partition("=")
    low, dots, high = span.partition("..")
    if not (equals and low.isdigit() and (high if dots else low).isdigit()):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be NAME=LOW..HIGH, such as num_factors=1..4"
        )
    sizes = range(int(low), int(high if dots else low) + 1)
    if not sizes or sizes[0] < 1 or len(sizes) > MOST_SIZES:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted 1 to {MOST_SIZES} sizes from 1 upwards")
    return name, sizes


def main(namespace: argparse.Namespace) -> int:
    from ..comparison.recommend import preferred
    from ..files.cards import CARDS
    from ..items.choosing import choose, compare_sizes, taken
    from ..running.algorithm import Algorithm

    namespace = settled(OPTIONS, namespace)
    figure = check_output("--figure", namespace.figure, FIGURES)
    name, sizes = namespace.over
    if ":" not in namespace.model:
        name = own_names(find_program(called(namespace.model)[0]), [(name, 0)])[0][0]
    namespace.set = [*namespace.set, (name, sizes[0])]
    try:
        given = open_given(namespace, vary=True)
    except InputError as error:
        raise InputError(str(error).replace(f"--set {name}:", f"--over {name}:", 1)) from None
    count = len(given.table.values)
    if not 2 <= namespace.folds <= count // 2:
        raise InputError(f"--folds {namespace.folds}: wanted 2 to {count // 2} of {count} rows")
    known = methods()
    own = namespace.method or (CARDS[given.name].method if given.name in CARDS else None)
    if namespace.method is not None and namespace.method not in known:
        raise InputError(f"--method {namespace.method} is unknown; choose from {', '.join(known)}")

    def method(anatomy: Any) -> Any:
        wanted = own
        apply: Any = {x: m for x, m in known.items() if issubclass(m, Algorithm)}
        fitting = {x: m for x, m in apply.items() if m.admits(anatomy) is None}
        if wanted not in fitting:
            wanted = preferred(given.program, given.table.values, anatomy, given.kwargs, fitting)
        engine: Any = fitting[wanted]
        return engine.of(given.program, anatomy)

    fits = [f"{name}={size}" for size in sizes for _ in range(namespace.folds + 1)]
    with stage(names=fits) as done:
        anatomy_of(given.program, (given.table.values,), given.kwargs)  # refuses before any work
        choices = choose(
            given.program, (given.table.values, given.kwargs), (name, sizes), method,
            folds=namespace.folds, steps=namespace.steps, seed=namespace.seed,
            on_fit=lambda size: done(f"{name}={size}"),
        )  # fmt: skip
    best = taken(choices)
    tests: list[Any] = []
    if namespace.bootstrap and len(choices) > 1:
        drawn = [f"{name}={size}" for size in sizes[1:] for _ in range(namespace.bootstrap)]
        with stage(names=drawn) as done:
            tests = compare_sizes(
                choices, given.table.values, given.kwargs.get("mask"),
                replicates=namespace.bootstrap, budget=namespace.budget, seed=namespace.seed,
                on_table=lambda size: done(f"{name}={size}"),
            )  # fmt: skip
    print("\n".join(align(_rows(name, choices, tests))))
    least = min(choices, key=lambda one: one.whole.bic)
    print(f"take      {name}={best.size}: no larger one explains held-out rows better by more than")
    print("          the error of the difference, in nats per row")
    print(f"by BIC    {name}={least.size}")
    if namespace.bootstrap and len(choices) > 1:
        print(f"by LR     {_tested(name, choices, tests, namespace)}")
    if figure is not None:
        write_whole(figure, as_picture(_draw(name, choices, best), figure.suffix), "--figure")
        print(f"figure    {namespace.figure}")
    return 0


def _rows(name: str, choices: list[Any], tests: list[Any]) -> list[list[str]]:
    heads = [name, "held out", "±", "log likelihood", "AIC", "BIC", "free"]
    heads += ["entropy"] if any(one.entropy is not None for one in choices) else []
    heads += ["LR", "p", "±", "tables"] if tests else []
    rows, made = [heads], {one.size: one for one in tests}
    for one in choices:
        whole, test = one.whole, made.get(one.size)
        error = one.held_out.std(ddof=1) / math.sqrt(len(one.held_out))
        row = [str(one.size), f"{one.held_out.mean():.4f}", f"{error:.4f}"]
        row += [f"{x:.2f}" for x in (whole.log_likelihood, whole.aic, whole.bic)]
        row += [str(whole.num_free)] + ([] if one.entropy is None else [f"{one.entropy:.3f}"])
        if test is not None:
            row += [f"{test.statistic:.2f}", test.p_words, f"{test.error:.3f}"]
            row.append(str(test.replicates))
        rows.append(row + ["—"] * (len(heads) - len(row)))
    return rows


def _tested(name: str, choices: list[Any], tests: list[Any], namespace: argparse.Namespace) -> str:
    """What the tests of each size against the one before say together."""
    if not tests:
        return f"no table was drawn and fitted in {namespace.budget:g} s: a longer --budget"
    from ..items.choosing import LEVEL

    last = tests[-1]
    drawn = f"p {last.p_words} by {last.replicates} tables"
    small = max(one.size for one in choices if one.size < last.size)
    if last.decided(namespace.bootstrap):
        kept = last.size if last.p_value <= LEVEL else small
        if kept == last.size != choices[-1].size:
            return f"{name}={kept} or more ({drawn}): the --budget is spent"
        return f"{name}={kept}: {last.size} against {small} has {drawn}, drawn from the smaller fit"
    return (
        f"not decided: {last.size} against {small} has {drawn} in {namespace.budget:g} s; a longer "
        "--budget draws more"
    )


def _draw(name: str, choices: list[Any], best: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [one.size for one in choices]
    mean = [one.held_out.mean() for one in choices]
    gap = [one.held_out - best.held_out for one in choices]
    error = [x.std(ddof=1) / math.sqrt(len(x)) for x in gap]
    left.errorbar(sizes, mean, error, marker="o", capsize=3)
    left.set_ylabel("held-out nats per row")
    left.set_title(f"held-out rows: {name}={best.size}", fontsize=10)
    bic = [one.whole.bic for one in choices]
    least = sizes[min(range(len(bic)), key=bic.__getitem__)]
    right.plot(sizes, bic, marker="o")
    right.set_ylabel("BIC")
    right.set_title(f"BIC: {name}={least}", fontsize=10)
    for axes, size in ((left, best.size), (right, least)):
        axes.axvline(size, color="grey", linestyle=":")
        axes.set_xticks(sizes)
        axes.set_xlabel(name)
    words = f"bars: the standard error of the difference from {name}={best.size}"
    figure.supxlabel(words, fontsize=8)
    return figure
