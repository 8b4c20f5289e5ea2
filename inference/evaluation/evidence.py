"""The marginal log likelihood of each row, latents summed out: one estimator for all methods.

Whatever method gave the parameters, they are judged by log p(y_n | θ), and by the same estimate of
it. Which one is read off the program, the first that applies:

    no latents                                the program itself
    binary latents, log joint linear in them  closed form, a sum of softplus
    discrete latents, few enough states       all states
    discrete latents in layers, each small    all states of each layer
    up to 3 continuous latents                quadrature about each datum's mode, in each state
                                              of its discrete latents, if it has any
    more of them                              importance sampling about each datum's mode
    more binary latents than can be listed    annealed importance sampling, by Gibbs sweeps

The first four are exact. The others say how far off they may be, row by row. Where real numbers are
observed the rows are computed in float64: a square of data that are large beside their noise takes
all digits of float32. Other programs run in the precision of JAX, whose switching they may not bear
(an index that is an array of NumPy's keeps its type from one to the other). All are handed out in
float64, so that sums over rows lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ..methods.continuous.factors import FactorReader, not_continuous
from ..methods.continuous.opening import Opened, recognised
from ..methods.continuous.quadrature import shared_columns
from ..methods.continuous.rules import Peaks, Rule, about, default_nodes, nodes_of, peaks
from ..methods.continuous.shared_nodes import MOST_AT_ONCE, log_table, one_rule
from ..numerics.annealed import log_mean
from ..numerics.gaussian import log_normal
from ..numerics.log_sums import log_total
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import as_double, rows_of
from ..reading.log_joint import Structure, log_joint
from ..reading.marginal import marginal, row_evidence
from ..reading.reader import check_data, open_program
from ..reading.strategy import MOST_PAIRS, find_layers
from ..rows.chunks import Numbers, Rows, chunk_of, compiled, map_over_chunks
from ..rows.padding import Padded
from ..running.algorithm import pad
from ..types import Arguments, Params

MOVED, MOST_ROUNDS = 1e-3, 5
"""A mode is found when three Newton steps move it by less: the nodes about it need not be exact."""
COARSE = 2 / 3
"""Times as many nodes a dimension as there are: the change is taken for the error."""
MAX_STATES = 1 << 14
"""States of a datum that are listed; beyond, their sum is estimated."""


class Evidence(NamedTuple):
    """Marginal log likelihoods and how far off each may be.

    >>> from latentbits.models import bernoulli_product
    >>> evidence = log_likelihood(bernoulli_product, {"probs": jnp.array([0.25])}, jnp.array([[1]]))
    >>> round(float(jnp.exp(evidence.value[0])), 4), float(evidence.error[0])
    (0.25, 0.0)
    """

    value: Any  # (num_data,)
    error: Any  # (num_data,) zero if exact; else a standard error or the change at finer nodes


@dataclass(frozen=True)
class Likelihood:
    """How log p(y_n | θ) of given rows is found, as a pure function of parameters and rows.

    >>> from latentbits.models import bernoulli_product
    >>> of = likelihood(bernoulli_product, jnp.array([[1], [0]]))
    >>> of.exact, of({"probs": jnp.array([0.25])}).value.shape
    (True, (2,))
    >>> of.of_draws({"probs": jnp.array([[0.25], [0.5], [0.75]])}).value.shape
    (3, 2)
    """

    how: str
    """in words"""
    exact: bool
    rows: Rows
    function: Callable[[Params, Rows], Evidence]
    sampled: bool = False
    """by draws of each row's latents: expensive, and with an error that more parameters average"""
    real: bool = False
    """whether real numbers are observed"""
    filled: tuple[Padded, Likelihood] | None = None
    """the rows filled up to a size that others share, and their likelihood, which is compiled"""

    def __call__(self, params: Params) -> Evidence:
        """The evidence of each row, (num_data,)."""
        return self.explained(params)[0]

    def explained(self, params: Params) -> tuple[Evidence, str]:
        """The evidence of each row, and how it was computed, in words."""
        return self._in_double(self._run, self.rows.leaves, params), self.how

    def of_draws(self, draws: Any, rows: Rows | None = None) -> Evidence:
        """The evidence under each of many draws of the parameters, (num_draws, num_data).

        One at a time: it is compiled once, however many draws there are.

        :param rows: others than its own, as many and of the same kind: compiled already.
        """
        draws = jax.tree.map(np.asarray, draws)  # to index an array of JAX's is to compile that
        count = len(jax.tree.leaves(draws)[0])

        def find(leaves: tuple, draws: Any) -> Evidence:
            leaves, run = self._filled(leaves), self._whole
            parts = [run(leaves, jax.tree.map(lambda x: x[i], draws)) for i in range(count)]  # noqa: B023
            return jax.tree.map(lambda *x: np.stack(x), *parts)

        evidence = self._in_double(find, (self.rows if rows is None else rows).leaves, draws)
        return jax.tree.map(lambda x: x[:, : self.rows.num_data], evidence)

    def _in_double(self, compute: Callable[..., Evidence], *trees: Any) -> Evidence:
        """`compute(*trees)` as arrays of float64, which are NumPy's: outside JAX has none; as it
        is inside another's compiled function."""
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees)):
            return compute(*trees)
        found = None
        if self.real:
            # A program that holds arrays of another precision fails; if for another reason, again.
            with suppress(TypeError, ValueError), jax.enable_x64(True):
                found = compute(*as_double(trees))
        found = compute(*trees) if found is None else found
        traced = any(isinstance(x, jax.core.Tracer) for x in found)
        return found if traced else Evidence(*(np.asarray(x, np.float64) for x in found))

    def _run(self, leaves: tuple, params: Params) -> Evidence:
        evidence = self._whole(self._filled(leaves), params)
        return evidence if self.filled is None else self.filled[0].cut(evidence)

    def _filled(self, leaves: tuple) -> tuple:
        return leaves if self.filled is None else self.filled[0].fill(leaves)

    @cached_property
    def _whole(self) -> Callable[[tuple, Params], Evidence]:
        which = self if self.filled is None else self.filled[1]
        function = which.function
        return compiled(lambda rows, params: function(params, rows), which.rows)


