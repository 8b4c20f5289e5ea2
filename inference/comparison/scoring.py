"""The rows that judge contenders, and their log predictive densities under a contender's draws.

log p(y_n | training rows) is the log of the mean over draws of the marginal likelihood of a row, by
all draws; only where a draw takes seconds, their table would not fit, or the rows are thousands of
fresh ones, by fewer of them, evenly spaced. The Monte-Carlo error of the mean score follows by the
delta method from one scalar of each draw, the mean over rows of its likelihood relative to the
predictive one, whose autocorrelation counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from ..baselines.samplers import Draws
from ..evaluation.diagnostics import every, mcse
from ..evaluation.evidence import Likelihood, likelihood
from ..evaluation.prediction import Asked, ask, distinct
from ..methods.continuous.rules import default_nodes
from ..reading.anatomy import Anatomy, inspect
from ..rows.chunks import Rows
from ..types import Arguments
from .checks import FINE

BITS = {"BernoulliLogits", "BernoulliProbs", "NoisyOr", "ClippedNormal"}
"""Distributions of a bit."""
MOST_CELLS = 500
"""Held-out cells that are predicted from the rest of their rows, for calibration."""
NUM_NODES, COLUMNS = 9, 32
"""Nodes in each dimension of the quadrature that scores, where all rows differ and have so many
columns or more: as much time is spent on narrower ones."""
MOST_VALUES = 1 << 25
"""Likelihoods that are held, of draws × rows: 128 MiB."""
MOST_SAMPLED = 100
"""Draws that are scored where the likelihood of a row is itself sampled: seconds for each."""
BLOCK = 256
"""Draws scored before their likelihoods are put away."""
MOST_EXACT, MOST_INEXACT = 8_000_000, 6_000_000
"""Likelihoods of fresh rows, of draws × rows, that are computed where a sum is exact; where a row
needs quadrature, which takes tens of times as long, so many of draws × cells."""
MOST_DOUBLED = 2
"""Times that these are doubled where the Monte-Carlo error of the mean is too large."""
MOST_STATES = 2_000_000_000
"""The same times the states of a row, where the sum is over these: half a minute."""
MOST_TRAIN, LEAST_TRAIN = 100_000, 200
"""The same of training rows beside these where a row needs quadrature, and the fewest draws."""
MOST_OWN = 1000
"""Draws that the rows of a table without fresh ones are scored by where a row needs quadrature."""
FRESH_EXACT, FRESH_INEXACT = 20_000, 2000
"""Fresh rows that contenders are judged by, where the program that made the data is known: enough
to tell 0.005 nats per row from nothing between methods that differ by 0.1 in a row."""
MOST_ROWS = 200
"""Rows whose own Monte-Carlo error is computed."""


class Setup(NamedTuple):
    """What a field is made from, in this process or another."""

    model: Callable
    values: np.ndarray
    mask: Any
    train: np.ndarray  # rows to learn from
    test: np.ndarray  # rows held out
    sizes: dict[str, Any]
    truth: dict[str, Any] | None
    fresh: Callable[[int], np.ndarray] | None  # so many rows of what made the data
    density: Callable[[np.ndarray], np.ndarray] | None  # and their log density
    num_fresh: int | None = None  # None: as many as a difference of 0.003 nats needs
    most_train: int | None = None  # draws that training rows are scored by; None: all, to be saved

    def arguments(self, rows: np.ndarray) -> Arguments:
        """What the program is called with, to see these rows."""
        mask = None if self.mask is None else jnp.asarray(np.asarray(self.mask, bool)[rows])
        holes = {} if mask is None else {"mask": mask}
        return (jnp.asarray(self.values[rows]),), {**holes, **self.sizes}


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

    def table(self, draws: dict[str, Any], fresh: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Log likelihoods of all rows, of the table or fresh, and mean squares of their errors.

        :param draws: (a, b, ...) by site.
        :return: (a, b, num_rows) and (num_rows,).
        """
        shape = next(iter(draws.values())).shape[:2]
        total = shape[0] * shape[1]
        place, parts = (self.fresh_place, self.fresh) if fresh else (self.place, (None,))
        flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in draws.items()}
        values, errors = np.empty((total, len(place)), np.float32), np.zeros(len(place))
        for start in range(0, total, BLOCK):
            block = {x: v[start : start + BLOCK] for x, v in flat.items()}
            each = [self.likelihood.of_draws(block, part) for part in parts]
            values[start : start + BLOCK] = np.hstack([x.value for x in each])[:, place]
            errors += (np.hstack([x.error for x in each])[:, place] ** 2).sum(0) / total
        return values.reshape((*shape, -1)), errors

    def test(self, draws: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The same of the rows that judge."""
        if self.fresh:
            return self.table(draws, fresh=True)
        values, errors = self.table(draws)
        return values[..., self.num_train :], errors[self.num_train :]

    def first(self, count: int) -> Judges:
        """Judged by so many of the fresh rows, the first of them."""
        some = self.fresh_place[:count]
        parts = -(-(some.max() + 1) // self.fresh[0].num_data)
        return self._replace(fresh=self.fresh[:parts], fresh_place=some)


class Field(NamedTuple):
    """What all contenders share."""

    model: Callable
    judges: Judges
    train_arguments: Arguments
    truth: dict[str, np.ndarray] | None
    cells: Asked | None  # some held-out cells to predict, where all are bits
    bits: np.ndarray  # what they turned out to be
    true_scores: np.ndarray | None = None  # (num_test,) under the true parameters


def enough_nodes(share: float, columns: int, anatomy: Anatomy) -> int | None:
    """Nodes in each dimension of the quadrature that scores; None where there is none.

    What repeated or short rows save is spent on them: few nodes are biased where weights are large
    (`default_nodes`).

    :param share: of the rows that differ.

    >>> from latentbits.models import latent_trait
    >>> parts = inspect(latent_trait, (np.eye(4),), {"num_factors": 2})
    >>> enough_nodes(1.0, 64, parts), enough_nodes(0.25, 64, parts), enough_nodes(1.0, 16, parts)
    (9, 18, 12)
    """
    count = sum(x.size for x in anatomy.latents if x.num_values is None)
    if not 0 < count <= 3:
        return None
    saved = max(COLUMNS / columns, 1.0) / share
    return min(default_nodes(count), int(NUM_NODES * saved ** (1.0 / count)))


def field_of(setup: Setup) -> Field:
    """The rows, the likelihood and the truth, ready for any contender."""
    model, values, train = setup.model, setup.values, setup.train
    arguments = setup.arguments(train)
    anatomy = inspect(model, *arguments)
    whole = np.concatenate([train, setup.test])
    mask = setup.mask
    observed = np.ones(values.shape, bool) if mask is None else np.asarray(mask, bool)
    different, place = distinct(values[whole], observed[whole])
    args, kwargs = setup.arguments(whole[different])
    num_nodes = enough_nodes(len(different) / len(whole), values.shape[1], anatomy)
    rows = likelihood(model, *args, num_nodes=num_nodes, **kwargs)
    table, there = values[setup.test], observed[setup.test]
    listed = [float(x.num_values) ** x.size for x in anatomy.latents if x.num_values is not None]
    states = int(min(math.prod(listed), 1e9))
    judges = Judges(rows, place, len(train), states=states, most_train=setup.most_train)
    scores = None
    if setup.fresh is not None:
        most = FRESH_EXACT if rows.exact else FRESH_INEXACT
        new = np.asarray(setup.fresh(min(most, setup.num_fresh or most)), np.float32)
        table, there = new[: len(train)], np.ones(new[: len(train)].shape, bool)
        first, fresh_place = distinct(new, np.ones(new.shape, bool))
        size, count = len(different), len(first)
        dealt = [first[np.arange(i, i + size) % count] for i in range(0, count, size)]
        parts = tuple(rows.rows._replace(leaves=(jnp.asarray(new[i]),)) for i in dealt)
        judges = judges._replace(fresh=parts, fresh_place=fresh_place)
        if setup.density is not None:
            scores = np.asarray(setup.density(new), np.float64)
    asked, bits = None, np.empty(0)
    if set(anatomy.likelihoods) <= BITS:
        cells = np.argwhere(there)
        cells = cells[np.random.default_rng(0).permutation(len(cells))[:MOST_CELLS]]
        asked = ask(model, table, cells, mask=there, num_nodes=num_nodes, **setup.sizes)
        bits = table[cells[:, 0], cells[:, 1]]
    true = None
    if setup.truth:
        true = {x: np.asarray(v) for x, v in setup.truth.items()}
        values, _ = judges.test({x: v[None, None] for x, v in true.items()})
        scores = values[0, 0].astype(np.float64)
    return Field(model, judges, arguments, true, asked, bits, scores)


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
        return log_mean(self.test)

    def mean_error(self, count: int | None = None) -> float:
        """Monte-Carlo standard error of the mean of `held_out`; zero of a single draw.

        :param count: scored draws of each chain that are taken, the first; by default all.
        """
        some = self.test[:, :count]
        if some[..., 0].size == 1:
            return 0.0
        relative = np.exp(some - log_mean(some)).mean(-1)
        return float(mcse(relative[..., None])[0])

    def row_errors(self) -> np.ndarray:
        """The same of single rows, some of them: that of a log is the relative one of its mean."""
        some = self.some_rows().test
        return mcse(np.exp(some - log_mean(some)))

    def some_rows(self) -> Scores:
        """With some of the rows that judge: of thousands, the table is the largest thing held."""
        chosen = np.unique(np.linspace(0, self.test.shape[-1] - 1, MOST_ROWS).astype(int))
        return self._replace(test=self.test[..., chosen])

    def path(self, clock: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The held-out score of all draws so far, of all chains, at some of their times, these, and
        its Monte-Carlo errors."""
        times = np.unique(np.geomspace(1, self.test.shape[1], most).astype(int))
        path = [log_mean(self.test[:, :time]).mean() for time in times]
        errors = [self.mean_error(time) for time in times]
        clock = clock[self.test_step - 1 :: self.test_step][times - 1]
        return np.array(path), clock, np.array(errors)


def spacing(judges: Judges, chains: int, count: int) -> tuple[int, int]:
    """Of how many draws one is scored, on training rows and on the others: all, unless too many.

    A property of the program and the table, not of the machine.
    """
    evaluator = judges.likelihood
    most = MOST_SAMPLED if evaluator.sampled else MOST_VALUES // len(judges.place)
    some = most if judges.most_train is None else judges.most_train
    if not evaluator.exact:  # fresh rows judge, the training rows beside them do not
        beside = max(LEAST_TRAIN, MOST_TRAIN // judges.num_train)
        some = min(some, beside if judges.fresh else MOST_OWN)
    train = max(1, -(-chains * count // max(some, chains)))
    if not judges.fresh:
        return train, train
    each = MOST_INEXACT // judges.fresh[0].leaves[0].shape[-1]
    each = min(MOST_EXACT, MOST_STATES // judges.states) if evaluator.exact else each
    most = min(most, each // judges.num_test)
    return train, max(1, -(-chains * count // max(most, chains)))


def score(judges: Judges, draws: Draws) -> Scores:
    """All rows under the draws, a block of draws at a time.

    Where their mean is not known to `FINE`, fresh rows are scored under more of the draws.
    """
    step, test_step = spacing(judges, *next(iter(draws.params.values())).shape[:2])
    values, squares = judges.table(every(draws.params, step))
    train, test = np.split(values, [judges.num_train], axis=-1)
    squares = squares[judges.num_train :]
    for _ in range(1 + MOST_DOUBLED):
        if judges.fresh:
            test, squares = judges.test(every(draws.params, test_step))
        error = float(np.sqrt(squares.sum())) / test.shape[-1]
        scores = Scores(step, train, test_step, test.astype(np.float64), error)
        if not judges.fresh or test_step == 1 or scores.mean_error() <= FINE:
            break
        test_step = -(-test_step // 2)
    return scores


def log_mean(values: np.ndarray) -> np.ndarray:
    """log of the mean over chains and draws of exponentials: (chains, draws, rows) -> (rows,)."""
    return logsumexp(values, axis=(0, 1)) - np.log(values.shape[0] * values.shape[1])
