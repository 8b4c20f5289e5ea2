"""A comparison in words, by stated rules.

best        the highest mean held-out log likelihood among those whose checks pass; if none does,
            among those with one start; else of all
as good     not failing its checks, and its paired difference from the best, row by row, is within
            two standard errors, the Monte-Carlo errors of both scores included
reached     the time from which on the held-out score was within 0.01 nats per row of the best
trusted     its checks pass (below)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import checks
from .checks import CLOSE, Standing, Status, doubts, in_words, standing

RULES = __doc__.split("\n\n", 1)[1] + "\n" + checks.RULES
MOST_NAMED = 8
"""Methods that one clause of the headline names."""


def paired(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the row-by-row difference."""
    difference = np.asarray(best) - np.asarray(other)
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def settle(rows: dict[str, dict[str, Any]], held_out: dict[str, np.ndarray], paths: dict) -> None:
    """Put into the rows what needs all of them: standing, difference from the best, time to it."""
    done = [name for name in rows if name in held_out and np.isfinite(rows[name]["held_out"])]
    if not done:
        return
    _behind_on_training(rows, done)
    stands = {name: standing(rows[name]) for name in done}
    best = _best(rows, stands)
    top = rows[best]["held_out"]
    for name in done:
        row = rows[name]
        difference, spread = paired(held_out[best], held_out[name])
        noise = [rows[x].get("score_error", 0.0) for x in {best, name}] if name != best else []
        error = float(np.hypot(spread, np.hypot.reduce(noise) if noise else 0.0))
        path, clock = paths[name]
        path = np.append(path[:-1], row["held_out"])  # the end, by all draws
        far = np.flatnonzero(~(path >= top - CLOSE))
        since = far[-1] + 1 if len(far) else 0  # to come close and leave again is not to arrive
        row |= {
            "standing": stands[name].name,
            "best": name == best,
            "behind": difference,
            "behind_error": error,
            "as_good": stands[name] is not Standing.FAILS
            and bool(difference <= max(2 * error, 1e-9)),
            "seconds_to_best": float(clock[since]) if since < len(path) else None,
        }


def _behind_on_training(rows: dict[str, dict[str, Any]], done: list[str]) -> None:
    """How far each point estimate is below the highest likelihood that one found on its rows.

    A posterior mode is no maximum of that, and lies below by right.
    """
    points = [x for x in done if rows[x]["kind"] == "point" and "train" in rows[x]]
    if not points:
        return
    top = max(rows[x]["train"] for x in points)
    for name in points:
        if not rows[name].get("posterior_mode"):
            rows[name]["train_behind"] = top - rows[name]["train"]


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
    found = [(name, _sentence(name, rows[name])) for name in done]
    return found + [
        (name, f"{name}: {rows[name]['reason']}.") for name in rows if "behind" not in rows[name]
    ]


def _sentence(name: str, row: dict[str, Any]) -> str:
    stands = Standing[row["standing"]]
    apart = f"{abs(row['behind']):.3f} ± {row['behind_error']:.3f}"
    if row["best"]:
        first = f"{row['held_out']:.3f} ± {row['held_out_error']:.3f} nats per row"
        first = first if stands is Standing.FAILS else f"best with {first}"
    elif row["as_good"]:
        first = f"as good as the best ({apart} {'behind' if row['behind'] >= 0 else 'ahead'})"
    elif row["behind"] >= 0:
        first = f"{apart} nats per row behind the best"
    else:
        first = f"{apart} nats per row above the best of those to be trusted"
    words = [first]
    reached = row["seconds_to_best"]
    if stands is Standing.FAILS:
        words = [f"{stands.value} ({', '.join(doubts(row))})", *words]
    elif reached is not None:
        words.append(f"within {CLOSE} nats of it after {_seconds(reached)}")
    else:
        words.append(f"not within {CLOSE} nats of it after {_seconds(row['seconds'])}")
    if stands is not Standing.FAILS:
        words.append(in_words(row, stands))
    return f"{name}: " + "; ".join(words) + "."


