"""Reading tables that are arrays already: .npy, .npz, Parquet and netCDF files.

Nothing is ever unpickled: an object array in a file is an error, not a program to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .bounded import array_needs, check_room
from .cells import Cells, InputError, complain, listed, name_columns, show


@contextmanager
def _parsing(path: Path, what: str = "") -> Iterator[None]:
    """Damage shows in a parser as any error whatever, an IndexError as soon as an OSError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if any(sign in str(error) for sign in ("allow_pickle", "Python objects")):
            problem = "holds Python objects, which are not loaded: save numbers or text instead"
        else:
            problem = f"cannot be read ({error})"
        raise complain(path, what + problem) from None


def read_npy(path: Path) -> Cells:
    """The array of an .npy file, left on disk until it is read through."""
    _expect(path, (b"\x93NUMPY",), "an .npy file")
    with _parsing(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    return matrix(path, array)


def read_npz(path: Path, key: str | None) -> Cells:
    """One array of an .npz file: the only one, or the one called ``key``."""
    _expect(path, (b"PK",), "an .npz file")
    # Opened here, because np.load leaves a damaged archive open.
    with _parsing(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if not archive.files:
            raise complain(path, "holds no array")
        name = _choose(path, list(archive.files), key, "array")
        with _parsing(path, f"array {show(name)} "):
            array = archive[name]
    if not isinstance(array, np.ndarray):  # whatever else lies in the archive comes as bytes
        raise complain(path, f"member {show(name)} is no array")
    return matrix(path, array)


def read_parquet(path: Path, num_rows: int | None = None) -> Iterator[Cells]:
    """The columns of a Parquet file: the whole, or so many rows at a time."""
    _expect(path, (b"PAR1",), "a Parquet file")
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        problem = "Parquet files need pyarrow: pip install 'latentbits[parquet]'"
        raise complain(path, problem) from None
    first = 1
    with _parsing(path), ParquetFile(path) as file:
        # Before it is read: wide files are slow, and two names alike would end in one.
        name_columns(path, list(file.schema_arrow.names))
        for part in [file.read()] if num_rows is None else file.iter_batches(num_rows):
            # With pandas' own notes in the file its index comes back as an index: it is no column.
            frame = part.to_pandas()
            names = [str(name) for name in frame.columns]
            yield Cells(path, frame, name_columns(path, names), first)
            first += len(frame)


def read_netcdf(path: Path, key: str | None) -> Cells:
    """One variable of two dimensions, or all variables when each is a column of the same length.

    Text along the second dimension gives the columns their names.
    """
    magic = _expect(path, (MAGIC, b"CDF"), "a netCDF file")
    import pandas as pd
    import xarray

    options: dict[str, Any] = {"engine": "scipy"}
    if magic != b"CDF":
        # h5netcdf follows every link, and prints a traceback on its way out of a damaged file.
        with _parsing(path):
            check_room(path, *check_hdf5(path))
        options = {"engine": "h5netcdf", "phony_dims": "sort"}
    with _parsing(path), xarray.open_dataset(path, decode_times=False, **options) as dataset:
        variables = {str(name): variable.load() for name, variable in dataset.items()}
    if not variables:
        raise complain(path, "holds no variable at its top level")
    dimensions = {variable.dims for variable in variables.values()}
    if key is None and len(dimensions) == 1 and len(next(iter(dimensions))) == 1:
        frame = pd.DataFrame({name: variable.values for name, variable in variables.items()})
        return Cells(path, frame, name_columns(path, list(variables)))
    variable = variables[_choose(path, list(variables), key, "variable")]
    names = None
    if variable.ndim == 2 and variable.dims[1] in variable.coords:
        labels = variable.coords[variable.dims[1]].values
        if labels.dtype.kind in "OUST":
            names = [str(label) for label in labels]
    return matrix(path, variable.values, names)


def unpack_bits(cells: Cells, packed: int) -> Cells:
    """Rows of bytes, as :func:`numpy.packbits` makes them, to rows of ``packed`` bits."""
    path, array = cells.path, cells.cells
    if type(packed) is not int or packed < 1:
        raise complain(path, f"packed= is the number of bits per row, found {show(packed)}")
    if not cells.array or array.dtype != np.uint8:
        raise complain(path, "packed bits must be an array of bytes (uint8)")
    if array.shape[1] != -(-packed // 8):
        problem = f"has {array.shape[1]} bytes per row, but {packed} bits fill {-(-packed // 8)}"
        raise complain(path, problem)
    columns = name_columns(path, packed)
    return Cells(path, np.unpackbits(array, axis=1, count=packed), columns)


def _expect(path: Path, magic: tuple[bytes, ...], what: str) -> bytes:
    """The first bytes of the file, which say what it is; its name does not."""
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        raise complain(path, "is empty")
    for mark in magic:
        if start.startswith(mark):
            return mark
    raise complain(path, f"is not {what}, whatever its name says")


def _choose(path: Path, names: list[str], key: str | None, what: str) -> str:
    held = listed([show(name) for name in names])
    if key is None and len(names) > 1:
        raise complain(path, f"holds {len(names)} {what}s ({held}): choose one with key=")
    if key is not None and key not in names:
        raise complain(path, f"has no {what} {show(key)}: it holds {held}")
    return key or names[0]


def matrix(
    path: Path, array: np.ndarray, names: list[str] | None = None, row: int | None = None
) -> Cells:
    """An array as a table.

    :param row: the number of its first row, if it is a part of a table.
    """
    if array.ndim != 2:
        problem = f"has shape {array.shape}: a table has two dimensions, (rows, columns)"
        raise complain(path, problem, row=row)
    if array.dtype.kind not in "biufUSOT":
        problem = f"holds {array.dtype}: a table holds numbers, truth values or words"
        raise complain(path, problem, row=row)
    columns = name_columns(path, names or array.shape[1])
    cells: Any = array
    if array.dtype.kind not in "biuf":
        import pandas as pd

        cells = pd.DataFrame(array.astype(object))
    packed = " (if these are packed bits, give packed= the number of columns)"
    hint = packed if array.dtype == np.uint8 and row is None else ""
    return Cells(path, cells, columns, row or 1, hint)


MAGIC = b"\x89HDF\r\n\x1a\n"
"""The first bytes of every such file."""
DEEPEST = 16
"""Levels of groups; a comparison has two."""
MOST_OBJECTS = 100_000
LARGEST_RATIO = 1032
"""Of an array to its file: deflate's own limit. What claims more was never written."""


def check_hdf5(path: Path) -> tuple[int, int]:
    """Refuse what is no plain tree of arrays, before any of its data is opened.

    HDF5 allows more than a netCDF file needs: links into other files (a pipe would be waited for),
    links in a circle, groups without end, arrays that claim a size which the file cannot hold.
    Readers follow all of it.

    :return: bytes of all arrays, and of the memory that it takes to read them as a table.
    :raises InputError: one line that names the object.
    """
    import h5py

    size, expanded, needed = path.stat().st_size, 0, 0
    with h5py.File(path, "r") as file:
        addresses = {h5py.h5o.get_info(file["/"].id).addr}
        left: list[tuple[str, int, Any]] = [("", 0, file)]
        while left:
            name, depth, group = left.pop()
            if depth > DEEPEST:
                raise complain(path, f"has groups more than {DEEPEST} deep, below {show(name)}")
            for key in group:
                where = f"{name}/{key}"
                link = group.get(key, getlink=True)  # does not follow it
                if not isinstance(link, h5py.HardLink):
                    raise complain(path, f"{show(where)} is a link to somewhere else")
                item = group[key]
                address = h5py.h5o.get_info(item.id).addr
                if address in addresses:
                    raise complain(path, f"{show(where)} is an object that has another name too")
                addresses.add(address)
                if len(addresses) > MOST_OBJECTS:
                    raise complain(path, f"holds more than {MOST_OBJECTS} objects")
                list(item.attrs)
                if isinstance(item, h5py.Group):
                    left.append((where, depth + 1, item))
                elif isinstance(item, h5py.Dataset):
                    own = (item.size or 0) * item.dtype.itemsize
                    if item.external or item.is_virtual:
                        problem = f"the numbers of {show(where)} are in another file"
                        raise complain(path, problem)
                    if own > LARGEST_RATIO * size:
                        problem = f"claims {item.shape} cells, more than the file holds"
                        raise complain(path, f"{show(where)} {problem}")
                    expanded, needed = expanded + own, needed + array_needs(own, item.dtype)
    return expanded, needed
