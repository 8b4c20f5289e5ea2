r"""Closed forms for programs whose columns are regressions on shared factors, of any kind.

In programs of the form of `latent_trait` and `mixed_trait` every column hangs on predictors
:math:`A = xW + b`. Each kind of column is bounded below by a quadratic in its predictors, in which

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
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models.mixed_trait import Kind, Layout

from ...numerics.gaussian import solve_each, with_one
from ...reading.distributions import curvature
from ...rows.chunks import over_rows
from ...types import Params


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
    ones: Array  # (P,): Σ target


@dataclasses.dataclass(frozen=True)
class Regressions:
    """The columns of a program, by kind."""

    kinds: tuple[Kind, ...]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.kinds)

    def read(self, values: Params) -> Params:
        """The parameters of the predictors, from those of the form: the same."""
        return values

    written = read
    """The other way round."""

    def base(self, params: Params, ones: Array) -> Array | float:
        """What the log likelihood has beside its predictors, where targets (..., P) were seen."""
        del params, ones
        return 0.0

    def responses(self, value: Array, mask: Array | None = None) -> Responses:
        """What was observed of each column, (n, columns), as its predictors see it."""
        data = jnp.asarray(value).astype(jnp.result_type(float))
        observed = None if mask is None else jnp.asarray(mask).astype(data.dtype)
        layout = self.layout
        if not self.logistic:
            is_level = lambda k, x: (x[..., None] == jnp.arange(1, k)).astype(x.dtype)  # noqa: E731
            levels = {k: is_level(k, data[:, x]) for k, x in layout.categorical.items()}
            data = layout.join(data[:, layout.real], data[:, layout.binary], levels)
            observed = None if observed is None else observed[:, layout.column_of]
        return Responses(data if observed is None else data * observed, observed)

    def centred(self, params: Params, responses: Responses) -> tuple[Params, Responses]:
        """Parameters and data of real columns about their biases, others as they are.

        What expands a square is then off by no more than the columns vary.
        """
        bias, (target, seen) = params["bias"], responses
        shift = jnp.where(np.arange(len(bias)) < len(self.layout.real), bias, 0.0)
        target = target - (shift if seen is None else shift * seen)
        return {**params, "bias": bias - shift}, Responses(target, seen)

    def tangent(self, params: Params, mean: Array, spread: Array) -> tuple[Array, Array]:
        """The residual z − ω A and ω of the bound that touches at these predictors.

        :param mean: ⟨A⟩, (..., P).
        :param spread: variance of A; where it is zero the residual is the true slope (over the
            metric), so that the fixed point is the true maximum. It enters ω of the bits only, (8).
        :return: what is to be added to z's share of the data, and ω: both (..., P).
        """
        del params
        omega = -2.0 * curvature(jnp.sqrt(mean**2 + spread))
        slope = -0.5 - omega * mean
        if self.logistic:
            return slope, omega
        real, _, levels = self.layout.split(mean)
        return self.others(real, slope, levels), self.others(None, omega, levels)

    def others(self, real: Array | None, bits: Array, levels: dict[int, Array]) -> Array:
        """Slopes of all kinds, given those of the bits; without `real`, curvatures."""
        own, bits, _ = self.layout.split(bits)
        if real is None:
            ones = {k: jnp.ones_like(part) for k, part in levels.items()}
            return self.layout.join(jnp.ones_like(own), bits, ones)
        others = {k: spread_out(-softmax(part)) for k, part in levels.items()}
        return self.layout.join(-real, bits, others)

    def mixed(self, target: Array) -> Array:
        """The data's share of z: levels go through B⁻¹ of their column."""
        if not self.layout.categorical:
            return target
        real, bits, levels = self.layout.split(target)
        return self.layout.join(real, bits, {k: spread_out(x) for k, x in levels.items()})

    def metric(self, params: Params, values: Array) -> Array:
        """Predictors (..., P) times the metric of their kind."""
        if self.logistic:
            return values
        real, bits, levels = self.layout.split(values)
        if len(self.layout.real):
            real = real / params["noise"] ** 2
        bent = {k: 0.5 * (x - x.sum(-1, keepdims=True) / k) for k, x in levels.items()}
        return self.layout.join(real, bits, bent)

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
        # A column without answers keeps its parameters instead of dividing by zero.
        trace = jnp.trace(bend, axis1=1, axis2=2)[:, None, None]
        size = bend.shape[-1]
        ridge = 10 * jnp.finfo(bend.dtype).eps * trace / size + 1e-30
        step = solve_each(bend + ridge * jnp.eye(size), slope)
        new = (current + step).T
        updated = {**params, "weights": new[:-1], "bias": new[-1]}
        if len(layout.real):
            at = slice(len(layout.real))
            step = step[at]
            power = sums.power - 2.0 * jnp.sum(step * sums.slope[at], -1)
            power = power + jnp.einsum("pq,pqr,pr->p", step, sums.bend[at], step)
            updated["noise"] = _noise(params, power, sums.number, prior)
        return updated

    def at_points(self, centre: Array) -> tuple[Array, Array, Array]:
        """At known predictors: the true slope without the data's share, and both curvatures."""
        # One tanh serves all: σ(A) = ½ (1 + tanh A/2), σ(1 − σ) = ¼ (1 − tanh²), ω = tanh / 2A.
        bent = jnp.tanh(0.5 * centre)
        small = jnp.abs(centre) < 1e-2
        wide = 0.5 * bent / jnp.where(small, 1.0, centre)
        safe = jnp.where(small, 0.25 - centre**2 / 48.0, wide)
        fast, slope = 0.25 - 0.25 * bent**2, -0.5 - 0.5 * bent
        if self.logistic:
            return slope, safe, fast
        real, _, levels = self.layout.split(centre)
        safe, fast = (self.others(None, bend, levels) for bend in (safe, fast))
        return self.others(real, slope, levels), safe, fast

    def natural(self, params: Params, predictors: Array) -> tuple[Array, Array]:
        """Natural parameters and log partition (S, P) at predictors (S, P)."""
        if self.logistic:
            return predictors, jax.nn.softplus(predictors)
        layout = self.layout
        real, bits, levels = layout.split(predictors)
        own = real
        if len(layout.real):
            own, real = real / params["noise"] ** 2, 0.5 * (real / params["noise"]) ** 2
        sums = {k: first(log_sum(part), k) for k, part in levels.items()}
        return layout.join(own, bits, levels), layout.join(real, jax.nn.softplus(bits), sums)

    def node_sums(self, params: Params, points: Array, target: Array, weight: Array) -> Any:
        """The sums for points (S, Q) that all data share, safe and fast.

        :param target: Σ_n r_sn target_n, (S, P); `weight`: Σ_n r_sn observed_n, (S, P).
        """
        size = points.shape[-1]
        centre = points @ params["weights"] + params["bias"]
        slope, safe, fast = self.at_points(centre)
        moments = with_one(points)
        outer = (moments[:, :, None] * moments[:, None, :]).reshape(len(points), -1)
        total = (slope * weight + self.mixed(target)).T @ moments
        bends = [((x * weight).T @ outer).reshape(-1, size + 1, size + 1) for x in (safe, fast)]
        at = slice(len(self.layout.real))
        # Σ r (y − A)² without its Σ r y², which `monte_carlo` adds.
        power = weight[:, at] * centre[:, at] ** 2 - 2.0 * target[:, at] * centre[:, at]
        first = Sums(total, bends[0], power.sum(0), weight[:, at].sum(0), target.sum(0))
        return first, first._replace(bend=bends[1])

    def advance_both(
        self, params: Params, sums: Any, prior: Callable[[Params], Array] | None
    ) -> tuple[Params, Params, Array]:
        """The M-step with the curvature that is safe and with the one that is fast, and what the
        latter promises to gain, where all columns are bits.

        The two differ in nothing else, and are compiled as one.
        """
        one = lambda bend: self.advance(params, sums[0]._replace(bend=bend), prior)  # noqa: E731
        both = jax.vmap(one)(jnp.stack([x.bend for x in sums]))
        safe, fast = ({name: x[i] for name, x in both.items()} for i in range(2))
        if not self.logistic:
            return safe, fast, jnp.zeros(())
        join = lambda x: jnp.concatenate([x["weights"], x["bias"][None]]).T  # noqa: E731
        step = join(fast) - join(params)
        gain = 0.5 * jnp.einsum("pq,pqr,pr->", step, sums[1].bend, step)
        return safe, fast, gain

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
        # A prior that is not log-concave there adds no curvature: the sum stays positive definite.
        sharper = jnp.maximum(-join(second), 0.0)
        bend = bend * scale[:, None, None] + jax.vmap(jnp.diag)(sharper)
        return slope, bend

    @property
    def share(self) -> Any:
        """Of its information that each predictor gives: see `shared_nodes`."""
        return 1.0

    @property
    def logistic(self) -> bool:
        """Whether every predictor is that of a bit."""
        return all(kind == "binary" for kind in self.kinds)


