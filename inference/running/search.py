r"""Several starts of a method: screened, varied, and run side by side to the end.

A method that climbs ends at the optimum of the basin it begins in. Restarts alone do not help where
good basins are rare. What helps is to leave an optimum by the one unit that is wrong:

1. `2 K` starts take a few steps each; the best K go on as lineages.
2. In every round each lineage and a variant of it (`Algorithm.vary`: one unit planted anew where
   rows are explained worst) take a few steps; the better of the two is the lineage from then on.
3. The K lineages run to the end, in one batch. The best of them is the result, and where each ended
   is kept with it (`Optima`).

`python benchmarks/keys.py` counts from how many keys the best known optimum is reached.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ..reading.anatomy import ChainError
from ..reading.arguments import rows_of
from ..reading.reader import inspect_all
from ..rows.chunks import Rows, compiled, counted, counting, take_rows
from ..types import Params
from . import clock
from .contract import Optima, RunResult, Searchable, Stop
from .loop import Drive, Progress, Spent, begin, block_of, devices_for, first_progress
from .settings import Range, check_settings

PATIENCE = 10
"""A lineage that agrees with the best, or cannot catch up with it, for so many steps stands still
from then on: where all agree, the rest of a run costs as much as that of one start."""
NEVER, SKIPPED = -(10**6), 10**6
"""Idle steps of a lineage that is not to stand still, and of one that a budget has no room for."""
SEARCHING = 0.5
"""Share of a budget that the search over starts may take."""
SHORT = 0.05
"""Share of that up to which the next block of steps may be twice as long."""
NEAR = 1e-5
"""Share of the loss by which two lineages that agree differ at most, and have left to gain."""


@dataclasses.dataclass(frozen=True)
class Search:
    """How many starts a run has, and how they are thinned out.

    :param num_lineages: K, the runs that go on to the end; twice as many starts are screened.
    :param screening: steps of each start before the first are given up; with 0, and no rounds, as
        many starts as lineages go straight on.
    :param rounds: how often each lineage is set against a variant of itself.
    :param steps: steps of a round. These three go by the length of the run where they are not
        given, so that all starts together take no longer than five plain runs; where no two of
        them end at the best optimum, as many again are run.
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

    num_lineages: Annotated[int, Range(1, 10_000)] = 3
    screening: Annotated[int, Range(0)] | None = None
    rounds: Annotated[int, Range(0)] | None = None
    steps: int | None = None
    effort: float = 1.0
    num_rows: int = 4096
    least_steps: int = 30

    def __post_init__(self) -> None:
        check_settings(Search, vars(self))

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


def optima_of(losses: np.ndarray, left: np.ndarray | None = None) -> Optima:
    """Where lineages ended, from the last three losses of each, (3, num_lineages).

    :param left: what each has left to gain, (num_lineages,), by default by Aitken's estimate and a
        ten-thousandth of the loss. Lineages agree that differ by no more.

    >>> print(optima_of(np.array([[10.2, 9.0], [10.0, 9.0], [9.9, 9.0]])))
    1 of 2 starts agree on the best optimum (losses 9, 9.9)
    """
    order = np.argsort(losses[-1])
    last = losses[-1][order]
    left = remaining(losses) + slack_of(last[0]) if left is None else left
    same = np.abs(last[:, None] - last) <= left[order][:, None] + left[order]
    return Optima(last, int(same[0].sum()), int((same.sum(0) == 1).sum()))


def slack_of(loss: float) -> float:
    """What the estimate of what a lineage has left to gain is taken to be off."""
    return 0.01 + 5e-5 * abs(loss)


def remaining(losses: Any, xp: Any = np) -> Any:
    """What a sequence will lose by Aitken's estimate, from its last three values, (3, ...)."""
    with np.errstate(all="ignore"):
        first, last = losses[0] - losses[1], losses[1] - losses[2]
        rate = xp.clip(last / first, 0.0, 0.99)
        left = xp.abs(last) * rate / (1.0 - rate)
    return xp.where(xp.isfinite(left), left, xp.abs(last))


