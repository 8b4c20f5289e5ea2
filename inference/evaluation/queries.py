"""What a model of bits is for: the probability of some bits given others, and filling in others.

Freund & Haussler (1994), section 1: 'estimating the conditional distribution on certain components
of the vector when provided with the values for the other components', and 'a kind of pattern
completion'. Bits that are neither asked for nor given are summed out. All is exact: every state of
the latents is summed, so that it is for programs of up to some thousands of states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..methods.discrete.em import EM
from ..methods.shared import chunk_rows
from ..numerics.log_sums import normalise
from ..reading.abstract import innermost, trace_of
from ..reading.anatomy import Anatomy
from ..reading.handlers import states, table_of
from ..reading.local import Structure
from ..reading.reader import open_program
from ..reading.states import AllStates
from ..rows.chunks import Rows, compiled, map_over_chunks
from ..types import Arguments, Params
from .evidence import log_likelihood


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
        def part(arguments: Arguments, extra: None, start: Array) -> tuple[Array, Array]:
            del extra, start
            _, weight = normalise(local.log_joint(params, table, arguments), 0)
            mean = _means(model, local.anatomy, params, table, arguments)
            best = jnp.broadcast_to(table, (len(table), size, table.shape[2]))
            chosen = jnp.argmax(weight, axis=0)
            if mean.shape[1] == 1:  # a state says the same of every row
                expected = weight.T @ mean[:, 0]
            else:
                expected = jnp.einsum("sn,snd->nd", weight, mean)
            return expected, best[chosen, jnp.arange(size)]

        return map_over_chunks(part, rows, size, None)

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
