"""The probability of cells given the rest of their row, for any program of bits.

    P(t_j = 1 | the others seen) = logistic( log p(others, t_j = 1) − log p(others, t_j = 0) )

by the marginal likelihood of `evaluation.evidence`: one way for all programs, whether their latents
are summed, integrated or sampled. What Freund & Haussler (1994), section 1, ask of a model ('the
conditional distribution on certain components', 'a kind of pattern completion') is exact: every
state of the latents is summed, so that it is for programs of up to some thousands of states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import logsumexp

from ..methods.continuous.guessing import Guessing
from ..methods.continuous.opening import Opened, open_columns
from ..methods.continuous.regressions import Regressions
from ..methods.continuous.rules import about, default_nodes, nodes_of, peaks, weigh
from ..methods.discrete.em import EM
from ..methods.shared import chunk_rows
from ..numerics.log_sums import normalise
from ..reading.anatomy import Anatomy, inspect
from ..reading.handlers import states, table_of
from ..reading.log_joint import Structure
from ..reading.reader import open_program
from ..reading.recognition.papers import Form
from ..reading.states import AllStates
from ..reading.tracing import innermost, trace_of
from ..rows.chunks import Rows, chunk_of, compiled, map_over_chunks
from ..types import Arguments, Params
from .evidence import Likelihood, likelihood, log_likelihood


def cell_probabilities(
    model: Callable,
    draws: Params,
    data: Any,
    cells: np.ndarray,
    *,
    mask: Any = None,
    **kwargs: Any,
) -> np.ndarray:
    """P(cell = 1 | the other observed cells of its row), averaged over draws of the parameters.

    :param draws: parameters with a leading axis of draws; one draw for a point estimate.
    :param cells: (num_cells, 2), row and column of each cell asked for.
    :param mask: what of the rows is observed; the cell asked for is never used.
    :return: (num_cells,)

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([[0.5, 0.5]]), "probs": jnp.array([[[0.9, 0.9], [0.1, 0.1]]])}
    >>> probability = cell_probabilities(
    ...     bernoulli_mixture, params, np.array([[1.0, 0.0]]), np.array([[0, 1]]), num_components=2)
    >>> round(float(probability[0]), 4)  # 0.9² + 0.1²
    0.82
    """
    quick = _on_nodes(model, draws, data, np.asarray(cells), mask, kwargs)
    if quick is not None:
        return quick
    return answer(ask(model, data, cells, mask=mask, **kwargs), draws)


def _on_nodes(
    model: Callable, draws: Params, data: Any, cells: np.ndarray, mask: Any, kwargs: dict[str, Any]
) -> np.ndarray | None:
    """Of cells that are not observed, by the posterior of their rows; None where it is not at hand:
    a row for each cell would be more than memory holds where rows are long.
    """
    if mask is None or np.asarray(mask)[tuple(cells.T)].any():
        return None
    if any(len(x) != 1 for x in jax.tree.leaves(draws)):
        return None
    args, kwargs = (np.asarray(data),), {"mask": np.asarray(mask), **kwargs}
    latents = inspect(model, args, kwargs).latents
    if not latents or any(x.num_values is not None or x.odd for x in latents):
        return None
    point = {x: v[0] for x, v in draws.items()}
    return _unseen(open_columns(model, args, kwargs, None), point, cells)


def _unseen(opened: Opened, point: Params, cells: np.ndarray) -> np.ndarray | None:
    """P(cell = 1 | what its row has observed) of bits on up to three factors, (num_cells,)."""
    reader, rows, known, columns = opened
    if known is None or not known.columns or reader.num_factors > 3:
        return None
    if known.form is Form.GUESSING:
        columns = Guessing(known.kinds)
    several = len({place.leaf for place in known.columns}) > 1
    if columns is None or type(columns) not in (Regressions, Guessing) or several:
        return None
    if not columns.logistic:
        return None
    rule = nodes_of(reader, default_nodes(reader.num_factors))
    size = chunk_of(None, len(rule.points) * rows.width, rows)

    @jax.jit
    def posterior(arguments: Any, params: Params) -> tuple[Array, Array]:
        local = reader.at(size).ready(arguments)
        moved = about(local, peaks(local, params, arguments, local.start(), 15), rule)
        return moved.points, weigh(local, params, arguments, moved)[1]

    values = known.read({name: np.asarray(x, np.float64) for name, x in point.items()})
    place = np.zeros(max(x.column for x in known.columns) + 1, int)
    place[[x.column for x in known.columns]] = np.arange(len(known.columns))
    probability = np.zeros(len(cells))
    for begin in range(0, rows.num_data, size):
        start = min(begin, rows.num_data - size)
        here = np.flatnonzero((cells[:, 0] >= begin) & (cells[:, 0] < start + size))
        if not len(here):
            continue
        points, weight = map(np.asarray, posterior(rows.slice(start, size), point))
        for some in np.array_split(here, 1 + len(here) * len(points) // MOST_FLOATS):
            row, column = cells[some, 0] - start, place[cells[some, 1]]
            own: Any = {name: x[..., column] for name, x in values.items()}
            predictors = np.einsum("smq,qm->sm", points[:, row], own["weights"]) + own["bias"]
            lowest = -np.asarray(columns.natural(own, predictors)[1])
            probability[some] = np.sum(weight[:, row] * -np.expm1(lowest), 0)
    return probability


MOST_FLOATS = 1 << 20
"""Of cells on nodes that are held at a time."""


def distinct(values: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each different row is first, in that order, and which of these every row is.

    >>> rows = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [9.0, 1.0]])
    >>> distinct(rows, np.array([[1, 1], [1, 1], [1, 1], [0, 1]], bool))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    table = np.hstack([np.where(seen, values, 0.0), seen]).astype(np.float32)
    whole = np.ascontiguousarray(table).view(np.dtype((np.void, 4 * table.shape[1])))[:, 0]
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[place.ravel()]


class Asked(NamedTuple):
    """The rows in question with their cell set to 1, then with it set to 0."""

    likelihood: Likelihood
    place: np.ndarray  # (2 × cells,) where in these a row is: equal ones are there once


def ask(
    model: Callable,
    data: Any,
    cells: np.ndarray,
    *,
    mask: Any = None,
    num_nodes: int | None = None,
    **kwargs: Any,
) -> Asked:
    """The likelihood of the rows that give the probabilities of these cells."""
    data, cells = np.asarray(data, np.float32), np.asarray(cells)
    rows, columns = cells.T
    each = np.arange(len(cells))
    values = np.stack([data[rows], data[rows]])
    values[0, each, columns], values[1, each, columns] = 1.0, 0.0
    values = values.reshape(-1, data.shape[1])
    observed = np.ones_like(values, bool)
    if mask is not None:
        observed = np.asarray(mask, bool)[rows]
        observed[each, columns] = True
        observed = np.tile(observed, (2, 1))
    first, place = distinct(values, observed)
    values, observed = values[first], observed[first]
    # Without holes no mask is passed: a program may have a shorter way where all is seen.
    holes: dict[str, Any] = {} if observed.all() else {"mask": jnp.asarray(observed)}
    estimator = likelihood(model, jnp.asarray(values), num_nodes=num_nodes, **holes, **kwargs)
    return Asked(estimator, place)


def answer(asked: Asked, draws: Any) -> np.ndarray:
    """P(cell = 1 | the rest of its row) of each cell that was asked for."""
    evidence = np.asarray(asked.likelihood.of_draws(draws).value, np.float64)[:, asked.place]
    one, zero = evidence.reshape(len(evidence), 2, -1).swapaxes(0, 1)
    # P(row with 1) over P(row either way), each averaged over the draws.
    return np.exp(logsumexp(one, axis=0) - logsumexp(np.logaddexp(one, zero), axis=0))


def reliability(probs: np.ndarray, bits: np.ndarray, num_bins: int = 10) -> dict[str, Any]:
    """How often a bit was 1 against its predicted probability: by bins of equal count.

    ``error`` is the mean distance between the two over bins of equal count, ``expected`` what it
    would be by sampling alone if the probabilities were right, so that small tables are not
    blamed.

    >>> rng = np.random.default_rng(0)
    >>> probs = rng.random(4000)
    >>> curve = reliability(probs, rng.random(4000) < probs)
    >>> curve["error"] < 2 * curve["expected"]
    True
    """
    order = np.argsort(probs, kind="stable")
    bins = [part for part in np.array_split(order, num_bins) if len(part)]
    said = np.array([probs[part].mean() for part in bins])
    frequency = np.array([bits[part].mean() for part in bins])
    spread = np.array([np.sqrt((probs[p] * (1 - probs[p])).sum()) / len(p) for p in bins])
    share = np.array([len(part) for part in bins]) / len(probs)
    return {
        "said": said,
        "seen": frequency,
        "error": float(share @ np.abs(said - frequency)),
        "expected": float(share @ spread * np.sqrt(2 / np.pi)),
        "log_score": float(np.mean(np.log(np.where(bits > 0.5, probs, 1 - probs).clip(1e-12)))),
    }


def log_conditional(
    model: Callable, params: Params, data: Array, *, asked: Array, given: Array, **kwargs: Any
) -> Array:
    """log P(the bits asked for | the bits given) of each row, (num_data,).

    :param asked: bool, (num_features,) or (num_data, num_features).
    :param given: likewise. What is in neither is summed out.

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9, 0.9], [0.1, 0.1]])}
    >>> probability = log_conditional(bernoulli_mixture, params, jnp.ones((1, 2)), num_components=2,
    ...     asked=jnp.array([True, False]), given=jnp.array([False, True]))
    >>> round(float(jnp.exp(probability[0])), 4)  # 0.9² + 0.1²
    0.82
    """
    data = jnp.asarray(data, float)
    asked, given = (jnp.broadcast_to(jnp.asarray(x, bool), data.shape) for x in (asked, given))
    if bool((asked & given).any()):
        row, column = (int(i) for i in jnp.argwhere(asked & given)[0])
        raise ValueError(f"bit {column} of row {row} is both asked for and given")

    def log_sum(mask: Array) -> Array:
        return log_likelihood(model, params, jnp.where(mask, data, 0.0), mask=mask, **kwargs).value

    return log_sum(asked | given) - log_sum(given)


class Completion(NamedTuple):
    """A partly seen table, filled in."""

    probability: Array  # (num_data, num_features): P(bit is 1 | what was seen of its row)
    values: Array  # (num_data, num_features): what was seen, and the more probable value elsewhere
    latents: Array  # (num_data, num_bits): the most probable latents given what was seen


def complete(
    model: Callable, params: Params, data: Array, *, mask: Array, **kwargs: Any
) -> Completion:
    """Fill in the cells of `data` where `mask` is False, from the others of their row.

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9, 0.9], [0.1, 0.1]])}
    >>> seen = jnp.array([[True, False]])
    >>> filled = complete(bernoulli_mixture, params, jnp.ones((1, 2)), mask=seen, num_components=2)
    >>> round(float(filled.probability[0, 1]), 4)
    0.82
    """
    data, mask = jnp.asarray(data, float), jnp.asarray(mask, bool)
    mask = jnp.broadcast_to(mask, data.shape)
    kwargs = {**kwargs, "mask": mask}
    known = jnp.where(mask, data, 0.0)
    reader, rows = open_program(model, (known,), kwargs, structure=Structure.GENERAL)
    table = table_of(reader.anatomy, AllStates())
    size = chunk_rows(None, reader, len(table), rows)
    local = reader.at(size)

    def whole(rows: Rows, params: Params) -> tuple[Array, Array]:
        def part(arguments: Arguments) -> tuple[Array, Array]:
            _, weight = normalise(local.log_joint(params, table, arguments), 0)
            mean = _means(model, local.anatomy, params, table, arguments)
            best = jnp.broadcast_to(table, (len(table), size, table.shape[2]))
            chosen = jnp.argmax(weight, axis=0)
            if mean.shape[1] == 1:  # a state says the same of every row
                expected = weight.T @ mean[:, 0]
            else:
                expected = jnp.einsum("sn,snd->nd", weight, mean)
            return expected, best[chosen, jnp.arange(size)]

        return map_over_chunks(part, rows, size)

    probability, latents = compiled(whole, rows)(rows.leaves, params)
    probability = jnp.where(mask, data, probability)
    return Completion(probability, jnp.where(mask, data, (probability > 0.5) + 0.0), latents)


def _means(
    model: Callable, anatomy: Anatomy, params: Params, table: Array, arguments: Arguments
) -> Array:
    """P(bit is 1 | state), (num_states, num_data or 1, num_features)."""
    trace = trace_of(states(model, anatomy.unpack(table)), arguments, params)
    mean = jnp.asarray(innermost(trace[anatomy.observed[0]]["fn"]).mean)
    mean = mean.reshape((1,) * (3 - mean.ndim) + mean.shape)
    return jnp.broadcast_to(mean, (len(table), *mean.shape[1:]))


def most_probable_state(
    model: Callable, params: Params, data: Array, *, mask: Array | None = None, **kwargs: Any
) -> Array:
    """The most probable latents of each row given what was seen of it, (num_data, num_bits).

    >>> from latentbits.models import combination_machine
    >>> params = {"weights": jnp.array([[3.0, 2.0], [-3.0, 2.0]]), "bias": -jnp.ones(2)}
    >>> rows = jnp.array([[1.0, 1.0], [0.0, 1.0]])
    >>> most_probable_state(combination_machine, params, rows, num_causes=2).tolist()
    [[1, 0], [0, 1]]
    """
    holes = {} if mask is None else {"mask": jnp.asarray(mask, bool)}
    return EM(model).posterior(params, jnp.asarray(data, float), **holes, **kwargs).best
