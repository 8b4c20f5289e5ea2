"""`latentbits report RESULT.nc`: a comparison reported again from its saved results."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..files.output import check_output, write_whole
from .progress import stage

DESCRIPTION = """Write the report of a comparison again from the result.nc that `latentbits compare`
wrote. No method is run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", metavar="RESULT.nc", help="what `latentbits compare` wrote")
    parser.add_argument("--out", metavar="FILE", help="by default report.html beside RESULT.nc")


def main(namespace: argparse.Namespace) -> int:
    from ..comparison.files import load_comparison
    from ..comparison.report.page import render
    from ..files.arviz import opened

    comparison = load_comparison(namespace.result)
    wanted = namespace.out or Path(namespace.result).with_name("report.html")
    out = check_output("--out", wanted, (".html", ".htm"))
    with stage("drawing"), opened(namespace.result, "comparison"):
        page = render(comparison)
    write_whole(out, page, "--out")
    print(f"report    {wanted}")
    return 0
