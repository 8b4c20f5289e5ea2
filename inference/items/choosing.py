"""How many factors, classes or causes: held-out likelihood, BIC and the entropy of classes by size.

A size is taken if no larger one explains held-out rows better by more than the error of that: of
sizes that predict alike, the smallest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random
from numpyro import handlers

from ..evaluation.evidence import likelihood
from ..reading.anatomy import Anatomy, inspect
from ..rows.chunks import counting
from ..rows.padding import Padded, padded
from ..running import clock
from ..running.algorithm import Algorithm
from .estimates import Measures, measure_fit

TOLERANCE, ROUGHLY = 1e-7, 1e-6
"""Of the loss that may be left to gain in a fit to all rows, and in one of many: a size that a
table does not want climbs long without an end."""


class Sized(NamedTuple):
    """A program at one size, and the method that fits it there."""

    program: Callable
    settings: dict[str, Any]  # its arguments but for the rows and their mask
    engine: Algorithm
    steps: int
    size: int | None = None  # rows to which folds are padded, to share what is compiled

    def fit(
        self,
        seed: int,
        rows: np.ndarray,
        mask: np.ndarray | None,
        budget: float | None = None,
        tolerance: float = ROUGHLY,
    ) -> dict[str, Any]:
        """The parameters that these rows lead to."""
        table = self.padded(rows, mask)
        with counting(self.size and np.int32(len(rows))):
            result = self.engine.run(
                random.key(seed), self.steps, *table.args, progress_bar=False, budget=budget,
                tolerance=None if self.engine.staged else tolerance, **table.kwargs,
            )  # fmt: skip
        return result.params

    def log_likelihood(
        self, params: dict[str, Any], rows: np.ndarray, mask: np.ndarray | None
    ) -> np.ndarray:
        """Of each row, latents summed out."""
        table = self.padded(rows, mask)
        with counting(self.size and np.int32(len(rows))):
            evidence = likelihood(self.program, *table.args, **table.kwargs)(params)
        return np.asarray(table.cut(evidence.value), float)

    def padded(self, rows: np.ndarray, mask: np.ndarray | None) -> Padded:
        """The arguments of the program on these rows, which are repeated up to `size`."""
        args, kwargs, count = (rows,), self.arguments(mask), len(rows)
        wide = padded(args, kwargs, count, self.size) if self.size else None
        return wide or Padded(args, kwargs, count, count)

    def arguments(self, mask: np.ndarray | None) -> dict[str, Any]:
        return self.settings if mask is None else {**self.settings, "mask": mask}


class Choice(NamedTuple):
    """One size."""

    size: int
    held_out: np.ndarray  # (rows that were held out,) log likelihood of each
    whole: Measures  # of a fit to all rows
    entropy: float | None  # of classes: 1 where every row belongs to one, 0 where none does
    params: dict[str, Any] | None = None  # of that fit
    sized: Sized | None = None  # how it was made


def folds_of(num_rows: int, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(training rows, rows held out) of each fold: every row is held out once.

    >>> [(len(train), len(test)) for train, test in folds_of(11, 3, 0)]
    [(7, 4), (7, 4), (8, 3)]
    """
    order = np.random.default_rng(seed).permutation(num_rows)
    parts = np.array_split(np.arange(num_rows), count)
    return [(np.delete(order, part), order[part]) for part in parts]


def class_entropy(probabilities: np.ndarray) -> float:
    """How clearly rows belong to classes (Celeux & Soromenho 1996), from (num_rows, num_classes).

    >>> class_entropy(np.array([[1.0, 0.0], [0.0, 1.0]])), class_entropy(np.full((3, 2), 0.5))
    (1.0, 0.0)
    """
    rows, classes = probabilities.shape
    if classes == 1:
        return 1.0
    inside = np.where(probabilities > 0, probabilities, 1.0)
    lost = -(probabilities * np.log(inside)).sum()
    return float(1.0 - lost / (rows * math.log(classes)))


