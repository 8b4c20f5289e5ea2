"""Rows that stay on disk: a memory map is read a chunk at a time, when a chunk is wanted.

An argument that is a `numpy.memmap` is never loaded as a whole. What is compiled calls back to the
host for one chunk after the other, so that memory holds a chunk however many rows there are. What
is no memory map yet (a Parquet file, an iterator of chunks) is written to one first: see
`ppl_models.data.on_disk`.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

HOST_CELLS = 1 << 21
"""Cells read together where the host checks them."""


@dataclasses.dataclass(frozen=True, eq=False)
class OnDisk:
    """Rows `offset` to `offset + num_rows` of a file; beyond its end, the last row again."""

    file: np.ndarray
    num_rows: int
    offset: Array | int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, *self.file.shape[1:])

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> Any:
        """As JAX will have them: float64 is read as float32 unless it was enabled."""
        return jnp.asarray(np.zeros(0, self.file.dtype)).dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The file itself, as the host sees it: a view, nothing is read."""
        return np.asarray(self.file, dtype)

    def rows(self, start: Array | int, size: int) -> Array:
        """Rows start to start + size; inside of what is compiled too."""
        wanted = jax.ShapeDtypeStruct((size, *self.file.shape[1:]), self.dtype)
        read = partial(_read, self.file, size, wanted.dtype)
        return jax.pure_callback(read, wanted, self.offset + start, vmap_method="sequential")

    def take(self, indices: Array) -> Array:
        """The rows with these numbers."""
        wanted = jax.ShapeDtypeStruct((*indices.shape, *self.file.shape[1:]), self.dtype)

        def pick(indices: Array) -> np.ndarray:
            return self.file[np.asarray(indices)].astype(wanted.dtype)

        return jax.pure_callback(pick, wanted, self.offset + indices, vmap_method="sequential")


def _read(file: np.ndarray, size: int, dtype: Any, start: Array) -> np.ndarray:
    begin = int(start)
    if begin + size <= len(file):
        return np.array(file[begin : begin + size], dtype)
    return np.array(file[np.minimum(np.arange(begin, begin + size), len(file) - 1)], dtype)


def stored(x: Any) -> bool:
    """Whether an argument stays on disk."""
    return isinstance(x, np.memmap | OnDisk)


def as_stored(x: Any) -> OnDisk:
    return x if isinstance(x, OnDisk) else OnDisk(x, len(x))


def pieces(x: Any) -> list[slice]:
    """The rows of an argument, a few megabytes at a time.

    >>> pieces(np.zeros((5, HOST_CELLS // 2)))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    size = max(1, HOST_CELLS // max(1, int(np.prod(x.shape[1:]))))
    return [slice(start, start + size) for start in range(0, len(x), size)]


def shape_of(x: Any) -> jax.ShapeDtypeStruct:
    """What an abstract run knows of an argument on disk."""
    return jax.ShapeDtypeStruct(x.shape, as_stored(x).dtype)
