"""One contender from its start to its row of the table: numbers by the same means for all.

Held-out rows are scored by log p(y_n | training rows), the mean over the contender's draws of the
marginal likelihood of `evaluation.evidence`; a point estimate is one draw. Diagnostics are read on
a scalar that knows no labels (the log joint) and, after all draws are brought to the last one, on
the parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

from ..baselines.pacing import BudgetError
from ..baselines.samplers import Adaptation, Advice, Chains, Draws
from ..evaluation.diagnostics import FEWEST_DRAWS, diagnose, pareto_k, thin
from ..evaluation.prediction import answer, reliability
from ..evaluation.standard_errors import undetermined
from ..evaluation.symmetry import align_to
from ..methods.discrete.truncated import TruncatedEM
from ..posterior.chains import MOST_ALIGNED, advise, chains
from ..reading.anatomy import ProgramError, inspect
from ..reading.arguments import rows_of
from ..reading.log_joint import log_shared
from ..reading.small_scales import at_floor, lost_digits
from ..running import memory
from ..running.algorithm import Algorithm
from ..running.contract import Starts, Stop
from ..running.memory import DoesNotFitError
from ..running.search import optima_of
from ..types import Arguments
from .checks import CLOSE, FINE, MISSED, RHAT_SCORE, Mark, Status
from .contenders import Contender, Limits
from .scoring import Field, Scores, log_mean, score

MOST_BEFORE, MOST_INEXACT = 16, 8
"""Draws that are scored at each time before the end, and where a row needs quadrature."""
PATH_ROWS = 1000
"""Fresh rows by which these are scored where a row needs quadrature."""
MOST_TIMES = 12
"""Points of a path."""
MOST_ASKED = 20
"""Draws by which single cells are predicted."""
MOST_WORK = 1e9
"""Terms of the information of a point estimate: a few seconds."""
LARGEST = 1e6
"""Parameters beyond: sums of such terms keep no tenth of a nat in float32."""
SHORTEST = 0.5
"""Share of the longest run so far for which there must be room: the search before it, half of a
budget, is what finds an optimum."""
MOST_RATIO = 0.95
"""Of two gains in turn: one that does not fall at all would go on for ever."""
REFUSALS: dict[type[Exception], Status] = {
    ProgramError: Status.DOES_NOT_APPLY,
    BudgetError: Status.OUT_OF_BUDGET,
    DoesNotFitError: Status.DOES_NOT_FIT,
}
"""Errors by which a method says that it has no result."""


class Judged(NamedTuple):
    """One contender's results."""

    row: dict[str, Any]  # numbers for the table
    draws: Draws
    observed: np.ndarray  # (num_train, num_features) the rows it learned from
    scores: Scores
    held_out: np.ndarray  # (num_test,) log predictive density of each held-out row
    path: np.ndarray  # (num_times,) mean of held-out log densities as of `clock`
    clock: np.ndarray
    reliability: dict[str, Any] | None
    scored_by: tuple[str, bool] = ("", False)  # the likelihood of a row: how, and whether exactly
    mask: np.ndarray | None = None  # cells of `observed` that are there; None: all


class Ended(NamedTuple):
    """How a method ended."""

    row: dict[str, Any]
    judged: Judged | None = None  # what is behind the row
    chains: Draws | Chains | None = None  # where a sampler stopped that is not yet there


class Watch:
    """Asks the draws of a sampler, as their number grows, what they need."""

    def __init__(self, field: Field):
        self.field = field
        self.seconds: float | None = None  # from which on intervals could be taken
        self.scores: Scores | None = None  # of the last draws, if they were enough for that

    def __call__(self, draws: Draws, adaptation: Adaptation) -> Advice:
        row = chains(self.field.model, self.field.train_arguments, draws)
        self.scores, advice = None, advise(row, draws, adaptation)
        if advice is not Advice.ENOUGH:
            self.seconds = None
            return advice
        self.seconds = draws.seconds if self.seconds is None else self.seconds
        self.scores = score(self.field.judges, draws)
        known = self.scores.test_step > 1 or self.scores.mean_error() <= FINE
        return Advice.ENOUGH if known else Advice.GO_ON


