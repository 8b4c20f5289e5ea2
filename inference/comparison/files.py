"""A comparison as files: one netCDF from which the report is made again, one for each method.

The files of the methods hold ArviZ's groups, so that `arviz.from_netcdf` opens them and `summary`,
`loo`, `compare` and the plots work: see `inference.files.arviz` for what goes where.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from latentbits.models.data import InputError, Table

from ..files.arviz import Groups, dataset, load, opened, posterior_groups
from ..files.cards import dims_of
from ..files.netcdf import point_groups, save
from ..files.predictive import STATISTICS, predictive_groups, statistics
from .compare import Comparison
from .judge import Judged
from .scoring import every

KIND = "latentbits comparison"


def save_comparison(comparison: Comparison, path: Path) -> None:
    """All that a report shows, in one file."""
    names = list(comparison.held_out)
    groups: Groups = {}
    if names:
        width = max(len(comparison.paths[x][0]) for x in names)
        times = np.full((len(names), 2, width), np.nan)
        for i, name in enumerate(names):
            score, clock = comparison.paths[name]
            times[i, 0, : len(score)], times[i, 1, : len(clock)] = score, clock
        groups["held_out"] = xr.Dataset(
            {
                "log_density": (
                    ("method", "row"),
                    np.stack([comparison.held_out[x] for x in names]),
                ),
                "score": (("method", "time"), times[:, 0]),
                "seconds": (("method", "time"), times[:, 1]),
            },
            {"method": np.array(names, dtype=str)},
        )
        for name in names:
            groups[f"params_{names.index(name)}"] = dataset(comparison.params[name])
    if comparison.table:
        columns = comparison.table.get("columns")
        groups["table"] = dataset(
            {x: v for x, v in comparison.table.items() if x != "columns"},
            columns=None if columns is None else [str(x) for x in columns],
            dims={"values": ("row", "column"), "held_out": ("row",)},
        )
    if comparison.truth:
        groups["truth"] = dataset(comparison.truth)
    about = {
        "kind": KIND, "model": comparison.model, "about": _as_text(comparison.about),
        "rows": _as_text(comparison.rows), "reliability": _as_text(comparison.reliability),
    }  # fmt: skip
    save(groups, path, about, "--out")


def _as_text(values: Any) -> str:
    """JSON that keeps what is no number: an R̂ that cannot be computed is a reason for doubt."""
    return json.dumps(values, default=lambda x: x.tolist())


def load_comparison(path: str | Path) -> Comparison:
    """What `save_comparison` wrote."""
    groups, attrs = load(path)
    if attrs.get("kind") != KIND:
        raise InputError(f"{path}: holds no comparison; `latentbits compare` writes one")
    with opened(path, "comparison"):
        return _read(groups, attrs)


def _read(groups: Groups, attrs: dict[str, Any]) -> Comparison:
    held_out: dict[str, np.ndarray] = {}
    paths: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    params: dict[str, dict[str, np.ndarray]] = {}
    if "held_out" in groups:
        group = groups["held_out"]
        for i, name in enumerate(str(x) for x in group["method"].values):
            held_out[name] = group["log_density"].values[i]
            scored = np.isfinite(group["seconds"].values[i])
            paths[name] = (group["score"].values[i][scored], group["seconds"].values[i][scored])
            params[name] = {str(x): v.values for x, v in groups[f"params_{i}"].items()}
    table = {str(x): v.values for x, v in groups["table"].items()} if "table" in groups else {}
    for name in table.keys() & {"mask", "held_out"}:  # netCDF has no truth values
        table[name] = table[name].astype(bool)
    if table and "column" in groups["table"].coords:
        table["columns"] = groups["table"]["column"].values.astype(str)
    truth = {str(x): v.values for x, v in groups["truth"].items()} if "truth" in groups else {}
    reliability = json.loads(attrs["reliability"])
    for one in reliability.values():
        one["said"], one["seen"] = np.array(one["said"]), np.array(one["seen"])
    return Comparison(
        attrs["model"], json.loads(attrs["about"]), json.loads(attrs["rows"]), held_out, paths,
        reliability, params, table, truth,
    )  # fmt: skip


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
        made = point_groups(model, point, draws.losses, columns=columns, attrs=attrs)
        return groups | {name: group.dataset() for name, group in made.items()}
    params, stats = every(draws.params, judged.scores.step), every(draws.stats, judged.scores.step)
    groups |= posterior_groups(
        model, params, stats, columns=columns, attrs=attrs, arguments=((judged.observed,), sizes)
    )
    groups["log_likelihood"] = dataset(
        {"observed": judged.scores.train}, ("chain", "draw"), dims={"observed": ("row",)}
    )
    try:
        return groups | predictive_groups(
            model, params, ((judged.observed,), sizes), columns=columns, mask=judged.mask,
            dims=dims_of(getattr(model, "__name__", "")),
        )  # fmt: skip
    except Exception as error:  # a user's program may not simulate: its draws are kept all the same
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        groups["posterior"].attrs["no_predictive"] = words
        return groups
