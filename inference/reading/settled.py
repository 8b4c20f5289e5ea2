"""Distributions at the edge of their parameters, with slopes that are numbers.

A state may rule a value out: `Bernoulli(z * p)` or `Poisson(z * rate)` at z = 0. NumPyro's log
probabilities are right there, but their slopes are infinite times zero, which is no number. A level
between two cuts may have a probability that rounds to zero, of which the logarithm is still small.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, nn
from numpyro.distributions.util import (
    binary_cross_entropy_with_logits,
    clamp_probs,
    validate_sample,
)

from .bounds import map_base


class SettledLogits(dist.BernoulliLogits):
    """Its slope is written out: NumPyro's own is that of |logits|, which has none at zero, and
    twice differentiated it is two hundred operations to compile."""

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        logits = jnp.asarray(self.logits, jnp.result_type(self.logits, float))
        return _log_bernoulli(*jnp.broadcast_arrays(logits, jnp.asarray(value, logits.dtype)))


class SettledBernoulli(SettledLogits):
    """Of logits that are no number the log probability is none: NumPyro's own is infinite."""

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        return jnp.where(jnp.isnan(self.logits), jnp.nan, super().log_prob(value))


class SettledPoisson(dist.Poisson):
    """A Poisson distribution that at rate zero is a point at zero."""

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        possible = jnp.asarray(self.rate) > 0
        inside = dist.Poisson(jnp.where(possible, self.rate, 1.0)).log_prob(value)
        return jnp.where(possible, inside, jnp.where(jnp.asarray(value) == 0, 0.0, -jnp.inf))


def settled(fn: dist.Distribution) -> dist.Distribution:
    """The same distribution, whose log probability has finite slopes at the edge too.

    >>> import jax
    >>> slope = jax.grad(lambda p: settled(dist.Bernoulli(0.0 * p)).log_prob(jnp.zeros(9)).sum())
    >>> float(slope(0.3))
    0.0
    """
    return map_base(fn, _settled)


def _settled(base: dist.Distribution) -> dist.Distribution:
    if isinstance(base, dist.BernoulliProbs):
        probs = clamp_probs(base.probs)  # as its own log probability does
        inside = probs == base.probs
        safe = jnp.where(inside, probs, 0.5)
        edge = lax.stop_gradient(jnp.log(probs) - jnp.log1p(-probs))
        logits = jnp.where(inside, jnp.log(safe) - jnp.log1p(-safe), edge)
        logits = jnp.where(jnp.isnan(base.probs), jnp.nan, logits)
        return SettledBernoulli(logits, validate_args=base._validate_args)
    if type(base) is dist.BernoulliLogits:
        return SettledLogits(base.logits, validate_args=base._validate_args)
    if type(base) is dist.Poisson:
        return SettledPoisson(base.rate, validate_args=base._validate_args)
    if isinstance(base, dist.OrderedLogistic):
        return dist.CategoricalLogits(_ordered_logits(base))
    return base


@jax.custom_jvp
def _log_bernoulli(logits: Array, value: Array) -> Array:
    """value · logits − log(1 + exp logits), also of infinite logits."""
    return -binary_cross_entropy_with_logits(logits, value)


@_log_bernoulli.defjvp
def _log_bernoulli_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (logits, value), (change, other) = primals, tangents
    finite = jnp.isfinite(logits)
    safe = jnp.where(finite, logits, jnp.zeros_like(logits))
    slope = jnp.where(finite, value - _sigmoid(safe), 0.0)
    return _log_bernoulli(logits, value), slope * change + safe * other


@jax.custom_jvp
def _sigmoid(logits: Array) -> Array:
    """By the exponential that the log probability has: XLA would take that of `nn.sigmoid` anew."""
    small = jnp.exp(-jnp.abs(logits))
    return jnp.where(logits > 0, 1.0, small) / (1.0 + small)


@_sigmoid.defjvp
def _sigmoid_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    share = _sigmoid(*primals)
    return share, share * (1.0 - share) * tangents[0]


def _ordered_logits(base: dist.OrderedLogistic) -> Array:
    """Log probabilities of the levels of an ordered logistic, (..., levels).

    Between two cuts, σ(b) − σ(a) = σ(b) σ(−a) (1 − exp(a − b)). NumPyro takes the difference, which
    rounds to zero once both cuts are far from the predictor on one side.
    """
    cuts = jnp.asarray(base.cutpoints)
    away = cuts - jnp.asarray(base.predictor)[..., None]
    gap = jnp.maximum(cuts[..., 1:] - cuts[..., :-1], jnp.finfo(cuts.dtype).tiny)
    between = nn.log_sigmoid(away[..., 1:]) + nn.log_sigmoid(-away[..., :-1])
    between = between + jnp.log(-jnp.expm1(-gap))
    ends = nn.log_sigmoid(away[..., :1]), nn.log_sigmoid(-away[..., -1:])
    return jnp.concatenate([ends[0], between, ends[1]], -1)
