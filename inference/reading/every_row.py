"""A plate that draws its rows (`subsample_size`), read on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from numpyro.primitives import Messenger

from .anatomy import Anatomy, inspect


# A method that deals with rows itself, chunk by chunk or a batch a step, wants them all: which rows
# a plate would have drawn is the business of SVI.
class _EveryRow(Messenger):
    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


def every_row(model: Callable) -> Callable:
    """The program with all rows in each of its plates.

    >>> import numpyro, numpyro.distributions as dist
    >>> from latentbits import inspect
    >>> def drawn(data):
    ...     with numpyro.plate("data", len(data), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(0.0, 1.0), obs=data[rows])
    >>> [inspect(program, (jnp.zeros(9),)).num_data for program in (drawn, every_row(drawn))]
    [2, 9]
    """
    return _EveryRow(model)


def inspect_all(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None = None
) -> tuple[Callable, Anatomy]:
    """The program on all its rows, and what it consists of."""
    anatomy = inspect(model, args, kwargs, plate=plate)
    if not anatomy.drawn:
        return model, anatomy
    return (whole := every_row(model)), inspect(whole, args, kwargs, plate=plate)
