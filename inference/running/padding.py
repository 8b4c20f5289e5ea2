"""Tables of nearly equal size share what is compiled: their rows are filled up to one of few sizes.

What is filled up with are copies of the first rows, which count for nothing
(`rows.chunks.counting`). The size is a function of the number of rows alone, so that a fit does not
depend on which tables were fitted before. Folds of a cross-validation, resamples and a table that
grows then compile once.

A row must be read by itself for that: only programs that were tested for it are filled up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from ..compiling import known
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import check_kinds, put, rows_of
from ..reading.log_joint import Structure, find_structure
from ..reading.reader import examined
from ..reading.recognition.papers import recognise
from ..rows.chunks import counted, counting
from ..rows.disk import stored

FEW_ROWS = 100
"""Up to here a table has its own size: so few rows compile as little as they take to run."""
MOST_CELLS = 1 << 22
"""Of a table that is filled up: a larger one is worth a compilation of its own, and no copy."""


def size_class(num_rows: int) -> int:
    """The size that a table is filled up to, by less than a tenth; round numbers stay.

    >>> [size_class(n) for n in (99, 101, 200, 803, 1000, 1001, 12_345)]
    [99, 110, 200, 850, 1000, 1100, 13000]
    """
    if num_rows <= FEW_ROWS:
        return num_rows
    unit = 10 ** (len(str(num_rows)) - 2)
    lead = num_rows // (10 * unit)
    step = unit * (1 if lead < 2 else 2 if lead < 5 else 5)
    return -(-num_rows // step) * step


@dataclasses.dataclass(frozen=True)
class Padded:
    """Arguments of a program whose rows were filled up."""

    args: tuple
    kwargs: dict[str, Any]
    num_data: int  # rows that count
    size: int

    def counting(self) -> AbstractContextManager[None]:
        """Inside, the rows that were added count for nothing."""
        return counting(np.int32(self.num_data))

    def cut(self, tree: Any) -> Any:
        """What every array of a result says of the rows that count."""
        if self.size == self.num_data:
            return tree
        # On the host, where it can be: JAX compiles a slice of each length.
        here = lambda x: x if isinstance(x, jax.core.Tracer) else np.asarray(x)  # noqa: E731
        return jax.tree.map(lambda x: put(here(x)[: self.num_data]), tree)

    def fill(self, tree: Any) -> Any:
        """Arrays by row, with what they say of the rows that were added."""
        return jax.tree.map(lambda x: put(_filled(x, self.size)), tree)

    def asked(self, method: Callable[..., Any], params: Any, **how: Any) -> Any:
        """What `method(params, *args, **how, **kwargs)` says of the rows that count."""
        with self.counting():
            return self.cut(method(params, *self.args, **how, **self.kwargs))


def pad(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None = None
) -> Padded | None:
    """The arguments filled up to the size of their class; None for few rows, for very many, where
    it was done already, and for programs that were not found to read each row by itself."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [x for x in leaves if hasattr(x, "shape")]
    unknown = any(isinstance(x, jax.core.Tracer) or stored(x) for x in leaves)
    if unknown or counted() is not None or sum(int(np.size(x)) for x in arrays) > MOST_CELLS:
        return None
    if all(x.shape[:1] == () or len(x) <= FEW_ROWS for x in arrays):
        return None
    check_kinds(args, kwargs)
    kinds = [(x.shape, str(x.dtype)) if hasattr(x, "shape") else x for x in leaves]

    def fill(num_data: int) -> Any:
        mine = [hasattr(x, "shape") and x.shape[:1] == (num_data,) for x in leaves]
        size = size_class(num_data)
        pairs = zip(leaves, mine, strict=True)
        return jax.tree.unflatten(tree, [_filled(x, size) if m else x for x, m in pairs])

    def rows_to_fill() -> int:
        """How many rows there are; zero if they are to stay so many."""
        try:
            anatomy = inspect(model, args, kwargs, plate=plate)
            num_data = anatomy.num_data
            fills = num_data > FEW_ROWS and not anatomy.drawn and not anatomy.outside
            wider = anatomy.with_rows(size_class(num_data))
            same = fills and inspect(model, *fill(num_data), plate=anatomy.plate) == wider
            return num_data if same and _by_itself(model, anatomy, args, kwargs) else 0
        except (ProgramError, ValueError):  # the method says it, in its own words
            return 0

    num_data = known(rows_to_fill, "rows to fill", model, plate, kinds, tree)
    if not num_data:
        return None
    wide_args, wide_kwargs = fill(num_data)
    return Padded(wide_args, wide_kwargs, num_data, size_class(num_data))


def _by_itself(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether the program was tested, row by row: it is one of ours, or of a form in its bits."""
    rows = rows_of(anatomy, args, kwargs)
    if recognise(model, anatomy, rows) is not None:
        return True
    if not anatomy.binary:
        return False
    form = examined(find_structure, model, anatomy, rows)
    return form is not Structure.GENERAL


def _filled(rows: Any, size: int) -> Any:
    if len(rows) == size:
        return rows
    host = np.asarray(rows)
    return np.concatenate([host, host[: size - len(host)]])


def by_row(state: Any, fields: Iterable[str] | None, change: Callable[[Any], Any]) -> Any:
    """A state with what it holds of each row changed: `Padded.cut` or `Padded.fill`."""
    if not fields:
        return state
    return state._replace(**{name: change(getattr(state, name)) for name in fields})
