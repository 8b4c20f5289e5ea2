"""What is asked of one contender once it is done: numbers by the same means for all.

Held-out rows are scored by log p(y_n | training rows), the mean over the contender's draws of the
marginal likelihood of `evaluation.evidence`; a point estimate is one draw. Diagnostics are read on
a scalar that knows no labels (the log joint) and, after all draws are brought to the last one, on
the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from ..baselines.samplers import Draws
from ..evaluation.prediction import Asked, answer, reliability
from ..evaluation.standard_errors import undetermined
from ..evaluation.symmetry import align
from ..reading.anatomy import inspect
from ..reading.arguments import rows_of
from ..reading.log_joint import log_shared
from ..reading.small_scales import at_floor, lost_digits
from ..running.algorithm import Algorithm
from ..running.contract import Starts
from ..running.search import optima_of
from ..types import Arguments
from .checks import CLOSE, FEWEST_DRAWS, Status
from .contenders import Contender
from .diagnostics import diagnose, pareto_k
from .scoring import Judges, Scores, path_of_draws, score, thin

MOST_ALIGNED = 400
"""Draws whose parameters are brought together for R̂ and recovery."""
MOST_ON_THE_WAY, MOST_INEXACT = 16, 8
"""Draws that are scored at each time before the end, and where a row needs quadrature."""
MOST_TIMES = 12
"""Points of a path."""
MOST_ASKED = 20
"""Draws by which single cells are predicted."""


MOST_WORK = 1e9
"""Terms of the information of a point estimate: a few seconds."""
SMALL = 1 << 16
"""Cells of a table below which it takes less to run a thing than to compile it well."""


class Field(NamedTuple):
    """What all contenders share."""

    model: Callable
    judges: Judges
    train_arguments: tuple[tuple, dict[str, Any]]
    truth: dict[str, np.ndarray] | None
    cells: Asked | None  # some held-out cells to predict, where all are bits
    bits: np.ndarray  # what they turned out to be
    true_scores: np.ndarray | None = None  # (num_test,) under the true parameters


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


def judge(field: Field, contender: Contender, draws: Draws, engine: Algorithm | None) -> Judged:
    """All numbers of a contender that is done, but those that need the others."""
    scores = score(field.judges, draws)
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
        "held_out_error": float(held_out.std(ddof=1) / np.sqrt(len(held_out))),
        "score_error": scores.mean_error(),
        "estimator_error": scores.error,
        "num_scored": scores.test.shape[0] * scores.test.shape[1],
        "train": float(_log_mean_rows(scores.train).mean()),
    }
    if contender.kind == "sampler":
        path, clock = path_of_draws(scores, draws.clock, MOST_TIMES)
    else:
        path, clock = _path(field, draws, held_out)
    if contender.kind != "point":
        args = field.train_arguments
        row |= diagnosis(contender.kind, draws, field.model, args, field.judges.num_train)
    else:
        row |= {
            **progress(draws, field.judges.num_train),
            "posterior_mode": contender.posterior_mode,
        }
        point = {x: v[0, 0] for x, v in draws.params.items()}
        row["overfit"] = sum(np.size(x) for x in point.values()) / field.judges.num_train
        row["log_prior"] = _prior(field, point)
        floor = at_floor(field.model, point, *field.train_arguments)
        row |= {} if floor is None else {"floor": floor}
        lost = lost_digits(field.model, point, *field.train_arguments)
        row |= {} if lost is None else {"lost_digits": lost}
        if not contender.posterior_mode:
            row |= information(field, point)
        if engine is not None:
            # At one place, and in one step: a solution of equations.
            row["start_free"] = engine.starts is Starts.ONE and len(draws.losses) == 1
            row |= _quality(field, engine, point)
    if field.truth is not None:
        row["recovery"] = recovery(field, thin(draws.params, MOST_ALIGNED))
    if field.true_scores is not None:
        beyond = field.true_scores - held_out
        row["excess"] = float(beyond.mean())
        spread = float(beyond.std(ddof=1) / np.sqrt(len(beyond)))
        row["excess_error"] = float(np.hypot(spread, row["score_error"]))
    cells = None
    if field.cells is not None and contender.kind != "point":  # which claims no uncertainty
        some = thin(draws.params, MOST_ASKED)
        flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in some.items()}
        cells = reliability(answer(field.cells, flat), field.bits)
        row["calibration_error"] = cells["error"]
        row["calibration_expected"] = cells["expected"]
    observed = np.asarray(field.train_arguments[0][0])
    holes = field.train_arguments[1].get("mask")
    return Judged(
        row, draws, observed, scores.some_rows(), held_out, path, clock, cells,
        (field.judges.likelihood.how, field.judges.likelihood.exact),
        None if holes is None else np.asarray(holes),
    )  # fmt: skip


def _prior(field: Field, point: dict[str, np.ndarray]) -> float:
    """Log density of the parameters under the program's priors, for each training row."""
    anatomy = inspect(field.model, *field.train_arguments)
    rows = rows_of(anatomy, *field.train_arguments)
    density = jax.jit(lambda params: log_shared(field.model, anatomy, params, rows))(point)
    return float(density) / field.judges.num_train


def _log_mean_rows(values: np.ndarray) -> np.ndarray:
    """log of the mean over chains and draws, (rows,), without a second copy of all of them."""
    top = values.max((0, 1))
    total = sum(np.exp(chain - top, dtype=np.float64).sum(0) for chain in values)
    return top + np.log(total / (values.shape[0] * values.shape[1]))


