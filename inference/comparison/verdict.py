"""A comparison in words, by stated rules; as lines for a terminal and as a manifest.

best        the highest mean held-out log likelihood among those whose checks pass on every data
            set; if none does, among those with one start; else of all
as good     its checks find nothing wrong, and its paired difference from the best, row by row, is
            within a 95 % interval: over data sets by Student's t; of a single one two standard
            errors of its rows, the Monte-Carlo errors of both scores included
reached     the time from which on the held-out score was within 0.01 nats per row of the best
wins        reached it first, of those whose checks pass; where the first of the other side needs
            less than 1.5 times as long, neither does: another seed could turn that round, so
            methods of one side that are that near to each other are named together; the numbers
            are those of the first of them that is within 0.005, if one is
only        no method of the other side whose checks pass reached it; where a method of the other
            side is not finished, one side is only said to be first
trusted     its checks pass (below)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checks
from .checks import CLOSE, Row, Standing, Status, in_words, standing

if TYPE_CHECKING:
    from .compare import Comparison

RULES = __doc__.split("\n\n", 1)[1] + "\n" + checks.RULES
TIE = 1.5
"""Times as long that the other side needs at least where one wins."""
MOST_NAMED = 8
"""Methods that one clause of the headline names."""
SIDES = {True: "bespoke", False: "generic"}

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

Rows = dict[str, Row]
"""Method -> what is known of it."""


def settle(
    rows: Rows, held_out: dict[str, np.ndarray], paths: dict, best: str | None = None
) -> None:
    """Put into the rows what needs all of them: standing, difference from the best, time to it.

    :param held_out: method -> (num_test,) log predictive densities.
    :param paths: method -> held-out score and its seconds.
    :param best: where it is known already, from several data sets.
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
    stands = {name: standing(rows[name]) for name in done}
    trust = {Standing.PASSES: 2, Standing.ONE_START: 1}
    best = best or max(done, key=lambda x: (trust.get(stands[x], 0), rows[x]["held_out"]))
    for name in done:
        row, (path, clock) = rows[name], paths[name]
        difference = np.asarray(held_out[best]) - np.asarray(held_out[name])
        behind, spread = float(difference.mean()), difference.std(ddof=1) / np.sqrt(len(difference))
        noise = [rows[x].get("score_error", 0.0) for x in {best, name}] if name != best else []
        error = float(np.hypot.reduce([spread, *noise]))
        path = np.append(path[:-1], row["held_out"])  # the end, by all draws
        row |= {
            "standing": stands[name].name,
            "best": name == best,
            "behind": behind,
            "behind_error": error,
            "as_good": not stands[name].doubted and bool(behind <= max(2 * error, 1e-9)),
            "seconds_to_best": arrival(path >= rows[best]["held_out"] - CLOSE, clock),
        }


def arrival(near: np.ndarray, clock: np.ndarray) -> float | None:
    """The time from which on a path is near; to come and leave again is not to arrive.

    >>> arrival(np.array([True, False, True, True]), np.arange(4.0))
    2.0
    """
    far = np.flatnonzero(~near)
    since = far[-1] + 1 if len(far) else 0
    return float(clock[since]) if since < len(near) else None


def factor(count: int) -> float:
    """Standard errors to either side of a mean over so many data sets that make a 95 % interval.

    >>> round(factor(5), 2), factor(1)
    (2.78, 2.0)
    """
    from scipy.stats import t

    return 2.0 if count < 2 else float(t.ppf(0.975, count - 1))


def verdict(rows: Rows) -> list[tuple[str, str]]:
    """One sentence a method, the best first: (method, words)."""
    done = sorted(
        (x for x in rows if "behind" in rows[x]),
        key=lambda x: (not rows[x]["best"], rows[x]["behind"]),
    )
    ended = [(name, f"{name}: {'; '.join(_clauses(rows[name]))}.") for name in done]
    return ended + [(x, f"{x}: {row['reason']}.") for x, row in rows.items() if "behind" not in row]


def _clauses(row: Row) -> list[str]:
    stands = Standing[row["standing"]]
    apart = f"{abs(row['behind']):.3f} ± {row['behind_error']:.3f}"
    if row["best"]:
        score = f"{_with_error(row, 'held_out')} nats per row"
        first = score if stands.doubted else f"best with {score}"
    elif row["as_good"]:
        first = f"as good as the best ({apart} {'behind' if row['behind'] >= 0 else 'ahead'})"
    elif row["behind"] >= 0:
        first = f"{apart} nats per row behind the best"
    else:
        first = f"{apart} nats per row above the best of those to be trusted"
    if stands.doubted:
        return [in_words(row, stands), first]
    near = row["seconds_to_best"] is not None
    when = f"within {CLOSE} nats of it after {_seconds(_time(row))}"
    return [first, when if near else f"not {when}", in_words(row, stands)]


