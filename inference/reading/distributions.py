"""Distributions that stand in for those of a program.

    bounded         a log likelihood that is quadratic in what stands inside it, a lower bound
    finite slopes   the same log probability, whose slopes are numbers at the edge of its parameters

A state may rule a value out: `Bernoulli(z * p)` or `Poisson(z * rate)` at z = 0. NumPyro's log
probabilities are right there, but their slopes are infinite times zero, which is no number. A level
between two cuts may have a probability that rounds to zero, of which the logarithm is still small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, nn
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from numpyro.distributions.util import clamp_probs, promote_shapes, validate_sample


def curvature(xi: Array) -> Array:
    r"""Jaakkola & Jordan's :math:`\lambda(\xi) = (\tfrac12 - \sigma(\xi)) / 2\xi \le 0`.

    >>> [round(float(x), 4) for x in curvature(jnp.array([0.0, 2.0]))]
    [-0.125, -0.0952]
    """
    # tanh(ξ/2)/4ξ, by its series near zero, where the quotient loses all digits.
    small = jnp.abs(xi) < 1e-2
    safe = jnp.where(small, 1.0, xi)
    return jnp.where(small, -0.125 + xi**2 / 96.0, -jnp.tanh(safe / 2.0) / (4.0 * safe))


class BoundedBernoulli(dist.Distribution):
    r"""A Bernoulli whose log probability is replaced by its quadratic lower bound.

    With :math:`A = (2t - 1) \cdot` logits,

    .. math:: \log \tilde P(t) = \log\sigma(\xi) + (A - \xi)/2 + \lambda(\xi)(A^2 - \xi^2)
              \le \log P(t)

    with equality at :math:`\xi = \pm A` (Jaakkola & Jordan 1997; Tipping 1998, eq. 5). Draws are
    those of the Bernoulli itself: a bound is no distribution.

    >>> round(float(BoundedBernoulli(jnp.array(2.0), jnp.array(2.0)).log_prob(1.0)), 5)
    -0.12693
    """

    arg_constraints: ClassVar = {"logits": constraints.real, "xi": constraints.real}
    support = constraints.boolean
    pytree_data_fields = ("logits", "xi")

    def __init__(self, logits: Array, xi: Array, *, validate_args: bool | None = None):
        self.logits, self.xi = promote_shapes(logits, xi)
        shape = jax.lax.broadcast_shapes(jnp.shape(logits), jnp.shape(xi))
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        return dist.Bernoulli(logits=self.logits).expand(self.batch_shape).sample(key, sample_shape)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        signed = (2.0 * value - 1.0) * self.logits
        # A² without the sign: the curvature is then seen not to depend on the bit.
        quadratic = curvature(self.xi) * (self.logits**2 - self.xi**2)
        return log_sigmoid(self.xi) + (signed - self.xi) / 2.0 + quadratic


class BoundedCategorical(dist.Distribution):
    r"""A categorical whose log probability is replaced by its quadratic lower bound.

    The curvature of the log sum of K exponentials is nowhere above
    :math:`B = \tfrac12 (I - 11^T/K)`, so that a Taylor series about any :math:`\psi`, its last
    term with B, stays below:

    .. math:: \log \tilde P(t) = A_t - \mathrm{lse}(\psi) - (A - \psi)^T \mathrm{softmax}(\psi)
              - \tfrac12 (A - \psi)^T B (A - \psi) \le \log P(t)

    with equality at :math:`A = \psi` (Böhning, *Multinomial logistic regression algorithm*, Ann.
    Inst. Statist. Math. 44, 1992; for factors behind mixed data Khan, Marlin, Bouchard & Murphy,
    NIPS 2010). Another constant added to all of A or :math:`\psi` changes nothing.

    >>> round(float(BoundedCategorical(jnp.arange(3.0), jnp.arange(3.0)).log_prob(2)), 5)
    -0.40761
    """

    arg_constraints = {  # noqa: RUF012
        "logits": constraints.real_vector,
        "psi": constraints.real_vector,
    }
    pytree_data_fields = ("logits", "psi")

    def __init__(self, logits: Array, psi: Array, *, validate_args: bool | None = None):
        shape = jax.lax.broadcast_shapes(jnp.shape(logits), jnp.shape(psi))
        self.logits, self.psi = promote_shapes(logits, psi)
        super().__init__(batch_shape=shape[:-1], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.logits.shape[-1] - 1)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        plain = dist.Categorical(logits=self.logits)
        return plain.expand(self.batch_shape).sample(key, sample_shape)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        chosen = jax.nn.one_hot(value, self.logits.shape[-1], dtype=self.logits.dtype)
        away = self.logits - self.psi
        bent = jnp.sum(away**2, -1) - jnp.sum(away, -1) ** 2 / away.shape[-1]
        slope = jnp.sum(away * jax.nn.softmax(self.psi, -1), -1)
        return jnp.sum(chosen * self.logits, -1) - logsumexp(self.psi, -1) - slope - bent / 4.0


def map_base(
    fn: dist.Distribution,
    change: Callable[[dist.Distribution], dist.Distribution],
) -> dist.Distribution:
    """Apply `change` to the distribution inside any nest of to_event, mask and expand.

    >>> fn = dist.Bernoulli(logits=jnp.zeros(3)).mask(False).to_event(1)
    >>> type(map_base(fn, lambda base: dist.Normal(base.logits, 1.0)).base_dist.base_dist).__name__
    'Normal'
    """
    if not isinstance(fn, dist.Independent | dist.MaskedDistribution | dist.ExpandedDistribution):
        return change(fn)
    base = map_base(fn.base_dist, change)
    if isinstance(fn, dist.Independent):
        return base.to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, dist.MaskedDistribution):
        return base.mask(fn._mask)
    return base.expand(jax.lax.broadcast_shapes(base.batch_shape, fn.batch_shape))


class EdgeBernoulli(dist.BernoulliLogits):
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


class EdgePoisson(dist.Poisson):
    """A Poisson distribution that at rate zero is a point at zero."""

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        possible = jnp.asarray(self.rate) > 0
        inside = dist.Poisson(jnp.where(possible, self.rate, 1.0)).log_prob(value)
        return jnp.where(possible, inside, jnp.where(jnp.asarray(value) == 0, 0.0, -jnp.inf))


def with_finite_slopes(fn: dist.Distribution) -> dist.Distribution:
    """The same distribution, whose log probability has finite slopes at the edge too."""
    return map_base(fn, _with_finite_slopes)


def _with_finite_slopes(base: dist.Distribution) -> dist.Distribution:
    if isinstance(base, dist.BernoulliProbs):
        probs = clamp_probs(base.probs)  # as its own log probability does
        inside = probs == base.probs
        safe = jnp.where(inside, probs, 0.5)
        edge = lax.stop_gradient(jnp.log(probs) - jnp.log1p(-probs))
        logits = jnp.where(inside, jnp.log(safe) - jnp.log1p(-safe), edge)
        logits = jnp.where(jnp.isnan(base.probs), jnp.nan, logits)
        return EdgeBernoulli(logits, validate_args=base._validate_args)
    if type(base) is dist.BernoulliLogits:
        return EdgeBernoulli(base.logits, validate_args=base._validate_args)
    if type(base) is dist.Poisson:
        return EdgePoisson(base.rate, validate_args=base._validate_args)
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
