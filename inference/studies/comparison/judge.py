"""What is asked of one contender once it is done: numbers by the same means for all.

Held-out rows are scored by log p(y_n | training rows), the mean over the contender's draws of the
marginal likelihood of `evaluation.evidence`; a point estimate is one draw. Diagnostics are read on
a scalar that knows no labels (the log joint) and, after all draws are brought to the last one, on
the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ...baselines.samplers import Draws
from ...evaluation.evidence import Likelihood
from ...evaluation.prediction import Asked, answer, reliability
from ...evaluation.symmetry import align
from ...numerics.compiling import once
from ...running.algorithm import Algorithm
from .contenders import Contender

MOST_DRAWS = 100
"""Draws that are scored, evenly spaced; more change a mean by less than its own error."""
MOST_ON_THE_WAY = 16
"""Draws that are scored at each time before the end."""
MOST_TIMES = 12
"""Points of a path."""
MOST_ASKED = 20
"""Draws by which single cells are predicted."""


SMALL = 1 << 16
"""Cells of a table below which it takes less to run a thing than to compile it well."""


class Field(NamedTuple):
    """What all contenders share."""

    model: Callable
    rows: Likelihood  # of all rows, those to learn from first: one program to compile for both
    num_train: int
    train_arguments: tuple[tuple, dict[str, Any]]
    truth: dict[str, np.ndarray] | None
    cells: Asked | None  # some held-out cells to predict, where all are bits
    bits: np.ndarray  # what they turned out to be


class Judged(NamedTuple):
    """One contender's results."""

    row: dict[str, Any]  # numbers for the table
    draws: Draws
    observed: np.ndarray  # (num_train, num_features) the rows it learned from
    held_out: np.ndarray  # (num_test,) log predictive density of each held-out row
    held_out_mcse: np.ndarray | None  # (num_test,) of a sampler: what that owes to its draws
    train: np.ndarray  # (num_chains, num_draws, num_train) marginal log likelihood
    path: np.ndarray  # (num_times,) mean of held-out log densities as of `clock`
    clock: np.ndarray
    reliability: dict[str, Any] | None
    scored_by: tuple[str, bool] = ("", False)  # the likelihood of a row: how, and whether exactly


