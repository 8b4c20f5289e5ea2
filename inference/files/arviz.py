"""Results as ArviZ has them; the only module that imports it.

Both lines of ArviZ are served: 0.23, whose containers are `InferenceData`, and 1.x, whose are
xarray's `DataTree`. Groups are made here as xarray data sets, so that neither line's way of sorting
variables into groups is relied upon, and either reads the other's files.

What goes where is a matter of honesty. Draws of a sampler are `posterior` with `sample_stats`.
A point estimate is `point_estimate` and `optimization`, never `posterior`, where it would show an
interval of no width. Variational draws are `posterior` of one chain with log p and log q beside
them, so that they can be checked. `log_likelihood` is always the marginal one of each datum.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from latentbits.models.data import InputError
from latentbits.models.data.array_tables import MAGIC, check_hdf5
from latentbits.models.data.bounded import check_room
from latentbits.models.data.sealed import check_seal, sealed, write_whole

from ..numerics.annealed import good_k
from ..types import Arguments
from .cards import dims_of
from .output import plain

Groups = dict[str, xr.Dataset]
POINT = (
    "A point estimate: the group point_estimate holds it, and optimization the loss by iteration. "
    "There are no draws of a posterior, so that arviz.summary, arviz.loo, R-hat and intervals do "
    "not apply; standard errors are those of latentbits.standard_errors, draws those of a sampler."
)
"""What a file of a point estimate says of itself."""
ALIGNED = (
    "Draws brought together: units matched and factors rotated to the mean draw, which changes no "
    "likelihood. As they were drawn they are in the group posterior_raw."
)
DIGEST = "sha256_of_values"
"""Attribute with a digest of the values: it stays when ArviZ saves a file again."""
SLASH = "%2F"
"""What stands for the / of a site's name in a file, where it would part groups."""


def import_arviz() -> Any:
    """ArviZ, without what it says on being imported."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        import arviz
    return arviz


def dataset(
    values: Mapping[str, Any],
    leading: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
    dims: Mapping[str, tuple[str, ...]] | None = None,
) -> xr.Dataset:
    """Arrays as one group: `leading` dimensions first, then those of each site.

    An array whose shape contradicts the dimensions of its name has dimensions of its own.

    :param columns: names of the columns of the data, a coordinate wherever that dimension occurs.
    :param attrs: what netCDF cannot hold becomes text.

    >>> group = dataset({"bias": np.zeros((2, 5, 3))}, ("chain", "draw"), columns=["a", "b", "c"])
    >>> group["bias"].dims, group["bias"].sel(column="b").shape
    (('chain', 'draw', 'column'), (2, 5))
    """
    named = {**dims_of(), **(dims or {})}
    sizes = {"column": len(columns)} if columns else {}
    variables = {}
    for name, value in values.items():
        array = np.asarray(value)
        shape = array.shape[len(leading) :]
        own = named.get(name, ())[-len(shape) :]  # those of one component have no first axis
        if len(own) != len(shape) or any(
            sizes.get(dim, size) != size for dim, size in zip(own, shape, strict=True)
        ):
            own = tuple(f"{name}_dim_{i}" for i in range(len(shape)))
        sizes.update(zip(own, shape, strict=True))
        variables[name] = ((*leading, *own), array)
    made = xr.Dataset(variables, attrs=attributes(attrs))
    coords: dict[str, Any] = {dim: np.arange(made.sizes[dim]) for dim in leading if made}
    if columns and "column" in made.dims:
        coords["column"] = [str(x) for x in columns]
    return made.assign_coords(coords)


def attributes(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What netCDF can hold: numbers and text."""
    made = {name: plain(value) for name, value in (attrs or {}).items()}
    return {name: x if type(x) in (int, float, str) else str(x) for name, x in made.items()}


