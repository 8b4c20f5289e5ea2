"""Rules of integration over Gaussian latents: nodes and draws, in place or about modes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.scipy.special import ndtri
from numpy.polynomial.hermite_e import hermegauss
from numpyro.distributions.distribution import validation_enabled

from ...numerics.gaussian import invert, log_normal, root
from ...numerics.log_sums import normalise
from ...reading.anatomy import ProgramError
from ...rows.chunks import Rows, chunk_of, map_over_chunks
from ...types import Arguments, Params
from .factors import FactorPosterior, FactorReader

MOST_BYTES = 1 << 27
"""Of a rule: NumPy finds n nodes by the eigenvalues of a matrix (n, n)."""
MOST_POINTS = 1 << 18
"""Of a rule for one datum: nodes times states of its discrete latents."""


class Rule(NamedTuple):
    """Points z (S, Q), and log weights (S,) that turn a sum over them into ∫ dz."""

    points: Array
    log_weights: Array


def gauss_hermite(num_factors: int, num_nodes: int) -> Rule:
    """The product rule: exact for polynomials of degree 2·num_nodes − 1 times N(0, I).

    >>> rule = gauss_hermite(2, 5)
    >>> mass = jnp.exp(rule.log_weights + log_normal(rule.points))
    >>> rule.points.shape, round(float(mass.sum()), 5)
    ((25, 2), 1.0)
    """
    size = 8 * (num_nodes**2 + num_nodes**num_factors * (num_factors + 1))
    if size > MOST_BYTES:
        raise ValueError(
            f"num_nodes={num_nodes} in {num_factors} dimensions takes {size / 2**30:,.0f} GiB for "
            f"the nodes alone, and {MOST_BYTES / 2**30:g} are the most: a few tens are enough"
        )
    # Arrays of NumPy's: JAX would compile the conversion.
    nodes, weights = hermegauss(num_nodes)
    points = _product(nodes, num_factors)
    log_mass = _product(np.log(weights / math.sqrt(2.0 * math.pi)), num_factors).sum(-1)
    density = -0.5 * (points**2).sum(-1) - 0.5 * num_factors * math.log(2.0 * math.pi)
    kind = jnp.result_type(float)
    rule: Any = points.astype(kind), (log_mass - density).astype(kind)
    return Rule(*rule)


def _product(values: np.ndarray, count: int) -> np.ndarray:
    """All combinations of `count` of the values, (values ** count, count)."""
    return np.stack(np.meshgrid(*[values] * count, indexing="ij"), -1).reshape(-1, count)


def nodes_of(reader: FactorReader, num_nodes: int) -> Rule:
    """The product rule over the continuous latents of a datum.

    A program whose discrete latents have too many states for it is refused.
    """
    rule = gauss_hermite(reader.num_factors, num_nodes)
    if reader.anatomy.mixed and reader.num_states * len(rule.points) > MOST_POINTS:
        raise ProgramError(
            f"the discrete latents of a datum have {reader.num_states} states, and quadrature puts "
            f"{len(rule.points)} nodes into each: at most {MOST_POINTS} points are summed; take "
            "fewer nodes (num_nodes=...), or NUTS(marginal(model))"
        )
    return rule


def prior_points(key: Array, num_draws: int, num_factors: int, quasi: bool) -> Rule:
    """Draws from N(0, I), or a Halton sequence shifted at random (Cranley & Patterson 1976)."""
    if quasi:
        from scipy.stats.qmc import Halton

        sequence = Halton(num_factors, scramble=False).fast_forward(1)  # the origin is left out
        uniform = jnp.asarray(sequence.random(num_draws), float)
        shifted = (uniform + random.uniform(key, (num_factors,))) % 1.0
        points = ndtri(jnp.clip(shifted, 1e-6, 1.0 - 1e-6))
    else:
        points = random.normal(key, (num_draws, num_factors))
    return Rule(points, -log_normal(points) - math.log(num_draws))


SHARES = np.array([0.0, 0.2, 1.0], np.float32)
"""Of a Newton step that are tried, and the best is taken: the first one stays where it is."""


class Peaks(NamedTuple):
    """The mode of each datum, (n, Q), and minus the Hessian there in its q continuous latents; or
    one in each state."""

    place: Array  # (n, Q) or (n, K, Q)
    precision: Array  # (n, q, q) or (n, K, q, q)


def peaks(
    reader: FactorReader, params: Params, arguments: Arguments, start: Array, num_steps: int
) -> Peaks:
    """Newton steps towards each datum's mode, (n, Q), and the curvature there.

    Where a datum has a mode in each state of its discrete latents, (n, K, Q), towards all of them.
    A step that would lead down is shortened. A last round finds the curvature and moves nothing, so
    that the derivatives are compiled once.
    """
    moves = np.arange(num_steps + 1) < num_steps
    start = jnp.moveaxis(start, 0, -2)  # states are points of a row

    def step(now: Peaks, moves: Any) -> tuple[Peaks, None]:
        slope, precision = _bend(reader, params, arguments, now.place)
        move = jnp.einsum("...qr,...r->...q", invert(precision)[0], slope)
        tried = reader.moved(now.place, jnp.multiply.outer(SHARES, move))
        with validation_enabled(False):
            points = tried.reshape(-1, *tried.shape[-2:])
            values = reader.log_joint(params, points, arguments).reshape(tried.shape[:-1])
        values = jnp.where(jnp.isnan(values), -jnp.inf, values)
        best, top = now.place, values[0]
        # Not by an argmax: XLA would draw the log joints into it, one exponential at a time.
        for there, value in zip(tried[1:], values[1:], strict=True):
            best = jnp.where(((value > top) & moves)[..., None], there, best)
            top = jnp.maximum(top, value)
        return Peaks(best, precision), None

    flat = jnp.zeros((*start.shape[:-1], *[reader.num_factors] * 2), start.dtype)
    place, precision = lax.scan(step, Peaks(start, flat), jnp.asarray(moves))[0]
    return Peaks(jnp.moveaxis(place, -2, 0), jnp.moveaxis(precision, -3, 0))


def _bend(
    reader: FactorReader, params: Params, arguments: Arguments, place: Array
) -> tuple[Array, Array]:
    """Slope and precision, minus the Hessian; where that is none (it is not concave there), I."""
    slope, precision = reader.bend(params, place, arguments)
    if reader.closed is not None:  # concave everywhere
        return slope, precision
    precision = 0.5 * (precision + jnp.swapaxes(precision, -1, -2))
    _, log_det = invert(precision)
    sound = jnp.isfinite(log_det) & (jnp.diagonal(precision, axis1=-2, axis2=-1) > 0).all(-1)
    return slope, jnp.where(sound[..., None, None], precision, jnp.eye(slope.shape[-1]))


def about(reader: FactorReader, peaks: Peaks, rule: Rule) -> Rule:
    """The rule moved to each datum's mode and scaled by the curvature there: points (S, n, Q).

    All data share the points of the rule, (S, q), or each has its own, (S, n, q). About modes in K
    states, (n, K, Q), there are as many in each, and the rule has them all, (K · S, n, Q).
    """
    place, precision = jnp.moveaxis(peaks.place, 0, -2), jnp.moveaxis(peaks.precision, 0, -3)
    covariance, log_det = invert(precision)
    shared = rule.points.ndim == 2
    each = "...nqr,sr->...snq" if shared else "...nqr,snr->...snq"
    points = jnp.einsum(each, root(covariance), rule.points)
    weights = rule.log_weights[:, None] if shared else rule.log_weights
    points = reader.moved(place[..., None, :, :], points)
    weights = weights - 0.5 * log_det[..., None, :]
    return Rule(points.reshape(-1, *points.shape[-2:]), weights.reshape(-1, weights.shape[-1]))


def weigh(
    reader: FactorReader, params: Params, arguments: Arguments, rule: Rule
) -> tuple[Array, Array]:
    """Log evidence (n,) and the posterior's weights on the points (S, n)."""
    points = rule.points if rule.points.ndim == 3 else rule.points[:, None]
    weights = rule.log_weights if rule.log_weights.ndim == 2 else rule.log_weights[:, None]
    table = reader.log_joint(params, points, arguments) + weights
    return normalise(table, 0)


