"""Run an experiment that goes beyond the papers, print its numbers, draw its figure.

python benchmarks/reproduce.py NAME [--json FILE] [--figure FILE] [OPTIONS]
python benchmarks/reproduce.py --help
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import beyond
from latentbits.models.data import InputError

from inference.commands import reproduce
from inference.papers.experiment import experiments


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reproduce.add_arguments(parser, experiments(beyond))
    try:
        return reproduce.main(parser.parse_args(arguments))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
