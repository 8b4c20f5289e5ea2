"""A program with continuous latents on its data: recognised or not, with what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ...reading.anatomy import Anatomy
from ...reading.log_joint import anywhere, log_density_of, stand_in
from ...reading.probe import probe
from ...reading.reader import examined
from ...reading.recognition.papers import Form, Known, recognise
from ...rows.chunks import Rows
from ...rows.disk import pieces
from ...types import Arguments, Params
from .factors import ClosedColumns, FactorReader, open_factors
from .graded import Graded
from .regressions import Regressions, Responses

Prior = Callable[[Params], Array]
"""The log prior density of parameters."""


class Opened(NamedTuple):
    """A program on its data, and what is known of its form."""

    reader: FactorReader
    rows: Rows
    known: Known | None
    columns: Regressions | None  # where the closed forms apply

    @property
    def hollow(self) -> Opened:
        """Without rows: what is compiled takes them as arguments and must not hold any."""
        nothing: Any = None
        return self._replace(rows=nothing)

    def separable(self, prior: bool) -> bool:
        """Whether parameters have priors of their own, independent of each other, if any is to be
        used."""
        reader = self.reader
        return not prior or examined(_separable, reader.model, reader.anatomy, self.rows)

    @property
    def turns(self) -> bool:
        """Whether a rotation of the factors leaves the log prior as it is."""
        reader, known = self.reader, self.known
        if known is None or known.form not in FORMS:
            return False
        return examined(_turns, reader.model, reader.anatomy, self.rows)

    def values(self, params: Params) -> Params:
        """The parameters by the names of the closed forms."""
        assert self.known is not None and self.columns is not None
        return self.columns.read(self.known.read(params))

    def write(self, values: Params) -> Params:
        """The program's parameters, from those by the names of the closed forms."""
        assert self.known is not None and self.columns is not None
        return self.known.write(self.columns.written(values))

    def responses(self, arguments: Arguments) -> Responses:
        """The data of a chunk as its predictors see them."""
        assert self.known is not None and self.columns is not None
        return self.columns.responses(*self.known.cells(self.reader.model, arguments))


def open_columns(
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    plate: str | None,
    prior: bool = False,
    mixed: bool = False,
) -> Opened:
    """Inspect a program on its data, and recognise the columns that it regresses on its factors.

    :param prior: the priors of the parameters are to be used: the closed forms want one for each
        number, independent of the others.
    :param mixed: a datum may have discrete latents too.
    """
    return recognised(*open_factors(model, args, kwargs, plate, mixed), prior)


def recognised(reader: FactorReader, rows: Rows, prior: bool = False) -> Opened:
    """Recognise the columns that a program regresses on its factors; see `open_columns`."""
    model = reader.model
    known = None
    if not reader.anatomy.mixed:
        known = recognise(model, reader.anatomy, rows, FORMS)
    opened = Opened(reader, rows, known, None)
    columns: Regressions | None = None
    if known is not None and known.form is Form.TRAIT and opened.separable(prior):
        columns = Regressions(known.kinds)
    if known is not None and known.form is Form.GRADED and not prior:
        columns = Graded.of(known.kinds)
    if known is None or columns is None:
        return opened
    closed = ClosedColumns(model, known, columns)
    return opened._replace(reader=reader._replace(closed=closed), columns=columns)


FORMS = (Form.TRAIT, Form.CLIPPED, Form.GRADED, Form.GUESSING)
"""Factors of these are identified up to a rotation."""