def point_groups(
    model: Any,
    params: Mapping[str, Any],
    losses: Any,
    *,
    columns: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Groups:
    """A point estimate and the way to it, with a note on what it can be used for."""
    dims, about = dims_of(getattr(model, "__name__", "")), {**(attrs or {}), "note": POINT}
    return {
        "point_estimate": dataset(params, columns=columns, attrs=about, dims=dims),
        "optimization": dataset({"loss": losses}, ("iteration",)),
    }


def posterior_groups(
    model: Any,
    params: Mapping[str, Any],
    stats: Mapping[str, Any],
    *,
    columns: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
    arguments: Arguments | None = None,
) -> Groups:
    """Draws (num_chains, num_draws, ...) brought together under the program's symmetries.

    Where the program has some, the draws as they were made are kept beside them.
    """
    from ..evaluation.symmetry import together

    raw = {x: np.asarray(v) for x, v in params.items()}
    near = together(model, raw, stats.get("lp"), arguments)
    changed = any(not np.array_equal(near[x], raw[x]) for x in raw)
    leading, dims = ("chain", "draw"), dims_of(getattr(model, "__name__", ""))
    about = {**(attrs or {}), **({"note": ALIGNED} if changed else {})}
    groups = {"posterior": dataset(near, leading, columns=columns, attrs=about, dims=dims)}
    if changed:
        groups["posterior_raw"] = dataset(raw, leading, columns=columns, attrs=attrs, dims=dims)
    if stats:
        groups["sample_stats"] = dataset(stats, leading)
    return groups


def latent_groups(
    posterior: Any, batch_ndims: int = 1, *, attrs: Mapping[str, Any] | None = None
) -> Groups:
    """Latents that were summed out and given back, beside the draws of the parameters.

    `latents` has one draw of every latent for each draw of the parameters, `latent_probabilities`
    the probability of each of its values, and `latent_best` the most probable ones.

    :param posterior: what `latent_posterior` gives.
    :param batch_ndims: as it had it: 1 for draws, which become one chain, 2 for chains of draws.

    >>> from latentbits import LatentPosterior, latent_groups
    >>> probs = np.full((4, 50, 3, 2), 0.5)
    >>> posterior = LatentPosterior({"on": probs[..., 0]}, {"on": probs}, {"on": probs[..., 1]})
    >>> groups = latent_groups(posterior, batch_ndims=2)
    >>> groups["latent_probabilities"]["on"].dims
    ('chain', 'draw', 'on_dim_0', 'on_value')
    >>> draws = LatentPosterior(*({"on": values["on"][0]} for values in posterior))
    >>> latent_groups(draws)["latents"]["on"].shape
    (1, 50, 3)
    """
    leading = ("chain", "draw")
    chain = (None,) * (2 - batch_ndims)
    draws, probabilities, best = (
        {x: np.asarray(v)[chain] for x, v in s.items()} for s in posterior
    )
    dims = {
        name: (*(f"{name}_dim_{i}" for i in range(np.ndim(value) - 3)), f"{name}_value")
        for name, value in probabilities.items()
    }
    own = {name: where[:-1] for name, where in dims.items()}
    return {
        "latents": dataset(draws, leading, attrs=attrs, dims=own),
        "latent_probabilities": dataset(probabilities, leading, attrs=attrs, dims=dims),
        "latent_best": dataset(best, leading, attrs=attrs, dims=own),
    }


def container(groups: Groups) -> Any:
    """Groups as what the installed ArviZ calls its own.

    >>> draws = {"bias": np.random.default_rng(0).normal(size=(2, 9, 3))}
    >>> data = container({"posterior": dataset(draws, ("chain", "draw"))})
    >>> list(import_arviz().summary(data).index)[0]
    'bias[0]'
    """
    arviz = import_arviz()
    if _has_own_container(arviz):
        return arviz.InferenceData(**{name: _flat(group) for name, group in groups.items()})
    return _tree(groups)


def _tree(groups: Groups) -> xr.DataTree:
    return xr.DataTree.from_dict({f"/{name}": _flat(group) for name, group in groups.items()})


def _has_own_container(arviz: Any) -> bool:
    return int(arviz.__version__.split(".")[0]) < 1


def _flat(group: xr.Dataset, old: str = "/", put: str = SLASH) -> xr.Dataset:
    names = {str(name) for name in (*group.variables, *group.dims)}
    return group.rename({name: name.replace(old, put) for name in names if old in name})


def save(
    groups: Groups,
    path: str | PathLike[str],
    attrs: Mapping[str, Any] | None = None,
    option: str | None = None,
) -> None:
    """Write groups as netCDF that `arviz.from_netcdf` of either line opens, whole or not at all.

    HDF5 writes to memory: where a disk is full it would end the process.

    :param option: of a command, which names another place, for the message of a full disk.
    """
    tree = _tree(groups)
    tree.attrs = attributes(attrs)
    tree.attrs[DIGEST] = _digest(tree)
    write_whole(Path(path), sealed(bytes(tree.to_netcdf(engine="h5netcdf"))), option)


def _digest(tree: xr.DataTree) -> str:
    """SHA-256 of the variables of all groups, numbers as float64, and of the root's attributes."""
    attrs = {str(name): plain(x) for name, x in tree.attrs.items() if name != DIGEST}
    made = hashlib.sha256(json.dumps(attrs, sort_keys=True).encode())
    for path, child in sorted(tree.children.items()):
        for name, variable in sorted(child.to_dataset().variables.items()):
            values = np.asarray(variable.values)
            text = values.dtype.kind not in "biuf"
            made.update(f"{path}/{name} {variable.dims} {variable.shape}".encode())
            made.update("\0".join(map(str, values.ravel())).encode() if text else
                        np.ascontiguousarray(values, np.float64).tobytes())  # fmt: skip
    return made.hexdigest()


def _saved_again(path: Path) -> bool:
    """Whether a file ends where its HDF5 head says, so that no seal was lost or damaged."""
    with path.open("rb") as stream:
        head = stream.read(52)
    place = {0: 40, 1: 44}.get(head[len(MAGIC)], 28)  # by the version of the superblock
    return int.from_bytes(head[place : place + 8], "little") == path.stat().st_size


@contextmanager
def opened(path: str | PathLike[str], what: str) -> Iterator[None]:
    """Whatever a file lacks or holds too much of shows as any error whatever: say it in one line.

    :param what: what the file should be.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path}: is no {what}, or not a whole one ({type(error).__name__})"
        ) from None


def load(path: str | PathLike[str]) -> tuple[Groups, dict[str, Any]]:
    """The groups of a file that `save` wrote, in memory, and its attributes.

    A file that another program has saved again has no seal: it is read if its values are the same.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: there is no such file")
    with opened(path, "netCDF file"):
        with file.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise InputError(f"{path}: is no netCDF file")
        again = _saved_again(file)
        if not again:
            check_seal(file)
        expanded, _ = check_hdf5(file)
        check_room(file, expanded, expanded)
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            groups = {name: child.to_dataset().load() for name, child in tree.children.items()}
            attrs = {str(name): value for name, value in tree.attrs.items()}
            digest = attrs.pop(DIGEST, None)
            if again and digest != _digest(tree):
                check_seal(file)  # which it does not have
        if again:
            note = f"{path}: saved again by another program, with the values of latentbits"
            warnings.warn(note, stacklevel=2)
        return {name: _flat(group, SLASH, "/") for name, group in groups.items()}, attrs


def prior_sensitivity(groups: Groups) -> dict[str, float]:
    """By site, how far its posterior moves if the prior is raised to a power near one.

    The largest of a site's scalars, by `arviz.psens` (Kallioinen et al. 2023): above 0.05 it
    depends on the prior.
    """
    sites = [str(x) for x in groups["posterior"].data_vars]
    # The power of a flat prior is the same prior; releases of ArviZ differ in what they make of it.
    if all(np.ptp(x.values) == 0 for x in groups["log_prior"].data_vars.values()):
        return dict.fromkeys(sites, 0.0)
    arviz = import_arviz()
    names = ("posterior", "log_prior", "log_likelihood")
    data = container({x: groups[x] for x in names})
    with warnings.catch_warnings(action="ignore"):  # of power scaling whose weights are too uneven
        if _has_own_container(arviz):
            sensitivity = arviz.psens(data, component="prior")
        else:
            sensitivity = arviz.psense(data, group="prior")
    return {str(x): float(np.nanmax(sensitivity[x].values)) for x in sensitivity.data_vars}


def rank(results: Mapping[str, Groups]) -> list[dict[str, Any]]:
    """Results of different models on the same rows, best first, by leave-one-out (`arviz.compare`).

    On the marginal likelihood of each datum: with latents in the condition it would say nothing.
    """
    arviz = import_arviz()
    held = {name: container(groups) for name, groups in results.items()}
    with warnings.catch_warnings(action="ignore"):  # large k̂ are counted below
        table = arviz.compare(held, var_name="observed")
        single = {
            name: arviz.loo(one, pointwise=True, var_name="observed") for name, one in held.items()
        }
    rows = []
    for name in table.index:
        loo = single[name]
        sizes = results[name]["posterior"].sizes
        limit = good_k(sizes["chain"] * sizes["draw"])
        bad = int((np.asarray(loo.pareto_k) > limit).sum())
        own = table.loc[name]
        elpd = own["elpd_loo"] if "elpd_loo" in own else own["elpd"]
        rows.append({
            "name": name, "elpd": float(elpd), "error": float(own["se"]),
            "behind": abs(float(own["elpd_diff"])), "behind_error": float(own["dse"]),
            "bad_pareto_k": bad, "rows": int(loo.n_data_points),
        })  # fmt: skip
    return rows
