r"""Is a posterior what it says? The rank of the truth among its draws is uniform if it is.

Simulation-based calibration (Talts, Betancourt, Simpson, Vehtari & Gelman 2018): draw parameters
from the prior, data given them, and draws from the posterior given the data. The truth is then one
more draw from that posterior, so that its rank among L independent ones is uniform on 0, …, L, for
any scalar of parameters and data; whatever is wrong with the method shows as another distribution.

Whether N ranks are uniform is judged by their empirical distribution function, within a band that
holds all of it at once (Säilynoja, Bürkner & Vehtari 2022). At a point z the number of ranks below
is Binomial(N, z); a band that takes the same share γ of each of these leaves out more than γ of the
whole curves. How much more is exact: the counts at successive points are a Markov chain,

.. math:: C_{k+1} - C_k \mid C_k \sim
          \mathrm{Binomial}\Big(N - C_k, \frac{z_{k+1} - z_k}{1 - z_k}\Big) .

Nothing here knows a program: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

NUM_DRAWS = 79
"""Draws that the truth is ranked among: 80 ranks, of which 40, 64 and 76 are exactly the central
50, 80 and 95 %."""
MOST_POINTS = 50
"""Points of the curve, at most."""
LEVEL = 0.95
"""Share of uniform curves that the band holds."""
POWER = 0.8
"""Probability with which `power` wants a miscalibration shown."""
LEVELS = (0.5, 0.8, 0.95)
"""Of central intervals, whose coverage is counted."""


class Band(NamedTuple):
    """What holds the counts of ranks below each point, for `LEVEL` of all uniform curves."""

    points: np.ndarray  # (num_points,) within (0, 1)
    lower: np.ndarray  # (num_points,) least and greatest share of ranks below the point
    upper: np.ndarray


def ranks(truth: np.ndarray, draws: np.ndarray, seed: int = 0) -> np.ndarray:
    """How many draws lie below the truth, (num_trials,); among equals the place is drawn by lot.

    :param truth: (num_trials,)
    :param draws: (num_trials, num_draws)

    >>> ranks(np.array([0.5, 9.0]), np.array([[0.1, 0.4, 0.6], [1.0, 2.0, 3.0]])).tolist()
    [2, 3]
    """
    truth, draws = np.asarray(truth), np.asarray(draws)
    if draws.ndim != 2 or truth.shape != draws.shape[:1]:
        raise ValueError(
            f"truth must be (num_trials,) and draws (num_trials, num_draws), found "
            f"{truth.shape} and {draws.shape}"
        )
    below = (draws < truth[:, None]).sum(1)
    equal = (draws == truth[:, None]).sum(1)
    return below + np.random.default_rng(seed).integers(0, equal + 1)


def p_value(ranked: np.ndarray, num_draws: int) -> float:
    """The share of uniform curves that stray at least as far from the diagonal as this one.

    Exact: nothing is simulated. The curve is within the band of `LEVEL` just if this is more than
    1 − `LEVEL`.

    >>> round(p_value(np.arange(100), 99), 3)
    1.0
    >>> p_value(np.full(100, 7), 99) < 1e-6
    True
    """
    chain = _chain(len(ranked), num_draws + 1)
    counts = _counts(ranked, chain.steps)
    stray = chain.tails[np.arange(len(counts)), counts].min()
    return float(np.clip(1.0 - chain.stays(stray), 0.0, 1.0))


def band(num_trials: int, num_draws: int, level: float = LEVEL) -> Band:
    """The simultaneous band about the diagonal.

    >>> envelope = band(100, 99)
    >>> float(envelope.points[24]), float(envelope.lower[24]), float(envelope.upper[24])
    (0.5, 0.36, 0.64)
    """
    chain = _chain(num_trials, num_draws + 1)
    # The widest share that may be cut off each side: one of the tail probabilities there are.
    shares = np.unique(np.append(chain.tails, 0.0))
    low, high = 0, len(shares)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chain.stays(shares[middle]) >= level else (low, middle)
    inside = chain.tails > shares[low] * (1.0 + 1e-9)
    lower = inside.argmax(1) / num_trials
    upper = 1.0 - inside[:, ::-1].argmax(1) / num_trials
    return Band(chain.steps / (num_draws + 1), lower, upper)


def curve(ranked: np.ndarray, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of the band, and the share of ranks below each.

    >>> points, share = curve(np.array([0, 1, 2, 3]), 3)
    >>> points.tolist(), share.tolist()
    ([0.25, 0.5, 0.75], [0.25, 0.5, 0.75])
    """
    steps = _steps(len(ranked), num_draws + 1)
    return steps / (num_draws + 1), _counts(ranked, steps) / len(ranked)


def shape(ranked: np.ndarray, num_draws: int) -> str:
    """What the ranks say of the draws, in words: how they lie about the truth.

    The mean of uniform ranks is ½ ± 1/√(12 N), their variance 1/12 ± 1/√(180 N); the one that is
    further off in its own measure is reported.

    >>> shape(np.array([0, 0, 1, 98, 99, 99]), 99)
    'too narrow'
    """
    place = (np.asarray(ranked) + 0.5) / (num_draws + 1)
    off_centre = (place.mean() - 0.5) * np.sqrt(12.0 * len(place))
    spread = (((place - 0.5) ** 2).mean() - 1.0 / 12.0) * np.sqrt(180.0 * len(place))
    if abs(off_centre) > abs(spread):
        return "too low" if off_centre > 0 else "too high"
    return "too narrow" if spread > 0 else "too wide"


