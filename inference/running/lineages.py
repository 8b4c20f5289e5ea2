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

import time
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ..numerics import clock
from ..numerics.several import every, in_place
from ..reading.anatomy import ChainError
from ..reading.arguments import inspect_all, rows_of
from ..rows.chunks import Rows, compiled, counted, counting
from ..types import Params
from .contract import Optima, Searchable, follow
from .loop import Drive, Progress, begin, block_of, devices_for
from .search import Narrow, Search, Spent, best_of, optima_of, remaining, settled


class LineageState(NamedTuple):
    """The states of all lineages, and the last losses of each, from which the rest is estimated."""

    states: Any  # a leading axis of num_lineages
    losses: Array  # (3, num_lineages), the last of them last
    idle: Array  # (num_lineages,) steps for which each had nothing more to say


PATIENCE = 10
"""A lineage that agrees with the best, or cannot catch up with it, for so many steps stands still
from then on: where all agree, the rest of a run costs as much as that of one start."""
NEVER, SKIPPED = -(10**6), 10**6
"""Idle steps of a lineage that is not to stand still, and of one that a budget has no room for."""
SEARCHING = 0.5
"""Share of a budget that the search over starts may take."""
SHORT = 0.05
"""Share of that up to which the next block of steps may be twice as long."""


class Lineages:
    """The lineages of a method as one method: its state is a batch of theirs."""

    by_row: ClassVar[tuple[str, ...] | None] = None
    why_no_mesh = "its lineages run side by side on one device"

    def __init__(self, method: Searchable, search: Search):
        self.method, self.search, self.model = method, search, method.model
        self.window = method.window

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        return self.method.num_rows(args, kwargs)

    def begin(
        self, rng_key: Array, how: Drive, args: tuple, kwargs: dict
    ) -> tuple[LineageState | Progress, Spent]:
        """The states that the search before a run ends with, and what it took.

        Where a budget has no room for a step from each start, it is one of the first of them.
        """
        method = self.method
        key_rows, key_search, key_init = random.split(rng_key, 3)
        rows, some = self._rows(key_rows, args, kwargs)
        method.refuse(key_init, *args, **kwargs)
        if self.search.straight:

            def start(rows: Rows, keys: list[Array]) -> LineageState:
                args, kwargs = rows.whole()
                to_init, to_propose = keys
                return self._begin(to_init, self._propose(to_propose, args, kwargs), args, kwargs)

            first = compiled(start, rows)
            keys = [random.split(key, self.search.num_lineages) for key in (key_init, key_search)]
            return first(rows.leaves, keys), Spent()
        with counting(counted() if some is rows else None):  # of those drawn all count
            narrow = method.narrowed(some)
            reached, spent = self._find(key_search, how, narrow)
        if one := isinstance(reached, Progress):
            if narrow.rows is rows:
                return reached, spent
            reached = self._params(reached.state)
        reached = narrow.widened(reached)
        count = self.search.num_lineages

        def begin(rows: Rows, key: Array, params: Params) -> LineageState:
            return self._begin(random.split(key, count), params, *rows.whole())

        # A key that a function closed over would make it another one in every run.
        first = compiled(begin, rows)
        state = first(rows.leaves, key_init, reached)
        return (_first_of(state) if one else state), spent

    def _find(self, key: Array, how: Drive, narrow: Narrow) -> tuple[Params | Progress, Spent]:
        """Parameters for each lineage to begin with, (num_lineages, ...), and what it took.

        With a budget, a step from one start is timed before all take one: on a processor, one
        after the other. If there is no room for all of them, that step is handed out.

        What is compiled of the method's steps is the block of the run to come: half of the starts
        go through it, then the other half.
        """
        count, began, rows = self.search.num_lineages, time.perf_counter(), narrow.rows
        screening, rounds, steps = self.search.plan(how.num_steps, narrow.more)
        room, record = how.room, how.record

        def halves(whole: LineageState) -> tuple[Progress, Progress]:
            first, second = (_part(whole, slice(n, n + count)) for n in (0, count))
            return begin(self, room, record, first), begin(self, room, record, second)

        def start(rows: Rows, key: Array) -> tuple[Progress, Progress]:
            return halves(self._start(key, *rows.whole()))

        def turn(rows: Rows, key: Array, number: Array, pair: tuple) -> tuple[Progress, Progress]:
            def go() -> tuple[Progress, Progress]:
                return halves(self._turn(key, number, _joined(*pair), *rows.whole()))

            return lax.cond(number < 0, lambda: pair, go)

        pair = compiled(start, rows)(rows.leaves, key)
        following = compiled(turn, rows)
        devices = devices_for(self, *rows.whole())
        block = block_of(self, devices, pair[0], record)
        limit = np.asarray(-1.0, pair[0].change.dtype)

        def climb(pair: tuple, end: int) -> tuple:
            bounds = np.int32(end), limit, counted()
            return tuple(block(half, bounds, devices.arrays) for half in pair)

        pair = following(rows.leaves, key, np.int32(-1), climb(pair, 0))  # it is compiled
        jax.block_until_ready(pair)
        compiling, began = time.perf_counter() - began, clock.seconds()

        allowed = np.inf if how.budget is None else SEARCHING * how.budget
        if how.budget is not None:
            one = pair[0]._replace(state=_first_of(pair[0].state))
            one = block(one, (np.int32(1), limit, counted()), devices.arrays)
            each = clock.seconds() - began if int(one.step) else 0.0
            several = 3 * count if jax.default_backend() == "cpu" else 3  # else side by side
            if not how.has_room(each, several * each):  # both halves, and a step of the run
                return one, Spent(each, compiling, each)
            pair = _again(one), pair[1]

        def taken(pair: tuple) -> float:
            if how.budget is None:
                return 0.0
            jax.block_until_ready(pair)
            return clock.seconds() - began

        for number in range(1 + rounds):
            end = steps if number else screening
            done, size, now = 0, end if how.budget is None else 1, taken(pair)
            while done < end and not (done and now > allowed):
                done = min(done + size, end)
                pair = climb(pair, done)
                before, now = now, taken(pair)
                # No block is long against what is allowed: what is over is found out after it.
                size *= 2 if now - before < SHORT * allowed else 1
            pair = following(rows.leaves, key, np.int32(number), pair)
            if taken(pair) > allowed:
                break
        params = jax.block_until_ready(self.method.get_params(pair[0].state.states))
        return params, Spent(clock.seconds() - began, compiling)

    def whole(
        self, rng_key: Array, num_steps: int, args: tuple, kwargs: dict
    ) -> tuple[LineageState, Array]:
        """A run of `num_steps` from a key, search and all, as one pure function: where the lineages
        stand at last, and the loss that the best had at each step."""
        key_rows, key_search, key_init = random.split(rng_key, 3)
        count = self.search.num_lineages
        if self.search.straight:
            params = self._propose(random.split(key_search, count), args, kwargs)
        else:
            narrow = self.method.narrowed(self._rows(key_rows, args, kwargs)[1])
            some = narrow.rows.whole()
            screening, rounds, steps = self.search.plan(num_steps, narrow.more)

            def one_round(number: Array, state: LineageState) -> LineageState:
                step = lambda _, state: self.update(state, *some[0], **some[1])[0]  # noqa: E731
                state = lax.fori_loop(0, jnp.where(number == 0, screening, steps), step, state)
                return self._turn(key_search, number, state, *some)

            state = lax.fori_loop(0, 1 + rounds, one_round, self._start(key_search, *some))
            params = narrow.widened(self._params(_part(state, slice(count))))
        state = self._begin(random.split(key_init, count), params, args, kwargs)
        return follow(self, state, num_steps, *args, **kwargs)

    def _rows(self, key: Array, args: tuple, kwargs: dict) -> tuple[Rows, Rows]:
        """All rows, and those that the search looks at."""
        try:
            _, anatomy = inspect_all(self.model, args, kwargs, self.method.plate)
        except ChainError:  # it has steps, and the search uses all of them
            leaves, tree = jax.tree.flatten((args, kwargs))
            whole = Rows((), tuple(leaves), tree, 0)
            return whole, whole
        rows, size = rows_of(anatomy, args, kwargs), self.search.num_rows
        total = int(rows.total)  # outside of what is compiled, or of all rows
        # Other rows are another shape, and all steps are compiled a second time for them: on few
        # more than that the search takes less.
        if total <= 2 * size:
            return rows, rows
        chosen = random.choice(key, total, (size,), replace=False)
        return rows, rows_of(anatomy.with_rows(size), *rows.take(chosen))

    def _propose(self, keys: Array, args: tuple, kwargs: dict) -> Params:
        """A start for each key."""
        return every(lambda key: self.method.propose(key, *args, **kwargs))(keys)

    def _begin(self, keys: Array, params: Params, args: tuple, kwargs: dict) -> LineageState:
        count = len(keys)
        start = lambda key, p: self.method.init(key, *args, init_params=p, **kwargs)  # noqa: E731
        states = every(start)(keys, params)
        return LineageState(states, jnp.zeros((3, count)), jnp.zeros(count, int))

    def update(self, state: LineageState, *args: Any, **kwargs: Any) -> tuple[LineageState, Array]:
        def step(one: Any, losses: Array, active: Array) -> tuple[Any, Array]:
            def go() -> tuple[Any, Array]:
                new, loss = self.method.update(one, *args, **kwargs)
                # A lineage that has gone astray has lost; the others go on.
                loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
                return new, jnp.append(losses[1:], loss.astype(losses.dtype))

            return lax.cond(active, go, lambda: (one, losses))

        states, losses = in_place(step)(state.states, state.losses.T, state.idle < PATIENCE)
        losses = losses.T
        idle = jnp.where(settled(losses, state.idle), state.idle + 1, jnp.minimum(state.idle, 0))
        idle = jnp.where(state.idle < PATIENCE, idle, state.idle)
        return LineageState(states, losses, idle), losses[-1].min()

    def get_params(self, state: LineageState) -> Params:
        return best_of(state.states, state.losses, self.method.get_params)

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
        ran = np.asarray(state.idle) < SKIPPED
        return optima_of(np.asarray(state.losses, np.float64)[:, ran])

    def _start(self, key: Array, args: tuple, kwargs: dict) -> LineageState:
        """All starts before the first round."""
        key_start, key_rounds = random.split(key)
        keys = random.split(key_start, 2 * self.search.num_lineages)
        params = self._propose(keys, args, kwargs)
        return self._enter(key_rounds, jnp.asarray(0), params, args, kwargs)

    def _turn(
        self, key: Array, number: Array, state: LineageState, args: tuple, kwargs: dict
    ) -> LineageState:
        """The lineages after a round, and variants of them.

        The screening is the first round: the best half of all starts goes on, not the better one of
        each pair.
        """
        count, losses, key_rounds = self.search.num_lineages, state.losses[-1], random.split(key)[1]
        key_vary = random.split(random.fold_in(key_rounds, number))[1]
        # A lineage whose variant fell behind has lost nothing.
        better = jnp.arange(count) + count * (losses[count:] < losses[:count])
        chosen = jnp.where(number == 0, lax.top_k(-losses, count)[1], better)
        params = jax.tree.map(lambda x: x[chosen], self._params(state))
        vary = lambda key, p: self.method.vary(key, p, *args, **kwargs)  # noqa: E731
        variants = every(vary)(random.split(key_vary, count), params)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), params, variants)
        return self._enter(key_rounds, number + 1, both, args, kwargs)

    def _enter(
        self, key: Array, number: Array, params: Params, args: tuple, kwargs: dict
    ) -> LineageState:
        """The states that a round begins with; in it none stands still."""
        key_climb = random.split(random.fold_in(key, number))[0]
        count = len(jax.tree.leaves(params)[0])
        state = self._begin(random.split(key_climb, count), params, args, kwargs)
        return state._replace(idle=jnp.full_like(state.idle, NEVER))

    def _params(self, state: LineageState) -> Params:
        return every(lambda one: self.method.get_params(one))(state.states)