def log_likelihood(model: Callable, params: Params, *args: Any, **kwargs: Any) -> Evidence:
    """The marginal log likelihood of each row under the parameters.

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9], [0.1]])}
    >>> evidence = log_likelihood(bernoulli_mixture, params, jnp.array([[1]]), num_components=2)
    >>> round(float(jnp.exp(evidence.value[0])), 4)
    0.5
    """
    return likelihood(model, *args, **kwargs)(params)


def likelihood(
    model: Callable,
    *args: Any,
    num_nodes: int | None = None,
    num_draws: int = 1000,
    max_states: int = MAX_STATES,
    **kwargs: Any,
) -> Likelihood:
    """Choose the estimator for a program on its data; see the top of this file.

    :param num_nodes: nodes a dimension of the quadrature.
    :param num_draws: draws per row where the evidence is sampled.
    :param max_states: list a datum's states up to here.

    >>> from latentbits.models import latent_trait
    >>> likelihood(latent_trait, jnp.zeros((3, 4)), num_factors=2).how
    'quadrature, nodes that all rows share in 2 dimensions'
    """
    check_data(args, kwargs)
    settings = num_nodes, num_draws, max_states
    estimator = _likelihood(model, args, kwargs, *settings)
    real = any("Normal" in name for name in inspect(model, args, kwargs).likelihoods)
    estimator = replace(estimator, real=real)
    wide = None if estimator.sampled else pad(model, args, kwargs, None)
    if wide is None:
        return estimator
    return replace(estimator, filled=(wide, _likelihood(model, wide.args, wide.kwargs, *settings)))


