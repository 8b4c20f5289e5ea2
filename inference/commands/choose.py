"""`latentbits choose MODEL --data FILE --over num_factors=1..4`: how many of them a table wants."""

from __future__ import annotations

import argparse
import inspect
import math
from typing import Any

from latentbits.models.data import InputError

from ..studies.output import FIGURES, align, as_picture, check_output, write_whole
from .options import add_options, open_given
from .progress import Methods, stage

MOST_SIZES = 50


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "choose",
        help="how many factors, classes or causes a table wants",
        description="Fit a program at several sizes: the likelihood of rows held out, AIC, BIC, "
        "and the entropy of classes; and which size it would take.",
        allow_abbrev=False,
    )
    add_options(parser)
    parser.add_argument(
        "--over",
        metavar="NAME=LOW..HIGH",
        required=True,
        type=_over,
        help="such as num_factors=1..4",
    )
    parser.add_argument("--method", help="by default that of the program's own paper")
    parser.add_argument("--folds", type=int, default=5, help="of the rows held out (default 5)")
    parser.add_argument("--steps", type=int, default=500, help="most steps of a fit (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (default 0)")
    parser.add_argument("--figure", metavar="FILE.svg", help="draw the curve")


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
    from ..reading.anatomy import inspect as anatomy_of
    from ..running.algorithm import Algorithm
    from ..studies.cards import CARDS
    from ..studies.catalogue import methods
    from ..studies.choosing import choose, taken
    from .fit import _preferred

    figure = check_output("--figure", namespace.figure, FIGURES) if namespace.figure else None
    name, sizes = namespace.over
    namespace.set = [*namespace.set, (name, sizes[0])]
    given = open_given(namespace)
    if name not in inspect.signature(given.program).parameters:
        raise InputError(f"--over {name}: {given.name} has no such argument")
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
            wanted = _preferred(given, anatomy, fitting)
        engine: Any = fitting[wanted]
        return engine.of(given.program, anatomy)

    fits = [f"{name}={size}" for size in sizes for _ in range(namespace.folds + 1)]
    count_fits = Methods(fits)
    with stage(count_fits):
        anatomy_of(given.program, (given.table.values,), given.kwargs)  # refuses before any work
        found = choose(
            given.program, (given.table.values, given.kwargs), (name, sizes), method,
            folds=namespace.folds, steps=namespace.steps, seed=namespace.seed,
            on_fit=lambda size: count_fits.done(f"{name}={size}"),
        )  # fmt: skip
    best = taken(found)
    heads = [name, "held out", "±", "log likelihood", "AIC", "BIC", "free"]
    classes = any(one.entropy is not None for one in found)
    rows = [[*heads, "entropy"] if classes else heads]
    for one in found:
        error = one.held_out.std(ddof=1) / math.sqrt(len(one.held_out))
        whole = one.whole
        row = [str(one.size), f"{one.held_out.mean():.4f}", f"{error:.4f}"]
        row += [f"{whole.log_likelihood:.2f}", f"{whole.aic:.2f}", f"{whole.bic:.2f}"]
        row.append(str(whole.num_free))
        rows.append([*row, f"{one.entropy:.3f}"] if one.entropy is not None else row)
    print("\n".join(align(rows)))
    least = min(found, key=lambda one: one.whole.bic)
    print(f"take      {name}={best.size}: no larger one explains held-out rows better by more than")
    print("          the error of the difference, in nats per row")
    print(f"by BIC    {name}={least.size}")
    if figure is not None:
        write_whole(figure, as_picture(_draw(name, found, best), figure.suffix))
        print(f"figure    {namespace.figure}")
    return 0


def _draw(name: str, found: list[Any], best: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    sizes = [one.size for one in found]
    mean = [one.held_out.mean() for one in found]
    gap = [one.held_out - best.held_out for one in found]
    error = [x.std(ddof=1) / math.sqrt(len(x)) for x in gap]
    axes.errorbar(sizes, mean, error, marker="o", capsize=3)
    axes.axvline(best.size, color="grey", linestyle=":")
    axes.set_xticks(sizes)
    axes.set_xlabel(name)
    axes.set_ylabel("held-out nats per row")
    return figure
