"""Files that expand: how much memory it takes to read one, found out before it is read.

A megabyte of .gz, .npz, Parquet or netCDF can hold gigabytes of cells. Reading a table takes more
memory than the table: text beside its cells, numbers beside a mask.
"""

from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from .cells import InputError, complain

PER_BYTE_OF_TEXT = 36
"""Bytes of memory that reading text takes at most, for each of its bytes: empty cells are one.
Releases of Python and pandas differ by a tenth."""
PER_NUMBER, PER_WORD = 18, 100
"""Bytes of memory that reading an array takes for each of its cells, beside the array."""
PIECE = 1 << 20


def bounded(path: Path) -> None:
    """Refuse a file that expands to more than there is memory to read it.

    :raises InputError: one line. A damaged file is left to its reader, which says what is wrong.
    """
    kinds = {".gz": _text, ".npz": _arrays, ".parquet": _columns}
    expand = kinds.get(path.suffix.lower())
    if expand is None:
        return
    try:
        for size, needed in expand(path):
            check_room(path, size, needed)  # as soon as it is too much
    except InputError:
        raise
    except Exception:
        return


def check_room(path: Path, size: int, needed: int, room: int | None = None) -> None:
    """Refuse to read what expands to `size` bytes and takes `needed` bytes of memory.

    >>> check_room(Path("x.npz"), 2_000_000, 9_000_000, room=5_000_000)
    Traceback (most recent call last):
    latentbits.models.data.cells.InputError: x.npz: expands to 2 MB or more, which takes about 9 MB of memory to read, and 5 MB are free: leave out rows or columns, or save it as .npy, which stays on disk
    """  # noqa: E501
    room = free_memory() if room is None else room
    if needed > room:
        found, wanted, free = (f"{x / 1e6:.0f} MB" for x in (size, needed, room))
        raise complain(
            path,
            f"expands to {found} or more, which takes about {wanted} of memory to read, and "
            f"{free} are free: leave out rows or columns, or save it as .npy, which stays on disk",
        )


def free_memory() -> int:
    """Bytes that a process can still take: of the machine, or of the container that it runs in.

    >>> free_memory() > 0
    True
    """
    found = [1 << 34]  # where nothing says it
    with suppress(AttributeError, ValueError, OSError):
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):  # of Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max": the container has no limit of its own
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def array_needs(size: int, dtype: np.dtype) -> int:
    """Bytes of memory that reading an array of `size` bytes takes.

    >>> array_needs(800, np.dtype(float)), array_needs(800, np.dtype("S8"))
    (2600, 10800)
    """
    each = PER_NUMBER if dtype.kind in "biufc" else PER_WORD
    return size + each * (size // max(dtype.itemsize, 1))


def _text(path: Path) -> Iterator[tuple[int, int]]:
    """Counted, since the size that a gzip file claims is that of its last part, modulo 2^32."""
    size = 0
    with gzip.open(path) as file:
        while piece := file.read(PIECE):
            size += len(piece)
            yield size, PER_BYTE_OF_TEXT * size


def _arrays(path: Path) -> Iterator[tuple[int, int]]:
    """Each array by itself: one is read. Nothing is read beyond the size in the archive's list."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            dtype = np.dtype(np.int8)
            with suppress(Exception), archive.open(member) as file:  # not all members are arrays
                read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}
                dtype = read[npy.read_magic(file)[0]](file)[2]
            yield member.file_size, array_needs(member.file_size, dtype)


def _columns(path: Path) -> Iterator[tuple[int, int]]:
    """Numbers by their count; words are counted batch by batch, since one may stand for many."""
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        rows, columns = sum(x.num_rows for x in groups), list(file.schema_arrow)
        numbers = [x.type.bit_width for x in columns if types.is_primitive(x.type)]
        words = [x.name for x in columns if not types.is_primitive(x.type)]
        size = rows * sum(numbers) // 8
        # A frame of the columns, and its cells as rows.
        needed = 3 * size + rows * (PER_NUMBER * len(numbers) + PER_WORD * len(words))
        yield size, needed
        # No word is longer than the part that it is in: no batch takes more than there is.
        longest = max((x.total_byte_size for x in groups), default=0)
        most = min(free_memory() // max(1, longest), 1 << 16)
        for batch in file.iter_batches(max(most, 1), columns=words) if words else ():
            size, needed = size + batch.nbytes, needed + 2 * batch.nbytes
            yield size, needed
