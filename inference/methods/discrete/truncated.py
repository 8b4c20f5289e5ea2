"""Truncated EM: the posterior over a few states per datum (expectation truncation)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from ...certificates.certify import certify
from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.arguments import as_double
from ...reading.reader import Reader, open_program
from ...reading.states import AllStates
from ...rows.chunks import Numbers, Rows, compiled, map_over_chunks, sum_over_chunks
from ...types import Params
from ..shared import Chunk, Posterior, chunk_rows, row_keys
from .candidates import Candidates, Select
from .em import by_sums, tested
from .missed import missed_mass
from .persistent import Persistent
from .step import EMState, Pass, Precision, StatesEM
from .tables import Table
from .updates import ClosedForm, closed_form, truncation

ALL_BITS = 10
"""With so many bits or fewer a truncation saves little: by default all states are summed."""
SOME_BITS = 8, 4
"""H' and γ above: 163 states and the single bits."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TruncatedEM(StatesEM):
    """EM over a set of states per datum, in place of all 2^H (Henniges et al. 2010).

    :param model: any program with binary latents inside its data plate.
    :param max_active: γ, the most bits on at once; its correction of π (eq. 8) comes with it.
    :param num_candidates: H', the bits whose combinations are summed for a datum; every other
        bit is taken alone. By default both are all bits of a datum up to `ALL_BITS` of them,
        where nothing is missed, and `SOME_BITS` above; the paper has γ = 3 and H' = 5.
    :param select: ranks the candidates, ``select(params, *args, **kwargs) -> (num_data, bits)``; by
        default the log joint of each bit alone, which needs nothing but the program.
    :param keep: a datum keeps its candidates, 4 bytes each, unless the new ones explain it better,
        so that the loss never rises. False is the paper's rule; also by default for rows on disk,
        so that memory holds a chunk of them.
    :param persistent: remember whole states instead, one byte per bit: see `discrete.persistent`.
        By default those of rows on disk are grown anew in every step.
    :param cut: learn from the best explained data only, by the paper's schedule; rows on disk are
        then read twice more, to find the evidence from which on they count.
    :param precision: of the products on a GPU: "highest", the digits of float32, or
        "tensorfloat32", ten bits, faster; the log joints of states have all digits either way.
    :param parameter_noise: site -> standard deviation of noise added to it after each step.

    The others as for `EM`, `search` among them. The loss is the negative free energy, where the
    prior of the states is renormalised to those with at most `max_active` on, if the M-step
    corrects for it (eq. 8).

    >>> from latentbits.models import binary_sparse_coding
    >>> from latentbits.models.data import bars
    >>> em = TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=3)
    >>> data = bars(random.key(1), 50, size=3).data
    >>> result = em.run(random.key(0), 5, data, num_causes=6)
    >>> posterior = em.posterior(result.params, data, num_causes=6)
    >>> posterior.mean.shape, posterior.missed.shape
    ((50, 6), (50,))
    """

    by_row = ("memory",)
    pads = True

    max_active: int | None = None
    num_candidates: int | None = None
    select: Select | None = None
    keep: bool | None = None
    persistent: Persistent | None = None
    cut: Cut | None = None
    parameter_noise: dict[str, float] | None = None
    precision: Precision = "highest"

    @property
    def digits(self) -> Precision:
        return self.precision

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if not anatomy.latents:
            return "no latent in the data plate"
        other = [x.name for x in anatomy.latents if not x.binary]
        return f"{other[0]} is not binary" if other else None

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> EMState:
        named = [*(self.parameter_noise or {}), *([self.cut.sparsity] if self.cut else [])]
        parameters = inspect(self.model, args, kwargs, plate=self.plate).parameters if named else ()
        for name in named:
            if name not in parameters:
                raise ProgramError(f"no parameter {name!r} in the program: it has {[*parameters]}")
        state = super().init(rng_key, *args, init_params=init_params, **kwargs)
        if self.cut is not None and jnp.ndim(state.params[self.cut.sparsity]):
            raise ProgramError(
                f"cut= expects one prior that all causes share, and {self.cut.sparsity!r} has "
                f"shape {jnp.shape(state.params[self.cut.sparsity])}: leave cut= out"
            )
        return state

    def update(self, state: EMState, *args: Any, **kwargs: Any) -> tuple[EMState, Array]:
        new, loss = super().update(state, *args, **kwargs)
        params, (_, key) = dict(new.params), state.keys()
        for name, deviation in (self.parameter_noise or {}).items():
            key, key_site = random.split(key)
            params[name] += deviation * random.normal(key_site, params[name].shape)
        return new._replace(params=params), loss

    def least(self, state: EMState, step: Pass) -> Array | None:
        if self.cut is None:
            return None
        num_bits, rows = step.reader.anatomy.num_bits, step.rows
        mass = truncation(state.params[self.cut.sparsity], num_bits, self.sizes(num_bits)[1])[0]
        held = step.evidence
        if held is None and not rows.on_disk:
            held = map_over_chunks(step.evidence_of, rows, step.size, step.extra)
        if held is not None:
            known = rows.num_data, held, lambda _, held: held
            return self.cut.least(state.step, mass, rows, *known)
        return self.cut.least(state.step, mass, rows, step.size, step.extra, step.evidence_of)

    def posterior(
        self,
        params: Params,
        *args: Any,
        rng_key: Array | None = None,
        memory: Any = None,
        num_draws: int = 256,
        width: float | None = None,
        **kwargs: Any,
    ) -> Posterior:
        """The posterior of each row, and the share of its mass that the truncation misses at least.

        :param memory: the state sets of a run on the same rows (``state.memory``); persistent sets
            are otherwise grown anew.
        :param num_draws: draws of the importance sampler that looks outside the set.
        :param width: where given, `missed_between` has the least and the most of that share, proved
            by `certify`, with brackets of this width in nats; all is then computed in float64.
        """
        how: dict[str, Any] = {"rng_key": rng_key, "memory": memory, "num_draws": num_draws}
        if width is not None:
            proof: Any = {"plate": self.plate, "chunk_size": self.chunk_size, "width": width}
            proved = certify(self.model, params, *args, **proof, **kwargs)
            with jax.enable_x64(True):
                given = as_double((params, args, kwargs))
                found = self.posterior(given[0], *given[1], **how, **given[2])
            return found._replace(missed_between=proved.outside(found.evidence))
        wide = self.fill(args, kwargs)
        if wide is not None:
            how["memory"] = None if memory is None else wide.fill(memory)
            return wide.asked(self.posterior, params, **how)
        reader, rows = self.open(args, kwargs)
        key = random.key(0) if rng_key is None else rng_key
        sets, num_bits = self.sets(reader, rows), reader.anatomy.num_bits
        num_states = sets.num_states(reader.anatomy)
        size = chunk_rows(self.chunk_size, reader, num_states, rows, max(num_draws, num_bits))

        def whole(rows: Rows, params: Params, memory: Any, key: Array) -> Posterior:
            key_search, key_missed = random.split(key)

            def summarise(arguments: Any, memory: Any, numbers: Array) -> Posterior:
                here = Chunk(reader.at(size), params, arguments)
                if memory is None and not isinstance(sets, Table):
                    memory = sets.grow(here, row_keys(key_search, numbers))
                posterior = sets.expect(here, memory).anchored(here)
                missed = error = jnp.zeros_like(posterior.evidence)
                if not isinstance(sets, Table):  # which misses nothing
                    key = random.fold_in(key_missed, numbers[0])
                    contains = partial(sets.contains, here.reader, memory)
                    missed, error = missed_mass(here, contains, posterior, key, num_draws)
                return Posterior(
                    posterior.mean, evidence=posterior.evidence, best=posterior.best(),
                    missed=missed, missed_error=error,
                )  # fmt: skip

            return map_over_chunks(summarise, rows, size, memory, Numbers())

        return compiled(whole, rows)(rows.leaves, params, memory, key)

    def sets(self, reader: Reader, rows: Rows) -> Candidates | Persistent | Table:
        keep = not rows.on_disk if self.keep is None else self.keep
        if self.persistent is not None:
            return self.persistent._replace(keep=keep)
        num_bits = reader.anatomy.num_bits
        num_candidates, max_active = self.sizes(num_bits)
        if num_candidates == max_active == num_bits:
            return Table(AllStates())
        # Where every bit is a candidate there are no better ones, nor any to remember.
        keep = keep and num_candidates < num_bits
        return Candidates(num_candidates, max_active, self.select, keep)

    def sizes(self, num_bits: int) -> tuple[int, int]:
        """Candidates of a datum, and how many of them may be on, where they are not given."""
        count = self.num_candidates
        if count is None:
            count = num_bits if num_bits <= ALL_BITS else SOME_BITS[0]
        most = self.max_active
        if most is None:
            most = count if count == num_bits else min(SOME_BITS[1], count)
        return count, most

    def update_of(self, reader: Reader, rows: Rows, params: Params) -> ClosedForm | None:
        correct = None if self.persistent else self.sizes(reader.anatomy.num_bits)[1]
        update = closed_form(
            reader, rows, self.m_step, params=params, prior=self.prior, max_active=correct
        )
        sets = self.sets(reader, rows)
        if update is None and isinstance(sets, Table):
            return by_sums(self, sets.states, reader, rows, params)
        return update

    def open(self, args: tuple, kwargs: dict) -> tuple[Reader, Rows]:
        reader, rows = open_program(
            self.model, args, kwargs, structure=self.structure, plate=self.plate
        )
        if not reader.anatomy.binary:
            many = [x.name for x in reader.anatomy.latents if not x.binary]
            raise ProgramError(f"the latents {many} are not binary: use EM")
        sets = self.sets(reader, rows)
        if isinstance(sets, Table):
            return tested(self, reader, rows), rows
        sets.check(reader.anatomy.num_bits)
        return reader, rows