def run(
    field: Field, contender: Contender, key: Any, limits: Limits,
    resume: Draws | Chains | None = None,
) -> Ended:  # fmt: skip
    """One method from start to row. Whatever goes wrong is a row that says so.

    :param resume: where a sampler stopped before.
    """
    began = time.perf_counter()
    memory.start_peak()
    watch = Watch(field) if contender.kind == "sampler" and limits.num_draws is None else None
    try:
        draws, engine = rounds(field, contender, key, limits, watch, resume)
        peak = memory.peak()
        judged = judge(field, contender, draws, engine, watch)
    except tuple(REFUSALS) as error:
        status = next(x for kind, x in REFUSALS.items() if isinstance(error, kind))
        row = no_row(status, str(error))
        row |= {"seconds": limits.seconds} if status is Status.OUT_OF_BUDGET else {}
        return Ended(row, None, getattr(error, "chains", None))
    except Exception as error:
        seconds = time.perf_counter() - began
        return Ended(no_row(Status.FAILED, in_one_line(error, 300), f" after {seconds:.0f} s"))
    judged.row["peak_memory"] = peak
    largest = max(float(np.abs(x).max()) for x in draws.params.values())
    if largest > LARGEST:
        words = f"parameters as large as {largest:.0e}, at which float32 loses the likelihood"
        return Ended(no_row(Status.DIVERGED, words))
    bad = int((~np.isfinite(judged.held_out)).sum())
    if bad:
        judged.row["status"] = Status.DIVERGED.value
        judged.row["reason"] = f"{bad} held-out rows have no finite likelihood"
    late = draws.chains is not None and draws.stop is Stop.BUDGET
    chains = draws._replace(snapshots={}) if late else None
    return Ended(judged.row, judged._replace(draws=draws._replace(chains=None)), chains)


def no_row(status: Status, why: str, when: str = "") -> dict[str, Any]:
    """The row of a method without results.

    >>> no_row(Status.OUT_OF_BUDGET, "no draw was made")["reason"]
    'not yet: no draw was made'
    """
    late = status is Status.OUT_OF_BUDGET
    answer = (Mark.NOT_YET if late else Mark.NONE).name
    words = Mark.NOT_YET.value if late else f"{status.value}{when}"
    return {"status": status.value, "reason": f"{words}: {why}", "score": answer,
            "uncertainty": answer}  # fmt: skip


def in_one_line(error: Exception, most: int = 200) -> str:
    """An error with its kind, as one line of so many characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]


def rounds(
    field: Field, contender: Contender, key: Any, limits: Limits, watch: Watch | None = None,
    resume: Draws | Chains | None = None,
) -> tuple[Draws, Any]:  # fmt: skip
    """A run; of a point estimate whose starts disagree, more from others until the limit.

    Of two starts that end apart nothing says which one another would join; and where a method has
    few, whether they agree is chance, and a verdict with it.
    """
    more = {} if watch is None else {"until": watch, "resume": resume}
    draws, engine = contender.run(field.model, key, field.train_arguments, limits, **more)
    longest, number = draws.seconds, 0
    while contender.kind == "point" and limits.seconds is not None:
        if starts_of(draws.starts, field.judges.num_train).get("starts_near", 2) > 1:
            break
        room, number = limits.seconds - draws.seconds, number + 1
        if room < SHORTEST * longest:
            return draws._replace(stop=Stop.BUDGET), engine
        other, again = contender.run(
            field.model, random.fold_in(key, number), field.train_arguments,
            limits._replace(seconds=room),
        )  # fmt: skip
        longest = max(longest, other.seconds)
        worse, starts = other, np.concatenate([draws.starts, other.starts])
        if np.fmin.reduce(other.starts) < np.fmin.reduce(draws.starts):
            draws, worse, engine = other, draws, again
        # The better of the two, as if the other had come first.
        draws = draws._replace(
            clock=draws.clock + worse.seconds, seconds=draws.seconds + worse.seconds,
            compile_seconds=draws.compile_seconds + worse.compile_seconds, starts=starts,
        )  # fmt: skip
    return draws, engine


def judge(
    field: Field, contender: Contender, draws: Draws, engine: Algorithm | None,
    watch: Watch | None = None,
) -> Judged:  # fmt: skip
    """All numbers of a contender that is done, but those that need the others."""
    model, arguments, num_rows = field.model, field.train_arguments, field.judges.num_train
    scores = None if watch is None else watch.scores
    scores = score(field.judges, draws) if scores is None else scores
    held_out = scores.held_out
    row: dict[str, Any] = {
        "status": Status.of(draws.stop).value,
        "bespoke": contender.bespoke,
        "kind": contender.kind,
        "objective": contender.objective,
        "prediction": "plug-in" if contender.kind == "point" else "averaged",
        "reason": draws.reason,
        "compile_seconds": draws.compile_seconds,
        "seconds": draws.seconds,
        "held_out": float(held_out.mean()),
        "held_out_error": _standard_error(held_out),
        "score_error": scores.mean_error(),
        "thinned": scores.test_step > 1,  # scored by some of its draws
        "estimator_error": scores.error,
        "num_scored": scores.test[..., 0].size,
        "train": float(log_mean(scores.train).mean()),
        "seconds_to_uncertainty": draws.seconds if watch is None else watch.seconds,
    }
    if contender.kind == "point":
        row |= _of_a_point(field, contender, draws, engine)
    else:
        row |= diagnosis(contender.kind, draws, model, arguments, num_rows)
    if field.truth is not None:
        aligned = align_to(model, thin(draws.params, MOST_ALIGNED), field.truth, arguments)
        row["recovery"] = recovery({x: v.mean((0, 1)) for x, v in aligned.items()}, field.truth)
    if field.true_scores is not None:
        beyond = field.true_scores - held_out
        row["excess"] = float(beyond.mean())
        row["excess_error"] = float(np.hypot(_standard_error(beyond), row["score_error"]))
    cells = None
    if field.cells is not None and contender.kind != "point":  # which claims no uncertainty
        some = thin(draws.params, MOST_ASKED)
        flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in some.items()}
        cells = reliability(answer(field.cells, flat), field.bits)
        row |= {f"calibration_{x}": cells[x] for x in ("error", "expected")}
    if contender.kind == "sampler":
        path, clock, errors = scores.path(draws.clock, MOST_TIMES)
        row["row_error"] = float(scores.row_errors().mean())
        row["sound_from"] = _sound_from(draws, clock, errors)
    else:
        path, clock = _path(field, draws, held_out)
    holes = arguments[1].get("mask")
    return Judged(
        row, draws, np.asarray(arguments[0][0]), scores.some_rows(), held_out, path, clock, cells,
        (field.judges.likelihood.how, field.judges.likelihood.exact),
        None if holes is None else np.asarray(holes),
    )  # fmt: skip


def _sound_from(draws: Draws, clock: np.ndarray, errors: np.ndarray) -> float | None:
    """The time from which on a sampler's score is known to `FINE`, R̂ being at most 1.05."""
    count = np.searchsorted(draws.clock, clock) + 1
    lp = draws.stats["lp"]
    rhat = [
        diagnose({"lp": lp[:, :n]})["lp"]["rhat"] if n >= FEWEST_DRAWS else np.inf for n in count
    ]
    return arrival((errors <= FINE) & (np.array(rhat) <= RHAT_SCORE), clock)


