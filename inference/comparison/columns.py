"""A comparison as lines for a terminal and as a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checks import Standing

if TYPE_CHECKING:
    from .compare import Comparison


def summary(comparison: Comparison) -> dict[str, Any]:
    """The numbers of a comparison, as JSON has them."""
    return {
        "model": comparison.model,
        "headline": comparison.headline,
        "certainty": comparison.certainty,
        "verdict": dict(comparison.verdict),
        "methods": comparison.rows,
        "about": comparison.about,
    }


COLUMNS = {
    "held_out": ("nats per row", "z.3f"),
    "excess": ("from the truth", "z.3f"),
    "behind": ("behind the best", "z.3f"),
    "compile_seconds": ("compile s", ".1f"),
    "seconds": ("run s", ".2f"),
    "seconds_to_best": ("s to 0.01 nats", ".2f"),
    "rhat": ("R̂", ".2f"),
    "ess_per_second": ("ESS/s", ".0f"),
    "recovery": ("recovery", ".3f"),
}
"""What the table in a terminal and in a notebook shows: few enough to be read side by side. The
report and the manifest have all; what fails a check is in the verdict below the table. A last
column marks methods that are not finished, if any is."""


def cells(comparison: Comparison) -> list[list[str]]:
    """The table, a row of headings first, then the methods that have a score, the best first."""
    rows = comparison.rows
    done = sorted((x for x in rows if "held_out" in rows[x]), key=lambda x: -rows[x]["held_out"])
    shown = [c for c in COLUMNS if any(rows[x].get(c) is not None for x in done)]
    if "excess" in shown:  # of which the one behind the best is a difference
        shown.remove("behind")
    heads = ["method", *(COLUMNS[c][0] for c in shown)]
    table = [heads, *([name, *(_cell(rows[name], c) for c in shown)] for name in done)]
    late = [rows[name].get("standing") == Standing.NOT_FINISHED.name for name in done]
    for line, mark in zip(table, [False, *late] if any(late) else [], strict=False):
        line.append("not finished" if mark else "")
    return table


def _cell(row: dict[str, Any], column: str) -> str:
    """A number, and its standard error where it has one."""
    form = COLUMNS[column][1]
    numbers = [row.get(column), row.get(f"{column}_error")]
    return " ± ".join(format(x, form) for x in numbers if x is not None)


def lines(comparison: Comparison) -> list[str]:
    """The table, then the verdict."""
    from ..files.output import align

    said = (f"  {words}" for _, words in comparison.verdict)
    return [*align(cells(comparison)), "", comparison.headline, comparison.certainty, *said]
