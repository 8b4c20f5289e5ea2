"""A comparison as lines for a terminal and as a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "held_out": ("nats per row", "{:.3f}"),
    "held_out_error": ("±", "{:.3f}"),
    "behind": ("behind", "{:.3f}"),
    "excess": ("excess", "{:.4f}"),
    "compile_seconds": ("compile s", "{:.1f}"),
    "seconds": ("run s", "{:.2f}"),
    "peak_memory": ("GB", "{:.2f}"),
    "seconds_to_best": ("s to 0.01 nats", "{:.2f}"),
    "rhat": ("R̂", "{:.3f}"),
    "ess_per_second": ("ESS/s", "{:.0f}"),
    "pareto_k": ("k̂", "{:.2f}"),
    "bound_gap": ("gap", "{:.3f}"),
    "recovery": ("recovery", "{:.3f}"),
}
"""What the table in a terminal shows."""


def cells(comparison: Comparison) -> list[list[str]]:
    """The table, a row of headings first, then the methods that have a score, the best first."""
    done = [x for x in comparison.rows if "held_out" in comparison.rows[x]]
    shown = [c for c in COLUMNS if any(comparison.rows[x].get(c) is not None for x in done)]
    table = [["method", *(COLUMNS[c][0] for c in shown)]]
    for name in sorted(done, key=lambda x: -comparison.rows[x]["held_out"]):
        values = [comparison.rows[name].get(c) for c in shown]
        texts = [
            "" if v is None else COLUMNS[c][1].format(v / 1e9 if c == "peak_memory" else v)
            for c, v in zip(shown, values, strict=True)
        ]
        table.append([name, *texts])
    return table


def lines(comparison: Comparison) -> list[str]:
    """The table, then the verdict."""
    from ..output import align

    said = (f"  {words}" for _, words in comparison.verdict)
    return [*align(cells(comparison)), "", comparison.headline, comparison.certainty, *said]
