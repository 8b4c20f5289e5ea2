r"""Bits with a lower asymptote (3PL), P(t = 1 | x) = g + (1 − g) σ(A): the closed forms.

An answer is right if it is known, with probability σ(A), or else guessed, with probability g. Given
how many answers are expected to be known, weights are a logistic regression and g is a share: EM
within the M-step, which is safe. Fisher's scoring in weights, bias and logit of g, damped, is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ...numerics.gaussian import solve_each, with_one
from ...types import Params
from .regressions import Regressions, Sums

FIRST_GUESS = 0.15
"""Of an asymptote."""
LEAST_GUESS = 1e-6
"""Nothing shows a smaller one."""
DAMPING = 0.03
"""Of the information of complete data, added to Fisher's. Without a prior an asymptote and the rest
of its curve trade off: that direction is nearly flat, and a step of scoring goes far beyond where
its parabola holds. So it goes no further than some thirty steps of EM. Of 0, 0.03, 0.1 and 0.3 this
one took the fewest steps on four simulated tables."""


class GuessingSums(NamedTuple):
    """Sums over nodes."""

    known: Sums  # of the regression on answers that are known
    guesses: Array  # (2, P): right and wrong ones among the answers that are not known
    slope: Array  # (P, Q + 2): of the log likelihood in weights, bias and logit of g
    bend: Array  # (P, Q + 2, Q + 2): Fisher's information


@dataclasses.dataclass(frozen=True)
class Guessing(Regressions):
    """Columns of bits, each with an asymptote of its own."""

    def natural(self, params: Params, predictors: Array) -> tuple[Array, Array]:
        guess = params["guessing"]
        lowest = jnp.log1p(-guess) - jax.nn.softplus(predictors)
        known = jnp.log1p(-guess) + jax.nn.log_sigmoid(predictors)
        return jnp.logaddexp(jnp.log(guess), known) - lowest, -lowest

    def node_sums(self, params: Params, points: Array, target: Array, weight: Array) -> Any:
        guess = params["guessing"]
        sigma = jax.nn.sigmoid(points @ params["weights"] + params["bias"])
        prob = guess + (1.0 - guess) * sigma
        known = target * sigma / prob
        safe, _ = super().node_sums(params, points, known, weight)
        guesses = jnp.stack([(target - known).sum(0), (weight - target).sum(0)])
        moments = with_one(points)
        size = moments.shape[-1]
        residual = (target - weight * prob) / prob
        slope = jnp.concatenate(
            [(residual * sigma).T @ moments, (residual * guess).sum(0)[:, None]], -1
        )
        share = weight * (1.0 - guess) * (1.0 - sigma) / prob
        outer = (moments[:, :, None] * moments[:, None, :]).reshape(len(points), -1)
        own = ((share * sigma**2).T @ outer).reshape(-1, size, size)
        cross = (share * sigma * guess).T @ moments
        low = (share * guess**2).sum(0)
        right = jnp.concatenate([cross, low[:, None]], -1)[:, None]
        bend = jnp.concatenate([own, cross[..., None]], -1)
        return GuessingSums(safe, guesses, slope, jnp.concatenate([bend, right], -2))

    def advance_both(
        self, params: Params, sums: Any, prior: Callable[[Params], Array] | None
    ) -> tuple[Params, Params, Array]:
        guess = params["guessing"]
        fixed = None
        first = second = jax.tree.map(jnp.zeros_like, params)
        if prior is not None:
            fixed = lambda some: prior({**params, **some})  # noqa: E731
            ones = jax.tree.map(jnp.ones_like, params)
            first, second = jax.jvp(jax.grad(prior), (params,), (ones,))
        regressed = {name: params[name] for name in ("weights", "bias")}
        safe = self.advance(regressed, sums.known, fixed)
        # A prior with this slope and curvature counts as that many guesses: those of a Beta.
        own, bent = first["guessing"], second["guessing"]
        right = sums.guesses[0] + guess**2 * (own - (1.0 - guess) * bent)
        wrong = sums.guesses[1] - (1.0 - guess) ** 2 * (own + guess * bent)
        share = jnp.maximum(right, 0.0) / jnp.maximum(right + wrong, 1e-30)
        safe = {**params, **safe, "guessing": jnp.clip(share, LEAST_GUESS, 1.0 - LEAST_GUESS)}

        spread = guess * (1.0 - guess)
        low = -(spread**2) * bent - spread * (1.0 - 2.0 * guess) * own
        join = lambda x, last: jnp.concatenate([x["weights"], x["bias"][None], last[None]]).T  # noqa: E731
        slope = sums.slope + join(first, spread * own)
        curvature = jnp.maximum(-join(second, -low), 0.0)
        size = slope.shape[-1]
        ridge = 1e-6 * jnp.trace(sums.bend, axis1=1, axis2=2)[:, None] / size + 1e-30
        complete = jnp.zeros_like(sums.bend).at[:, :-1, :-1].set(sums.known.bend)
        complete = complete.at[:, -1, -1].set(spread * sums.guesses.sum(0))
        bend = sums.bend + DAMPING * complete + jax.vmap(jnp.diag)(curvature + ridge)
        step = solve_each(bend, slope)
        gain = 0.5 * jnp.sum(step * slope)
        logit = jnp.log(guess) - jnp.log1p(-guess) + step[:, -1]
        low_guess = jnp.clip(jax.nn.sigmoid(logit), LEAST_GUESS, 1.0 - LEAST_GUESS)
        fast = {
            **params, "weights": params["weights"] + step[:, :-2].T,
            "bias": params["bias"] + step[:, -2], "guessing": low_guess,
        }  # fmt: skip
        return safe, fast, gain


def guessing_start(bits: Params, num_data: Array | int) -> Params:
    """The start of columns of bits, `bits`, with what is guessed taken out of the shares."""
    share = jax.nn.sigmoid(bits["bias"])
    known = jnp.clip((share - FIRST_GUESS) / (1.0 - FIRST_GUESS), 0.1, 1.0 - 0.5 / num_data)
    steeper = share * (1.0 - share) / (known * (1.0 - known))
    weights = jnp.clip(bits["weights"] * steeper, -4.0, 4.0)
    bias = jnp.log(known) - jnp.log1p(-known)
    return {"weights": weights, "bias": bias, "guessing": jnp.full_like(bias, FIRST_GUESS)}
