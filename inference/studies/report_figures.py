"""The figures of a report, as SVG that takes its ink from the page: light and dark alike."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inference.studies.compare import Comparison

INK = "#123456"
"""Drawn in this colour, then replaced by the page's own."""


def figures(found: Comparison) -> list[tuple[str, str, str]]:
    """Title, words and SVG of each figure."""
    import matplotlib
    from matplotlib.figure import Figure

    from inference.studies.figures import house_style

    matplotlib.use("Agg")
    made = []
    parts = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    ink: Any = {**dict.fromkeys(parts, INK), "svg.fonttype": "path"}
    with house_style(), matplotlib.rc_context(ink):
        if found.paths:
            figure = Figure(figsize=(8, 4))
            draw_paths(figure, found)
            words = "The held-out score of each method against the seconds it had run."
            made.append(("Accuracy against time", words, as_svg(figure, words)))
        if found.reliability:
            figure = Figure(figsize=(8, 4))
            draw_reliability(figure, found)
            words = "How often a held-out cell was 1 where its chance was said to be so."
            made.append(("Calibration", words, as_svg(figure, words)))
    return made


def draw_paths(figure: Figure, found: Comparison) -> None:
    axes = figure.subplots()
    best = max(row["held_out"] for row in found.rows.values() if "held_out" in row)
    for name, (score, clock) in found.paths.items():
        row = found.rows[name]
        gap = np.maximum(best - score, 1e-4)
        style: Any = "-" if row["bespoke"] else "--"
        axes.loglog(np.maximum(clock, 1e-3), gap, style, marker="o", markersize=3, label=name)
    axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("seconds, compilation left out")
    axes.set_ylabel("nats a row behind the best")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def draw_reliability(figure: Figure, found: Comparison) -> None:
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for name, one in found.reliability.items():
        style = "-" if found.rows[name]["bespoke"] else "--"
        axes.plot(one["said"], one["seen"], style, marker="o", markersize=3, label=name)
    axes.set_xlabel("chance that was said")
    axes.set_ylabel("share of ones")
    axes.set_aspect("equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def as_svg(figure: Figure, words: str) -> str:
    """A figure as inline SVG: transparent, with words for those who cannot see it."""
    from inference.studies.output import as_picture

    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    text = as_picture(figure, ".svg").decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
