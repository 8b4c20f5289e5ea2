"""Tables padded to one of few sizes, so that tables of nearly equal size share what is compiled.

The rows that are added repeat the first ones and have weight zero (`chunks.counting`). The size is
a function of the number of rows alone, so that a fit does not depend on which tables were fitted
before. Folds of a cross-validation, resamples and a table that grows then compile once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

from .chunks import counting

FEW_ROWS = 100
"""A table of no more rows keeps its size: it compiles in little more time than it runs."""
MOST_CELLS = 1 << 22
"""A table of more cells keeps its size: it is worth a compilation of its own, and no copy."""


def size_class(num_rows: int) -> int:
    """The size that a table is padded to, by less than a tenth; round numbers stay.

    >>> [size_class(n) for n in (99, 101, 200, 803, 1000, 1001, 12_345)]
    [99, 110, 200, 850, 1000, 1100, 13000]
    """
    if num_rows <= FEW_ROWS:
        return num_rows
    unit = 10 ** (len(str(num_rows)) - 2)
    lead = num_rows // (10 * unit)
    step = unit * (1 if lead < 2 else 2 if lead < 5 else 5)
    return -(-num_rows // step) * step


class Padded(NamedTuple):
    """Arguments of a program with rows of weight zero at the end."""

    args: tuple
    kwargs: dict[str, Any]
    num_data: int  # rows of weight one
    size: int

    def counting(self) -> AbstractContextManager[None]:
        """A context in which the rows that were added have weight zero."""
        return counting(np.int32(self.num_data))

    def cut(self, tree: Any) -> Any:
        """Arrays by row without the rows that were added."""
        return jax.tree.map(lambda x: x[: self.num_data], tree)

    def fill(self, tree: Any) -> Any:
        """Arrays by row, padded as the arguments are."""

        def longer(x: Any) -> Any:
            return x if len(x) == self.size else np.resize(x, (self.size, *x.shape[1:]))

        return jax.tree.map(longer, tree)

    def asked(self, method: Callable[..., Any], params: Any, **how: Any) -> Any:
        """`method(params, *args, **how, **kwargs)` without the rows that were added."""
        with self.counting():
            return self.cut(method(params, *self.args, **how, **self.kwargs))


def padded(
    args: tuple, kwargs: dict[str, Any], num_data: int, size: int | None = None
) -> Padded | None:
    """The arguments with their rows padded; None for few rows and for very many.

    :param size: to so many rows, however few there are; None: to `size_class`.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    rows = [hasattr(x, "shape") and x.shape[:1] == (num_data,) for x in leaves]
    cells = sum(int(x.size) for x, mine in zip(leaves, rows, strict=True) if mine)
    if size is None and (num_data <= FEW_ROWS or cells > MOST_CELLS):
        return None
    wide = Padded(args, kwargs, num_data, size or size_class(num_data))
    filled = [wide.fill(x) if mine else x for x, mine in zip(leaves, rows, strict=True)]
    args, kwargs = jax.tree.unflatten(tree, filled)
    return wide._replace(args=args, kwargs=kwargs)


def by_row(state: Any, fields: Iterable[str] | None, change: Callable[[Any], Any]) -> Any:
    """A state whose fields by row are changed by `Padded.cut` or `Padded.fill`."""
    if not fields:
        return state
    return state._replace(**{name: change(getattr(state, name)) for name in fields})
