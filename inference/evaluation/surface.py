"""The marginal log likelihood about some parameters: value, slope, curvature, bounds.

Discrete latents are summed out as `marginal` does it, those of a chain by its forward pass, factors
are integrated out by quadrature. The parameters are one vector in their own units, not those of a
transform: a bound is then a number and not an infinity, and the slope at it says whether the
likelihood would go beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from numpyro.distributions import biject_to, constraints

from ..methods.continuous.factors import FactorReader
from ..methods.continuous.guessing import Guessing
from ..methods.continuous.opening import FORMS, Opened, open_columns
from ..methods.continuous.regressions import Regressions, bit_information
from ..methods.continuous.rules import Rule, about, default_nodes, nodes_of, peaks, weigh
from ..methods.continuous.shared_nodes import MOST_AT_ONCE, log_table, one_rule
from ..methods.discrete.chain_em import open_chain
from ..methods.m_step import supports_of
from ..numerics import chain as sums
from ..numerics.acceleration import Maps, chart
from ..reading.anatomy import ChainError, ProgramError, inspect
from ..reading.elimination import Chain
from ..reading.log_joint import log_density_of
from ..reading.marginal import row_evidence
from ..reading.reader import open_program
from ..reading.recognition.papers import Form
from ..reading.tracing import each_value
from ..rows.chunks import Rows, chunk_of, sum_over_chunks
from ..types import Arguments, Params
from .evidence import likelihood

INSIDE = 1e-6
"""Distance from a bound at which derivatives are taken, in units of the range or of one."""
ON_SHARED_NODES = "shared"
"""In place of a rule about each row's mode."""


class Settings(NamedTuple):
    """How the likelihood is computed, and what of it."""

    num_nodes: int | None = None
    chunk_size: int | None = None
    prior: bool = False
    sandwich: bool = False


class Curvature(NamedTuple):
    """The log likelihood about some parameters, as a vector of p numbers."""

    information: Any  # (p, p), minus its Hessian
    slope: Any  # (p,); None where no parameter has a bound
    value: Any  # the log likelihood; None where the slope is
    outer: Any  # (p, p), the sum of outer products of the weighted scores of rows; on request
    carry: Any  # (..., p) by site: how the parameters change with the vector
    normal: Any  # (constraints, p), directions that leave the canonical form, if there is one
    params: Any  # by site, at the point
    point: Any  # (p,), at least `INSIDE` away from the bounds
    bounds: Any  # two of (p,)
    box: Any  # the same, as near as the point may come


class Space(NamedTuple):
    """Parameters as a vector in their own units, and back."""

    point: Array
    bounds: tuple[Array, Array]
    box: tuple[Array, Array]
    build: Callable[[Array], Params]
    bounded: bool  # whether any parameter is


class Paths(NamedTuple):
    """A chain and its program, in place of a reader of rows."""

    model: Callable
    anatomy: Chain

    def evidence(self, params: Params, arguments: Arguments) -> Array:
        """log p of each sequence, with its part of what depends on no path."""
        value = sums.evidence(*self.anatomy.factors(self.model, params, arguments))
        other = log_density_of(self.model, self.anatomy.other, params, arguments)
        return value + other / self.anatomy.num_sequences


class Shares(NamedTuple):
    """A simplex as all its entries but the largest, which is the rest to one."""

    largest: Array

    def __call__(self, others: Array) -> Array:
        first = jnp.maximum(1.0 - others.sum(-1, keepdims=True), INSIDE)
        shares = jnp.concatenate([first, others], -1)
        return self._turn(shares / shares.sum(-1, keepdims=True), -1)

    def inv(self, shares: Array) -> Array:
        return self._turn(shares, 1)[..., 1:]

    def _turn(self, shares: Array, by: int) -> Array:
        places = (jnp.arange(shares.shape[-1]) + by * self.largest[..., None]) % shares.shape[-1]
        return jnp.take_along_axis(shares, places, -1)


