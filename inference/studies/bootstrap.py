r"""The bootstrap likelihood-ratio test: are more classes or factors there than the smaller fit has?

Twice the gain in log likelihood from one size to the next has no known distribution: under the
smaller size the larger one is not identified (McLachlan 1987). So tables are drawn from the smaller
fit, both sizes are fitted to each, and the p value is the share of them that gain as much. The
fits are those of `choose`, on tables of the same shape, so that nothing is compiled again.

Sampling stops once `ENOUGH` tables have gained as much as the observed one did, which tells that
the larger size is not needed; the p value is then their share of the tables drawn (Besag & Clifford
1991), else (exceeding + 1) / (replicates + 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import random
from numpyro import handlers

from ..numerics import clock
from ..numerics.compiling import once
from .choosing import Choice, Sized

ENOUGH = 10
"""Tables that gain as much as the observed one, after which no more are drawn."""
LEVEL = 0.05
"""Of the p value above which the smaller size is kept, and no larger one is tested."""
MOST_DRAWS = 100
"""Tables drawn for a replicate without a constant column, which the observed table has not."""


class Ratio(NamedTuple):
    """A test of one size against a smaller one."""

    size: int  # the larger
    statistic: float  # twice the difference of the log likelihoods
    replicates: int
    exceeding: int  # replicates whose statistic is as large

    @property
    def p_value(self) -> float:
        """
        >>> Ratio(2, 9.0, 99, 0).p_value, Ratio(2, 1.0, 20, ENOUGH).p_value
        (0.01, 0.5)
        """
        if self.exceeding >= ENOUGH:
            return self.exceeding / self.replicates
        return (self.exceeding + 1) / (self.replicates + 1)

    @property
    def error(self) -> float:
        """The standard error of the p value, for so few replicates."""
        share = self.p_value
        return math.sqrt(share * (1.0 - share) / self.replicates)

    def decided(self, wanted: int) -> bool:
        """Whether the p value, of up to `wanted` replicates, lies on one side of `LEVEL`.

        >>> Ratio(2, 9.0, 5, 0).decided(99), Ratio(2, 9.0, 99, 0).decided(99)
        (False, True)
        """
        whole = self.exceeding >= ENOUGH or self.replicates >= wanted
        return whole or (abs(self.p_value - LEVEL) > 2.0 * self.error and self.p_value > LEVEL)


def compare_sizes(
    choices: list[Choice],
    rows: np.ndarray,
    mask: np.ndarray | None,
    *,
    replicates: int = 99,
    budget: float = 60.0,
    seed: int = 0,
    on_table: Callable[[int], None] | None = None,
) -> list[Ratio]:
    """Each size against the one before, up to the first that is not needed.

    :param budget: processor seconds of all tests together; the last replicate is not counted if it
        ran out of them.
    :param on_table: called with the larger size as each replicate ends.
    :return: the tests that were made, each with at least one replicate.
    """
    ordered = sorted(choices, key=lambda one: one.size)
    began = clock.seconds()
    ratios: list[Ratio] = []
    for small, large in itertools.pairwise(ordered):
        draw = tables_like(small, rows, mask)
        fits: list[Sized] = [x.sized for x in (small, large) if x.sized is not None]
        gain = 2.0 * (large.whole.log_likelihood - small.whole.log_likelihood)
        done = exceeding = 0
        while done < replicates and exceeding < ENOUGH:
            table = draw(seed + 1 + done)
            total = []
            for one in fits:
                left = budget - (clock.seconds() - began)
                if left <= 0:
                    break
                params = one.fit(seed, table, mask, left)
                total.append(one.log_likelihood(params, table, mask).sum())
            if clock.seconds() - began >= budget:
                break
            exceeding += bool(2.0 * (total[1] - total[0]) >= gain)
            done += 1
            if on_table is not None:
                on_table(large.size)
        if not done:
            break
        ratios.append(Ratio(large.size, gain, done, exceeding))
        if ratios[-1].p_value > LEVEL:
            break
    return ratios


def tables_like(
    choice: Choice, rows: np.ndarray, mask: np.ndarray | None
) -> Callable[[int], np.ndarray]:
    """A function from a seed to a table drawn from a fit, of the shape of the one fitted."""
    sized: Any = choice.sized
    drawing = handlers.substitute(handlers.uncondition(sized.program), data=choice.params)
    fixed = sized.arguments(mask)

    @once
    def draw(key: Any, table: Any) -> Any:
        return handlers.seed(drawing, key)(table, **fixed)

    observed = np.ones(rows.shape, bool) if mask is None else np.asarray(mask)
    constant = _constant(rows, observed).any()

    def table(seed: int) -> np.ndarray:
        for key in random.split(random.key(seed), MOST_DRAWS):
            drawn = draw(key, rows)
            if np.shape(drawn) != rows.shape:
                raise ValueError(
                    f"{sized.program.__name__} does not return the table that it draws: return the "
                    "value of its observed site, or --bootstrap 0"
                )
            drawn = np.where(observed, np.asarray(drawn), 0).astype(rows.dtype)
            if constant or not _constant(drawn, observed).any():
                return drawn
        raise ValueError(
            f"{MOST_DRAWS} tables drawn from {sized.program.__name__} all have a constant column"
        )

    return table


def _constant(rows: np.ndarray, observed: np.ndarray) -> np.ndarray:
    low = np.min(rows, axis=0, where=observed, initial=np.inf)
    return low == np.max(rows, axis=0, where=observed, initial=-np.inf)
