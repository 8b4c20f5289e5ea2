"""What an HDF5 file holds, seen before any of its data is opened.

A netCDF file is a short tree of groups with arrays in it. HDF5 allows more: links into other files
(a pipe would be waited for), links in a circle, groups without end, arrays that claim a size which
the file cannot hold. Readers follow all of it; here it is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .cells import complain, show

MAGIC = b"\x89HDF\r\n\x1a\n"
"""The first bytes of every such file."""
DEEPEST = 16
"""Levels of groups; a comparison has two."""
MOST_OBJECTS = 100_000
LARGEST_RATIO = 1032
"""Of an array to its file: deflate's own limit. What claims more was never written."""


def check_hdf5(path: Path) -> None:
    """Refuse what is no plain tree of arrays.

    :raises InputError: one line that names the object.
    """
    import h5py

    size = path.stat().st_size
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
                    _check_array(path, where, item, size)


def _check_array(path: Path, where: str, item: Any, size: int) -> None:
    if item.external or item.is_virtual:
        raise complain(path, f"the numbers of {show(where)} are in another file")
    if item.shape is not None and item.size * item.dtype.itemsize > LARGEST_RATIO * size:
        raise complain(path, f"{show(where)} claims {item.shape} cells, more than the file holds")
