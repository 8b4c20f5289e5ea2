"""`latentbits bench`: the methods beside the packages one would take instead, and how they grow.

The benchmarks are files of a checkout, `benchmarks/bench_*.py`, and so is what runs them:
`benchmarks/measuring.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from latentbits.models.data import InputError

from ..files.output import check_output

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
DESCRIPTION = """Measure every paper's method beside comparable packages (pip install
'latentbits[bench]'; those that are not there are left out), how the time grows with the data, and
the share of the machine's matrix-product rate. On one core, in processor seconds, compilation
apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the numbers and what made them")
    parser.add_argument("--only", metavar="NAME,…", help="some of the benchmarks; see --list")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, a line each")
    parser.add_argument("--full", action="store_true", help="larger tables: many minutes")


def main(namespace: argparse.Namespace) -> int:
    file = check_output("--json", namespace.json)
    if not FOLDER.is_dir():
        raise InputError(
            "the benchmarks are not part of the installed package: run this in a checkout "
            f"(pip install -e '.[bench]'), where they are in {FOLDER.name}/"
        )
    sys.path.insert(0, str(FOLDER))  # they share a clock
    try:
        return importlib.import_module("measuring").bench(namespace, file)
    finally:
        sys.path.remove(str(FOLDER))
