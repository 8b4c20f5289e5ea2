"""A program that is one of the papers': which site holds what, and which column of its arguments.

To learn the latter, it is run where each cell of its arguments holds the number of its column: what
it observes then says where it came from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..types import Arguments
from .forms import Form
from .naturals import Seen, observed, run_program
from .reader import findings


class Column(NamedTuple):
    """Where an observed column comes from."""

    leaf: int  # which of the arguments with an entry for each row
    column: int
    mask: int | None  # the argument that says in which rows it was observed, at the same column


def codes(leaves: list[np.ndarray], shift: int) -> list[np.ndarray]:
    """The arguments with a number in each cell that says which column it stands in.

    >>> int(codes([np.zeros((1, 200), np.int8)], 0)[0].max())
    201
    """
    coded, start = [], 2
    total = start + sum(x[0].size for x in leaves)
    for leaf in leaves:
        if _hides(leaf, leaves):
            coded.append(leaf)
            continue
        number = np.arange(start, start + leaf[0].size).reshape(leaf.shape[1:]) + shift * total
        # A byte would not hold the numbers of more than some hundred columns.
        kind = np.int32 if leaf.dtype.kind in "biu" and leaf.itemsize < 4 else leaf.dtype
        coded.append(np.broadcast_to(number, leaf.shape).astype(kind))
        start += leaf[0].size
    return coded


def _hides(leaf: np.ndarray, leaves: list[np.ndarray]) -> bool:
    """Whether it may say which cells were observed: alone, it is the data."""
    return leaf.dtype == bool and len(leaves) > 1


def columns(
    leaves: list[np.ndarray], coded: Sequence[np.ndarray], seen: np.ndarray | None
) -> tuple[Column, ...] | None:
    """Which column of which argument each observed one is; None where they are not plain columns.

    :param coded: what the program observes where the arguments are `codes` of shift 0 and 1.
    :param seen: which cells are observed, where the arguments are `leaves`.
    """
    total = 2 + sum(x[0].size for x in leaves)
    first, second = coded
    if (second - first != total).any() or (first != first[:1]).any():
        return None
    starts = np.cumsum([2, *(0 if _hides(x, leaves) else x[0].size for x in leaves)])
    matched = []
    for place, code in enumerate(first[0].astype(int)):
        leaf = int(np.searchsorted(starts, code, side="right")) - 1
        column, mask = int(code - starts[leaf]), None
        if leaves[leaf].ndim > 2:
            return None
        if seen is not None:
            own, shape = seen[:, place], leaves[leaf].shape
            masks = [i for i, x in enumerate(leaves) if x.dtype == bool and x.shape == shape]
            flat = {i: leaves[i].reshape(len(own), -1)[:, column] for i in masks}
            same = [i for i, x in flat.items() if (x == own).all()]
            if len(same) != 1:
                return None
            (mask,) = same
        matched.append(Column(leaf, column, mask))
    return tuple(matched)


def taken(places: Sequence[Column], leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The observed columns and what says where they were observed, as they lie in the arguments.

    An argument that is all of them is handed on as it is, also where it is a file.
    """
    columns = [place.column for place in places]

    def gather(sources: list[int]) -> Any:
        first = leaves[sources[0]]
        if len(set(sources)) == 1 and columns == list(range(int(np.prod(first.shape[1:])))):
            return first if len(first.shape) > 1 else first[:, None]
        if len(set(sources)) == 1:
            return first.reshape(first.shape[0], -1)[:, np.array(columns)]
        pairs = zip(sources, columns, strict=True)
        parts = [leaves[i].reshape(leaves[i].shape[0], -1)[:, column] for i, column in pairs]
        return (np if isinstance(parts[0], np.ndarray) else jnp).stack(parts, 1)

    masks = [place.mask for place in places if place.mask is not None]
    return gather([place.leaf for place in places]), gather(masks) if masks else None


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
    by_row: tuple[int, ...]  # which of the arguments have an entry for each row

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
        parts = zip(self.shapes.items(), xp.split(flat, ends[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def seen(self, model: Callable, arguments: Arguments) -> Seen:
        """What the program observes in these rows."""
        ones = {name: jnp.ones(shape) for name, shape in self.shapes.items()}
        trace = run_program(model, arguments, ones)
        return observed([trace[name] for name in self.sites])

    def cells(self, model: Callable, arguments: Arguments) -> Seen:
        """The same numbers, of whichever type, as they lie in the arguments where they do: not to
        run the program is less to trace."""
        if self.columns is None:
            return self.seen(model, arguments)
        leaves = jax.tree.leaves(arguments)
        return Seen(*taken(self.columns, [leaves[i] for i in self.by_row]))


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
