"""Pursuit with backfitting, a mixture that splits, and PCA in NumPy, an iteration of EM at a time.

`ProjectionPursuit` and `SplittingEM` are the methods; here each state between two iterations is
kept, so that errors can be plotted over them as in figures 4.6 and 4.7 of Freund & Haussler (1994).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, softmax

EM_STEPS = 4
"""'4 iterations of EM per hidden unit proved sufficient'."""
STEPS_PER_SIZE = 20


class Errors(NamedTuple):
    """Bits per bit to reconstruct a row from its hidden state, and wrong single bits."""

    reconstruction: float
    single_bit: float


class Machine(NamedTuple):
    """Hidden units found so far, and which of them each training row was taken to have on."""

    weights: np.ndarray  # (units, columns)
    bias: np.ndarray
    coins: np.ndarray  # (rows, units), 0/1
    gains: np.ndarray  # log likelihood of the residual that each unit added

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """P(h = 1 | x), exact: units are independent given the row."""
        return expit(x @ self.weights.T + self.bias)

    def errors(self, x: np.ndarray, columns: np.ndarray) -> Errors:
        """Single bits are predicted in some columns only: each costs rows × units."""
        state = (self.hidden(x) > 0.5).astype(float)
        bits = -log_expit(2.0 * x * (state @ self.weights)).mean() / np.log(2.0)
        inputs = x @ self.weights.T + self.bias
        now = np.logaddexp(0.0, inputs).sum(1)
        change = np.empty((len(x), len(columns)))  # of the log probability if the bit were flipped
        for place, column in enumerate(columns):
            other = inputs - 2.0 * np.outer(x[:, column], self.weights[:, column])
            change[:, place] = np.logaddexp(0.0, other).sum(1) - now
        # As likely either way: half of a mistake.
        return Errors(float(bits), float(((change > 0) + 0.5 * (change == 0)).mean()))


def log_odds(
    x: np.ndarray, weights: np.ndarray, bias: np.ndarray, observed: np.ndarray | None = None
) -> np.ndarray:
    """That units are on, (rows, units); missing cells, which x has as 0, are integrated out."""
    total = x @ weights.T + bias
    return total if observed is None else total + 0.5 * (1.0 - observed) @ (weights**2).T


def one_unit(
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray,
    observed: np.ndarray | None = None,
    steps: int = EM_STEPS,
) -> tuple[np.ndarray, float, float]:
    """EM of a real machine of one unit, (3.14) and (3.15), and the log likelihood that it adds.

    :param weights: (starts, columns), of which the one that ends with most likelihood is taken.
    :param observed: (rows, columns), 0 where a cell is missing.
    """
    for _ in range(steps):
        on = expit(log_odds(x, weights, bias, observed))
        rate = np.clip(on.mean(0), 1e-12, 1.0 - 1e-12)
        known = len(x) * rate[:, None] if observed is None else on.T @ observed
        weights = on.T @ x / np.maximum(known, 1e-12)
        bias = np.log(rate) - np.log1p(-rate) - 0.5 * (weights**2).sum(1)
    level = np.logaddexp(0.0, bias + 0.5 * (weights**2).sum(1))
    gains = (np.logaddexp(0.0, log_odds(x, weights, bias, observed)) - level).sum(0)
    best = int(gains.argmax())
    return weights[best], float(bias[best]), float(gains[best])


def pursue(
    x: np.ndarray,
    units: int,
    starts: int,
    rng: np.random.Generator,
    observed: np.ndarray | None = None,
) -> list[Machine]:
    """The machine after every unit, the last one complete."""
    left, machines = x.copy(), []
    weights, bias = np.zeros((0, x.shape[1])), np.zeros(0)
    coins, gains = np.zeros((len(x), 0)), np.zeros(0)
    for _ in range(units):
        first = 0.5 * left[rng.integers(len(x), size=starts)]
        unit, level, gain = one_unit(left, first, -0.5 * (first**2).sum(1), observed)
        odds = log_odds(left, unit[None], np.array([level]), observed)[:, 0]
        on = (rng.random(len(x)) < expit(odds)).astype(float)
        left -= np.outer(on, unit) if observed is None else observed * np.outer(on, unit)
        weights, bias = np.vstack([weights, unit]), np.append(bias, level)
        coins, gains = np.column_stack([coins, on]), np.append(gains, gain)
        machines.append(Machine(weights, bias, coins, gains))
    return machines


def backfit(machine: Machine, x: np.ndarray, rng: np.random.Generator) -> list[Machine]:
    """Once more through the units: put one's structure back, fit it again, take it out again."""
    weights, bias, coins, gains = (part.copy() for part in machine)
    left, machines = x - coins @ weights, []
    for unit in range(len(bias)):
        left += np.outer(coins[:, unit], weights[unit])
        now = weights[unit, None], bias[unit, None]
        weights[unit], bias[unit], gains[unit] = one_unit(left, *now)
        coins[:, unit] = rng.random(len(x)) < expit(left @ weights[unit] + bias[unit])
        left -= np.outer(coins[:, unit], weights[unit])
        machines.append(Machine(weights.copy(), bias.copy(), coins.copy(), gains.copy()))
    return machines