def arrival(near: np.ndarray, clock: np.ndarray) -> float | None:
    """The time from which on a path is near; to come and leave again is not to arrive.

    >>> arrival(np.array([True, False, True, True]), np.arange(4.0))
    2.0
    """
    far = np.flatnonzero(~near)
    since = far[-1] + 1 if len(far) else 0
    return float(clock[since]) if since < len(near) else None


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _of_a_point(
    field: Field, contender: Contender, draws: Draws, engine: Algorithm | None
) -> dict[str, Any]:
    """What the checks of a point estimate ask for."""
    model, arguments, num_rows = field.model, field.train_arguments, field.judges.num_train
    point = {x: v[0, 0] for x, v in draws.params.items()}
    anatomy = inspect(model, *arguments)
    rows = rows_of(anatomy, *arguments)
    prior = jax.jit(lambda params: log_shared(model, anatomy, params, rows))(point)
    row = {
        **progress(draws, num_rows),
        "posterior_mode": contender.posterior_mode,
        "overfit": sum(np.size(x) for x in point.values()) / num_rows,
        "log_prior": float(prior) / num_rows,  # of the parameters, for each training row
    }
    found = {"floor": at_floor(model, point, *arguments),
             "lost_digits": lost_digits(model, point, *arguments)}  # fmt: skip
    row |= {x: value for x, value in found.items() if value is not None}
    if not contender.posterior_mode:
        row |= information(field, point)
    if engine is not None:
        # At one place, and in one step: a solution of equations.
        row["start_free"] = engine.starts is Starts.ONE and len(draws.losses) == 1
        row |= _quality(engine, point, arguments)
    return row


def progress(draws: Draws, num_rows: int) -> dict[str, Any]:
    """How a point method ended: what was left to gain, and what its starts agree on."""
    left = remaining(draws.losses / num_rows)
    return starts_of(draws.starts, num_rows) | ({} if left is None else {"remaining": left})


def starts_of(losses: np.ndarray, num_rows: int) -> dict[str, Any]:
    """Where the starts of a run ended, and how many at the best.

    >>> starts_of(np.array([300.0, 290.0, 290.5]), 100)["starts_near"]
    2
    """
    if len(losses) < 2:
        return {"starts": 1}
    losses = np.where(np.isfinite(losses), losses, np.inf)  # one that diverged is behind all
    behind = np.sort(losses - losses.min()) / num_rows
    return {
        "starts": len(losses),
        "starts_near": int((behind <= CLOSE).sum()),
        "starts_behind": float(behind[1]),
        "starts_another": optima_of(np.tile(losses, (3, 1))).better,
    }