def _likelihood(
    model: Callable, args: tuple, kwargs: dict[str, Any], num_nodes: int | None, num_draws: int,
    max_states: int,
) -> Likelihood:  # fmt: skip
    anatomy = inspect(model, args, kwargs)
    anatomy.check_observed()
    anatomy.check_rows_are_apart()
    if not anatomy.latents:
        return _without_latents(model, anatomy, args, kwargs)
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    if len(discrete) == len(anatomy.latents):
        return _discrete(model, anatomy, args, kwargs, max_states)
    problem = not_continuous(anatomy, mixed=True)
    if problem:
        raise ProgramError(f"nothing here integrates the latents of a datum out: {problem}")
    rows = rows_of(anatomy, args, kwargs)
    reader = FactorReader(model, anatomy)
    if discrete and reader.num_factors > 3:
        # The discrete ones are summed inside, the continuous ones integrated outside.
        kept = tuple(x for x in anatomy.latents if x.num_values is None)
        reader = FactorReader(marginal(model), anatomy._replace(latents=kept))
    opened = None if discrete else recognised(reader, rows)
    if opened is not None:
        reader, columns = opened.reader, shared_columns(opened)
        if columns is not None and num_nodes is None:
            return _on_shared_nodes(opened._replace(columns=columns))
    if reader.num_factors <= 3:
        return _quadrature(reader, rows, num_nodes or default_nodes(reader.num_factors))
    return _sampled(reader, rows, num_draws)


