"""Gradient ascent on the log evidence of a program: what the methods that climb have in common.

The evidence is that of `marginal`, by whichever form of the program is cheapest. Parameters move in
their unconstrained space, by any optimiser of NumPyro or optax.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.optim import _NumPyroOptim, optax_to_numpyro

from ...reading.log_joint import log_shared
from ...reading.marginal import row_evidence
from ...reading.reader import Reader, linear_form, open_program
from ...reading.tracing import somewhere
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks, sum_over_chunks
from ...types import Arguments, Params
from ..m_step import transforms
from ..shared import Posterior, check_params, of_first_row
from .partition import normalizer


class Climb(NamedTuple):
    """A program opened on its data, ready to be climbed. Static but for the rows."""

    reader: Reader
    rows: Rows
    chunk_size: int

    @property
    def hollow(self) -> Climb:
        """Without rows: what is compiled takes them as arguments and must not hold any."""
        nothing: Any = None
        return self._replace(rows=nothing)

    def log_likelihood(self, params: Params, model: Callable) -> Array:
        """log p(y_n) of each row, (num_data,), under `model`; see `value_and_grad`."""
        local = self.reader.at(min(self.chunk_size, self.rows.num_data))._replace(model=model)

        part = lambda arguments: self.evidence(local, params, arguments)  # noqa: E731
        return map_over_chunks(part, self.rows, self.chunk_size)

    def evidence(self, reader: Reader, params: Params, arguments: Arguments) -> Array:
        """log p(y_n) of a chunk, (num_data,)."""
        return row_evidence(reader.model, reader.anatomy, params, arguments, reader.structure)

    def value_and_grad(self, params: Params, model: Callable) -> tuple[Array, Params]:
        """The log evidence summed over the data and its gradient, `model` read in place of the
        program: the same but for its normaliser."""
        return self.summed(params, lambda *_: model, None)

    def summed(
        self, params: Params, model_of: Callable[..., Callable], extra: Any
    ) -> tuple[Array, Params]:
        """The same where each chunk has a model of its own, `model_of(arguments, extra, fresh)`."""
        local = self.reader.at(min(self.chunk_size, self.rows.num_data))

        def part(arguments: Arguments, extra: Any, fresh: Array) -> tuple[Array, Params]:
            read = local._replace(model=model_of(arguments, extra, fresh))
            counted = local.times(params, arguments, fresh)
            total = lambda p: jnp.sum(counted * self.evidence(read, p, arguments))  # noqa: E731
            return jax.value_and_grad(total)(params)

        return sum_over_chunks(part, self.rows, self.chunk_size, extra)

    def total_weight(self, params: Params) -> Array | int:
        """The number of rows, those that count more than once by their weights."""
        if not self.reader.anatomy.weighted:
            return self.rows.total
        local = self.reader.at(min(self.chunk_size, self.rows.num_data))

        def part(arguments: Arguments, fresh: Array) -> Array:
            return jnp.sum(local.times(params, arguments, fresh))

        return sum_over_chunks(part, self.rows, self.chunk_size)

    def free(self, params: Params) -> Params:
        """Parameters as unconstrained numbers."""
        return transforms(self.reader.at(1), params, self.rows.slice(0, 1)).free(params)

    def constrain(self, params: Params, like: Params) -> Params:
        """Unconstrained numbers as parameters; `like` are any parameters of the right shapes."""
        return transforms(self.reader.at(1), like, self.rows.slice(0, 1)).constrain(params)

    def prior(self, params: Params) -> Array:
        one = self.reader.at(1)
        return log_shared(one.model, one.anatomy, params, self.rows)


@lru_cache
def without_normalizer(model: Callable) -> Callable:
    """The program with zero for log Z: its form can be read without summing any state."""
    return normalizer(model, lambda _: jnp.zeros(()))


def open_climb(
    model: Callable,
    args: tuple,
    kwargs: dict,
    plate: str | None,
    chunk_size: int | None = None,
) -> Climb:
    """Open a program, and test what form it has."""
    reader, rows = open_program(model, args, kwargs, plate=plate)
    # The states of a row are summed in chunks of their own: what is left is its cells and bits.
    floats = 4 * (rows.width + reader.anatomy.num_bits)
    return Climb(reader, rows, chunk_of(chunk_size, floats, rows))


def near_origin(
    climb: Climb,
    key: Array,
    spread: float,
    given: Params | None,
    start: Any,
    arguments: Arguments,
    optimizer: Any,
) -> tuple[Params, Any]:
    """Where to start: as given or as `start` says, the rest close to the origin at random; and the
    optimiser's state there."""
    args, kwargs = arguments
    climb.reader.anatomy.check_rows_are_all()
    fixed = {**({} if start is None else start(key, *args, **kwargs)), **(given or {})}
    check_params(climb.reader.anatomy, fixed)
    hollow, names = climb.hollow, climb.reader.anatomy.parameters

    def first(rows: Rows, key: Array, fixed: Params) -> tuple[Params, Any]:
        here = hollow._replace(rows=rows)
        like = somewhere(here.reader.model, names, rows.slice(0, 1))
        free = here.free(like)
        keys = random.split(random.fold_in(key, 1), len(free))
        pairs = zip(keys, sorted(free.items()), strict=True)
        small = {name: spread * random.normal(k, value.shape) for k, (name, value) in pairs}
        params = {**here.constrain(small, like), **fixed}
        params = {name: jnp.asarray(value, float) for name, value in params.items()}
        return params, optimizer.init(here.free(params))

    return of_first_row(first, climb.rows, key, fixed)


class Optimizer(Protocol):
    """An optimiser of NumPyro or optax."""

    def init(self, params: Any) -> Any: ...

    def update(self, *args: Any, **kwargs: Any) -> Any: ...


def optimizer_of(given: Any) -> Any:
    """An optimiser with NumPyro's interface, from one of NumPyro or optax, as `SVI` takes them."""
    return given if isinstance(given, _NumPyroOptim) else optax_to_numpyro(given)


def linear_posterior(climb: Climb, params: Params, model: Callable) -> Posterior:
    """The posterior of each row of a linear program, exact."""

    size = min(climb.chunk_size, climb.rows.num_data)
    local = climb.reader.at(size)._replace(model=model)

    def whole(rows: Rows, params: Params) -> Posterior:
        def part(arguments: Arguments) -> Posterior:
            form = linear_form(local, params, arguments)
            nothing = jnp.zeros_like(form.constant)
            return Posterior(
                form.mean, evidence=form.evidence, best=form.best, missed=nothing,
                missed_error=nothing,
            )  # fmt: skip

        return map_over_chunks(part, rows, size)

    return compiled(whole, climb.rows)(climb.rows.leaves, params)
