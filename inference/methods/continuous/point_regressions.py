"""Regressions at points: likelihood and sums where the factors take each of many values.

The points are each datum's own (quadrature about its mode), or shared by all data (prior draws):
then the likelihood of everything is one matrix product.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array

from ...numerics.gaussian import with_one
from ...rows.chunks import over_rows
from ...types import Params
from .levels import log_sum, softmax
from .regressions import Regressions, Responses, Sums


def point_sums(
    columns: Regressions, params: Params, responses: Responses, points: Array, probability: Array
) -> tuple[Sums, Sums]:
    """The same sums under posteriors on points (S, n, Q) with probabilities (S, n).

    :return: with the curvature of the bits' bound, which is safe; and with their own, which is
        fast when close.
    """
    size = points.shape[-1]
    centre = points @ params["weights"] + params["bias"]  # (S, n, P)
    slope, safe, fast = columns.at_points(centre)
    weight = probability[..., None]
    if responses.seen is not None:
        weight = weight * responses.seen
    moments = with_one(points).reshape(-1, size + 1)
    outer = (moments[:, :, None] * moments[:, None, :]).reshape(len(moments), -1)
    flat = lambda x: (x * weight).reshape(-1, x.shape[-1])  # noqa: E731
    total = over_rows(flat(slope + columns.mixed(responses.target)), moments)
    bends = [over_rows(flat(x), outer).reshape(-1, size + 1, size + 1) for x in (safe, fast)]
    at = slice(len(columns.layout.real))
    counted = jnp.broadcast_to(weight, centre.shape)[..., at]
    power = jnp.sum((responses.target - centre)[..., at] ** 2 * counted, (0, 1))
    count = jnp.sum(counted, (0, 1))
    ones = probability.sum(0) @ responses.target
    safe_sums = Sums(total, bends[0], power, count, ones)
    return safe_sums, safe_sums._replace(bend=bends[1])


def point_log_likelihood(
    columns: Regressions, params: Params, responses: Responses, points: Array
) -> Array:
    """log p(t_n | x) at points (S, n, Q): (S, n)."""
    target, observed = responses
    centre = points @ params["weights"] + params["bias"]
    if columns.logistic:
        return _bits(target, observed, centre) + columns.base(params, target)
    layout = columns.layout
    (real, bits, levels), (own, ones, hot) = layout.split(centre), layout.split(target)
    know = (None, None, {}) if observed is None else layout.split(observed)
    total = _bits(ones, know[1], bits) if len(layout.binary) else jnp.zeros(points.shape[:2])
    if len(layout.real):
        away = (own - real) / params["noise"]
        part = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
        total = total + jnp.sum(part if know[0] is None else part * know[0], -1)
    for k, predictors in levels.items():
        shown = None if observed is None else know[2][k][..., 0]
        total = total + _levels(hot[k], shown, predictors)
    return total


FEW = 12
"""Predictors of categorical columns that are written out one by one."""


def _levels(hot: Array, observed: Array | None, predictors: Array) -> Array:
    """Σ_c log Categorical(t_c; A_c) over the last two axes, (C, K − 1).

    A few columns are written out: exponentials in a sum over the last axis XLA computes one at a
    time on a CPU, and the likelihood of `mixed_trait` at a draw takes twice as long.
    """
    if predictors[0, 0].size > FEW:
        # In two sums, one for each shape: XLA's CPU compiler gets the sum of both wrong.
        rest = log_sum(predictors)
        rest = rest if observed is None else rest * observed
        return jnp.sum(hot * predictors, (-2, -1)) - jnp.sum(rest, -1)
    total = jnp.zeros(predictors.shape[:-2], predictors.dtype)
    for c in range(predictors.shape[-2]):
        own = [(hot[..., c, i], predictors[..., c, i]) for i in range(predictors.shape[-1])]
        top = jax.lax.stop_gradient(reduce(jnp.maximum, [x for _, x in own], jnp.zeros_like(total)))
        rest = top + jnp.log(jnp.exp(-top) + sum(jnp.exp(x - top) for _, x in own))
        rest = rest if observed is None else rest * observed[..., c]
        total = total + sum(one * x for one, x in own) - rest
    return total


def slope_and_bend(
    columns: Regressions, params: Params, responses: Responses, place: Array
) -> tuple[Array, Array]:
    """Gradient (n, Q) of log p(t_n, x) and minus its Hessian (n, Q, Q), at x (n, Q)."""
    weights, layout, observed = params["weights"], columns.layout, responses.seen
    centre = place @ weights + params["bias"]
    residual, _, bend = columns.at_points(centre)
    residual = residual + columns.mixed(responses.target)
    dual = columns.metric(params, weights)
    _, _, levels = layout.split(centre)
    if levels:  # they bend by their probabilities, not by the metric of their bound
        real, bits, _ = layout.split(bend)
        bend = layout.join(real, bits, {k: jnp.zeros_like(x) for k, x in levels.items()})
    if observed is not None:
        residual, bend = residual * observed, bend * observed
    size = len(weights)
    outer = (dual[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
    precision = jnp.eye(size) + _along(bend, outer).reshape(-1, size, size)
    for k, part in levels.items():
        weight = layout.split(weights)[2][k]
        probs = softmax(part) if observed is None else softmax(part) * layout.split(observed)[2][k]
        mean = jnp.einsum("ncj,qcj->ncq", probs, weight)
        precision = precision + jnp.einsum("ncj,qcj,rcj->nqr", probs, weight, weight)
        precision = precision - jnp.einsum("ncq,ncr->nqr", mean, mean)
    return _along(residual, dual) - place, precision


def _along(rows: Array, vectors: Array) -> Array:
    """Rows (n, P) along vectors (Q, P): (n, Q).

    Along a single one XLA draws the sum into what gives the rows; its product of a matrix and a
    vector would be a loop by itself, and as much to compile as five others.
    """
    return jnp.sum(rows * vectors, -1, keepdims=True) if len(vectors) == 1 else rows @ vectors.T


def bit_information(
    columns: Regressions, params: Params, responses: Responses, points: Array, probability: Array
) -> Array:
    """Minus the Hessian of Σ_n log p(t_n), of columns of bits (Louis 1982).

    The information that the data would hold, were the factors known, less what they lack: the
    covariance of the score of each row over its posterior, on points (S, n, Q) with weights (S, n),
    Σ_s of which is how many times a row counts.

    :return: (P, Q + 1, P, Q + 1), of the weights of each column and its bias.
    """
    centre = points @ params["weights"] + params["bias"]
    slope, _, bend = columns.at_points(centre)
    score = slope + responses.target
    if responses.seen is not None:
        score, bend = score * responses.seen, bend * responses.seen
    moments = with_one(points)
    size, flat = moments.shape[-1], moments.reshape(-1, moments.shape[-1])
    outer = (flat[:, :, None] * flat[:, None, :]).reshape(len(flat), -1)
    own = (bend * probability[..., None]).reshape(len(flat), -1).T @ outer
    own = own.reshape(-1, size, size)
    score = (score[..., None] * moments[..., None, :]).reshape(*score.shape[:2], -1)
    times = jnp.sqrt(jnp.maximum(probability.sum(0), 1e-30))
    mean = jnp.einsum("sn,snk->nk", probability, score) / times[:, None]
    spread = (score * jnp.sqrt(probability)[..., None]).reshape(-1, score.shape[-1])
    lacking = (spread.T @ spread - mean.T @ mean).reshape(*own.shape[:2], *own.shape[:2])
    return jnp.eye(len(own))[:, None, :, None] * own[:, :, None, :] - lacking


def shared_log_likelihood(
    columns: Regressions, params: Params, responses: Responses, points: Array
) -> Array:
    """log p(t_n | x_s) at points (S, Q): (S, n), by matrix products."""
    predictors = points @ params["weights"] + params["bias"]
    natural, partition = columns.natural(params, predictors)
    table = natural @ responses.target.T
    if responses.seen is None:
        table = table - partition.sum(-1)[:, None]
    else:
        table = table - partition @ responses.seen.T
    if len(columns.layout.real):
        at = slice(len(columns.layout.real))
        away = responses.target[:, at] / params["noise"]
        own = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
        table = table + (own if responses.seen is None else own * responses.seen[:, at]).sum(-1)
    return table + columns.base(params, responses.target)


def _bits(target: Array, observed: Array | None, centre: Array) -> Array:
    """Σ_i log Bernoulli(t_i; σ(A_i)) over the last axis.

    Σ log(1 + e^{−|A|}) is the log of a product, taken of 64 columns at once: each factor is at most
    2, so that nothing overflows, and a logarithm costs as much as all the rest.
    """
    factor = 1.0 + jnp.exp(-jnp.abs(centre))
    main = target * centre - jnp.maximum(centre, 0.0)
    if observed is not None:
        main, factor = main * observed, jnp.where(observed > 0, factor, 1.0)
    groups = [factor[..., start : start + 64] for start in range(0, factor.shape[-1], 64)]
    return jnp.sum(main, -1) - sum(jnp.log(jnp.prod(group, -1)) for group in groups)
