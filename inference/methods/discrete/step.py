"""One step of EM over sets of states: expect, accumulate, maximise.

The methods of this family differ in the states of a datum that they sum over (`Sets`), in the rows
that they learn from, and in how they go from one step to the next; the step is this one.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, random

from ...reading.anatomy import Anatomy
from ...reading.log_joint import Structure, log_shared
from ...reading.reader import Reader
from ...rows.chunks import Numbers, Rows, map_over_chunks, sum_over_chunks
from ...running.algorithm import Algorithm
from ...running.search import Search
from ...types import Arguments, Params
from ..m_step import gradient_runs, gradient_step
from ..shared import Chunk, Expectation, chunk_rows, row_keys, start_params
from . import moves
from .updates import ClosedForm, SparseCodingUpdate, closed_form

Precision = Literal["highest", "tensorfloat32"]
"""Of matrix products: the digits of float32, or ten bits where a GPU is faster with so few."""


class EMState(NamedTuple):
    """What the next step needs."""

    params: Params
    step: Array
    rng_key: Array
    memory: Any  # what is remembered of each datum, None if nothing

    def keys(self) -> Array:
        """Two keys of this step alone, for the states and for the parameters.

        Made from the number of the step, so that a deterministic method does not compute them.
        """
        return random.split(random.fold_in(self.rng_key, self.step))


class Sets(Protocol):
    """Which states of a datum are summed over: `Candidates`, `Persistent`, `Table`."""

    @property
    def keep(self) -> bool:
        """Whether something of each datum is remembered from one step to the next."""

    def num_states(self, anatomy: Anatomy) -> int: ...

    def given(self, anatomy: Anatomy) -> Array | None:
        """The states of each datum, if they were given: an array by row."""

    def start(self, anatomy: Anatomy, key: Array) -> Any:
        """What is remembered of each datum before the first step."""

    def search(self, here: Chunk, memory: Any, keys: Array) -> tuple[Array, Any]:
        """The evidence of a chunk, (n,), by better states than those remembered, and these."""

    def expect(self, here: Chunk, memory: Any, keys: Array | None = None) -> Expectation:
        """The posterior over the states remembered or given, else over those found from `keys`."""


class Pass(NamedTuple):
    """One pass over the rows: their posteriors at `params`, and what adds up."""

    reader: Reader
    rows: Rows
    sets: Sets
    params: Params
    size: int  # rows of a chunk
    key: Array
    memory: Any  # by row
    evidence: Array | None = None  # of each row, where it is known already
    least: Array | None = None  # rows of less evidence are not learned from

    def searched(self) -> Pass:
        """With better states of each datum, where they are remembered; else with those given."""
        if not self.sets.keep:
            return self._replace(memory=self.sets.given(self.reader.anatomy))

        def search(arguments: Arguments, extra: Any) -> tuple[Array, Any]:
            memory, numbers = extra
            keys = row_keys(self.key, numbers)
            return self.sets.search(Chunk(self.local, self.params, arguments), memory, keys)

        evidence, memory = map_over_chunks(search, self.rows, self.size, self.extra)
        return self._replace(memory=memory, evidence=evidence)

    @property
    def local(self) -> Reader:
        return self.reader.at(self.size)

    @property
    def extra(self) -> Any:
        """What goes with the rows of a chunk."""
        return self.memory, Numbers()

    def expect(self, arguments: Arguments, extra: Any) -> Expectation:
        """The posterior of a chunk, with the weight of each of its rows."""
        memory, numbers = extra
        here, keys = Chunk(self.local, self.params, arguments), row_keys(self.key, numbers)
        posterior = self.sets.expect(here, memory, keys)
        weight = self.local.weights(self.params, arguments)
        if self.least is not None:
            chosen = posterior.evidence.astype(self.least.dtype) >= self.least
            weight = chosen.astype(float) if weight is None else weight * chosen
        return posterior._replace(weight=weight)

    def evidence_of(self, arguments: Arguments, extra: Any) -> Array:
        """The log evidence of each row of a chunk."""
        return self.expect(arguments, extra).evidence

    def accumulate(self, update: ClosedForm) -> tuple[Array, Array, Any]:
        """The log evidence, the number of rows, both by their weights, and the statistics."""

        def part(arguments: Arguments, extra: Any, fresh: Array) -> Any:
            posterior = self.expect(arguments, extra)
            counted = self.local.times(self.params, arguments, fresh)
            sums = update.statistics(posterior, posterior.heavy(fresh), arguments)
            evidence = posterior.anchored(Chunk(self.local, self.params, arguments)).evidence
            return jnp.sum(counted * evidence), jnp.sum(counted), sums

        return sum_over_chunks(part, self.rows, self.size, self.extra)


@dataclasses.dataclass(frozen=True)
class GradientUpdate:
    """An M-step of L-BFGS steps, each of which goes through the rows: nothing adds up before."""

    step: Pass
    prior: bool
    num_steps: int

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        del posterior, weights, arguments
        return ()

    def maximise(self, params: Params, statistics: Any) -> Params:
        del statistics
        step = self.step
        return gradient_step(
            step.reader, params, step.rows, step.size, step.extra, step.expect,
            prior=self.prior, num_steps=self.num_steps,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class StatesEM(Algorithm):
    """EM over sets of states per datum: what `EM` and `TruncatedEM` share."""

    model: Callable
    _: dataclasses.KW_ONLY
    m_step: ClosedForm | None = None
    prior: bool = False
    start: Callable[..., Params] | None = None
    search: Search | None = Search()
    gradient_steps: int = 5
    chunk_size: int | None = None
    structure: Structure | None = None
    plate: str | None = None

    @abc.abstractmethod
    def open(self, args: tuple, kwargs: dict) -> tuple[Reader, Rows]:
        """The program on its data, with as much of its form as is used."""

    @abc.abstractmethod
    def sets(self, reader: Reader, rows: Rows) -> Sets:
        """Which states of these rows are summed over."""

    def update_of(self, reader: Reader, rows: Rows, params: Params) -> ClosedForm | None:
        """The M-step that needs sums over the rows only, where there is one."""
        return closed_form(reader, rows, self.m_step, params=params, prior=self.prior)

    def least(self, state: EMState, step: Pass) -> Array | None:
        """The log evidence from which on a row is learned from; None: all rows are."""
        del state, step
        return None

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> Any:
        reader, rows = self.open(args, kwargs)
        sets = self.sets(reader, rows)  # refuses what is too large, before any work
        if self.m_step is not None:
            reader.anatomy.check_rows_are_all()
        key_start, key_memory, key = random.split(rng_key, 3)
        params = start_params(reader, rows, self.start, init_params, key_start, args, kwargs)
        memory = sets.start(reader.anatomy, key_memory) if sets.keep else None
        return EMState(params, jnp.zeros((), int), key, memory)

    def update(self, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Array]:
        # By default a GPU multiplies single precision with ten bits: runs that reach one
        # optimum would end nats apart.
        with jax.default_matmul_precision(self.digits):
            return self._update(state, args, kwargs)

    @property
    def digits(self) -> Precision:
        """Of the matrix products of a step."""
        return "highest"

    def _update(self, state: Any, args: tuple, kwargs: dict) -> tuple[Any, Array]:
        reader, rows = self.open(args, kwargs)
        sets, params = self.sets(reader, rows), state.params
        key, _ = state.keys()
        update = self.update_of(reader, rows, params)
        num_states = sets.num_states(reader.anatomy)
        num_runs = gradient_runs(reader, num_states) if update is None else 0
        size = chunk_rows(self.chunk_size, reader, num_states, rows, num_runs)

        step = Pass(reader, rows, sets, params, size, key, state.memory).searched()
        step = step._replace(least=self.least(state, step))
        if update is None:
            update = GradientUpdate(step, self.prior, self.gradient_steps)
        evidence, count, statistics = step.accumulate(update)
        new = update.maximise(params, statistics)

        if isinstance(update, SparseCodingUpdate) and update.max_active is not None:
            evidence = evidence - count * jnp.log(update.mass(params, reader.anatomy.num_bits))
        evidence = evidence + log_shared(reader.model, reader.anatomy, params, rows, self.prior)
        memory = step.memory if sets.keep else None
        return EMState(new, state.step + 1, state.rng_key, memory), -evidence

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        """Parameters of a start: by the form of the program, else a draw from its priors."""
        reader, rows = self.open(args, kwargs)
        params = moves.start(closed_form(reader, rows, self.m_step), rng_key, rows.whole())
        return super().propose(rng_key, *args, **kwargs) if params is None else params

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params:
        """The parameters with one unit planted anew, where the form of the program has a rule."""
        reader, rows = self.open(args, kwargs)
        update, sets = closed_form(reader, rows, self.m_step), self.sets(reader, rows)
        if not moves.varies(update) or sets.given(reader.anatomy) is not None:
            return self.propose(rng_key, *args, **kwargs)
        key, some, local = moves.some_rows(rng_key, reader, rows)
        keys = random.split(rng_key, local.anatomy.num_data)
        posterior = sets.expect(Chunk(local, params, some), None, keys)
        return moves.variant(update, key, params, posterior, some)
