"""EM on a quadratic lower bound of the likelihood: Gaussian posteriors, no sampling, no grid.

Where the columns of a program are regressions on its factors (`regressions`), the bounds are
written out: mean and variance of each predictor say where its bound is tightest, (8) of Tipping
(1998); there the posterior of the factors is Gaussian again, (6) and (7), and the sums of the
M-step, (11) and (12), are moments of it.

Any other program is read by autodiff. Every observed Bernoulli or categorical site is put under
`quadratic_bound`. If the bounded program is quadratic in the latents (tested in float64 on random
states, never assumed), the Gaussian posterior is its slope and curvature at zero, and the best
variational parameters are moments of the logits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random

from ...numerics.gaussian import invert, root, with_one
from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.distributions import curvature
from ...reading.handlers import quadratic_bound, states
from ...reading.log_joint import Structure, log_joint, prior_draw, quadratic_part, row_function
from ...reading.probe import probe
from ...reading.tracing import innermost, run_abstractly, trace_of
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks, over_rows
from ...types import Arguments, Params
from .factor_em import FactorEM, Look
from .factors import FactorPosterior, FactorReader
from .opening import Opened, Prior
from .regressions import Regressions, Responses, Sums, first, log_sum, softmax
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
    slope and curvature of the bounded program by autodiff, and L-BFGS in place of (11).

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


class Bounded(NamedTuple):
    """A program and its observed sites that take a bound."""

    reader: FactorReader
    rows: Rows
    sites: tuple[str, ...]

    def posterior(
        self, reader: FactorReader, params: Params, arguments: Arguments, mean: Array, spread: Array
    ) -> tuple[Array, Array, Array]:
        """From one Gaussian posterior of a chunk to the next: mean, covariance, log bound."""
        points = gaussian_points(mean, spread)
        program = bound_sites(reader.model, self.variational(reader, params, arguments, points))
        function = row_function(program, reader.anatomy, params, arguments)
        zero = jnp.zeros_like(mean)
        constant, slope, hessian = quadratic_part(function, zero)
        covariance, log_det = invert(-hessian)
        mean = jnp.einsum("nqr,nr->nq", covariance, slope)
        evidence = constant + 0.5 * jnp.sum(mean * slope, -1) - 0.5 * log_det
        return mean, covariance, evidence + 0.5 * mean.shape[-1] * math.log(2.0 * math.pi)

    def variational(
        self, reader: FactorReader, params: Params, arguments: Arguments, points: Array
    ) -> dict[str, Array]:
        """The best ξ (bits, eq. 8) or ψ (categories) for the posterior of these points, by site.

        Logits are linear in the latents, so that the points have their moments too.
        """
        trace = trace_of(states(reader.model, reader.anatomy.unpack(points)), arguments, params)
        logits = {site: innermost(trace[site]["fn"]).logits for site in self.sites}
        mean = lambda x: x.mean(0) if x.ndim > 3 else jnp.sqrt((x**2).mean(0))  # noqa: E731
        return {site: mean(value) for site, value in logits.items()}

    def tight(self, params: Params) -> _Tight:
        """The program under its best bounds for the posteriors of these parameters."""
        return _Tight(self, params, self.reader.model, self.reader.anatomy)


class _Tight(NamedTuple):
    """The bounded program, as tight as it can be for the posterior whose points it is shown."""

    program: Bounded
    params: Params  # of which that posterior is
    model: Callable
    anatomy: Anatomy
    structure: Structure = Structure.GENERAL

    def at(self, num_data: int) -> _Tight:
        return self._replace(anatomy=self.anatomy.with_rows(num_data))

    def log_joint(self, params: Params, points: Array, arguments: Arguments) -> Array:
        reader = FactorReader(self.model, self.anatomy)
        xi = self.program.variational(reader, self.params, arguments, points)
        return reader._replace(model=bound_sites(self.model, xi)).log_joint(
            params, points, arguments
        )


def gaussian_points(mean: Array, covariance: Array) -> Array:
    """The 2Q points μ ± √Q L_k, (2Q, n, Q): a quadratic has its mean under a Gaussian over them."""
    arms = math.sqrt(mean.shape[-1]) * jnp.moveaxis(root(covariance), -1, 0)
    return jnp.concatenate([mean + arms, mean - arms])


def bound_sites(model: Callable, xi: dict[str, Array]) -> Callable:
    """The program with each of these sites under its bound."""
    for site, value in xi.items():
        model = quadratic_bound(model, site, value)
    return model


def bounded_program(reader: FactorReader, rows: Rows, check: bool = False) -> Bounded:
    """Find the sites that take a bound.

    :param check: test on random rows, parameters and states that the bounded program is quadratic.
    """
    kinds = (
        dist.BernoulliLogits | dist.BernoulliProbs | dist.CategoricalLogits | dist.CategoricalProbs
    )

    def bounded(trace: dict[str, dict]) -> tuple[str, ...]:
        return tuple(
            x for x in reader.anatomy.observed if isinstance(innermost(trace[x]["fn"]), kinds)
        )

    sites = run_abstractly(reader.model, *rows.slice(0, 1), bounded)
    program = Bounded(reader, rows, sites)
    if check:
        _check_quadratic(program)
    return program


def _check_quadratic(program: Bounded) -> None:
    reader, rows = program.reader, program.rows
    if any(isinstance(x, jax.core.Tracer) for x in rows.leaves):
        return  # the data are not known yet
    num_rows = min(rows.num_data, 5)
    chosen = np.linspace(0, rows.num_data - 1, num_rows).astype(int)
    with jax.enable_x64(True):
        some = [np.asarray(x)[chosen] for x in rows.leaves]
        leaves = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in some]
        same: dict[str, Any] = {"sites": reader.anatomy.names, "plate": reader.anatomy.plate}
        few = FactorReader(reader.model, inspect(reader.model, *rows.join(leaves), **same))

        def error(seed: Array, leaves: list[Array]) -> Array:
            arguments = rows.join(leaves)
            key_params, key_states = random.split(random.key(seed))
            params = prior_draw(reader.model, few.anatomy, key_params, arguments)
            params = {name: value.astype(float) for name, value in params.items()}
            shape = (num_rows, few.num_factors)
            eye = jnp.broadcast_to(jnp.eye(shape[1]), (*shape, shape[1]))
            points = gaussian_points(jnp.zeros(shape), eye)
            model = bound_sites(reader.model, program.variational(few, params, arguments, points))
            function = row_function(model, few.anatomy, params, arguments)
            zero = jnp.zeros(shape)
            constant, slope, bend = quadratic_part(function, zero)
            points = random.normal(key_states, (8, *shape))
            direct = log_joint(model, few.anatomy, params, points, arguments)
            read = constant + jnp.einsum("snq,nq->sn", points, slope)
            read = read + 0.5 * jnp.einsum("snq,nqr,snr->sn", points, bend, points)
            return jnp.abs(read - direct).max() / (1.0 + jnp.abs(direct - constant).max())

        worst = max(map(float, probe(error, [(np.int32(seed), leaves) for seed in range(2)])))
    if not worst <= 1e-6:
        under = "and has no Bernoulli site with logits to bound"
        if program.sites:
            under = f"with the sites {list(program.sites)} under their bounds"
        raise ProgramError(
            f"the program is not quadratic in {list(reader.anatomy.names)} {under} "
            f"(error {worst:.2g}): BoundEM needs Gaussian "
            "latents and logits or means that are linear in them; use QuadratureEM or MonteCarloEM"
        )


def bound_at_bias(
    columns: Regressions, params: Params, responses: Responses, mean: Array, spread: Array
) -> Array:
    """The log of the bound at x = 0, that is at A = b, summed over columns: (n,)."""
    layout, bias, target = columns.layout, params["bias"], responses.target
    xi = jnp.sqrt(mean**2 + spread)
    values = (target - 0.5) * bias + jax.nn.log_sigmoid(xi) - 0.5 * xi
    values = values + curvature(xi) * (bias**2 - xi**2)
    if not columns.logistic:
        split = layout.split
        (real, _, levels), (at, _, psi), (own, _, hot) = split(bias), split(mean), split(target)
        del at
        if len(layout.real):
            away = (own - real) / params["noise"]
            own = -0.5 * away**2 - jnp.log(params["noise"]) - 0.5 * jnp.log(2.0 * jnp.pi)
        parts = {}
        for k, point in psi.items():
            away = levels[k] - point
            bent = 0.25 * (jnp.sum(away**2, -1) - jnp.sum(away, -1) ** 2 / k)
            part = jnp.sum(hot[k] * levels[k], -1) - log_sum(point)
            parts[k] = first(part - jnp.sum(away * softmax(point), -1) - bent, k)
        values = layout.join(own, split(values)[1], parts)
    total = jnp.sum(values if responses.seen is None else values * responses.seen, -1)
    return total + columns.base(params, target)


def bound_posterior(
    columns: Regressions, params: Params, responses: Responses, mean: Array, covariance: Array
) -> tuple[Array, Array, Array]:
    """Eqs. (8), (6), (7): from one Gaussian posterior to the next, better one.

    :return: mean (n, Q), covariance (n, Q, Q), log of the bound on the evidence (n,).
    """
    weights, bias = params["weights"], params["bias"]
    centre, spread = predict(params, mean, covariance)
    residual, omega = columns.tangent(params, centre, spread)
    right = residual + omega * centre + columns.mixed(responses.target) - omega * bias
    if responses.seen is not None:
        right, omega = right * responses.seen, omega * responses.seen
    dual = columns.metric(params, weights)
    size = len(weights)
    outer = (dual[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
    precision = jnp.eye(size) + (omega @ outer.T).reshape(-1, size, size)
    linear = right @ dual.T
    covariance, log_det = invert(precision)
    mean = jnp.einsum("nqr,nr->nq", covariance, linear)
    constant = bound_at_bias(columns, params, responses, centre, spread)
    return mean, covariance, constant + 0.5 * jnp.sum(mean * linear, -1) - 0.5 * log_det


def predict(params: Params, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and variance of every predictor under Gaussian factors, (n, P) each."""
    weights = params["weights"]
    size = len(weights)
    outer = (weights[:, None, :] * weights[None, :, :]).reshape(size * size, -1)
    spread = covariance.reshape(-1, size * size) @ outer
    return mean @ weights + params["bias"], jnp.maximum(spread, 0.0)