def remaining(losses: np.ndarray) -> float | None:
    """What a loss would still lose if it went on as in its last two tenths; None of a few steps.

    The gains of the two are taken for terms of a geometric series (Aitken).

    >>> round(remaining(1.0 + 0.9 ** np.arange(40)), 4), round(0.9**39, 4)
    (0.0164, 0.0164)
    >>> remaining(np.full(9, 2.0))
    0.0
    """
    width = max(1, len(losses) // 10)
    if len(losses) <= 2 * width:
        return None
    first, second, third = (float(losses[i]) for i in (-1 - 2 * width, -1 - width, -1))
    before, last = first - second, second - third
    if last <= 0:
        return abs(last)  # it no longer falls: what it still does is noise
    ratio = min(last / before, MOST_RATIO) if before > 0 else MOST_RATIO
    return last * ratio / (1.0 - ratio)


def _path(field: Field, draws: Draws, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The held-out score as it was at each time, of what is no sampler; the last by all draws.

    Where a row needs quadrature the first of the fresh rows are enough: what is read off a path is
    how far it is from its end.
    """
    times = np.unique(np.geomspace(1, len(draws.clock), MOST_TIMES).astype(int)) - 1
    judges, exact = field.judges, field.judges.likelihood.exact
    judges = judges.first(PATH_ROWS) if judges.fresh and not exact else judges
    few = {
        x: v[times[:-1]][:, : MOST_BEFORE if exact else MOST_INEXACT]
        for x, v in draws.snapshots.items()
    }
    each = judges.test(few)[0].astype(np.float64) if len(times) > 1 else np.empty((0, 1, 1))
    path = [float(log_mean(one[None]).mean()) for one in each]
    return np.array([*path, float(held_out[: judges.num_test].mean())]), draws.clock[times]


def diagnosis(
    kind: str, draws: Draws, model: Callable, arguments: Arguments, num_rows: int
) -> dict[str, Any]:
    """What `checks` asks of the draws of a sampler, or of a guide, whatever they are used for."""
    if kind == "sampler":
        return chains(model, arguments, draws)
    if draws.weighed is not None:
        return starts_of(draws.starts, num_rows) | draws.weighed
    k = pareto_k(draws.stats["log_p"] - draws.stats["log_q"])
    return starts_of(draws.starts, num_rows) | {"pareto_k": k}


def _quality(engine: Algorithm, params: Any, arguments: Arguments) -> dict[str, Any]:
    """What an approximation says of itself: its gap to the evidence, or the mass it misses."""
    if not hasattr(engine, "posterior"):
        return {}
    args, kwargs = arguments
    try:
        posterior = engine.posterior(params, *args, **kwargs)
        if isinstance(engine, TruncatedEM) and np.any(posterior.missed):
            with suppress(ProgramError):  # of a program that has no proof
                posterior = engine.posterior(params, *args, width=MISSED, **kwargs)
    except (ValueError, TypeError, NotImplementedError) as error:
        # The parameters are judged all the same; what the method cannot say is said in the row.
        return {"no_quality": in_one_line(error)}
    found = {"bound_gap": getattr(posterior, "gap", None),
             "missed_mass": getattr(posterior, "missed", None)}  # fmt: skip
    proved = getattr(posterior, "missed_between", None)
    if proved is not None:
        found["missed_mass"], found["missed_most"] = proved.T
    return {x: float(np.mean(np.asarray(v))) for x, v in found.items() if v is not None}


def information(field: Field, params: Any) -> dict[str, Any]:
    """Whether the likelihood of the training rows falls in every direction; or why it is not known.

    Where it does not, the parameters are no maximum, or one of many.
    """
    try:
        args, kwargs = field.train_arguments
        return {"undetermined": undetermined(field.model, params, args, kwargs, MOST_WORK)}
    except (ValueError, TypeError, NotImplementedError) as error:
        return {"information_unknown": " ".join(str(error).split())[:200]}


def recovery(means: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """Correlation of mean parameters with the true ones, symmetries taken out.

    >>> round(recovery({"a": np.arange(3.0), "b": np.zeros(())}, {"a": 1.0 + np.arange(3)}), 6)
    1.0
    """
    sites = [x for x, value in truth.items() if np.size(value) > 1]
    mean, true = (np.concatenate([np.ravel(of[x]) for x in sites]) for of in (means, truth))
    return float(np.corrcoef(mean, true)[0, 1])
