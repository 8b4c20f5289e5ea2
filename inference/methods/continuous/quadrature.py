"""EM by Gauss–Hermite quadrature about each datum's mode: maximum likelihood, the yardstick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from ...numerics.acceleration import Visit
from ...numerics.gaussian import log_normal
from ...reading.anatomy import Anatomy
from ...rows.chunks import Rows, compiled, map_over_chunks, sum_over_chunks
from ...running.algorithm import Algorithm
from ...running.contract import Starts
from ...types import Arguments, Params
from ..m_step import gradient_step
from ..shared import Expectation
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
from .point_regressions import point_log_likelihood, point_sums
from .regressions import regressions_of
from .rules import (
    about_modes,
    by_quadrature,
    climb,
    default_nodes,
    gauss_hermite,
    weigh,
)

STEPS_FROM_NOUGHT = 15
"""Newton steps to a mode that nothing is known of."""


class QuadratureEM(Algorithm):
    """EM whose integrals are sums over a grid about each datum's mode, exact in up to 3 dimensions.

    The grid is Gauss and Hermite's, moved to the mode of a datum's posterior and scaled by the
    curvature there (Liu & Pierce 1994), so that a few nodes serve however sharp the posterior is.
    The E-step runs the program on the nodes (for `latent_trait` and `mixed_trait` its closed form
    in `continuous.regressions`). The M-step is a weighted regression for `latent_trait`
    and `mixed_trait` (the bound's curvature keeps it safe, the true one makes it fast), L-BFGS on
    the expected log joint for any other program.

    :param model: any program with continuous latents inside its data plate, at most 3 a datum.
    :param num_nodes: nodes a dimension; by default 41, 21, 11 in 1, 2, 3 dimensions.
    :param accelerate: Anderson steps with a safeguard: see `inference.numerics.acceleration`.
    :param prior: maximise the posterior of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``; by default principal components.
    :param mode_steps: Newton steps towards the modes in each update; they are kept between updates.
    :param remember: keep the modes between updates; by default unless the rows are on disk.
        Without, memory does not grow with the rows, and each update climbs there from nought.
    :param chunk_size: rows read at a time; by default as many as fit into a cache.

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> data = prototypes(jax.random.key(0), copies=20, num_features=6, flip=0.2).data
    >>> em = QuadratureEM(latent_trait, num_nodes=7)
    >>> result = em.run(jax.random.key(1), 10, data, num_factors=1)
    >>> result.params["weights"].shape, bool(jnp.diff(result.losses).max() < 1e-2)
    ((1, 6), True)
    """

    by_row: tuple[str, ...] | None = ("memory",)
    starts = Starts.DATA

    def __init__(
        self,
        model: Callable,
        *,
        num_nodes: int | None = None,
        accelerate: bool = True,
        prior: bool = False,
        start: Callable[..., Params] | None = None,
        mode_steps: int = 2,
        gradient_steps: int = 5,
        remember: bool | None = None,
        chunk_size: int | None = None,
        plate: str | None = None,
    ):
        self.model, self.num_nodes, self.accelerate, self.prior = (
            model,
            num_nodes,
            accelerate,
            prior,
        )
        self.start, self.mode_steps, self.gradient_steps = start, mode_steps, gradient_steps
        self.remember = remember
        self.chunk_size, self.plate = chunk_size, plate

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        problem = not_continuous(anatomy)
        if problem is None and anatomy.num_bits > 3:
            problem = f"{anatomy.num_bits} dimensions: quadrature is for up to 3"
        return problem

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> FactorState:
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        gauss_hermite(reader.num_factors, self._nodes(reader))  # refuses more than memory holds
        columns = regressions_of(self.model, args, kwargs)
        check_columns(columns, args, kwargs, self.prior)
        key_start, key = jax.random.split(rng_key)
        params = start_params(
            reader, rows, columns, self.start, init_params, key_start, args, kwargs
        )
        modes: Any = ()
        if self._remembers(rows):
            modes = jnp.zeros((rows.num_data, reader.num_factors))
        return first_state(reader, rows, params, key, modes, self.accelerate)

    def update(self, state: FactorState, *args: Any, **kwargs: Any) -> tuple[FactorState, Array]:
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        rule = gauss_hermite(reader.num_factors, self._nodes(reader))
        columns = regressions_of(self.model, args, kwargs)
        prior = prior_of(reader, rows, self.prior)
        size = chunk_of(self.chunk_size, len(rule.points) * width(rows), rows)
        mode_size = chunk_of(self.chunk_size, width(rows), rows)

        def expect(local: FactorReader, params: Params, arguments: Arguments, modes: Any) -> Any:
            if not self._remembers(rows):
                nought = jnp.zeros((local.anatomy.num_data, reader.num_factors))
                modes = climb(local, params, arguments, nought, STEPS_FROM_NOUGHT)
            moved = about_modes(local, params, arguments, modes, rule)
            if columns is None:
                evidence, probability = weigh(local, params, arguments, moved)
                return evidence, moved.points, probability
            responses = columns.responses(arguments)
            table = point_log_likelihood(columns, params, responses, moved.points)
            table = table + log_normal(moved.points) + moved.log_weights
            evidence = logsumexp(table, axis=0)
            return evidence, moved.points, jnp.exp(table - evidence)

        remembers = self._remembers(rows)

        def visit(params: Params, modes: Any) -> Visit:
            def up(arguments: Arguments, modes: Array, start: Array) -> Array:
                del start
                return climb(reader.at(mode_size), params, arguments, modes, self.mode_steps)

            if remembers:
                modes = map_over_chunks(up, rows, mode_size, modes)

            def summarise(arguments: Arguments, modes: Any, fresh: Array) -> Any:
                evidence, points, probability = expect(reader.at(size), params, arguments, modes)
                if columns is None:
                    return jnp.sum(fresh * evidence), ()
                responses = columns.responses(arguments)
                sums = point_sums(columns, params, responses, points, probability * fresh)
                return jnp.sum(fresh * evidence), sums

            evidence, sums = sum_over_chunks(summarise, rows, size, modes)
            loss = -evidence if prior is None else -evidence - prior(params)
            if columns is None:
                new = self._climb_expectation(reader, rows, params, modes, size, expect)
                return Visit(loss, new, new, modes)
            safe, fast = (columns.advance(params, one, prior) for one in sums)
            return Visit(loss, safe, fast, modes)

        return next_state(visit, reader, rows, state)

    def get_params(self, state: FactorState) -> Params:
        return canonical(state.params) if rotates(self.model) else state.params

    def posterior(
        self, params: Params, *args: Any, num_nodes: int | None = None, **kwargs: Any
    ) -> FactorPosterior:
        """Mean, covariance and evidence of each row; the gap is that to twice as many nodes."""
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        nodes = num_nodes or self._nodes(reader)

        def compute(rows: Rows, params: Params) -> FactorPosterior:
            found = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            finer = by_quadrature(reader, rows, params, 2 * nodes, self.chunk_size)
            return found._replace(gap=finer.evidence - found.evidence)

        return compiled(compute, rows)(rows.leaves, params)

    def evidence(self, params: Params, *args: Any, **kwargs: Any) -> Array:
        """The marginal log likelihood of each row, (num_data,)."""
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        nodes = self._nodes(reader)

        def compute(rows: Rows, params: Params) -> Array:
            return by_quadrature(reader, rows, params, nodes, self.chunk_size).evidence

        return compiled(compute, rows)(rows.leaves, params)

    def _remembers(self, rows: Rows) -> bool:
        return not rows.on_disk if self.remember is None else self.remember

    def _nodes(self, reader: FactorReader) -> int:
        return self.num_nodes or default_nodes(reader.num_factors)

    def _climb_expectation(
        self,
        reader: FactorReader,
        rows: Rows,
        params: Params,
        modes: Array,
        size: int,
        expect: Callable,
    ) -> Params:
        def weighted(local: Any, params: Params, arguments: Arguments, modes: Array) -> Expectation:
            evidence, points, probability = expect(local, params, arguments, modes)
            nothing: Any = None
            return Expectation(evidence, nothing, nothing, lambda: (points, probability), nothing)

        reading: Any = reader
        return gradient_step(
            reading, params, rows, size, modes, weighted,
            prior=self.prior, num_steps=self.gradient_steps,
        )  # fmt: skip
