"""Annealed importance sampling: a ratio of normalisers, with its standard error.

Neal, *Annealed importance sampling*, Statistics and Computing 11, 2001. Chains start as exact draws
of an easy density :math:`f_0` and are led to a hard one by way of densities between them,

.. math:: \\log w = \\sum_{k=1}^K \\log f_{\\beta_k}(x_{k-1}) - \\log f_{\\beta_{k-1}}(x_{k-1}),
          \\qquad x_k \\sim T_{\\beta_k}(\\cdot \\mid x_{k-1}),

where :math:`T_\\beta` leaves :math:`f_\\beta` as it is. The mean of :math:`w` is
:math:`Z_{\\beta_K} / Z_{\\beta_0}`, without bias; its log is then too small rather than too large.

Nothing here knows of any model: a state is any pytree, a chain any leading axes of it. With
:math:`f_\\beta(z) = p(z)\\, p(y \\mid z)^\\beta` and chains that start from the prior, the ratio is
the likelihood of a datum; with data and chains as two axes, those of all data at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from .log_sums import normalise

LogDensity = Callable[[Any, Array], Array]
Transition = Callable[[Array, Any, Array], Any]


class Annealed(NamedTuple):
    """Where the chains ended, and what they weigh."""

    log_weights: Array  # the shape that the log density has
    states: Any  # weighted draws from the last density


class LogMean(NamedTuple):
    """The log of a mean of weights."""

    value: Array
    standard_error: Array  # of the value, by the delta method
    effective: Array  # (Σw)² / Σw²: of how many equal weights the mean is worth


def anneal(
    rng_key: Array, states: Any, log_density: LogDensity, transition: Transition, betas: Array
) -> Annealed:
    """Lead chains from the first density to the last, in one `lax.scan`.

    :param states: exact draws from the density at ``betas[0]``, any pytree.
    :param log_density: ``log_density(states, beta)``, not normalised; one number per chain.
    :param transition: ``transition(key, states, beta) -> states``, a Markov step that keeps the
        density at ``beta``.
    :param betas: (num_densities,), from the first to the last density.

    >>> log_density = lambda x, beta: -0.5 * (x * (1 + beta)) ** 2  # widths 1 and 1/2
    >>> draw = lambda key, x, beta: random.normal(key, x.shape) / (1 + beta)
    >>> start = random.normal(random.key(0), (1000,))
    >>> chains = anneal(random.key(1), start, log_density, draw, jnp.linspace(0.0, 1.0, 50))
    >>> ratio = log_mean(chains.log_weights)
    >>> bool(abs(ratio.value - jnp.log(0.5)) < 3 * ratio.standard_error)
    True
    """
    betas = jnp.asarray(betas, float)
    if betas.ndim != 1 or betas.shape[0] < 2:
        raise ValueError(f"betas must be at least two numbers in a row, found shape {betas.shape}")

    def step(carry: tuple[Any, Array], betas: tuple[Array, Array, Array]) -> tuple[Any, None]:
        (states, log_weights), (before, after, key) = carry, betas
        # A chain that met an impossible state weighs nothing, wherever it goes from there.
        old, new = log_density(states, before), log_density(states, after)
        log_weights = log_weights + jnp.where(jnp.isneginf(old), 0.0, new - old)
        return (transition(key, states, after), log_weights), None

    shape = jax.eval_shape(log_density, states, betas[0])
    keys = random.split(rng_key, betas.shape[0] - 1)
    start = (states, jnp.zeros(shape.shape, shape.dtype))
    (states, log_weights), _ = lax.scan(step, start, (betas[:-1], betas[1:], keys))
    return Annealed(log_weights, states)


def log_mean(log_weights: Array, axis: int = 0) -> LogMean:
    r"""The log of the mean weight over an axis of independent chains, and its standard error.

    .. math:: \log \bar w, \qquad \mathrm{se} = \frac{\mathrm{sd}(w)}{\bar w \sqrt S}

    One chain has no standard error: it is NaN. That of weights which are all zero is infinite.

    >>> round(float(log_mean(jnp.log(jnp.array([1.0, 2.0, 3.0]))).standard_error), 4)  # 1 / (2 √3)
    0.2887
    """
    count = log_weights.shape[axis]
    total, share = normalise(log_weights, axis)
    lost = jnp.isneginf(total)
    spread = jnp.sum((share - 1 / count) ** 2, axis=axis)
    error = jnp.sqrt(spread * count / (count - 1)) if count > 1 else jnp.full_like(total, jnp.nan)
    effective = jnp.where(lost, 0.0, 1.0 / jnp.sum(share**2, axis=axis))
    return LogMean(total - jnp.log(count), jnp.where(lost, jnp.inf, error), effective)


def good_k(num_draws: int) -> float:
    """The largest Pareto k̂ at which so many draws can be trusted, as ArviZ has it.

    >>> round(good_k(500), 3), good_k(4000)
    (0.629, 0.7)
    """
    return min(1.0 - 1.0 / math.log10(max(num_draws, 11)), 0.7)
