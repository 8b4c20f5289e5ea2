"""EM by Monte Carlo: prior draws that all data share, responsibilities, weighted regressions."""

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
from ...rows.chunks import Rows, compiled, map_over_chunks, over_rows, sum_over_chunks
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
from .point_regressions import (
    natural_form,
    shared_log_likelihood,
    shared_sums,
)
from .regressions import Regressions, regressions_of
from .rules import (
    Rule,
    by_quadrature,
    default_nodes,
    moments,
    prior_points,
    weigh,
)


class MonteCarloEM(Algorithm):
    r"""EM on L draws from the prior of the factors, shared by all data (Tipping 1998, section 3).

    .. math:: \mathcal L \approx \sum_n \ln \frac1L \sum_l \prod_i P(t_{in} \mid x_l) \qquad (3)

    The E-step gives each draw its responsibility for each datum, the M-step is a logistic
    regression on the draws by iteratively re-weighted least squares. The draws are made once, so
    that the loss falls steadily; it is that of (3), not of the true likelihood: few draws are
    overfitted.

    :param model: any program with continuous latents inside its data plate.
    :param num_draws: L.
    :param quasi: Halton points, shifted at random, in place of independent draws.
    :param regression_steps: rounds of re-weighted least squares in an M-step.
    :param accelerate: Anderson steps with a safeguard: see `inference.numerics.acceleration`.

    The others as for `QuadratureEM`.

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> data = prototypes(jax.random.key(0), copies=20, num_features=6, flip=0.2).data
    >>> em = MonteCarloEM(latent_trait, num_draws=64, quasi=True)
    >>> result = em.run(jax.random.key(1), 5, data)
    >>> bool(jnp.diff(result.losses).max() < 1e-2)
    True
    """

    by_row: tuple[str, ...] | None = ()
    starts = Starts.DATA

    def __init__(
        self,
        model: Callable,
        *,
        num_draws: int = 500,
        quasi: bool = False,
        regression_steps: int = 3,
        accelerate: bool = True,
        prior: bool = False,
        start: Callable[..., Params] | None = None,
        gradient_steps: int = 5,
        chunk_size: int | None = None,
        plate: str | None = None,
    ):
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, found {num_draws}")
        self.model, self.num_draws, self.quasi = model, num_draws, quasi
        self.regression_steps, self.accelerate, self.prior = regression_steps, accelerate, prior
        self.start, self.gradient_steps = start, gradient_steps
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
        key_start, key_draws, key = jax.random.split(rng_key, 3)
        params = start_params(
            reader, rows, columns, self.start, init_params, key_start, args, kwargs
        )
        rule = prior_points(key_draws, self.num_draws, reader.num_factors, self.quasi)
        return first_state(reader, rows, params, key, rule.points, self.accelerate)

    def update(self, state: FactorState, *args: Any, **kwargs: Any) -> tuple[FactorState, Array]:
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        columns = regressions_of(self.model, args, kwargs)
        prior = prior_of(reader, rows, self.prior)
        size = self._size(reader, rows, columns)

        def visit(params: Params, points: Array) -> Visit:
            def summarise(arguments: Arguments, extra: None, fresh: Array) -> Any:
                del extra
                evidence, probability = self._weigh(
                    reader.at(size), columns, params, arguments, points
                )
                if columns is None:
                    return jnp.sum(fresh * evidence), ()
                target, seen = columns.responses(arguments)
                heavy = probability * fresh
                weight = heavy.sum(1)[:, None] if seen is None else heavy @ seen
                at = slice(len(columns.layout.real))
                count = fresh[:, None] if seen is None else fresh[:, None] * seen[:, at]
                square = jnp.sum(target[:, at] ** 2 * count, 0)
                return jnp.sum(fresh * evidence), (over_rows(heavy.T, target), weight, square)

            evidence, sums = sum_over_chunks(summarise, rows, size, None)
            loss = -evidence if prior is None else -evidence - prior(params)
            if columns is None:
                new = self._climb_expectation(reader, rows, params, points, size)
            else:
                new = self._regress(columns, params, points, sums, prior)
            return Visit(loss, new, new, points)

        return next_state(visit, reader, rows, state)

    def get_params(self, state: FactorState) -> Params:
        return canonical(state.params) if rotates(self.model) else state.params

    def posterior(
        self, params: Params, *args: Any, rng_key: Array | None = None, **kwargs: Any
    ) -> FactorPosterior:
        """Moments over fresh draws; `effective` tells how many of them carry a row's posterior."""
        reader, rows = open_factors(self.model, args, kwargs, self.plate)
        columns = regressions_of(self.model, args, kwargs)
        key = jax.random.key(0) if rng_key is None else rng_key
        points = prior_points(key, self.num_draws, reader.num_factors, self.quasi).points
        size = self._size(reader, rows, columns)

        def compute(rows: Rows, params: Params, points: Array) -> FactorPosterior:
            def summarise(arguments: Arguments, extra: None, start: Array) -> FactorPosterior:
                del extra, start
                evidence, probability = self._weigh(
                    reader.at(size), columns, params, arguments, points
                )
                mean, covariance = moments(points, probability)
                effective = 1.0 / jnp.sum(probability**2, 0)
                nothing = jnp.full_like(evidence, jnp.nan)
                return FactorPosterior(mean, covariance, evidence, nothing, effective)

            found = map_over_chunks(summarise, rows, size, None)
            if reader.num_factors > 3:
                return found
            nodes = default_nodes(reader.num_factors)
            exact = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            return found._replace(gap=exact.evidence - found.evidence)

        return compiled(compute, rows)(rows.leaves, params, points)

    def _size(self, reader: FactorReader, rows: Rows, columns: Regressions | None) -> int:
        del reader
        each = self.num_draws if columns is not None else self.num_draws * width(rows)
        return chunk_of(self.chunk_size, each + width(rows), rows)

    def _weigh(
        self,
        reader: FactorReader,
        columns: Regressions | None,
        params: Params,
        arguments: Arguments,
        points: Array,
    ) -> tuple[Array, Array]:
        """Log of (3) for each row, and the responsibilities (L, n)."""
        if columns is None:
            weights = -log_normal(points) - jnp.log(self.num_draws)
            return weigh(reader, params, arguments, Rule(points, weights))
        table = shared_log_likelihood(columns, params, columns.responses(arguments), points)
        total = logsumexp(table, axis=0)
        return total - jnp.log(self.num_draws), jnp.exp(table - total)

    def _regress(
        self,
        columns: Regressions,
        params: Params,
        points: Array,
        sums: Any,
        prior: Callable[[Params], Array] | None,
    ) -> Params:
        found, weight, square = sums
        weight = jnp.broadcast_to(weight, found.shape)

        def expected(params: Params) -> Array:
            predictors = points @ params["weights"] + params["bias"]
            natural, partition = natural_form(columns, params, predictors)
            value = found * natural - weight * partition
            if "noise" in params:
                at, noise = slice(len(columns.layout.real)), params["noise"]
                own = -0.5 * square / noise**2 - weight[:, at].sum(0) * jnp.log(noise)
                value = value.at[0, at].add(own)
            total = jnp.sum(value)
            return total if prior is None else total + prior(params)

        def step(params: Params, _: None) -> tuple[Params, None]:
            sums = shared_sums(columns, params, points, found, weight)
            safe, fast = (
                columns.advance(params, one._replace(power=one.power + square), prior)
                for one in sums
            )
            # Newton's step is the better one unless it overshoots; the bound's never does.
            better = expected(fast) >= expected(safe)
            return jax.tree.map(lambda a, b: jnp.where(better, a, b), fast, safe), None

        return jax.lax.scan(step, params, None, length=self.regression_steps)[0]

    def _climb_expectation(
        self, reader: FactorReader, rows: Rows, params: Params, points: Array, size: int
    ) -> Params:
        def weighted(local: Any, params: Params, arguments: Arguments, memory: None) -> Expectation:
            del memory
            evidence, probability = self._weigh(local, None, params, arguments, points)
            nothing: Any = None
            states = points[:, None]
            return Expectation(evidence, nothing, nothing, lambda: (states, probability), nothing)

        reading: Any = reader
        return gradient_step(
            reading, params, rows, size, None, weighted,
            prior=self.prior, num_steps=self.gradient_steps,
        )  # fmt: skip
