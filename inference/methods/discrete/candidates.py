"""E-steps over sets of binary states, as functions of arrays.

The states of a datum are those of C candidate bits with at most k of them on; and, where C is less
than the number of bits, every other bit alone (Henniges et al. 2010, eq. 4). For a quadratic log
joint, all states of all data are one matrix product: (data × features) @ (features × states), with
the candidates' bits and pairs of bits as features. Its transpose gives the moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...numerics.log_sums import normalise
from ...numerics.products import product
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.local import Structure
from ...reading.reader import Form, Reader
from ...reading.states import AtMost
from ...rows.chunks import over_rows
from ...types import Arguments, Params
from ..shared import Expectation

Select = Callable[..., Array]


class Candidates(NamedTuple):
    """States of at most `max_active` out of `num_candidates` bits chosen for each datum.

    :param select: ``select(params, *args, **kwargs) -> (num_data, num_bits)``, larger is better; by
        default the log joint of the state in which that bit alone is on.
    :param keep: a datum keeps its last candidates unless the new ones explain it better.
    """

    num_candidates: int
    max_active: int
    select: Select | None = None
    keep: bool = False

    def check(self, num_bits: int) -> None:
        if not 1 <= self.num_candidates <= num_bits:
            raise ProgramError(
                f"num_candidates is {self.num_candidates}, but a datum has {num_bits} bits"
            )
        if not 1 <= self.max_active <= self.num_candidates:
            raise ProgramError(
                f"max_active is {self.max_active}: it must be between 1 and num_candidates "
                f"({self.num_candidates})"
            )

    def table(self) -> np.ndarray:
        return AtMost(self.max_active).table((2,) * self.num_candidates)

    def num_states(self, anatomy: Anatomy) -> int:
        rest = anatomy.num_bits if self.num_candidates < anatomy.num_bits else 0
        return len(self.table()) + rest

    def given(self, anatomy: Anatomy) -> None:
        del anatomy

    def start(self, anatomy: Anatomy, key: Array) -> Array:
        """What is remembered of each datum: its candidates."""
        del key
        first = jnp.arange(self.num_candidates, dtype=jnp.int32)
        return jnp.broadcast_to(first, (anatomy.num_data, self.num_candidates))

    def search(
        self, reader: Reader, params: Params, arguments: Arguments, memory: Array, keys: Array
    ) -> tuple[Array, Array]:
        """Choose candidates for a chunk: the evidence they give, (n,), and what to remember."""
        del keys
        scene = _scene(self, reader, params, arguments)
        indices = self._choose(scene, reader, params, arguments)
        evidence, _ = normalise(_logits(self, scene, reader, params, arguments, indices), 1)
        if not self.keep:
            return evidence, indices
        kept, _ = normalise(_logits(self, scene, reader, params, arguments, memory), 1)
        better = evidence > kept
        indices = jnp.where(better[:, None], indices, memory)
        return jnp.where(better, evidence, kept), indices

    def grow(self, reader: Reader, params: Params, arguments: Arguments, keys: Array) -> Array:
        """The candidates to look at where none are remembered."""
        del keys
        scene = _scene(self, reader, params, arguments)
        return self._choose(scene, reader, params, arguments)

    def expect(
        self,
        reader: Reader,
        params: Params,
        arguments: Arguments,
        memory: Array | None = None,
        keys: Array | None = None,
    ) -> Expectation:
        """The posterior over the candidates in `memory`, or over freshly chosen ones."""
        del keys
        scene = _scene(self, reader, params, arguments)
        indices = memory
        if indices is None:
            indices = self._choose(scene, reader, params, arguments)
        inside, outside = _logits(self, scene, reader, params, arguments, indices)
        best_alone = memory is None and self.select is None
        return _moments(self, reader, inside, outside, indices, best_alone)

    def contains(self, reader: Reader, memory: Array, bits: Array) -> Array:
        """Whether states (S, n, bits) are among those summed: (S, n)."""
        each = jnp.arange(memory.shape[0])[:, None]
        shape = (memory.shape[0], reader.anatomy.num_bits)
        member = jnp.zeros(shape, bool).at[each, memory].set(True)
        count = bits.sum(-1)
        inside = ~(bits.astype(bool) & ~member).any(-1) & (count <= self.max_active)
        return inside | (count <= 1) if self.num_candidates < shape[1] else inside

    def _choose(self, scene: Scene, reader: Reader, params: Params, arguments: Arguments) -> Array:
        num_data, num_bits = reader.anatomy.num_data, reader.anatomy.num_bits
        if self.num_candidates == num_bits:
            return jnp.broadcast_to(jnp.arange(num_bits, dtype=jnp.int32), (num_data, num_bits))
        if self.select is None:
            assert scene.single is not None
            scores = scene.single
        else:
            scores = self.select(params, *arguments[0], **arguments[1])
            if scores.shape != (num_data, num_bits):
                raise ProgramError(
                    f"the selection function returned shape {scores.shape}, "
                    f"wanted one score a bit: ({num_data}, {num_bits})"
                )
        return best_bits(scores, self.num_candidates)


class Scene(NamedTuple):
    """What all choices of candidates share."""

    form: Form | None
    single: Array | None  # (n, bits): log joint of each bit alone; None if every bit is a candidate


def _scene(sets: Candidates, reader: Reader, params: Params, arguments: Arguments) -> Scene:
    num_bits = reader.anatomy.num_bits
    form = None
    if reader.structure is not Structure.GENERAL:
        form = reader.form(params, arguments)
    if sets.num_candidates == num_bits:
        return Scene(form, None)
    if form is not None and form.hessian is not None:
        single = form.linear + (0.5 * jnp.diagonal(form.hessian) + form.constant[:, None])
    else:
        eye = jnp.eye(num_bits, dtype=jnp.int32)[:, None, :]
        single = reader.log_joint(params, eye, arguments).T
    return Scene(form, single)


def _logits(
    sets: Candidates,
    scene: Scene,
    reader: Reader,
    params: Params,
    arguments: Arguments,
    indices: Array,
) -> tuple[Array, Array | None]:
    """Log joints of the states of the candidates (n, S), and of all other single bits (n, bits)."""
    table = sets.table()
    form = scene.form
    if form is None:
        inside = reader.log_joint(params, _scatter(table, indices, reader), arguments).T
    else:
        first, second = np.triu_indices(sets.num_candidates, 1)
        if form.hessian is not None:
            diagonal = jnp.diagonal(form.hessian)[indices]
            pairs = form.hessian[indices[:, first], indices[:, second]]
        else:
            hessian = reader.candidate_hessian(params, arguments, indices)
            diagonal = jnp.diagonal(hessian, axis1=1, axis2=2)
            pairs = hessian[:, first, second]
        linear = jnp.take_along_axis(form.linear, indices, axis=1) + 0.5 * diagonal
        # The constant is a feature that every state has: adding it later costs a pass over states.
        features = jnp.concatenate([linear, pairs, form.constant[:, None]], axis=1)
        # The barrier keeps XLA from gathering them anew for each use.
        inside = product(lax.optimization_barrier(features), jnp.asarray(_design(table)))
    if scene.single is None:
        return inside, None
    return inside, at_bits(scene.single, indices, jnp.full(indices.shape, -jnp.inf))


def _moments(
    sets: Candidates,
    reader: Reader,
    inside: Array,
    outside: Array | None,
    indices: Array,
    best_alone: bool,
) -> Expectation:
    num_bits, num_candidates = reader.anatomy.num_bits, sets.num_candidates
    table = sets.table()
    largest = inside.max(1, keepdims=True)
    if outside is not None and not best_alone:
        largest = jnp.maximum(largest, outside.max(1, keepdims=True))
    level = jnp.where(jnp.isfinite(largest), largest, 0.0)  # if no state is possible
    terms = jnp.exp(inside - level)
    # Counted and scaled by and after the product: before it, both are passes over the states.
    sums = product(terms, jnp.asarray(_design(table).T), 1.0)
    count, alone = sums[:, -1:], None
    if outside is not None:
        alone = jnp.exp(outside - level)
        count = count + alone.sum(1, keepdims=True)
    evidence = (jnp.log(count) + largest)[:, 0]
    scale = 1.0 / jnp.where(count > 0, count, 1.0)
    inner, pairs = scale * sums[:, :num_candidates], scale * sums[:, num_candidates:-1]
    each = jnp.arange(indices.shape[0])[:, None]
    first, second = np.triu_indices(num_candidates, 1)
    mean = inner if alone is None else at_bits(scale * alone, indices, inner)

    def second_moment(weights: Array, active: Array | None = None) -> Array:
        total = lambda x: over_rows(weights[:, None], x, "highest")[0]  # noqa: E731
        active = total(mean) if active is None else active
        if outside is None:
            upper = jnp.zeros((num_bits, num_bits)).at[first, second].set(total(pairs))
        else:
            where = indices[:, first] * num_bits + indices[:, second]
            flat = jnp.zeros(num_bits * num_bits).at[where].add(weights[:, None] * pairs)
            upper = flat.reshape(num_bits, num_bits)
        return upper + upper.T + jnp.diag(active)

    def weighted() -> tuple[Array, Array]:
        if alone is None:
            return jnp.asarray(table)[:, None, :], (scale * terms).T
        eye = jnp.eye(num_bits, dtype=jnp.int32)[:, None, :]
        eye = jnp.broadcast_to(eye, (num_bits, indices.shape[0], num_bits))
        states = jnp.concatenate([_scatter(table, indices, reader), eye])
        return states, (scale * jnp.concatenate([terms, alone], axis=1)).T

    def best() -> Array:
        chosen = jnp.asarray(table)[jnp.argmax(inside, axis=1)].astype(jnp.int32)
        state = jnp.zeros((indices.shape[0], num_bits), jnp.int32).at[each, indices].set(chosen)
        if outside is None:
            return state
        single = jnp.eye(num_bits, dtype=jnp.int32)[jnp.argmax(outside, axis=1)]
        return jnp.where((outside.max(1) > inside.max(1))[:, None], single, state)

    return Expectation(evidence, mean, second_moment, weighted, best)


FEW = 16
"""So many candidates are picked and compared one by one, which costs less than to sort, or to
scatter, all bits."""


def best_bits(scores: Array, count: int) -> Array:
    """Indices of the `count` largest scores of each row, (n, count), the largest first.

    On a GPU a few rounds cost less than the sort behind `lax.top_k`: in each, the group of bits
    that has the best one, and that bit in it, so that all scores are read once.

    >>> best_bits(jnp.array([[3.0, 1.0, 2.0, 3.0]]), 3).tolist()
    [[0, 3, 2]]
    """
    if count > FEW or jax.default_backend() == "cpu":
        return lax.top_k(scores, count)[1].astype(jnp.int32)
    num_data, num_bits = scores.shape
    width = math.isqrt(num_bits)
    groups = -(-num_bits // width)
    # Impossible bits score minus infinity; they must still rank above those already taken.
    scores = jnp.maximum(scores, jnp.finfo(scores.dtype).min)
    wide = ((0, 0), (0, groups * width - num_bits))
    table = jnp.pad(scores, wide, constant_values=-jnp.inf).reshape(num_data, groups, width)
    tops = table.max(2)
    chosen: list[Array] = []
    inside, each = (jnp.arange(x, dtype=jnp.int32) for x in (width, groups))
    for _ in range(count):
        group = lax.argmax(tops, 1, jnp.int32)[:, None]
        left, place = jnp.take_along_axis(table, group[:, :, None], 1)[:, 0], group * width + inside
        for taken in chosen:
            left = jnp.where(place == taken, -jnp.inf, left)
        best = lax.argmax(left, 1, jnp.int32)[:, None]
        chosen.append(group * width + best)
        next_best = jnp.where(inside == best, -jnp.inf, left).max(1, keepdims=True)
        tops = jnp.where(each == group, next_best, tops)
    return jnp.concatenate(chosen, axis=1)


def at_bits(table: Array, indices: Array, values: Array) -> Array:
    """A table (n, bits) with other values (n, C) at the bits `indices` (n, C) of each row.

    >>> at_bits(jnp.zeros((1, 3)), jnp.array([[2, 0]]), jnp.array([[1.0, 2.0]])).tolist()
    [[2.0, 0.0, 1.0]]
    """
    if indices.shape[1] > FEW:
        return table.at[jnp.arange(len(table))[:, None], indices].set(values)
    # Compared, not scattered: what makes the table, and what is made of it, then stay one pass.
    each = jnp.arange(table.shape[1], dtype=indices.dtype)
    for bit, value in zip(indices.T, values.T, strict=True):
        table = jnp.where(each == bit[:, None], value[:, None], table)
    return table


def _design(table: np.ndarray) -> np.ndarray:
    """Bits, products of pairs of bits and a one for each state: (S, C + C(C-1)/2 + 1)."""
    first, second = np.triu_indices(table.shape[1], 1)
    ones = np.ones((len(table), 1))
    return np.concatenate([table, table[:, first] * table[:, second], ones], axis=1).astype(np.int8)


def _scatter(table: np.ndarray, indices: Array, reader: Reader) -> Array:
    """States of the candidates as states of all bits: (S, n, bits)."""
    each = jnp.arange(indices.shape[0])[:, None]
    shape = (len(table), indices.shape[0], reader.anatomy.num_bits)
    values = jnp.broadcast_to(
        jnp.asarray(table, jnp.int32)[:, None, :], (*shape[:2], table.shape[1])
    )
    return jnp.zeros(shape, jnp.int32).at[:, each, indices].set(values)
