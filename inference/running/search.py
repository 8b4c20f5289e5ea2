r"""Several starts of a method: screened, varied, and run side by side to the end.

A method that climbs ends at the optimum of the basin it begins in. Restarts alone do not help where
good basins are rare. What helps is to leave an optimum by the one unit that is wrong:

1. `2 K` starts take a few steps each; the best K go on as lineages.
2. In every round each lineage and a variant of it (`Algorithm.vary`: one unit planted anew where
   rows are explained worst) take a few steps; the better of the two is the lineage from then on.
3. The K lineages run to the end, in one batch. The best of them is the result, and where each ended
   is kept with it (`Optima`).

`python tests/benchmarks/keys.py` counts from how many keys the best known optimum is reached: on
bars (1000 × 25, ten causes), mixtures of ten components, lines, prototypes and two-factor items
from 100 of 100 (H200).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ..numerics import clock
from ..numerics.compiling import enough_effort, least_effort, remembered
from ..reading.anatomy import ChainError, inspect
from ..reading.arguments import rows_of
from ..reading.every_row import every_row
from ..rows.chunks import Rows, compiled, counted, counting
from ..types import Params
from .contract import Optima, Searchable


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
    :param num_rows: rows that the search looks at, drawn at random; the runs to the end see all.
    :param least_steps: with fewer steps of a run there is no room for a search.

    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.5, (40, 5)).astype(float)
    >>> em = EM(bernoulli_mixture, search=Search(num_lineages=2, rounds=1))
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
            found = getattr(self, name)
            if found is not None and found < limit:
                raise ValueError(f"{name} must be at least {limit}, found {found}")

    @property
    def straight(self) -> bool:
        """Whether starts are neither screened nor varied."""
        return self.screening == 0 and self.rounds == 0

    def plan(self, num_steps: int) -> tuple[int, int, int]:
        """Screening, rounds and steps of a round before a run of `num_steps`.

        Many short rounds do more than few long ones: of 100 keys all find a network of ten lines by
        18 rounds of 8 steps, 95 by 6 of 25 (``keys.py lines EM 100 --rounds 6 --round-steps 25``).

        >>> Search().plan(100), Search().plan(500), Search().plan(2000), Search(rounds=0).plan(100)
        ((8, 4, 6), (33, 18, 8), (35, 12, 35), (8, 0, 6))
        """
        screening = max(8, min(num_steps // 15, 35)) if self.screening is None else self.screening
        steps = max(6, min(num_steps // 57, 35)) if self.steps is None else self.steps
        total = (4 + min(num_steps // 250, 8)) * max(6, min(num_steps // 20, 35))
        most = max(1, int(self.effort * total) // steps)
        rounds = most if self.rounds is None else self.rounds
        return screening, rounds, steps


class LineageState(NamedTuple):
    """The states of all lineages, and the last losses of each, from which the rest is estimated."""

    states: Any  # a leading axis of num_lineages
    losses: Array  # (3, num_lineages), the last of them last
    idle: Array  # (num_lineages,) steps for which each had nothing more to say


PATIENCE = 10
"""A lineage that agrees with the best, or cannot catch up with it, for so many steps stands still
from then on: where all agree, the rest of a run costs as much as that of one start."""
NEAR = 1e-5
"""Of the loss: what two lineages that agree for certain differ by, and have left to gain."""


class Spent(NamedTuple):
    """What a search took."""

    seconds: float = 0.0
    compile_seconds: float = 0.0


class Lineages:
    """The lineages of a method as one method: its state is a batch of theirs."""

    by_row: ClassVar[tuple[str, ...] | None] = None
    why_no_mesh = "its lineages run side by side on one device"

    def __init__(self, method: Searchable, search: Search):
        self.method, self.search, self.model = method, search, method.model

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        return self.method.num_rows(args, kwargs)

    def begin(
        self, rng_key: Array, num_steps: int, args: tuple, kwargs: dict
    ) -> tuple[LineageState, Spent]:
        """The states that the search before a run of `num_steps` ends with, and what it took."""
        method = self.method
        key_rows, key_search, key_init = random.split(rng_key, 3)
        rows, some = self._rows(key_rows, args, kwargs)
        method.init(key_init, *args, **kwargs)  # refuses what it cannot do, in its own words
        if self.search.straight:

            def start(rows: Rows, keys: tuple[Array, Array]) -> LineageState:
                args, kwargs = rows.whole()
                key_init, key = keys
                return self._begin(key_init, self._propose(key, args, kwargs), args, kwargs)

            first = compiled(start, rows, compiler_options=least_effort())
            return first(rows.leaves, (key_init, key_search)), Spent()
        find = compiled(self._find, some, compiler_options=enough_effort(some.leaves))
        began = time.perf_counter()
        nothing = np.array([0, -1, 0], np.int32)
        plan = np.array(self.search.plan(num_steps), np.int32)
        with counting(counted() if some is rows else None):  # of those drawn all count
            jax.block_until_ready(find(some.leaves, key_search, nothing))  # it is compiled
            compiling, began = time.perf_counter() - began, clock.seconds()
            params = jax.block_until_ready(find(some.leaves, key_search, plan))
        spent = Spent(clock.seconds() - began, compiling)

        def begin(rows: Rows, key: Array, params: Params) -> LineageState:
            return self._begin(key, params, *rows.whole())

        # A key that a function closed over would make it another one in every run.
        first = compiled(begin, rows, compiler_options=least_effort())
        return first(rows.leaves, key_init, params), spent

    def whole(
        self, rng_key: Array, num_steps: int, args: tuple, kwargs: dict
    ) -> tuple[LineageState, Array]:
        """A run of `num_steps` from a key, search and all, as one pure function: where the lineages
        stand at last, and the loss that the best had at each step."""
        key_rows, key_search, key_init = random.split(rng_key, 3)
        if self.search.straight:
            params = self._propose(key_search, args, kwargs)
        else:
            some = self._rows(key_rows, args, kwargs)[1]
            plan = jnp.asarray(self.search.plan(num_steps), jnp.int32)
            params = self._find(some, key_search, plan)
        state = self._begin(key_init, params, args, kwargs)
        step = lambda state, _: self.update(state, *args, **kwargs)  # noqa: E731
        return lax.scan(step, state, None, length=num_steps)

    def _rows(self, key: Array, args: tuple, kwargs: dict) -> tuple[Rows, Rows]:
        """All rows, and those that the search looks at."""
        try:
            anatomy = inspect(every_row(self.model), args, kwargs, plate=self.method.plate)
        except ChainError:  # it has steps, and all of them are looked at
            leaves, tree = jax.tree.flatten((args, kwargs))
            whole = Rows((), tuple(leaves), tree, 0)
            return whole, whole
        rows, size = rows_of(anatomy, args, kwargs), self.search.num_rows
        total = int(rows.total)  # outside of what is compiled, or of all rows
        if total <= size:
            return rows, rows
        chosen = random.choice(key, total, (size,), replace=False)
        return rows, rows_of(anatomy.with_rows(size), *rows.take(chosen))

    def _propose(self, key: Array, args: tuple, kwargs: dict) -> Params:
        """As many starts as lineages."""
        propose = lambda key: self.method.propose(key, *args, **kwargs)  # noqa: E731
        return _every(propose)(random.split(key, self.search.num_lineages))

    def _begin(self, key: Array, params: Params, args: tuple, kwargs: dict) -> LineageState:
        count = self.search.num_lineages
        start = lambda key, p: self.method.init(key, *args, init_params=p, **kwargs)  # noqa: E731
        states = _every(start)(random.split(key, count), params)
        return LineageState(states, jnp.zeros((3, count)), jnp.zeros(count, int))

    def update(self, state: LineageState, *args: Any, **kwargs: Any) -> tuple[LineageState, Array]:
        def step(one: Any, losses: Array, active: Array) -> tuple[Any, Array]:
            def go() -> tuple[Any, Array]:
                new, loss = self.method.update(one, *args, **kwargs)
                return new, jnp.append(losses[1:], _finite(loss).astype(losses.dtype))

            return lax.cond(active, go, lambda: (one, losses))

        states, losses = _every(step)(state.states, state.losses.T, state.idle < PATIENCE)
        losses = losses.T
        idle = jnp.where(_settled(losses, state.idle), state.idle + 1, 0)
        idle = jnp.where(state.idle < PATIENCE, idle, state.idle)
        return LineageState(states, losses, idle), losses[-1].min()

    def get_params(self, state: LineageState) -> Params:
        return self.method.get_params(self.best(state))

    def may_stop(self, state: LineageState) -> Array:
        """Whether each lineage has arrived, or is so far behind that it cannot catch up.

        The loop looks at the loss of the best; where others still fall, they are not at an optimum,
        and whether they agree with the best cannot be said.
        """
        mine = jax.vmap(lambda one: jnp.asarray(self.method.may_stop(one)))(state.states)
        last, left = state.losses[-1], remaining(state.losses, jnp)
        arrived = (left <= 1e-6 * jnp.abs(last)) | (last - last.min() > 3.0 * left)
        return jnp.all((mine & arrived) | (state.idle >= PATIENCE))

    def best(self, state: LineageState) -> Any:
        """The state of the lineage of least loss."""
        return best_of(state.states, state.losses)

    def optima(self, state: LineageState) -> Optima:
        """Where the lineages stand, the best first."""
        return optima_of(np.asarray(state.losses, np.float64))

    def _find(self, rows: Rows, key: Array, plan: Array) -> Params:
        """Parameters for each lineage to begin with, (num_lineages, ...).

        The screening is the first round: the best half of all starts goes on, not the better one of
        each pair, and it takes as long as it is given. One climb is compiled for all rounds.
        """
        method, count = self.method, self.search.num_lineages
        args, kwargs = rows.whole()
        screening, rounds, steps = plan
        key_start, key_rounds = random.split(key)

        def climb(params: Params, key: Array, num_steps: Array) -> tuple[Params, Array]:
            def step(_: Array, now: tuple[Any, Array]) -> tuple[Any, Array]:
                state, loss = method.update(now[0], *args, **kwargs)
                return state, _finite(loss).astype(now[1].dtype)

            start = method.init(key, *args, init_params=params, **kwargs), jnp.zeros(())
            state, loss = lax.fori_loop(0, num_steps, step, start)
            return method.get_params(state), loss

        def one_round(number: Array, params: Params) -> Params:
            key_climb, key_vary = random.split(random.fold_in(key_rounds, number))
            first = number == 0
            num_steps = jnp.where(first, screening, steps)
            several = lambda p, key: climb(p, key, num_steps)  # noqa: E731
            params, losses = _every(several)(params, random.split(key_climb, 2 * count))
            # A lineage whose variant fell behind has lost nothing.
            better = jnp.arange(count) + count * (losses[count:] < losses[:count])
            chosen = jnp.where(first, lax.top_k(-losses, count)[1], better)
            params = jax.tree.map(lambda x: x[chosen], params)
            vary = lambda key, p: method.vary(key, p, *args, **kwargs)  # noqa: E731
            variants = _every(vary)(random.split(key_vary, count), params)
            return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), params, variants)

        propose = lambda key: method.propose(key, *args, **kwargs)  # noqa: E731
        params = _every(propose)(random.split(key_start, 2 * count))
        params = lax.fori_loop(0, 1 + rounds, one_round, params)
        return jax.tree.map(lambda x: x[:count], params)


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


def best_of(states: Any, losses: Array) -> Any:
    """The one of several states, on a leading axis, whose loss is least.

    :param losses: (num_states,), or of several steps, of which the last counts.
    """
    # In one piece: to index its arrays one by one is to compile as many programs.
    return remembered(_best_of, compiler_options=least_effort())(states, losses)


def _best_of(states: Any, losses: Array) -> Any:
    best = jnp.argmin(losses[-1] if losses.ndim > 1 else losses)
    return jax.tree.map(lambda x: x[best], states)


def _every(function: Callable) -> Callable:
    """A function of each of several starts: side by side where that is sooner done.

    A processor gains nothing from a batch, and one after the other some may stand still.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *args: lax.map(lambda one: function(*one), args)


def _settled(losses: Array, idle: Array) -> Array:
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


def _finite(losses: Array) -> Array:
    """A lineage that has gone astray has lost; the others go on."""
    return jnp.where(jnp.isfinite(losses), losses, jnp.inf)
