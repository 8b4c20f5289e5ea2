"""What users hold on to: public names, commands with their options, groups of the files written.

`frozen_surface.json` lists all of it. A name that is lost breaks the programs of others, and one
that is added is a promise: the list is changed by hand, on purpose.
"""

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import xarray

from inference import public
from inference.cli import main, make_parser

FROZEN = json.loads(Path(__file__).with_name("frozen_surface.json").read_text())


def assert_frozen(what, found):
    """:param found: place -> its names, which the file has in one string."""
    frozen = {(place, x) for place, names in FROZEN[what].items() for x in ["", *names.split()]}
    here = {(place, x) for place, names in found.items() for x in ["", *names]}
    lines = [f"lost: {place} {name}" for place, name in sorted(frozen - here)]
    lines += [f"added: {place} {name}" for place, name in sorted(here - frozen)]
    assert not lines, "\n".join([f"{what} in frozen_surface.json differ", *lines])


def test_names():
    packages = ("latentbits", "latentbits.models", "latentbits.models.data")
    assert_frozen("names", {x: importlib.import_module(x).__all__ for x in packages})
    assert importlib.import_module("latentbits").__all__ == public.__all__


def options(parser, name):
    """Each command below a parser -> what can be typed after it."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, one in action.choices.items():
                found |= options(one, f"{name} {below}")
        else:
            found.setdefault(name, []).extend(action.option_strings or [action.dest])
    return found


def test_commands():
    assert_frozen("commands", options(make_parser(), "latentbits"))


def test_files(tmp_path, monkeypatch):
    """A fit to a point with all its tables, one of draws, and a comparison of both kinds."""
    monkeypatch.chdir(tmp_path)
    # However many draws a comparison takes, its replicated rows are kept.
    monkeypatch.setattr("inference.files.predictive.MOST_KEPT", 10**9)
    rng = np.random.default_rng(0)
    table = rng.random((120, 5)) < 1 / (1 + np.exp(-rng.normal(size=(120, 1))))
    lines = [",".join(map(str, row)) for row in table + 0]
    Path("bits.csv").write_text("\n".join(["a,b,c,d,e", *lines]))
    both = [f"{line},{'fm'[i % 2]}" for i, line in enumerate(lines)]
    Path("groups.csv").write_text("\n".join(["a,b,c,d,e,sex", *both]))
    commands = (
        "fit latent_trait --set num_factors=2 --rotation oblimin --data bits.csv --out factors.nc",
        "fit latent_trait --set num_factors=1 --data groups.csv --group sex --out groups.nc",
        "fit bernoulli_product --data bits.csv --method NUTS --steps 20 --out draws.nc",
        "compare bernoulli_product --example small --methods MAP,NUTS --budget 10 --jobs 1 --out .",
    )
    found = {}
    for command in commands:
        assert main(command.split()) == 0
    for file in sorted(Path().glob("*.nc")):
        for group, variables in xarray.open_groups(file, engine="h5netcdf").items():
            found[f"{file.name}{group}"] = map(str, variables.data_vars)
    assert_frozen("files", found)
