"""Log predictive densities of a contender's draws, with what they owe to the draws.

log p(y_n | training rows) is the log of the mean over draws of the marginal likelihood of a row, by
all draws; only where a draw takes seconds, their table would not fit, or the rows are thousands of
fresh ones, by fewer of them, evenly spaced. The Monte-Carlo error of the mean score follows by the
delta method from one scalar of each draw, the mean over rows of its likelihood relative to the
predictive one, whose autocorrelation counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ..baselines.samplers import Draws
from ..evaluation.evidence import Likelihood
from ..rows.chunks import Rows
from .diagnostics import mcse

MOST_CELLS = 1 << 25
"""Likelihoods that are held, of draws × rows: 128 MiB."""
MOST_SAMPLED = 100
"""Draws that are scored where the likelihood of a row is itself sampled: seconds for each."""
BLOCK = 256
"""Draws scored before their likelihoods are put away."""
MOST_EXACT, MOST_INEXACT = 8_000_000, 150_000
"""Likelihoods of fresh rows, of draws × rows, that are computed where a sum is exact, and where a
row needs quadrature, which takes tens of times as long."""
MOST_STATES = 2_000_000_000
"""The same times the states of a row, where the sum is over these: half a minute."""
MOST_TRAIN, LEAST_TRAIN = 100_000, 200
"""The same of training rows beside these where a row needs quadrature, and the fewest draws."""
MOST_OWN = 1000
"""Draws that the rows of a table without fresh ones are scored by where a row needs quadrature."""
FRESH_EXACT, FRESH_INEXACT = 20_000, 1000
"""Fresh rows that contenders are judged by, where the program that made the data is known."""
MOST_ROWS = 200
"""Rows whose own Monte-Carlo error is computed."""


class Judges(NamedTuple):
    """The rows that contenders are scored by, and how the likelihood of a row is found.

    Equal rows have equal likelihoods, so that of each different row is computed once.
    """

    likelihood: Likelihood  # compiled for different rows of the table, and for as many others
    place: np.ndarray  # (num_data,) which of these a row is: first those to learn from
    num_train: int  # so many; the rest are held out
    fresh: tuple[Rows, ...] = ()  # instead of these: rows that no method has, as many a part
    fresh_place: np.ndarray = np.empty(0, int)  # (num_test,) which of them a fresh row is
    most_train: int | None = None  # draws that training rows are scored by; None: as many as fit
    states: int = 1  # of a row, where they are listed

    @property
    def num_test(self) -> int:
        return len(self.fresh_place) if self.fresh else len(self.place) - self.num_train

    def table(self, flat: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Log likelihoods of the rows of the table, (num_draws, num_data), and their errors."""
        evidence = self.likelihood.of_draws(flat)
        return np.asarray(evidence.value)[:, self.place], np.asarray(evidence.error)[:, self.place]

    def test(self, flat: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Log likelihoods of the rows to be judged by, (num_draws, num_test), and their errors."""
        if not self.fresh:
            value, error = self.table(flat)
            return value[:, self.num_train :], error[:, self.num_train :]
        each = [self.likelihood.of_draws(flat, part) for part in self.fresh]
        value, error = np.hstack([x.value for x in each]), np.hstack([x.error for x in each])
        return value[:, self.fresh_place], error[:, self.fresh_place]

    def first(self, count: int) -> Judges:
        """Judged by so many of the fresh rows, the first of them."""
        some = self.fresh_place[:count]
        parts = -(-(some.max() + 1) // self.fresh[0].num_data)
        return self._replace(fresh=self.fresh[:parts], fresh_place=some)


class Scores(NamedTuple):
    """What the likelihoods of all rows under the scored draws say."""

    step: int  # draws from which one has the likelihood of its training rows
    train: np.ndarray  # (num_chains, num_kept, num_train) marginal log likelihoods
    test_step: int  # draws from which one is scored
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
        relative = np.exp(self.test - self.held_out).mean(-1)
        return float(mcse(relative[..., None])[0])

    def row_errors(self) -> np.ndarray:
        """The same of single rows, some of them: that of a log is the relative one of its mean."""
        some = self.some_rows().test
        return mcse(np.exp(some - log_mean(some.reshape(-1, some.shape[-1]))))

    def some_rows(self) -> Scores:
        """With some of the rows that judge: of thousands, the table is the largest thing held."""
        chosen = np.unique(np.linspace(0, self.test.shape[-1] - 1, MOST_ROWS).astype(int))
        return self._replace(test=self.test[..., chosen])


def spacing(judges: Judges, chains: int, count: int) -> tuple[int, int]:
    """Of how many draws one is scored, on training rows and on the others: all, unless too many.

    A property of the program and the table, not of the machine.
    """
    evaluator = judges.likelihood
    most = MOST_SAMPLED if evaluator.sampled else MOST_CELLS // len(judges.place)
    some = most if judges.most_train is None else judges.most_train
    if not evaluator.exact:  # fresh rows judge, the training rows beside them do not
        beside = max(LEAST_TRAIN, MOST_TRAIN // judges.num_train)
        some = min(some, beside if judges.fresh else MOST_OWN)
    train = max(1, -(-chains * count // max(some, chains)))
    if not judges.fresh:
        return train, train
    each = min(MOST_EXACT, MOST_STATES // judges.states) if evaluator.exact else MOST_INEXACT
    most = min(most, each // judges.num_test)
    return train, max(1, -(-chains * count // max(most, chains)))


def score(judges: Judges, draws: Draws) -> Scores:
    """All rows under the draws, a block of draws at a time."""
    chains, count = next(iter(draws.params.values())).shape[:2]
    step, test_step = spacing(judges, chains, count)
    train, test = _table(judges, every(draws.params, step), fresh=False)
    errors = test[1]
    values = test[0]
    if judges.fresh:
        values, errors = _table(judges, every(draws.params, test_step), fresh=True)[1]
    error = float(np.sqrt(errors.sum())) / values.shape[-1]
    return Scores(step, train, test_step, np.asarray(values, np.float64), error)


def _table(judges: Judges, kept: dict[str, np.ndarray], fresh: bool) -> tuple[np.ndarray, Any]:
    """Likelihoods of training rows, and of the others with the mean square of their errors."""
    shape = next(iter(kept.values())).shape[:2]
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in kept.items()}
    total = shape[0] * shape[1]
    values: np.ndarray | None = None
    errors: Any = 0.0
    for start in range(0, total, BLOCK):
        some = {x: v[start : start + BLOCK] for x, v in flat.items()}
        if fresh:
            value, error = judges.test(some)
        else:
            value, error = judges.table(some)
            error = error[:, judges.num_train :]
        if values is None:
            values = np.empty((total, value.shape[1]), np.float32)
        values[start : start + BLOCK] = value
        errors = errors + (error**2).sum(0) / total
    assert values is not None
    each = values.reshape((*shape, -1))
    if fresh:
        return each[..., :0], (each, errors)
    return each[..., : judges.num_train], (each[..., judges.num_train :], errors)


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
    return np.array(path), clock[scores.test_step - 1 :: scores.test_step][times - 1]
