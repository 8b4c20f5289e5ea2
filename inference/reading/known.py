"""A program that is one of the papers': which site holds what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..types import Arguments
from .columns import Column
from .forms import Form
from .naturals import Seen, observed, run_program
from .reader import findings

Numbers = TypeVar("Numbers", Array, np.ndarray)


class Place(NamedTuple):
    """Where the numbers of one parameter of the form stand in the program."""

    positions: np.ndarray  # in all parameters of the program, laid end to end
    site: str | None  # the site that holds them and nothing else
    turned: bool  # it holds them transposed


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A program that is one of ours. It holds no array of JAX's, and is part of no computation."""

    form: Form
    shapes: dict[str, tuple[int, ...]]  # of the program's parameters
    places: dict[str, Place]  # by the form's names
    sites: tuple[str, ...]  # observed, in the order of the form
    kinds: tuple[Any, ...]  # of each observed column: 'real', 'binary', or its number of levels
    columns: tuple[Column, ...] | None  # None where they are not plain columns of the arguments
    masked: bool  # whether some cells may be missing

    def __repr__(self) -> str:
        names = {role: place.site or "..." for role, place in self.places.items()}
        return f"Known({self.form.value}, {names})"

    def read(self, params: dict[str, Numbers]) -> dict[str, Numbers]:
        """The parameters by the form's names, in its shapes."""
        xp = _library(params)
        values = {}
        for role, place in self.places.items():
            if place.site is not None:
                value = xp.asarray(params[place.site])
                values[role] = value.T if place.turned else value.reshape(place.positions.shape)
            else:
                flat = xp.concatenate([xp.ravel(params[name]) for name in self.shapes])
                values[role] = _taken(flat, place.positions)
        return values

    def write(self, values: dict[str, Numbers]) -> dict[str, Numbers]:
        """The program's parameters, from those by the form's names."""
        if all(place.site is not None for place in self.places.values()):
            params = {}
            for role, place in self.places.items():
                value = values[role].T if place.turned else values[role]
                params[str(place.site)] = value.reshape(self.shapes[str(place.site)])
            return params
        xp = _library(values)
        index = np.concatenate([np.ravel(place.positions) for place in self.places.values()])
        flat = xp.concatenate([xp.ravel(values[role]) for role in self.places])
        flat = _taken(flat, np.argsort(index))
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = xp.split(flat, ends[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def seen(self, model: Callable, arguments: Arguments) -> Seen:
        """What the program observes in these rows."""
        ones = {name: jnp.ones(shape) for name, shape in self.shapes.items()}
        trace = run_program(model, arguments, ones)
        return observed([trace[name] for name in self.sites])


def recall(model: Callable, params: Mapping[str, Array | np.ndarray]) -> Known | None:
    """What a program with parameters of these shapes was recognised as before, if it was."""
    shapes = {name: np.shape(value) for name, value in params.items()}
    matches = [x for x in findings(model) if isinstance(x, Known) and x.shapes == shapes]
    return matches[0] if matches else None


def _library(params: Mapping[str, Array | np.ndarray]) -> Any:
    """NumPy where all are its own: JAX would round them."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in params.values()) else jnp


def _taken(flat: Any, positions: np.ndarray) -> Any:
    """Some numbers by their places, which are all from 0 up: JAX need not look for others."""
    if isinstance(flat, np.ndarray):
        return flat[positions]
    return flat.at[positions].get(mode="promise_in_bounds", wrap_negative_indices=False)
