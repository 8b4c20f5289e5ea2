"""What the draws of a sampler show, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..baselines.samplers import HIGH_ACCEPT, Adaptation, Advice, Draws
from ..evaluation.diagnostics import (
    DIVERGENT,
    ESS,
    FEWEST_DRAWS,
    RHAT,
    RHAT_PARAMETERS,
    diagnose,
    thin,
)
from ..evaluation.symmetry import align_to
from ..types import Arguments

MOST_ALIGNED = 400
"""Draws whose parameters are brought together for R̂."""
WARMUPS = 2
"""Times the draws of its warm-up after which chains that disagree warm up longer."""
MANY_DIVERGENCES = 4
"""So many show that steps are too long; of fewer, more draws tell."""


def chains(
    model: Callable, arguments: Arguments, draws: Draws, most: int = MOST_ALIGNED
) -> dict[str, Any]:
    """R̂, effective draws and divergences of a sampler, by at most so many draws of parameters."""
    count = int(draws.stats["diverging"].sum()) if "diverging" in draws.stats else None
    facts = {"divergences": count, "num_draws": draws.stats["lp"].size}
    if draws.stats["lp"].shape[1] < FEWEST_DRAWS:
        return {"few_draws": draws.stats["lp"].shape[1], **facts}
    invariant = diagnose({"scalar": draws.stats["lp"]})["scalar"]
    last = {x: v[-1, -1] for x, v in draws.params.items()}
    each = diagnose(align_to(model, thin(draws.params, most), last, arguments))
    return {
        **invariant,
        "rhat_parameters": max(x["rhat"] for x in each.values()),
        "ess_per_second": invariant["ess_bulk"] / draws.seconds,
        **facts,
    }


SOUND: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "few_draws": lambda *_: False,
    "rhat": lambda rhat, _: rhat <= RHAT,
    "rhat_parameters": lambda rhat, _: rhat <= RHAT_PARAMETERS,
    "ess_bulk": lambda count, _: count >= ESS,
    "ess_tail": lambda count, _: count >= ESS,
    "divergences": lambda count, row: not count or count < DIVERGENT * row.get("num_draws", 0),
}
"""Entry of what `chains` found -> whether intervals can be taken with this value, and the rest."""


def faults(row: dict[str, Any]) -> set[str]:
    """Entries by which no interval can be taken yet; one that is lacking is not asked.

    >>> good = {"rhat": 1.0, "rhat_parameters": 1.0, "ess_bulk": 500.0, "ess_tail": 450.0}
    >>> faults({**good, "ess_bulk": 300.0, "divergences": 0, "num_draws": 1000})
    {'ess_bulk'}
    """
    there = {entry: row[entry] for entry in SOUND if row.get(entry) is not None}
    return {entry for entry, value in there.items() if not SOUND[entry](value, row)}


def advise(row: dict[str, Any], draws: Draws, adaptation: Adaptation) -> Advice:
    """What draws of which `chains` found this ask for."""
    found, again = faults(row), adaptation.target_accept < HIGH_ACCEPT
    if "divergences" in found and again and row["divergences"] >= MANY_DIVERGENCES:
        return Advice.SHORTER_STEPS
    if not found or (found == {"divergences"} and not again):
        return Advice.ENOUGH
    long = len(draws.clock) >= WARMUPS * adaptation.num_warmup
    apart = long and row.get("rhat", 0.0) > RHAT_PARAMETERS
    return Advice.LONGER_WARMUP if apart else Advice.GO_ON
