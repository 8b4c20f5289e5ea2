"""Groups of a result, written as netCDF without xarray.

xarray and pandas take longer to import than a small fit takes. What only writes a file has its
groups here as plain arrays with names; `files.arviz` makes xarray's of them and reads them back.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from latentbits.models.data.sealed import sealed, write_whole

from .cards import dims_of
from .output import plain

if TYPE_CHECKING:
    import xarray as xr

POINT = (
    "A point estimate: the group point_estimate holds it, and optimization the loss by iteration. "
    "There are no draws of a posterior, so that arviz.summary, arviz.loo, R-hat and intervals do "
    "not apply; standard errors are those of latentbits.standard_errors, draws those of a sampler."
)
"""What a file of a point estimate says of itself."""
SLASH = "%2F"
"""What stands for the / of a site's name in a file, where it would part groups."""


class Group(NamedTuple):
    """Arrays by name, each with the names of its dimensions.

    >>> Group({"loss": (("iteration",), np.zeros(2))}).dataset()["loss"].dims
    ('iteration',)
    """

    variables: dict[str, tuple[tuple[str, ...], np.ndarray]]
    coords: Mapping[str, np.ndarray] = {}
    """dimension -> what its places are called"""
    attrs: Mapping[str, Any] = {}

    def dataset(self) -> xr.Dataset:
        """The same, as xarray has it."""
        import xarray as xr

        return xr.Dataset(self.variables, self.coords, self.attrs)


def group(
    values: Mapping[str, Any],
    leading: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
    dims: Mapping[str, tuple[str, ...]] | None = None,
) -> Group:
    """Arrays as one group: `leading` dimensions first, then those of each site.

    :param columns: names of the columns of the data, a coordinate wherever that dimension occurs.

    >>> made = group({"bias": np.zeros((2, 5, 3))}, ("chain", "draw"), columns=["a", "b", "c"])
    >>> made.variables["bias"][0], made.coords["column"].tolist()
    (('chain', 'draw', 'column'), ['a', 'b', 'c'])
    """
    known = {**dims_of(), **(dims or {})}
    variables: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for name, value in values.items():
        array = np.asarray(value)
        array = array.astype(np.int8) if array.dtype == bool and not leading else array
        rest = array.shape[len(leading) :]
        own = known.get(name, ())
        own = own[-len(rest) :] if rest else own  # those of one component have no axis
        if len(own) != len(rest) or (
            "column" in own and columns and rest[own.index("column")] != len(columns)
        ):
            own = tuple(f"{name}_dim_{i}" for i in range(len(rest)))
        for dim, size in zip((*leading, *own), array.shape, strict=True):
            if sizes.setdefault(dim, size) != size:  # two sites of unlike sizes: not one dimension
                own = tuple(f"{name}_dim_{i}" for i in range(len(rest)))
        sizes.update(zip((*leading, *own), array.shape, strict=True))
        variables[name] = ((*leading, *own), array)
    coords = {dim: np.arange(sizes[dim]) for dim in leading}
    used = {dim for where, _ in variables.values() for dim in where}
    if columns and "column" in used:
        coords["column"] = np.asarray(columns, dtype=object).astype(str)
    return Group(variables, coords, _attributes(attrs))


def point_groups(
    model: Any,
    params: Mapping[str, Any],
    losses: Any,
    *,
    columns: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> dict[str, Group]:
    """A point estimate and the way to it, with a note on what it can be used for.

    >>> from latentbits.models import latent_trait
    >>> groups = point_groups(latent_trait, {"bias": np.zeros(3)}, [2.0, 1.0])
    >>> sorted(groups), groups["point_estimate"].attrs["note"][:16]
    (['optimization', 'point_estimate'], 'A point estimate')
    """
    losses = np.asarray(losses)
    dims, about = dims_of(getattr(model, "__name__", "")), {**(attrs or {}), "note": POINT}
    steps = {"iteration": np.arange(len(losses))}
    return {
        "point_estimate": group(params, columns=columns, attrs=about, dims=dims),
        "optimization": Group({"loss": (("iteration",), losses)}, steps),
    }


def table_group(table: Mapping[str, Any], dim: str, names: Sequence[Any] | None = None) -> Group:
    """A table as a group: a variable for each of its columns, along one dimension.

    >>> made = table_group({"difficulty": [0.5, 1.0]}, "column", ["a", "b"])
    >>> made.dataset()["difficulty"].sel(column="b").item()
    1.0
    """
    coords = {} if names is None else {dim: np.asarray(names)}
    return Group({name: ((dim,), np.asarray(x)) for name, x in table.items()}, coords)


def save(
    groups: Mapping[str, Group | xr.Dataset],
    path: str | PathLike[str],
    attrs: Mapping[str, Any] | None = None,
    option: str | None = None,
) -> None:
    """Write groups as netCDF that `arviz.from_netcdf` of either line opens, whole or not at all.

    HDF5 writes to memory: where a disk is full it would end the process.

    :param option: of a command, which names another place, for the message of a full disk.
    """
    import h5netcdf

    stream = io.BytesIO()
    with h5netcdf.File(stream, "w") as top:
        top.attrs.update(_attributes(attrs))
        for name, group in groups.items():
            _write(top.create_group(name), group)
    write_whole(Path(path), sealed(stream.getvalue()), option)


def _write(place: Any, group: Group | xr.Dataset) -> None:
    import h5py

    if not isinstance(group, Group):
        group = Group(
            {str(name): (tuple(map(str, x.dims)), x.values) for name, x in group.data_vars.items()},
            {str(name): x.values for name, x in group.coords.items()},
            group.attrs,
        )
    place.attrs.update(group.attrs)
    every = {name: ((name,), array) for name, array in group.coords.items()} | group.variables
    for name, (dims, array) in every.items():
        for dim, size in zip(dims, array.shape, strict=True):
            if _flat(dim) not in place.dimensions:
                place.dimensions[_flat(dim)] = size
        text, truth = array.dtype.kind in "UO", array.dtype == bool
        array = array.astype(object) if text else array.astype(np.int8) if truth else array
        kind = h5py.string_dtype() if text else array.dtype
        made = place.create_variable(_flat(name), tuple(map(_flat, dims)), kind, data=array)
        if truth:  # netCDF has no truth values; xarray reads them by this
            made.attrs["dtype"] = "bool"


def _flat(name: str) -> str:
    return name.replace("/", SLASH)


def _attributes(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What netCDF can hold: numbers and text."""
    made = {name: plain(value) for name, value in (attrs or {}).items()}
    return {name: x if type(x) in (int, float, str) else str(x) for name, x in made.items()}
