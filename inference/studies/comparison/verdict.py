"""A comparison in words, by stated rules.

best        the highest mean held-out log likelihood among those that finished
as good     its paired difference from the best, row by row, is within two standard errors
reached     the time from which on the held-out score was within 0.01 nats a row of the best
trusted     a sampler: R̂ of the log joint ≤ 1.01, of the parameters after relabelling ≤ 1.05,
            at least 400 effective draws, no divergence
            a variational guide: Pareto k̂ ≤ 0.7
            a bound: mean gap ≤ 0.1 nats a row; truncation: mean missed mass ≤ 0.01
            a point estimate without any of these: not judged
"""

from __future__ import annotations

from typing import Any

import numpy as np

CLOSE = 0.01
RHAT, ESS, PARETO, GAP, MISSED = 1.01, 400.0, 0.7, 0.1, 0.01
RULES = __doc__.split("\n\n", 1)[1]


def doubts(row: dict[str, Any]) -> list[str] | None:
    """Why a result is not to be trusted; empty: it is; None: nothing can be said."""
    found, judged = [], False
    for key, limit, words in (
        ("rhat", RHAT, "R̂ of the log joint {:.3f}"),
        ("rhat_parameters", 1.05, "R̂ of the parameters {:.2f} after relabelling"),
        ("divergences", 0, "{:.0f} divergences"),
        ("pareto_k", PARETO, "Pareto k̂ {:.2f}"),
        ("bound_gap", GAP, "a bound {:.2f} nats a row below the evidence"),
        ("missed_mass", MISSED, "{:.1%} of the posterior mass missed"),
    ):
        value = row.get(key)
        if value is None:
            continue
        judged = judged or key != "divergences"
        if not value <= limit:  # also when NaN
            found.append(words.format(value))
    if row.get("ess_bulk") is not None and not row["ess_bulk"] >= ESS:
        found.append(f"{row['ess_bulk']:.0f} effective draws")
    return found if judged else None


def paired(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the row-by-row difference."""
    difference = np.asarray(best) - np.asarray(other)
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def settle(rows: dict[str, dict[str, Any]], held_out: dict[str, np.ndarray], paths: dict) -> None:
    """Put into the rows what needs all of them: difference from the best, time to come close."""
    done = [name for name in rows if name in held_out and np.isfinite(rows[name]["held_out"])]
    if not done:
        return
    best = max(done, key=lambda name: rows[name]["held_out"])
    for name in done:
        difference, error = paired(held_out[best], held_out[name])
        path, clock = paths[name]
        path = np.append(path[:-1], rows[name]["held_out"])  # the end, by all draws
        far = np.flatnonzero(~(path >= rows[best]["held_out"] - CLOSE))
        since = far[-1] + 1 if len(far) else 0  # to come close and leave again is not to arrive
        rows[name] |= {
            "best": name == best,
            "behind": difference,
            "behind_error": error,
            "as_good": bool(difference <= max(2 * error, 1e-9)),
            "seconds_to_best": float(clock[since]) if since < len(path) else None,
        }


def verdict(rows: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """One sentence a method, the best first: (method, words)."""
    done = sorted((x for x in rows if "behind" in rows[x]), key=lambda x: rows[x]["behind"])
    found = [(name, _sentence(name, rows)) for name in done]
    return found + [
        (name, f"{name}: {rows[name]['reason']}.") for name in rows if "behind" not in rows[name]
    ]


def _sentence(name: str, rows: dict[str, dict[str, Any]]) -> str:
    row = rows[name]
    words = [f"{row['held_out']:.3f} ± {row['held_out_error']:.3f} nats a held-out row"]
    if row["best"]:
        words = [f"best with {words[0]}"]
    elif row["as_good"]:
        words = [f"as good as the best ({row['behind']:.3f} ± {row['behind_error']:.3f} behind)"]
    else:
        words = [f"worse than the best by {row['behind']:.3f} ± {row['behind_error']:.3f}"]
    reached = row["seconds_to_best"]
    if reached is not None:
        words.append(f"within {CLOSE} nats of it after {_seconds(reached)}")
    else:
        words.append(f"not within {CLOSE} nats of it after {_seconds(row['seconds'])}")
    problems = doubts(row)
    if problems is None:
        words.append("a point estimate: no error bars to judge")
    elif problems:
        words.append("not to be trusted: " + ", ".join(problems))
    else:
        words.append("its own checks pass")
    return f"{name}: " + "; ".join(words) + "."


def headline(rows: dict[str, dict[str, Any]]) -> str:
    """Does the paper's own inference beat the generic one here? One sentence."""
    good = {x: r for x, r in rows.items() if r.get("as_good")}
    sides: dict[bool, list[str]] = {True: [], False: []}
    for name, row in good.items():
        if row["seconds_to_best"] is not None:
            sides[row["bespoke"]].append(name)
    # Whoever fails its own checks wins nothing, unless its side has nobody else.
    sound = {side: [x for x in names if not doubts(good[x])] for side, names in sides.items()}
    fastest = {
        side: min(sound[side] or names, key=lambda x: good[x]["seconds_to_best"])
        for side, names in sides.items()
        if names
    }
    if True in fastest and False in fastest:
        ours, theirs = fastest[True], fastest[False]
        ratio = good[theirs]["seconds_to_best"] / max(good[ours]["seconds_to_best"], 1e-9)
        aside = "".join(_not_trusted(good, sides[side], fastest[side]) for side in (True, False))
        if ratio >= 1:
            return (
                f"Bespoke inference wins here: {ours} comes within {CLOSE} nats a row of "
                f"the best {_times(ratio)} times as fast as {theirs}, the first generic method to "
                f"do so.{aside}"
            )
        return (
            f"Generic inference wins here: {theirs} comes within {CLOSE} nats a row of the best "
            f"{_times(1 / ratio)} times as fast as {ours}, the first bespoke method to do so."
            f"{aside}"
        )
    for side, words in ((True, "bespoke"), (False, "generic")):
        if side in fastest:
            name = fastest[side]
            doubt = ", but it is not to be trusted" if doubts(good[name]) else ""
            if not any(rows[x]["bespoke"] for x in rows if "behind" in rows[x]):
                return f"No bespoke method ran: {name} is the first near the best{doubt}."
            return (
                f"Only {words} inference comes within {CLOSE} nats a row of the best, and stays: "
                f"{name}{doubt}.{_no_worse(rows, not side)}"
            )
    return "No method finished."


def _not_trusted(good: dict[str, dict[str, Any]], names: list[str], chosen: str) -> str:
    """What is to be said of one side's doubtful methods, beside the one that stands for it."""
    if doubts(good[chosen]):
        return f" {chosen} is not to be trusted, though."
    first = min(names, key=lambda x: good[x]["seconds_to_best"])
    return "" if first == chosen else f" {first} was sooner, but is not to be trusted."


def _no_worse(rows: dict[str, dict[str, Any]], side: bool) -> str:
    """Who of a side is not within a hundredth of the best, and not told from it either."""
    found = [x for x, r in rows.items() if r.get("as_good") and r["bespoke"] == side]
    if not found:
        return ""
    found.sort(key=lambda x: rows[x]["behind"])
    kind = "bespoke" if side else "generic"
    listed = found if len(found) <= 3 else [*found[:2], f"other {kind} methods"]
    words = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    verb = "is" if len(found) == 1 else "are"
    return f" Within two standard errors, though, {words} {verb} as good."


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
