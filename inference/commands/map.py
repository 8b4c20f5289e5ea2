"""`latentbits map`: the map of a table."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from latentbits.models.data import InputError, load_mixed

from ..files.map.fit import Map, draw, fit_map
from ..files.option import SEED, add
from ..files.output import FIGURES, as_csv, check_output, draw_picture, write_whole
from .options import SIZE, add_table_options, said, tell, two
from .progress import stage

if TYPE_CHECKING:
    from latentbits.models.data import MixedTable

    from ..methods.continuous.factors import FactorPosterior


DESCRIPTION = """Fit two factors to a table of real, binary and categorical columns, missing cells
among them, and draw where its rows lie (Tipping 1998)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the table, one row per datum")
    parser.add_argument("--label", metavar="COLUMN", help="colour by this column, not fitted")
    parser.add_argument("--lines", action="store_true", help="draw where P(bit | x) is 1/2")
    place = partial(two, float, ",", "X,Y, such as 0.5,-1")
    parser.add_argument("--image", metavar="HxW", type=SIZE, help="the bits are an image: show it")
    words = "places whose images are shown; by default four far apart"
    how: dict[str, Any] = {"nargs": "+", "action": "extend", "type": place}
    parser.add_argument("--at", metavar="X,Y", help=words, **how)
    # Half of the plane is negative: "-1,2" is a place, where argparse would see an option.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    parser.add_argument("--onto", metavar="FILE", help="place the rows on this saved map")
    parser.add_argument("--out", metavar="FILE", default="map.svg", help="figure, .svg or .png")
    parser.add_argument("--save", metavar="FILE", help="save the map, .npz, for --onto")
    parser.add_argument("--places", metavar="FILE", help="write where each row lies, .csv")
    parser.add_argument("--method", choices=("quadrature", "bound"), help="how it is fitted")
    parser.add_argument("--steps", type=int, default=150, help="most steps of the fit")
    add(parser, {"seed": SEED})
    add_table_options(parser)
    parser.add_argument("--packed", type=int, metavar="BITS", help="bits per row, if packed")


def main(namespace: argparse.Namespace) -> int:
    # Before the work: after a long fit it is too late to learn that a folder is missing.
    out = check_output("--out", namespace.out, FIGURES)
    save = check_output("--save", namespace.save, (".npz",))
    listed = check_output("--places", namespace.places, (".csv",))
    onto = Map.load(namespace.onto) if namespace.onto else None
    levels, spoken = None, said(namespace)
    if onto is not None:
        levels = {c: x for c, x in zip(onto.columns, onto.levels, strict=True) if x}
        words = {"real": "real", "binary": "binary"}
        pairs = zip(onto.columns, onto.kinds, strict=True)
        known = {c: words.get(str(k), "categorical") for c, k in pairs}
        spoken = spoken._replace(kinds={**known, **spoken.kinds}, guess=False)
    table = load_mixed(
        namespace.file, label=namespace.label, key=namespace.key, packed=namespace.packed,
        levels=levels, columns=None if onto is None else onto.columns, said=spoken,
    )  # fmt: skip
    tell(table.notes)
    if namespace.image is not None:
        bits = sum(kind == "binary" for kind in table.kinds)
        if bits != namespace.image[0] * namespace.image[1]:
            height, width = namespace.image
            raise InputError(f"--image {height}x{width}: the table has {bits} binary columns")
    if onto is None:
        with stage("compiling and fitting two factors"):
            fitted, posterior, nats = fit_map(
                table, seed=namespace.seed, num_steps=namespace.steps, method=namespace.method
            )
    else:
        with stage("placing the rows"):
            fitted, posterior = onto, onto.transform(table)
        nats = -float(np.mean(posterior.evidence))
    places = None if namespace.at is None else np.array(namespace.at)
    picture = draw_picture(
        draw, out.suffix, fitted, posterior, label=table.label, lines=namespace.lines,
        behind=None if onto is None else onto.mean, image=namespace.image, places=places,
        title=Path(namespace.file).name, table=table,
    )  # fmt: skip
    print(f"rows      {len(table.values)}, {float(1 - table.mask.mean()):.1%} of the cells missing")
    for line in _counted(table):
        print(line)
    print(f"fit       {nats:.4f} nats per row, by {fitted.method}, evaluated by quadrature")
    write_whole(out, picture, "--out")
    if save is not None:
        write_whole(save, fitted.save(), "--save")
    if listed is not None:
        write_whole(listed, _list(posterior, table), "--places")
    print(f"map       {namespace.out}")
    return 0


def _list(posterior: FactorPosterior, table: MixedTable) -> bytes:
    deviation = np.sqrt(np.diagonal(np.asarray(posterior.covariance), axis1=1, axis2=2))
    numbers = np.hstack([np.asarray(posterior.mean), deviation]).T
    columns = dict(zip(("factor_1", "factor_2", "sd_1", "sd_2"), numbers, strict=True))
    label = {} if table.label is None else {"label": list(map(str, table.label))}
    rows = table.ids or [str(i + 1) for i in range(len(table.values))]
    return as_csv({"row": rows, **columns, **label})


def _counted(table: MixedTable) -> list[str]:
    """The columns by what they were taken for: a guess that is wrong is to be seen."""
    words = [k if isinstance(k, str) else "categorical" for k in table.kinds]
    lines = []
    for kind in dict.fromkeys(words):
        names = [c for c, k in zip(table.columns, words, strict=True) if k == kind]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        lines.append(f"{kind:<12}{len(names)}: {shown}")
    return lines