def headline(rows: Rows) -> str:
    """Does the paper's own inference beat the generic one here? Of those whose checks pass."""
    done = {x: r for x, r in rows.items() if "behind" in r}
    if not done:
        return "No method finished."
    unfinished = [x for x, r in rows.items() if r.get("status") == Status.INTERRUPTED.value]
    if unfinished:
        ended = _of_some(done) + _not_passing(rows)
        return ended + _named(unfinished, "Interrupted before the end")
    passing, late = _passing(rows), _not_finished(rows)
    if not passing:
        none = "No method has passed its checks yet" if late else "No method passes its checks"
        return f"{none} here, so none is recommended.{_not_passing(rows)}"
    name = first(rows)
    assert name is not None
    side = bool(passing[name]["bespoke"])
    other = next(iter(_leading(passing, not side)), None)
    alone = other is None or passing[other]["seconds_to_best"] is None
    known = all(rows[x]["bespoke"] == side for x in late)  # what the other side comes to
    if alone and not known:
        words = f"{SIDES[side].capitalize()} inference is first here: "
    elif alone:
        words = f"Only {SIDES[side]} inference comes within {CLOSE} nats per row of the best: "
    elif winner(rows) is None:
        words = "Neither bespoke nor generic inference wins here: "
    else:
        words = f"{SIDES[side].capitalize()} inference wins here: "
    words += _reaches(passing[name], _leading(passing, side))
    if other is None:
        none = f" No {SIDES[not side]} method passes its checks." if known else ""
        return f"{words}.{none}{_not_passing(rows)}"
    nearest = f"the nearest {SIDES[not side]} method{'' if known else ' that passes its checks'},"
    called = f"{other}, {nearest}" if alone else other
    return f"{words}; {called} {_needs(passing[other], passing[name])}.{_not_passing(rows)}"


def _passing(rows: Rows) -> Rows:
    passes = Standing.PASSES.name
    return {x: r for x, r in rows.items() if "behind" in r and r["standing"] == passes}


def _not_finished(rows: Rows) -> list[str]:
    """Whom the budget ended with all else in order, also before a first draw."""
    return [x for x, r in rows.items() if r.get("standing") == Standing.NOT_FINISHED.name]


def _earliest(passing: Rows, side: bool) -> float:
    """When the first method of a side was near the best for good; infinite if none was."""
    mine = [r["seconds_to_best"] for r in passing.values() if r["bespoke"] == side]
    return min((x for x in mine if x is not None), default=np.inf)


def _leading(passing: Rows, side: bool) -> list[str]:
    """Of a side the first to come near the best, with those that another seed puts first; where
    none comes near, the nearest alone.

    One that is only just near comes last: on other data it need not be.
    """
    mine = {x: r for x, r in passing.items() if r["bespoke"] == side}
    near = {x: r["seconds_to_best"] for x, r in mine.items() if r["seconds_to_best"] is not None}
    if not near:
        return sorted(mine, key=lambda x: mine[x]["behind"])[:1]
    earliest = min(near.values())
    level = [x for x, seconds in near.items() if seconds == earliest or seconds < TIE * earliest]
    return sorted(level, key=lambda x: (mine[x]["behind"] > CLOSE / 2, near[x]))


def first(rows: Rows) -> str | None:
    """The method that the headline names first, if any passes its checks."""
    passing = _passing(rows)
    side = min(SIDES, key=lambda side: _earliest(passing, side))
    return _leading(passing, side)[0] if _earliest(passing, side) < np.inf else None


def winner(rows: Rows) -> bool | None:
    """Whether bespoke inference was first within 0.01 nats of the best, of those that pass.

    None: neither side was, by a margin that another seed leaves alone.
    """
    ours, theirs = (_earliest(_passing(rows), side) for side in SIDES)
    level = max(ours, theirs) < TIE * min(ours, theirs) or min(ours, theirs) == np.inf
    return None if level else bool(ours < theirs)


def _reaches(row: Row, level: list[str]) -> str:
    """The first of a side with its numbers, together with those that another seed puts first."""
    several = len(level) > 1
    names = f"{', '.join(level[:-1])} and {level[-1]}" if several else level[0]
    seconds = _seconds(row["seconds_to_best"])
    if row.get("excess") is None:
        verb = "come" if several else "comes"
        return f"{names} {verb} within {CLOSE} nats per row of the best in {seconds}"
    verb = "reach" if several else "reaches"
    return f"{names} {verb} {_with_error(row, 'excess')} nats per row of the truth in {seconds}"