def _part(state: LineageState, which: slice) -> LineageState:
    states = jax.tree.map(lambda x: x[which], state.states)
    return LineageState(states, state.losses[:, which], state.idle[which])


def _first_of(state: LineageState) -> LineageState:
    """The first lineage alone; the others stand still, and are behind it."""
    losses, idle = np.array(state.losses), np.array(state.idle)
    losses[:, 1:], idle[:1], idle[1:] = np.inf, 0, SKIPPED
    return state._replace(losses=jnp.asarray(losses), idle=jnp.asarray(idle))


def _again(progress: Progress) -> Progress:
    """All lineages before their first step, the first of them where it has come to."""
    state = progress.state
    losses, idle, step, change = (
        jnp.asarray(np.full(x.shape, value, x.dtype))
        for x, value in ((state.losses, 0), (state.idle, NEVER), (progress.step, 0),
                         (progress.change, np.inf))
    )  # fmt: skip
    state = state._replace(losses=losses, idle=idle)
    return progress._replace(state=state, step=step, change=change)


def _joined(*halves: Progress) -> LineageState:
    """What two halves have come to; one that all went astray in ended before its last step."""
    lost = [jnp.where(jnp.isnan(x.change), jnp.inf, x.state.losses) for x in halves]
    states = jax.tree.map(lambda *x: jnp.concatenate(x), *(x.state.states for x in halves))
    return LineageState(
        states, jnp.concatenate(lost, 1), jnp.concatenate([x.state.idle for x in halves])
    )
