"""A comparison as files: one netCDF from which the report is made again, one for each method.

The files of the methods hold ArviZ's groups, so that `arviz.from_netcdf` opens them and `summary`,
`loo`, `compare` and the plots work: see `inference.files.arviz` for what goes where.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from latentbits.models.data import InputError, Table
from latentbits.models.data.sealed import check_seal, sealed, write_whole

from ..baselines.samplers import Adaptation, Chains, Draws
from ..evaluation.diagnostics import every
from ..files.arviz import (
    Groups,
    dataset,
    load,
    opened,
    point_groups,
    posterior_groups,
    save,
)
from ..files.cards import dims_of
from ..files.predictive import STATISTICS, predictive_groups, statistics
from .compare import Comparison
from .judge import Judged, in_one_line

KIND = "latentbits comparison"


def save_comparison(comparison: Comparison, path: Path) -> None:
    """All that a report shows, in one file."""
    groups: Groups = {}
    names = list(comparison.held_out)
    if names:
        width = max(len(score) for score, _ in comparison.paths.values())
        times = np.full((2, len(names), width), np.nan)
        for i, name in enumerate(names):
            times[:, i, : len(comparison.paths[name][0])] = comparison.paths[name]
            groups[f"params_{i}"] = dataset(comparison.params[name])
        density = np.stack([comparison.held_out[x] for x in names])
        groups["held_out"] = xr.Dataset(
            {
                "log_density": (("method", "row"), density),
                "score": (("method", "time"), times[0]),
                "seconds": (("method", "time"), times[1]),
            },
            {"method": np.array(names, dtype=str)},
        )
    if comparison.table:
        table = dict(comparison.table)
        columns = table.pop("columns", None)
        groups["table"] = dataset(
            table, columns=None if columns is None else [str(x) for x in columns],
            dims={"values": ("row", "column"), "held_out": ("row",)},
        )  # fmt: skip
    if comparison.truth:
        groups["truth"] = dataset(comparison.truth)
    about = {"kind": KIND, "model": comparison.model}
    for part in ("about", "rows", "reliability"):
        # What is no number is kept: an R̂ that cannot be computed is a reason for doubt.
        about[part] = json.dumps(getattr(comparison, part), default=lambda x: x.tolist())
    save(groups, path, about, "--out")


def load_comparison(path: str | Path) -> Comparison:
    """What `save_comparison` wrote."""
    groups, attrs = load(path)
    if attrs.get("kind") != KIND:
        raise InputError(f"{path}: holds no comparison; `latentbits compare` writes one")
    with opened(path, "comparison"):
        about, rows, reliability = (json.loads(attrs[x]) for x in ("about", "rows", "reliability"))
        if any("score" not in row for row in rows.values()):
            raise InputError(f"{path}: an earlier release wrote it; compare again")
        for one in reliability.values():
            one |= {x: np.array(one[x]) for x in ("said", "seen")}
        held_out, paths, params = {}, {}, {}
        judged: Any = groups.get("held_out", {"method": xr.DataArray([])})
        for i, name in enumerate(map(str, judged["method"].values)):
            held_out[name] = judged["log_density"].values[i]
            both = [judged[x].values[i] for x in ("score", "seconds")]
            paths[name] = (both[0][np.isfinite(both[1])], both[1][np.isfinite(both[1])])
            params[name] = _arrays(groups[f"params_{i}"])
        table = _arrays(groups.get("table", {}))
        for name in table.keys() & {"mask", "held_out"}:  # netCDF has no truth values
            table[name] = table[name].astype(bool)
        if table and "column" in groups["table"].coords:
            table["columns"] = groups["table"]["column"].values.astype(str)
        return Comparison(
            attrs["model"], about, rows, held_out, paths, reliability, params, table,
            _arrays(groups.get("truth", {})),
        )  # fmt: skip


def _arrays(group: Any) -> dict[str, np.ndarray]:
    return {str(name): value.values for name, value in group.items()}


def save_method(
    model: Callable,
    sizes: dict[str, Any],
    judged: Judged,
    table: Table,
    about: Comparison,
    name: str,
    path: Path,
) -> Groups:
    """One method's results as a file that ArviZ opens, and what is in it."""
    made_by = {
        "method": name,
        "model": about.model,
        "seconds": judged.draws.seconds,
        "compile_seconds": judged.draws.compile_seconds,
        **about.about.get("versions", {}),
    }
    groups = method_groups(model, judged, table.columns, made_by, sizes)
    save(groups, path, made_by, "--out")
    return groups


