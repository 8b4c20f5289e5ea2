"""`latentbits shorten FIT.nc --items 20`: which items of a test keep its information."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from latentbits.models.data import InputError

from ..files.output import as_csv, check_output, write_whole
from ..items.classes import table_of
from ..items.fits import load_fit
from ..items.short import short_form
from ..items.study import open_items, values_of

DESCRIPTION = """Choose the items of a fitted test that keep most of its information, and predict
the number right in the whole test from the short form, with an interval of 90 %."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fit", metavar="FIT.nc", help="what `latentbits fit` wrote")
    parser.add_argument("--items", type=int, required=True, help="how many items to keep")
    parser.add_argument("--model", metavar="MODEL", help="the program, if it is your own")
    parser.add_argument("--out", metavar="FILE.csv", help="write the table of scores there")


def main(namespace: argparse.Namespace) -> int:
    out = check_output("--out", namespace.out, (".csv",))
    fit = load_fit(namespace.fit, namespace.model)
    if fit.covariates:
        raise InputError(f"{namespace.fit}: wanted a fit without --covariates")
    point: dict[str, Any] = fit.point
    kwargs = dict(fit.sizes)
    if kwargs.pop("slope", "free") == "equal":
        point["weights"] = np.broadcast_to(point["weights"], (1, len(fit.columns)))
    rows = np.zeros((2, len(fit.columns)), np.float32)
    opened = open_items(fit.program, ((rows,), kwargs)) if fit.kind == "binary" else None
    values = {} if opened is None else values_of(opened, point)
    if not values or len(values["weights"]) != 1:
        raise InputError(
            f"{namespace.fit}: {fit.name} is no test of items of 0 and 1 on one factor: "
            "`latentbits fit 2PL` makes one"
        )
    total = len(fit.columns)
    if not 1 <= namespace.items < total:
        raise InputError(f"--items {namespace.items}: wanted 1 to {total - 1} of {total} items")
    form = short_form(values, namespace.items)
    names = [fit.columns[i] for i in form.items]
    print(f"Items of the short form, the most telling first; all {total}: {form.whole:.4f}")
    print("\n".join(table_of({"item": names, "reliability": form.reliability})))
    table = {"right": form.score, "whole": form.mean, "low": form.low, "high": form.high}
    print("\nNumber right in the short form, and in the whole test: mean, 90 % interval")
    print("\n".join(table_of({"right": [str(x) for x in form.score], **{
        x: table[x] for x in ("whole", "low", "high")}})))  # fmt: skip
    if out is not None:
        write_whole(out, as_csv(table), "--out")
        print(f"written   {namespace.out}")
    return 0