def _needs(row: Row, first: Row) -> str:
    ratio = _time(row) / max(first["seconds_to_best"], 1e-9)
    times = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
    words = f"needs {_seconds(_time(row))}" + (f" ({times} times as long)" if ratio >= 1 else "")
    if row.get("excess") is not None:
        return f"{words} and reaches {_with_error(row, 'excess')}"
    far = row["seconds_to_best"] is None
    return f"{words} and ends {_with_error(row, 'behind')} behind" if far else words


def _time(row: Row) -> float:
    """Seconds until a method was near the best; if it never was, all that it ran."""
    near = row["seconds_to_best"] is not None
    return row["seconds_to_best"] if near else row["seconds"]


def _with_error(row: Row, entry: str) -> str:
    return f"{row[entry]:.3f} ± {row[f'{entry}_error']:.3f}"


def certainty(about: dict[str, Any]) -> str:
    """How sure the headline is.

    >>> certainty({"replicates": 5, "contested": 5, "agree": 4, "fresh": True})
    'The verdict is the same on 4 of 5 data sets; ± is the standard error over them.'
    """
    count = about.get("replicates", 1)
    if count < 2:
        words = "From one data set: ± is the standard error over the rows that judge."
    else:
        sets = "data sets" if about["fresh"] else "choices of the rows held out"
        contested = about.get("contested", count)
        same = f"The verdict is the same on {about['agree']} of"
        if contested == count:
            words = f"{same} {count} {sets}; ± is the standard error over them."
        elif contested > 1:
            words = (
                f"{same} the {contested} {sets} on which methods of both sides ran; ± is the "
                f"standard error over all {count}."
            )
        else:
            words = (
                f"Methods of one side alone passed on the first of {count} {sets}, and only these "
                "ran on the others: they do not test the verdict. ± is the standard error over all."
            )
    checked = about.get("checked", 0)
    more = f" Quick methods were checked on {checked} of them." if checked > count else ""
    return words + more


def cut_short(rows: Rows, about: dict[str, Any]) -> str:
    """Whom the budget alone may have kept from passing: how much it buys depends on the machine.

    >>> rows = {"NUTS": {"status": "out of budget"}, "EM": {"status": "done"}}
    >>> cut_short(rows, {"budget": 20.0})
    ' Ended by the budget of 20 s on this machine, and not passing: NUTS.'
    """
    late = [x for x, r in rows.items() if r.get("status") == Status.OUT_OF_BUDGET.value]
    names = [x for x in late if x not in _passing(rows)]
    if not names:
        return ""
    said = f"Ended by the budget of {about['budget']:g} s on this machine, and not passing"
    return _named(names, said)


def _of_some(done: Rows) -> str:
    """What can be said where others might have been better: who is best of those that ended."""
    best = next(x for x, r in done.items() if r["best"])
    words = f"Of the {len(done)} methods that ended, {best} is best"
    if len(done) == 1:
        words = f"Only {best} ended"
    elif Standing[done[best]["standing"]].doubted:
        words = f"None of the {len(done)} methods that ended has passed its checks"
    return f"{words}; of the others nothing is known."


def _not_passing(rows: Rows) -> str:
    """Who fails, is not finished, cannot be judged by one start, or has no result, by name."""
    late = _not_finished(rows)
    failed = (Status.OUT_OF_BUDGET, Status.FAILED, Status.DIVERGED, Status.DOES_NOT_FIT)
    without = [
        x for x, r in rows.items()
        if "behind" not in r and r.get("status") in {y.value for y in failed} and x not in late
    ]  # fmt: skip

    def standing_at(stands: Standing) -> list[str]:
        return [x for x, r in rows.items() if "behind" in r and r["standing"] == stands.name]

    return (
        _named(standing_at(Standing.FAILS), "Failing their checks")
        + _named(standing_at(Standing.ONE_START), "One start only")
        + _named(late, "Not finished when the budget ended")
        + _named(without, "Without a result")
    )


def _named(some: Iterable[str], said: str) -> str:
    names = list(some)
    rest = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f" {said}: {named}." if names else ""


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


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
    shown = [c for c in COLUMNS if any(rows[x].get(c) is not None for x in done)]
    if "excess" in shown:  # of which the one behind the best is a difference
        shown.remove("behind")
    late = _not_finished(rows)
    mark = any(name in late for name in done)
    table = [["method", *(COLUMNS[c][0] for c in shown), *([""] if mark else [])]]
    for name in done:
        line = [name]
        for column in shown:
            numbers = [rows[name].get(x) for x in (column, f"{column}_error")]
            form = COLUMNS[column][1]
            line.append(" ± ".join(format(x, form) for x in numbers if x is not None))
        table.append(line + (["not finished" if name in late else ""] if mark else []))
    return table


def lines(comparison: Comparison) -> list[str]:
    """The table, then the verdict."""
    from ..files.output import align

    said = (f"  {words}" for _, words in comparison.verdict)
    return [*align(cells(comparison)), "", comparison.headline, comparison.certainty, *said]
