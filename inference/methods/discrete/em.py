"""Exact EM over all states of a program's discrete latents."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ...reading.anatomy import Anatomy, ChainError, ProgramError
from ...reading.handlers import table_of
from ...reading.latent_counts import at_end, up_to, warn_of_end
from ...reading.log_joint import log_shared
from ...reading.reader import Reader, affine_too, open_program
from ...reading.states import AllStates, Given, StateSet
from ...rows.chunks import Rows, chunk_floats, compiled, map_over_chunks
from ...rows.padding import Padded
from ...running.contract import RunResult
from ...types import Params
from ..m_step import AffineUpdate
from ..shared import Chunk, Posterior, chunk_rows
from .chain_em import Paths
from .step import StatesEM
from .tables import Table, check_room
from .updates import ClosedForm, closed_form


def or_paths(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same of a chain or a graph, where rows turn out not to stand for themselves."""

    @functools.wraps(method)
    def either(self: EM, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ChainError:
            return getattr(self.paths(), method.__name__)(*args, **kwargs)

    return either


@dataclasses.dataclass(frozen=True, eq=False)
class EM(StatesEM):
    """Expectation–maximisation over a table of states, all of them by default.

    Where the latents are those of a `numpyro.contrib.control_flow.scan` this is Baum and Welch's
    algorithm: see `inference.methods.discrete.chain_em`.

    :param model: any program with discrete latents inside its data plate, or with one scan over
        discrete latents.
    :param states: the states to sum over; a truncated set gives a lower bound.
    :param m_step: a `ClosedForm`; by default the paper's for its program, else gradient steps.
    :param prior: maximise the posterior of the parameters instead of the likelihood. What is
        observed outside the plate, and a `numpyro.factor` there, counts in both.
    :param start: ``start(key, *args, **kwargs) -> params``; by default a draw from the priors.
    :param search: how the best of several starts is looked for; None: one start. With `start` given
        there is one.
    :param gradient_steps: L-BFGS steps of an M-step that has no closed form.
    :param chunk_size: rows read at a time; by default as many as fit into a cache, or into 128 MiB
        of a GPU.
    :param structure: the form of the log joint, if it is not to be found by itself.

    >>> from jax import random
    >>> from latentbits.models import binary_sparse_coding
    >>> from latentbits.models.data import bars
    >>> em = EM(binary_sparse_coding)
    >>> result = em.run(random.key(0), 5, bars(random.key(1), 50, size=2).data, num_causes=4)
    >>> result.params["weights"].shape, bool((jnp.diff(result.losses) <= 1e-2).all())
    ((4, 4), True)

    Of a chain, `posterior` gives the probabilities of each step and the most probable path:

    >>> import numpyro, numpyro.distributions as dist
    >>> from numpyro.contrib.control_flow import scan
    >>> def weather(seen):
    ...     stay = numpyro.sample("stay", dist.Beta(2, 2).expand([2]).to_event(1))
    ...     right = numpyro.sample("right", dist.Beta(4, 2))
    ...     def step(rainy, umbrella):
    ...         wet = jnp.where(rainy == 1, stay[1], 1 - stay[0])
    ...         rainy = numpyro.sample("rainy", dist.Bernoulli(wet))
    ...         carried = jnp.where(rainy == 1, right, 1 - right)
    ...         numpyro.sample("umbrella", dist.Bernoulli(carried), obs=umbrella)
    ...         return rainy, None
    ...     scan(step, jnp.array(0), seen)
    >>> em = EM(weather, prior=True)  # em.run(random.key(0), 100, seen) learns stay and right
    >>> params = {"stay": jnp.array([0.9, 0.8]), "right": jnp.array(0.9)}
    >>> em.posterior(params, jnp.array([0, 0, 1, 1, 0, 1, 1])).best["rainy"].tolist()
    [0, 0, 1, 1, 1, 1, 1]
    """

    by_row: ClassVar[tuple[str, ...] | None] = ()
    monotone = True
    pads = True

    states: StateSet = AllStates()

    def fill(self, args: tuple, kwargs: dict[str, Any]) -> Padded | None:
        return None if self._by_row() else super().fill(args, kwargs)

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if not anatomy.latents:
            return "no latent in the data plate"
        other = [x for x in anatomy.latents if x.num_values is None]
        why = other[0].odd or "continuous, it has no table of states" if other else None
        return f"{other[0].name}: {why}" if other else None

    init = or_paths(StatesEM.init)
    update = or_paths(StatesEM.update)
    propose = or_paths(StatesEM.propose)
    vary = or_paths(StatesEM.vary)

    def paths(self) -> Paths:
        """The steps for a chain, with the settings of this method."""
        if type(self) is not EM or not isinstance(self.states, AllStates) or self.m_step:
            raise ProgramError(
                "the latents are those of a scan, or meet beyond their rows: EM(model) sums over "
                "all their states, and takes neither a table of states nor an M-step; no other "
                "method here learns from them"
            )
        return Paths(self.model, self.prior, self.start, self.gradient_steps)

    @or_paths
    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row given parameters. Over all states it misses nothing."""
        wide = self.fill(args, kwargs)
        if wide is not None:
            return wide.asked(self.posterior, params)
        reader, rows = self.open(args, kwargs)
        sets = self.sets(reader, rows)
        size = chunk_rows(self.chunk_size, reader, sets.num_states(reader.anatomy), rows)
        memory = sets.given(reader.anatomy)

        def whole(rows: Rows, params: Params, memory: Any) -> Posterior:
            def summarise(arguments: Any, memory: Any) -> Posterior:
                here = Chunk(reader.at(size), params, arguments)
                posterior = sets.expect(here, memory).anchored(here)
                nothing = jnp.zeros_like(posterior.evidence)
                if not isinstance(self.states, AllStates):
                    nothing = nothing + jnp.nan  # a table of one's own: what it misses is not known
                each = reader.anatomy.value_probabilities(*posterior.weighted())
                return Posterior(
                    posterior.mean, evidence=posterior.evidence, probabilities=each,
                    best=posterior.best(), missed=nothing, missed_error=nothing,
                )  # fmt: skip

            return map_over_chunks(summarise, rows, size, memory)

        posterior = compiled(whole, rows)(rows.leaves, params, memory)
        if isinstance(self.model, up_to) and not isinstance(posterior.mean, jax.core.Tracer):
            reached = at_end(self.model, posterior.probabilities, args, kwargs)
            if reached:
                warn_of_end(self.model, reached)
        return posterior

    def finish(
        self, result: RunResult, rng_key: Array, budget: float | None, args: tuple, kwargs: dict
    ) -> RunResult:
        if isinstance(self.model, up_to):
            self.posterior(result.params, *args, **kwargs)  # it warns of lists that are too short
        return super().finish(result, rng_key, budget, args, kwargs)

    def update_of(self, reader: Reader, rows: Rows, params: Params) -> ClosedForm | None:
        update = super().update_of(reader, rows, params)
        return by_sums(self, self.states, reader, rows, params) if update is None else update

    def open(self, args: tuple, kwargs: dict) -> tuple[Reader, Rows]:
        reader, rows = open_program(
            self.model, args, kwargs, structure=self.structure, plate=self.plate
        )
        return (reader if self._by_row() else tested(self, reader, rows)), rows

    def _by_row(self) -> bool:
        """Whether states of each row were given."""
        return isinstance(self.states, Given) and self.states.states.ndim == 3

    def sets(self, reader: Reader, rows: Rows) -> Table:
        check_room(reader, rows, self.states, self.chunk_size)
        return Table(self.states)


def tested(method: StatesEM, reader: Reader, rows: Rows) -> Reader:
    """The reader, its program tested for the form in the datum where an M-step may need it."""
    in_bits = reader.structure.shared
    if in_bits and closed_form(reader, rows, method.m_step, prior=method.prior):
        return reader
    return affine_too(reader, rows)


def by_sums(
    method: StatesEM, states: StateSet, reader: Reader, rows: Rows, params: Params
) -> AffineUpdate | None:
    """A gradient M-step from sums over the rows, for states that all of them share."""
    if not reader.affine:
        return None
    table = table_of(reader.anatomy, states)[:, 0]
    cells = rows.width
    if reader.structure.shared and len(table) * cells > chunk_floats():
        return None  # the moments of the bits take less
    shared = lambda new: log_shared(reader.model, reader.anatomy, new, rows, method.prior)  # noqa: E731
    return AffineUpdate(reader, table, rows.slice(0, 1), params, shared, method.gradient_steps)
