"""A comparison in words, by stated rules.

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
from typing import Any

import numpy as np

from . import checks
from .checks import CLOSE, Standing, Status, in_words, standing

RULES = __doc__.split("\n\n", 1)[1] + "\n" + checks.RULES
TIE = 1.5
"""Times as long that the other side needs at least where one wins."""
MOST_NAMED = 8
"""Methods that one clause of the headline names."""


def paired(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the row-by-row difference."""
    difference = np.asarray(best) - np.asarray(other)
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def settle(
    rows: dict[str, dict[str, Any]],
    held_out: dict[str, np.ndarray],
    paths: dict,
    best: str | None = None,
) -> None:
    """Put into the rows what needs all of them: standing, difference from the best, time to it.

    :param best: where it is known already, from several data sets.
    """
    done = [name for name in rows if name in held_out and np.isfinite(rows[name]["held_out"])]
    if not done:
        return
    _behind_on_training(rows, done)
    stands = {name: standing(rows[name]) for name in done}
    best = best or _best(rows, stands)
    top = rows[best]["held_out"]
    for name in done:
        row = rows[name]
        difference, spread = paired(held_out[best], held_out[name])
        noise = [rows[x].get("score_error", 0.0) for x in {best, name}] if name != best else []
        error = float(np.hypot(spread, np.hypot.reduce(noise) if noise else 0.0))
        path, clock = paths[name]
        path = np.append(path[:-1], row["held_out"])  # the end, by all draws
        row |= {
            "standing": stands[name].name,
            "best": name == best,
            "behind": difference,
            "behind_error": error,
            "as_good": not stands[name].doubted and bool(difference <= max(2 * error, 1e-9)),
            "seconds_to_best": arrival(path >= top - CLOSE, clock),
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


def _behind_on_training(rows: dict[str, dict[str, Any]], done: list[str]) -> None:
    """How far each point estimate is below the highest likelihood that one found on its rows; a
    posterior mode below the highest posterior density, of which it says that it is the maximum."""
    points = [rows[x] for x in done if rows[x]["kind"] == "point" and "train" in rows[x]]
    for row in points:
        if row.get("posterior_mode"):
            row["posterior_behind"] = max(map(_posterior, points)) - _posterior(row)
        else:
            row["train_behind"] = max(x["train"] for x in points) - row["train"]


def _posterior(row: dict[str, Any]) -> float:
    """Log density of the parameters given the training rows, for each of them, up to a constant."""
    return row["train"] + row.get("log_prior", -np.inf)


def _best(rows: dict[str, dict[str, Any]], stands: dict[str, Standing]) -> str:
    for wanted in (Standing.PASSES, Standing.ONE_START, None):
        some = [x for x in stands if wanted is None or stands[x] is wanted]
        if some:
            return max(some, key=lambda x: rows[x]["held_out"])
    raise AssertionError("no method is done")


def verdict(rows: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """One sentence a method, the best first: (method, words)."""
    done = sorted((x for x in rows if "behind" in rows[x]), key=lambda x: rows[x]["behind"])
    done.sort(key=lambda x: not rows[x]["best"])
    sentences = [(name, _sentence(name, rows[name])) for name in done]
    return sentences + [
        (name, f"{name}: {rows[name]['reason']}.") for name in rows if "behind" not in rows[name]
    ]


def _sentence(name: str, row: dict[str, Any]) -> str:
    stands = Standing[row["standing"]]
    apart = f"{abs(row['behind']):.3f} ± {row['behind_error']:.3f}"
    if row["best"]:
        first = f"{row['held_out']:.3f} ± {row['held_out_error']:.3f} nats per row"
        first = first if stands.doubted else f"best with {first}"
    elif row["as_good"]:
        first = f"as good as the best ({apart} {'behind' if row['behind'] >= 0 else 'ahead'})"
    elif row["behind"] >= 0:
        first = f"{apart} nats per row behind the best"
    else:
        first = f"{apart} nats per row above the best of those to be trusted"
    words = [first]
    reached = row["seconds_to_best"]
    if stands.doubted:
        words = [in_words(row, stands), *words]
    elif reached is not None:
        words.append(f"within {CLOSE} nats of it after {_seconds(reached)}")
    else:
        words.append(f"not within {CLOSE} nats of it after {_seconds(row['seconds'])}")
    if not stands.doubted:
        words.append(in_words(row, stands))
    return f"{name}: " + "; ".join(words) + "."


def headline(rows: dict[str, dict[str, Any]]) -> str:
    """Does the paper's own inference beat the generic one here? Of those whose checks pass."""
    done = {x: r for x, r in rows.items() if "behind" in r}
    unfinished = {x: r for x, r in rows.items() if r.get("status") == Status.INTERRUPTED.value}
    if not done:
        return "No method finished."
    if unfinished:
        ended = _of_some(done) + _not_passing(rows)
        return ended + _named(unfinished, "Interrupted before the end")
    passing, late = _passing(rows), _not_finished(rows)
    if not passing:
        none = "No method passes its checks" if not late else "No method has passed its checks yet"
        return f"{none} here, so none is recommended.{_not_passing(rows)}"
    name = first(rows)
    assert name is not None
    side = bool(passing[name]["bespoke"])
    other = _first(passing, not side)
    alone = other is None or passing[other]["seconds_to_best"] is None
    kinds = ("generic", "bespoke")
    words = f"{kinds[side].capitalize()} inference wins here: "
    known = all(rows[x]["bespoke"] == side for x in late)  # what the other side comes to
    if alone and not known:
        words = f"{kinds[side].capitalize()} inference is first here: "
    elif alone:
        words = f"Only {kinds[side]} inference comes within {CLOSE} nats per row of the best: "
    elif winner(rows) is None:
        words = "Neither bespoke nor generic inference wins here: "
    words += _reaches(name, passing)
    if other is None:
        none = f" No {kinds[not side]} method passes its checks." if known else ""
        return f"{words}.{none}{_not_passing(rows)}"
    nearest = f"the nearest {kinds[not side]} method{'' if known else ' that passes its checks'},"
    called = f"{other}, {nearest}" if alone else other
    return f"{words}; {called} {_needs(passing[other], passing[name])}.{_not_passing(rows)}"


def _passing(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    done = {x: r for x, r in rows.items() if "behind" in r}
    return {x: r for x, r in done.items() if Standing[r["standing"]] is Standing.PASSES}


def _not_finished(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Whom the budget ended with all else in order, also before a first draw."""
    return [x for x, r in rows.items() if r.get("standing") == Standing.NOT_FINISHED.name]


def first(rows: dict[str, dict[str, Any]]) -> str | None:
    """The method that the headline names first, if any passes its checks."""
    passing = _passing(rows)
    near = [r for r in passing.values() if r["seconds_to_best"] is not None]
    earliest = min(near, key=lambda r: r["seconds_to_best"], default=None)
    return None if earliest is None else _first(passing, earliest["bespoke"])


def winner(rows: dict[str, dict[str, Any]]) -> bool | None:
    """Whether bespoke inference was first within 0.01 nats of the best, of those that pass.

    None: neither side was, by a margin that another seed leaves alone.
    """
    near = [r for r in _passing(rows).values() if r["seconds_to_best"] is not None]
    times = {side: [r["seconds_to_best"] for r in near if r["bespoke"] == side]
             for side in (True, False)}  # fmt: skip
    ours, theirs = (min(times[side], default=np.inf) for side in (True, False))
    if max(ours, theirs) < TIE * min(ours, theirs) or not near:
        return None
    return bool(ours < theirs)


def _level(passing: dict[str, dict[str, Any]], side: bool) -> list[str]:
    """Of a side the first to come near the best and stay, with those that another seed puts first.

    One that is only just near comes last: on other data it need not be.
    """
    mine = {x: r for x, r in passing.items() if r["bespoke"] == side}
    near = {x: r["seconds_to_best"] for x, r in mine.items() if r["seconds_to_best"] is not None}
    earliest = min(near.values(), default=np.inf)
    level = [x for x, seconds in near.items() if seconds == earliest or seconds < TIE * earliest]
    return sorted(level, key=lambda x: (mine[x]["behind"] > CLOSE / 2, near[x]))


def _first(passing: dict[str, dict[str, Any]], side: bool) -> str | None:
    """Of a side the one to come near the best first; where none does, the nearest."""
    mine = {x: r for x, r in passing.items() if r["bespoke"] == side}
    level = _level(passing, side) or sorted(mine, key=lambda x: mine[x]["behind"])
    return level[0] if level else None


def _reaches(name: str, passing: dict[str, dict[str, Any]]) -> str:
    """The first of a side with its numbers, together with those that another seed puts first."""
    row = passing[name]
    level = _level(passing, row["bespoke"])
    several = len(level) > 1
    names = f"{', '.join(level[:-1])} and {level[-1]}" if several else name
    seconds = _seconds(row["seconds_to_best"])
    if row.get("excess") is None:
        verb = "come" if several else "comes"
        return f"{names} {verb} within {CLOSE} nats per row of the best in {seconds}"
    verb = "reach" if several else "reaches"
    return f"{names} {verb} {_excess(row)} nats per row of the truth in {seconds}"


def _needs(row: dict[str, Any], first: dict[str, Any]) -> str:
    near = row["seconds_to_best"] is not None
    seconds = row["seconds_to_best"] if near else row["seconds"]
    ratio = seconds / max(first["seconds_to_best"], 1e-9)
    words = f"needs {_seconds(seconds)}"
    words += f" ({_times(ratio)} times as long)" if ratio >= 1 else ""
    if row.get("excess") is not None:
        return f"{words} and reaches {_excess(row)}"
    behind = f"{row['behind']:.3f} ± {row['behind_error']:.3f}"
    return words if near else f"{words} and ends {behind} behind"


def _excess(row: dict[str, Any]) -> str:
    return f"{row['excess']:.3f} ± {row['excess_error']:.3f}"


def certainty(about: dict[str, Any]) -> str:
    """How sure the headline is.

    >>> certainty({"replicates": 5, "contested": 5, "agree": 4, "fresh": True})
    'The verdict is the same on 4 of 5 data sets; ± is the standard error over them.'
    """
    count, checked = about.get("replicates", 1), about.get("checked", 0)
    more = f" Quick methods were checked on {checked} of them." if checked > count else ""
    return _certainty(about, count) + more


def _certainty(about: dict[str, Any], count: int) -> str:
    if count < 2:
        return "From one data set: ± is the standard error over the rows that judge."
    sets = "data sets" if about["fresh"] else "choices of the rows held out"
    agree, contested = about["agree"], about.get("contested", count)
    same = f"The verdict is the same on {agree} of"
    if contested == count:
        return f"{same} {count} {sets}; ± is the standard error over them."
    if contested > 1:
        return (
            f"{same} the {contested} {sets} on which methods of both sides ran; ± is the standard "
            f"error over all {count}."
        )
    return (
        f"Methods of one side alone passed on the first of {count} {sets}, and only these ran on "
        "the others: they do not test the verdict. ± is the standard error over all."
    )


def cut_short(rows: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
    """Whom the budget alone may have kept from passing: how much it buys depends on the machine.

    >>> rows = {"NUTS": {"status": "out of budget"}, "EM": {"status": "done"}}
    >>> cut_short(rows, {"budget": 20.0})
    ' Ended by the budget of 20 s on this machine, and not passing: NUTS.'
    """
    passing, late = _passing(rows), Status.OUT_OF_BUDGET.value
    names = [x for x, r in rows.items() if r.get("status") == late and x not in passing]
    budget = about.get("budget")
    said = f"Ended by the budget of {budget:g} s on this machine, and not passing" if names else ""
    return _named(names, said)


def _of_some(done: dict[str, dict[str, Any]]) -> str:
    """What can be said where others might have been better: who is best of those that ended."""
    best = next(x for x, r in done.items() if r["best"])
    words = f"Of the {len(done)} methods that ended, {best} is best"
    if len(done) == 1:
        words = f"Only {best} ended"
    elif Standing[done[best]["standing"]].doubted:
        words = f"None of the {len(done)} methods that ended has passed its checks"
    return f"{words}; of the others nothing is known."


def _not_passing(rows: dict[str, dict[str, Any]]) -> str:
    """Who fails, is not finished, cannot be judged by one start, or has no result, by name."""
    done = {x: r for x, r in rows.items() if "behind" in r}
    words, late = "", _not_finished(rows)
    aside = {Standing.FAILS: "Failing their checks", Standing.ONE_START: "One start only"}
    for stands, said in aside.items():
        names = [x for x, r in done.items() if Standing[r["standing"]] is stands]
        words += _named(names, said)
    words += _named(late, "Not finished when the budget ended")
    ended = {x.value for x in (Status.OUT_OF_BUDGET, Status.FAILED, Status.DIVERGED,
                               Status.DOES_NOT_FIT)}  # fmt: skip
    none = [x for x, r in rows.items() if "behind" not in r and r.get("status") in ended]
    return words + _named([x for x in none if x not in late], "Without a result")


def _named(some: Iterable[str], said: str) -> str:
    names = list(some)
    rest = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f" {said}: {named}." if names else ""


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