class Cut(NamedTuple):
    """Learn from the data that the truncation explains well (Henniges et al. 2010, §2).

    All data up to step `begin`, then linearly fewer, from step `end` on only the N·A(π) of highest
    evidence, as many as are expected to have at most `max_active` causes.

    >>> from latentbits import TruncatedEM
    >>> from latentbits.models import binary_sparse_coding
    >>> em = TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=3, cut=Cut(2, 4))
    >>> em.cut
    Cut(begin=2, end=4, sparsity='sparsity')
    """

    begin: int = 20
    end: int = 40
    sparsity: str = "sparsity"  # the site that holds π

    def num_kept(self, step: Array, num_data: int, mass: Array) -> Array:
        """How many of the data to learn from: the size of the set M, from all to N·A(π)."""
        progress = jnp.clip((step - self.begin) / max(1, self.end - self.begin), 0.0, 1.0)
        count = jnp.ceil(num_data * (1.0 - progress * (1.0 - mass))).astype(int)
        return jnp.clip(count, 1, num_data)

    def least(
        self,
        step: Array,
        mass: Array,
        rows: Rows,
        size: int,
        extra: Any,
        evidence: Callable[[Any, Any], Array],
    ) -> Array:
        """The log evidence from which on a row is learned from.

        :param evidence: that of the rows of a chunk, from their arguments and what goes with them.
        """

        def tally(count: Count) -> Array:
            each = lambda arguments, extra, fresh: count(evidence(arguments, extra), fresh)  # noqa: E731
            return sum_over_chunks(each, rows, size, extra)

        threshold = lax.cond(
            step > self.begin,
            lambda: kth_smallest(tally, rows.total - self.num_kept(step, rows.total, mass)),
            lambda: jnp.array(-jnp.inf, jnp.float32),
        )
        # Found anew, evidence may differ in its last digits: what is as good still counts.
        return threshold - 1e-6 * jnp.abs(threshold)


