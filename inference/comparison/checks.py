"""Whether a result can be trusted: two questions, a mark for each.

score         how well it predicts. Arrived: its distance from the best, row by row, is at most 0.01
              nats per row at the upper end of a 95 % interval, which counts the Monte-Carlo errors
              of both; where the rows that judge leave more than 0.0025 open (the median of the
              errors), it is at most twice that. A sampler's own error by all draws is at most
              0.0025 then, R̂ of its log joint at most 1.05; of several starts two ended within 0.01
              nats per row of the best; at most 0.01 are left to gain
uncertainty   whether intervals can be taken from it. Of a sampler: R̂ of the log joint at most 1.01,
              of the parameters after relabelling 1.05, at least 400 effective draws in bulk and
              tail, divergences in fewer than 0.1 % of the draws since the last adaptation, which
              is repeated once with shorter steps. Of a guide, and of draws about a fit: Pareto k̂
              ≤ min(1 − 1 / log10 S, 0.7) for S draws (Vehtari et al. 2024), and two starts that
              agree. Of all a score that arrived: R̂ and k̂ say nothing of a mode where no draw is.
              A point estimate claims none
best          the highest held-out score among those that fall short of the score in nothing but
              their distance
not yet       the limit ended it: a censored time, "> 120 s". A divergence is no matter of time
wrong         it ended by itself and falls short
remarks       said beside the marks: a bound more than 0.1 nats per row from the evidence, more than
              1 % of the posterior mass missed, or up to more than 2 % where that is proved, an
              optimum more than max(0.1, p / n) nats per row below another's (p parameters, n
              rows), a noise scale at its floor, directions that the data do not determine
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from ..evaluation.diagnostics import RHAT
from ..evaluation.standard_errors import undetermined_words
from ..numerics.annealed import good_k
from ..posterior.chains import SOUND
from ..posterior.laplace import SHARE
from ..running.contract import Stop

CLOSE, FINE = 0.01, 0.0025
"""Nats per row: what is near, and what an error may leave open."""
RHAT_SCORE, GAP, MISSED = 1.05, 0.1, 0.01
RULES = __doc__.split("\n\n", 1)[1]

Row = dict[str, Any]
"""What is known of one method: numbers and words by name."""
Rows = dict[str, Row]
"""Method -> the same."""
Check = tuple[str, str, Callable[[Any, Row], bool]]
"""Entry of a row, what is wrong with it in words, and when it is; an entry that a row has not, or
that is None, is not checked."""


class Status(enum.Enum):
    """How a contender ended."""

    DONE = "done"
    OUT_OF_BUDGET = "ended by the limit"
    FAILED = "failed"
    DIVERGED = "diverged"
    DOES_NOT_APPLY = "does not apply"
    DOES_NOT_FIT = "does not fit"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, stop: Stop) -> Status:
        """That of a run which ended so."""
        return cls.OUT_OF_BUDGET if stop is Stop.BUDGET else cls.DONE


class Mark(enum.Enum):
    """The answer to one question about a result."""

    ARRIVED = "arrived"
    NOT_YET = "not yet"
    WRONG = "wrong"
    NONE = "none"


def _above(limit: float | Callable[[Row], float]) -> Callable[[Any, Row], bool]:
    """Whether a value is above a limit, or no number."""
    return lambda value, row: not value <= (limit(row) if callable(limit) else limit)


def _overfit(row: Row) -> float:
    """How far below the maximum the truth itself may lie, in nats per row."""
    return max(GAP, row.get("overfit", 0.0))


def _of_chains(entry: str, words: str) -> Check:
    """A check of `posterior.chains`."""
    return entry, words, lambda value, row: not SOUND[entry](value, row)


FEW: Check = ("few_draws", "{few_draws} draws a chain, too few for R̂", lambda *_: True)
STARTS: Check = (
    "starts_near", "1 of {starts} starts ended there, the next {starts_behind:.3f} nats per row "
    "behind", lambda near, _: near == 1,
)  # fmt: skip
SCORE: tuple[Check, ...] = (
    FEW, ("rhat", f"R̂ of the log joint {{rhat:.3f}} ({RHAT_SCORE:g} wanted)", _above(RHAT_SCORE)),
    STARTS,
    ("score_error", "its score is known to ± {score_error:.4f} only",
     lambda error, row: not (error <= FINE or row.get("thinned"))),
    ("remaining", "about {remaining:.3f} nats per row left to gain", _above(CLOSE)),
)  # fmt: skip
DISTANCE: Check = (
    "behind", "{behind:.3f} ± {behind_error:.3f} nats per row behind the best",
    lambda behind, row: not behind <= row["allowance"],
)  # fmt: skip
UNCERTAINTY: dict[str, tuple[Check, ...]] = {
    "point": (),
    "sampler": (
        FEW, _of_chains("rhat", f"R̂ of the log joint {{rhat:.3f}} ({RHAT:g} wanted)"),
        _of_chains("rhat_parameters", "R̂ {rhat_parameters:.2f} of the parameters"),
        _of_chains("ess_bulk", "{ess_bulk:.0f} of 400 effective draws"),
        _of_chains("ess_tail", "{ess_tail:.0f} of 400 in the tails"),
        _of_chains("divergences", "{divergences:.0f} divergences"),
    ),
    "variational": (
        ("pareto_k", "Pareto k̂ {pareto_k:.2f}",
         _above(lambda row: good_k(int(row.get("num_weighed") or row.get("num_scored") or 1000)))),
        ("effective", "{effective:.0f} effective draws of {num_weighed}",
         lambda count, row: not count >= SHARE * row["num_weighed"]),
        STARTS,
    ),
}  # fmt: skip
REMARKS: tuple[Check, ...] = (
    ("missed_mass", "at least {missed_mass:.1%} of the posterior mass missed", _above(MISSED)),
    ("missed_most", "at most {missed_most:.1%} of the posterior mass missed, by proof",
     _above(2 * MISSED)),
    ("train_behind", "its likelihood of the training rows is {train_behind:.2f} nats per row below "
     "another's", _above(_overfit)),
    ("posterior_behind", "its posterior density is {posterior_behind:.2f} nats per row below "
     "another's", _above(_overfit)),
    ("bound_gap", "a bound {gap:.2f} nats per row {side} the evidence",
     lambda gap, _: not abs(gap) <= GAP),
    ("undetermined", "{directions}", lambda count, _: bool(count)),
    ("floor", "{floor}", lambda words, _: bool(words)),
)  # fmt: skip


def allowance(error: float, rows_error: float) -> float:
    """How far behind the best a score may be that is known to ± `error`.

    :param rows_error: what the rows that judge leave open of the distance between two methods.

    >>> [round(allowance(x, 0.002), 4) for x in (0.0, 0.001, 0.02)], allowance(0.02, 0.01)
    ([0.01, 0.008, -0.03], 0.02)
    """
    return max(CLOSE - 2 * error, 2 * rows_error if rows_error > FINE else -np.inf)


def wrong(row: Row, checks: tuple[Check, ...]) -> dict[str, str]:
    """What is wrong in words, by the entry of the row that shows it.

    >>> wrong({"bound_gap": -5.0}, REMARKS)
    {'bound_gap': 'a bound 5.00 nats per row above the evidence'}
    """
    gap = row.get("bound_gap") or 0.0
    facts = {**row, "gap": abs(gap), "side": "above" if gap < 0 else "below"}
    facts["directions"] = undetermined_words(row["undetermined"]) if row.get("undetermined") else ""
    return {
        entry: words.format_map(facts)
        for entry, words, is_wrong in checks
        if row.get(entry) is not None and is_wrong(row[entry], row)
    }


def mark(row: Row, found: dict[str, str]) -> Mark:
    """The mark of a result of which this is wrong.

    >>> late = {"status": "ended by the limit"}
    >>> mark(late, {"rhat": "R̂ 1.03"}).value, mark(late, {"divergences": "3"}).value
    ('not yet', 'wrong')
    """
    if not found:
        return Mark.ARRIVED
    late = row.get("status") == Status.OUT_OF_BUDGET.value and "divergences" not in found
    return Mark.NOT_YET if late else Mark.WRONG


def uncertainty(row: Row) -> tuple[Mark, list[str]]:
    """Whether intervals can be taken from a result, and what is wrong.

    >>> uncertainty({"kind": "sampler", "few_draws": 3})
    (<Mark.WRONG: 'wrong'>, ['3 draws a chain, too few for R̂'])
    >>> uncertainty({"kind": "point"})[0].value
    'none'
    """
    if row["kind"] == "point":
        return Mark.NONE, []
    found = wrong(row, UNCERTAINTY[row["kind"]])
    return mark(row, found), list(found.values())
