"""`latentbits rank A.nc B.nc …`: different models on the same rows, by leave-one-out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from latentbits.models.data import InputError

from ..files.output import align, read_json
from .progress import stage

DESCRIPTION = """Rank results that `latentbits compare` wrote, of one model or of several, on the
same rows: the expected log density of a new row by leave-one-out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE.nc", nargs="+", help="such as DIR/NUTS.nc")


def main(namespace: argparse.Namespace) -> int:
    from ..files.arviz import load, opened, rank

    if len(namespace.files) < 2:
        raise InputError(f"{namespace.files[0]}: one result has nothing to be ranked against")
    results: dict[str, Any] = {}
    first = None
    for file in namespace.files:
        _check_there(Path(file))
        groups, attrs = load(file)
        if "log_likelihood" not in groups or "posterior" not in groups:
            raise InputError(f"{file}: holds no draws; leave-one-out wants those of a sampler")
        with opened(file, "result of a sampler"):
            observed = groups["observed_data"]["observed"].values
        first = observed if first is None else first
        if first.shape != observed.shape or not np.array_equal(first, observed):
            raise InputError(f"{file}: learned from other rows than {namespace.files[0]}")
        name = f"{attrs.get('model', file)}, {attrs.get('method', '')}"
        results[name if name not in results else file] = groups
    with stage("leave-one-out"), opened(", ".join(namespace.files), "result of a sampler"):
        rows = rank(results)
    lines = [["", "elpd / row", "±", "behind", "±", "bad k̂"]]
    for row in rows:
        means = [row[x] / row["rows"] for x in ("elpd", "error", "behind", "behind_error")]
        lines.append([row["name"], *(f"{x:.3f}" for x in means), str(row["bad_pareto_k"])])
    print("\n".join(align(lines)))
    return 0


def _check_there(file: Path) -> None:
    """Of a file that is missing beside a comparison: what became of that method, and what is."""
    manifest = file.with_name("manifest.json")
    if file.is_file() or not manifest.is_file():
        return
    methods = read_json(manifest).get("methods")
    if not isinstance(methods, dict):
        return  # that of something else: the file is missing, and that is said elsewhere
    rows = {name.replace(" ", "_"): row for name, row in methods.items()}
    why = rows[file.stem]["reason"] if file.stem in rows else "it took no part"
    draws = [x for x, row in rows.items() if row.get("kind", "point") != "point"]
    there = [f"{x}.nc" for x in draws if file.with_name(f"{x}.nc").is_file()]
    beside = f"; draws are in {', '.join(there)}" if there else "; no method there has draws"
    raise InputError(f"{file}: there is no such file: {file.stem} has no result ({why}){beside}")
