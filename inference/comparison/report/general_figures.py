"""The figures of a report, as SVG that takes its ink from the page: light and dark alike.

Here are those that every program has; `model_figures` has those of the papers' kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...files.figures import MANY, PALETTE, Figure
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


def sheet(height: float) -> Figure:
    """An empty figure of the page's width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


class Picture(NamedTuple):
    """One figure, and its words for those who see it and those who do not."""

    title: str
    words: str
    alt: str
    figure: Figure
    pale: bool = False  # black and white mean something: drawn on a pale ground, not in ink


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


MOST_PANELS = 6
"""Methods whose parameters are shown beside the truth."""
LEAST = 1e-4
"""Nats per row: what is nearer to the best is drawn there, for a logarithm has no zero."""


def general_pictures(comparison: Comparison) -> Iterator[Picture]:
    """What can be drawn for any program, a user's own too."""
    done = ranked(comparison)
    if not done:
        return
    first = ", on the first data set" if comparison.about.get("replicates", 1) > 1 else ""
    order = "Best first: " + ", ".join(done) + "."
    yield Picture(
        "Accuracy against time",
        "How far each method was behind the best of those whose checks pass, in nats per held-out "
        f"row, by the seconds it had run{first}. Solid: bespoke; dashed: generic. "
        "Below the dotted line a method is within 0.01 nats.",
        f"Nats per row behind the best against seconds, one line per method. {order}",
        draw_paths(comparison),
    )
    if len(done) > 1:
        yield Picture(
            "Behind the best",
            "Mean difference from the best, row by row, with a 95 % interval: a bar that meets the "
            "dotted line is as good. Filled: bespoke; open: generic.",
            f"Difference from the best with error bars, one row per method. {order}",
            draw_differences(comparison),
        )
    shown = [x for x in done if x in comparison.reliability]
    if shown:
        errors = ", ".join(f"{x} {comparison.reliability[x]['error']:.3f}" for x in shown)
        yield Picture(
            "Calibration",
            "How often a held-out cell was 1 against its predicted probability "
            "given the rest of its row. On the dotted line predictions are calibrated.",
            f"Share of ones against the predicted probability. Mean errors: {errors}.",
            draw_reliability(comparison, shown),
        )
    checked = comparison.about.get("predictive", {})
    drawn = next((x for x in done if x in checked), None)
    if drawn is not None:
        one = checked[drawn]
        yield Picture(
            "Posterior predictive check",
            f"Rows by their total, observed (dots) and in tables replicated from {drawn}, the best "
            "of those that have draws: mean and 90 % interval. Of "
            f"{len(one['observed'])} totals {one['outside']} lie outside.",
            f"Counts of totals of rows, observed and replicated from {drawn}; {one['outside']} of "
            f"{len(one['observed'])} lie outside the interval.",
            draw_totals(one),
        )
    sized = [site for site, value in comparison.truth.items() if np.size(value) > 1]
    if sized:
        far = " Triangles lie further off than there is room." * _any_far(comparison, sized)
        yield Picture(
            "Parameters beside the truth",
            f"Mean {_listed(sized)} by each method against the values that made the data, "
            f"aligned with them under the symmetries of the likelihood.{far}",
            f"Scatter of estimated against true parameters, one panel per method. {order}",
            draw_recovery(comparison, sized),
        )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def draw_paths(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    # From the best of those whose checks pass, as the headline has it.
    best = next((comparison.paths[x][0][-1] for x in done if comparison.rows[x]["best"]), None)
    best = max(comparison.paths[x][0][-1] for x in done) if best is None else best
    figure = sheet(4.2)
    axes = figure.subplots()
    axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
    for name in done:
        score, clock = comparison.paths[name]
        gap = np.where(np.isfinite(score), np.maximum(best - score, LEAST), np.nan)
        axes.loglog(
            np.maximum(clock, 1e-3), gap, label=name, markersize=4, linewidth=1.4, **style[name]
        )
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, LEAST / 1.5), max(high, 0.03))
    # Where all ends come within a second, ticks would have no short names.
    first, last = axes.get_xlim()
    if last < 10.0 * first:
        axes.set_xlim(first / 5.0, last * 5.0)
    axes.set_xlabel("seconds, compilation left out")
    axes.set_ylabel("nats per row behind the best")
    legend_below(figure, done)
    return figure