def _noise(
    params: Params, power: Array, count: Array, prior: Callable[[Params], Array] | None
) -> Array:
    # Of the variance that the last parameters give a column.
    floor = 1e-12 * (jnp.sum(params["weights"][:, : len(power)] ** 2, 0) + params["noise"] ** 2)
    if not params["noise"].shape:  # one for all columns
        power, count, floor = power.sum(), count.sum(), floor.mean()
    floor = floor + 1e-30
    noise = jnp.sqrt(jnp.maximum(power / jnp.maximum(count, 1e-30), floor))
    noise = jnp.where(count > 0, noise, params["noise"])
    if prior is None:
        return noise
    for _ in range(5):  # σ² (count − σ p'(σ)) = power, by fixed point: the prior is weak
        slope = jax.grad(lambda s: prior({**params, "noise": s}))(noise)
        weight = jnp.maximum(count - noise * slope, 0.5 * count + 1e-30)
        noise = jnp.sqrt(jnp.maximum(power / weight, floor))
    return noise


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
    precision = jnp.eye(size) + (bend @ outer.T).reshape(-1, size, size)
    for k, part in levels.items():
        weight = layout.split(weights)[2][k]
        probs = softmax(part) if observed is None else softmax(part) * layout.split(observed)[2][k]
        mean = jnp.einsum("ncj,qcj->ncq", probs, weight)
        precision = precision + jnp.einsum("ncj,qcj,rcj->nqr", probs, weight, weight)
        precision = precision - jnp.einsum("ncq,ncr->nqr", mean, mean)
    return residual @ dual.T - place, precision


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


def softmax(predictors: Array) -> Array:
    """Probabilities of the levels 1, 2, …, whose first companion has predictor 0."""
    return jnp.exp(predictors - log_sum(predictors)[..., None])


def log_sum(predictors: Array) -> Array:
    """log(1 + Σ e^A) over the last axis."""
    top = jax.lax.stop_gradient(jnp.maximum(predictors.max(-1), 0.0))
    return top + jnp.log(jnp.exp(-top) + jnp.exp(predictors - top[..., None]).sum(-1))


def first(values: Array, levels: int) -> Array:
    """A number for a whole column (..., C), put to the first of its K − 1 predictors."""
    zeros = jnp.zeros((*values.shape, levels - 2), values.dtype)
    return jnp.concatenate([values[..., None], zeros], -1)


def spread_out(values: Array) -> Array:
    """B⁻¹ v = 2 (v + 1 Σv), the inverse of Böhning's ½ (I − 11ᵀ/K) on K − 1 levels."""
    return 2.0 * (values + values.sum(-1, keepdims=True))
