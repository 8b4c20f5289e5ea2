"""The figures of a report, as SVG that takes its ink from the page: light and dark alike.

Here are those that every program has; `model_figures` has those of the papers' kinds. Their words
are in `words.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...files.figures import MANY, PALETTE, Axes, Figure
from ..verdict import factor

if TYPE_CHECKING:
    from ..compare import Comparison


INK = "#123456"
"""Drawn in this colour, then replaced by the page's own."""
WIDTH = 6.0
"""Inches. On a phone the letters of such a figure still have ten pixels."""
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#737373": "var(--faint)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--red)",
    "#009e73": "var(--green)",
}
MARKS = "osD^vPX<>*h"
MOST_PANELS = 6
"""Methods whose parameters are shown beside the truth."""
LEAST = 1e-4
"""Nats per row: what is nearer to the best is drawn there, for a logarithm has no zero."""


class Picture(NamedTuple):
    """One figure, and its words for those who see it and those who do not."""

    title: str
    words: str
    alt: str
    figure: Figure
    pale: bool = False  # black and white mean something: drawn on a pale ground, not in ink


@cache
def words() -> dict[str, Any]:
    """The words of a report: question, marks, columns, figures.

    >>> words()["figures"]["paths"]["title"]
    'Accuracy against time'
    """
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))


def picture(kind: str, figure: Figure, pale: bool = False, **facts: Any) -> Picture:
    """A figure with the words of its kind.

    :param facts: what stands in their braces.
    """
    texts = {part: text.format(**facts) for part, text in words()["figures"][kind].items()}
    return Picture(**texts, figure=figure, pale=pale)


def sheet(height: float) -> Figure:
    """An empty figure of the page's width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def panel(height: float, across: str = "", up: str = "") -> tuple[Figure, Axes]:
    """A figure of the page's width with one panel, and the names of its axes."""
    figure = sheet(height)
    axes = figure.subplots()
    axes.set(xlabel=across, ylabel=up)
    return figure, axes


def ranked(comparison: Comparison) -> list[str]:
    """Methods with a finite score, the best first."""
    rows = {x: r for x, r in comparison.rows.items() if x in comparison.paths and "behind" in r}
    return sorted(rows, key=lambda x: rows[x]["behind"])


def styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """How each method is drawn, in every figure alike."""
    colours = [INK if colour == "#000000" else colour for colour in MANY]
    return {
        name: {
            "color": colours[i % len(colours)],
            "marker": MARKS[i % len(MARKS)],
            "linestyle": "-" if comparison.rows[name]["bespoke"] else (0, (4, 2)),
        }
        for i, name in enumerate(x for x in comparison.rows if x in comparison.paths)
    }


def legend_below(figure: Figure, names: list[str], axes: Any = None) -> None:
    """A legend that takes its own room: nothing is drawn over, nothing is cut off.

    :param axes: whose own legend it replaces, if that has one; without it there is none.
    """
    if axes is not None:
        if axes.get_legend() is None:
            return
        axes.get_legend().remove()
    columns = max(1, min(3, 58 // (max(map(len, names)) + 6)))
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.25 * lines)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=11, markerscale=1.4)


def as_svg(picture: Picture, prefix: str) -> str:
    """A figure as inline SVG: transparent, with words for those who cannot see it.

    :param prefix: of all names in it: two figures in one page must not share one.
    """
    from ...files.output import as_picture

    figure = picture.figure
    figure.patch.set_alpha(0.0)
    if not picture.pale:
        for axes in figure.axes:
            axes.patch.set_alpha(0.0)
    text = as_picture(figure, ".svg").decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    if not picture.pale:
        # Lines and marks are lighter on a dark ground: the style of the page has both.
        for drawn, shown in PAGE_COLOURS.items():
            text = text.replace(drawn, shown)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)  # HTML knows what an SVG is
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'href="#', f'href="#{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.alt)}" ', 1)


def general_pictures(comparison: Comparison) -> Iterator[Picture]:
    """What can be drawn for any program, a user's own too."""
    done = ranked(comparison)
    if not done:
        return
    where = ", on the first data set" if comparison.about.get("replicates", 1) > 1 else ""
    order = "Best first: " + ", ".join(done) + "."
    yield picture("paths", draw_paths(comparison), where=where, order=order)
    if len(done) > 1:
        yield picture("differences", draw_differences(comparison), order=order)
    shown = [x for x in done if x in comparison.reliability]
    if shown:
        errors = ", ".join(f"{x} {comparison.reliability[x]['error']:.3f}" for x in shown)
        yield picture("reliability", draw_reliability(comparison, shown), errors=errors)
    checked = comparison.about.get("predictive", {})
    drawn = next((x for x in done if x in checked), None)
    if drawn is not None:
        one = checked[drawn]
        facts = {"name": drawn, "count": len(one["observed"]), "outside": one["outside"]}
        yield picture("totals", draw_totals(one), **facts)
    sites = [site for site, value in comparison.truth.items() if np.size(value) > 1]
    if sites:
        figure, far = draw_recovery(comparison, sites)
        note = " Triangles lie further off than there is room." if far else ""
        listed = " and ".join([", ".join(sites[:-1]), sites[-1]] if len(sites) > 1 else sites)
        yield picture("recovery", figure, sites=listed, far=note, order=order)


