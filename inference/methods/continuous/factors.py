"""Programs with continuous latents: points and weights in place of a table of states.

The evidence of a datum is an integral over its latents x. Any rule of points :math:`x_s` and
weights turns it into a sum, and the program is run on the points as on states:

    log p(y_n) ≈ logsumexp_s [ log p(y_n, x_s) + log weight_s ]

Gauss–Hermite points about each datum's mode make the rule exact for smooth programs in a few
dimensions; prior draws make it the Monte-Carlo estimate, in any. Where a datum has discrete latents
too, it has a mode in each of their states, and the points about all modes are one rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions.distribution import validation_enabled

from ...numerics.gaussian import log_normal
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.arguments import rows_of
from ...reading.log_joint import Structure, log_joint, quadratic_part, row_weights
from ...reading.reader import check_data, inspect_all
from ...reading.recognition.papers import Known
from ...reading.states import AllStates
from ...rows.chunks import Rows
from ...running.contract import Posterior
from ...types import Arguments, Params
from .regressions import Regressions, Responses, point_log_likelihood, slope_and_bend


class ClosedColumns(NamedTuple):
    """The log joint of a recognised program, and its slopes, written out."""

    model: Callable
    known: Known
    columns: Regressions
    rows: Responses | None = None  # where they are read already

    def ready(self, arguments: Arguments) -> ClosedColumns:
        """The same for these rows alone, which are read once and not whenever they are used."""
        return self._replace(rows=self._responses(arguments))

    def log_joint(self, params: Params, points: Array, arguments: Arguments) -> Array:
        log_likelihood = point_log_likelihood(self.columns, *self._read(params, arguments), points)
        return log_likelihood + log_normal(points)

    def bend(self, params: Params, place: Array, arguments: Arguments) -> tuple[Array, Array]:
        return slope_and_bend(self.columns, *self._read(params, arguments), place)

    def _read(self, params: Params, arguments: Arguments) -> tuple[Params, Responses]:
        values = self.columns.read(self.known.read(params))
        return values, self._responses(arguments) if self.rows is None else self.rows

    def _responses(self, arguments: Arguments) -> Responses:
        return self.columns.responses(*self.known.cells(self.model, arguments))


class FactorReader(NamedTuple):
    """A program whose latents are continuous. Static: it holds no arrays."""

    model: Callable
    anatomy: Anatomy
    closed: ClosedColumns | None = None  # where the program was recognised; else it is run

    def at(self, num_data: int) -> FactorReader:
        """The reader of a chunk of `num_data` rows."""
        return self._replace(anatomy=self.anatomy.with_rows(num_data))

    def ready(self, arguments: Arguments) -> FactorReader:
        """The reader of these rows alone: it holds what is read of them."""
        return self if self.closed is None else self._replace(closed=self.closed.ready(arguments))

    def log_joint(self, params: Params, points: Array, arguments: Arguments) -> Array:
        """log p(y_n, x) at points (S, num_data or 1, Q): (S, num_data)."""
        if self.closed is not None:
            return self.closed.log_joint(params, points, arguments)
        return log_joint(self.model, self.anatomy, params, points, arguments)

    def times(self, params: Params, arguments: Arguments, fresh: Array) -> Array:
        """How often each row of a chunk counts, `fresh` being 1 for those that do."""
        weight = row_weights(self.model, self.anatomy.with_rows(len(fresh)), params, arguments)
        return fresh if weight is None else fresh * weight

    def bend(self, params: Params, place: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Gradient (..., q) of log p(y_n, x) in the continuous latents, and minus its Hessian
        (..., q, q), at x = `place`, (num_data, Q) or (S, num_data, Q)."""
        if self.closed is not None:
            return self.closed.bend(params, place, arguments)
        nowhere = jnp.zeros((*place.shape[:-1], self.num_factors), place.dtype)

        def function(by: Array) -> Array:
            points = self.moved(place, by).reshape(-1, *place.shape[-2:])
            return self.log_joint(params, points, arguments)

        with validation_enabled(False):  # as of the points to which such a step leads
            _, slope, hessian = quadratic_part(function, nowhere)
        return slope, -hessian

    def moved(self, place: Array, by: Array) -> Array:
        """Latents (..., Q), of which the continuous ones are moved by (..., q)."""
        if not self.anatomy.mixed:
            return place + by
        parts, start, used = [], 0, 0
        for latent in self.anatomy.latents:
            part, start = place[..., start : start + latent.size], start + latent.size
            if latent.num_values is None:
                part, used = part + by[..., used : used + latent.size], used + latent.size
            parts.append(jnp.broadcast_to(part, (*by.shape[:-1], latent.size)))
        return jnp.concatenate(parts, -1)

    @property
    def num_factors(self) -> int:
        """How many continuous latents a datum has."""
        return int(self.continuous.sum())

    @property
    def continuous(self) -> np.ndarray:
        """Which latents of a datum are, (Q,)."""
        return np.concatenate([np.full(x.size, x.num_values is None) for x in self.anatomy.latents])

    @property
    def origin(self) -> np.ndarray:
        """Where climbs begin: zero, (Q,), or zero in each state of the discrete latents, (K, Q)."""
        if not self.anatomy.mixed:
            return np.zeros(self.num_factors)
        sizes = [x.num_values or 1 for x in self.anatomy.latents for _ in range(x.size)]
        return AllStates().table(sizes).astype(float) + self.anatomy.lowest

    @property
    def num_states(self) -> int:
        """Of the discrete latents of a datum."""
        return math.prod((x.num_values or 1) ** x.size for x in self.anatomy.latents)

    def start(self) -> Array:
        """Where the climb of each row begins, (num_data, Q) or (num_data, K, Q)."""
        return jnp.broadcast_to(self.origin, (self.anatomy.num_data, *self.origin.shape))

    def per_value(self, probability: Array) -> dict[str, Array]:
        """Discrete site -> the probability of its values, (num_data, ..., num_values).

        :param probability: of the points of a rule, (K · S, num_data): state by state.
        """
        if not self.anatomy.mixed:
            return {}
        each = probability.reshape(self.num_states, -1, probability.shape[-1]).sum(1)
        tables, place = {}, 0
        for latent in self.anatomy.latents:
            here = slice(place, place + latent.size)
            place += latent.size
            if latent.num_values is None:
                continue
            hot = self.origin[:, here, None] == latent.lowest + np.arange(latent.num_values)
            table = jnp.einsum("kn,kiv->niv", each, jnp.asarray(hot, each.dtype))
            tables[latent.name] = table.reshape(-1, *latent.datum_shape, latent.num_values)
        return tables

    @property
    def structure(self) -> Structure:
        """As other readers have it: whatever the form, the program is run on the points."""
        return Structure.GENERAL


FactorPosterior = Posterior
"""The posterior of each datum's factors: another name of `Posterior`."""


def not_continuous(anatomy: Anatomy, *, mixed: bool = False) -> str | None:
    """Why a program is no case for these methods, or None.

    :param mixed: a datum may have discrete latents too.
    """
    if not anatomy.latents:
        return "no latent in the data plate"
    for latent in anatomy.latents:
        if latent.odd:
            return f"{latent.name}: {latent.odd}"
    if mixed and anatomy.mixed:
        return None
    discrete = [x.name for x in anatomy.latents if x.num_values is not None]
    return f"{discrete[0]} is discrete: sum over its states instead" if discrete else None


def open_factors(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None, mixed: bool = False
) -> tuple[FactorReader, Rows]:
    """Inspect a program on its data; refuse it, by name, before any work."""
    check_data(args, kwargs)
    model, anatomy = inspect_all(model, args, kwargs, plate)
    problem = not_continuous(anatomy, mixed=mixed)
    if problem:
        raise ProgramError(f"this method is for continuous latents: {problem}")
    anatomy.check_observed()
    anatomy.check_rows_are_apart()
    return FactorReader(model, anatomy), rows_of(anatomy, args, kwargs)