Count = Callable[[Array, Array], Array]

HALF = 1 << 16


def kth_smallest(tally: Callable[[Count], Array], rank: Array) -> Array:
    """The number with `rank` others before it in their order, exactly, in two passes over the rows.

    A float's bits are in the order of floats, but for the sign. The rows are counted by the upper
    half of these bits; then, of those that agree in it with the one that is looked for, by the
    lower. So memory is that of 65 536 counters, and devices have only those to add up.

    :param tally: ``tally(count)`` adds up ``count(values, fresh)`` over all rows, `fresh` being 1
        for rows to count and 0 for the others. Values are compared in float32.
    """

    def upper(values: Array, fresh: Array) -> Array:
        return _counters(_ordered(values) >> 16, fresh)

    high, before = _find(tally(upper), rank)

    def lower(values: Array, fresh: Array) -> Array:
        code = _ordered(values)
        return _counters(code & (HALF - 1), jnp.where(code >> 16 == high, fresh, 0.0))

    low, _ = _find(tally(lower), rank - before)
    return _float(high << 16 | low)


def _counters(place: Array, fresh: Array) -> Array:
    return jnp.zeros(HALF, jnp.int32).at[place].add(fresh.astype(jnp.int32))


def _find(counts: Array, rank: Array) -> tuple[Array, Array]:
    """Where the one of this rank was counted, and how many were counted before that place."""
    total = jnp.cumsum(counts)
    place = jnp.searchsorted(total, rank, side="right")
    before = jnp.where(place > 0, total[place - 1], 0)
    return place.astype(jnp.uint32), before


def _ordered(values: Array) -> Array:
    """Whole numbers in the order of the floats: negative ones have all their bits turned."""
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _float(code: Array) -> Array:
    bits = jnp.where(code >> 31 == 1, code ^ jnp.uint32(1 << 31), ~code)
    return lax.bitcast_convert_type(bits, jnp.float32)
