"""Whether a result can be trusted, by rules that it can fail.

sampler     R̂ of the log joint ≤ 1.01, of the parameters after relabelling ≤ 1.05, at least 400
            effective draws, no divergence, Monte-Carlo error of its score ≤ 0.01 nats per row;
            at least 4 draws of each chain, below which R̂ is not defined
guide       Pareto k̂ ≤ min(1 − 1 / log10 S, 0.7) for S draws (Vehtari et al. 2024); its two starts
            within 0.01 nats per row of each other: k̂ says nothing of a mode where no draw is
point       at most 0.01 nats per row left to gain when it stopped; at least two of its starts
            within 0.01 nats per row of the best of them, more being made while they are not and
            the budget has room for them; its bound within 0.1 nats per row of the
            evidence, on either side; at most 1 % of the posterior mass found outside its set (a
            lower estimate); its likelihood of the training rows at most 0.1 nats per row, or p / n
            with p parameters and n rows, which is twice as far as the truth itself lies below the
            maximum, below that of any other point estimate, of a posterior mode its posterior
            density; no scale of the noise at its floor; information of the likelihood that is
            positive definite, where that is computed (at most 3 continuous latents, small tables;
            the verdict says where not). With one start it is neither trusted nor distrusted, unless
            it has none to choose, as a solution of equations.
not finished  the budget ended it, and all that its checks find wrong is what more time mends: of a
            sampler too few draws, R̂ and the error of its score; of a point estimate what is left to
            gain, starts that disagree, and what it is below another's optimum while it still gains
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from ..evaluation.standard_errors import undetermined_words
from ..numerics.annealed import good_k
from ..running.contract import Stop

CLOSE = 0.01
"""Nats per row."""
RHAT, RHAT_PARAMETERS, ESS, GAP, MISSED = 1.01, 1.05, 400.0, 0.1, 0.01
FEWEST_DRAWS = 4
"""Of each chain: half of it has two, of which a variance can be taken (ArviZ asks for as many)."""
RULES = __doc__.split("\n\n", 1)[1]

Row = dict[str, Any]
"""What is known of one method: numbers and words by name."""


def _above(limit: float | Callable[[Row], float]) -> Callable[[Any, Row], bool]:
    """Whether a value is above a limit, or no number."""
    return lambda value, row: not value <= (limit(row) if callable(limit) else limit)


def _overfit(row: Row) -> float:
    """How far below the maximum the truth itself may lie, in nats per row."""
    return max(GAP, row.get("overfit", 0.0))


CHECKS: dict[str, tuple[str, Callable[[Any, Row], bool]]] = {
    "few_draws": ("too few draws for R̂ and an effective sample size: {few_draws} per chain",
                  lambda *_: True),
    "rhat": ("R̂ of the log joint {rhat:.3f}", _above(RHAT)),
    "rhat_parameters": ("R̂ of the parameters {rhat_parameters:.2f} after relabelling",
                        _above(RHAT_PARAMETERS)),
    "divergences": ("{divergences:.0f} divergences", _above(0)),
    "score_error": ("its score is known to ± {score_error:.3f} nats per row only", _above(CLOSE)),
    "pareto_k": ("Pareto k̂ {pareto_k:.2f}",
                 _above(lambda row: good_k(row.get("num_scored", 1000)))),
    "missed_mass": ("at least {missed_mass:.1%} of the posterior mass missed", _above(MISSED)),
    "remaining": ("stopped with about {remaining:.3f} nats per row left to gain", _above(CLOSE)),
    "train_behind": ("{train_behind:.2f} nats per row below the likelihood that another found on "
                     "the training rows", _above(_overfit)),
    "posterior_behind": ("{posterior_behind:.2f} nats per row below the posterior density that "
                         "another found", _above(_overfit)),
    "bound_gap": ("a bound {gap:.2f} nats per row {side} the evidence",
                  lambda gap, _: not abs(gap) <= GAP),
    "undetermined": ("{directions}", lambda count, _: bool(count)),
    "floor": ("{floor}", lambda words, _: bool(words)),
    "ess_bulk": ("{ess_bulk:.0f} effective draws", lambda draws, _: not draws >= ESS),
    "starts_near": ("1 of {starts} starts ended there, the next {starts_behind:.3f} nats per row "
                    "behind", lambda near, _: near == 1),
}  # fmt: skip
"""Entry of a row -> what is wrong with it in words, and when it is; an entry that a row has not, or
that is None, is not checked."""


class Status(enum.Enum):
    """How a contender ended."""

    DONE = "done"
    OUT_OF_BUDGET = "out of budget"
    FAILED = "failed"
    DIVERGED = "diverged"
    DOES_NOT_APPLY = "does not apply"
    DOES_NOT_FIT = "does not fit"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, stop: Stop) -> Status:
        """That of a run which ended so."""
        return cls.OUT_OF_BUDGET if stop is Stop.BUDGET else cls.DONE


class Standing(enum.Enum):
    """What the checks say of a result; the value stands in its sentence."""

    PASSES = "its checks pass"
    ONE_START = "one start, so nothing shows that another would end there too"
    UNCHECKED = "nothing about it can be checked"
    NOT_FINISHED = "not finished when the budget ended"
    FAILS = "fails its checks"

    @property
    def doubted(self) -> bool:
        """Whether a check found something wrong: no result to rely on."""
        return self in (Standing.NOT_FINISHED, Standing.FAILS)


def problems(row: Row) -> dict[str, str]:
    """What the checks of a result find wrong, in words, by the entry of the row that shows it.

    >>> problems({"kind": "point", "bound_gap": -5.0})
    {'bound_gap': 'a bound 5.00 nats per row above the evidence'}
    """
    gap = row.get("bound_gap") or 0.0
    facts = {**row, "gap": abs(gap), "side": "above" if gap < 0 else "below"}
    facts["directions"] = undetermined_words(row["undetermined"]) if row.get("undetermined") else ""
    return {
        entry: words.format_map(facts)
        for entry, (words, wrong) in CHECKS.items()
        if row.get(entry) is not None and wrong(row[entry], row)
    }


def doubts(row: Row) -> list[str]:
    """The same without the entries.

    >>> doubts({"kind": "sampler", "few_draws": 3})
    ['too few draws for R̂ and an effective sample size: 3 per chain']
    """
    return list(problems(row).values())


def in_words(row: Row, stands: Standing) -> str:
    """What the checks say, and what they do not.

    >>> in_words({"information_unknown": "too large a table"}, Standing.PASSES)
    'its checks pass, but its information was not checked'
    >>> in_words({"kind": "variational", "pareto_k": 1.2}, Standing.FAILS)
    'fails its checks (Pareto k̂ 1.20)'
    """
    if stands.doubted:
        return f"{stands.value} ({', '.join(doubts(row))})"
    unknown = stands is Standing.PASSES and "information_unknown" in row
    return stands.value + (", but its information was not checked" if unknown else "")


def _mendable(row: Row) -> set[str]:
    """What more time would mend of a result that the budget ended; of another, nothing."""
    if row.get("status") != Status.OUT_OF_BUDGET.value:
        return set()
    if row["kind"] == "sampler":
        return {"few_draws", "rhat", "rhat_parameters", "ess_bulk", "score_error"}
    if row["kind"] != "point":
        return set()
    left = row.get("remaining")
    arrived = left is not None and left <= CLOSE  # at an optimum, which may be a worse one
    behind = set() if arrived else {"train_behind", "posterior_behind"}
    return {"remaining", "starts_near"} | behind


def standing(row: Row) -> Standing:
    """What the checks say of a result.

    >>> standing({"kind": "point", "starts": 4, "starts_near": 3}).name
    'PASSES'
    >>> late = {"kind": "sampler", "status": "out of budget", "rhat": 1.03}
    >>> standing(late).name, standing({**late, "divergences": 2}).name
    ('NOT_FINISHED', 'FAILS')
    """
    wrong = set(problems(row))
    if wrong:
        return Standing.NOT_FINISHED if wrong <= _mendable(row) else Standing.FAILS
    if row["kind"] == "point":
        several = row.get("starts", 1) > 1 or row.get("start_free", False)
        return Standing.PASSES if several else Standing.ONE_START
    needed = "rhat" if row["kind"] == "sampler" else "pareto_k"
    return Standing.UNCHECKED if row.get(needed) is None else Standing.PASSES
