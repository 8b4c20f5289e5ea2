"""The map of a survey: for each method, the time to the excess asked for as each axis grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures import MANY
from .cells import NOT_RUN, Cell
from .words import Place, along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = ("-", "--", ":")
MARKERS = ("o", "s", "^")


def draw(
    program: str, placed: list[Place], sizes: dict[str, list[int]], base: Cell, device: str
) -> Figure:
    """One panel per axis. Hollow: its checks fail. Crosses above: it does not arrive."""
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
    panels[0].set_title(f"{program}{below}crosses: does not arrive, hollow: its checks fail")
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if len(sizes) > 2 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
    return figure
