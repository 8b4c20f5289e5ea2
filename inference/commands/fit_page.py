"""`latentbits fit --figure` and `--report`: pictures of a fit, and a page with all that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..items.classes import table_rows
from ..items.pictures import Drawing, drawings
from .fit_report import Written
from .options import Given


def drawn(
    tables: Mapping[str, Written], groups: Any, given: Given, image: tuple[int, int] | None
) -> list[Drawing]:
    """The pictures of a fit."""
    draws = {str(x): v.values.mean((0, 1)) for x, v in groups.get("posterior", {}).items()}
    point = {str(x): v.values for x, v in groups.get("point_estimate", {}).items()} or draws
    shown = {x: {each.head: each.names, **each.columns} for x, each in tables.items()}
    return drawings(shown, point, given.table.columns, image)


def render(
    lines: list[str],
    tables: Mapping[str, Written],
    pictures: Sequence[Drawing],
    attrs: Mapping[str, Any],
    out: Path,
) -> bytes:
    """The page of a fit."""
    from ..comparison.report.figures import Picture, sheet
    from ..comparison.report.page import in_ink, inline, template

    made = []
    with in_ink():
        for one in pictures:
            figure = sheet(one.height)
            one.draw(figure)
            made.append(Picture(one.title, one.words, one.words, figure, one.pale))
        figures = inline(made)
    shown = [
        (each.title, table_rows({
            x: [str(y) for y in v] if x == each.head else v
            for x, v in {each.head: each.names, **each.columns}.items() if x != "line"
        }))
        for each in tables.values() if each.title
    ]  # fmt: skip
    measures = tables.get("measures")
    found = [] if measures is None else zip(measures.names, measures.columns["value"], strict=True)
    page = template("fit.html.jinja").render(
        attrs=attrs, figures=figures, lines=lines[: lines.index("")], tables=shown, measures=found,
        out=out.name,
    )  # fmt: skip
    return page.encode()
