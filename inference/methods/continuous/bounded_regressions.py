r"""Regressions under their quadratic bounds: the Gaussian E-step of Tipping (1998) and its sums.

With factors x Gaussian, mean and variance of each predictor say where its bound is tightest, (8);
there the posterior of x is Gaussian again, (6) and (7), and the sums of the M-step, (11) and (12),
are moments of it. Of any kind of column: `inference.methods.continuous.regressions` has the table.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ...numerics.gaussian import invert, with_one
from ...reading.distributions import curvature
from ...rows.chunks import over_rows
from ...types import Params
from .levels import first, log_sum, softmax
from .regressions import Regressions, Responses, Sums


def bound_at_bias(
    columns: Regressions, params: Params, responses: Responses, mean: Array, spread: Array
) -> Array:
    """The log of the bound at x = 0, that is at A = b, summed over columns: (n,)."""
    layout, bias, target = columns.layout, params["bias"], responses.target
    xi = jnp.sqrt(mean**2 + spread)
    values = (target - 0.5) * bias + jax.nn.log_sigmoid(xi) - 0.5 * xi
    values = values + curvature(xi) * (bias**2 - xi**2)
    if not columns.logistic:
        split = layout.split
        (real, _, levels), (at, _, psi), (own, _, hot) = split(bias), split(mean), split(target)
        del at
        if len(layout.real):
            away = (own - real) / params["noise"]
            own = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
        parts = {}
        for k, point in psi.items():
            away = levels[k] - point
            bent = 0.25 * (jnp.sum(away**2, -1) - jnp.sum(away, -1) ** 2 / k)
            part = jnp.sum(hot[k] * levels[k], -1) - log_sum(point)
            parts[k] = first(part - jnp.sum(away * softmax(point), -1) - bent, k)
        values = layout.join(own, split(values)[1], parts)
    total = jnp.sum(values if responses.seen is None else values * responses.seen, -1)
    return total + columns.base(params, target)


def bound_posterior(
    columns: Regressions, params: Params, responses: Responses, mean: Array, covariance: Array
) -> tuple[Array, Array, Array]:
    """Eqs. (8), (6), (7): from one Gaussian posterior to the next, better one.

    :return: mean (n, Q), covariance (n, Q, Q), log of the bound on the evidence (n,).
    """
    weights, bias = params["weights"], params["bias"]
    centre, spread = predict(params, mean, covariance)
    residual, omega = columns.tangent(params, centre, spread)
    right = residual + omega * centre + columns.mixed(responses.target) - omega * bias
    if responses.seen is not None:
        right, omega = right * responses.seen, omega * responses.seen
    dual = columns.metric(params, weights)
    size = len(weights)
    outer = (dual[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
    precision = jnp.eye(size) + (omega @ outer.T).reshape(-1, size, size)
    linear = right @ dual.T
    covariance, log_det = invert(precision)
    mean = jnp.einsum("nqr,nr->nq", covariance, linear)
    constant = bound_at_bias(columns, params, responses, centre, spread)
    return mean, covariance, constant + 0.5 * jnp.sum(mean * linear, -1) - 0.5 * log_det


def predict(params: Params, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and variance of every predictor under Gaussian factors, (n, P) each."""
    weights = params["weights"]
    size = len(weights)
    outer = (weights[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
    spread = covariance.reshape(-1, size * size) @ outer
    return mean @ weights + params["bias"], jnp.maximum(spread, 0.0)


def gaussian_sums(
    columns: Regressions,
    params: Params,
    responses: Responses,
    mean: Array,
    covariance: Array,
    heavy: Array,
) -> Sums:
    """The sums of (11) and (12) under Gaussian posteriors, row n counted `heavy[n]` times."""
    centre, spread = predict(params, mean, covariance)
    residual, omega = columns.tangent(params, centre, spread)
    residual = residual + columns.mixed(responses.target)
    weight = heavy[:, None] if responses.seen is None else heavy[:, None] * responses.seen
    residual, omega = residual * weight, omega * weight
    moments = with_one(mean)
    outer = moments[:, :, None] * moments[:, None, :]
    size = mean.shape[-1]
    outer = outer.at[:, :size, :size].add(covariance)
    bend = over_rows(omega, outer.reshape(len(mean), -1)).reshape(-1, size + 1, size + 1)
    around = over_rows(omega, covariance.reshape(len(mean), -1)).reshape(-1, size, size)
    slope = over_rows(residual, moments)
    slope = slope.at[:, :size].add(-jnp.einsum("pqr,rp->pq", around, params["weights"]))
    at = slice(len(columns.layout.real))
    power = (responses.target - centre)[:, at] ** 2 + spread[:, at]
    weight = jnp.broadcast_to(weight, omega.shape)[:, at]
    power, count = jnp.sum(power * weight, 0), jnp.sum(weight, 0)
    return Sums(slope, bend, power, count, heavy @ responses.target)
