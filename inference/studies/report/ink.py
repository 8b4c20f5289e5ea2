"""A figure as SVG in the page's own colours."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ..figures import MANY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..comparison.compare import Comparison


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


def legend_below(figure: Figure, names: list[str]) -> None:
    """A legend that takes its own room: nothing is drawn over, nothing is cut off."""
    columns = max(1, min(3, 58 // (max(map(len, names)) + 6)))
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.25 * lines)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=11, markerscale=1.4)


def as_svg(picture: Picture, prefix: str) -> str:
    """A figure as inline SVG: transparent, with words for those who cannot see it.

    :param prefix: of all names in it: two figures in one page must not share one.
    """
    from ..output import as_picture

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
