"""`latentbits transform`, `complete`, `score`: use a fit on new rows."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from latentbits.models.data import InputError, Said
from latentbits.models.data.cells import level
from latentbits.models.data.tables import read_cells

from ..files.catalogue import blame
from ..files.output import as_csv, check_output, write_whole
from ..items.fits import certified, complete, load_fit, read_rows, score, transform
from ..reading.arguments import check_params
from .options import add_table_options, said
from .progress import stage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fit", metavar="FIT.nc", help="what `latentbits fit` wrote")
    parser.add_argument("--data", metavar="FILE", required=True, help="the rows")
    parser.add_argument("--model", metavar="MODEL", help="the program, if it is your own")
    add_table_options(parser)
    if parser.prog.endswith(" score"):
        words = "prove a bracket of each row's log likelihood: columns lower, upper, width"
        parser.add_argument("--certify", action="store_true", help=words)
    parser.add_argument("--out", metavar="FILE.csv", required=True, help="where to write")


def main(namespace: argparse.Namespace) -> int:
    out = check_output("--out", namespace.out, (".csv",))
    fit = load_fit(namespace.fit, namespace.model)
    spoken = said(namespace)
    missing = (*spoken.missing, *fit.missing)
    spoken = spoken._replace(missing=missing, covariates=fit.covariates)
    table = read_rows(namespace.data, fit.columns, fit.kind, namespace.key, spoken, fit.levels)
    with blame(namespace.fit):
        point: Any = {x: v[0] for x, v in fit.params.items()}
        check_params(fit.program, point, (table.values,), fit.arguments(table))
    work = {"transform": transform, "complete": complete, "score": score}[namespace.called]
    with stage(f"{namespace.called} {len(table.values)} rows"):
        names, values, words = work(fit, table)
        if getattr(namespace, "certify", False):
            if any(len(x) > 1 for x in fit.params.values()):
                raise InputError("--certify: wanted a fit to a point, and this one holds draws")
            with blame(namespace.fit):
                arguments = fit.arguments(table)
                more, proved = certified(fit.program, point, table.values, arguments)
            names, values = [*names, *more], np.stack([*values.T, *more.values()], 1)
            words = f"{words}\n{proved}"
    values = np.asarray(values, object)
    if namespace.called == "complete":
        seen = written(namespace.data, namespace.key, spoken, fit.columns)
        if seen is not None and seen.shape == values.shape:
            values = np.where(table.mask, seen, values)
    rows = table.ids or [str(i + 1) for i in range(len(values))]
    columns = dict(zip(names, values.T, strict=True))
    print(f"fit       {fit.name}, {fit.method}")
    print(words)
    write_whole(out, as_csv({namespace.id or "row": rows, **columns}), "--out")
    print(f"written   {namespace.out}")
    return 0


def written(path: str, key: str | None, said: Said, columns: tuple[str, ...]) -> np.ndarray | None:
    """The cells of these columns as the file has them; None where it has one answer a row."""
    cells = read_cells(path, header=said.header, key=key, kind="binary")
    if not {*columns} <= {*cells.columns}:
        return None
    shown = [[level(x) for x in cells.of(cells.columns.index(name))] for name in columns]
    return np.array(shown, object).T
