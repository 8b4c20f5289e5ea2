"""A comparison's winner once more, on data sets that the comparison did not have."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import random
from latentbits.models.data import InputError

from inference.comparison.compare import Comparison, compare
from inference.comparison.replicates import combine, repeat
from inference.comparison.verdict import first, summary
from inference.files.cards import CARDS, example, known_of
from inference.files.output import read_json
from inference.papers.experiment import Option, Outcome, Page, experiment
from latentbits import models

TIE = 1.5
"""Times as long that a machine's clock may be off."""
MOST = 4
"""Times as many data sets at most, where the interval of fewer could not tell."""
REPEATS = 3
"""Runs on one data set, by which the noise of the machine's clock is measured."""
SLOWER, WORSE = 2.0, 0.05
"""What must be told from chance: twice the time, and nats per row."""


class Sets(NamedTuple):
    """A method on several data sets."""

    excess: np.ndarray  # (num_sets,) nats per row above the truth
    log_seconds: np.ndarray  # (at most num_sets,) to 0.01 nats of the best
    rows_error: float = 0.0  # standard error of one excess that the rows which judge leave open


@experiment(
    "winner",
    "the winner of a comparison on further data sets: its excess and its time once more",
    result=Option(str, "manifest.json of `latentbits compare`", metavar="FILE"),
    model=Option(
        "latent_trait", "without --result: compare this", "bernoulli_product", choices=[*CARDS]
    ),
    example=Option("paper", "its data", "small", metavar="NAME"),
    methods=Option(str, "by default all that apply", "MAP", metavar="A,B,…"),
    budget=Option(20.0, "budget of each method", above=0.0, metavar="SECONDS"),
    data_sets=Option(5, "data sets to run on at first", 2, least=2, metavar="N"),
)
def winner(namespace: argparse.Namespace) -> Outcome:
    """Whether the excess and the time of the method that a comparison names first come again.

    It runs on further data sets of the same truth, beside the best of the comparison, from whose
    score its time is counted. If nothing changed, old and new data sets are draws of one
    population: both numbers have come again if their means differ by no more than a 95 % interval
    of the pooled variance allows, that of the time on a log scale. That of the excess is at least
    what the rows that judge one data set leave open, that of the time at least that of repeated
    runs on one data set, and its interval at least a factor of 1.5. While an interval could not
    tell twice the time or 0.05 nats per row, more data sets are run, up to four times as many;
    `decides` says whether it can now. Times are those of the machine.
    """
    said = _said(namespace)
    name, rows, about = said["model"], said["methods"], said["about"]
    winning = first(rows)
    if winning is None or rows[winning].get("excess") is None:
        raise InputError(f"the comparison of {name} names no method with an excess over the truth")
    best = next(x for x in rows if rows[x].get("best"))
    wanted = [winning] if best == winning else [winning, best]
    old = _sets(about["parts"], winning, best)
    parts: list[dict] = []
    number = 1000 * about["seed"] + len(about["parts"])
    which, budget = about["example"], about["limit"]
    noise = _noise(namespace, name, which, winning, budget, number)
    numbers: dict[str, Any] = {}
    while not numbers.get("decides") and len(parts) < MOST * namespace.data_sets:
        some = _compared(namespace, name, which, wanted, budget, number + len(parts))
        row = some.rows[winning]
        if row.get("seconds_to_score") is None:
            raise InputError(f"{winning} does not come near the best again: {row['reason']}")
        parts += some.about["parts"]
        numbers = come_again(old, _sets(parts, winning, best), noise)
    numbers = {"program": name, "winner": winning, **numbers}
    return Outcome(numbers, (8, 3.2), _figure, (numbers,))


def come_again(old: Sets, new: Sets, noise: float) -> dict[str, Any]:
    """Whether excess and time of new data sets are those of the old, by the rules of `winner`.

    :param noise: standard deviation of log seconds of equal runs.

    >>> old = Sets(np.array([0.46, 0.47]), np.log([0.09, 0.1]))
    >>> slow = Sets(np.array([0.47, 0.46, 0.45]), np.log([0.2, 0.19, 0.21]))
    >>> numbers = come_again(old, slow, 0.05)
    >>> numbers["excess"]["within"], numbers["seconds"]["within"], numbers["decides"]
    (True, False, True)
    """
    apart, errors = _interval(old.excess, new.excess, max(old.rows_error, new.rows_error))
    long, _ = _interval(old.log_seconds, new.log_seconds, noise)
    most_times = max(TIE, float(np.exp(long)))
    said, again = float(old.excess.mean()), float(new.excess.mean())
    times = [float(np.exp(x.log_seconds.mean())) for x in (old, new)]
    return {
        "data_sets": [len(old.excess), len(new.excess)],
        "excess": {
            "said": said, "said_error": errors[0], "again": again, "again_error": errors[1],
            "most_apart": apart, "within": abs(again - said) <= apart,
        },
        "seconds": {
            "said": times[0], "again": times[1], "most_times": most_times, "noise": noise,
            "within": max(times) <= most_times * min(times),
        },
        "decides": apart < WORSE and most_times < SLOWER,
    }  # fmt: skip


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
    on = partial(_on, namespace, name, which)
    one = lambda i, passing: on(passing or methods, budget, number, i)  # noqa: E731
    return combine(repeat(one, namespace.data_sets))


def _on(
    namespace: argparse.Namespace, name: str, which: str, methods: Any, budget: float, number: int,
    i: int,
) -> Comparison:  # fmt: skip
    made = example(name, which=which, number=number + i)
    return compare(
        getattr(models, name), made.values, methods, limit=budget, replicate=i,
        rng_key=random.key(namespace.seed), **known_of(name, which, number + i), **made.sizes,
    )  # fmt: skip


def _sets(parts: list[dict[str, Any]], name: str, best: str) -> Sets:
    """A method on all data sets on which it ran, its time on those where it came near the best."""
    some = [part[name] for part in parts if name in part]
    near = [part[name]["seconds_to_score"] for part in parts if name in part and best in part]
    errors = [x.get("excess_error") or 0.0 for x in some]
    return Sets(
        np.array([x["excess"] for x in some]), np.log([x for x in near if x is not None]),
        float(np.sqrt(np.mean(np.square(errors)))),
    )  # fmt: skip


def _noise(
    namespace: argparse.Namespace, name: str, which: str, method: str, budget: float, number: int
) -> float:
    """Standard deviation of log seconds of equal runs, the first left out: it compiles."""
    runs = [_on(namespace, name, which, [method], budget, number, 0) for _ in range(REPEATS + 1)]
    return float(np.std(np.log([x.rows[method]["seconds"] for x in runs[1:]]), ddof=1))


def _interval(
    old: np.ndarray, new: np.ndarray, least: float = 0.0
) -> tuple[float, tuple[float, float]]:
    """By how much two means of one population differ at most, in 95 of 100 cases; their errors.

    :param least: standard deviation of it that is known.

    >>> round(_interval(np.array([1.0, 3.0]), np.array([1.0, 3.0]))[0], 2)
    6.08
    """
    from scipy.stats import t

    freedom = max(len(old) + len(new) - 2, 1)
    squares = sum(((x - x.mean()) ** 2).sum() for x in (old, new))
    spread = max(float(np.sqrt(squares / freedom)), least)
    errors = spread / np.sqrt(len(old)), spread / np.sqrt(len(new))
    limit = t.ppf(0.975, freedom) * np.hypot(*errors)
    return float(limit), (float(errors[0]), float(errors[1]))


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