class Components(NamedTuple):
    """Bernoulli product components, of rows of -1 and 1."""

    probs: np.ndarray  # (components, columns)
    mixing: np.ndarray  # (components,)

    def joints(self, x: np.ndarray) -> np.ndarray:
        off = np.log1p(-self.probs)
        return 0.5 * (x + 1.0) @ (np.log(self.probs) - off).T + off.sum(1) + np.log(self.mixing)

    def errors(self, x: np.ndarray, columns: np.ndarray) -> Errors:
        bits, joints = 0.5 * (x + 1.0), self.joints(x)
        chosen = self.probs[joints.argmax(1)]
        right = np.where(bits > 0, chosen, 1.0 - chosen)
        wrong = np.empty((len(x), len(columns)))
        for place, column in enumerate(columns):
            probs = self.probs[:, column]
            own = np.where(bits[:, [column]] > 0, probs, 1.0 - probs)
            on = softmax(joints - np.log(own), axis=1) @ probs
            wrong[:, place] = (on > 0.5) != (bits[:, column] > 0)
        return Errors(float(-np.log2(right).mean()), float(wrong.mean()))


def split_and_fit(
    x: np.ndarray, components: int, jitter: float, rng: np.random.Generator
) -> list[Components]:
    """The mixture after every iteration of EM; components double every 20 of them."""
    bits = 0.5 * (x + 1.0)
    mixture = Components(np.clip(bits.mean(0, keepdims=True), 0.01, 0.99), np.ones(1))
    mixtures = []
    while True:
        for _ in range(STEPS_PER_SIZE):
            mixtures.append(mixture)
            share = softmax(mixture.joints(x), axis=1)
            size = share.sum(0)
            # A count of half a row each way, or a pixel never inked would be impossible.
            probs = (share.T @ bits + 0.5) / (size[:, None] + 1.0)
            mixture = Components(probs, (size + 1e-9) / (size.sum() + 1e-9 * len(size)))
        count = len(mixture.mixing)
        if count == components:
            return [*mixtures, mixture]
        extra = min(count, components - count)
        twice = np.concatenate([np.arange(count), np.arange(extra)])
        share = np.where(np.arange(count) < extra, 0.5, 1.0) * mixture.mixing
        odds = np.log(mixture.probs / (1.0 - mixture.probs))[twice]
        moved = expit(odds + jitter * rng.normal(size=odds.shape))
        mixture = Components(np.clip(moved, 1e-4, 1.0 - 1e-4), share[twice])


def principal(
    x: np.ndarray, test: np.ndarray, rank: int, columns: np.ndarray
) -> tuple[Errors, np.ndarray, np.ndarray]:
    """Probabilistic PCA: the same two errors, and the scores of both sets of rows.

    A bit is predicted by the sign of its expectation given all others. The hidden state is the
    signs of the scores, as many bits as the machine has, and a row is reconstructed from them by
    the frequencies that a regression on them gives.
    """
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov((x - mean).T))
    kept, noise = vectors[:, -rank:], values[:-rank].mean()
    covariance = kept @ np.diag(values[-rank:] - noise) @ kept.T + noise * np.eye(x.shape[1])
    precision = np.linalg.inv(covariance + 1e-6 * np.eye(x.shape[1]))
    centred = test - mean
    own = np.diag(precision)
    expected = mean + centred - centred @ precision / own
    single = ((expected > 0) != (test > 0))[:, columns].mean()
    scores, new = (x - mean) @ kept, centred @ kept
    signs = np.column_stack([np.ones(len(x)), np.sign(scores)])
    fitted = np.linalg.solve(signs.T @ signs + np.eye(rank + 1), signs.T @ x)
    decoded = np.column_stack([np.ones(len(test)), np.sign(new)]) @ fitted
    probs = np.clip(0.5 * (1.0 + test * decoded), 0.01, 1.0)
    return Errors(float(-np.log2(probs).mean()), float(single)), scores, new
