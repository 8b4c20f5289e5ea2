"""E-steps over sets of binary states, as functions of arrays.

The states of a datum are those of C candidate bits with at most k of them on; and, where C is less
than the number of bits, every other bit alone (Henniges et al. 2010, eq. 4). For a quadratic log
joint, all states of all data are one matrix product: (data × features) @ (features × states), with
the candidates' bits and pairs of bits as features. Its transpose gives the moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...numerics.log_sums import at_bits, best_bits, means_of_bits
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.forms import Quadratic
from ...reading.log_joint import Structure
from ...reading.reader import Reader
from ...reading.states import AtMost
from ...rows.chunks import over_rows
from ..shared import Chunk, Expectation

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

    def search(self, here: Chunk, memory: Array, keys: Array) -> tuple[Array, Array]:
        """Choose candidates for a chunk: the evidence they give, (n,), and what to remember."""
        del keys
        scene = _scene(self, here)
        indices = self._choose(scene)
        evidence = _sums(self, scene, indices).evidence
        if not self.keep:
            return evidence, indices
        kept = _sums(self, scene, memory).evidence
        better = evidence > kept
        indices = jnp.where(better[:, None], indices, memory)
        return jnp.where(better, evidence, kept), indices

    def grow(self, here: Chunk, keys: Array) -> Array:
        """The candidates to look at where none are remembered."""
        del keys
        return self._choose(_scene(self, here))

    def expect(self, here: Chunk, memory: Any = None, keys: Array | None = None) -> Expectation:
        """The posterior over the candidates in `memory`, or over freshly chosen ones."""
        del keys
        scene = _scene(self, here)
        indices = self._choose(scene) if memory is None else memory
        return _expectation(self, scene, indices)

    def contains(self, reader: Reader, memory: Array, bits: Array) -> Array:
        """Whether states (S, n, bits) are among those summed: (S, n)."""
        each = jnp.arange(memory.shape[0])[:, None]
        shape = (memory.shape[0], reader.anatomy.num_bits)
        member = jnp.zeros(shape, bool).at[each, memory].set(True)
        count = bits.sum(-1)
        inside = ~(bits.astype(bool) & ~member).any(-1) & (count <= self.max_active)
        return inside | (count <= 1) if self.num_candidates < shape[1] else inside

    def _choose(self, scene: Scene) -> Array:
        reader, params, (args, kwargs) = scene.here
        num_data, num_bits = reader.anatomy.num_data, reader.anatomy.num_bits
        if self.num_candidates == num_bits:
            return jnp.broadcast_to(jnp.arange(num_bits, dtype=jnp.int32), (num_data, num_bits))
        if self.select is None:
            assert scene.single is not None
            scores = scene.single
        else:
            scores = self.select(params, *args, **kwargs)
            if scores.shape != (num_data, num_bits):
                raise ProgramError(
                    f"the selection function returned shape {scores.shape}, "
                    f"wanted one score per bit: ({num_data}, {num_bits})"
                )
        return best_bits(scores, self.num_candidates)


class Scene(NamedTuple):
    """What all choices of candidates share."""

    here: Chunk
    form: Quadratic | None
    constant: Array | float  # (n,): of all log joints, kept apart for the digits of the others
    single: Array | None  # (n, bits): log joint of each bit alone; None if every bit is a candidate


def _scene(sets: Candidates, here: Chunk) -> Scene:
    reader, params, arguments = here
    num_bits = reader.anatomy.num_bits
    form: Quadratic | None = None
    constant: Array | float = 0.0
    if reader.structure is not Structure.GENERAL:
        form = reader.quadratic(params, arguments, own_pairs=False)
        constant = form.constant
    single: Array | None = None
    if sets.num_candidates == num_bits:
        pass  # none is alone
    elif form is not None:
        single = form.linear.T
    else:
        single = here.log_joint(jnp.eye(num_bits, dtype=jnp.int32)[:, None, :]).T
    return Scene(here, form, constant, single)


def _log_joints(sets: Candidates, scene: Scene, indices: Array) -> Array:
    """Log joints of all states of the candidates, but for the constant, (n, S)."""
    (reader, params, arguments), form, table = scene.here, scene.form, sets.table()
    if form is None:
        return scene.here.log_joint(_scatter(table, indices, reader)).T
    first, second = np.triu_indices(sets.num_candidates, 1)
    if reader.structure.shared:
        pairs = form.hessian[indices[:, first], indices[:, second]]
    else:
        pairs = reader.candidate_hessian(params, arguments, indices)[:, first, second]
    linear = jnp.take_along_axis(form.linear.T, indices, axis=1)
    # The barrier keeps XLA from gathering them anew for each use.
    features = lax.optimization_barrier(jnp.concatenate([linear, pairs], axis=1))
    return jnp.matmul(features, jnp.asarray(_design(table).T, features.dtype), precision="highest")


class Sums(NamedTuple):
    """Sums over the states of the candidates and all other bits alone."""

    evidence: Array  # (n,)
    mean: Array  # (n, bits)
    pairs: Array  # (n, C(C-1)/2) means of products of two candidates
    inside: Array  # (n, S) log joints of the candidates' states
    level: Array  # (n, 1) the largest of all log joints
    scale: Array  # (n, 1) one over the sum of exp(log joint − level)


def _sums(sets: Candidates, scene: Scene, indices: Array) -> Sums:
    single, inside = scene.single, _log_joints(sets, scene, indices)
    largest = inside.max(1, keepdims=True)
    if single is not None:
        largest = jnp.maximum(largest, single.max(1, keepdims=True))
    level = jnp.where(jnp.isfinite(largest), largest, 0.0)  # if no state is possible
    terms = jnp.exp(inside - level)
    design = jnp.asarray(_design(sets.table()), terms.dtype)
    sums, count = jnp.matmul(terms, design, precision="highest"), terms.sum(1, keepdims=True)
    mean, pairs = jnp.split(sums, [sets.num_candidates], axis=1)
    if single is None:
        mean = mean / jnp.where(count > 0, count, 1.0)
    else:
        mean, count = means_of_bits(single, indices, level, mean, count)
    scale = 1.0 / jnp.where(count > 0, count, 1.0)
    evidence = (jnp.log(count) + level)[:, 0] + scene.constant
    return Sums(evidence, mean, scale * pairs, inside, level, scale)


def _expectation(sets: Candidates, scene: Scene, indices: Array) -> Expectation:
    num_bits, table, single = scene.here.reader.anatomy.num_bits, sets.table(), scene.single
    evidence, mean, pairs, inside, level, scale = _sums(sets, scene, indices)
    each = jnp.arange(indices.shape[0])[:, None]
    first, second = np.triu_indices(sets.num_candidates, 1)

    def second_moment(weights: Array, active: Array | None = None) -> Array:
        total = lambda x: over_rows(weights[:, None], x, "highest")[0]  # noqa: E731
        active = total(mean) if active is None else active
        if single is None:
            upper = jnp.zeros((num_bits, num_bits)).at[first, second].set(total(pairs))
        else:
            where = indices[:, first] * num_bits + indices[:, second]
            flat = jnp.zeros(num_bits * num_bits).at[where].add(weights[:, None] * pairs)
            upper = flat.reshape(num_bits, num_bits)
        return upper + upper.T + jnp.diag(active)

    def outside() -> Array:
        assert single is not None
        return at_bits(single, indices, jnp.full(indices.shape, -jnp.inf))

    def weighted() -> tuple[Array, Array]:
        if single is None:
            return jnp.asarray(table)[:, None, :], (scale * jnp.exp(inside - level)).T
        eye = jnp.eye(num_bits, dtype=jnp.int32)[:, None, :]
        eye = jnp.broadcast_to(eye, (num_bits, indices.shape[0], num_bits))
        states = jnp.concatenate([_scatter(table, indices, scene.here.reader), eye])
        both = jnp.concatenate([inside, outside()], axis=1)
        return states, (scale * jnp.exp(both - level)).T

    def best() -> Array:
        chosen = jnp.asarray(table)[jnp.argmax(inside, axis=1)].astype(jnp.int32)
        state = jnp.zeros((indices.shape[0], num_bits), jnp.int32).at[each, indices].set(chosen)
        if single is None:
            return state
        alone = outside()
        bit = jnp.eye(num_bits, dtype=jnp.int32)[jnp.argmax(alone, axis=1)]
        return jnp.where((alone.max(1) > inside.max(1))[:, None], bit, state)

    top = inside.max(1, keepdims=True)
    if single is not None:
        top = jnp.maximum(top, outside().max(1, keepdims=True))
    share = (jnp.exp(top - level) * scale)[:, 0]
    return Expectation(evidence, mean, second_moment, weighted, best, share)


def _design(table: np.ndarray) -> np.ndarray:
    """Bits and products of pairs of bits of each state: (S, C + C(C-1)/2)."""
    first, second = np.triu_indices(table.shape[1], 1)
    return np.concatenate([table, table[:, first] * table[:, second]], axis=1).astype(np.int8)


def _scatter(table: np.ndarray, indices: Array, reader: Reader) -> Array:
    """States of the candidates as states of all bits: (S, n, bits)."""
    each = jnp.arange(indices.shape[0])[:, None]
    shape = (len(table), indices.shape[0], reader.anatomy.num_bits)
    values = jnp.broadcast_to(
        jnp.asarray(table, jnp.int32)[:, None, :], (*shape[:2], table.shape[1])
    )
    return jnp.zeros(shape, jnp.int32).at[:, each, indices].set(values)
