"""How good a model of bits is: the three measures of Freund & Haussler (1994), section 4.

Each takes what any model can give, a function from rows to one number per row, so that a machine, a
mixture and a product are held to the same; `row_functions` reads both functions off a program.
Each comes with its standard error over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from ..methods.discrete.em import EM
from ..reading.anatomy import Anatomy, inspect
from ..reading.handlers import states
from ..reading.log_joint import Structure
from ..reading.reader import linear_form, open_program
from ..reading.tracing import trace_of
from ..types import Arguments, Params
from .evidence import likelihood

PerRow = Callable[[Array], Array]
"""Rows (num_data, num_features) of 0 and 1 to one log probability each, (num_data,)."""


class Measure(NamedTuple):
    """A mean over rows.

    >>> loss = log_loss(lambda rows: -rows.sum(axis=1) * jnp.log(2.0), jnp.ones((5, 8)))
    >>> round(float(loss.value), 4), round(float(loss.standard_error), 4)
    (1.0, 0.0)
    """

    value: Array
    standard_error: Array


def _mean(each: Array) -> Measure:
    count = each.shape[0]
    error = jnp.std(each, ddof=1) / math.sqrt(count) if count > 1 else jnp.full((), jnp.nan)
    return Measure(each.mean(), error)


def log_loss(log_likelihood: PerRow, data: Array) -> Measure:
    """Minus log₂ P(t), in bits per bit: the uniform distribution scores 1."""
    return _mean(-log_likelihood(data) / (math.log(2.0) * data.shape[1]))


def single_bit(log_likelihood: PerRow, data: Array, columns: Array | None = None) -> Measure:
    """How often a bit is predicted wrongly from all the others of its row.

    The prediction is the value that makes the row more probable; a tie counts one half. Log
    likelihoods that lack a constant, such as an unknown log Z, serve as well.

    :param columns: which bits: (count,) the same for all rows, or (num_data, count); None: all.
    """
    data = jnp.asarray(data, float)
    columns = jnp.asarray(jnp.arange(data.shape[1]) if columns is None else columns)
    if columns.ndim == 1:
        columns = jnp.broadcast_to(columns, (len(data), len(columns)))
    each = jnp.arange(len(data))
    right = log_likelihood(data)
    # What rounding makes of a tie.
    close = 8.0 * jnp.finfo(right.dtype).eps * (1.0 + jnp.abs(right))

    def wrong(column: Array) -> Array:
        flipped = data.at[each, column].set(1.0 - data[each, column])
        ahead = log_likelihood(flipped) - right
        return jnp.where(jnp.abs(ahead) <= close, 0.5, ahead > 0)

    return _mean(lax.map(wrong, columns.T).mean(0))


def chosen_bits(key: Array, num_data: int, num_features: int, count: int = 5) -> Array:
    """So many different bits of each row at random, (num_data, count): the paper takes 5."""
    pick = lambda key: random.choice(key, num_features, (count,), replace=False)  # noqa: E731
    return jax.vmap(pick)(random.split(key, num_data))


def reconstruction(log_decoded: PerRow, data: Array) -> Measure:
    """What it takes to rebuild a row from its most probable hidden state, in bits per bit.

    :param log_decoded: log P(t | the most probable hidden state of t).
    """
    return log_loss(log_decoded, data)


class RowFunctions(NamedTuple):
    """What the measures ask of a model."""

    log_likelihood: PerRow  # log P(t)
    log_decoded: PerRow  # log P(t | the most probable latents of t)


def row_functions(model: Callable, params: Params, data: Array, **kwargs: Any) -> RowFunctions:
    """Both functions, read off a program; pure, so that `jit` and `vmap` apply.

    :param data: rows like those to be judged, (num_data, num_features): only shape and kind count.
    :param kwargs: the sizes of the program. A machine with more units than can be summed is wrapped
        in `inference.methods.machines.partition.normalizer`.

    >>> from latentbits.models import bernoulli_product
    >>> rows = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    >>> of = row_functions(bernoulli_product, {"probs": jnp.array([0.5, 0.9])}, rows)
    >>> bool((of.log_likelihood(rows) == of.log_decoded(rows)).all())
    True
    """
    estimator = likelihood(model, data, **kwargs)

    def log_likelihood(rows: Array) -> Array:
        table = estimator.rows._replace(leaves=(rows,), num_data=len(rows))
        return estimator.function(params, table).value

    if not inspect(model, (data,), kwargs).latents:
        return RowFunctions(log_likelihood, log_likelihood)
    return RowFunctions(log_likelihood, _decoded(model, params, data, kwargs))


def _decoded(model: Callable, params: Params, data: Array, kwargs: dict[str, Any]) -> PerRow:
    reader, _ = open_program(model, (data,), kwargs)
    em = EM(model, structure=reader.structure)

    def log_decoded(rows: Array) -> Array:
        local = reader.at(len(rows))
        if reader.structure is Structure.LINEAR:
            best = linear_form(local, params, ((rows,), kwargs)).best
        else:
            best = em.posterior(params, rows, **kwargs).best
        return log_given(model, local.anatomy, params, best[None], ((rows,), kwargs))[0]

    return log_decoded


@jax.default_matmul_precision("highest")
def log_given(
    model: Callable, anatomy: Anatomy, params: Params, bits: Array, arguments: Arguments
) -> Array:
    """log p(y_n | s): the observed sites alone, (S, num_data), of states (S, num_data, bits)."""
    trace = trace_of(states(model, anatomy.unpack(bits)), arguments, params)
    sites = (trace[name] for name in anatomy.observed)
    parts = (anatomy.per_datum(x["fn"].log_prob(x["value"])) for x in sites)
    return sum(parts, jnp.zeros(()))


def measure(
    model: Callable, params: Params, data: Array, columns: Array | None = None, **kwargs: Any
) -> dict[str, Measure]:
    """All three: ``log_loss``, ``single_bit``, ``reconstruction``.

    >>> from latentbits.models import bernoulli_product
    >>> rows = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    >>> errors = measure(bernoulli_product, {"probs": jnp.array([0.5, 0.9])}, rows)
    >>> round(float(errors["single_bit"].value), 3)
    0.25
    """
    functions = row_functions(model, params, data, **kwargs)
    return {
        "log_loss": log_loss(functions.log_likelihood, data),
        "single_bit": single_bit(functions.log_likelihood, data, columns),
        "reconstruction": reconstruction(functions.log_decoded, data),
    }