def choose(
    program: Callable,
    arguments: tuple[np.ndarray, dict[str, Any]],
    over: tuple[str, Iterable[int]],
    method: Callable[[Anatomy], Algorithm],
    *,
    folds: int = 5,
    steps: int = 500,
    seed: int = 0,
    on_fit: Callable[[int], None] | None = None,
) -> list[Choice]:
    """Fit a program at each size, to all rows and without each fold.

    :param arguments: the rows, and the other keyword arguments; a mask is dealt out with the rows.
    :param over: the name of the argument that is the size, and its values.
    :param on_fit: called with the size as each fit ends.
    """
    values, kwargs = arguments
    name, sizes = over
    mask = kwargs.get("mask")
    choices = []
    for size in sizes:
        settings = {x: v for x, v in kwargs.items() if x != "mask"} | {name: size}
        whole = settings if mask is None else {**settings, "mask": mask}
        engine = method(inspect(program, (values,), whole))
        wide = engine.fill((values,), whole)
        sized = Sized(program, settings, engine, steps, wide and wide.size)
        held = []
        for train, test in folds_of(len(values), folds, seed):
            inside, outside = (None if mask is None else mask[x] for x in (train, test))
            params = sized.fit(seed, values[train], inside)
            held.append(sized.log_likelihood(params, values[test], outside))
            if on_fit is not None:
                on_fit(size)
        params = sized.fit(seed, values, mask, tolerance=TOLERANCE)
        if on_fit is not None:
            on_fit(size)
        measures = measure_fit(program, params, values, whole)
        entropy = _entropy(engine, params, values, whole)
        choices.append(Choice(size, np.concatenate(held), measures, entropy, params, sized))
    return choices


def _entropy(engine: Any, params: Any, table: np.ndarray, kwargs: dict[str, Any]) -> float | None:
    anatomy = inspect(engine.model, (table,), kwargs)
    (first, *others) = anatomy.latents
    if others or first.size != 1 or first.num_values is None or not hasattr(engine, "posterior"):
        return None
    probs = engine.posterior(params, table, **kwargs).probabilities[first.name]
    return class_entropy(np.asarray(probs, float).reshape(len(table), -1))


def taken(choices: list[Choice]) -> Choice:
    """The smallest size that no larger one beats by more than the error of the difference.

    >>> whole = Measures(0.0, 0.0, "", 1, 4)
    >>> one = Choice(1, np.array([-2.0, -2.1, -2.0, -2.1]), whole, None)
    >>> two, three = one._replace(size=2, held_out=one.held_out + 1.0), one._replace(size=3)
    >>> taken([one, two, three]).size
    2
    """
    for choice in sorted(choices, key=lambda one: one.size):
        gains = [x.held_out - choice.held_out for x in choices if x.size > choice.size]
        if not any(g.mean() > g.std(ddof=1) / math.sqrt(len(g)) for g in gains):
            return choice
    raise ValueError("there is nothing to choose from")


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
    def p_words(self) -> str:
        """
        >>> Ratio(2, 9.0, 19, 0).p_words, Ratio(2, 1.0, 20, ENOUGH).p_words
        ('≤ 0.05', '0.500')
        """
        return f"{self.p_value:.3f}" if self.exceeding else f"≤ {self.p_value:.2g}"

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
    """The bootstrap likelihood-ratio test of each size against the one before, up to the first that
    is not needed.

    Twice the gain in log likelihood from one size to the next has no known distribution: under the
    smaller size the larger one is not identified (McLachlan 1987). So tables are drawn from the
    smaller fit, both sizes are fitted to each as `choose` fits them, and the p value is the share
    of tables that gain as much. Once `ENOUGH` have, the larger size is not needed and no more are
    drawn: p is then their share (Besag & Clifford 1991), else (exceeding + 1) / (replicates + 1).

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

    @jax.jit
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
    cells = np.where(observed, rows, np.nan)
    return np.fmin.reduce(cells, axis=0) == np.fmax.reduce(cells, axis=0)
