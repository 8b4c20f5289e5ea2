"""A comparison's winner once more, on data sets that the comparison did not have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from jax import random
from latentbits.models.data import InputError

from latentbits import models

from ...numerics.compiling import hurry
from ..cards import CARDS, example, known_of
from ..comparison.columns import summary
from ..comparison.compare import Comparison, compare
from ..comparison.replicates import repeat
from ..comparison.verdict import TIE, first
from ..output import read_json
from .experiment import Option, Outcome, Page, experiment


@experiment(
    "winner",
    "the winner of a comparison on further data sets: its excess and its time once more",
    result=Option(str, "manifest.json of `latentbits compare`", metavar="FILE"),
    model=Option(
        "latent_trait", "without --result: compare this", "bernoulli_product", choices=[*CARDS]
    ),
    example=Option("paper", "its data", "small", metavar="NAME"),
    methods=Option(str, "by default all that apply", "MAP", metavar="A,B,…"),
    budget=Option(20.0, "of each method", above=0.0, metavar="SECONDS"),
    data_sets=Option(5, "to run on", 4, least=2, metavar="N"),
)
def winner(namespace: argparse.Namespace) -> Outcome:
    """Whether the excess and the time of the method that a comparison names first come again.

    It runs on further data sets of the same truth, beside the best of the comparison, from whose
    score its time is counted. Both have come again if the means of old and new data sets differ by
    no more than a 95 % interval allows (Welch's t), that of the time on a log scale, and at least
    by a factor of 1.5, which is what the verdict calls a tie. Times are those of the machine. The
    limits are in the numbers: from two data sets they are so wide that little exceeds them.
    """
    hurry()  # as `compare` does: what is compiled with more effort runs in half of the time
    said = _said(namespace)
    name, rows, about = said["model"], said["methods"], said["about"]
    winning = first(rows)
    if winning is None or rows[winning].get("excess") is None:
        raise InputError(f"the comparison of {name} names no method with an excess over the truth")
    best = next(x for x in rows if rows[x].get("best"))
    wanted = [winning] if best == winning else [winning, best]
    number = 1000 * about["seed"] + len(about["parts"])
    again = _compared(namespace, name, about["example"], wanted, about["budget"], number)
    old, new = rows[winning], again.rows[winning]
    if new.get("seconds_to_best") is None:
        raise InputError(f"{winning} does not come near the best again: {new['reason']}")
    counts = about["replicates"], again.about["replicates"]
    limit = _interval(old["excess_error"], new["excess_error"], *counts)
    logs = [_log_times(x["parts"], winning) for x in (about, again.about)]
    times = [float(np.exp(x.mean())) for x in logs]
    errors = [float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else 0.0 for x in logs]
    most_times = max(
        TIE, float(np.exp(_interval(errors[0], errors[1], len(logs[0]), len(logs[1]))))
    )
    numbers = {
        "program": name,
        "winner": winning,
        "data_sets": list(counts),
        "excess": {
            "said": old["excess"], "said_error": old["excess_error"], "again": new["excess"],
            "again_error": new["excess_error"], "most_apart": limit,
            "within": bool(abs(new["excess"] - old["excess"]) <= limit),
        },
        "seconds": {
            "said": times[0], "again": times[1], "most_times": most_times,
            "within": bool(max(times) <= most_times * min(times)),
        },
    }  # fmt: skip
    return Outcome(numbers, (8, 3.2), _figure, (numbers,))


def _said(namespace: argparse.Namespace) -> dict[str, Any]:
    """What a comparison said: that of the file, or one made now."""
    if namespace.result is not None:
        said = read_json(Path(namespace.result))
        if "example" not in said.get("about", {}):
            raise InputError(f"{namespace.result}: not the manifest.json of a comparison of ours")
        return said
    wanted = None if namespace.methods is None else namespace.methods.split(",")
    which = namespace.example
    made = _compared(namespace, namespace.model, which, wanted, namespace.budget, 0)
    made.about.update(seed=0, example=which)
    return summary(made)


def _compared(
    namespace: argparse.Namespace, name: str, which: str, methods: Any, budget: float, number: int
) -> Comparison:
    """A comparison on several data sets of an example, from this number on."""

    def one(i: int, passing: list[str] | None) -> Comparison:
        made = example(name, which=which, number=number + i)
        return compare(
            getattr(models, name), made.values, passing or methods, budget=budget, replicate=i,
            rng_key=random.key(namespace.seed), **known_of(name, which, number + i), **made.sizes,
        )  # fmt: skip

    return repeat(one, namespace.data_sets)


def _log_times(parts: list[dict[str, Any]], name: str) -> np.ndarray:
    """Of a method on each data set, where it came near the best."""
    times = [part[name]["seconds_to_best"] for part in parts if name in part]
    return np.log([x for x in times if x is not None])


def _interval(first: float, second: float, *counts: int) -> float:
    """By how much two means differ at most, in 95 of 100 cases, from their standard errors.

    >>> round(_interval(0.3, 0.4, 1000, 1000), 2), round(_interval(0.3, 0.4, 5, 5), 2)
    (0.98, 1.17)
    """
    from scipy.stats import t

    parts = np.square([first, second])
    freedom = parts.sum() ** 2 / (parts**2 / np.maximum(np.array(counts) - 1, 1)).sum()
    return float(t.ppf(0.975, freedom) * np.sqrt(parts.sum()))


def _figure(page: Page, numbers: dict[str, Any]) -> None:
    """What was said beside what came again."""
    panels = page.subplots(1, 2)
    for panel, what in zip(panels, ("excess", "seconds"), strict=True):
        each = numbers[what]
        errors = [each.get(f"{x}_error", 0.0) for x in ("said", "again")]
        panel.errorbar([0, 1], [each["said"], each["again"]], errors, fmt="o", capsize=4)
        panel.set_xticks([0, 1], ["the comparison", "again"])
        panel.set_xlim(-0.5, 1.5)
        panel.set_ylim(bottom=0.0)
    panels[0].set_ylabel("nats per row above the truth")
    panels[1].set_ylabel("seconds to 0.01 nats of the best")
    page.suptitle(f"{numbers['winner']} on {numbers['program']}")
