"""What every program here shares: its data plate, and observing with holes.

A program is a plain NumPyro function

    def model(data=None, *, mask=None, num_data=None, <sizes>, <priors>)

that simulates when ``data`` is None. Two things recur in all of them and are written once.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.primitives import plate


def data_plate(data: Array | None, num_data: int | None) -> plate:
    """The plate ``"data"``: one row, one datum.

    With both arguments, ``data`` are a minibatch of ``num_data`` rows and the plate scales the log
    density accordingly, as NumPyro's own subsampling does.
    """
    if data is None:
        if num_data is None:
            raise ValueError("give `data`, or `num_data` to simulate that many rows")
        return numpyro.plate("data", num_data, dim=-1)
    rows = jnp.shape(data)[0]
    if num_data is None or num_data == rows:
        return numpyro.plate("data", rows, dim=-1)
    if num_data < rows:
        raise ValueError(
            f"`num_data` is {num_data}, but `data` has {rows} rows: it must not be less"
        )
    # Which rows are at hand is the caller's choice: there is nothing to draw, so no key is needed.
    with handlers.substitute(data={"data": jnp.arange(rows)}):
        return numpyro.plate("data", num_data, subsample_size=rows, dim=-1)


def num_columns(data: Array | None, num_features: int | None) -> int:
    """The number of observed columns: that of ``data``, or ``num_features`` to simulate."""
    if data is None:
        if num_features is None:
            raise ValueError("give `data`, or `num_features` to simulate that many columns")
        return num_features
    if jnp.ndim(data) != 2:
        raise ValueError(f"`data` must be (num_data, num_features), found shape {jnp.shape(data)}")
    columns = jnp.shape(data)[1]
    if num_features is not None and num_features != columns:
        raise ValueError(f"`num_features` is {num_features}, but `data` has {columns} columns")
    return columns


def observe(fn: dist.Distribution, data: Array | None, mask: Array | None) -> Array:
    """The site ``"observed"``: independent columns, of which the masked ones do not count.

    :param fn: a distribution whose last batch axis is the columns.
    :param mask: True where a cell was observed, shape (num_data, num_features).
    """
    if mask is not None:
        if data is not None and jnp.shape(mask) != jnp.shape(data):
            raise ValueError(
                f"`mask` has shape {jnp.shape(mask)}, but `data` has shape {jnp.shape(data)}"
            )
        fn = fn.mask(mask)
    return numpyro.sample("observed", fn.to_event(1), obs=data)