def held(ranked: np.ndarray, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether the central interval of each of `LEVELS` holds the truth, (num_trials, 3); and the
    exact probability of that, (3,): the level itself where it is a whole number of ranks.

    >>> inside, probability = held(np.array([1, 2, 30]), 79)
    >>> inside.tolist(), probability.tolist()
    ([[False, False, False], [False, False, True], [True, True, True]], [0.5, 0.8, 0.95])
    """
    tail = np.round((num_draws + 1) * (1.0 - np.array(LEVELS)) / 2.0)
    place = np.asarray(ranked)[:, None]
    return (place >= tail) & (place <= num_draws - tail), 1.0 - 2.0 * tail / (num_draws + 1)


def coverage(ranked: np.ndarray, num_draws: int) -> dict[str, dict[str, float]]:
    """Level -> the share of intervals that hold the truth, its binomial standard error, and the
    p-value of an exact binomial test.

    >>> coverage(np.arange(80), 79)["80 %"]["share"]
    0.8
    """
    from scipy.stats import binomtest

    inside, probability = held(ranked, num_draws)
    out = {}
    for level, column, expected in zip(LEVELS, inside.T, probability, strict=True):
        share, test = float(column.mean()), binomtest(int(column.sum()), len(column), expected)
        error = np.sqrt(share * (1.0 - share) / len(column))
        out[f"{100 * level:g} %"] = {
            "share": share, "error": float(error), "p_value": float(test.pvalue)
        }  # fmt: skip
    return out


def together(p_values: list[float]) -> float:
    """One p-value for several scalars, however they depend on each other (Bonferroni).

    >>> together([0.5, 0.01])
    0.02
    """
    return min(1.0, len(p_values) * min(p_values, default=1.0))


def power(num_trials: int, num_draws: int, num_scalars: int) -> tuple[float, float]:
    """What is wrong with one of several scalars, such that `together` shows it in 80 % of runs.

    Of a normal posterior: by how many of its standard deviations the draws lie aside, and by what
    share they are too narrow. Simulated, at exact limits.

    >>> shift, narrow = power(100, 79, 10)
    >>> 0.3 < shift < 0.6, 0.2 < narrow < 0.4
    (True, True)
    """
    from scipy.stats import norm

    limits = band(num_trials, num_draws, 1.0 - (1.0 - LEVEL) / num_scalars)
    rng = np.random.default_rng(0)
    truth, sizes = rng.normal(size=(500, num_trials)), np.linspace(0.05, 4.0, 80)

    def least(place: Callable[[float], np.ndarray]) -> float:
        """The first size at which enough curves leave the band."""
        for size in sizes:
            drawn = rng.binomial(num_draws, norm.cdf(place(size)))
            share = np.array([curve(x, num_draws)[1] for x in drawn])
            outside = (share < limits.lower - 1e-9) | (share > limits.upper + 1e-9)
            if outside.any(1).mean() >= POWER:
                return float(size)
        return float("inf")

    aside, inner = least(lambda size: truth - size), least(lambda size: truth * (1.0 + size))
    return aside, inner / (1.0 + inner)


class _Chain(NamedTuple):
    """Counts of N uniform ranks below successive points."""

    steps: np.ndarray  # (K,) ranks below which is counted
    tails: np.ndarray  # (K, N + 1) twice the smaller tail probability of each count
    moves: np.ndarray  # (K, N + 1, N + 1) from a count to the next

    def stays(self, level: float) -> float:
        """The probability that no count lies as far out as `level`."""
        inside = self.tails > level * (1.0 + 1e-9)
        weight = np.zeros(self.tails.shape[1])
        weight[0] = 1.0
        for move, allowed in zip(self.moves, inside, strict=True):
            weight = (weight @ move) * allowed
        return float(weight.sum())


def _steps(num_trials: int, num_ranks: int) -> np.ndarray:
    if num_trials < 1 or num_ranks < 2:
        raise ValueError(f"nothing to judge: {num_trials} trials of {num_ranks - 1} draws")
    # Their square is held at each point: of very many trials there are fewer points.
    most = int(np.clip(1e7 / num_trials**2, 8, MOST_POINTS))
    steps = np.unique(np.arange(1, most) * num_ranks // most)
    return steps[steps > 0]


def _counts(ranked: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(np.asarray(ranked)), steps)


@lru_cache(maxsize=4)
def _chain(num_trials: int, num_ranks: int) -> _Chain:
    from scipy.stats import binom

    steps = _steps(num_trials, num_ranks)
    points = steps / num_ranks
    before = np.concatenate([[0.0], points[:-1]])
    count = np.arange(num_trials + 1)
    # From m below to n below: n − m of the N − m that are left.
    left, new = num_trials - count[:, None], count[None, :] - count[:, None]
    rise = (points - before) / (1.0 - before)
    moves = binom.pmf(new, left, rise[:, None, None])
    below = binom.cdf(count, num_trials, points[:, None])
    above = binom.sf(count - 1, num_trials, points[:, None])
    return _Chain(steps, np.minimum(1.0, 2.0 * np.minimum(below, above)), moves)