@jax.jit
def best_of(states: Any, losses: Array) -> Any:
    """The one of several states, on a leading axis, whose loss (num_states,) is least."""
    best = jnp.argmin(losses)
    return jax.tree.map(lambda x: x[best], states)


def each(function: Callable) -> Callable:
    """A function of each of several starts: in one batch, on a CPU one after the other.

    A CPU gains nothing from a batch, and lineages that stand still cost nothing in a loop.

    >>> each(lambda x, y: x + y)(jnp.arange(3), jnp.ones(3)).tolist()
    [1.0, 2.0, 3.0]
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *args: lax.map(lambda one: function(*one), args)


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


class LineageState(NamedTuple):
    """The states of all lineages, and the last losses of each, from which the rest is estimated."""

    states: Any  # a leading axis of num_lineages
    losses: Array  # (3, num_lineages), the last of them last
    idle: Array  # (num_lineages,) steps since each agreed with the best or fell far behind it

    def part(self, which: slice) -> LineageState:
        """Some of the lineages."""
        states = jax.tree.map(lambda x: x[which], self.states)
        return LineageState(states, self.losses[:, which], self.idle[which])

    def alone(self) -> LineageState:
        """The first lineage; the others stand still, and are behind it."""
        first = jnp.arange(len(self.idle)) == 0
        losses = jnp.where(first, self.losses, jnp.inf)
        return self._replace(losses=losses, idle=jnp.where(first, 0, SKIPPED))


class Lineages:
    """The lineages of a method as one method: its state is a batch of theirs."""

    by_row: ClassVar[tuple[str, ...] | None] = None
    why_no_mesh = "its lineages run side by side on one device"

    def __init__(self, method: Searchable, search: Search):
        self.method, self.search, self.model = method, search, method.model
        self.window, self.count = method.window, search.num_lineages

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        return self.method.num_rows(args, kwargs)

    def begin(
        self, rng_key: Array, how: Drive, args: tuple, kwargs: dict
    ) -> tuple[Progress, Spent]:
        """The run after the search over starts, and the time that the search took.

        Where a budget has no room for a step from each start, the first start goes on alone.
        """
        room, record, rows = how.room, how.record, self.rows(args, kwargs)
        self.method.refuse(rng_key, *args, **kwargs)
        if self.search.straight:

            def start(rows: Rows, key: Array) -> Progress:
                keys = random.split(key, 2 * self.count)
                params = self.propose(keys[: self.count], *rows.whole())
                state = self.enter(keys[self.count :], params, *rows.whole())
                return begin(self, room, record, state)

            return compiled(start, rows)(rows.leaves, rng_key), Spent()
        key_rows, key_search, key_init = random.split(rng_key, 3)
        some = self.fewer(key_rows, rows)
        with counting(counted() if some is rows else None):  # drawn rows all count
            narrow = self.method.narrowed(some)
            reached, alone, spent = self._find(key_search, how, narrow)
        if alone and narrow.rows is rows:
            return reached, spent
        params = narrow.widened(self.params(reached.state))

        def enter(rows: Rows, key: Array, params: Params) -> Progress:
            state = self.enter(random.split(key, self.count), params, *rows.whole())
            return begin(self, room, record, state.alone() if alone else state)

        return compiled(enter, rows)(rows.leaves, key_init, params), spent

    def _find(self, key: Array, how: Drive, narrow: Narrow) -> tuple[Progress, bool, Spent]:
        """The lineages after all rounds, whether there is only one, and the time it took.

        With a budget, a step from one start is timed before all take one: on a CPU, one after the
        other. If there is no room for all of them, that step is the result.

        The compiled step is the block of the run to come: half of the starts go through it, then
        the other half.
        """
        rows, began = narrow.rows, time.perf_counter()
        screening, rounds, steps = self.search.plan(how.num_steps, narrow.more)
        devices = devices_for(self, *rows.whole())
        room, record = how.room, how.record  # what is compiled knows nothing of the budget

        def halves(whole: LineageState) -> list[Progress]:
            parts = (whole.part(slice(n, n + self.count)) for n in (0, self.count))
            return [begin(self, room, record, part) for part in parts]

        def start(rows: Rows, key: Array) -> list[Progress]:
            return halves(self.start(key, *rows.whole()))

        def after(rows: Rows, key: Array, number: Array, pair: list) -> list[Progress]:
            whole = _joined(*map(_living, pair))
            go = lambda: halves(self.turn(key, number, whole, *rows.whole()))  # noqa: E731
            return lax.cond(number < 0, lambda: pair, go)

        def climb(half: Progress, end: int) -> Progress:
            limit = np.asarray(-1.0, half.change.dtype)
            return block(half, (np.int32(end), limit, counted()), devices.arrays)

        turn, begun = compiled(after, rows), compiled(start, rows)(rows.leaves, key)
        block = block_of(self, devices, how.record, begun[0])
        # Nothing is done yet, but all is compiled.
        pair = turn(rows.leaves, key, np.int32(-1), [climb(half, 0) for half in begun])
        allowed, one = np.inf, None
        if how.budget is not None:
            allowed, one = SEARCHING * how.budget, first_progress(self, pair[0].state.alone(), how)
        jax.block_until_ready((pair, one))
        compiling, began = time.perf_counter() - began, clock.seconds()

        if one is not None:
            one = climb(one, 1)
            taken = clock.seconds() - began if int(one.step) else 0.0
            several = 3 * self.count if jax.default_backend() == "cpu" else 3
            if not how.has_room(taken, several * taken):  # both halves, and a step of the run
                return one, True, Spent(taken, compiling, taken)

        for number in range(1 + rounds):
            end = steps if number else screening
            done, size = 0, end if how.budget is None else 1
            while done < end and not (done and clock.seconds() - began > allowed):
                before, done = clock.seconds(), min(done + size, end)
                pair = jax.block_until_ready([climb(half, done) for half in pair])
                # No block is long against the time allowed: an overrun is noticed after it.
                size *= 2 if clock.seconds() - before < SHORT * allowed else 1
            pair = jax.block_until_ready(turn(rows.leaves, key, np.int32(number), pair))
            if clock.seconds() - began > allowed:
                break
        return pair[0], False, Spent(clock.seconds() - began, compiling)

    def rows(self, args: tuple, kwargs: dict) -> Rows:
        """The rows of these arguments of the program."""
        try:
            _, anatomy = inspect_all(self.model, args, kwargs, self.method.plate)
            anatomy.check_rows_are_apart()
        except ChainError:  # it has steps, or rows that meet, and the search uses all of them
            leaves, tree = jax.tree.flatten((args, kwargs))
            try:
                count = min(0, self.num_rows(args, kwargs))  # -1: NumPy's arrays keep their values
            except ChainError:
                count = 0
            return Rows((), tuple(leaves), tree, count)
        return rows_of(anatomy, args, kwargs)

    def fewer(self, key: Array, rows: Rows) -> Rows:
        """The rows that the search uses: those of a long table are drawn at random.

        Other rows are another shape, for which all steps are compiled a second time: a table that
        is less than twice as long is used as it is.
        """
        total, size = int(rows.total), self.search.num_rows
        if total <= 2 * size:
            return rows
        chosen = random.choice(key, total, (size,), replace=False)
        leaves = tuple(take_rows(leaf, chosen) for leaf in rows.leaves)
        return rows._replace(leaves=leaves, num_data=size)

    def propose(self, keys: Array, args: tuple, kwargs: dict) -> Params:
        """A start for each key."""
        return each(lambda key: self.method.propose(key, *args, **kwargs))(keys)

    def enter(self, keys: Array, params: Params, args: tuple, kwargs: dict) -> LineageState:
        count = len(keys)
        start = lambda key, p: self.method.init(key, *args, init_params=p, **kwargs)  # noqa: E731
        states = each(start)(keys, params)
        return LineageState(states, jnp.zeros((3, count)), jnp.zeros(count, int))

    def start(self, key: Array, args: tuple, kwargs: dict) -> LineageState:
        """All starts before the first round."""
        key_start, key_rounds = random.split(key)
        params = self.propose(random.split(key_start, 2 * self.count), args, kwargs)
        return self.enter_round(key_rounds, jnp.asarray(0), params, args, kwargs)

    def turn(
        self, key: Array, number: Array, state: LineageState, args: tuple, kwargs: dict
    ) -> LineageState:
        """The lineages after a round, and variants of them.

        The screening is the first round: the best half of all starts goes on, not the better one of
        each pair.
        """
        count, losses, key_rounds = self.count, state.losses[-1], random.split(key)[1]
        key_vary = random.split(random.fold_in(key_rounds, number))[1]
        # A lineage whose variant fell behind has lost nothing.
        better = jnp.arange(count) + count * (losses[count:] < losses[:count])
        chosen = jnp.where(number == 0, lax.top_k(-losses, count)[1], better)
        params = jax.tree.map(lambda x: x[chosen], self.params(state))
        vary = lambda key, p: self.method.vary(key, p, *args, **kwargs)  # noqa: E731
        variants = each(vary)(random.split(key_vary, count), params)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), params, variants)
        return self.enter_round(key_rounds, number + 1, both, args, kwargs)

    def enter_round(
        self, key: Array, number: Array, params: Params, args: tuple, kwargs: dict
    ) -> LineageState:
        """The states that a round begins with; in it none stands still."""
        key_climb = random.split(random.fold_in(key, number))[0]
        state = self.enter(random.split(key_climb, 2 * self.count), params, args, kwargs)
        return state._replace(idle=jnp.full_like(state.idle, NEVER))

    def update(self, state: LineageState, *args: Any, **kwargs: Any) -> tuple[LineageState, Array]:
        def step(one: Any, losses: Array, active: Array) -> tuple[Any, Array]:
            def go() -> tuple[Any, Array]:
                new, loss = self.method.update(one, *args, **kwargs)
                # A lineage that has gone astray has lost; the others go on.
                loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
                return new, jnp.append(losses[1:], loss.astype(losses.dtype))

            return lax.cond(active, go, lambda: (one, losses))

        active = state.idle < PATIENCE
        states, losses = each(step)(state.states, state.losses.T, active)
        losses = losses.T
        idle = jnp.where(settled(losses, state.idle), state.idle + 1, jnp.minimum(state.idle, 0))
        return LineageState(states, losses, jnp.where(active, idle, state.idle)), losses[-1].min()

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
        return best_of(state.states, state.losses[-1])

    def optima(self, state: LineageState) -> Optima:
        """Where the lineages stand, the best first."""
        ran = np.asarray(state.idle) < SKIPPED
        losses = np.asarray(state.losses, np.float64)[:, ran]
        order = np.flatnonzero(ran)[np.argsort(losses[-1])]
        places = jax.tree.map(lambda x: np.asarray(x)[order], self.params(state))
        return optima_of(losses)._replace(params=places)

    def params(self, state: LineageState) -> Params:
        return jax.vmap(self.method.get_params)(state.states)

    def disagree(self, result: RunResult) -> bool:
        """Whether a run ended where no second lineage did."""
        ended = result.stop in (Stop.TOLERANCE, Stop.STEPS)
        return self.count > 1 and ended and self.optima(result.state).agree < 2

    def better(self, *both: RunResult) -> RunResult:
        """The better one of two runs, with the lineages and the times of both."""
        best = min(both, key=lambda one: float(one.state.losses[-1].min()))
        times = ("seconds", "compile_seconds", "search_seconds")
        spent = {name: sum(getattr(one, name) for one in both) for name in times}
        stops = {one.stop for one in both}
        stop = Stop.INTERRUPTED if Stop.INTERRUPTED in stops else best.stop
        return best._replace(state=_joined(*(one.state for one in both)), stop=stop, **spent)


def _joined(*parts: LineageState) -> LineageState:
    states = jax.tree.map(lambda *x: jnp.concatenate(x), *(x.states for x in parts))
    losses = jnp.concatenate([x.losses for x in parts], 1)
    return LineageState(states, losses, jnp.concatenate([x.idle for x in parts]))


def _living(half: Progress) -> LineageState:
    """The lineages of a half; one that all went astray in ended before its last step."""
    lost = jnp.where(jnp.isnan(half.change), jnp.inf, half.state.losses)
    return half.state._replace(losses=lost)
