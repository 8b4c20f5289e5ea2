"""A clipped Gaussian by its form: its noise, its bits, and parameters of any number of factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...reading.abstract import innermost
from ...reading.anatomy import ProgramError
from ...reading.naturals import run_program
from ...reading.probe import probe
from ...reading.recognise import Known
from ...rows.chunks import Rows
from ...rows.disk import pieces
from ...types import Params


def noise_of(known: Known, model: Callable, rows: Rows) -> np.ndarray:
    """What the program adds before the clip, (num_features,): a setting, so a number here."""
    shapes, names = known.shapes, known.sites

    def scales(leaves: list[Array]) -> list[Array]:
        ones = {name: jnp.ones(shape) for name, shape in shapes.items()}
        trace = run_program(model, rows.join(leaves), ones)
        sites = [trace[name]["fn"] for name in names]
        return [jnp.broadcast_to(innermost(fn).scale, fn.shape()).ravel() for fn in sites]

    one = [np.zeros((1, *x.shape[1:]), x.dtype) for x in rows.leaves]
    return np.concatenate(probe(scales, [(one,)])[0])


def write(known: Known, values: Params) -> Params:
    """The program's parameters, of any number of factors."""
    if all(values[role].shape == x.positions.shape for role, x in known.places.items()):
        return known.write(values)
    return {site: values[x].T if turned else values[x] for x, site, turned in _sites(known)}


def read(known: Known, params: Params) -> Params:
    """The other way round."""
    if {site: np.shape(x) for site, x in params.items()} == known.shapes:
        return known.read(params)
    return {x: params[site].T if turned else params[site] for x, site, turned in _sites(known)}


def _sites(known: Known) -> Iterator[tuple[str, str, bool]]:
    """What the form calls it, the site that holds it, and whether transposed: the number of factors
    that the spectrum has need not be that of the program as it was opened."""
    for role, (positions, site, turned) in known.places.items():
        if site is None:
            raise ProgramError(
                f"the {role} are spread over several sites, so their number cannot change: give "
                "the program as many factors as it is to have"
            )
        shape, own = known.shapes[site], positions.shape
        yield role, site, turned or shape == own[::-1] != own


def check_bits(data: Any, mask: Any) -> None:
    """Refuse data other than 0/1 by row and column."""
    if isinstance(data, jax.core.Tracer):
        return
    known = None if mask is None or isinstance(mask, jax.core.Tracer) else np.asarray(mask)
    cells = np.asarray(data)  # of a file a view: nothing is read
    for piece in pieces(cells):
        values = np.asarray(cells[piece])
        bad = (values != 0) & (values != 1)
        if known is not None:
            bad &= known[piece]
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"data holds {values[row, column]} in row {piece.start + row}, column {column}: "
                "wanted 0 or 1"
            )