def draw_differences(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    figure = sheet(1.2 + 0.32 * len(done))
    axes = figure.subplots()
    axes.axvline(0.0, color=INK, linewidth=0.8, linestyle=":")
    for place, name in enumerate(done):
        row = comparison.rows[name]
        axes.errorbar(
            row["behind"], place, xerr=factor(row.get("data_sets", 1)) * row["behind_error"],
            color=style[name]["color"],
            fmt=style[name]["marker"], markersize=7, linewidth=1.6,
            markerfacecolor=style[name]["color"] if row["bespoke"] else "none",
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
    axes.set_xlabel("nats per row behind the best")
    return figure


def draw_totals(one: dict[str, Any]) -> Figure:
    figure = sheet(3.6)
    axes = figure.subplots()
    axes.fill_between(one["middle"], one["low"], one["high"], color=PALETTE[0], alpha=0.3, lw=0)
    axes.plot(one["middle"], one["mean"], color=PALETTE[0], linewidth=1.6)
    axes.plot(one["middle"], one["observed"], "o", color=INK, markersize=5)
    axes.set_xlabel("total of a row")
    axes.set_ylabel("rows")
    return figure


def draw_reliability(comparison: Comparison, shown: list[str]) -> Figure:
    style = styles(comparison)
    figure = sheet(5.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for name in shown:
        one = comparison.reliability[name]
        axes.plot(one["said"], one["seen"], label=name, markersize=4, linewidth=1.2, **style[name])
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("share of ones")
    legend_below(figure, shown)
    return figure


def draw_recovery(comparison: Comparison, sites: list[str]) -> Figure:
    shown = _recovered(comparison, sites)
    widest = 3 if max(map(len, shown), default=0) <= 16 else 2  # names stand above the panels
    columns = 2 if len(shown) == 4 else min(widest, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = sheet(1.2 + (WIDTH / columns) * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    low, high = _ends(comparison, sites)
    margin = 0.08 * (high - low)
    least, largest = _room(comparison, sites)
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        ends = [low - margin, high + margin]
        axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle=":")
        for number, site in enumerate(sites):
            each = comparison.truth[site], comparison.params[shown[place]][site]
            true, mean = map(np.ravel, each)
            drawn: dict[str, Any] = {"color": PALETTE[number % 6], "linewidths": 0, "alpha": 0.8}
            near = (mean >= least) & (mean <= largest)
            axes.scatter(true[near], mean[near], s=16, marker=MARKS[number], label=site, **drawn)
            for far, edge, mark in ((mean < least, least, "v"), (mean > largest, largest, "^")):
                axes.scatter(true[far], np.full(far.sum(), edge), s=30, marker=mark, **drawn)
        axes.set_title(shown[place], fontsize=11)
        axes.tick_params(labelbottom=place + columns >= len(shown))
    figure.supxlabel("true", fontsize=12)
    figure.supylabel("estimated", fontsize=12)
    if len(sites) > 1 and shown:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=11)
    return figure


def _recovered(comparison: Comparison, sites: list[str]) -> list[str]:
    """The best methods that have all these sites in the shape of the truth."""
    wanted = {x: np.shape(comparison.truth[x]) for x in sites}
    shapes = {
        x: {s: np.shape(v) for s, v in comparison.params[x].items()} for x in comparison.params
    }
    return [x for x in ranked(comparison) if wanted.items() <= shapes[x].items()][:MOST_PANELS]


def _ends(comparison: Comparison, sites: list[str]) -> tuple[float, float]:
    every = np.concatenate([np.ravel(comparison.truth[x]) for x in sites])
    return float(every.min()), float(every.max()) if np.ptp(every) > 0 else float(every.min()) + 1.0


def _room(comparison: Comparison, sites: list[str]) -> tuple[float, float]:
    """Within which estimates are drawn: one that ran away would press all others together."""
    low, high = _ends(comparison, sites)
    return low - 0.5 * (high - low), high + 0.5 * (high - low)


def _any_far(comparison: Comparison, sites: list[str]) -> bool:
    least, largest = _room(comparison, sites)
    each = [comparison.params[x][site] for x in _recovered(comparison, sites) for site in sites]
    return any(np.min(value) < least or np.max(value) > largest for value in each)
