"""One comparison on several data sets, or on other held-out rows of one table each time.

A method whose checks fail on one data set is not run on the next: one failure decides. Means are
over the data sets on which all ran that pass; what stands beside them after ± is the standard error
over these, in cross-validation with the correction for training rows that overlap (Nadeau & Bengio
2003), and never less than what the rows of one data set leave open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .checks import Row, Standing
from .compare import Comparison
from .verdict import factor, settle, winner

MOST = 5
"""Data sets by default: with so many a t interval is not much wider than a normal one."""
EXTRA = 1.0
"""Budgets that the runs of a method on further data sets may take together, by default; it runs on
two always, and on another where there is room for as much as the last took."""
MEANS = ("held_out", "behind", "excess", "train", "seconds", "seconds_to_best", "recovery",
         "calibration_error", "score_error")  # fmt: skip
"""Numbers of a row of which the mean over data sets is shown; of the others, those of the first."""
FIRST = ("distance", "distance_error")
"""Always those of the first data set, which alone has a reference that was kept."""
KEPT = ("held_out", "excess", "excess_error", "behind", "seconds", "seconds_to_best", "standing")
"""What is written down of each data set."""


def repeat(
    one: Callable[[int, list[str] | None], Comparison],
    count: int | None = None,
    budget: float | None = None,
    expect: Callable[[int, list[str]], None] | None = None,
) -> Comparison:
    """Run a comparison several times and put the results together.

    :param one: from the number of a replicate and the methods to run, None for all that apply.
    :param count: how many; by default at most five, fewer where their runs take long.
    :param expect: called after the first with the number of each later one and the methods that
        will run on it unless they fail: a process that would wait for a sampler can begin them.
    """
    parts = [one(0, None)]
    most = MOST if count is None else count
    stopped = parts[0].about["interrupted"]
    room = np.inf if count is not None or budget is None else EXTRA * budget

    def fits(name: str) -> bool:
        took = [p.rows[name].get("seconds", 0.0) for p in parts]
        return len(parts) == 1 or sum(took[1:]) + took[-1] <= room

    def expected(name: str, number: int) -> bool:
        row = parts[0].rows[name]
        return number == 1 or (row["kind"] == "point" and number * row["seconds"] <= room)

    while len(parts) < most and not stopped:
        names = [x for x in parts[-1].held_out if _passes(parts[-1], x) and fits(x)]
        if not names:
            break
        if expect is not None and len(parts) == 1:
            later = {i: [x for x in names if expected(x, i)] for i in range(1, most)}
            for number, some in later.items():
                if some:
                    expect(number, some)
        part = one(len(parts), names)
        stopped = part.about["interrupted"]
        parts += [] if stopped else [part]
    comparison = combine(parts)
    comparison.about["stopped"] = stopped
    return comparison


def _passes(part: Comparison, name: str) -> bool:
    return part.rows[name].get("standing") == Standing.PASSES.name


def combine(parts: list[Comparison]) -> Comparison:
    """Means over data sets; figures, parameters and the table are those of the first."""
    first = parts[0]
    ran = {x: [p for p in parts if x in p.rows] for x in first.held_out}
    passing = [x for x in ran if all(x in p.held_out and _passes(p, x) for p in ran[x])]
    # On others only those ran that are quick: what they show is whether their checks pass.
    used = [p for p in parts if all(x in p.held_out for x in passing)] if passing else parts[:1]
    best = max(passing, key=lambda x: np.mean([p.rows[x]["held_out"] for p in used]), default=None)
    for part in used:
        settle(part.rows, part.held_out, part.paths, best)
    of = first.about
    overlap = 0.0 if of["fresh"] else of["num_test"] / of["num_train"]
    rows = {name: _row(name, parts, used, overlap) for name in first.rows}
    side = winner(rows)
    contested = [p for p in used if {p.rows[x]["bespoke"] for x in p.held_out} == {True, False}]
    about = {
        **of,
        "replicates": len(used),
        "checked": len(parts),
        "contested": len(contested),  # where one side ran alone the verdict could not differ
        "agree": sum(winner(part.rows) == side for part in contested),
        "parts": [
            {x: {k: row.get(k) for k in KEPT} for x, row in part.rows.items() if "behind" in row}
            for part in parts
        ],
    }
    return first._replace(rows=rows, about=about)


def _row(name: str, parts: list[Comparison], used: list[Comparison], overlap: float) -> Row:
    """One method: checks where they failed, else on the first data set; means over all."""
    all_rows, some = (
        [p.rows[name] for p in those if "behind" in p.rows.get(name, {})] for those in (parts, used)
    )
    if not all_rows:
        return dict(parts[0].rows[name])
    failed = [r for r in all_rows if r["standing"] != Standing.PASSES.name]
    row = {**all_rows[0], **(failed[0] if failed else {})}
    count = len(some)
    row |= {x: all_rows[0][x] for x in ("best", "behind", "behind_error", "as_good")}
    row |= {x: all_rows[0].get(x) for x in FIRST if x in row}
    row["data_sets"] = len(all_rows)
    peaks = [r["peak_memory"] for r in all_rows if r.get("peak_memory") is not None]
    row |= {"peak_memory": max(peaks)} if peaks else {}
    if count < 2:
        return row
    for key in MEANS:
        values: list[Any] = [r.get(key) for r in some]
        row |= {key: None if None in values else float(np.mean(values))} if key in row else {}
    for key in ("held_out", "behind", "excess"):
        if row.get(key) is not None:
            # How data sets differ, all say on which it ran; how far it is behind, those alone on
            # which the best did.
            values = [r[key] for r in (some if key == "behind" else all_rows)]
            within = [r[f"{key}_error"] for r in some]
            row[f"{key}_error"] = spread(values, count, overlap, within)
    near = row["behind"] <= max(factor(count) * row["behind_error"], 1e-9)
    row["as_good"] = bool(near and not failed)
    return row


def spread(values: list[float], count: int, overlap: float, within: list[float]) -> float:
    """Standard error of a mean over `count` data sets, at least that which rows leave open.

    :param values: on data sets of the same kind, these or more.
    :param within: standard errors of those of the mean that their rows leave open.

    >>> round(spread([1.0, 2.0, 3.0], 3, 0.0, [0.1] * 3), 3), round(spread([1.0] * 3, 2, 0.0, [0.2] * 2), 3)
    (0.577, 0.141)
    """  # noqa: E501
    over = np.var(values, ddof=1) * (1 / count + overlap)
    return float(np.sqrt(max(over, np.mean(np.square(within)) / count)))