def judge(
    field: Field,
    contender: Contender,
    draws: Draws,
    engine: Algorithm | None,
    most_draws: int = MOST_DRAWS,
) -> Judged:
    """All numbers of a contender that is done, but those that need the others."""
    kept = thin(draws.params, most_draws)
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in kept.items()}
    found = field.rows.of_draws(flat)
    values = np.asarray(found.value, np.float64)
    train, test = values[:, : field.num_train], values[:, field.num_train :]
    errors = np.asarray(found.error)[:, field.num_train :]
    held_out = _log_mean(test)
    shape = next(iter(kept.values())).shape[:2]
    path, clock = _path(field, contender, draws, test, shape)
    row: dict[str, Any] = {
        "status": "done" if draws.reason.startswith(("all", "the loss")) else draws.reason,
        "bespoke": contender.bespoke,
        "kind": contender.kind,
        "reason": draws.reason,
        "compile_seconds": draws.compile_seconds,
        "seconds": draws.seconds,
        "held_out": float(held_out.mean()),
        "held_out_error": float(held_out.std(ddof=1) / np.sqrt(len(held_out))),
        "estimator_error": float(np.sqrt((errors**2).mean(0).sum())) / len(held_out),
        "train": float(_log_mean(train).mean()),
    }
    mcse = None
    if contender.kind == "sampler":
        row |= _chains(field, draws, train.reshape((*shape, -1)), 4 * most_draws)
        mcse = _mcse(test.reshape((*shape, -1)))
    if contender.kind == "variational":
        from ..arviz import pareto_k

        row["pareto_k"] = pareto_k(draws.stats["log_p"] - draws.stats["log_q"])
    if contender.kind == "point" and engine is not None:
        row |= _quality(field, engine, {x: v[0, 0] for x, v in draws.params.items()})
    if field.truth is not None:
        row["recovery"] = recovery(field.model, kept, field.truth)
    cells = None
    if field.cells is not None:
        some = {x: v[:: max(1, -(-len(v) // MOST_ASKED))] for x, v in flat.items()}
        cells = reliability(answer(field.cells, some), field.bits)
        row["calibration_error"] = cells["error"]
        row["calibration_expected"] = cells["expected"]
    observed = np.asarray(field.train_arguments[0][0])
    return Judged(
        row, draws, observed, held_out, mcse, train.reshape((*shape, -1)), path, clock, cells,
        (field.rows.how, field.rows.exact),
    )  # fmt: skip


def thin(params: dict[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
    """At most so many draws over all chains, evenly spaced: (num_chains, fewer, ...)."""
    chains, count = next(iter(params.values())).shape[:2]
    step = max(1, -(-count * chains // most))
    return {x: np.asarray(v)[:, step - 1 :: step] for x, v in params.items()}


def _log_mean(values: np.ndarray) -> np.ndarray:
    return logsumexp(values, axis=0) - np.log(len(values))


def _mcse(values: np.ndarray) -> np.ndarray:
    """Standard error of the log of the mean likelihood of each row: (chains, draws, rows) -> rows.

    That of a log is the relative one of the mean itself.
    """
    from ..arviz import mcse

    scaled = np.exp(values - values.max((0, 1)))
    return mcse(scaled) / scaled.mean((0, 1))


def _path(
    field: Field, contender: Contender, draws: Draws, scores: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The held-out score as it was at each time."""
    if contender.kind == "sampler":
        # All draws so far, of all chains, count.
        each = scores.reshape((*shape, -1))
        total = np.logaddexp.accumulate(logsumexp(each, axis=0), axis=0)
        sofar = np.log(np.arange(1, shape[1] + 1) * shape[0])[:, None]
        step = max(1, len(draws.clock) // shape[1])
        return (total - sofar).mean(-1), draws.clock[step - 1 :: step][: shape[1]]
    times = np.unique(np.geomspace(1, len(draws.clock), MOST_TIMES).astype(int)) - 1
    # The end is scored already, by as many draws as the row has: a few would tell another story.
    few = {x: v[times[:-1]][:, :MOST_ON_THE_WAY] for x, v in draws.snapshots.items()}
    count = next(iter(few.values())).shape[1]
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in few.items()}
    path = np.empty(0)
    if len(times) > 1:
        each = np.asarray(field.rows.of_draws(flat).value, np.float64)[:, field.num_train :]
        each = each.reshape(len(times) - 1, count, -1)
        path = (logsumexp(each, axis=1) - np.log(count)).mean(-1)
    return np.append(path, _log_mean(scores).mean()), draws.clock[times]


def _chains(field: Field, draws: Draws, train: np.ndarray, most: int) -> dict[str, Any]:
    """R̂, effective draws and divergences of a sampler; parameters of `most` draws are aligned."""
    from ..arviz import dataset, diagnose

    # The log joint of every draw where the kernel keeps it, else the likelihood of those scored.
    scalar = draws.stats.get("lp", train.sum(-1))
    invariant = diagnose(dataset({"scalar": scalar}, ("chain", "draw")))["scalar"]
    last = {x: v[-1, -1] for x, v in draws.params.items()}
    aligned = align(field.model, thin(draws.params, most), last)
    each = diagnose(dataset(aligned, ("chain", "draw")))
    count = int(draws.stats["diverging"].sum()) if "diverging" in draws.stats else None
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
        found = (once(ask) if args[0].size <= SMALL else ask)(params)
    except (ValueError, TypeError, NotImplementedError) as error:
        # The parameters are judged all the same; what the method cannot say is said in the row.
        return {"no_quality": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    row: dict[str, Any] = {}
    if hasattr(found, "gap"):
        row["bound_gap"] = float(np.mean(np.asarray(found.gap)))
    if hasattr(found, "missed"):
        row["missed_mass"] = float(np.mean(np.asarray(found.missed)))
    return row


def recovery(model: Callable, kept: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """Correlation of the mean parameters with the true ones, symmetries taken out."""
    aligned = align(model, kept, truth)
    pairs = [(aligned[x].mean((0, 1)), v) for x, v in truth.items() if np.size(v) > 1]
    found = np.concatenate([np.ravel(a) for a, _ in pairs])
    wanted = np.concatenate([np.ravel(b) for _, b in pairs])
    return float(np.corrcoef(found, wanted)[0, 1])
