"""Latents of a datum that are written as vectors, and interact sparsely: summed element by element.

Which elements interact is read off the log joint f of a datum: two of them do if

    f(both changed) − f(one changed) − f(the other changed) + f(neither) ≠ 0

at some of a few random states, parameters and rows. Spans of elements are changed together first,
and halved where they interact. Along an order of elimination every element v then meets few others,
C_v, and f is known from its values on states that are 0 outside of those:

    f(s) = f(0) + Σ_v [ f(s on C_v) − f(s on C_v without v) ]

(Hammersley and Clifford's expansion about 0, each of whose terms belongs to the element of it that
is eliminated first). That is tested on random states before it is used. The sum then takes a run of
the program for each state of each C_v instead of one for each state of all: 3998 for a chain of
1000 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ..numerics import elimination
from ..numerics.elimination import Factor, Problem
from ..rows.chunks import Numbers, map_over_chunks
from ..types import Arguments, Params
from .abstract import leave, outside
from .anatomy import Anatomy
from .arguments import rows_of
from .local import log_joint

CHUNK_FLOATS = 1 << 22


class Elements(NamedTuple):
    """The latents of a datum, element by element, and which meet. Static: it holds no arrays."""

    anatomy: Anatomy
    scopes: tuple[tuple[int, ...], ...]  # C_v, v first, in an order of elimination
    rounds: tuple[tuple[int, ...], ...] = ()  # of elimination
    hidden: tuple[str, ...] = ()  # deterministic sites of the plate

    @property
    def names(self) -> tuple[str, ...]:
        return self.anatomy.names

    @property
    def observed(self) -> tuple[str, ...]:
        return self.anatomy.observed

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.anatomy.parameters

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each element."""
        return tuple(x.num_values or 1 for x in self.anatomy.latents for _ in range(x.size))

    @property
    def treewidth(self) -> int:
        return max(map(len, self.scopes)) - 1

    @property
    def num_runs(self) -> int:
        return sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes)

    def problem(self, num_data: int) -> Problem:
        return Problem(self.sizes, (frozenset({0}),) * len(self.sizes), (num_data,), self.rounds)

    def states(self) -> np.ndarray:
        """The states of each C_v, one after the other, the least elsewhere: (runs, elements)."""
        parts = []
        for scope in self.scopes:
            own = [self.sizes[v] for v in scope]
            part = np.zeros((math.prod(own), len(self.sizes)), np.int32)
            part[:, list(scope)] = np.indices(own).reshape(len(own), -1).T
            parts.append(part)
        return np.concatenate(parts) + self.anatomy.lowest

    def factors(self, log_joints: Array) -> tuple[Array, list[Factor]]:
        """f(0) of each row, (n,), and the factors, from f at `states`, (runs, n)."""
        kinds: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        begin = 0
        for scope in self.scopes:
            own = tuple(self.sizes[v] for v in scope)
            kinds.setdefault(own, []).append((begin, scope))
            begin += math.prod(own)
        factors = []
        for own, parts in kinds.items():
            rows = np.array([first for first, _ in parts])[:, None] + np.arange(math.prod(own))
            table = log_joints[rows].reshape(len(parts), *own, -1)
            factors.append(Factor(np.array([scope for _, scope in parts]), table - table[:, :1]))
        return log_joints[0], factors

    def by_chunk(
        self,
        read: Callable[[Problem, Array, list[Factor], Array], Any],
        model: Callable,
        given: Params,
        arguments: Arguments,
    ) -> Any:
        """What `read` makes of f(0) and the factors of a chunk of rows, for all rows."""
        rows = rows_of(self.anatomy, *arguments)
        given = {name: x for name, x in given.items() if name != self.anatomy.plate}
        width = rows.width + len(self.sizes)
        size = max(1, min(rows.num_data, CHUNK_FLOATS // (self.num_runs * width)))
        # Without the barrier XLA folds what the program makes of them, for seconds.
        states = lax.optimization_barrier(jnp.asarray(self.states())[:, None])

        # What is held of a chunk for the gradient would add up over all of them.
        @jax.checkpoint
        def one(arguments: Arguments, start: Array) -> Any:
            local = self.anatomy.with_rows(size)
            log_joints = log_joint(model, local, given, states, arguments)
            log_joints = jnp.broadcast_to(log_joints, (len(states), size))
            return read(self.problem(size), *self.factors(log_joints), start)

        each = lambda arguments, numbers: one(arguments, numbers[0])  # noqa: E731
        return map_over_chunks(each, rows, size, Numbers())


def sum_elements(model: Callable, elements: Elements, args: tuple, kwargs: dict) -> Any:
    """Run the program with its latents summed out: one factor per row is left of its rows.

    It has the name of the first observed site of a row.
    """
    within = {*elements.names, *elements.observed, *elements.hidden}
    trace, given, returned = outside(model, within, args, kwargs)

    def evidence(problem: Problem, base: Array, factors: list[Factor], start: Array) -> Array:
        del start
        return base + elimination.evidence(problem, factors)

    each = elements.by_chunk(evidence, model, given, (args, kwargs))
    each = each.reshape(-1, *(1,) * (-elements.anatomy.plate_dim - 1))
    leave(elements.observed[0], each, trace[elements.names[0]]["scale"])
    return returned


class ElementsPosterior(NamedTuple):
    """The posterior of the latents of each row, given the parameters."""

    model: Callable
    elements: Elements
    given: Params
    arguments: Arguments

    def probabilities(self) -> dict[str, Array]:
        """Of each value of each latent, on one more axis at the end."""

        def read(problem: Problem, base: Array, factors: list[Factor], start: Array) -> list[Array]:
            del base, start
            tables = elimination.probabilities(problem, factors, groups)
            return [jnp.moveaxis(table, 2, 0) for table in tables]  # (rows, size, values)

        latents = self.elements.anatomy.latents
        ends = np.cumsum([latent.size for latent in latents]).tolist()
        groups = [range(end - x.size, end) for x, end in zip(latents, ends, strict=True)]
        tables = self.elements.by_chunk(read, self.model, self.given, self.arguments)
        return {x.name: x.by_value(table) for x, table in zip(latents, tables, strict=True)}

    def chosen(self, rng_key: Array | None) -> dict[str, Array]:
        """A draw of each latent; without a key the most probable ones together."""

        def read(problem: Problem, base: Array, factors: list[Factor], start: Array) -> Array:
            del base
            key = None if rng_key is None else random.fold_in(rng_key, start)
            return elimination.choose(problem, factors, key).T

        states = self.elements.by_chunk(read, self.model, self.given, self.arguments)
        return self.elements.anatomy.by_site(states + self.elements.anatomy.lowest)
