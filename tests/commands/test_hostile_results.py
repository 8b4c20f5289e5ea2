"""Saved fits, comparisons and maps are data only: those altered are refused in one line."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from hostile import BITS, FRAME, assert_exit, examples, refused
from hypothesis import given
from hypothesis import strategies as st

from inference.cli import main
from inference.comparison.compare import Comparison
from inference.comparison.files import KIND as COMPARISON
from inference.comparison.files import load_comparison, save_comparison
from inference.files.arviz import dataset, import_arviz, load, save
from inference.files.map.fit import Map
from inference.items.fits import KIND, load_fit
from ppl_models.data.sealed import sealed

ROOT = Path(__file__).parents[2]
PARAMS = {"mixing": np.array([0.3, 0.7]), "probs": np.array([[0.2, 0.4, 0.9], [0.8, 0.5, 0.3]])}
ATTRS = {
    "kind": KIND, "model": "bernoulli_mixture", "method": "EM", "cells": "binary",
    "sizes": json.dumps({"num_components": "2"}), "columns": json.dumps(["a", "b", "c"]),
    "levels": "{}", "missing": "[]",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def rows(folder):
    (folder / "rows.csv").write_text(FRAME.to_csv(index=False))
    return folder / "rows.csv"


def keep(folder, params=PARAMS, **attrs):
    path = folder / "fit.nc"
    groups = {"point_estimate": dataset(params, columns=["a", "b", "c"])}
    save(groups, path, {**ATTRS, **attrs})
    return path


def test_a_sound_fit_is_used(folder, rows):
    assert load_fit(str(keep(folder))).params["mixing"].shape == (1, 2)
    out = folder / "scores.csv"
    assert main(["score", str(keep(folder)), "--data", str(rows), "--out", str(out)]) == 0
    both = list(zip(*PARAMS.values(), strict=True))
    probability = [sum(m * np.prod(np.where(row, p, 1 - p)) for m, p in both) for row in BITS]
    scores = pd.read_csv(out)["log_likelihood"]
    np.testing.assert_allclose(scores, np.log(probability), atol=1e-4)
    out.unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "another"}, "holds no fit"),
        ({"kind": COMPARISON}, "holds no fit"),
        ({"model": "no_such_model"}, "was made with the program 'no_such_model'"),
        ({"model": "hostile_module:program"}, "--model hostile_module:program if you trust that"),
        ({"sizes": "{"}, "is no fit, or not a whole one"),
        ({"sizes": json.dumps({"num_components": "__import__('os')"})}, "is no fit"),
        ({"sizes": json.dumps({"num_components": "3"})}, "'mixing' has shape (2,)"),
        ({"sizes": json.dumps({"num_clauses": "2"})}, "num_clauses"),
        ({"columns": "5"}, "is no fit, or not a whole one"),
        ({"columns": json.dumps(["../a", "b", "c"])}, "has no column '../a': it has a, b, c"),
        ({"cells": "odd"}, "is no fit, or not a whole one"),
        ({"params": {"mixing": PARAMS["mixing"]}}, "the parameters are ['mixing']"),
        ({"params": {**PARAMS, "probs": np.zeros((2, 4))}}, "'probs' has shape (2, 4)"),
        ({"params": {**PARAMS, "mixing": np.array([np.nan, 1])}}, "does not hold finite numbers"),
    ],
)
def test_a_fit_of_another_kind_is_refused(folder, rows, change, words, capfd):
    mark = folder / "hostile_module.py"
    mark.write_text("raise SystemExit('imported')\n")
    path = keep(folder, **change)
    command = ["score", path, "--data", rows, "--out", folder / "scores.csv"]
    assert_exit(capfd, command, words, folder=folder)
    assert "hostile_module" not in sys.modules


def map_of(folder):
    path = folder / "map.npz"
    params = {"weights": np.zeros((2, 3)), "bias": np.zeros(3)}
    made = Map(("a", "b", "c"), ("binary",) * 3, ((),) * 3, np.zeros(3), np.ones(3), params,
               "quadrature", np.zeros((4, 2)))  # fmt: skip
    path.write_bytes(made.save())
    assert Map.load(path).columns == ("a", "b", "c")
    return path


def comparison_of(folder):
    path = folder / "result.nc"
    saved = Comparison("m", {}, {}, {"EM": np.zeros(3)}, {"EM": (np.zeros(2), np.zeros(2))}, {},
                       {"EM": {"mixing": np.zeros(2)}}, {}, {})  # fmt: skip
    save_comparison(saved, path)
    assert load_comparison(path).model == "m"
    return path


@pytest.mark.parametrize(
    ("make", "readers"),
    [(keep, (load_fit,)), (comparison_of, (load, load_comparison)), (map_of, (Map.load,))],
    ids=["fit", "comparison", "map"],
)
def test_a_flipped_bit_or_a_missing_end_is_one_line(folder, capfd, make, readers):
    """Whichever bit it is: a parser that saw it could hang, or read other numbers."""
    path = make(folder)
    content = path.read_bytes()
    dice = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        for reader in readers:
            with refused(f"{path.name}: "):
                reader(str(path))
    for _ in range(15):
        path.write_bytes(content[: dice.randrange(len(content))])
        for reader in readers:
            with refused(f"{path.name}: "):
                reader(str(path))
    assert capfd.readouterr() == ("", "")


def test_a_fit_that_arviz_saved_again_is_read_if_its_values_are_the_same(folder, rows):
    arviz = import_arviz()
    path = folder / "again.nc"
    arviz.from_netcdf(keep(folder)).to_netcdf(path)
    with pytest.warns(UserWarning, match="again.nc: saved again by another program"):
        fit = load_fit(str(path))
    np.testing.assert_array_equal(fit.params["probs"][0], PARAMS["probs"])
    command = ["score", path, "--data", rows, "--out", folder / "scores.csv"]
    done = subprocess.run(
        [sys.executable, "-m", "inference", *map(str, command)], capture_output=True, text=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    assert (
        done.stderr.startswith(f"latentbits: {path}: saved again") and done.stderr.count("\n") == 1
    )
    (folder / "scores.csv").unlink()
    with h5py.File(path, "r+") as file:
        file["point_estimate/mixing"][0] = 0.4
    with refused("again.nc: ends without a checksum"):
        load_fit(str(path))


def linked(name, target):
    """What gives a file one more name, for what `target` makes of the file and its folder."""

    def change(file, folder):
        file[name] = target(file, folder)

    return change


def deep(file, _):
    file.create_group("/".join("x" * 5000))


def raw(file, folder):
    (folder / "raw").write_bytes(bytes(800))
    file.create_dataset("raw", (100,), "f8", external=[(str(folder / "raw"), 0, 800)])


def virtual(file, folder):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "pipe.nc"), "x", (3,))
    file.create_virtual_dataset("virtual", layout)


def vast(file, _):
    file.create_dataset("vast", (1 << 40,), "f8", chunks=(1 << 10,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (linked("outside", lambda _, folder: h5py.ExternalLink(str(folder / "pipe.nc"), "/x")),
         "'/outside' is a link"),
        (linked("point_estimate/soft", lambda *_: h5py.SoftLink("/point_estimate")),
         "'/point_estimate/soft' is a link"),
        (linked("point_estimate/loop", lambda file, _: file["/"]), "has another name too"),
        (linked("point_estimate/pair", lambda file, _: file.create_group("two")),
         "has another name too"),
        (deep, "16 deep"), (raw, "are in another file"), (virtual, "are in another file"),
        (vast, "more than the file holds"),
    ],
)  # fmt: skip
def test_links_loops_and_endless_groups_are_refused_unopened(folder, rows, change, words, capfd):
    """A link to a pipe would be waited for, a loop followed: in fits, results and tables alike."""
    path = keep(folder)
    if not (folder / "pipe.nc").exists():
        os.mkfifo(folder / "pipe.nc")
    with h5py.File(path, "r+") as file:
        change(file, folder)
    path.write_bytes(sealed(path.read_bytes()))  # a digest proves nothing of who wrote it
    assert_exit(capfd, ["check", "bernoulli_product", "--data", path], words, folder=folder)
    out = folder / "scores.csv"
    for command in (
        ["transform", path, "--data", rows, "--out", out],
        ["score", path, "--data", rows, "--out", out],
        ["report", path, "--out", folder / "r.html"],
        ["rank", path, path],
    ):
        assert_exit(capfd, command, words, folder=folder)


@pytest.mark.parametrize("attrs", [{"kind": COMPARISON}, {"kind": COMPARISON, "rows": "{}"}, {}])
def test_report_and_rank_want_results_of_ours(folder, attrs, capfd):
    path = folder / "result.nc"
    save({"held_out": dataset({"x": np.zeros(3)})}, path, attrs)
    words = "is no comparison, or not a whole one" if attrs else "holds no comparison"
    assert_exit(capfd, ["report", path, "--out", folder / "r.html"], words, folder=folder)
    draws = dataset({"observed": np.zeros((1, 4, 3))}, ("chain", "draw"))
    save({"posterior": draws, "log_likelihood": draws}, path, {})
    assert_exit(capfd, ["rank", path, path], "is no result of a sampler", folder=folder)
    save({}, path, {})
    assert_exit(capfd, ["rank", path, path], "holds no draws", folder=folder)
    with h5py.File(path, "w"):
        pass
    assert_exit(capfd, ["rank", path, path], "ends without a checksum", folder=folder)


NAMES = st.sampled_from(["../up", "/etc/x", "a/b", "..", "a\\b", "C:", "x\ny", "é"])


@given(site=NAMES, column=NAMES)
@examples(20)
def test_names_in_files_are_no_paths(folder, site, column):
    """A site's or column's name is kept as it is, and leads nowhere."""
    before = sorted(folder.parent.rglob("*"))
    inside = folder / "named"
    inside.mkdir(exist_ok=True)
    group = dataset({site: np.eye(2, 3)}, columns=[column, "b", "c"])
    save({"point_estimate": group}, inside / "fit.nc", {"model": column})
    groups, attrs = load(inside / "fit.nc")
    assert list(groups["point_estimate"]) == [site] and attrs["model"] == column
    assert [x.name for x in inside.iterdir()] == ["fit.nc"]
    (inside / "fit.nc").unlink()
    inside.rmdir()
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize("change", [{"centre": np.zeros(2)}, {"scale": np.array([1, np.inf, 1])},
                                    {"mean": np.zeros((4, 3))}, {"about": "{}"}])  # fmt: skip
def test_maps_of_other_shapes_are_no_maps(folder, change):
    about = {"columns": ["a", "b", "c"], "kinds": ["binary"] * 3, "levels": [[]] * 3,
             "method": "quadrature"}  # fmt: skip
    sound = {"about": json.dumps(about), "centre": np.zeros(3), "scale": np.ones(3),
             "mean": np.zeros((4, 2)), "param_weights": np.zeros((2, 3)),
             "param_bias": np.zeros(3)}  # fmt: skip
    for name, parts in (("sound", sound), ("unsound", {**sound, **change})):
        np.savez(folder / f"{name}.npz", **parts)
        (folder / f"{name}.npz").write_bytes(sealed((folder / f"{name}.npz").read_bytes()))
    assert Map.load(folder / "sound.npz").columns == ("a", "b", "c")
    with refused("unsound.npz: is no saved map"):
        Map.load(folder / "unsound.npz")