def _separable(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Whether the Hessian of the log prior is diagonal: H z = (H 1) z for a random z."""

    def error(density: Prior, params: Params) -> Array:
        along = lambda z: jax.jvp(jax.grad(density), (params,), (z,))[1]  # noqa: E731
        z = jax.tree.map(lambda x: jnp.sin(1.0 + jnp.arange(x.size)).reshape(x.shape), params)
        bent, each = along(z), along(jax.tree.map(jnp.ones_like, params))
        gaps = [jnp.abs(bent[name] - each[name] * z[name]).max() for name in params]
        return jnp.stack(gaps).max()

    return _prior_error(error, model, anatomy, rows) <= 1e-9


def _turns(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Whether the log prior is the same after a rotation of the factors."""
    known: Any = recognise(model, anatomy, rows, FORMS)

    def error(density: Prior, params: Params) -> Array:
        values = known.read(params)
        size = len(values["weights"])
        turn = jnp.linalg.qr(random.normal(random.key(1), (size, size)))[0]
        turn = -jnp.eye(1) if size == 1 else turn
        turned = known.write({**values, "weights": turn @ values["weights"]})
        return jnp.abs(density(turned) - density(params))

    return _prior_error(error, model, anatomy, rows) <= 1e-6


def _prior_error(
    error: Callable[[Prior, Params], Array], model: Callable, anatomy: Anatomy, rows: Rows
) -> float:
    """`error(log prior, params)` at random parameters, in float64; the data do not matter."""
    with jax.enable_x64(True):
        leaves = [stand_in(x, 1, i) for i, x in enumerate(rows.leaves)]
        one = anatomy.with_rows(1)

        def claim(leaves: list[Array]) -> Array:
            arguments = rows.join(leaves)
            params = anywhere(model, one, random.key(0), arguments)
            return error(lambda p: log_density_of(model, one.parameters, p, arguments), params)

        return float(probe(claim, [(leaves,)])[0])


def check_columns(known: Known, rows: Rows, prior: bool) -> None:
    """Refuse levels that there are not, and columns that say nothing unless a prior does.

    :param prior: whether the parameters have priors that keep them finite.
    """
    if known.columns is None or any(isinstance(x, jax.core.Tracer) for x in rows.leaves):
        return
    leaves = [np.asarray(x).reshape(rows.num_data, -1) for x in rows.leaves]
    several = len({column.leaf for column in known.columns}) > 1
    looks = [
        _Look(place.leaf, place.column, place.mask, kind, f"argument {place.leaf + 1}, " * several)
        for place, kind in zip(known.columns, known.kinds, strict=True)
    ]
    for piece in pieces(max(leaves, key=np.size)):
        blocks = [np.array(leaf[piece]) for leaf in leaves]
        for look in looks:
            look.at(piece.start, blocks)
    for look in sorted(looks, key=lambda look: (look.leaf, look.column)):
        look.judge(prior)


class _Look:
    """What was seen of one column so far."""

    def __init__(self, leaf: int, column: int, mask: int | None, kind: Any, where: str):
        self.leaf, self.column, self.mask, self.kind = leaf, column, mask, kind
        self.name = f"{where}column {column}"
        self.levels = 2 if kind == "binary" else None if kind == "real" else int(kind)
        self.values: set = set()  # all levels that were met; of real values the first two

    def at(self, start: int, blocks: list[np.ndarray]) -> None:
        data = blocks[self.leaf]
        rows = np.arange(len(data))
        if self.mask is not None:
            rows = np.flatnonzero(blocks[self.mask][:, self.column])
        values = data[rows, self.column]
        if self.levels is None:
            if len(values) and len(self.values) < 2:
                self.values |= {values[0], values[np.argmax(values != values[0])]}
            return
        wrong = (values < 0) | (values >= self.levels) | (values != np.floor(values))
        if wrong.any():
            bad = int(np.argmax(wrong))
            levels = self.levels
            wanted = "0 or 1" if levels == 2 else f"a level from 0 to {levels - 1}"
            raise ValueError(
                f"row {start + rows[bad]}, {self.name} holds {values[bad]}: wanted {wanted}"
            )
        met = np.bincount(values.astype(int), minlength=self.levels)
        self.values |= set(np.flatnonzero(met))

    def judge(self, prior: bool) -> None:
        if not self.values:
            raise ValueError(f"{self.name} has no observed cell: leave it out")
        if prior:
            return
        advice = "leave it out, or keep its parameters finite with prior=True"
        if self.levels in (None, 2):
            if len(self.values) < 2:
                (only,) = self.values
                raise ValueError(f"{self.name} is {only} in every row: {advice}")
            return
        missing = set(range(self.levels or 0)) - self.values
        if missing:
            raise ValueError(
                f"{self.name} never shows level {min(missing)} of {self.kind}: {advice}"
            )
