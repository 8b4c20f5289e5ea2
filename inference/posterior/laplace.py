r"""The mode of a density with its curvature, and importance sampling from there.

At the mode :math:`m` of a log density :math:`f` of :math:`\theta \in R^p` the curvature
:math:`H = -\nabla^2 f(m)` is the scale of the density: :math:`N(m, H^{-1})` (Laplace). Draws of it
are weighed by :math:`\exp(f - \log q)`, and Pareto's k̂ of the weights says whether they can be
trusted (Vehtari et al. 2024). One of ten comes from a Student t, so that q has tails (defensive
importance sampling, Hesterberg 1995). Where they cannot be trusted, or too few are effective, a
block of a Student t follows, then blocks of Student ts at the moments of the weighted draws so far
(adaptive multiple importance sampling, Cornuet et al. 2012); every draw is weighed by the mixture
of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy import special
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from ..evaluation.diagnostics import ESS, smoothed
from ..numerics.annealed import good_k

CLIMB = 50
"""Steps of L-BFGS before the first of Newton's: each costs a gradient."""
MOST_STEPS = 30
"""Of Newton's method."""
HIGH = 1e100
"""Minus the log density where it is no number."""
NEAR = 1e-2
"""Nats that a step of Newton's still gains, at which the last one is taken."""
FLATTEST = 1e-10
"""Of the largest curvature: in float64 a smaller one cannot be distinguished from zero."""
TAIL = 5.0
"""Degrees of freedom of Student's t."""
FEWEST = 25
"""Draws whose weights have a tail that can be fitted."""
HOW = ("Laplace", "Student t", "mixture")
"""By the blocks of draws."""
BLOCKS = 4
"""At most, while fewer draws are effective than are asked of chains."""
SHARE = 0.2
"""Of the draws that are to be effective: where fewer are, a tenth of the posterior can lie where no
draw is, and k̂ does not see it (small mixtures, of which a component may be empty)."""
HOPELESS = 1.0
"""A k̂ above which weights have no mean, and three blocks do not mend them."""


class Mode(NamedTuple):
    """A mode and its curvature."""

    place: np.ndarray  # (p,)
    root: np.ndarray  # (p, p), whose product with its transpose is the inverse curvature


class Hill(NamedTuple):
    """Minus a log density, as compiled functions of a place (p,) and further arguments."""

    slope: Callable  # its value and gradient
    hessian: Callable

    @classmethod
    def of(cls, log_density: Callable[..., Array], place: Any, *more: Any) -> Hill:
        """Compile a log density for places and arguments of these shapes."""
        slope = jax.value_and_grad(lambda x, *more: -log_density(x, *more))

        def hessian(x: Array, *more: Any) -> Array:
            gradient = lambda x: slope(x, *more)[1]  # noqa: E731
            along = lambda v: jax.jvp(gradient, (x,), (v,))[1]  # noqa: E731
            return lax.map(along, jnp.eye(len(x), dtype=x.dtype))

        return cls(*(jax.jit(f).lower(place, *more).compile() for f in (slope, hessian)))


def find_mode(hill: Hill, start: np.ndarray, *more: Any) -> Mode:
    """Climb from `start` by L-BFGS, then by Newton's method.

    Where the curvature is negative, its size counts: a step leads up all the same.

    >>> cosh = lambda x: -jnp.sum(jnp.cosh(x - 1.0))
    >>> mode = find_mode(Hill.of(cosh, np.zeros(2)), np.zeros(2))
    >>> np.round(mode.place, 3).tolist(), np.round(mode.root @ mode.root.T, 2).tolist()
    ([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
    """

    def slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = hill.slope(x.astype(start.dtype), *more)
        return np.nan_to_num(float(value), nan=HIGH, posinf=HIGH), np.nan_to_num(gradient)

    place = minimize(slope, start, jac=True, method="L-BFGS-B", options={"maxiter": CLIMB}).x
    for _ in range(MOST_STEPS):
        value, gradient = slope(place)
        hessian = np.asarray(hill.hessian(place.astype(start.dtype), *more), np.float64)
        scales, axes = np.linalg.eigh(0.5 * (hessian + hessian.T))
        scales = np.maximum(np.abs(scales), FLATTEST * np.abs(scales).max())
        root = axes / np.sqrt(scales)
        step = root @ (root.T @ gradient)
        tried = (place - share * step for share in 0.5 ** np.arange(8.0))
        place, before = next((x for x in tried if slope(x)[0] < value), place), place
        # The last step is one for which no Hessian is computed.
        if place is before or 0.5 * gradient @ step < NEAR:
            break
    return Mode(place, root)


def distinct(modes: Sequence[Mode]) -> list[Mode]:
    """Modes that are more than a standard deviation from each before.

    >>> modes = [Mode(np.array([x]), np.eye(1)) for x in (0.0, 0.1, 3.0)]
    >>> [float(x.place[0]) for x in distinct(modes)]
    [0.0, 3.0]
    """
    found: list[Mode] = []
    for mode in modes:
        away = [np.linalg.solve(x.root, mode.place - x.place) for x in found]
        if all(x @ x > 1.0 for x in away):
            found.append(mode)
    return found


