"""What a survey says: the time of every method at every size, and where one overtakes another.

A method has arrived when its excess over the truth is, from then on, at most `within` nats per row
above p / 2n, which is what maximum likelihood with p parameters has from n rows: fewer rows make
all methods worse, and none of them slower to arrive. The truth itself judges here; where the checks
of a method do not pass, which is all that one has on other tables, it is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ..comparison.checks import Standing, Status
from ..comparison.verdict import arrival
from ..figures import MANY, Figure
from .cells import NOT_RUN, Cell

PAIRS = (
    ("BoundEM", "QuadratureEM"), ("BoundEM", "MonteCarloEM"), ("MomentInversion", "NUTS"),
    ("TruncatedEM", "EM"), ("TruncatedEM", "NUTS"), ("EM", "NUTS"), ("QuadratureEM", "NUTS"),
    ("GibbsEM", "EM"),
)  # fmt: skip
"""Whom it is asked about: does the first pay beside the second?"""
GIBBS = ("GibbsEM", "GibbsSearch", "LatentGibbs", "GradientFlips", "DiscreteGibbs")


class Place(NamedTuple):
    """One method in one cell."""

    cell: Cell
    method: str
    row: dict[str, Any]
    seconds: float | None  # to the excess asked for; None: it did not arrive

    @property
    def late(self) -> float:
        """The same as a number: it never arrives in infinite time."""
        return math.inf if self.seconds is None else self.seconds

    @property
    def doubted(self) -> bool:
        return Standing[self.row.get("checks", "unchecked").upper()].doubted


def target_of(known: dict[str, Any], within: float) -> float:
    """The excess at which a method has arrived, in nats per row."""
    return within + known["parameters"] / (2.0 * known["cell"][0])


def places(cells: Iterable[dict[str, Any]], within: float) -> list[Place]:
    """All methods of all cells, but those that apply in none; what was not run says so."""
    known = list(cells)
    methods = dict.fromkeys(x for one in known for x in one["methods"])
    applies = [
        x for x in methods
        if any(one["methods"].get(x, {}).get("status") not in (None, Status.DOES_NOT_APPLY.value)
               for one in known)
    ]  # fmt: skip
    placed = []
    for one in known:
        for name in applies:
            row = one["methods"].get(name, {"status": NOT_RUN, "reason": "its turn did not come"})
            seconds = None
            if "path" in row:
                near = np.array(row["path"], float) <= target_of(one, within)
                seconds = arrival(near, np.array(row["clock"]))
            placed.append(Place(Cell(*one["cell"]), name, row, seconds))
    return placed


def table(placed: list[Place]) -> dict[str, list[Any]]:
    """The columns of a CSV file."""
    shown: dict[str, list[Any]] = {
        "rows": [x.cell.rows for x in placed],
        "columns": [x.cell.columns for x in placed],
        "latents": [x.cell.latents for x in placed],
        "method": [x.method for x in placed],
        "seconds_to_excess": [x.seconds for x in placed],
    }
    for name in ("excess", "excess_error", "seconds", "compile_seconds", "peak_memory", "status",
                 "checks", "reason"):  # fmt: skip
        shown[name] = [x.row.get(name) for x in placed]
    return {name: ["" if x is None else x for x in each] for name, each in shown.items()}


def along(placed: list[Place], axis: str, base: Cell) -> dict[int, dict[str, Place]]:
    """Size -> method -> place, along one axis."""
    line = [x for x in placed if x.cell._replace(**{axis: 0}) == base._replace(**{axis: 0})]
    sizes = sorted({getattr(x.cell, axis) for x in line})
    return {size: {x.method: x for x in line if getattr(x.cell, axis) == size} for size in sizes}


def sentences(placed: list[Place], axis: str, base: Cell) -> list[str]:
    """Who is first at which size, who overtakes whom, and who is left."""
    line = along(placed, axis, base)
    said = [*_firsts(line, axis)]
    for pair in PAIRS:
        words = _crossing(line, axis, *pair)
        said += [words] if words else []
    return said + _left(line, axis)


def _arrived(each: dict[str, Place]) -> list[Place]:
    return sorted((x for x in each.values() if x.seconds is not None), key=lambda x: x.late)


def _firsts(line: dict[int, dict[str, Place]], axis: str) -> Iterable[str]:
    """Runs of sizes with the same first method."""
    first = [(size, next(iter(_arrived(each)), None)) for size, each in line.items()]
    for name, some in groupby(first, key=lambda x: x[1] and x[1].method):
        run = list(some)
        where = _range([size for size, _ in run], axis)
        if name is None:
            left = any(x.row["status"] == NOT_RUN for size, _ in run for x in line[size].values())
            none = "no method that was run" if left else "no method"
            yield _sentence(f"{where} {none} arrives{_nearest(line[run[-1][0]])}")
            continue
        times = " to ".join(dict.fromkeys(_seconds(x.seconds) for _, x in (run[0], run[-1]) if x))
        doubted = any(x is not None and x.doubted for _, x in run)
        though = ", though its checks do not pass" if doubted else ""
        yield _sentence(f"{where} {name} is first, in {times}{though}")


def _nearest(each: dict[str, Place]) -> str:
    ended = [x for x in each.values() if x.row.get("excess") is not None]
    if not ended:
        return ""
    best = min(ended, key=lambda x: x.row["excess"])
    return f" ({best.method} ends {best.row['excess']:.2f} nats per row from the truth)"


def _crossing(line: dict[int, dict[str, Place]], axis: str, a: str, b: str) -> str | None:
    """Where the first of two stops, or begins, to arrive before the second."""
    sides = []
    for size, each in line.items():
        if any(x not in each or each[x].row["status"] == NOT_RUN for x in (a, b)):
            continue
        one, other = each[a].late, each[b].late
        if min(one, other) < math.inf:
            sides.append((size, one <= other, each))
    if not sides:
        return None
    runs = [(ahead, list(some)) for ahead, some in groupby(sides, key=lambda x: x[1])]
    parts = []
    for ahead, run in runs:
        name, beaten = (a, b) if ahead else (b, a)
        size, _, each = run[-1]
        time, late = _seconds(each[name].seconds), each[beaten]
        if late.seconds is not None:
            detail = f"{time} against {_seconds(late.seconds)}"
        elif late.row.get("excess") is None:
            detail = f"{time}; {beaten}: {late.row['status']}"
        else:
            detail = f"{time}; {beaten} ends {late.row['excess']:.2f} nats per row from the truth"
        last = f"at {size}: " if len(run) > 1 else ""
        where = _range([x[0] for x in run], axis)
        parts.append(f"{where} {name} is before {beaten} ({last}{detail})")
    return _sentence("; ".join(parts))


def _left(line: dict[int, dict[str, Place]], axis: str) -> list[str]:
    """Sizes at which one method, or the Gibbs samplers alone, arrive."""
    said = []
    for size, each in line.items():
        if any(x.row["status"] == NOT_RUN for x in each.values()):
            continue  # of these nothing is known
        names = [x.method for x in _arrived(each)]
        where = _range([size], axis)
        if len(names) == 1 < len(each):
            said.append(_sentence(f"{where} {names[0]} is the only one left"))
        elif names and all(x in GIBBS for x in names):
            said.append(_sentence(f"{where} only Gibbs is left ({', '.join(names)})"))
    return said


def _range(sizes: list[int], axis: str) -> str:
    if len(sizes) > 1:
        return f"from {sizes[0]} to {sizes[-1]} {axis}"
    return f"at {sizes[0]} {axis[:-1] if sizes == [1] else axis}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _seconds(value: float | None) -> str:
    assert value is not None
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def text(program: str, placed: list[Place], sizes: dict[str, list[int]], base: Cell,
         within: float, device: str) -> str:  # fmt: skip
    """The whole of it, for a terminal and a file."""
    clock = "processor seconds" if device == "cpu" else f"seconds on a {device}"
    lines = [
        f"{program}: {clock} until a method is, for good, within {within:g} nats per row of what "
        "maximum likelihood with p parameters expects from n rows (p / 2n above the truth); "
        "compiling apart."
    ]
    for axis in sizes:
        rest = [f"{getattr(base, x)} {x}" for x in ("rows", "columns", "latents")
                if x != axis and getattr(base, x)]  # fmt: skip
        lines += ["", f"{axis} grow ({', '.join(rest)}):"]
        lines += [f"  {x}" for x in sentences(placed, axis, base)]
    ended = sum(x.row["status"] == NOT_RUN for x in placed)
    if ended:
        lines += ["", f"{ended} runs did not come to their turn; the same command goes on."]
    return "\n".join(lines) + "\n"


LINES = ("-", "--", ":")
MARKERS = ("o", "s", "^")


def draw(
    program: str, placed: list[Place], sizes: dict[str, list[int]], base: Cell, device: str
) -> Figure:
    """One panel per axis. Hollow: its checks do not pass. Crosses above: it does not arrive."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    methods = list(dict.fromkeys(x.method for x in placed))
    style = {
        name: (MANY[i % len(MANY)], LINES[i // len(MANY) % 3], MARKERS[i % 3])
        for i, name in enumerate(methods)
    }
    times = [x.seconds for x in placed if x.seconds is not None] or [1.0]
    low, high = min(times) / 2, max(times) * 2
    # Not wider than a page of text: names in the legend are read there.
    figure = Figure(figsize=(max(2.9 * len(sizes) + 0.6, 6.4), 4.2 + 0.25 * -(-len(methods) // 4)))
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, (axis, places) in zip(panels, sizes.items(), strict=True):
        line = along(placed, axis, base)
        for number, name in enumerate(methods):
            colour, dash, marker = style[name]
            here = [(size, each[name]) for size, each in line.items() if name in each]
            there = [(size, x) for size, x in here if x.seconds is not None]
            axes.plot(
                [size for size, _ in there], [x.seconds for _, x in there],
                dash, color=colour, label=name, marker=marker, ms=6, zorder=2,
            )  # fmt: skip
            for size, x in there:
                if x.doubted:
                    axes.plot(size, x.seconds, marker, color=colour, mfc="white", ms=6, zorder=3)
            # In ranks above the panel's times, so that none hides another.
            ran = [(size, x) for size, x in here if x.row["status"] != NOT_RUN]
            late = [size for size, x in ran if x.seconds is None]
            above = high * (high / low) ** (0.035 * (number + 1))
            axes.plot(late, [above] * len(late), "x", color=colour, ms=5)
        axes.axhline(high, color="#999999", lw=0.6)
        axes.set(xscale="log", yscale="log", xlabel=axis)
        axes.set_xticks(places, [str(x) for x in places])
        axes.minorticks_off()
    panels[0].set_ylim(low, high * (high / low) ** (0.035 * (len(methods) + 1)))
    if high < 100 * low:  # of one power of ten nothing could be read off
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].set_ylabel("CPU seconds" if device == "cpu" else f"seconds ({device})")
    below = "; " if len(sizes) > 2 else "\n"
    panels[0].set_title(f"{program}{below}crosses: does not arrive, hollow: its checks do not pass")
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if len(sizes) > 2 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
    return figure