def open_surface(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Opened:
    """A program on its data: its factors are integrated out, or its states summed."""
    reader: Any
    try:
        anatomy = inspect(model, args, kwargs)
    except ChainError:
        leaves, tree = jax.tree.flatten((args, kwargs))
        chain = open_chain(model, args, kwargs)
        assert isinstance(chain, Chain)  # of a scan
        reader = Paths(model, chain)
        return Opened(reader, Rows((), tuple(leaves), tree, 0), None, None)
    anatomy.check_rows_are_all()
    if not anatomy.latents or any(x.num_values is None for x in anatomy.latents):
        return open_columns(model, args, kwargs, None, mixed=True)
    if likelihood(model, *args, **kwargs).sampled:
        raise ProgramError(
            "the latents of a datum have too many states to be summed: the likelihood is only "
            "estimated, and its second derivatives are not"
        )
    reader, rows = open_program(model, args, kwargs)
    return Opened(reader, rows, None, None)


def curvature(opened: Opened, how: Settings) -> Callable[[Rows, Params], Curvature]:
    """All of `Curvature` at some parameters, as a function that holds no rows."""
    (rule, size), hollow = _plan(opened, how), opened.hollow

    def compute(rows: Rows, params: Params) -> Curvature:
        here = hollow._replace(rows=rows)
        space = _space(here, params)
        params, point = space.build(space.point), space.point
        information, climb, outer = _derivatives(here, rule, size, space, params, how.sandwich)
        if how.prior:
            log_prior = lambda v: _log_prior(here, space.build(v))  # noqa: E731
            information = information - jax.hessian(log_prior)(point)
            more = jax.value_and_grad(log_prior)(point)
            climb = None if climb is None else jax.tree.map(jnp.add, climb, more)
        value, slope = climb or (None, None)
        carry, normal = jax.jacobian(space.build)(point), _normal(here, space)
        return Curvature(information, slope, value, outer, carry, normal, params, *space[:3])

    return compute


def climb(opened: Opened, how: Settings) -> Callable[[Rows, Params, Array], tuple[Array, Array]]:
    """The log likelihood and its gradient at a vector of the space of some parameters."""
    (rule, size), hollow = _plan(opened, how), opened.hollow

    def compute(rows: Rows, params: Params, vector: Array) -> tuple[Array, Array]:
        here = hollow._replace(rows=rows)
        space = _space(here, params)

        def part(evidence: Callable[[Params], Array], weight: Array) -> Any:
            total = lambda v: jnp.sum(weight * evidence(space.build(v)))  # noqa: E731
            return jax.value_and_grad(total)(vector)

        found = _over_rows(here, rule, size, space.build(vector), part)
        if how.prior:
            more = jax.value_and_grad(lambda v: _log_prior(here, space.build(v)))(vector)
            found = jax.tree.map(jnp.add, found, more)
        return found

    return compute


def _space(opened: Opened, params: Params) -> Space:
    reader, arguments = opened.reader, _few(opened.rows)
    params = {name: params[name] for name in reader.anatomy.parameters}
    maps, low, high, bounded = Maps(), {}, {}, False
    for name, support in supports_of(reader.model, list(params), params, arguments).items():
        each = constraints.real if support is None else each_value(support)
        maps[name], bounds = (lambda x: x), None
        if each is constraints.simplex:
            maps[name], bounds = Shares(jnp.argmax(params[name], -1)), (0.0, 1.0)
        elif hasattr(each, "lower_bound") or hasattr(each, "upper_bound"):
            bounds = getattr(each, "lower_bound", -jnp.inf), getattr(each, "upper_bound", jnp.inf)
        elif each not in (constraints.real, constraints.ordered_vector):
            maps[name] = biject_to(support)
        free = maps.free({name: params[name]})[name]
        ends = bounds or (-jnp.inf, jnp.inf)
        low[name], high[name] = (jnp.broadcast_to(jnp.asarray(x, float), free.shape) for x in ends)
        bounded |= bounds is not None
    space, least, most = chart(params, maps), ravel_pytree(low)[0], ravel_pytree(high)[0]
    gap = INSIDE * jnp.where(jnp.isfinite(most - least), most - least, 1.0)
    box = least + gap, most - gap
    return Space(jnp.clip(space.flatten(params), *box), (least, most), box, space.build, bounded)


def _log_prior(opened: Opened, params: Params) -> Array:
    names = opened.reader.anatomy.parameters
    return log_density_of(opened.reader.model, names, params, _few(opened.rows))


def _few(rows: Rows) -> Arguments:
    """Arguments that say all of the priors: a single row, or the whole of a chain."""
    return rows.slice(0, 1) if rows.num_data else rows.join(())


def _plan(opened: Opened, how: Settings) -> tuple[Rule | str | None, int]:
    """The rule over the factors, None where states are summed; and the rows of a chunk."""
    reader, rows = opened.reader, opened.rows
    if isinstance(reader, Paths):
        return None, 0
    if not isinstance(reader, FactorReader):
        return None, chunk_of(how.chunk_size, rows.width + reader.anatomy.num_bits, rows)
    count, each = reader.num_factors, rows.width
    # Second derivatives of sharp items want twice as many in each dimension as a fit.
    rule: Any = nodes_of(reader, how.num_nodes or 2 * default_nodes(count))
    # Of bits the score of every column is kept.
    each *= len(rule.points) * reader.num_states * (count + 1 if _bits(opened) else 1)
    if how.num_nodes is None and _levels(opened) is not None:
        rule, each = ON_SHARED_NODES, each + MOST_AT_ONCE[count] ** count
    return rule, chunk_of(how.chunk_size, each, rows)


def _bits(opened: Opened) -> bool:
    """Whether the columns are bits, each with a predictor of its own."""
    columns = opened.columns
    return type(columns) is Regressions and columns.logistic


def _levels(opened: Opened) -> Regressions | None:
    """Columns of ordered levels or with asymptotes, of which all rows share their nodes."""
    known: Any = opened.known
    if known is not None and known.form is Form.GUESSING:
        return Guessing(known.kinds)
    return opened.columns if known is not None and known.form is Form.GRADED else None


Part = Callable[[Callable[[Params], Array], Array], Any]


def _over_rows(
    opened: Opened, rule: Rule | str | None, size: int, params: Params, part: Part
) -> Any:
    """The sum over all rows of part(their log evidence as a function of parameters, weights).

    Nodes stay where `params` put them: the sum is smooth in the parameters of the function.
    """
    reader, rows = opened.reader, opened.rows
    params = lax.stop_gradient(params)
    if isinstance(reader, Paths):
        arguments = rows.join(())
        evidence = lambda new: reader.evidence(new, arguments)  # noqa: E731
        return part(evidence, jnp.ones(reader.anatomy.num_sequences))
    local: Any = reader.at(size)

    def summed(arguments: Arguments, fresh: Array) -> Any:
        times, one = local.times(params, arguments, fresh), local.anatomy
        if rule is None:
            each = lambda new: row_evidence(local.model, one, new, arguments, local.structure)  # noqa: E731
            return part(each, times)
        if isinstance(rule, str):
            levels: Any = _levels(opened)
            known: Any = opened.known
            read = lambda new: levels.read(known.read(new))  # noqa: E731
            nodes = lax.stop_gradient(one_rule(read(params), levels.share))
            responses = levels.responses(*known.cells(reader.model, arguments))
            table = lambda new: log_table(levels, read(new), responses, nodes)  # noqa: E731
            return part(lambda new: logsumexp(table(new), 0), times)
        moved = _nodes(local, rule, params, arguments)
        program = local._replace(closed=None)  # whose logarithms of products differentiate slowly
        return part(lambda new: weigh(program, new, arguments, moved)[0], times)

    return sum_over_chunks(summed, rows, size)


def _nodes(local: Any, rule: Rule, params: Params, arguments: Arguments) -> Rule:
    modes = peaks(local, params, arguments, local.start(), 15)
    return lax.stop_gradient(about(local, modes, rule))


def _derivatives(
    opened: Opened, rule: Any, size: int, space: Space, params: Params, sandwich: bool
) -> tuple[Array, tuple[Array, Array] | None, Array | None]:
    """Minus the Hessian of the log likelihood of all rows; its value and gradient where a parameter
    has a bound; on request the outer products of the scores of rows, as they are weighted."""
    point, every = space.point, jnp.eye(len(space.point))
    quick = _bits(opened) and opened.known is not None

    def part(evidence: Callable[[Params], Array], weight: Array) -> list:
        each = lambda v: evidence(space.build(v))  # noqa: E731
        total = lambda v: jnp.sum(weight * each(v))  # noqa: E731
        climb, bend = jax.linearize(jax.value_and_grad(total), point)
        found: list = [None, climb if space.bounded else None, None]
        found[0] = None if quick else -lax.map(lambda v: bend(v)[1], every)
        if sandwich:
            scores = lax.map(jax.linearize(each, point)[1], every) * weight
            found[2] = scores @ scores.T
        return found

    found: list = [None] * 3
    if not quick or sandwich or space.bounded:
        found = _over_rows(opened, rule, size, params, part)
    if quick:
        found[0] = _of_bits(opened, rule, size, space, params)
    return found[0], found[1], found[2]


def _of_bits(opened: Opened, rule: Rule, size: int, space: Space, params: Params) -> Array:
    """The information in closed form where the columns are bits."""
    known: Any = opened.known
    columns: Any = opened.columns
    local = opened.reader.at(size)

    def summed(arguments: Arguments, fresh: Array) -> Array:
        moved = _nodes(local, rule, params, arguments)
        times = local.times(params, arguments, fresh)
        weight = weigh(local, params, arguments, moved)[1] * times
        values, responses = opened.values(params), opened.responses(arguments)
        return bit_information(columns, values, responses, moved.points, weight)

    information = sum_over_chunks(summed, opened.rows, size)
    # From the numbers of the form to those of the program. At a maximum the second derivative of
    # that map does not matter.
    places = {role: place.positions for role, place in known.places.items()}
    order = np.concatenate([places["weights"].T, places["bias"][:, None]], 1).ravel()
    carry = jax.jacobian(space.build)(space.point)
    flat = jnp.concatenate([carry[name].reshape(-1, len(order)) for name in known.shapes])
    return flat[order].T @ information.reshape(len(order), len(order)) @ flat[order]


def _normal(opened: Opened, space: Space) -> Array | None:
    """The directions that leave the canonical form of factors that turn."""
    known = opened.known
    if known is None or known.form not in FORMS or opened.reader.num_factors == 1:
        return None
    above = np.triu_indices(opened.reader.num_factors, 1)

    def off_diagonal(vector: Array) -> Array:
        weights = known.read(space.build(vector))["weights"]
        return (weights @ weights.T)[above]

    return jax.jacobian(off_diagonal)(space.point)
