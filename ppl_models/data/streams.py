"""Tables larger than memory: rows that stay on disk, as the memory maps that every method takes.

A ``.npy`` file is mapped where it lies. A Parquet file and an iterator of chunks are read once,
batch by batch, checked as `load_table` checks them, and written to a temporary file: a byte for a
cell of a binary table, four for a real one. Memory holds one batch.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .array_tables import matrix, read_npy, read_parquet
from .cells import Cells, complain, user_path
from .encoding import Encoded, encode
from .tables import check_file

BATCH_ROWS = 1 << 16
"""Rows of a Parquet file that are in memory at a time."""


class Stored(NamedTuple):
    """A table on disk: ``method.run(key, steps, table.values, mask=table.mask)``.

    >>> table = on_disk([np.array([[0.0, 1.0], [1.0, np.nan]])])
    >>> table.columns, table.values.tolist(), table.mask.tolist()[1]
    (('x1', 'x2'), [[0, 1], [1, 0]], [True, False])
    """

    values: np.memmap
    """(num_data, num_features): uint8 or float32; as the file has them if it is a ``.npy``"""
    mask: np.memmap | None
    """(num_data, num_features), bool: True where a cell was observed; None if all were"""
    columns: tuple[str, ...]
    """names: those of the file, or x1, x2, …"""


def on_disk(
    source: str | PathLike[str] | Iterable[Any],
    *,
    kind: Literal["binary", "real"] = "binary",
    folder: str | PathLike[str] | None = None,
) -> Stored:
    """A table that stays on disk.

    :param source: a ``.npy`` file of numbers 0/1 (or any, if real), a ``.parquet`` file, or an
        iterator of chunks (rows, num_features), in which NaN is a missing cell.
    :param kind: "binary", or "real" for any finite numbers.
    :param folder: where the temporary file goes that is written unless `source` is a ``.npy`` file;
        it is removed when nothing holds the table any more.
    :raises InputError: one line, as from `load_table`.

    >>> chunks = (np.full((4, 3), i % 2) for i in range(5))
    >>> table = on_disk(chunks)
    >>> table.values.shape, table.values.dtype.name, table.mask is None
    ((20, 3), 'uint8', True)
    """
    if kind not in ("binary", "real"):
        raise ValueError(f"`kind` must be 'binary' or 'real', found {kind!r}")
    if isinstance(source, str | PathLike):
        path = user_path(source)
        check_file(path)
        if path.suffix.lower() == ".npy":
            cells = read_npy(path)
            if not cells.array:
                raise complain(path, "holds words: rows that stay on disk are numbers")
            return Stored(cells.cells, None, cells.columns)
        if path.suffix.lower() != ".parquet":
            raise complain(path, "rows stay on disk for .npy and .parquet files: use load_table")
        return _write(path, read_parquet(path, BATCH_ROWS), kind, folder)
    return _write(Path("the iterator"), _chunks(source), kind, folder)


def _chunks(source: Iterable[Any]) -> Iterator[Cells]:
    row = 1
    for chunk in source:
        yield matrix(Path("the iterator"), np.asarray(chunk), row=row)
        row += len(chunk)


def _write(
    path: Path, batches: Iterator[Cells], kind: str, folder: str | PathLike[str] | None
) -> Stored:
    place = tempfile.TemporaryDirectory(
        prefix="latentbits-", dir=folder, ignore_cleanup_errors=True
    )
    files = [Path(place.name) / "values", Path(place.name) / "mask"]
    dtype = np.dtype(np.uint8 if kind == "binary" else np.float32)
    columns: tuple[str, ...] = ()
    count, whole = 0, True
    codes: dict[str, str] = {}
    try:
        with files[0].open("wb") as values_file, files[1].open("wb") as mask_file:
            for cells in batches:
                if not len(cells.cells):
                    continue
                columns = columns or cells.columns
                if len(cells.columns) != len(columns):
                    problem = f"{len(cells.columns)} columns, after rows of {len(columns)}"
                    raise cells.error(problem, row=cells.first_row)
                encoded = encode(cells, kind, pairs=False)
                _keep_to_coding(cells, codes, encoded)
                values_file.write(np.ascontiguousarray(encoded.values, dtype).tobytes())
                mask_file.write(encoded.mask.tobytes())
                count, whole = count + len(encoded.mask), whole and bool(encoded.mask.all())
        if not count:
            raise complain(path, "has no rows")
    except BaseException as error:
        place.cleanup()
        if isinstance(error, OSError):
            problem = f"its rows cannot be kept in {place.name} ({error.strerror})"
            raise complain(path, problem) from None
        raise
    shape = (count, len(columns))
    table = np.memmap(files[0], dtype, "r", shape=shape)
    present = None if whole else np.memmap(files[1], bool, "r", shape=shape)
    # Slices keep the array they are of alive, and with it the file.
    weakref.finalize(table, place.cleanup)
    return Stored(table, present, columns)


def _keep_to_coding(cells: Cells, codes: dict[str, str], encoded: Encoded) -> None:
    """Refuse a column that says 0 in one batch and −1 in another."""
    zeros = (encoded.mask & (encoded.values == 0)).any(axis=0)
    for name, code, zero in zip(cells.columns, encoded.coding, zeros, strict=True):
        if code in ("0/1", "-1/+1") and not zero:
            continue  # ones alone read the same either way
        before = codes.setdefault(name, code) if code else code
        if before != code:
            problem = f"is {code} from here on, and was {before} before"
            raise cells.error(problem, name, cells.first_row)