def _without_latents(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> Likelihood:
    def function(params: Params, rows: Rows) -> Evidence:
        none = jnp.zeros((1, 1, 0))
        value = log_joint(model, anatomy, params, none, rows.whole())[0]
        return Evidence(value, jnp.zeros_like(value))

    return Likelihood("the program itself", True, rows_of(anatomy, args, kwargs), function)


def _discrete(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict, max_states: int
) -> Likelihood:
    known = Structure.GENERAL if not anatomy.binary else None
    reader, rows = open_program(model, args, kwargs, structure=known, plate=anatomy.plate)
    num_states = anatomy.num_states
    if reader.structure is Structure.LINEAR:
        how = "closed form"
    elif num_states <= max_states:
        how = f"the sum over all {num_states} states"
    else:
        layers = find_layers(model, anatomy, *rows.slice(0, 1)) or ()
        sizes = [layer.num_states for layer in layers]
        together = [a * b for a, b in pairwise(sizes)]
        if not layers or max(sizes) > max_states or max(together) > MOST_PAIRS:
            if anatomy.binary:
                return _annealed(model, rows)
            raise ProgramError(
                f"a datum has {num_states} states: at most {max_states} are listed (max_states=...)"
            )
        how = f"layer by layer, all {' and '.join(map(str, reversed(sizes)))} states"
    size = chunk_of(None, rows.width + anatomy.num_bits, rows)

    def chunk(params: Params, arguments: Arguments, numbers: Array) -> Evidence:
        local = anatomy.with_rows(len(numbers))
        value = row_evidence(model, local, params, arguments, reader.structure)
        return Evidence(value, jnp.zeros_like(value))

    return Likelihood(how, True, rows, partial(_by_chunk, chunk, size))


def _by_chunk(chunk: Callable[..., Evidence], size: int, params: Params, rows: Rows) -> Evidence:
    """Of all rows, so many at a time: from their arguments and their numbers."""

    def part(arguments: Arguments, numbers: Array) -> Evidence:
        # A gradient computes the table of a chunk anew: those of all chunks do not fit.
        return jax.checkpoint(lambda params: chunk(params, arguments, numbers))(params)

    return map_over_chunks(part, rows, size, Numbers())


def _annealed(model: Callable, rows: Rows) -> Likelihood:
    from ..methods.gibbs.network_evidence import annealed_evidence

    def function(params: Params, rows: Rows) -> Evidence:
        args, kwargs = rows.whole()
        return Evidence(*annealed_evidence(model, params, *args, **kwargs)[:2])

    how = "annealed importance sampling, 32 chains per row"
    return Likelihood(how, False, rows, function, sampled=True)


def _quadrature(reader: FactorReader, rows: Rows, num_nodes: int) -> Likelihood:
    fine = nodes_of(reader, num_nodes)
    coarse = nodes_of(reader, max(3, 2 * num_nodes // 3))
    # One run of the program on the points of both.
    join: Callable[..., Any] = np.concatenate
    both = Rule(*map(join, zip(fine, coarse, strict=True)))
    num_states = reader.num_states  # of discrete latents: the points lie about a mode in each
    size = chunk_of(None, num_states * len(both.points) * rows.width, rows)

    def chunk(params: Params, arguments: Arguments, numbers: Array) -> Evidence:
        local, held = reader.at(len(numbers)), lax.stop_gradient(params)
        # The nodes stay where the parameters put them: the sum is smooth in the others.
        moved = lax.stop_gradient(about(local, _modes(local, held, arguments), both))
        table = local.log_joint(params, moved.points, arguments) + moved.log_weights
        table = table.reshape(num_states, len(both.points), -1)
        parts = table[:, : len(fine.points)], table[:, len(fine.points) :]
        value, rough = (log_total(x.reshape(-1, x.shape[-1]), 0, False) for x in parts)
        return Evidence(value, jnp.abs(value - rough))

    count = reader.num_factors
    each = f"in each of {count} dimensions" if count > 1 else "in one dimension"
    each += f" and {num_states} states" if reader.anatomy.mixed else ""
    how = f"quadrature, {num_nodes} nodes {each}"
    return Likelihood(how, False, rows, partial(_by_chunk, chunk, size))


def _on_shared_nodes(opened: Opened) -> Likelihood:
    """Bits or ordered levels on up to three factors, on nodes that all rows share."""
    columns: Any = opened.columns
    rows, hollow, count = opened.rows, opened.hollow, opened.reader.num_factors
    size = chunk_of(None, MOST_AT_ONCE[count] ** count + rows.width, rows)

    def evidence(params: Params, arguments: Arguments, fineness: float) -> Array:
        values = hollow.values(params)
        nodes = lax.stop_gradient(one_rule(values, columns.share, fineness))
        table = log_table(columns, values, hollow.responses(arguments), nodes)
        return log_total(table, 0, False)

    def chunk(params: Params, arguments: Arguments, numbers: Array) -> Evidence:
        del numbers
        value, rough = (evidence(params, arguments, x) for x in (1.0, COARSE))
        return Evidence(value, jnp.abs(value - rough))

    how = f"quadrature, nodes that all rows share in {count} dimension{'s' * (count > 1)}"
    return Likelihood(how, False, rows, partial(_by_chunk, chunk, size))


def _modes(reader: FactorReader, params: Params, arguments: Arguments) -> Peaks:
    """Each datum's mode: Newton steps from zero, three at a time, until none moves.

    Mostly six do, and a sampler's draws are scored by the thousand.
    """

    def climbing(carry: tuple[Peaks, Array, Array]) -> Array:
        _, moved, rounds = carry
        return (moved > MOVED) & (rounds < MOST_ROUNDS)

    def further(carry: tuple[Peaks, Array, Array]) -> tuple[Peaks, Array, Array]:
        now, _, rounds = carry
        new = peaks(reader, params, arguments, now.place, 3)
        return new, jnp.abs(new.place - now.place).max(), rounds + 1

    place = reader.start()
    flat = jnp.zeros((*place.shape[:-1], *[reader.num_factors] * 2), place.dtype)
    start = Peaks(place, flat), jnp.asarray(jnp.inf), jnp.asarray(0)
    return lax.while_loop(climbing, further, start)[0]


def _sampled(reader: FactorReader, rows: Rows, num_draws: int) -> Likelihood:
    """Draws from the Gaussian at each datum's mode, a tenth of them three times as wide.

    The wide ones bound the weights where the posterior has heavier tails than its peak suggests.
    """
    factors = reader.num_factors
    size = chunk_of(None, num_draws * rows.width, rows)
    num_wide = max(1, num_draws // 10)
    scale = jnp.where(jnp.arange(num_draws) < num_wide, 3.0, 1.0)[:, None, None]
    share = num_wide / num_draws

    def chunk(params: Params, arguments: Arguments, numbers: Array) -> Evidence:
        count = len(numbers)
        local = reader.at(count)
        modes = peaks(local, params, arguments, local.start(), 15)
        key = random.fold_in(random.key(0), numbers[0])
        # The same draws whatever the digits of the sums.
        points = random.normal(key, (num_draws, count, factors), jnp.float32) * scale
        wide = log_normal(points / 3.0) - factors * math.log(3.0)
        density = jnp.logaddexp(math.log(share) + wide, math.log1p(-share) + log_normal(points))
        moved = about(local, modes, Rule(points, -density))
        log_weights = local.log_joint(params, moved.points, arguments) + moved.log_weights
        return Evidence(*log_mean(log_weights)[:2])

    how = f"importance sampling, {num_draws} draws per row"
    return Likelihood(how, False, rows, partial(_by_chunk, chunk, size), sampled=True)
