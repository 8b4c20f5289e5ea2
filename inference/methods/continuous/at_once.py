"""A program on ordered levels with one to three factors, fitted and read by NumPy alone.

What `grid` does, for any program of the form of `latent_trait`, with or without guessing, or of
`graded_trait`, whatever its names. Whether it applies is seen from what is known of the program and
its arguments: `table_of`. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...numerics import clock
from ...numerics.threads import one_thread
from ...reading.arguments import put
from ...reading.recognition.papers import Form
from ...rows.chunks import counted
from ...running.contract import RunResult, Stop
from ...running.loop import Drive, interrupts
from ...running.search import optima_of
from ...types import Params
from .climbing import Fitted, climb
from .curves import tables
from .factor_em import turned
from .factors import FactorPosterior
from .grid import FEW_CELLS, FLOATS, BitTable, distinct, few_rows, observed_cells, posteriors, score
from .information import information
from .nodes import REACH, TooManyNodesError, Values
from .opening import Opened
from .principal import principal
from .priors import normal_priors

TOLERANCE = {"float64": 1e-9, "float32": 1e-8}
"""The most of the loss that may be left to gain, by how the table is held: steps cost little here,
and a flat likelihood moves a difficulty by a hundredth of its error at a loss of 1e-8."""
FEW_OBSERVED = 0.2
"""Of the cells of a table, below which only those are kept."""


def applies(opened: Opened) -> bool:
    """Whether the program observes levels in order, on one to three factors, in rows at hand."""
    known, rows = opened.known, opened.rows
    if known is None or known.columns is None:
        return False
    bits = known.form is Form.TRAIT and set(known.kinds) == {"binary"}
    if not bits and known.form not in (Form.GRADED, Form.GUESSING):
        return False
    if known.masked and any(place.mask is None for place in known.columns):
        return False
    concrete = not any(isinstance(x, jax.core.Tracer) for x in rows.leaves) and counted() is None
    small = opened.reader.num_factors in REACH
    return concrete and small and not rows.on_disk and jax.default_backend() == "cpu"


def table_of(opened: Opened) -> BitTable | None:
    """The distinct rows of a program's levels; None where the grid is not for it."""
    if not applies(opened):
        return None
    known: Any = opened.known
    levels = known.kinds if known.form is Form.GRADED else None
    leaves = [np.asarray(x).reshape(opened.rows.num_data, -1) for x in opened.rows.leaves]
    columns = np.array([place.column for place in known.columns])
    sources = {(place.leaf, place.mask) for place in known.columns}
    if len(sources) > 1:
        data = np.stack([leaves[place.leaf][:, place.column] for place in known.columns], 1)
        mask = None
        if known.masked:
            mask = np.stack([leaves[place.mask][:, place.column] for place in known.columns], 1)
        return distinct(data, mask, levels)
    ((leaf, hides),) = sources
    few = hides is not None and leaves[hides].mean() < FEW_OBSERVED
    if few and not few_rows(leaves[leaf].shape):
        return observed_cells(leaves[leaf], leaves[hides], columns, levels)
    cells, observed = leaves[leaf], None if hides is None else leaves[hides]
    if len(columns) != cells.shape[1] or (np.diff(columns) != 1).any():
        cells, observed = cells[:, columns], None if observed is None else observed[:, columns]
    return distinct(cells, observed, levels)


def values_of(opened: Opened, params: Mapping[str, Any]) -> Values:
    """The numbers of the predictors, in float64."""
    assert opened.known is not None
    values: Any = opened.known.read({x: np.asarray(v, np.float64) for x, v in params.items()})
    columns: Any = opened.columns
    return values if columns is None else columns.read(values)


def params_of(opened: Opened, values: Values) -> dict[str, np.ndarray]:
    """The other way round."""
    known: Any = opened.known
    numbers: Any = values
    return known.write(numbers if opened.columns is None else opened.columns.written(numbers))