def progress(draws: Draws, num_rows: int) -> dict[str, Any]:
    """How a point method ended: what was left to gain, and what its starts agree on."""
    left = remaining(draws.losses / num_rows)
    return starts_of(draws.starts, num_rows) | ({} if left is None else {"remaining": left})


def starts_of(losses: np.ndarray, num_rows: int) -> dict[str, Any]:
    """Where the starts of a run ended, and how many at the best."""
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


def agree(losses: np.ndarray, num_rows: int) -> bool:
    """Whether two starts ended at the best; also of one start, with which nothing is compared.

    >>> agree(np.array([300.0, 290.0, 290.5]), 100), agree(np.array([300.0, 290.0]), 100)
    (True, False)
    """
    return starts_of(losses, num_rows).get("starts_near", 2) > 1


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


MOST_RATIO = 0.95
"""Of two gains in turn: one that does not fall at all would go on for ever."""


def _path(field: Field, draws: Draws, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The held-out score as it was at each time, of what is no sampler."""
    times = np.unique(np.geomspace(1, len(draws.clock), MOST_TIMES).astype(int)) - 1
    # The end is scored already, by as many draws as the row has: a few would tell another story.
    most = MOST_ON_THE_WAY if field.judges.likelihood.exact else MOST_INEXACT
    few = {x: v[times[:-1]][:, :most] for x, v in draws.snapshots.items()}
    count = next(iter(few.values())).shape[1]
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in few.items()}
    path = np.empty(0)
    if len(times) > 1:
        each = np.asarray(field.judges.test(flat)[0], np.float64)
        each = each.reshape(len(times) - 1, count, -1)
        path = (logsumexp(each, axis=1) - np.log(count)).mean(-1)
    return np.append(path, held_out.mean()), draws.clock[times]


def diagnosis(
    kind: str, draws: Draws, model: Callable, arguments: Arguments, num_rows: int
) -> dict[str, Any]:
    """What `checks` asks of the draws of a sampler, or of a guide, whatever they are used for."""
    if kind == "sampler":
        return chains(model, arguments, draws)
    ratios = draws.stats["log_p"] - draws.stats["log_q"]
    return starts_of(draws.starts, num_rows) | {"pareto_k": pareto_k(ratios)}


def chains(
    model: Callable, arguments: Arguments, draws: Draws, most: int = MOST_ALIGNED
) -> dict[str, Any]:
    """R̂, effective draws and divergences of a sampler, by at most so many draws of parameters."""
    count = int(draws.stats["diverging"].sum()) if "diverging" in draws.stats else None
    if draws.stats["lp"].shape[1] < FEWEST_DRAWS:
        return {"few_draws": draws.stats["lp"].shape[1], "divergences": count}
    invariant = diagnose({"scalar": draws.stats["lp"]})["scalar"]
    last = {x: v[-1, -1] for x, v in draws.params.items()}
    aligned = align(model, thin(draws.params, most), last, arguments)
    each = diagnose(aligned)
    return {
        "rhat": invariant["rhat"],
        "rhat_parameters": max(x["rhat"] for x in each.values()),
        "ess_bulk": invariant["ess_bulk"],
        "ess_tail": invariant["ess_tail"],
        "ess_per_second": invariant["ess_bulk"] / draws.seconds,
        "divergences": count,
    }


def _quality(field: Field, engine: Algorithm, params: dict[str, np.ndarray]) -> dict[str, Any]:
    """What an approximation says of itself: its gap to the evidence, or the mass it misses."""
    posterior = getattr(engine, "posterior", None)
    if posterior is None:
        return {}
    args, kwargs = field.train_arguments

    def ask(params: dict[str, np.ndarray]) -> Any:
        return posterior(params, *args, **kwargs)

    try:
        approximation = (jax.jit(ask) if args[0].size <= SMALL else ask)(params)
    except (ValueError, TypeError, NotImplementedError) as error:
        # The parameters are judged all the same; what the method cannot say is said in the row.
        return {"no_quality": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    row: dict[str, Any] = {}
    if getattr(approximation, "gap", None) is not None:
        row["bound_gap"] = float(np.mean(np.asarray(approximation.gap)))
    if getattr(approximation, "missed", None) is not None:
        row["missed_mass"] = float(np.mean(np.asarray(approximation.missed)))
    return row


def information(field: Field, params: Any) -> dict[str, Any]:
    """Whether the likelihood of the training rows falls in every direction; or why it is not known.

    Where it does not, the parameters are no maximum, or one of many.
    """
    try:
        args, kwargs = field.train_arguments
        return {"undetermined": undetermined(field.model, params, args, kwargs, MOST_WORK)}
    except (ValueError, TypeError, NotImplementedError) as error:
        return {"information_unknown": " ".join(str(error).split())[:200]}


def recovery(field: Field, kept: dict[str, np.ndarray]) -> float:
    """Correlation of the mean parameters with the true ones, symmetries taken out."""
    truth = field.truth
    assert truth is not None
    aligned = align(field.model, kept, truth, field.train_arguments)
    pairs = [(aligned[x].mean((0, 1)), v) for x, v in truth.items() if np.size(v) > 1]
    estimate = np.concatenate([np.ravel(a) for a, _ in pairs])
    wanted = np.concatenate([np.ravel(b) for _, b in pairs])
    return float(np.corrcoef(estimate, wanted)[0, 1])