def method_groups(
    model: Callable,
    judged: Judged,
    columns: Sequence[str],
    attrs: dict[str, Any],
    sizes: dict[str, Any],
) -> Groups:
    """One method's results as ArviZ's groups: every scored draw with its own likelihoods.

    :param sizes: keyword arguments of the program.
    """
    draws = judged.draws
    observed = {"observed": judged.observed, **statistics(judged.observed, judged.mask)}
    observed |= {} if judged.mask is None else {"mask": judged.mask.astype(np.int8)}
    groups: Groups = {"observed_data": dataset(observed, columns=columns, dims=STATISTICS)}
    if judged.row["kind"] == "point":
        point = {x: np.asarray(v)[0, 0] for x, v in draws.params.items()}
        return groups | point_groups(model, point, draws.losses, columns=columns, attrs=attrs)
    params, stats = (every(x, judged.scores.step) for x in (draws.params, draws.stats))
    arguments = (judged.observed,), sizes
    groups |= posterior_groups(
        model, params, stats, columns=columns, attrs=attrs, arguments=arguments
    )
    groups["log_likelihood"] = dataset(
        {"observed": judged.scores.train}, ("chain", "draw"), dims={"observed": ("row",)}
    )
    try:
        groups |= predictive_groups(
            model, params, arguments, columns=columns, mask=judged.mask,
            dims=dims_of(getattr(model, "__name__", "")),
        )  # fmt: skip
    except Exception as error:  # a user's program may not simulate: its draws are kept all the same
        groups["posterior"].attrs["no_predictive"] = in_one_line(error)
    return groups


def save_parts(parts: list[Comparison], chains: list[dict[str, Any]], folder: Path) -> None:
    """What a comparison needs to go on: each data set, and where samplers stopped."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for number, part in enumerate(parts):
        save_comparison(part, folder / f"{number}.nc")
        for method, stopped in chains[number].items():
            write_whole(folder / f"{number}-{method}.npz", _stopped(stopped), "--out")


def load_parts(folder: Path) -> tuple[list[Comparison], list[dict[str, Any]]]:
    """What `save_parts` wrote."""
    files = sorted(folder.glob("*.nc"), key=lambda x: int(x.stem))
    found = [{x.stem.partition("-")[2]: x for x in folder.glob(f"{y.stem}-*.npz")} for y in files]
    parts = [load_comparison(file) for file in files]
    return parts, [{x: _going_on(file) for x, file in some.items()} for some in found]


def _stopped(stopped: Draws | Chains) -> bytes:
    """Arrays by name: of the chains, and of the draws if there are some."""
    chains = stopped.chains if isinstance(stopped, Draws) else stopped
    assert chains is not None
    arrays: dict[str, Any] = {f"state {i}": leaf for i, leaf in enumerate(chains.state)}
    arrays |= {f"place {x}": v for x, v in (chains.places or {}).items()}
    about = [*chains.adaptation, chains.depth, chains.warmed, chains.seconds]
    if isinstance(stopped, Draws):
        arrays |= {f"param {x}": v for x, v in stopped.params.items()}
        arrays |= {f"stat {x}": v for x, v in stopped.stats.items()}
        arrays |= {"clock": stopped.clock}
    stream = io.BytesIO()
    np.savez(stream, about=np.array(about, float), **arrays)
    return sealed(stream.getvalue())


def _going_on(file: Path) -> Draws | Chains:
    """What `_stopped` wrote."""
    check_seal(file)
    with opened(file, "stopped sampler"), np.load(file) as arrays:
        named: dict[str, dict[str, Any]] = {}
        for name in arrays.files:
            kind, _, rest = name.partition(" ")
            named.setdefault(kind, {})[rest] = arrays[name]
        warmup, accept, dense, depth, warmed, seconds = named["about"][""]
        adaptation = Adaptation(int(warmup), float(accept), bool(dense))
        state = [named["state"][str(i)] for i in range(len(named["state"]))]
        chains = Chains(adaptation, int(depth), named.get("place"), state, int(warmed), seconds)
        if "clock" not in named:
            return chains
        return Draws(
            named["param"], named["stat"], np.empty(0), {}, named["clock"][""], seconds, 0.0, "",
            chains=chains,
        )  # fmt: skip
