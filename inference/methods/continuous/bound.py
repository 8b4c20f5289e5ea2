"""EM on a quadratic lower bound of the likelihood: Gaussian posteriors, no sampling, no grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...numerics.acceleration import Visit
from ...reading.anatomy import Anatomy
from ...rows.chunks import Rows, compiled, map_over_chunks, sum_over_chunks
from ...running.algorithm import Algorithm
from ...running.contract import Starts
from ...types import Arguments, Params
from .bounded import Bounded, bounded_program
from .bounded_regressions import bound_posterior, gaussian_sums
from .factor_em import (
    FactorState,
    canonical,
    check_columns,
    first_state,
    next_state,
    prior_of,
    rotates,
    start_params,
)
from .factors import (
    FactorPosterior,
    FactorReader,
    chunk_of,
    not_continuous,
    open_factors,
    width,
)
from .regressions import Regressions, regressions_of
from .rules import by_quadrature, default_nodes

MOST_REMEMBERED = 1 << 16
"""Rows whose posteriors are kept between steps by default."""


class BoundEM(Algorithm):
    """EM on a lower bound that is quadratic in the factors (Tipping 1998, section 4).

    Observed bits and categories are replaced by their quadratic bounds (`quadratic_bound`). The log
    joint of a datum is then quadratic in its factors, so its posterior is Gaussian: (6) and (7).
    (8) tightens the bound there, (11) raises it in the parameters; it rises at every step.

    For `latent_trait` and `mixed_trait` the form is written out in `continuous.regressions`. Any
    other program with Gaussian latents is read: value, slope and curvature of the bounded program
    by autodiff, and L-BFGS in place of (11); see `continuous.bounded`.

    :param model: a program with Gaussian latents in its data plate, of any number, whose observed
        sites are Bernoulli, categorical, or Gaussian with a linear mean.
    :param tighten: rounds of (6) to (8) in a step; the paper finds two to be enough.
    :param accelerate: Anderson steps with a safeguard: see `inference.numerics.acceleration`.
    :param prior: maximise the posterior of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``; by default principal components.
    :param remember: keep each row's posterior for the next step to start from. Without, memory does
        not grow with the rows, and each step takes four more rounds, from the prior; so by default
        for rows on disk and for more than 65 536 of them.
    :param chunk_size: rows read at a time; by default as many as fit into a cache.

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> data = prototypes(jax.random.key(0), copies=20, num_features=6, flip=0.2).data
    >>> em = BoundEM(latent_trait)
    >>> result = em.run(jax.random.key(1), 10, data)
    >>> bool(jnp.diff(result.losses).max() < 1e-3), em.posterior(result.params, data).mean.shape
    (True, (60, 2))
    """

    by_row: tuple[str, ...] | None = ("memory",)
    starts = Starts.DATA

    def __init__(
        self,
        model: Callable,
        *,
        tighten: int = 2,
        accelerate: bool = True,
        prior: bool = False,
        start: Callable[..., Params] | None = None,
        gradient_steps: int = 5,
        remember: bool | None = None,
        chunk_size: int | None = None,
        plate: str | None = None,
    ):
        if tighten < 1:
            raise ValueError(f"tighten must be at least 1, found {tighten}")
        self.model, self.tighten, self.accelerate, self.prior = model, tighten, accelerate, prior
        self.start, self.gradient_steps, self.remember = start, gradient_steps, remember
        self.chunk_size, self.plate = chunk_size, plate

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        return not_continuous(anatomy)

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> FactorState:
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        columns = regressions_of(self.model, args, kwargs)
        check_columns(columns, args, kwargs, self.prior)
        if columns is None:
            bounded_program(reader, rows, check=True)
        key_start, key = jax.random.split(rng_key)
        params = start_params(
            reader, rows, columns, self.start, init_params, key_start, args, kwargs
        )
        memory: Any = ()
        if self._remembers(rows):
            memory = _prior_moments(rows.num_data, reader.num_factors)
        return first_state(reader, rows, params, key, memory, self.accelerate)

    def update(self, state: FactorState, *args: Any, **kwargs: Any) -> tuple[FactorState, Array]:
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        columns = regressions_of(self.model, args, kwargs)
        prior = prior_of(reader, rows, self.prior)
        size = chunk_of(self.chunk_size, width(rows), rows)
        program = bounded_program(reader, rows) if columns is None else None

        remembers = self._remembers(rows)

        def look(arguments: Arguments, params: Params, found: Any) -> tuple[Array, Array, Array]:
            """Posteriors of a chunk, and its bound: those `found` already, or from the prior."""
            if remembers:
                return found
            memory, rounds = _prior_moments(size, reader.num_factors), self.tighten + 4
            return _rounds(reader.at(size), columns, program, params, arguments, memory, rounds)

        def visit(params: Params, memory: Any) -> Visit:
            found = None
            if remembers:
                found = self._tighten(reader, columns, program, rows, params, memory, self.tighten)
                memory = found[:2]

            def summarise(arguments: Arguments, found: Any, fresh: Array) -> Any:
                mean, covariance, evidence = look(arguments, params, found)
                if columns is None:
                    return jnp.sum(fresh * evidence), ()
                responses = columns.responses(arguments)
                sums = gaussian_sums(columns, params, responses, mean, covariance, fresh)
                return jnp.sum(fresh * evidence), sums

            total, sums = sum_over_chunks(summarise, rows, size, found)
            loss = -total if prior is None else -total - prior(params)
            if columns is not None:
                new = columns.advance(params, sums, prior)
            else:
                assert program is not None
                new = program.climb(params, look, found, size, self.prior, self.gradient_steps)
            return Visit(loss, new, new, memory)

        return next_state(visit, reader, rows, state)

    def get_params(self, state: FactorState) -> Params:
        return canonical(state.params) if rotates(self.model) else state.params

    def posterior(
        self, params: Params, *args: Any, tighten: int = 30, gap: bool = True, **kwargs: Any
    ) -> FactorPosterior:
        """The Gaussian posterior of each row; new rows as well as old ones.

        :param tighten: rounds of (6) to (8), from the prior.
        :param gap: also find how far the bound is from the evidence by quadrature, which costs far
            more than the bound itself; NaN without it and beyond 3 factors.
        """
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        columns = regressions_of(self.model, args, kwargs)

        def compute(rows: Rows, params: Params) -> FactorPosterior:
            program = bounded_program(reader, rows) if columns is None else None
            memory = _prior_moments(rows.num_data, reader.num_factors)
            mean, covariance, evidence = self._tighten(
                reader, columns, program, rows, params, memory, tighten
            )
            nothing = jnp.full_like(evidence, jnp.nan)
            found = FactorPosterior(mean, covariance, evidence, nothing, nothing)
            if not gap or reader.num_factors > 3:
                return found
            nodes = default_nodes(reader.num_factors)
            exact = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            return found._replace(gap=exact.evidence - evidence)

        return compiled(compute, rows)(rows.leaves, params)

    def _tighten(
        self,
        reader: FactorReader,
        columns: Regressions | None,
        program: Bounded | None,
        rows: Rows,
        params: Params,
        memory: tuple[Array, Array],
        rounds: int,
    ) -> tuple[Array, Array, Array]:
        """Rounds of (8), (6), (7) for all rows: mean, covariance, log of the bound."""
        size = chunk_of(self.chunk_size, width(rows), rows)

        def summarise(arguments: Arguments, memory: Any, start: Array) -> Any:
            del start
            return _rounds(reader.at(size), columns, program, params, arguments, memory, rounds)

        return map_over_chunks(summarise, rows, size, memory)

    def _remembers(self, rows: Rows) -> bool:
        if self.remember is not None:
            return self.remember
        return rows.total <= MOST_REMEMBERED and not rows.on_disk


def _rounds(
    reader: FactorReader,
    columns: Regressions | None,
    program: Bounded | None,
    params: Params,
    arguments: Arguments,
    memory: Any,
    rounds: int,
) -> tuple[Array, Array, Array]:
    """Rounds of (8), (6), (7) for the rows of one chunk."""
    if columns is not None:
        responses = columns.responses(arguments)
        better = lambda m, c: bound_posterior(columns, params, responses, m, c)  # noqa: E731
    else:
        assert program is not None
        better = lambda m, c: program.posterior(reader, params, arguments, m, c)  # noqa: E731

    def once(_: Array, found: Any) -> Any:
        return better(*found[:2])

    return jax.lax.fori_loop(1, rounds, once, better(*memory))


def _prior_moments(num_data: int, num_factors: int) -> tuple[Array, Array]:
    eye = jnp.eye(num_factors)
    return jnp.zeros((num_data, num_factors)), jnp.broadcast_to(
        eye, (num_data, num_factors, num_factors)
    )
