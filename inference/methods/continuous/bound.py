"""EM on a quadratic lower bound of the likelihood: Gaussian posteriors, no sampling, no grid."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...reading.anatomy import Anatomy, ProgramError
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks
from ...types import Arguments, Params
from .bounded import bound_posterior, bounded_program, gaussian_points, gaussian_sums
from .factor_em import FactorEM, Look, Prior
from .factors import FactorPosterior
from .opening import Opened
from .regressions import Responses
from .rules import by_quadrature, default_nodes

MOST_REMEMBERED = 1 << 16
"""Rows whose posteriors are kept between steps by default."""
UNBOUNDED = {"BinomialLogits", "BinomialProbs", "ClippedNormal", "NoisyOr", "Poisson"}
"""Likelihoods that no parabola below them is known for here."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BoundEM(FactorEM):
    """EM on a lower bound that is quadratic in the factors (Tipping 1998, section 4).

    Observed bits and categories are replaced by their quadratic bounds (`quadratic_bound`). The log
    joint of a datum is then quadratic in its factors, so its posterior is Gaussian: (6) and (7).
    (8) tightens the bound there, (11) raises it in the parameters; it rises at every step.

    For programs of the form of `latent_trait` and `mixed_trait`, under whatever names, the bound is
    written out in `continuous.regressions`. Any other program with Gaussian latents is read: value,
    slope and curvature of the bounded program by autodiff, and L-BFGS in place of (11); see
    `continuous.bounded`.

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

    by_row = ("memory",)

    tighten: int = 2
    remember: bool | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        unbounded = [name for name in anatomy.likelihoods if name in UNBOUNDED]
        words = "{}: the bound is for Bernoulli, categorical and Gaussian likelihoods"
        return super().admits(anatomy) or (words.format(unbounded[0]) if unbounded else None)

    def check(self, opened: Opened) -> None:
        problem = self.admits(opened.reader.anatomy)
        if problem is not None:
            raise ProgramError(f"BoundEM does not apply: {problem}; use QuadratureEM")
        if opened.columns is None:
            bounded_program(opened.reader, opened.rows, check=True)

    def first_memory(self, opened: Opened, key: Array) -> Any:
        del key
        if not self._remembers(opened.rows):
            return ()
        return _prior_moments(opened.rows.num_data, opened.reader.num_factors)

    def size(self, opened: Opened) -> int:
        return chunk_of(self.chunk_size, opened.rows.width, opened.rows)

    def look(self, opened: Opened, params: Params, memory: Any) -> Look:
        keeps = self._remembers(opened.rows)

        def expect(arguments: Arguments, by_row: Any) -> Any:
            if keeps:
                return by_row[2], by_row
            first = _prior_moments(self.size(opened), opened.reader.num_factors)
            posterior = self._rounds(opened, params, arguments, first, self.tighten + 4)
            return posterior[2], posterior

        if not keeps:
            return Look((), None, expect)
        posterior = self._tighten(opened, params, memory, self.tighten)
        return Look(posterior[:2], posterior, expect)

    def sums(
        self, opened: Opened, values: Params, responses: Responses, posterior: Any, fresh: Array
    ) -> Any:
        columns: Any = opened.columns
        return gaussian_sums(columns, values, responses, posterior[0], posterior[1], fresh)

    def regress(
        self, opened: Opened, values: Params, sums: Any, memory: Any, prior: Prior | None
    ) -> tuple[Params, Params, Array | float]:
        del memory
        columns: Any = opened.columns
        new = columns.advance(values, sums, prior)
        return new, new, 0.0

    def weighted(self, posterior: Any) -> tuple[Array, Array]:
        points = gaussian_points(posterior[0], posterior[1])
        return points, jnp.full(points.shape[:2], 1.0 / len(points))

    def reading(self, opened: Opened, params: Params) -> Any:
        """The bounded program, as tight as it can be for the posteriors of these parameters."""
        return bounded_program(opened.reader, opened.rows).tight(params)

    def posterior(
        self, params: Params, *args: Any, tighten: int = 30, gap: bool = True, **kwargs: Any
    ) -> FactorPosterior:
        """The Gaussian posterior of each row; new rows as well as old ones.

        :param tighten: rounds of (6) to (8), from the prior.
        :param gap: also find how far the bound is from the evidence by quadrature, which costs far
            more than the bound itself; NaN without it and beyond 3 factors.
        """
        wide = self.fill(args, kwargs)
        if wide is not None:
            return wide.asked(self.posterior, params, tighten=tighten, gap=gap)
        opened = self._open(args, kwargs)
        reader, hollow = opened.reader, opened.hollow

        def compute(rows: Rows, params: Params) -> FactorPosterior:
            here = hollow._replace(rows=rows)
            memory = _prior_moments(rows.num_data, reader.num_factors)
            mean, covariance, evidence = self._tighten(here, params, memory, tighten)
            nothing = jnp.full_like(evidence, jnp.nan)
            posterior = FactorPosterior(mean, covariance, evidence, nothing, nothing)
            if not gap or reader.num_factors > 3:
                return posterior
            nodes = default_nodes(reader.num_factors)
            exact = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            return posterior._replace(gap=exact.evidence - evidence)

        return compiled(compute, opened.rows)(opened.rows.leaves, params)

    def _tighten(
        self, opened: Opened, params: Params, memory: tuple[Array, Array], rounds: int
    ) -> tuple[Array, Array, Array]:
        """Rounds of (8), (6), (7) for all rows: mean, covariance, log of the bound."""

        def summarise(arguments: Arguments, memory: Any) -> Any:
            return self._rounds(opened, params, arguments, memory, rounds)

        return map_over_chunks(summarise, opened.rows, self.size(opened), memory)

    def _rounds(
        self, opened: Opened, params: Params, arguments: Arguments, memory: Any, rounds: int
    ) -> tuple[Array, Array, Array]:
        """Rounds of (8), (6), (7) for the rows of one chunk."""
        columns, local = opened.columns, opened.reader.at(self.size(opened))
        if columns is not None:
            values, responses = opened.values(params), opened.responses(arguments)
            better = lambda m, c: bound_posterior(columns, values, responses, m, c)  # noqa: E731
        else:
            program = bounded_program(opened.reader, opened.rows)
            better = lambda m, c: program.posterior(local, params, arguments, m, c)  # noqa: E731

        def once(_: Array, posterior: Any) -> Any:
            return better(*posterior[:2])

        return jax.lax.fori_loop(1, rounds, once, better(*memory))

    def _remembers(self, rows: Rows) -> bool:
        if self.remember is not None:
            return self.remember
        return rows.extent <= MOST_REMEMBERED and not rows.on_disk


def _prior_moments(num_data: int, num_factors: int) -> tuple[Array, Array]:
    eye = jnp.eye(num_factors)
    return jnp.zeros((num_data, num_factors)), jnp.broadcast_to(
        eye, (num_data, num_factors, num_factors)
    )
