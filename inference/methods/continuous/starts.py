"""Where the methods for continuous latents start: principal components, where columns are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.scipy.special import ndtr

from ...reading.log_joint import prior_draw
from ...rows.chunks import Rows, sum_over_chunks
from ...types import Arguments, Params
from .graded import Graded, graded_start
from .guessing import Guessing, guessing_start
from .opening import Opened
from .regressions import Regressions, Responses

LEAST_APART = 0.1
"""Of the standard deviation of what is added to principal components, so that starts differ; the
largest is 1, and all sizes between are as likely."""
JITTER = 0.1
"""Of the first start."""


def start_params(
    opened: Opened,
    given: Params,
    key: Array,
    jitter: float | None,
    prior: Callable[[Params], Array] | None = None,
) -> Params:
    """Starting values: those given, else principal components, else a draw.

    :param jitter: standard deviation of what is added to principal components; None: drawn.
    :param prior: log density of the parameters, which may say which end of a factor is up.
    """
    reader, rows, known, columns = opened
    names = set(reader.anatomy.parameters)
    params = dict(given)
    if columns is not None and known is not None and not names <= set(params):
        noise = _noise(opened, key, jitter)
        start = partial(principal_start, rows=rows, noise=noise)
        if isinstance(columns, Graded):
            values = graded_start(columns, start, partial(known.cells, reader.model), rows)
        else:
            place = known.places.get("noise")
            shared = place is not None and not place.positions.shape
            values = start(columns, opened.responses, shared=shared)
        if isinstance(columns, Guessing):
            values = guessing_start(values, rows.total)
        if prior is not None:
            values = _upright(values, lambda values: prior({**known.write(values), **given}))
        params = {**known.write(values), **params}
    if not names <= set(params):
        drawn = prior_draw(reader.model, reader.at(1).anatomy, key, rows.slice(0, 1))
        params = {**drawn, **params}
    return {name: jnp.asarray(value, float) for name, value in params.items()}


def _noise(opened: Opened, key: Array, jitter: float | None) -> Array:
    """What is added to principal components, (num_factors, predictors)."""
    columns: Any = opened.columns
    graded = isinstance(columns, Graded)
    width = len(columns.levels) if graded else columns.layout.num_predictors
    shape = opened.reader.num_factors, width
    draw = random.normal(key, (1 + math.prod(shape),))  # in one call: the size comes from the first
    return (LEAST_APART ** ndtr(draw[0]) if jitter is None else jitter) * draw[1:].reshape(shape)


def _upright(values: Params, prior: Callable[[Params], Array]) -> Params:
    """The values with each factor turned round where the prior is then higher."""
    for q in range(len(values["weights"])):
        other = {**values, "weights": values["weights"].at[q].multiply(-1.0)}
        better = prior(other) > prior(values)
        values = {name: jnp.where(better, other[name], x) for name, x in values.items()}
    return values


def principal_start(
    columns: Regressions,
    responses: Callable[[Arguments], Responses],
    rows: Rows,
    noise: Array,
    shared: bool = False,
) -> Params:
    """Means give the biases, the leading principal components of the data the weights.

    A little noise keeps runs from different keys apart, and a factor that no column shows alive.

    :param noise: (num_factors, predictors).
    :param shared: whether all real columns have one noise.
    """
    size = min(rows.num_data, max(1, (1 << 20) // columns.layout.num_predictors))

    def read(arguments: Arguments, fresh: Array) -> tuple[Array, Array]:
        target, weight = responses(arguments)
        weight = jnp.ones_like(target) if weight is None else weight
        return target * fresh[:, None], weight * fresh[:, None]

    def sums(arguments: Arguments, fresh: Array) -> tuple[Array, Array]:
        target, weight = read(arguments, fresh)
        return target.sum(0), weight.sum(0)

    def summarise(arguments: Arguments, fresh: Array) -> Any:
        target, weight = read(arguments, fresh)
        target = target - weight * centre
        return target.sum(0), weight.sum(0), target.T @ target, weight.T @ target, weight.T @ weight

    centre = jnp.zeros(columns.layout.num_predictors)
    if len(columns.layout.real):  # far from zero, a sum of squares costs the digits of a variance
        total, count = sum_over_chunks(sums, rows, size)
        real = np.arange(len(centre)) < len(columns.layout.real)
        centre = jnp.where(real, total / jnp.maximum(count, 1.0), 0.0)
    total, count, square, cross, both = sum_over_chunks(summarise, rows, size)
    mean = total / jnp.maximum(count, 1.0)
    cover = square - cross * mean - (cross * mean).T + jnp.outer(mean, mean) * both
    cover, mean = cover / jnp.maximum(both, 1.0), mean + centre
    layout = columns.layout
    # The slope of the mean in its predictor: p(1 − p) of a bit or level, 1 of a number.
    probability = jnp.clip(mean, 0.5 / rows.total, 1.0 - 0.5 / rows.total)
    link = probability * (1.0 - probability)
    bias = jnp.log(probability) - jnp.log1p(-probability)
    _, bits, levels = layout.split(bias)
    for k, part in layout.split(mean)[2].items():
        rest = jnp.maximum(1.0 - part.sum(-1, keepdims=True), 0.5 / rows.total)
        levels[k] = jnp.log(jnp.maximum(part, 0.5 / rows.total) / rest)
    bias = layout.join(mean[: len(layout.real)], bits, levels)
    at = slice(len(layout.real))
    link = link.at[at].set(1.0)
    spread = jnp.sqrt(jnp.maximum(jnp.diagonal(cover), 1e-6))
    values, vectors = jnp.linalg.eigh(cover / jnp.outer(spread, spread))
    count = min(len(noise), len(values))
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    weights = (vectors * jnp.sqrt(jnp.maximum(values - 1.0, 0.1))).T * spread / link
    weights = jnp.clip(weights, -4.0, 4.0).at[:, at].set(weights[:, at])
    scale = jnp.ones(layout.num_predictors).at[at].set(spread[at])
    params = {"weights": (noise * scale).at[:count].add(weights), "bias": bias}
    if len(layout.real):
        params["noise"] = 0.7 * (jnp.sqrt(jnp.mean(spread[at] ** 2)) if shared else spread[at])
    return params
