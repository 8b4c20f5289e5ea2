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
    lines: Sequence[str],
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
    head = list(lines)[: list(lines).index("")]
    alarms = [x.partition(" ")[2].strip() for x in head if x.startswith("warning")]
    shown = [
        {
            "title": each.title,
            "rows": table_rows({
                x: [str(y) for y in v] if x == each.head else v
                for x, v in {each.head: each.names, **each.columns}.items() if x != "line"
            }),
        }
        for each in tables.values() if each.title and each.head != "measure"
    ]  # fmt: skip
    own = ("method", "data", "settings", "sizes", "python", "latentbits", "numpyro", "jax")
    commands = [
        f"latentbits {name} {out.name} --data new.csv --out {name}.csv"
        for name in ("transform", "score")
    ]
    page = template("fit.html.jinja").render(
        title=f"{attrs['model']} fitted to {attrs['data']}", warnings=alarms, figures=figures,
        measures=_named(tables), tables=shown, commands=commands,
        lines=[x for x in head if not x.startswith("warning")],
        settings={x: attrs[x] for x in own if x in attrs},
    )  # fmt: skip
    return page.encode()


def _named(tables: Mapping[str, Written]) -> dict[str, str]:
    """Statistics of fit as they are printed."""
    found = tables.get("measures")
    values = {} if found is None else dict(zip(found.names, found.columns["value"], strict=True))
    return {
        name.replace("_", " "): f"{x:.4f}" if x != round(x) else f"{x:.0f}"
        for name, x in values.items()
    }