def moments(points: Array, probability: Array) -> tuple[Array, Array]:
    """Mean (n, Q) and covariance (n, Q, Q) of weighted points (S, n or 1, Q)."""
    if points.ndim == 2:
        points = points[:, None]
    points = jnp.broadcast_to(points, (*probability.shape, points.shape[-1]))
    mean = jnp.einsum("sn,snq->nq", probability, points)
    away = points - mean
    return mean, jnp.einsum("sn,snq,snr->nqr", probability, away, away)


def by_quadrature(
    reader: FactorReader,
    rows: Rows,
    params: Params,
    num_nodes: int,
    chunk_size: int | None = None,
    num_steps: int = 15,
) -> FactorPosterior:
    """The posterior of every row by quadrature about its mode, found from zero."""
    rule = nodes_of(reader, num_nodes)
    size = chunk_of(chunk_size, len(rule.points) * reader.num_states * rows.width, rows)

    def summarise(arguments: Arguments) -> FactorPosterior:
        local = reader.at(size).ready(arguments)
        found = peaks(local, params, arguments, local.start(), num_steps)
        moved = about(local, found, rule)
        evidence, probability = weigh(local, params, arguments, moved)
        mean, covariance = moments(moved.points, probability)
        effective = 1.0 / jnp.sum(probability**2, 0)
        gap, each = jnp.zeros_like(evidence), local.per_value(probability)
        return FactorPosterior(mean, covariance, evidence, gap, effective, each)

    return map_over_chunks(summarise, rows, size)


def default_nodes(num_factors: int) -> int:
    """Nodes a dimension, for an error of about 1e-4 nats per row also where weights are large.

    On copies of three patterns, whose weights grow to 7, 9, 15 and 21 nodes in each of two
    dimensions are off by 0.008, 0.002 and 0.0001; where weights are below 3, 9 are enough.
    """
    if num_factors > 3:
        raise ProgramError(
            f"quadrature over {num_factors} dimensions takes too many points: it is for up to 3; "
            "use BoundEM, or MonteCarloEM"
        )
    return {1: 41, 2: 21, 3: 11}[num_factors]
