"""One comparison on several data sets, or on other held-out rows of one table each time.

Scores are those of the first, on which all methods ran. A method that arrived runs on further data
sets, for which times are put together: their geometric mean. What does not arrive on one of them
has not arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .checks import Mark, Row
from .compare import Comparison

MOST = 5
"""Data sets by default: with so many a t interval is not much wider than a normal one."""
EXTRA = 10.0
"""Seconds that the runs of a method on further data sets may take together, by default; it runs on
two always, and on another where there is room for as much as the last took."""
KEPT = ("held_out", "excess", "excess_error", "behind", "behind_error", "seconds",
        "seconds_to_score", "seconds_to_uncertainty", "score", "uncertainty")  # fmt: skip
"""What is written down of each data set."""


def repeat(
    one: Callable[[int, list[str] | None], Comparison],
    count: int | None = None,
    expect: Callable[[int, list[str]], None] | None = None,
) -> list[Comparison]:
    """Run a comparison on several data sets.

    :param one: from the number of a replicate and the methods to run, None for all that apply.
    :param count: how many; by default at most five, fewer where their runs take long.
    :param expect: called after the first with the number of each later one and the methods that
        will run on it if they arrive: a process that would wait for a sampler can begin them.
    """
    parts = [one(0, None)]
    most, room = MOST if count is None else count, EXTRA if count is None else np.inf

    def fits(name: str) -> bool:
        took = [p.rows[name].get("seconds", 0.0) for p in parts]
        return len(parts) == 1 or sum(took[1:]) + took[-1] <= room

    def expected(name: str, number: int) -> bool:
        row = parts[0].rows[name]
        return number == 1 or (row["kind"] == "point" and number * row["seconds"] <= room)

    while len(parts) < most and not parts[-1].about["interrupted"]:
        names = [x for x, row in parts[-1].rows.items() if _arrived(row) and fits(x)]
        if not names:
            break
        if expect is not None and len(parts) == 1:
            later = {i: [x for x in names if expected(x, i)] for i in range(1, most)}
            for number, some in later.items():
                if some:
                    expect(number, some)
        parts.append(one(len(parts), names))
    return parts


def _arrived(row: Row) -> bool:
    return row.get("score") == Mark.ARRIVED.name


def combine(parts: list[Comparison]) -> Comparison:
    """Times over data sets; scores, figures, parameters and the table are those of the first."""
    stopped = parts[-1].about["interrupted"]
    parts = parts[:-1] if stopped and len(parts) > 1 else parts
    first = parts[0]
    each = {x: [p.rows[x] for p in parts if "behind" in p.rows.get(x, {})] for x in first.rows}
    kept = [
        {x: {k: row.get(k) for k in KEPT} for x, row in p.rows.items() if "behind" in row}
        for p in parts
    ]
    about = {**first.about, "replicates": len(parts), "parts": kept, "stopped": stopped}
    rows = {x: _row(each[x]) if each[x] else dict(first.rows[x]) for x in first.rows}
    return first._replace(rows=rows, about=about)


def _row(some: list[Row]) -> Row:
    """One method: on the first data set, but its times over all, and the worst of its marks."""
    row: dict[str, Any] = dict(some[0])
    row |= {"data_sets": len(some), "arrived_on": sum(map(_arrived, some))}
    peaks = [r["peak_memory"] for r in some if r.get("peak_memory") is not None]
    row |= {"peak_memory": max(peaks)} if peaks else {}
    for question in ("score", "uncertainty"):
        worst = next((r for r in some if r[question] != row[question]), row)
        row |= {x: worst[x] for x in (question, f"{question}_why")}
        times = [r[f"seconds_to_{question}"] for r in some]
        mean = None if None in times else float(np.exp(np.mean(np.log(np.maximum(times, 1e-9)))))
        row[f"seconds_to_{question}"] = mean
    return row
