"""Variable elimination in log space, with plates: sums over variables that interact sparsely.

A factor is a table over some variables, and over a grid: one axis for each plate that holds a
variable, of size 1 where the factor is outside the plate. Eliminating a variable adds the
factors that it occurs in, sums them over plates that it is not in (their cells are independent
given it), and takes the log-sum over its values. Variables of inner plates go first, so that a sum
over the product of cells never has to be written down (Obermeyer et al. 2019, tensor variable
elimination). Every log-sum replaced by a maximum, the way back gives the most probable values;
with a draw, a draw from the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from .chain import log_sum_exp


class Factor(NamedTuple):
    """A log table, (number of values of each variable in `scope`..., *grid)."""

    scope: tuple[int, ...]
    table: Array


class Problem(NamedTuple):
    """The variables and how they are eliminated. Static: it holds no arrays."""

    sizes: tuple[int, ...]  # number of values of each variable
    plates: tuple[frozenset[int], ...]  # axes of the grid that each variable has cells on
    grid: tuple[int, ...]  # size of each plate
    order: tuple[int, ...]  # of elimination


class CrossedError(ValueError):
    """Two variables in plates of which neither holds the other, in one factor."""

    def __init__(self, variable: int, other: int):
        super().__init__(f"variables {variable} and {other} are in plates that cross")
        self.variable, self.other = variable, other


def find_order(
    scopes: list[frozenset[int]], sizes: tuple[int, ...], plates: tuple[frozenset[int], ...]
) -> tuple[tuple[int, ...], ...]:
    """In the order of elimination each variable, and those that it is in one table with then.

    Inner plates first; among those, whichever variable makes the smallest table.

    >>> find_order([frozenset({0, 1}), frozenset({1, 2})], (2, 2, 2), (frozenset(),) * 3)
    ((0, 1), (1, 2), (2,))
    """
    left, order = set(range(len(sizes))), []
    neighbours: dict[int, set[int]] = {v: set() for v in left}
    for scope in scopes:
        for v in scope:
            neighbours[v] |= scope - {v}
    while left:
        depth = max(len(plates[v]) for v in left)
        ready = [v for v in left if len(plates[v]) == depth]

        def cost(v: int) -> tuple[int, int]:
            return math.prod(sizes[w] for w in neighbours[v] | {v}), v

        chosen = min(ready, key=cost)
        for other in neighbours[chosen]:
            if not plates[other] <= plates[chosen]:
                raise CrossedError(chosen, other)
        for v in neighbours[chosen]:
            neighbours[v] |= neighbours[chosen] - {v}
            neighbours[v].discard(chosen)
        left.discard(chosen)
        order.append((chosen, *sorted(neighbours[chosen])))
    return tuple(order)


def eliminate(
    problem: Problem, factors: list[Factor], reduce: Callable[[Array, int], Array] = log_sum_exp
) -> tuple[Array, list[Factor]]:
    """What is left on the grid, and the table that each variable was eliminated from, in order.

    In such a table the variable itself is the first axis.
    """
    pool, tables = list(factors), []
    for v in problem.order:
        mine = [f for f in pool if v in f.scope]
        pool = [f for f in pool if v not in f.scope]
        others = sorted({w for f in mine for w in f.scope} - {v})
        scope = (v, *others)
        total = jnp.zeros((1,) * (len(scope) + len(problem.grid)))
        for factor in mine:
            total = total + _aligned(problem, factor, scope, problem.plates[v])
        shape = (*(problem.sizes[w] for w in scope), *_cells(problem, problem.plates[v]))
        tables.append(Factor(scope, jnp.broadcast_to(total, shape)))
        pool.append(Factor(tuple(others), reduce(tables[-1].table, 0)))
    kept = frozenset.intersection(*problem.plates)
    left = [_aligned(problem, factor, (), kept) for factor in pool]
    return sum(left, jnp.zeros((1,) * len(problem.grid))), tables


def _cells(problem: Problem, plates: frozenset[int]) -> tuple[int, ...]:
    return tuple(n if axis in plates else 1 for axis, n in enumerate(problem.grid))


def _aligned(
    problem: Problem, factor: Factor, scope: tuple[int, ...], plates: frozenset[int]
) -> Array:
    """A factor on the axes of `scope`, summed over the plates that are not among `plates`."""
    lead = len(factor.scope)
    own = [scope.index(w) for w in factor.scope]
    table = jnp.transpose(
        factor.table, (*(own.index(i) for i in sorted(own)), *range(lead, factor.table.ndim))
    )
    shape = [problem.sizes[w] if w in factor.scope else 1 for w in scope]
    table = table.reshape(*shape, *factor.table.shape[lead:])
    away = tuple(len(scope) + i for i in range(len(problem.grid)) if i not in plates)
    return table.sum(away, keepdims=True)


def evidence(problem: Problem, factors: list[Factor]) -> Array:
    """The log of the sum over all variables, on the plates that hold all of them.

    >>> pair = Factor((0, 1), jnp.log(jnp.array([[0.1, 0.2], [0.3, 0.4]])))
    >>> nothing = Problem((2, 2), (frozenset(), frozenset()), (), (0, 1))
    >>> round(float(jnp.exp(evidence(nothing, [pair]))), 6)
    1.0
    """
    return eliminate(problem, factors)[0]


def probabilities(problem: Problem, factors: list[Factor]) -> list[Array]:
    """Of each value of each variable, (number of values, *grid): gradients of the log evidence."""
    zeros = [
        jnp.zeros((size, *_cells(problem, plates)))
        for size, plates in zip(problem.sizes, problem.plates, strict=True)
    ]

    def total(single: list[Array]) -> Array:
        more = [Factor((v,), table) for v, table in enumerate(single)]
        return evidence(problem, [*factors, *more]).sum()

    return jax.grad(total)(zeros)


def choose(problem: Problem, factors: list[Factor], rng_key: Array | None = None) -> list[Array]:
    """A value of each variable, on its grid: a draw; without a key the most probable together."""
    best = rng_key is None
    reduce = (lambda x, axis: x.max(axis)) if best else log_sum_exp
    _, tables = eliminate(problem, factors, reduce)
    found: dict[int, Array] = {}
    for v, (scope, table) in zip(reversed(problem.order), reversed(tables), strict=True):
        cells = table.shape[len(scope) :]
        for w in reversed(scope[1:]):
            index = jnp.broadcast_to(found[w], cells)
            lead = table.ndim - len(cells) - 1
            index = index.reshape((1,) * lead + (1, *cells))
            table = jnp.take_along_axis(table, index, axis=lead).squeeze(lead)
        if best:
            found[v] = jnp.argmax(table, axis=0)
        else:
            assert rng_key is not None
            found[v] = random.categorical(random.fold_in(rng_key, v), table, axis=0)
    return [found[v] for v in range(len(problem.sizes))]