def draw_paths(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    ends = {x: comparison.paths[x][0][-1] for x in done}
    # From the best of those whose checks pass, as the headline has it.
    best = next((ends[x] for x in done if comparison.rows[x]["best"]), max(ends.values()))
    figure, axes = panel(4.2, "seconds, compilation left out", "nats per row behind the best")
    axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
    for name in done:
        score, clock = comparison.paths[name]
        gap = np.where(np.isfinite(score), np.maximum(best - score, LEAST), np.nan)
        seconds = np.maximum(clock, 1e-3)
        axes.loglog(seconds, gap, label=name, markersize=4, linewidth=1.4, **style[name])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, LEAST / 1.5), max(high, 0.03))
    # Where all ends come within a second, ticks would have no short names.
    first, last = axes.get_xlim()
    if last < 10.0 * first:
        axes.set_xlim(first / 5.0, last * 5.0)
    legend_below(figure, done)
    return figure


def draw_differences(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    figure, axes = panel(1.2 + 0.32 * len(done), "nats per row behind the best")
    axes.axvline(0.0, color=INK, linewidth=0.8, linestyle=":")
    for place, name in enumerate(done):
        row, colour = comparison.rows[name], style[name]["color"]
        axes.errorbar(
            row["behind"], place, xerr=factor(row.get("data_sets", 1)) * row["behind_error"],
            color=colour, fmt=style[name]["marker"], markersize=7, linewidth=1.6,
            markerfacecolor=colour if row["bespoke"] else "none",
        )  # fmt: skip
    # One that is far off would press all others together.
    largest = max(comparison.rows[name]["behind"] for name in done)
    if largest > 1.0:
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.6)
        axes.set_xlim(right=2 * largest)
    axes.set_yticks(range(len(done)), done)
    axes.set_ylim(len(done) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def draw_totals(one: dict[str, Any]) -> Figure:
    figure, axes = panel(3.6, "total of a row", "rows")
    axes.fill_between(one["middle"], one["low"], one["high"], color=PALETTE[0], alpha=0.3, lw=0)
    axes.plot(one["middle"], one["mean"], color=PALETTE[0], linewidth=1.6)
    axes.plot(one["middle"], one["observed"], "o", color=INK, markersize=5)
    return figure


def draw_reliability(comparison: Comparison, shown: list[str]) -> Figure:
    style = styles(comparison)
    figure, axes = panel(5.0, "predicted probability", "share of ones")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for name in shown:
        one = comparison.reliability[name]
        axes.plot(one["said"], one["seen"], label=name, markersize=4, linewidth=1.2, **style[name])
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    legend_below(figure, shown)
    return figure


def draw_recovery(comparison: Comparison, sites: list[str]) -> tuple[Figure, bool]:
    """Estimates beside the truth, and whether some lie further off than there is room.

    The methods are the best that have all sites in the shape of the truth.
    """
    truth, params = comparison.truth, comparison.params
    shown = [
        x for x in ranked(comparison)
        if all(np.shape(params[x].get(s)) == np.shape(truth[s]) for s in sites)
    ][:MOST_PANELS]  # fmt: skip
    widest = 3 if max(map(len, shown), default=0) <= 16 else 2  # names stand above the panels
    columns = 2 if len(shown) == 4 else min(widest, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = sheet(1.2 + (WIDTH / columns) * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    every = np.concatenate([np.ravel(truth[x]) for x in sites])
    low, high = float(every.min()), float(every.max())
    span = high - low or 1.0
    ends = np.array([low - 0.08 * span, low + 1.08 * span])
    # One estimate that ran away would press all others together.
    least, largest = low - 0.5 * span, low + 1.5 * span
    far = False
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle=":")
        for number, site in enumerate(sites):
            true, mean = np.ravel(truth[site]), np.ravel(params[shown[place]][site])
            drawn: dict[str, Any] = {"color": PALETTE[number % 6], "linewidths": 0, "alpha": 0.8}
            near = (mean >= least) & (mean <= largest)
            far |= not near.all()
            axes.scatter(true[near], mean[near], s=16, marker=MARKS[number], label=site, **drawn)
            for off, edge, mark in ((mean < least, least, "v"), (mean > largest, largest, "^")):
                axes.scatter(true[off], np.full(off.sum(), edge), s=30, marker=mark, **drawn)
        axes.set_title(shown[place], fontsize=11)
        axes.tick_params(labelbottom=place + columns >= len(shown))
    figure.supxlabel("true", fontsize=12)
    figure.supylabel("estimated", fontsize=12)
    if len(sites) > 1 and shown:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=11)
    return figure, far
