"""Log predictive densities of a contender's draws, with what they owe to the draws.

log p(y_n | training rows) is the log of the mean over draws of the marginal likelihood of a row,
by all draws; only where a draw takes seconds, or their table would not fit, by fewer of them,
evenly spaced. The Monte-Carlo error of the mean score follows by the delta method from one scalar
of each draw, the mean over rows of its likelihood relative to the predictive one, whose
autocorrelation counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ...baselines.samplers import Draws
from ...evaluation.evidence import Likelihood

MOST_CELLS = 1 << 25
"""Likelihoods that are held, of draws × rows: 128 MiB."""
MOST_SAMPLED = 100
"""Draws that are scored where the likelihood of a row is itself sampled: seconds for each."""
BLOCK = 256
"""Draws scored before their likelihoods are put away."""
MOST_ROWS = 200
"""Rows whose own Monte-Carlo error is computed."""


class Scores(NamedTuple):
    """What the likelihoods of all rows under the scored draws say."""

    step: int  # draws from which one is scored
    train: np.ndarray  # (num_chains, num_scored, num_train) marginal log likelihoods
    test: np.ndarray  # (num_chains, num_scored, num_test)
    error: float  # of the estimator of a likelihood, of the mean over held-out rows

    @property
    def held_out(self) -> np.ndarray:
        """(num_test,) log predictive density of each held-out row."""
        return log_mean(self.test.reshape(-1, self.test.shape[-1]))

    def mean_error(self) -> float:
        """Monte-Carlo standard error of the mean of `held_out`; zero of a single draw."""
        if self.test.shape[0] * self.test.shape[1] == 1:
            return 0.0
        from ..arviz import mcse

        relative = np.exp(self.test - self.held_out).mean(-1)
        return float(mcse(relative[..., None])[0])

    def row_errors(self) -> np.ndarray:
        """The same of single rows, some of them: that of a log is the relative one of its mean."""
        from ..arviz import mcse

        chosen = np.linspace(0, self.test.shape[-1] - 1, MOST_ROWS).astype(int)
        some = self.test[..., np.unique(chosen)]
        return mcse(np.exp(some - log_mean(some.reshape(-1, some.shape[-1]))))


def spacing(likelihood: Likelihood, chains: int, count: int) -> int:
    """Of how many draws one is scored: all of them, unless that is too much.

    A property of the program and the table, not of the machine.
    """
    rows = likelihood.rows.num_data
    most = MOST_SAMPLED if likelihood.sampled else max(chains, MOST_CELLS // rows)
    return max(1, -(-chains * count // most))


def score(likelihood: Likelihood, num_train: int, draws: Draws) -> Scores:
    """All rows under the draws, a block of draws at a time."""
    chains, count = next(iter(draws.params.values())).shape[:2]
    step = spacing(likelihood, chains, count)
    kept = every(draws.params, step)
    shape = next(iter(kept.values())).shape[:2]
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in kept.items()}
    total = shape[0] * shape[1]
    values: np.ndarray | None = None
    errors = 0.0
    for start in range(0, total, BLOCK):
        found = likelihood.of_draws({x: v[start : start + BLOCK] for x, v in flat.items()})
        if values is None:
            values = np.empty((total, found.value.shape[1]), np.float32)
        values[start : start + BLOCK] = found.value
        errors = errors + (np.asarray(found.error)[:, num_train:] ** 2).sum(0)
    assert values is not None
    each = values.reshape((*shape, -1))
    test = each[..., num_train:]
    error = float(np.sqrt((errors / total).sum())) / test.shape[-1]
    return Scores(step, each[..., :num_train], np.asarray(test, np.float64), error)


def every(values: dict[str, Any], step: int) -> dict[str, np.ndarray]:
    """Each `step`-th draw of arrays (num_chains, num_draws, ...)."""
    return {x: np.asarray(v)[:, step - 1 :: step] for x, v in values.items()}


def thin(params: dict[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
    """At most so many draws over all chains, evenly spaced: (num_chains, fewer, ...)."""
    chains, count = next(iter(params.values())).shape[:2]
    return every(params, max(1, -(-count * chains // most)))


def log_mean(values: np.ndarray) -> np.ndarray:
    """log of the mean over the first axis of exponentials."""
    return logsumexp(values, axis=0) - np.log(len(values))


def path_of_draws(scores: Scores, clock: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The held-out score of all draws so far, of all chains, at some of their times."""
    chains, count = scores.test.shape[:2]
    times = np.unique(np.geomspace(1, count, most).astype(int))
    total, path, before = None, [], 0
    for time in times:
        part = logsumexp(scores.test[:, before:time], axis=(0, 1))
        total = part if total is None else np.logaddexp(total, part)
        path.append(float((total - np.log(chains * time)).mean()))
        before = time
    return np.array(path), clock[scores.step - 1 :: scores.step][times - 1]
