"""Truncated EM: the posterior over a few states per datum (expectation truncation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from ...reading.anatomy import Anatomy, ProgramError
from ...reading.local import Structure, log_prior
from ...reading.reader import Reader, open_program
from ...rows.chunks import Numbers, Rows, compiled, map_over_chunks, sum_over_chunks
from ...rows.draws import row_keys
from ...running.algorithm import Algorithm
from ...running.search import Search
from ...types import Params
from ..m_step import gradient_runs, gradient_step
from ..shared import Expectation, Posterior, chunk_rows, start_params
from . import moves
from .candidates import Candidates, Select
from .cut import Cut, _as_good
from .em import EMState
from .missed import missed_mass
from .persistent import Persistent
from .ranks import Count, kth_smallest
from .updates import ClosedForm, SparseCodingUpdate, closed_form, truncation

ALL_BITS = 10
"""With so many bits or fewer a truncation saves little: by default all states are looked at."""
SOME_BITS = 8, 4
"""H' and γ above: 163 states and the single bits."""


class TruncatedEM(Algorithm):
    """EM over a set of states per datum, in place of all 2^H (Henniges et al. 2010).

    :param model: any program with binary latents inside its data plate.
    :param max_active: γ, the most bits on at once; its correction of π (eq. 8) comes with it.
    :param num_candidates: H', the bits whose combinations are looked at for a datum; every other
        bit is looked at alone. By default both are all bits of a datum up to `ALL_BITS` of them,
        where nothing is missed, and `SOME_BITS` above; the paper has γ = 3 and H' = 5.
    :param select: ranks the candidates, ``select(params, *args, **kwargs) -> (num_data, bits)``; by
        default the log joint of each bit alone, which needs nothing but the program.
    :param keep: a datum keeps its candidates, 4 bytes each, unless the new ones explain it better,
        so that the loss never rises. False is the paper's rule; also by default for rows on disk,
        so that memory holds a chunk of them.
    :param persistent: remember whole states instead, a byte a bit: see `discrete.persistent`. By
        default those of rows on disk are grown anew in every step.
    :param cut: learn from the best explained data only, by the paper's schedule; rows on disk are
        then read twice more, to find the evidence from which on they count.
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

    by_row: tuple[str, ...] | None = ("memory",)

    def __init__(
        self,
        model: Callable,
        *,
        max_active: int | None = None,
        num_candidates: int | None = None,
        select: Select | None = None,
        keep: bool | None = None,
        persistent: Persistent | None = None,
        m_step: ClosedForm | None = None,
        prior: bool = False,
        start: Callable[..., Params] | None = None,
        search: Search | None = Search(),
        cut: Cut | None = None,
        parameter_noise: dict[str, float] | None = None,
        gradient_steps: int = 5,
        chunk_size: int | None = None,
        structure: Structure | None = None,
        plate: str | None = None,
    ):
        self.model, self.max_active, self.num_candidates = model, max_active, num_candidates
        self.select, self.keep, self.persistent = select, keep, persistent
        self.search = search if start is None else None
        self.m_step, self.prior, self.start, self.cut = m_step, prior, start, cut
        self.parameter_noise = parameter_noise or {}
        self.gradient_steps, self.chunk_size = gradient_steps, chunk_size
        self.structure, self.plate = structure, plate

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if not anatomy.latents:
            return "no latent in the data plate"
        other = [x.name for x in anatomy.latents if x.num_values != 2]
        return f"{other[0]} is not binary" if other else None

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> EMState:
        reader, rows = self._open(args, kwargs)
        for name in [*self.parameter_noise, *([self.cut.sparsity] if self.cut else [])]:
            if name not in reader.anatomy.parameters:
                raise ProgramError(
                    f"no parameter {name!r} in the program: "
                    f"it has {list(reader.anatomy.parameters)}"
                )
        key_start, key_memory, key = random.split(rng_key, 3)
        params = start_params(reader, rows, self.start, init_params, key_start, args, kwargs)
        memory = None
        sets = self._sets(reader, rows)
        if sets.keep:
            memory = sets.start(rows.num_data, reader.anatomy.num_bits, key_memory)
        return EMState(params, jnp.zeros((), int), key, memory)

    def update(self, state: EMState, *args: Any, **kwargs: Any) -> tuple[EMState, Array]:
        reader, rows = self._open(args, kwargs)
        params, num_bits = state.params, reader.anatomy.num_bits
        m_step, sets = self._m_step(reader, rows, params), self._sets(reader, rows)
        num_states = sets.num_states(num_bits)
        num_runs = gradient_runs(reader, num_states) if m_step is None else 0
        size = chunk_rows(self.chunk_size, reader, num_states, rows, num_runs)
        key, key_search, key_noise = random.split(state.rng_key, 3)
        chunk_reader, memory, least = reader.at(size), state.memory, None
        if sets.keep:
            found, memory = self._search(sets, reader, params, rows, size, memory, key_search)

        def look(local: Reader, params: Params, arguments: Any, extra: Any) -> Expectation:
            weights, memory, numbers = extra
            if isinstance(sets, Persistent) and not sets.keep:
                start = sets.start(size, num_bits, key_search)
                keys = row_keys(key_search, numbers)
                memory = sets.grow(local, params, arguments, start, keys)
            posterior = sets.expect(local, params, arguments, memory)
            if least is not None:
                weights = _as_good(posterior.evidence, least)
            return posterior._replace(weight=weights)

        def evidence_of(arguments: Any, extra: Any, start: Any = None) -> Array:
            del start
            return look(chunk_reader, params, arguments, extra).evidence

        def least_of(found: Array) -> Array:
            held = lambda _, found: found  # noqa: E731
            return self._least(params, state.step, rows, rows.num_data, found, held, num_bits)

        # One pass, unless the data to learn from must be chosen first.
        in_one = not sets.keep and size == rows.num_data and m_step is not None

        def summarise(arguments: Any, extra: Any, fresh: Array) -> Any:
            posterior = look(chunk_reader, params, arguments, extra)
            heavy = posterior.heavy(fresh)
            if self.cut is not None and in_one:
                heavy = fresh * _as_good(posterior.evidence, least_of(posterior.evidence))
            sums = m_step.statistics(posterior, heavy, arguments) if m_step is not None else ()
            return jnp.sum(fresh * posterior.evidence), sums

        extra: tuple = (None, memory, Numbers())
        if self.cut is not None and not in_one:
            if sets.keep or not rows.on_disk:
                if not sets.keep:
                    found = map_over_chunks(evidence_of, rows, size, extra)
                extra = (_as_good(found, least_of(found)), memory, Numbers())
            else:
                worst = self._least(params, state.step, rows, size, extra, evidence_of, num_bits)
                # Found anew, evidence may differ in its last digits: what is as good still counts.
                least = worst - 1e-6 * jnp.abs(worst)
        evidence, statistics = sum_over_chunks(summarise, rows, size, extra)
        if m_step is not None:
            new = m_step.maximise(params, statistics)
        else:
            new = gradient_step(
                reader, params, rows, size, extra, look,
                prior=self.prior, num_steps=self.gradient_steps,
            )  # fmt: skip
        if isinstance(m_step, SparseCodingUpdate) and m_step.max_active is not None:
            evidence = evidence - rows.total * jnp.log(m_step.mass(params, num_bits))
        if self.prior:
            one = reader.anatomy.with_rows(1)
            evidence = evidence + log_prior(self.model, one, params, rows.slice(0, 1))
        for name, deviation in self.parameter_noise.items():
            key_noise, key_site = random.split(key_noise)
            new[name] = new[name] + deviation * random.normal(key_site, new[name].shape)
        kept = memory if sets.keep else None
        return EMState(new, state.step + 1, key, kept), -evidence

    def get_params(self, state: EMState) -> Params:
        return state.params

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        """Parameters of a start: by the form of the program, else a draw from its priors."""
        reader, rows = self._open(args, kwargs)
        found = moves.start(closed_form(reader, rows, self.m_step), rng_key, rows.whole())
        return super().propose(rng_key, *args, **kwargs) if found is None else found

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params:
        """The parameters with one unit planted anew, where the form of the program has a rule."""
        reader, rows = self._open(args, kwargs)
        update, sets = closed_form(reader, rows, self.m_step), self._sets(reader, rows)
        if not moves.varies(update) or isinstance(sets, Persistent):
            return self.propose(rng_key, *args, **kwargs)
        key, some, local = moves.some_rows(rng_key, reader, rows)
        return moves.variant(update, key, params, sets.expect(local, params, some, None), some)

    def posterior(
        self,
        params: Params,
        *args: Any,
        rng_key: Array | None = None,
        memory: Any = None,
        num_draws: int = 256,
        **kwargs: Any,
    ) -> Posterior:
        """The posterior of each row, and the share of its mass that the truncation misses.

        :param memory: the state sets of a run on the same rows (``state.memory``); persistent sets
            are otherwise grown anew.
        :param num_draws: draws of the importance sampler that looks outside the set.
        """
        reader, rows = self._open(args, kwargs)
        num_bits = reader.anatomy.num_bits
        key = random.key(0) if rng_key is None else rng_key
        sets = self._sets(reader, rows)
        num_states = sets.num_states(num_bits)
        size = chunk_rows(self.chunk_size, reader, num_states, rows, num_runs=num_draws)

        def whole(rows: Rows, params: Params, memory: Any, key: Array) -> Posterior:
            key_start, key_search, key_missed = random.split(key, 3)

            def summarise(arguments: Any, extra: Any, start: Array) -> Posterior:
                local, (memory, numbers) = reader.at(size), extra
                if memory is None:
                    first = sets.start(size, num_bits, key_start)
                    keys = row_keys(key_search, numbers)
                    memory = sets.grow(local, params, arguments, first, keys)
                found = sets.expect(local, params, arguments, memory)
                key = random.fold_in(key_missed, start)
                missed, error = missed_mass(
                    local, sets.contains, params, arguments, memory, found, key, num_draws
                )
                return Posterior(found.mean, found.best(), found.evidence, missed, error)

            return map_over_chunks(summarise, rows, size, (memory, Numbers()))

        return compiled(whole, rows)(rows.leaves, params, memory, key)

    def _search(
        self,
        sets: Candidates | Persistent,
        reader: Reader,
        params: Params,
        rows: Rows,
        size: int,
        memory: Any,
        key: Array,
    ) -> tuple[Array, Any]:
        """The evidence of every row, and what to remember of it, if anything."""

        def search(arguments: Any, extra: Any, start: Array) -> tuple[Array, Any]:
            del start
            memory, numbers = extra
            keys = row_keys(key, numbers)
            found, memory = sets.search(reader.at(size), params, arguments, memory, keys)
            return found, memory if sets.keep else None

        return map_over_chunks(search, rows, size, (memory, Numbers()))

    def _sets(self, reader: Reader, rows: Rows) -> Candidates | Persistent:
        """How the states of these rows are looked at."""
        keep = not rows.on_disk if self.keep is None else self.keep
        if self.persistent is not None:
            return self.persistent._replace(keep=keep)
        num_candidates, max_active = self.sizes(reader.anatomy.num_bits)
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

    def _least(
        self,
        params: Params,
        step: Array,
        rows: Rows,
        size: int,
        extra: Any,
        evidence: Callable[[Any, Any], Array],
        num_bits: int,
    ) -> Array:
        """The evidence from which on a datum is learned from."""
        assert self.cut is not None
        cut = self.cut
        mass = truncation(params[cut.sparsity], num_bits, self.sizes(num_bits)[1])[0]

        def tally(count: Count) -> Array:
            each = lambda arguments, extra, fresh: count(evidence(arguments, extra), fresh)  # noqa: E731
            return sum_over_chunks(each, rows, size, extra)

        return jax.lax.cond(
            step > cut.begin,
            lambda: kth_smallest(tally, rows.total - cut.num_kept(step, rows.total, mass)),
            lambda: jnp.array(-jnp.inf, jnp.float32),
        )

    def _m_step(self, reader: Reader, rows: Rows, params: Params) -> ClosedForm | None:
        correct = None if self.persistent else self.sizes(reader.anatomy.num_bits)[1]
        return closed_form(
            reader, rows, self.m_step, params=params, prior=self.prior, max_active=correct
        )

    def _open(self, args: tuple, kwargs: dict) -> tuple[Reader, Rows]:
        reader, rows = open_program(
            self.model, args, kwargs, structure=self.structure, plate=self.plate
        )
        if not reader.anatomy.binary:
            many = [x.name for x in reader.anatomy.latents if x.num_values != 2]
            raise ProgramError(f"the latents {many} are not binary: use EM")
        self._sets(reader, rows).check(reader.anatomy.num_bits)
        return reader, rows