def gaussian_sums(
    columns: Regressions,
    params: Params,
    responses: Responses,
    mean: Array,
    covariance: Array,
    heavy: Array,
) -> Sums:
    """The sums of (11) and (12) under Gaussian posteriors, row n counted `heavy[n]` times."""
    centre, spread = predict(params, mean, covariance)
    residual, omega = columns.tangent(params, centre, spread)
    residual = residual + columns.mixed(responses.target)
    weight = heavy[:, None] if responses.seen is None else heavy[:, None] * responses.seen
    residual, omega = residual * weight, omega * weight
    moments = with_one(mean)
    outer = moments[:, :, None] * moments[:, None, :]
    size = mean.shape[-1]
    outer = outer.at[:, :size, :size].add(covariance)
    bend = over_rows(omega, outer.reshape(len(mean), -1)).reshape(-1, size + 1, size + 1)
    around = over_rows(omega, covariance.reshape(len(mean), -1)).reshape(-1, size, size)
    slope = over_rows(residual, moments)
    slope = slope.at[:, :size].add(-jnp.einsum("pqr,rp->pq", around, params["weights"]))
    at = slice(len(columns.layout.real))
    power = (responses.target - centre)[:, at] ** 2 + spread[:, at]
    weight = jnp.broadcast_to(weight, omega.shape)[:, at]
    power, count = jnp.sum(power * weight, 0), jnp.sum(weight, 0)
    return Sums(slope, bend, power, count, heavy @ responses.target)