def posterior(opened: Opened, params: Params) -> tuple[FactorPosterior, str] | None:
    """The posterior of every row, and in words how; the gap is that to twice as many nodes."""
    if any(isinstance(x, jax.core.Tracer) for x in params.values()):
        return None
    table = table_of(opened)
    if table is None:
        return None
    values = values_of(opened, params)
    try:
        with one_thread(table.bits.size <= FEW_CELLS):
            moments, finer = score(table, values), score(table, values, 2.0)
    except TooManyNodesError:
        return None
    gap = finer.evidence - moments.evidence
    parts = (moments.mean, moments.covariance, moments.evidence, gap, moments.effective)
    arrays: list[Any] = [array(x) for x in parts]
    return FactorPosterior(*arrays), moments.how


def unseen_cells(opened: Opened, params: Params, cells: np.ndarray) -> np.ndarray | None:
    """P(cell = 1 | what its row has observed) of cells that are not, (num_cells,).

    :param cells: (num_cells, 2), row and column; None is returned where the grid is not for them.
    """
    known, table = opened.known, table_of(opened)
    if table is None or known is None or not known.columns or not table.columns.bits:
        return None
    if len({place.leaf for place in known.columns}) > 1:
        return None
    values = values_of(opened, params)
    try:
        nodes = table.nodes(values)
    except TooManyNodesError:
        return None
    prob = -np.expm1(tables(table.columns, values, nodes)[1])  # (S, P)
    place = np.zeros(max(x.column for x in known.columns) + 1, int)
    place[[x.column for x in known.columns]] = np.arange(len(known.columns))
    rows, columns = table.place[cells[:, 0]], place[cells[:, 1]]
    order = np.argsort(rows, kind="stable")
    probability = np.zeros(len(cells))
    for block, _, probs in posteriors(table, values, nodes):
        ends = np.searchsorted(rows[order], [block.start, block.start + len(probs)])
        here = order[slice(*ends)]
        for some in np.array_split(here, 1 + len(here) * len(prob) // FLOATS):
            each = probs[rows[some] - block.start]
            probability[some] = np.einsum("ms,sm->m", each, prob[:, columns[some]])
    return probability


def information_of(
    opened: Opened, params: Mapping[str, np.ndarray], prior: bool = False
) -> tuple[np.ndarray, tuple[dict[str, np.ndarray], np.ndarray | None]] | None:
    """Minus the Hessian of the log likelihood in unconstrained numbers, (1, p, p); how parameters
    change with those, (1, ..., p) by site, and which directions leave the canonical form."""
    table, known = table_of(opened), opened.known
    if table is None or known is None:
        return None
    values = values_of(opened, params)
    places = {role: place.positions for role, place in known.places.items()}
    weights = places.pop("weights")
    held = normal_priors(opened) if prior else None
    if prior and held is None:
        return None
    try:
        curvature = information(table, values, held)
    except TooManyNodesError:
        return None
    # Behind the weights are biases, or cutpoints by their number, and asymptotes.
    order = np.concatenate([np.ravel(x) for x in (weights, *places.values())])
    size = len(order)
    if table.columns.level.max() > 1:  # a cutpoint is minus a bias
        sign = np.where(np.arange(size) < weights.size, 1.0, -1.0)
        curvature = curvature * sign * sign[:, None]
    matrix = np.zeros((1, size, size))
    matrix[0, order[:, None], order] = curvature
    # Weights, biases and cutpoints are their own chart, laid end to end: at a maximum it does not
    # matter that the latter are in order. Asymptotes have their logits.
    slope = np.ones(size)
    if "guessing" in places:
        slope[places["guessing"]] = values["guessing"] * (1.0 - values["guessing"])
    ends = np.cumsum([params[name].size for name in known.shapes])
    parts = np.split(np.diag(slope), ends[:-1])
    pairs = zip(known.shapes.items(), parts, strict=True)
    carry = {name: part.reshape(1, *shape, size) for (name, shape), part in pairs}
    first, second = np.triu_indices(len(weights), 1)
    if not len(first):
        return matrix, (carry, None)
    normal = np.zeros((1, len(first), size))
    pair = np.arange(len(first))[:, None]
    own = values["weights"][:, table.columns.first]
    normal[0, pair, weights[first]] = own[second]
    normal[0, pair, weights[second]] = own[first]
    return matrix, (carry, normal)


def run(
    opened: Opened, rng_key: Array, how: Drive, jitters: list[float], prior: bool = False
) -> tuple[RunResult, dict[str, np.ndarray], np.ndarray] | None:
    """Several starts of EM, one after the other, of which the best counts.

    :param jitters: what is added to principal components, for each start.
    :param prior: the parameters have priors, and the posterior is to be maximised.
    :return: the result without a state, the best parameters, and the mean factors of each row.
        What `how.record` sees is the way of the best start; the time of all is spread over it.
    """
    table = table_of(opened)
    known = opened.known
    if table is None or known is None:
        return None
    held = normal_priors(opened) if prior else None
    if prior and held is None:
        return None
    began = clock.seconds()
    draws = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).tolist())
    limit, enough = TOLERANCE[str(table.bits.dtype)], how.tolerance or 0.0
    limit = limit if how.tolerance is None else min(how.tolerance, limit)
    fitted: list[Fitted] = []
    with interrupts() as heard, one_thread(table.bits.size <= FEW_CELLS):

        def stop() -> bool:
            late = how.budget is not None and clock.seconds() - began > how.budget
            return late or bool(heard)

        try:
            size, columns = opened.reader.num_factors, table.columns
            first = principal(table, size, known.form is Form.GUESSING)
            if held is not None:  # a prior may know which end of a factor is up
                along = np.sign((held.weights[0] * first["weights"]).sum(1, keepdims=True) + 1e-30)
                first["weights"] = along * first["weights"]
            for jitter in jitters:
                noise = jitter * draws.normal(size=(size, len(columns.first)))
                begin = {**first, "weights": first["weights"] + noise[:, columns.column_of]}
                # Further starts are to show whether they end at the same optimum.
                rough = bool(fitted)
                fitted.append(climb(table, begin, how.num_steps, limit, stop, held, rough, enough))
            best = min(fitted, key=_last)
            if best is not fitted[0] and best.converged:
                left = how.num_steps - len(best.losses)
                end = climb(table, best.values, left, limit, stop, held, enough=enough)
                best = end._replace(losses=best.losses + end.losses, way=best.way + end.way)
        except TooManyNodesError:
            return None
        interrupted = bool(heard)
    if not all(np.isfinite(_last(one)) for one in [best, *fitted]):
        return None
    losses = np.array(best.losses)
    done = len(losses)
    why, reason = Stop.STEPS, Stop.STEPS.value
    if best.converged:
        met = limit if how.tolerance is None else how.tolerance
        why, reason = Stop.TOLERANCE, f"{Stop.TOLERANCE.value} {met} of the loss"
    elif done < how.num_steps:
        why = Stop.INTERRUPTED if interrupted else Stop.BUDGET
        reason = f"{why.value} {done} of {how.num_steps} steps"
    ends = np.array([([one.losses[0]] * 2 + one.losses)[-3:] for one in fitted])
    seconds = clock.seconds() - began

    def ready(values: Values) -> Any:
        params: Any = params_of(opened, values)
        return params if held is not None and held.directed else turned(known, params)

    history = None
    if how.record is not None:
        each = [how.record(ready(columns.whole(x, size))) for x in best.way]
        history = jax.tree.map(lambda *x: np.stack(x), *each)
    result = RunResult(
        {}, None, array(losses), reason, seconds, 0.0, history, why,
        optima_of(ends.T) if len(fitted) > 1 else None,
    )  # fmt: skip
    params = ready(best.values)
    with one_thread(table.bits.size <= FEW_CELLS):
        return result, params, score(table, values_of(opened, params)).mean


def _last(fitted: Fitted) -> float:
    return fitted.losses[-1] if fitted.losses else np.inf


def array(value: np.ndarray) -> Array:
    """Numbers of NumPy's as JAX has them; JAX would compile the conversion."""
    return put(np.asarray(value, jnp.result_type(float)))
