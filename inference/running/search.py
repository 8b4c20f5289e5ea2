"""How many starts a run has, how they are thinned out, and what is said of where they ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics.compiling import remembered
from ..rows.chunks import Rows
from ..types import Params
from .contract import Optima


@dataclasses.dataclass(frozen=True)
class Search:
    """How many starts a run has, and how they are thinned out.

    :param num_lineages: K, the runs that go on to the end; twice as many starts are screened.
    :param screening: steps of each start before the first are given up; with 0, and no rounds, as
        many starts as lineages go straight on.
    :param rounds: how often each lineage is set against a variant of itself.
    :param steps: steps of a round. These three go by the length of the run where they are not
        given, so that all starts together take no longer than five plain runs.
    :param effort: multiplies the rounds, where they are not given.
    :param num_rows: rows that the search uses of a table more than twice as long, drawn at random;
        the runs to the end use all.
    :param least_steps: with fewer steps of a run there is no room for a search.

    >>> from jax import random
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.5, (40, 5)).astype(float)
    >>> em = EM(bernoulli_mixture, search=Search(num_lineages=2, rounds=0))
    >>> result = em.run(random.key(1), 30, data, num_components=2)
    >>> result.optima.values.shape
    (2,)
    """

    num_lineages: int = 3
    screening: int | None = None
    rounds: int | None = None
    steps: int | None = None
    effort: float = 1.0
    num_rows: int = 4096
    least_steps: int = 30

    def __post_init__(self) -> None:
        least = {"num_lineages": 1, "screening": 0, "rounds": 0, "steps": 1, "num_rows": 1}
        for name, limit in {**least, "least_steps": 1}.items():
            value = getattr(self, name)
            if value is not None and value < limit:
                raise ValueError(f"{name} must be at least {limit}, found {value}")

    @property
    def straight(self) -> bool:
        """Whether starts are neither screened nor varied."""
        return self.screening == 0 and self.rounds == 0

    def plan(self, num_steps: int, more: tuple[int, int] = (1, 1)) -> tuple[int, int, int]:
        """Screening, rounds and steps of a round before a run of `num_steps`.

        Of rounds and steps that are not given there are so many times `more`.

        Many short rounds do more than few long ones: of 100 keys all find a network of ten lines by
        18 rounds of 8 steps, 95 by 6 of 25 (``keys.py lines EM 100 --rounds 6 --round-steps 25``).

        >>> Search().plan(100), Search().plan(500), Search().plan(2000), Search(rounds=0).plan(100)
        ((8, 4, 6), (33, 18, 8), (35, 12, 35), (8, 0, 6))
        """
        screening = max(8, min(num_steps // 15, 35)) if self.screening is None else self.screening
        steps = max(6, min(num_steps // 57, 35)) if self.steps is None else self.steps
        total = (4 + min(num_steps // 250, 8)) * max(6, min(num_steps // 20, 35))
        most = max(1, int(self.effort * total) // steps)
        rounds = more[0] * most if self.rounds is None else self.rounds
        return screening, rounds, more[1] * steps if self.steps is None else steps

    def words(self, num_steps: int) -> str:
        """The search before a run of `num_steps`.

        >>> Search().words(100)
        '3 starts, 8 steps of screening, 4 rounds of 6 steps'
        """
        screening, rounds, steps = self.plan(num_steps)
        turns = f", {rounds} rounds of {steps} steps" if rounds else ""
        return f"{self.num_lineages} starts, {screening} steps of screening{turns}"


class Narrow(NamedTuple):
    """The rows that a search looks at, with fewer columns where a method knows how."""

    rows: Rows
    widened: Callable[[Params], Params]  # parameters as of all columns, on a leading axis or not
    more: tuple[int, int] = 1, 1  # times as many rounds and steps of each, where steps are quick


class Spent(NamedTuple):
    """What a search took."""

    seconds: float = 0.0
    compile_seconds: float = 0.0
    step_seconds: float = 0.0  # of a step of the run, where one was taken already


def optima_of(losses: np.ndarray) -> Optima:
    """Where lineages ended, from the last three losses of each, (3, num_lineages).

    >>> print(optima_of(np.array([[10.2, 9.0], [10.0, 9.0], [9.9, 9.0]])))
    1 of 2 starts agree on the best optimum (losses 9, 9.9)
    """
    left, order = remaining(losses), np.argsort(losses[-1])
    last, left = losses[-1][order], left[order]
    # A ten-thousandth, and what either would still gain.
    slack = 0.02 + 1e-4 * np.abs(last[0]) + left[:, None] + left
    same = np.abs(last[:, None] - last) <= slack
    return Optima(last, int(same[0].sum()), int((same.sum(0) == 1).sum()))


def remaining(losses: Any, xp: Any = np) -> Any:
    """What a sequence would still lose by Aitken's estimate, from its last three values, (3, ...).

    >>> remaining(np.array([4.0, 2.0, 1.0])).item()  # halves in every step, towards zero
    1.0
    """
    with np.errstate(all="ignore"):
        first, last = losses[0] - losses[1], losses[1] - losses[2]
        rate = xp.clip(last / first, 0.0, 0.99)
        left = xp.abs(last) * rate / (1.0 - rate)
    return xp.where(xp.isfinite(left), left, xp.abs(last))


def best_of(states: Any, losses: Array, part: Callable[[Any], Any] = lambda one: one) -> Any:
    """The one of several states, on a leading axis, whose loss is least, or a part of it.

    :param losses: (num_states,), or of several steps, of which the last counts.
    """
    leaves = jax.tree.leaves((states, losses))
    if jax.default_backend() != "cpu" or any(isinstance(x, jax.core.Tracer) for x in leaves):
        # In one piece: to index its arrays one by one is to compile as many programs.
        return part(remembered(_best_of)(states, losses))
    # Here, where nothing is compiled for it.
    last = np.asarray(losses)
    best = int(np.argmin(last[-1] if last.ndim > 1 else last))
    return jax.device_put(part(jax.tree.map(lambda x: _entry(x, best), states)))


def _entry(x: Array, place: int) -> Any:
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(x)[place]
    data = np.asarray(jax.random.key_data(x))[place]
    return jax.random.wrap_key_data(jax.device_put(data), impl=jax.random.key_impl(x))


def _best_of(states: Any, losses: Array) -> Any:
    best = jnp.argmin(losses[-1] if losses.ndim > 1 else losses)
    return jax.tree.map(lambda x: x[best], states)


NEAR = 1e-5
"""Of the loss: what two lineages that agree for certain differ by, and have left to gain."""


def settled(losses: Array, idle: Array) -> Array:
    """Which lineages agree with the best for certain, or are too far behind it; never the best.

    :param losses: (3, num_lineages), the last three of each.
    :param idle: (num_lineages,) for how many steps that was so: of equals, one stays the best.
    """
    last, left = losses[-1], remaining(losses, jnp)
    near = NEAR * jnp.abs(last.min())
    best = jnp.argmin(last + jnp.where(idle > 0, near, 0.0))
    gap = last - last[best]
    left = jnp.where(jnp.isfinite(left), left, jnp.inf)
    same = (gap <= near) & (left <= near) & (left[best] <= near)
    hopeless = (gap > 10.0 * left) & (gap > 10.0 * near)
    return (same | hopeless) & (jnp.arange(len(last)) != best)