class Proposal(NamedTuple):
    """A normal (`tail` infinite) or Student t about a place."""

    place: np.ndarray  # (p,)
    root: np.ndarray  # (p, p), whose product with its transpose is the scale matrix
    tail: float = math.inf  # degrees of freedom

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(count, p)."""
        steps = rng.normal(size=(count, len(self.place)))
        if self.tail < math.inf:
            steps /= np.sqrt(rng.chisquare(self.tail, (count, 1)) / self.tail)
        return self.place + steps @ self.root.T

    def log_prob(self, draws: np.ndarray) -> np.ndarray:
        """(count,)."""
        steps = np.linalg.solve(self.root, (draws - self.place).T).T
        standard = multivariate_t.logpdf(steps, shape=np.eye(len(self.place)), df=self.tail)
        return np.asarray(standard) - np.linalg.slogdet(self.root)[1]


class Weighted(NamedTuple):
    """Draws with importance weights."""

    how: str
    draws: np.ndarray  # (count, p)
    log_p: np.ndarray  # (count,) log density; -inf: outside of what the draws stand for
    log_q: np.ndarray  # (count,) log density of the proposal
    weights: np.ndarray  # (count,) Pareto-smoothed, their sum is one
    pareto_k: float

    @property
    def sound(self) -> bool:
        """Whether k̂ is below its limit for their number, and enough of them are effective."""
        enough = self.effective >= SHARE * len(self.draws)
        return enough and self.pareto_k <= good_k(int((self.weights > 0).sum()))

    @property
    def effective(self) -> float:
        """So many draws of the density itself are as good."""
        return float(1.0 / (self.weights**2).sum())

    @property
    def log_mean(self) -> tuple[float, float]:
        """The log of the mean weight, and its standard error by the delta method."""
        ratios = self.log_p - self.log_q
        value = float(logsumexp(ratios) - math.log(len(ratios)))
        spread = np.exp(ratios - value)
        return value, float(spread.std(ddof=1) / math.sqrt(len(ratios)))

    def resampled(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Indices of `count` draws of equal weight, systematically, in random order."""
        places = (np.arange(count) + rng.random()) / count
        chosen = np.searchsorted(np.cumsum(self.weights), places).clip(max=len(self.weights) - 1)
        return rng.permutation(chosen)


def weigh(how: str, draws: np.ndarray, log_p: np.ndarray, log_q: np.ndarray) -> Weighted:
    """Draws with their smoothed weights; those of density zero weigh nothing."""
    some, k = np.isfinite(log_p), math.inf
    ratios = np.where(some, log_p - log_q, -np.inf)
    weights = special.softmax(ratios) if some.any() else np.full(len(draws), 1.0 / len(draws))
    if some.sum() >= FEWEST:
        smooth, k = smoothed(ratios[some])
        weights[some] = np.exp(smooth)
    return Weighted(how, draws, np.where(some, log_p, -np.inf), log_q, weights, k)


def importance(
    log_density: Callable[[np.ndarray], np.ndarray],
    modes: Sequence[Mode],
    rng: np.random.Generator,
    count: int,
) -> Weighted:
    """Draws about modes whose weights can be trusted, if some of the proposals gives such.

    :param log_density: of draws (count, p); -inf where they do not stand for themselves.
    :param modes: the highest first; each has an equal part of the first draws.

    >>> normal = Mode(np.zeros(2), np.eye(2))
    >>> log_p = lambda x: -0.5 * (x**2).sum(-1)
    >>> found = importance(log_p, [normal], np.random.default_rng(0), 2000)
    >>> found.how, found.effective > 1900, abs(found.log_mean[0] - math.log(2 * math.pi)) < 0.02
    ('Laplace', True, True)
    """
    sizes = np.diff(np.arange(len(modes) + 1) * count // len(modes))
    tails = [(Proposal(x.place, x.root, TAIL), n) for x, n in zip(modes, sizes, strict=True)]
    fresh = [(x._replace(tail=math.inf), n - n // 10) for x, n in tails]
    fresh += [(x, n // 10) for x, n in tails]
    parts: list[tuple[Proposal, int]] = []
    draws, log_p, turn = np.empty((0, len(modes[0].place))), np.empty(0), 0
    for _ in range(BLOCKS):
        parts += fresh
        new = np.concatenate([proposal.draw(rng, size) for proposal, size in fresh])
        draws, log_p = np.concatenate([draws, new]), np.concatenate([log_p, log_density(new)])
        shares = [x.log_prob(draws) + math.log(size / len(draws)) for x, size in parts]
        found = weigh(HOW[turn], draws, log_p, logsumexp(shares, 0))
        enough = found.sound and found.effective >= ESS
        if enough or (turn > 1 and found.pareto_k > HOPELESS):
            break
        if not found.sound:  # otherwise more of the same
            fresh = [(_moments(found, modes[0].root), count)] if turn else tails
            turn = min(turn + 1, 2)
    return found


def _moments(found: Weighted, root: np.ndarray) -> Proposal:
    """A Student t at the weighted draws' mean, its scale theirs as far as they are enough."""
    mean = found.weights @ found.draws
    away = (found.draws - mean) * np.sqrt(found.weights)[:, None]
    share = found.effective / (found.effective + len(mean))
    scale = share * away.T @ away + (1.0 - share) * root @ root.T
    return Proposal(mean, np.linalg.cholesky(scale), TAIL)