def headline(rows: dict[str, dict[str, Any]]) -> str:
    """Does the paper's own inference beat the generic one here? Of those whose checks pass."""
    done = {x: r for x, r in rows.items() if "behind" in r}
    unfinished = {x: r for x, r in rows.items() if r.get("status") == Status.INTERRUPTED.value}
    if not done:
        return "No method finished."
    if unfinished:
        ended = _of_some(done) + _not_passing(done)
        return ended + _named(unfinished, "Interrupted before the end")
    passing = {x: r for x, r in done.items() if Standing[r["standing"]] is Standing.PASSES}
    if not passing:
        return f"No method passes its checks here, so none is recommended.{_not_passing(done)}"
    first = {side: _fastest(passing, side) for side in (True, False)}
    ours, theirs = first[True], first[False]
    if ours is not None and theirs is not None:
        seconds = {x: passing[x]["seconds_to_best"] for x in (ours, theirs)}
        quick, slow = sorted((ours, theirs), key=lambda x: seconds[x])
        kind, other = ("Bespoke", "generic") if quick == ours else ("Generic", "bespoke")
        ratio = seconds[slow] / max(seconds[quick], 1e-9)
        words = (
            f"{kind} inference wins here: {quick} comes within {CLOSE} nats per row of the best in "
            f"{_seconds(seconds[quick])}{_excess(passing[quick])}, {slow}, the first {other} "
            f"method to do so, in {_seconds(seconds[slow])} ({_times(ratio)} times as long)"
            f"{_excess(passing[slow])}."
        )
    elif ours is not None or theirs is not None:
        name = ours or theirs
        assert name is not None
        kind = "bespoke" if ours is not None else "generic"
        words = (
            f"Only {kind} inference comes within {CLOSE} nats per row of the best: {name} in "
            f"{_seconds(passing[name]['seconds_to_best'])}{_excess(passing[name])}."
            f"{_other_side(passing, ours is None)}"
        )
    else:
        raise AssertionError("the best is within any distance of itself")
    return words + _not_passing(done)


def _of_some(done: dict[str, dict[str, Any]]) -> str:
    """What can be said where others might have been better: who is best of those that ended."""
    best = next(x for x, r in done.items() if r["best"])
    words = f"Of the {len(done)} methods that ended, {best} is best"
    if len(done) == 1:
        words = f"Only {best} ended"
    elif Standing[done[best]["standing"]] is Standing.FAILS:
        words = f"None of the {len(done)} methods that ended passes its checks"
    return f"{words}; of the others nothing is known."


def _fastest(passing: dict[str, dict[str, Any]], side: bool) -> str | None:
    """Who of a side came within a hundredth of the best first, and stayed there."""
    near = [
        x for x, r in passing.items() if r["bespoke"] == side and r["seconds_to_best"] is not None
    ]
    return min(near, key=lambda x: passing[x]["seconds_to_best"], default=None)


def _excess(row: dict[str, Any]) -> str:
    """How far from the true program a method ends, where that is known."""
    if row.get("excess") is None:
        return ""
    return f" and ends {row['excess']:.3f} ± {row['excess_error']:.3f} from the truth"


def _other_side(passing: dict[str, dict[str, Any]], side: bool) -> str:
    """The nearest of the side that did not come close, among those whose checks pass."""
    kind = "bespoke" if side else "generic"
    names = [x for x, r in passing.items() if r["bespoke"] == side]
    if not names:
        return f" No {kind} method passes its checks."
    name = min(names, key=lambda x: passing[x]["behind"])
    row = passing[name]
    behind = f"{row['behind']:.3f} ± {row['behind_error']:.3f}"
    return f" Of the {kind} methods {name} is nearest, {behind} nats per row behind."


def _not_passing(done: dict[str, dict[str, Any]]) -> str:
    """Who fails, and who cannot be judged by one start, by name."""
    words = ""
    aside = {Standing.FAILS: "Failing their checks", Standing.ONE_START: "One start only"}
    for stands, said in aside.items():
        names = [x for x, r in done.items() if Standing[r["standing"]] is stands]
        words += _named(names, said)
    return words


def _named(some: Iterable[str], said: str) -> str:
    names = list(some)
    rest = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f" {said}: {named}." if names else ""


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
