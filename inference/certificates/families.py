r"""Distributions whose log probability is concave in predictors that are affine in the bits.

Each is a `Family` in `FAMILIES`, with its proof. A distribution of a program is read by what it is
on bit states alone: `readings` gives the predictors that it may have, and whoever reads it tests
which of them is affine in the bits, and that whatever else the distribution has is free of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, nn
from jax.scipy.special import gammaln, log_ndtr, ndtri
from numpyro.distributions import constraints

LogProb = Callable[..., Array]


class Family(NamedTuple):
    """log p(y | u) of a cell, concave in its predictors u: (cells, predictors) -> (cells,)."""

    name: str
    log_prob: LogProb  # (u, y, *what is free of bits)
    nonnegative: bool = False  # the predictor has to be: weights and bias are tested
    linear: float | None = None  # a value y for which log_prob is linear in u
    peak: str = ""  # where its curvature is largest: "zero", "value"; else at an end of any range
    most: Callable[[dict[str, Any]], Array] | None = None  # a bound of its curvature, (cells,)
    smooth: bool = True

    def at(self, predictor: Array, site: dict[str, Any]) -> tuple[Array, Array, Array]:
        """Log probability (cells,), slope and a size of the curvature (cells, predictors)."""
        power = site["power"]

        def total(u: Array) -> tuple[Array, Array]:
            each = self.log_prob(u, site["value"], *site["fixed"])
            each = jnp.where(power > 0, power * each, 0.0)
            return each.sum(), each

        slope = jax.grad(total, has_aux=True)
        if self.most is not None:
            steep, each = slope(predictor)
            most = (power * self.most(site))[:, None]
            return each, steep, jnp.broadcast_to(most, predictor.shape)
        (steep, each), (curve, _) = jax.jvp(slope, (predictor,), (jnp.ones_like(predictor),))
        # Where it is −∞ autodiff has a slope of 0.
        return each, steep, jnp.where(jnp.isneginf(each)[:, None], jnp.inf, jnp.abs(curve))

    def sharpest(self, low: Array, high: Array, site: dict[str, Any]) -> Array:
        """Where between two predictors the curvature is largest, if it is at neither end."""
        if not self.peak:
            return low
        return jnp.clip(site["value"][:, None] if self.peak == "value" else 0.0, low, high)


def normal(u: Array, y: Array, scale: Array) -> Array:
    r"""A parabola: :math:`-(y - u)^2 / 2\sigma^2`, its second derivative :math:`-1/\sigma^2`."""
    return dist.Normal(u[:, 0], scale).log_prob(y)


def laplace(u: Array, y: Array, scale: Array) -> Array:
    r""":math:`-|y - u| / b`, minus a norm. At the kink any slope between the two is a tangent."""
    return dist.Laplace(u[:, 0], scale).log_prob(y)


def logistic(u: Array, y: Array, scale: Array) -> Array:
    r""":math:`-z - 2 \log(1 + e^{-z})` with :math:`z = (y - u)/s`: its second derivative in z is
    :math:`-2 \sigma(z) \sigma(-z)`."""
    z = (y - u[:, 0]) / scale
    return nn.log_sigmoid(z) + nn.log_sigmoid(-z) - jnp.log(scale)


def logit(u: Array, y: Array, total: Array) -> Array:
    r""":math:`y u - n \log(1 + e^u)` and what is free of u: :math:`-n \sigma(u) \sigma(-u) < 0`."""
    return _ways(y, total) + y * u[:, 0] - total * nn.softplus(u[:, 0])


def probit(u: Array, y: Array, total: Array) -> Array:
    r""":math:`y \log\Phi(u) + (n - y) \log\Phi(-u)`. A normal density is log-concave, hence its
    integral :math:`\Phi` is (Prékopa), and so is :math:`\Phi` of :math:`-u`."""
    none, rest = y > 0, total - y > 0
    first = jnp.where(none, y * log_ndtr(u[:, 0]), 0.0)
    return _ways(y, total) + first + jnp.where(rest, (total - y) * log_ndtr(-u[:, 0]), 0.0)


def _ways(y: Array, total: Array) -> Array:
    return gammaln(total + 1.0) - gammaln(y + 1.0) - gammaln(total - y + 1.0)


def noisy_or(u: Array, y: Array) -> Array:
    r""":math:`-u` for 0, :math:`\log(1 - e^{-u})` for 1, of slope :math:`1/(e^u - 1)`, which falls
    as u grows from 0. At u = 0, a state without cause and leak, it is −∞; tangents are taken at
    points inside, where it is finite, and lie above −∞ too; where u is 0 inside, so it is in every
    state of the box."""
    caused = jnp.where((y > 0) & (u[:, 0] > 0), u[:, 0], 1.0)
    small = caused < 0.6931
    inner = jnp.where(small, jnp.log(-jnp.expm1(-jnp.where(small, caused, 0.5))),
                      jnp.log1p(-jnp.exp(-jnp.where(small, 1.0, caused))))  # fmt: skip
    return jnp.where(y > 0, jnp.where(u[:, 0] > 0, inner, -jnp.inf), -u[:, 0])


def poisson_log(u: Array, y: Array) -> Array:
    r""":math:`y u - e^u - \log y!`, of second derivative :math:`-e^u`."""
    return y * u[:, 0] - jnp.exp(u[:, 0]) - gammaln(y + 1.0)


def poisson(u: Array, y: Array) -> Array:
    r""":math:`y \log u - u - \log y!` for rates u ≥ 0, of second derivative :math:`-y/u^2`."""
    inside = u[:, 0] > 0
    log_rate = jnp.where(y > 0, jnp.log(jnp.where((y > 0) & inside, u[:, 0], 1.0)), 0.0)
    possible = y * log_rate - u[:, 0] - gammaln(y + 1.0)
    return jnp.where((y > 0) & ~inside, -jnp.inf, possible)


def negative_binomial(u: Array, y: Array, size: Array) -> Array:
    r""":math:`y u - (y + r) \log(1 + e^u)` with u the log mean less log r:
    :math:`-(y + r)\sigma(u)\sigma(-u)`."""
    ways = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0)
    return ways + y * u[:, 0] - (y + size) * nn.softplus(u[:, 0])


def categorical(u: Array, y: Array) -> Array:
    r""":math:`u_y - \log \sum_k e^{u_k}`: a log sum of exponentials is convex."""
    chosen = jnp.take_along_axis(u, y[:, None].astype(int), 1)[:, 0]
    return chosen - nn.logsumexp(u, -1)


def ordered(u: Array, y: Array, cuts: Array) -> Array:
    r""":math:`\log(\sigma(c_y - u) - \sigma(c_{y-1} - u))`: the integral of the logistic density,
    which is log-concave, over an interval that u moves (Prékopa). Written as
    :math:`\log\sigma(b) + \log\sigma(-a) + \log(1 - e^{a - b})` for the ends a < b, of which the
    last is free of u."""
    low, high = (nn.log_sigmoid(x) for x in (u - cuts, cuts - u))  # above, below each cut
    zero = jnp.zeros_like(u)
    gap = jnp.log(-jnp.expm1(cuts[:, :-1] - cuts[:, 1:]))
    gap = jnp.concatenate([zero, gap, zero], 1)
    table = jnp.concatenate([zero, low], 1) + jnp.concatenate([high, zero], 1) + gap
    return jnp.take_along_axis(table, y[:, None].astype(int), 1)[:, 0]


NORMAL = Family("normal location", normal)
LAPLACE = Family("Laplace location", laplace, smooth=False, most=lambda x: x["fixed"][0] ** -2)
LOGISTIC = Family("logistic location", logistic, peak="value")
LOGIT = Family("logit", logit, peak="zero")
PROBIT = Family("probit", probit, most=lambda x: x["fixed"][0])
NOISY_OR = Family("noisy-OR", noisy_or, nonnegative=True, linear=0.0)
POISSON_LOG = Family("Poisson log rate", poisson_log)
POISSON = Family("Poisson rate", poisson, nonnegative=True, linear=0.0)
NEGATIVE_BINOMIAL = Family("negative binomial log mean", negative_binomial, peak="zero")
CATEGORICAL = Family("categorical logits", categorical, most=lambda x: 0.5 + 0.0 * x["value"])
ORDERED = Family("ordered logits", ordered, most=lambda x: 0.5 + 0.0 * x["value"])
FAMILIES = (
    NORMAL, LAPLACE, LOGISTIC, LOGIT, PROBIT, NOISY_OR, POISSON_LOG, POISSON, NEGATIVE_BINOMIAL,
    CATEGORICAL, ORDERED,
)  # fmt: skip
"""All of them."""

Reading = tuple[Family, Array, tuple[Array, ...]]
"""A family, its predictors (..., predictors), and what else it has, which is to be free of bits."""


def readings(base: dist.Distribution) -> Iterator[Reading]:
    """The families that a distribution of single cells may be of.

    >>> [family.name for family, *_ in readings(dist.BernoulliProbs(0.5))]
    ['logit', 'probit', 'noisy-OR']
    >>> list(readings(dist.StudentT(3.0)))
    []
    """
    one: Any = base
    locations = {dist.Normal: NORMAL, dist.Laplace: LAPLACE, dist.Logistic: LOGISTIC}
    if type(base) in locations:
        yield locations[type(base)], _last(one.loc), (one.scale,)
    elif base.support is constraints.boolean and not base.event_shape:
        log_one, log_zero = (jnp.asarray(base.log_prob(jnp.asarray(x, float))) for x in (1, 0))
        logits = getattr(one, "logits", log_one - log_zero)
        yield LOGIT, _last(logits), (jnp.ones(()),)
        if hasattr(one, "loc") and hasattr(one, "scale"):  # the sign of a normal
            yield PROBIT, _last(one.loc / one.scale), (jnp.ones(()),)
        else:
            yield PROBIT, _last(_normal_quantile(log_one, log_zero)), (jnp.ones(()),)
        yield NOISY_OR, _last(-log_zero), ()
    elif isinstance(base, dist.BinomialLogits):
        yield LOGIT, _last(one.logits), (one.total_count,)
    elif isinstance(base, dist.BinomialProbs):
        log_one, log_zero = jnp.log(one.probs), jnp.log1p(-one.probs)
        yield LOGIT, _last(log_one - log_zero), (one.total_count,)
        yield PROBIT, _last(_normal_quantile(log_one, log_zero)), (one.total_count,)
    elif isinstance(base, dist.OrderedLogistic):
        yield ORDERED, _last(one.predictor), (one.cutpoints,)
    elif isinstance(base, dist.CategoricalLogits):
        yield CATEGORICAL, jnp.asarray(one.logits), ()
    elif isinstance(base, dist.CategoricalProbs):
        yield CATEGORICAL, jnp.log(one.probs), ()
    elif type(base) is dist.Poisson:
        yield POISSON_LOG, _last(jnp.log(one.rate)), ()
        yield POISSON, _last(one.rate), ()
    elif isinstance(base, dist.GammaPoisson):
        yield NEGATIVE_BINOMIAL, _last(-jnp.log(one.rate)), (one.concentration,)


def _last(x: Any) -> Array:
    return jnp.asarray(x)[..., None]


def _normal_quantile(log_one: Array, log_zero: Array) -> Array:
    """u with Φ(u) the probability of one, from the smaller of the two probabilities."""
    return jnp.where(log_one < log_zero, ndtri(jnp.exp(log_one)), -ndtri(jnp.exp(log_zero)))
