"""EM by Monte Carlo: prior draws that all data share, responsibilities, weighted regressions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...numerics.gaussian import log_normal
from ...numerics.log_sums import normalise
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks, over_rows
from ...types import Arguments, Params
from .factor_em import FactorEM, Look
from .factors import FactorPosterior
from .opening import Opened, Prior
from .regressions import Responses, shared_log_likelihood
from .rules import Rule, by_quadrature, default_nodes, moments, prior_points, weigh


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MonteCarloEM(FactorEM):
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

    by_row = ()

    num_draws: int = 500
    quasi: bool = False
    regression_steps: int = 3

    def first_memory(self, opened: Opened, key: Array) -> Any:
        return prior_points(key, self.num_draws, opened.reader.num_factors, self.quasi).points

    def size(self, opened: Opened) -> int:
        wide = opened.rows.width
        each = self.num_draws * (1 if opened.columns is not None else wide)
        return chunk_of(self.chunk_size, each + wide, opened.rows)

    def look(self, opened: Opened, params: Params, memory: Any) -> Look:
        points = memory

        def expect(arguments: Arguments, by_row: Any) -> Any:
            """Log of (3) for each row, and the responsibilities (L, n)."""
            del by_row
            if opened.columns is None:
                rule = Rule(points, -log_normal(points) - jnp.log(self.num_draws))
                local = opened.reader.at(self.size(opened))
                evidence, probability = weigh(local, params, arguments, rule)
                return evidence, (points[:, None], probability)
            read = opened.values(params), opened.responses(arguments)
            centred = opened.columns.centred(*read)
            table = shared_log_likelihood(opened.columns, *centred, points)
            total, probability = normalise(table, 0)
            return total - jnp.log(self.num_draws), (points[:, None], probability)

        return Look(points, None, expect)

    def sums(
        self, opened: Opened, values: Params, responses: Responses, posterior: Any, fresh: Array
    ) -> Any:
        columns: Any = opened.columns
        target, observed = columns.centred(values, responses)[1]
        heavy = posterior[1] * fresh
        weight = heavy.sum(1)[:, None] if observed is None else heavy @ observed
        at = slice(len(columns.layout.real))
        count = fresh[:, None] if observed is None else fresh[:, None] * observed[:, at]
        square = jnp.sum(target[:, at] ** 2 * count, 0)
        return over_rows(heavy.T, target), weight, square

    def regress(
        self, opened: Opened, values: Params, sums: Any, memory: Any, prior: Prior | None
    ) -> tuple[Params, Params, Array | float]:
        columns: Any = opened.columns
        points, (target, weight, square) = memory, sums
        weight = jnp.broadcast_to(weight, target.shape)
        start, nothing = columns.centred(values, Responses(jnp.zeros_like(target), None))
        shift = nothing.target[0]  # minus what the sums are about

        def whole(params: Params) -> Params:
            return {**params, "bias": params["bias"] - shift}

        def expected(params: Params) -> Array:
            predictors = points @ params["weights"] + params["bias"]
            natural, partition = columns.natural(params, predictors)
            value = target * natural - weight * partition
            if "noise" in params:
                at, noise = slice(len(columns.layout.real)), params["noise"]
                own = -0.5 * square / noise**2 - weight[:, at].sum(0) * jnp.log(noise)
                value = value.at[0, at].add(own)
            total = jnp.sum(value) + columns.base(params, target.sum(0))
            return total if prior is None else total + prior(whole(params))

        about = None if prior is None else lambda params: prior(whole(params))

        def step(params: Params, _: None) -> tuple[Params, None]:
            sums = columns.node_sums(params, points, target, weight)
            full = (one._replace(power=one.power + square) for one in sums)
            safe, fast, _ = columns.advance_both(params, tuple(full), about)
            # Newton's step is the better one unless it overshoots; the bound's never does.
            better = expected(fast) >= expected(safe)
            return jax.tree.map(lambda x, y: jnp.where(better, x, y), fast, safe), None

        new = whole(jax.lax.scan(step, start, None, length=self.regression_steps)[0])
        return new, new, 0.0

    def posterior(
        self, params: Params, *args: Any, rng_key: Array | None = None, **kwargs: Any
    ) -> FactorPosterior:
        """Moments over fresh draws; `effective` is how many of them carry a row's posterior."""
        wide = self.fill(args, kwargs)
        if wide is not None:
            return wide.asked(self.posterior, params, rng_key=rng_key)
        opened = self._open(args, kwargs)
        reader, hollow = opened.reader, opened.hollow
        points = self.first_memory(opened, jax.random.key(0) if rng_key is None else rng_key)
        size = self.size(opened)

        def compute(rows: Rows, params: Params, points: Array) -> FactorPosterior:
            look = self.look(hollow._replace(rows=rows), params, points)

            def summarise(arguments: Arguments) -> FactorPosterior:
                evidence, posterior = look.expect(arguments, None)
                mean, covariance = moments(*posterior)
                effective = 1.0 / jnp.sum(posterior[1] ** 2, 0)
                nothing = jnp.full_like(evidence, jnp.nan)
                return FactorPosterior(mean, covariance, evidence, nothing, effective)

            posterior = map_over_chunks(summarise, rows, size)
            if reader.num_factors > 3:
                return posterior
            nodes = default_nodes(reader.num_factors)
            exact = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            return posterior._replace(gap=exact.evidence - posterior.evidence)

        return compiled(compute, opened.rows)(opened.rows.leaves, params, points)
