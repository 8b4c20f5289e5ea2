"""Variable elimination in log space, with plates: sums over variables that interact sparsely.

A factor is a table over some variables, and over a grid: one axis for each plate that holds a
variable, of size 1 where the factor is outside the plate. Eliminating a variable adds the
factors that it occurs in, sums them over plates that it is not in (their cells are independent
given it), and takes the log-sum over its values. Variables of inner plates go first, so that a sum
over the product of cells never has to be written down (Obermeyer et al. 2019, tensor variable
elimination). Every log-sum replaced by a maximum, the way back gives the most probable values;
with a draw, a draw from the posterior.

Variables that do not meet are eliminated in one round, and those whose tables have the same shape
by one operation: of a chain of 1000 variables every second one goes, ten times, so that what is
compiled grows with the logarithm of its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from .chain import log_sum_exp

FEW_ENTRIES = 1 << 12
"""Of a table beyond the smallest that will do, where that saves many rounds."""


class Factor(NamedTuple):
    """Log tables of one shape, (tables, number of values of each variable..., *grid)."""

    scopes: np.ndarray  # the variables of each, (tables, variables)
    table: Array


class Problem(NamedTuple):
    """The variables and how they are eliminated. Static: it holds no arrays."""

    sizes: tuple[int, ...]  # number of values of each variable
    plates: tuple[frozenset[int], ...]  # axes of the grid that each variable has cells on
    grid: tuple[int, ...]  # size of each plate
    rounds: tuple[tuple[int, ...], ...]  # of elimination: variables that go together

    def cells(self, v: int) -> tuple[int, ...]:
        """The part of the grid that a variable is on."""
        return tuple(n if axis in self.plates[v] else 1 for axis, n in enumerate(self.grid))


class CrossedError(ValueError):
    """Two variables in plates of which neither holds the other, in one factor."""

    def __init__(self, variable: int, other: int):
        super().__init__(f"variables {variable} and {other} are in plates that cross")
        self.variable, self.other = variable, other


class _Remaining:
    """The variables that are not eliminated yet, and which of them share a factor."""

    def __init__(
        self,
        scopes: Sequence[Sequence[int]] | Sequence[frozenset[int]],
        sizes: tuple[int, ...],
        plates: tuple[frozenset[int], ...],
    ):
        self.sizes, self.plates = sizes, plates
        self.neighbours: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
        for scope in scopes:
            for v in scope:
                self.neighbours[v] |= set(scope) - {v}
        self.costs = {v: self.cost(v) for v in self.neighbours}

    def cost(self, v: int) -> int:
        return math.prod(self.sizes[w] for w in (v, *self.neighbours[v]))

    def ready(self) -> list[int]:
        """Those of the innermost plates, the smallest table first."""
        depth = max(len(self.plates[v]) for v in self.costs)
        ready = [v for v in self.costs if len(self.plates[v]) == depth]
        return sorted(ready, key=lambda v: (self.costs[v], v))

    def eliminate(self, v: int) -> tuple[int, ...]:
        """The variable, and those that it is in one table with."""
        others = self.neighbours.pop(v)
        for w in others:
            if not self.plates[w] <= self.plates[v]:
                raise CrossedError(v, w)
            self.neighbours[w] |= others - {w}
            self.neighbours[w].discard(v)
        del self.costs[v]
        self.costs |= {w: self.cost(w) for w in others}
        return (v, *sorted(others))


def find_order(
    scopes: list[frozenset[int]], sizes: tuple[int, ...], plates: tuple[frozenset[int], ...]
) -> tuple[tuple[int, ...], ...]:
    """In the order of elimination each variable, and those that it is in one table with then.

    Inner plates first; among those, whichever variable makes the smallest table.

    >>> find_order([frozenset({0, 1}), frozenset({1, 2})], (2, 2, 2), (frozenset(),) * 3)
    ((0, 1), (1, 2), (2,))
    """
    left, order = _Remaining(scopes, sizes, plates), []
    while left.costs:
        order.append(left.eliminate(left.ready()[0]))
    return tuple(order)


def find_rounds(
    order: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], plates: tuple[frozenset[int], ...]
) -> tuple[tuple[int, ...], ...]:
    """Variables that are eliminated together: as many as do not meet, if their tables stay small.

    :param order: of elimination one by one, which bounds the size of the tables.

    >>> pairs = [frozenset({i, i + 1}) for i in range(99)]
    >>> order = find_order(pairs, (2,) * 100, (frozenset(),) * 100)
    >>> [len(x) for x in find_rounds(order, (2,) * 100, (frozenset(),) * 100)]
    [50, 25, 13, 6, 3, 2, 1]
    """
    most = max(math.prod(sizes[v] for v in scope) for scope in order)
    most = max(most, min(8 * len(sizes), FEW_ENTRIES))
    left, rounds = _Remaining(order, sizes, plates), []
    while left.costs:
        taken: list[int] = []
        met: set[int] = set()
        for v in left.ready():
            if v not in met and left.costs[v] <= most:
                taken.append(v)
                met |= left.neighbours[v]
        if not taken:  # another order than the cheapest led here
            return tuple((scope[0],) for scope in order)
        for v in taken:
            left.eliminate(v)
        rounds.append(tuple(taken))
    return tuple(rounds)


def eliminate(
    problem: Problem, factors: list[Factor], reduce: Callable[[Array, int], Array] = log_sum_exp
) -> tuple[Array, list[Factor]]:
    """What is left on the grid, and the tables that variables were eliminated from, in order.

    In such a table the variable itself is the first.
    """
    pool, tables = _stacked(factors), []
    gone: set[int] = set()
    for together in problem.rounds:
        groups: dict[tuple, list[tuple[tuple[int, ...], list[Place]]]] = {}
        for v in together:
            found = _occurrences(pool, v, gone)
            others = {w for number, row in found for w in pool[number].scopes[row].tolist()} - {v}
            scope = (v, *sorted(others))
            kind = tuple(problem.sizes[w] for w in scope), problem.plates[v]
            groups.setdefault(kind, []).append((scope, found))
        for group in groups.values():
            tables.append(_joined(problem, pool, group))
            pool.append(Factor(tables[-1].scopes[:, 1:], reduce(tables[-1].table, 1)))
        gone |= set(together)
    kept = frozenset.intersection(*problem.plates)
    total = jnp.zeros((1,) * len(problem.grid))
    for factor in pool:
        if factor.scopes.shape[1] == 0:  # no variable is left in it
            rows = list(range(len(factor.scopes)))
            total = total + _aligned(problem, factor, rows, (), (), kept).sum(0)
    return total, tables


Place = tuple[int, int]  # of a table: the number of its factor and its row there


def _occurrences(pool: list[Factor], v: int, gone: set[int]) -> list[Place]:
    """The tables that a variable occurs in, but for those that were summed already."""
    places = [
        (i, row) for i, x in enumerate(pool) for row in np.flatnonzero((x.scopes == v).any(1))
    ]
    return [(i, int(row)) for i, row in places if gone.isdisjoint(pool[i].scopes[row].tolist())]


def _stacked(factors: list[Factor]) -> list[Factor]:
    """Tables of one shape as one factor."""
    kinds: dict[tuple, list[Factor]] = {}
    for factor in factors:
        kinds.setdefault((factor.scopes.shape[1], factor.table.shape[1:]), []).append(factor)
    join = lambda x: jnp.concatenate(x) if len(x) > 1 else x[0]  # noqa: E731
    parts = (zip(*((x.scopes, x.table) for x in same), strict=True) for same in kinds.values())
    return [Factor(np.concatenate(scopes), join(tables)) for scopes, tables in parts]


def _joined(
    problem: Problem, pool: list[Factor], group: list[tuple[tuple[int, ...], list[Place]]]
) -> Factor:
    """For each scope of a group the sum of the tables that its first variable occurs in."""
    first = group[0][0]
    sizes = tuple(problem.sizes[w] for w in first)
    total = jnp.zeros((len(group), *sizes, *problem.cells(first[0])))
    kinds: dict[tuple, list[tuple[int, int]]] = {}
    for target, (scope, found) in enumerate(group):
        for number, row in found:
            places = tuple(map(scope.index, pool[number].scopes[row].tolist()))
            kinds.setdefault((number, places), []).append((row, target))
    for (number, places), pairs in kinds.items():
        rows, targets = map(list, zip(*pairs, strict=True))
        plates = problem.plates[first[0]]
        part = _aligned(problem, pool[number], rows, places, sizes, plates)
        whole = targets == list(range(len(group)))
        total = total + part if whole else total.at[np.array(targets)].add(part)
    return Factor(np.array([scope for scope, _ in group], int), total)


def _aligned(
    problem: Problem,
    factor: Factor,
    rows: list[int],
    places: tuple[int, ...],
    sizes: tuple[int, ...],
    plates: frozenset[int],
) -> Array:
    """Some tables of a factor with their variables at `places` among those of `sizes`.

    They are summed over the plates that are not among `plates`.
    """
    table = factor.table
    if rows != list(range(len(table))):
        table = table[np.array(rows)]
    lead = 1 + len(places)
    order = [1 + places.index(i) for i in sorted(places)]
    table = jnp.transpose(table, (0, *order, *range(lead, table.ndim)))
    shape = [size if i in places else 1 for i, size in enumerate(sizes)]
    table = table.reshape(len(rows), *shape, *table.shape[lead:])
    away = (1 + len(sizes) + i for i in range(len(problem.grid)) if i not in plates)
    return table.sum(tuple(away), keepdims=True)


def evidence(problem: Problem, factors: list[Factor]) -> Array:
    """The log of the sum over all variables, on the plates that hold all of them.

    >>> pair = Factor(np.array([[0, 1]]), jnp.log(jnp.array([[[0.1, 0.2], [0.3, 0.4]]])))
    >>> nothing = Problem((2, 2), (frozenset(), frozenset()), (), ((0,), (1,)))
    >>> round(float(jnp.exp(evidence(nothing, [pair]))), 6)
    1.0
    """
    return eliminate(problem, factors)[0]


def probabilities(
    problem: Problem, factors: list[Factor], groups: Sequence[Sequence[int]]
) -> list[Array]:
    """Of each value of the variables of each group, (variables, number of values, *cells).

    They are gradients of the log evidence.

    :param groups: variables with as many values, on the same cells.
    """
    shapes = ((len(x), problem.sizes[x[0]], *problem.cells(x[0])) for x in groups)
    zeros = [jnp.zeros(shape) for shape in shapes]

    def total(single: list[Array]) -> Array:
        pairs = zip(groups, single, strict=True)
        more = [Factor(np.array(group)[:, None], table) for group, table in pairs]
        return evidence(problem, [*factors, *more]).sum()

    return jax.grad(total)(zeros)


def choose(problem: Problem, factors: list[Factor], rng_key: Array | None = None) -> Array:
    """A value of each variable, (variables, *grid), the same along plates that it is not in.

    :param rng_key: of a draw; without it the most probable values together.
    """
    reduce = log_sum_exp if rng_key is not None else (lambda x, axis: x.max(axis))
    _, tables = eliminate(problem, factors, reduce)
    values = jnp.zeros((len(problem.sizes), *problem.grid), int)
    for number, (scopes, table) in reversed(list(enumerate(tables))):
        cells = problem.cells(scopes[0, 0])
        own = tuple(slice(n) for n in cells)
        code = jnp.zeros((len(scopes), *cells), int)
        for w in range(1, scopes.shape[1]):
            code = code * table.shape[1 + w] + values[scopes[:, w]][:, *own]
        flat = table.reshape(*table.shape[:2], -1, *cells)
        logits = jnp.take_along_axis(flat, code[:, None, None], 2).squeeze(2)
        if rng_key is None:
            chosen = jnp.argmax(logits, axis=1)
        else:
            chosen = random.categorical(random.fold_in(rng_key, number), logits, axis=1)
        whole = jnp.broadcast_to(chosen, (len(scopes), *problem.grid))
        values = values.at[scopes[:, 0]].set(whole)
    return values
