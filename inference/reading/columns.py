"""Which argument of a program, and which of its columns, an observed column is.

The program is run where each cell of its arguments holds the number of its column: what it observes
then says where it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


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
            own = seen[:, place]
            same = [
                i
                for i, x in enumerate(leaves)
                if x.dtype == bool and x.shape == leaves[leaf].shape
                and (x.reshape(len(x), -1)[:, column] == own).all()
            ]  # fmt: skip
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
        pairs = zip(sources, columns, strict=True)
        parts = [leaves[i].reshape(leaves[i].shape[0], -1)[:, column] for i, column in pairs]
        return (np if isinstance(parts[0], np.ndarray) else jnp).stack(parts, 1)

    masks = [place.mask for place in places if place.mask is not None]
    return gather([place.leaf for place in places]), gather(masks) if masks else None
