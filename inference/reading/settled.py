"""Distributions at the edge of their parameters, with slopes that are numbers.

A state may rule a value out: `Bernoulli(z * p)` or `Poisson(z * rate)` at z = 0. NumPyro's log
probabilities are right there, but their slopes are infinite times zero, which is no number. A level
between two cuts may have a probability that rounds to zero, of which the logarithm is still small.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, nn
from numpyro.distributions.util import clamp_probs, validate_sample

from .bounds import map_base


class SettledBernoulli(dist.BernoulliLogits):
    """A Bernoulli distribution with slopes at every number of its logits, and none at infinity.

    NumPyro's own slopes are those of |logits|, which has none at zero.
    """

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        logits = jnp.asarray(self.logits, jnp.result_type(self.logits, float))
        value = jnp.asarray(value, logits.dtype)
        finite = jnp.isfinite(logits)
        safe = jnp.where(finite, logits, 0.0)
        edge = jnp.where(jnp.logical_xor(value, logits > 0), -jnp.inf, 0.0)
        edge = jnp.where(jnp.isnan(logits), jnp.nan, edge)
        return jnp.where(finite, safe * value - nn.softplus(safe), edge)


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
        return SettledBernoulli(base.logits, validate_args=base._validate_args)
    if type(base) is dist.Poisson:
        return SettledPoisson(base.rate, validate_args=base._validate_args)
    if isinstance(base, dist.OrderedLogistic):
        return dist.CategoricalLogits(_ordered_logits(base))
    return base


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
