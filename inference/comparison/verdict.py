"""A comparison in words, by stated rules; as lines for a terminal and as a manifest.

first         the method whose score arrived in the fewest processor seconds, compiling apart: the
              time from which on it stayed that near to the best
as near       the first of the other side, bespoke or generic, to arrive; its time over that of the
              first is the ratio, over data sets the geometric mean, of three or more with a 95 %
              interval
more than     none of the other side arrived, and the limit ended one of them
for intervals  the first whose uncertainty arrived
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation.diagnostics import ESS
from ..files.output import align, in_seconds
from . import checks
from .checks import (
    DISTANCE,
    REMARKS,
    SCORE,
    Mark,
    Row,
    Rows,
    Status,
    allowance,
    mark,
    uncertainty,
    wrong,
)
from .judge import arrival

if TYPE_CHECKING:
    from .compare import Comparison

RULES = __doc__.split("\n\n", 1)[1] + "\n" + checks.RULES
SIDES = {True: "bespoke", False: "generic"}

COLUMNS = {
    "held_out": ("nats per row", "z.3f"),
    "excess": ("from the truth", "z.3f"),
    "behind": ("behind the best", "z.3f"),
    "seconds_to_score": ("s to the score", ".2f"),
    "seconds_to_uncertainty": ("s to intervals", ".2f"),
    "seconds": ("run s", ".2f"),
    "compile_seconds": ("compile s", ".1f"),
    "recovery": ("recovery", ".3f"),
}
"""What the table in a terminal and in a notebook shows: few enough to be read side by side. The
report and the manifest have all; what falls short is in the verdict below the table."""


def settle(rows: Rows, held_out: dict[str, np.ndarray], paths: dict) -> None:
    """Put into the rows what needs all of them: marks, distance from the best, times.

    :param held_out: method -> (num_test,) log predictive densities.
    :param paths: method -> held-out score and its seconds.
    """
    done = [name for name in rows if name in held_out and np.isfinite(rows[name]["held_out"])]
    if not done:
        return
    # A point estimate below the highest likelihood that one found on the training rows; a mode
    # below the highest posterior density, of which it says that it is the maximum.
    points = [rows[x] for x in done if rows[x]["kind"] == "point" and "train" in rows[x]]
    density = [row["train"] + row.get("log_prior", -np.inf) for row in points]
    for row, own in zip(points, density, strict=True):
        if row.get("posterior_mode"):
            row["posterior_behind"] = max(density) - own
        else:
            row["train_behind"] = max(x["train"] for x in points) - row["train"]
    sound = [x for x in done if not wrong(rows[x], SCORE)]
    best = max(sound or done, key=lambda x: rows[x]["held_out"])
    for name in done:
        difference = np.asarray(held_out[best]) - np.asarray(held_out[name])
        spread = difference.std(ddof=1) / np.sqrt(len(difference))
        noise = [rows[x].get("score_error", 0.0) for x in {best, name}] if name != best else []
        behind, error = float(difference.mean()), float(np.hypot.reduce([spread, *noise]))
        rows[name] |= {"best": name == best, "behind": behind, "behind_error": error,
                       "behind_upper": behind + 2 * error}  # fmt: skip
    errors = [rows[x]["behind_error"] for x in sound if x != best]
    rows_error = float(np.median(errors)) if errors else 0.0
    for name in done:
        row, (path, clock) = rows[name], paths[name]
        row["allowance"] = allowance(row["behind_error"], rows_error)
        found = wrong(row, (*SCORE, DISTANCE))
        near = row["behind"] + path[-1] - path <= row["allowance"]
        times = [arrival(near, clock), row.get("sound_from", 0.0)]
        arrived = mark(row, found) is Mark.ARRIVED
        reached = row["seconds"] if None in times else max(times)  # at its end, if not before
        answer, missing = uncertainty(row)
        if answer is Mark.ARRIVED and not arrived:
            answer, missing = mark(row, found), ["its score has not arrived"]
        row |= {
            "score": mark(row, found).name, "score_why": list(found.values()),
            "seconds_to_score": reached if arrived else None,
            "uncertainty": answer.name, "uncertainty_why": missing,
            "remarks": list(wrong(row, REMARKS).values()),
        }  # fmt: skip
        since = row.get("seconds_to_uncertainty") or row["seconds"]
        row["seconds_to_uncertainty"] = since if answer is Mark.ARRIVED else None


def _arrived(rows: Rows, question: str = "score") -> dict[str, float]:
    """Methods that arrived, with their seconds, the first of them first."""
    times = {x: r.get(f"seconds_to_{question}") for x, r in rows.items()}
    named = {x: t for x, t in times.items() if t is not None}
    return {x: named[x] for x in sorted(named, key=named.__getitem__)}


def first(rows: Rows) -> str | None:
    """The method that the headline names first, if any arrived."""
    return next(iter(_arrived(rows)), None)


def opposed(rows: Rows) -> str | None:
    """The first of the other side to arrive, if any did."""
    arrived = list(_arrived(rows))
    sides = [rows[x]["bespoke"] for x in arrived]
    return next((x for x in arrived if rows[x]["bespoke"] != sides[0]), None)


def ratio(rows: Rows, about: dict[str, Any]) -> list[float]:
    """How many times as long the other side takes as the first, and its interval over data sets.

    Two data sets have none: of two ratios a t interval reaches over orders of magnitude.

    >>> rows = {"EM": {"seconds_to_score": 1.0, "bespoke": True},
    ...         "NUTS": {"seconds_to_score": 8.0, "bespoke": False}}
    >>> [round(x, 2) for x in ratio(rows, {})]
    [8.0]
    """
    lead, other = first(rows), opposed(rows)
    if lead is None or other is None:
        return []
    parts = [{x: r["seconds_to_score"] for x, r in p.items()} for p in about.get("parts", [])]
    logs = [np.log(p[other] / p[lead]) for p in parts if p.get(other) and p.get(lead)]
    logs = logs or [np.log(rows[other]["seconds_to_score"] / rows[lead]["seconds_to_score"])]
    if len(logs) < 3:
        return [float(np.exp(np.mean(logs)))]
    from scipy.stats import t

    wide = float(t.ppf(0.975, len(logs) - 1)) * np.std(logs, ddof=1) / np.sqrt(len(logs))
    return [float(np.exp(np.mean(logs) + x)) for x in (0.0, -wide, wide)]


def headline(rows: Rows, about: dict[str, Any] | None = None) -> str:
    """Which side has a trusted answer first, by how much, and who has intervals."""
    about, lead, other = about or {}, first(rows), opposed(rows)
    late = [x for x, r in rows.items() if r.get("score") == Mark.NOT_YET.name]
    if lead is None:
        limit = max((rows[x].get("seconds") or 0.0 for x in late), default=0.0)
        return f"No score arrived within {in_seconds(limit)}." if late else "No score arrived."
    words = f"{lead} first, {in_seconds(rows[lead]['seconds_to_score'])}"
    others = [x for x in late if rows[x].get("bespoke") != rows[lead]["bespoke"]]
    if other is not None:
        times = f"{_times(ratio(rows, about))} times as long"
        words += f"; {other} as near after {in_seconds(rows[other]['seconds_to_score'])}, {times}"
    elif others:
        longest = max(others, key=lambda x: rows[x].get("seconds") or 0.0)
        limit = rows[longest].get("seconds") or 0.0
        least = limit / max(rows[lead]["seconds_to_score"], 1e-9)
        words += f"; {longest} not yet after {in_seconds(limit)}, more than {_times([least])} times"
    else:
        side, stopped = not rows[lead]["bespoke"], Status.INTERRUPTED.value
        ended = {r.get("status") for r in rows.values() if r.get("bespoke") == side}
        near = "applies" if ended <= {Status.DOES_NOT_APPLY.value} else "comes as near"
        words += f"; no {SIDES[side]} method {'ended' if ended <= {stopped} and ended else near}"
    intervals = _arrived(rows, "uncertainty")
    if intervals:
        name, seconds = next(iter(intervals.items()))
        return f"{words}; for intervals {name} needs {in_seconds(seconds)}."
    waiting = any(r.get("uncertainty") == Mark.NOT_YET.name for r in rows.values())
    return f"{words}; no intervals{' yet' if waiting else ''}."


def _times(values: list[float]) -> str:
    """A ratio, and its interval in brackets.

    >>> _times([73.2, 60.0, 90.6]), _times([1.26])
    ('73 (60 to 91)', '1.3')
    """
    texts = [f"{x:.0f}" if x >= 10 else f"{x:.2g}" for x in values]
    return texts[0] + (f" ({texts[1]} to {texts[2]})" if len(texts) > 1 else "")


def verdict(rows: Rows) -> list[tuple[str, str]]:
    """One sentence a method: those that arrived first, by their time, then the others."""
    arrived = _arrived(rows)
    done = [x for x in rows if "behind" in rows[x] and x not in arrived]
    done = [*arrived, *sorted(done, key=lambda x: rows[x]["behind"])]
    ended = [(name, f"{name}: {'; '.join(_clauses(rows[name]))}.") for name in done]
    return ended + [(x, f"{x}: {row['reason']}.") for x, row in rows.items() if x not in done]


def _clauses(row: Row) -> list[str]:
    near = f"{row['behind']:.3f} nats per row behind the best, at most {row['behind_upper']:.3f}"
    near = "the best score" if row["best"] else near
    if row["score"] == Mark.ARRIVED.name:
        clauses = [f"{near}; there after {in_seconds(row['seconds_to_score'])}"]
    elif row["score"] == Mark.NOT_YET.name:
        clauses = [f"not yet after {in_seconds(row['seconds'])}: {', '.join(row['score_why'])}"]
    else:
        clauses = [", ".join(row["score_why"])]
    missing = ", ".join(row["uncertainty_why"])
    if row["uncertainty"] == Mark.ARRIVED.name:
        clauses.append(f"intervals after {in_seconds(row['seconds_to_uncertainty'])}")
    elif row["uncertainty"] == Mark.NOT_YET.name:
        clauses.append(
            f"no intervals yet after {in_seconds(row['seconds'])}: {missing}{_more(row)}"
        )
    elif row["uncertainty"] == Mark.WRONG.name:
        clauses.append(f"its intervals are not to be trusted: {missing}")
    sets, on = row.get("data_sets", 1), row.get("arrived_on", 1)
    clauses += [f"on {on} of {sets} data sets"] if on < sets > 1 else []
    unknown = ["its information was not checked"] if "information_unknown" in row else []
    return [*clauses, *row["remarks"], *unknown]


def _more(row: Row) -> str:
    """How long a sampler that lacks draws would still take, at its pace."""
    draws = min(row.get("ess_bulk") or 0.0, row.get("ess_tail") or 0.0)
    if not 0.0 < draws < ESS:
        return ""
    return f", about {in_seconds(row['seconds'] * (ESS / draws - 1.0))} more"


def certainty(about: dict[str, Any]) -> str:
    """How sure the headline is.

    >>> certainty({"replicates": 5, "fresh": True, "limit": 120.0})
    'Processor seconds, compiling apart, at most 120 a method; times are over 5 data sets, scores of the first.'
    """  # noqa: E501
    count, limit = about.get("replicates", 1), about.get("limit")
    most = "" if limit is None else f", at most {limit:g} a method"
    sets = "data sets" if about.get("fresh") else "choices of the rows held out"
    over = f"times are over {count} {sets}, scores of the first" if count > 1 else "one data set"
    wide = about.get("mark", checks.CLOSE)
    rows = ""
    if wide > checks.CLOSE:
        rows = f" The rows that judge cannot tell less than {wide:.2g} nats per row: this is near."
    return f"Processor seconds, compiling apart{most}; {over}.{rows}"


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


def cells(comparison: Comparison) -> list[list[str]]:
    """The table, a row of headings first, then the methods that have a score, the best first."""
    rows = comparison.rows
    done = sorted((x for x in rows if "held_out" in rows[x]), key=lambda x: -rows[x]["held_out"])
    late = {x: [c for c in COLUMNS if _censored(rows[x], c)] for x in done}
    shown = [c for c in COLUMNS if any(rows[x].get(c) is not None or c in late[x] for x in done)]
    if "excess" in shown:  # of which the one behind the best is a difference
        shown.remove("behind")
    table = [["method", *(COLUMNS[c][0] for c in shown)]]
    for name in done:
        line = [name]
        for column in shown:
            if column in late[name]:
                line.append(f"> {rows[name]['seconds']:.0f}")
                continue
            numbers = [rows[name].get(x) for x in (column, f"{column}_error")]
            form = COLUMNS[column][1]
            line.append(" ± ".join(format(x, form) for x in numbers if x is not None))
        table.append(line)
    return table


def _censored(row: Row, column: str) -> bool:
    """Whether a column is a time that the limit ended."""
    question = column.removeprefix("seconds_to_")
    return question != column and row.get(question) == Mark.NOT_YET.name


def lines(comparison: Comparison) -> list[str]:
    """The table, then the verdict."""
    said = (f"  {words}" for _, words in comparison.verdict)
    return [*align(cells(comparison)), "", comparison.headline, comparison.certainty, *said]
