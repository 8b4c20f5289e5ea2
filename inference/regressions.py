r"""Closed forms for programs whose columns are regressions on shared factors, of any kind.

For `latent_trait` and `mixed_trait` every column hangs on predictors :math:`A = xW + b`. Each kind
of column is below by a quadratic in its predictors, in which

.. math:: \text{slope at A} = z - \omega A \;(\text{times a metric}), \qquad
          \text{curvature} = -\omega \;(\text{times the same metric})

======== =================================== ========================== =============
kind     z                                   :math:`\omega`             metric
======== =================================== ========================== =============
real     y                                   1                          1/σ²
binary   t − ½                               :math:`2|\lambda(\xi)|`    1
levels   :math:`\psi + B^{-1}(t - softmax)`  1                          B (Böhning)
======== =================================== ========================== =============

The E-step then is (6) and (7) of Tipping (1998), the M-step a weighted regression, his (11), for
every kind. The methods differ only in what they average over. All of it is tested against the
program's own reading, which is the judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from inference.bounds import curvature
from inference.gaussian import invert, with_one
from inference.local import Params
from inference.rows import Arguments
from ppl_models import latent_trait, mixed_trait
from ppl_models.mixed_trait import Kind, Layout


class Responses(NamedTuple):
    """A chunk of the data, a column for each predictor."""

    target: Array  # (n, P): the value, the bit, or 1 for the level that was found; 0 where unseen
    seen: Array | None  # (n, P), 1 where observed; None if everything is


class Sums(NamedTuple):
    """Sums over data of what the M-step wants; they add over chunks and devices."""

    slope: Array  # (P, Q + 1): Σ ⟨(z − ω A) x̂⟩
    bend: Array  # (P, Q + 1, Q + 1): Σ ω ⟨x̂ x̂ᵀ⟩
    power: Array  # (R,): Σ ⟨(y − A)²⟩ of the real columns
    number: Array  # (R,): how many were seen


@dataclasses.dataclass(frozen=True)
class Regressions:
    """The columns of a program, by kind."""

    kinds: tuple[Kind, ...]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.kinds)

    def responses(self, arguments: Arguments) -> Responses:
        """The data of a chunk as its predictors see them."""
        args, kwargs = arguments
        data = jnp.asarray(args[0] if args else kwargs["data"])
        mask = kwargs.get("mask")
        data = data.astype(jnp.result_type(float))
        seen = None if mask is None else jnp.asarray(mask).astype(data.dtype)
        layout = self.layout
        if not self._plain:
            levels = {
                k: (data[:, columns, None] == jnp.arange(1, k)).astype(data.dtype)
                for k, columns in layout.categorical.items()
            }
            data = layout.join(data[:, layout.real], data[:, layout.binary], levels)
            seen = None if seen is None else seen[:, layout.column_of]
        return Responses(data if seen is None else data * seen, seen)

    def tangent(self, params: Params, mean: Array, spread: Array) -> tuple[Array, Array]:
        """The residual z − ω A and ω of the bound that touches at these predictors.

        :param mean: ⟨A⟩, (..., P).
        :param spread: variance of A; where it is nought the residual is the true slope (over the
            metric), so that the fixed point is the true maximum. It enters ω of the bits only, (8).
        :return: what is to be added to z's share of the data, and ω: both (..., P).
        """
        del params
        omega = -2.0 * curvature(jnp.sqrt(mean**2 + spread))
        slope = -0.5 - omega * mean
        if self._plain:
            return slope, omega
        real, _, levels = self.layout.split(mean)
        return self._others(real, slope, levels), self._others(None, omega, levels)

    def _others(self, real: Array | None, bits: Array, levels: dict[int, Array]) -> Array:
        """Slopes of all kinds, given those of the bits; without `real`, curvatures."""
        own, bits, _ = self.layout.split(bits)
        if real is None:
            ones = {k: jnp.ones_like(part) for k, part in levels.items()}
            return self.layout.join(jnp.ones_like(own), bits, ones)
        others = {k: _spread_out(-_softmax(part)) for k, part in levels.items()}
        return self.layout.join(-real, bits, others)

    def mixed(self, target: Array) -> Array:
        """The data's share of z: levels go through B⁻¹ of their column."""
        if not self.layout.categorical:
            return target
        real, bits, levels = self.layout.split(target)
        return self.layout.join(real, bits, {k: _spread_out(x) for k, x in levels.items()})

    def metric(self, params: Params, values: Array) -> Array:
        """Predictors (..., P) times the metric of their kind."""
        if self._plain:
            return values
        real, bits, levels = self.layout.split(values)
        if len(self.layout.real):
            real = real / params["noise"] ** 2
        bent = {k: 0.5 * (x - x.sum(-1, keepdims=True) / k) for k, x in levels.items()}
        return self.layout.join(real, bits, bent)

    def bound_at_bias(
        self, params: Params, responses: Responses, mean: Array, spread: Array
    ) -> Array:
        """The log of the bound at x = 0, that is at A = b, summed over columns: (n,)."""
        layout, bias, target = self.layout, params["bias"], responses.target
        xi = jnp.sqrt(mean**2 + spread)
        values = (target - 0.5) * bias + jax.nn.log_sigmoid(xi) - 0.5 * xi
        values = values + curvature(xi) * (bias**2 - xi**2)
        if not self._plain:
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
                part = jnp.sum(hot[k] * levels[k], -1) - _log_sum(point)
                parts[k] = _first(part - jnp.sum(away * _softmax(point), -1) - bent, k)
            values = layout.join(own, split(values)[1], parts)
        return jnp.sum(values if responses.seen is None else values * responses.seen, -1)

    def bound_posterior(
        self, params: Params, responses: Responses, mean: Array, covariance: Array
    ) -> tuple[Array, Array, Array]:
        """Eqs. (8), (6), (7): from one Gaussian posterior to the next, better one.

        :return: mean (n, Q), covariance (n, Q, Q), log of the bound on the evidence (n,).
        """
        weights, bias = params["weights"], params["bias"]
        centre, spread = self.predict(params, mean, covariance)
        residual, omega = self.tangent(params, centre, spread)
        right = residual + omega * centre + self.mixed(responses.target) - omega * bias
        if responses.seen is not None:
            right, omega = right * responses.seen, omega * responses.seen
        dual = self.metric(params, weights)
        size = len(weights)
        outer = (dual[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
        precision = jnp.eye(size) + (omega @ outer.T).reshape(-1, size, size)
        linear = right @ dual.T
        covariance, log_det = invert(precision)
        mean = jnp.einsum("nqr,nr->nq", covariance, linear)
        constant = self.bound_at_bias(params, responses, centre, spread)
        return mean, covariance, constant + 0.5 * jnp.sum(mean * linear, -1) - 0.5 * log_det

    def predict(self, params: Params, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Mean and variance of every predictor under Gaussian factors, (n, P) each."""
        weights = params["weights"]
        size = len(weights)
        outer = (weights[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
        spread = covariance.reshape(-1, size * size) @ outer
        return mean @ weights + params["bias"], jnp.maximum(spread, 0.0)

    def gaussian_sums(
        self, params: Params, responses: Responses, mean: Array, covariance: Array, heavy: Array
    ) -> Sums:
        """The sums of (11) and (12) under Gaussian posteriors, row n counted `heavy[n]` times."""
        centre, spread = self.predict(params, mean, covariance)
        residual, omega = self.tangent(params, centre, spread)
        residual = residual + self.mixed(responses.target)
        seen = heavy[:, None] if responses.seen is None else heavy[:, None] * responses.seen
        residual, omega = residual * seen, omega * seen
        moments = with_one(mean)
        outer = moments[:, :, None] * moments[:, None, :]
        size = mean.shape[-1]
        outer = outer.at[:, :size, :size].add(covariance)
        bend = (omega.T @ outer.reshape(len(mean), -1)).reshape(-1, size + 1, size + 1)
        around = (omega.T @ covariance.reshape(len(mean), -1)).reshape(-1, size, size)
        slope = residual.T @ moments
        slope = slope.at[:, :size].add(-jnp.einsum("pqr,rp->pq", around, params["weights"]))
        at = slice(len(self.layout.real))
        power = (responses.target - centre)[:, at] ** 2 + spread[:, at]
        seen = jnp.broadcast_to(seen, omega.shape)[:, at]
        return Sums(slope, bend, jnp.sum(power * seen, 0), jnp.sum(seen, 0))

    def point_sums(
        self, params: Params, responses: Responses, points: Array, probability: Array
    ) -> tuple[Sums, Sums]:
        """The same sums under posteriors on points (S, n, Q) with probabilities (S, n).

        :return: with the curvature of the bits' bound, which is safe; and with their own, which is
            fast when close.
        """
        size = points.shape[-1]
        centre = points @ params["weights"] + params["bias"]  # (S, n, P)
        slope, safe, fast = self._at_points(centre)
        weight = probability[..., None]
        if responses.seen is not None:
            weight = weight * responses.seen
        moments = with_one(points).reshape(-1, size + 1)
        outer = (moments[:, :, None] * moments[:, None, :]).reshape(len(moments), -1)
        flat = lambda x: (x * weight).reshape(-1, x.shape[-1]).T  # noqa: E731
        total = flat(slope + self.mixed(responses.target)) @ moments
        bends = [(flat(x) @ outer).reshape(-1, size + 1, size + 1) for x in (safe, fast)]
        at = slice(len(self.layout.real))
        seen = jnp.broadcast_to(weight, centre.shape)[..., at]
        power = jnp.sum((responses.target - centre)[..., at] ** 2 * seen, (0, 1))
        count = jnp.sum(seen, (0, 1))
        return Sums(total, bends[0], power, count), Sums(total, bends[1], power, count)

    def _at_points(self, centre: Array) -> tuple[Array, Array, Array]:
        """At known predictors: the true slope without the data's share, and both curvatures."""
        # One tanh serves all: σ(A) = ½ (1 + tanh A/2), σ(1 − σ) = ¼ (1 − tanh²), ω = tanh / 2A.
        bent = jnp.tanh(0.5 * centre)
        small = jnp.abs(centre) < 1e-2
        wide = 0.5 * bent / jnp.where(small, 1.0, centre)
        safe = jnp.where(small, 0.25 - centre**2 / 48.0, wide)
        fast, slope = 0.25 - 0.25 * bent**2, -0.5 - 0.5 * bent
        if self._plain:
            return slope, safe, fast
        real, _, levels = self.layout.split(centre)
        safe, fast = (self._others(None, bend, levels) for bend in (safe, fast))
        return self._others(real, slope, levels), safe, fast

    def point_log_likelihood(self, params: Params, responses: Responses, points: Array) -> Array:
        """log p(t_n | x) at points (S, n, Q): (S, n)."""
        target, seen = responses
        centre = points @ params["weights"] + params["bias"]
        if self._plain:
            return _bits(target, seen, centre)
        layout = self.layout
        (real, bits, levels), (own, ones, hot) = layout.split(centre), layout.split(target)
        know = (None, None, {}) if seen is None else layout.split(seen)
        total = _bits(ones, know[1], bits) if len(layout.binary) else jnp.zeros(points.shape[:2])
        if len(layout.real):
            away = (own - real) / params["noise"]
            part = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
            total = total + jnp.sum(part if know[0] is None else part * know[0], -1)
        for k, predictors in levels.items():
            # In two sums, one for each shape: XLA's CPU compiler gets the sum of both wrong.
            total = total + jnp.sum(hot[k] * predictors, (-2, -1))
            rest = _log_sum(predictors)
            total = total - jnp.sum(rest if seen is None else rest * know[2][k][..., 0], -1)
        return total

    def advance(
        self, params: Params, sums: Sums, prior: Callable[[Params], Array] | None = None
    ) -> Params:
        """The M-step: every column's regression, and the noise of the real ones at its outcome.

        :param prior: log density of the parameters; its slope and curvature join those of the data.
        """
        layout = self.layout
        current = jnp.concatenate([params["weights"], params["bias"][None]]).T  # (P, Q + 1)
        slope, bend = sums.slope, sums.bend
        if prior is not None:
            slope, bend = self._with_prior(params, slope, bend, prior)
        # A column that nobody answered keeps its parameters instead of dividing by nought.
        trace = jnp.trace(bend, axis1=1, axis2=2)[:, None, None]
        size = bend.shape[-1]
        ridge = 10 * jnp.finfo(bend.dtype).eps * trace / size + 1e-30
        step = jnp.linalg.solve(bend + ridge * jnp.eye(size), slope[..., None])[..., 0]
        new = (current + step).T
        out = {**params, "weights": new[:-1], "bias": new[-1]}
        if len(layout.real):
            at = slice(len(layout.real))
            step = step[at]
            power = sums.power - 2.0 * jnp.sum(step * sums.slope[at], -1)
            power = power + jnp.einsum("pq,pqr,pr->p", step, sums.bend[at], step)
            out["noise"] = _noise(params, power, sums.number, prior)
        return out

    def _with_prior(
        self, params: Params, slope: Array, bend: Array, prior: Callable[[Params], Array]
    ) -> tuple[Array, Array]:
        real, bits, levels = self.layout.split(jnp.ones(self.layout.num_predictors))
        if len(self.layout.real):
            real = real / params["noise"] ** 2
        # B ≤ ½ I: still a bound, and no column is coupled.
        scale = self.layout.join(real, bits, {k: 0.5 * part for k, part in levels.items()})
        gradient = jax.grad(prior)
        ones = {
            k: jnp.ones_like(v) if k != "noise" else jnp.zeros_like(v) for k, v in params.items()
        }
        first, second = jax.jvp(gradient, (params,), (ones,))
        join = lambda x: jnp.concatenate([x["weights"], x["bias"][None]]).T  # noqa: E731
        slope = self.metric(params, slope.T).T + join(first)
        bend = bend * scale[:, None, None] - jax.vmap(jnp.diag)(join(second))
        return slope, bend

    # What follows is for points that all data share: the likelihood is then one matrix product.
    def natural(self, params: Params, predictors: Array) -> tuple[Array, Array]:
        """Natural parameters and log partition (S, P) at predictors (S, P)."""
        if self._plain:
            return predictors, jax.nn.softplus(predictors)
        layout = self.layout
        real, bits, levels = layout.split(predictors)
        own = real
        if len(layout.real):
            own, real = real / params["noise"] ** 2, 0.5 * (real / params["noise"]) ** 2
        sums = {k: _first(_log_sum(part), k) for k, part in levels.items()}
        return layout.join(own, bits, levels), layout.join(real, jax.nn.softplus(bits), sums)

    def log_likelihood(self, params: Params, responses: Responses, points: Array) -> Array:
        """log p(t_n | x_s) at points (S, Q): (S, n), by matrix products."""
        predictors = points @ params["weights"] + params["bias"]
        natural, partition = self.natural(params, predictors)
        table = natural @ responses.target.T
        if responses.seen is None:
            table = table - partition.sum(-1)[:, None]
        else:
            table = table - partition @ responses.seen.T
        if len(self.layout.real):
            at = slice(len(self.layout.real))
            away = responses.target[:, at] / params["noise"]
            own = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
            table = table + (own if responses.seen is None else own * responses.seen[:, at]).sum(-1)
        return table

    def shared_sums(
        self, params: Params, points: Array, found: Array, weight: Array
    ) -> tuple[Sums, Sums]:
        """The sums for points (S, Q) that all data share, safe and fast.

        :param found: Σ_n r_sn target_n, (S, P); `weight`: Σ_n r_sn seen_n, (S, P).
        """
        size = points.shape[-1]
        centre = points @ params["weights"] + params["bias"]
        slope, safe, fast = self._at_points(centre)
        moments = with_one(points)
        outer = (moments[:, :, None] * moments[:, None, :]).reshape(len(points), -1)
        total = (slope * weight + self.mixed(found)).T @ moments
        bends = [((x * weight).T @ outer).reshape(-1, size + 1, size + 1) for x in (safe, fast)]
        at = slice(len(self.layout.real))
        # Σ r (y − A)² without its Σ r y², which `monte_carlo` adds.
        power = weight[:, at] * centre[:, at] ** 2 - 2.0 * found[:, at] * centre[:, at]
        power, count = power.sum(0), weight[:, at].sum(0)
        return Sums(total, bends[0], power, count), Sums(total, bends[1], power, count)

    @property
    def _plain(self) -> bool:
        return all(kind == "binary" for kind in self.kinds)


def _bits(target: Array, seen: Array | None, centre: Array) -> Array:
    """Σ_i log Bernoulli(t_i; σ(A_i)) over the last axis.

    Σ log(1 + e^{−|A|}) is the log of a product, taken of 64 columns at once: each factor is at most
    2, so that nothing overflows, and a logarithm costs as much as all the rest.
    """
    factor = 1.0 + jnp.exp(-jnp.abs(centre))
    main = target * centre - jnp.maximum(centre, 0.0)
    if seen is not None:
        main, factor = main * seen, jnp.where(seen > 0, factor, 1.0)
    groups = [factor[..., start : start + 64] for start in range(0, factor.shape[-1], 64)]
    return jnp.sum(main, -1) - sum(jnp.log(jnp.prod(group, -1)) for group in groups)


def _softmax(predictors: Array) -> Array:
    """Probabilities of the levels 1, 2, …, whose first companion has predictor 0."""
    return jnp.exp(predictors - _log_sum(predictors)[..., None])


def _log_sum(predictors: Array) -> Array:
    """log(1 + Σ e^A) over the last axis."""
    top = jax.lax.stop_gradient(jnp.maximum(predictors.max(-1), 0.0))
    return top + jnp.log(jnp.exp(-top) + jnp.exp(predictors - top[..., None]).sum(-1))


def _first(values: Array, levels: int) -> Array:
    """A number for a whole column (..., C), put to the first of its K − 1 predictors."""
    zeros = jnp.zeros((*values.shape, levels - 2), values.dtype)
    return jnp.concatenate([values[..., None], zeros], -1)


def _spread_out(values: Array) -> Array:
    """B⁻¹ v = 2 (v + 1 Σv), the inverse of Böhning's ½ (I − 11ᵀ/K) on K − 1 levels."""
    return 2.0 * (values + values.sum(-1, keepdims=True))


def _noise(
    params: Params, power: Array, count: Array, prior: Callable[[Params], Array] | None
) -> Array:
    floor = 1e-6
    noise = jnp.sqrt(jnp.maximum(power / jnp.maximum(count, 1e-30), floor**2))
    noise = jnp.where(count > 0, noise, params["noise"])
    if prior is None:
        return noise
    for _ in range(5):  # σ² (count − σ p'(σ)) = power, by fixed point: the prior is weak
        slope = jax.grad(lambda s: prior({**params, "noise": s}))(noise)
        weight = jnp.maximum(count - noise * slope, 0.5 * count + 1e-30)
        noise = jnp.sqrt(jnp.maximum(power / weight, floor**2))
    return noise


def regressions_of(model: Any, args: tuple, kwargs: dict) -> Regressions | None:
    """The columns of a program that is known to be of this kind, or None."""
    given = dict(kwargs)
    while isinstance(model, partial):
        given, model = {**model.keywords, **given}, model.func
    if model is latent_trait:
        data = args[0] if args else given["data"]
        return Regressions(("binary",) * jnp.shape(data)[1])
    if model is mixed_trait:
        return Regressions(tuple(given["kinds"]))
    return None
