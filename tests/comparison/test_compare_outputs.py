"""Beside its report `compare` gives a table of one's own its fit, and a table of results a row."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from made_comparisons import made

import inference.commands.compare as command
import inference.commands.fit as fit_command
from inference.cli import main
from inference.comparison.recommend import advice
from inference.files.output import append_row


def recommended(method="EM", prior=False, reasons=()):
    settings = {"prior": True} if prior else {}
    return SimpleNamespace(method=SimpleNamespace(name=method), settings=settings, reasons=reasons)


def rows(**marks):
    """Method -> mark of its score, of its intervals, and when it was there."""
    return {
        x.replace("_", " "): {
            "score": score, "uncertainty": intervals, "score_why": ["0.2 behind"],
            "seconds_to_score": seconds if score == "ARRIVED" else None,
            "seconds_to_uncertainty": 2 * seconds if intervals == "ARRIVED" else None,
        }
        for x, (score, intervals, seconds) in marks.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (rows(EM=("ARRIVED", "NONE", 0.2), NUTS=("ARRIVED", "ARRIVED", 9.0)),
         ["Take EM for estimates: none predicts clearly better. It was there first, after 0.2 s.",
          "Take NUTS for draws from the posterior: its intervals arrived after 18 s."]),
        (rows(EM=("ARRIVED", "NONE", 3.0), MAP=("ARRIVED", "NONE", 1.0)),
         ["Take EM for estimates: none predicts clearly better. It was there after 3 s, "
          "MAP after 1 s."]),
        (rows(EM=("WRONG", "NONE", 1.0), MAP=("ARRIVED", "NONE", 1.0)),
         ["Take MAP for estimates: none predicts clearly better. It was there first, after 1 s.",
          "EM, which `fit` takes by default, is not there: 0.2 behind."]),
        (rows(EM=("NOT_YET", "NONE", 1.0), NUTS=("NOT_YET", "NOT_YET", 1.0)),
         ["Take EM for estimates, as `fit` does: no score of it has arrived here.",
          "Draws from the posterior need a longer --limit: NUTS not yet."]),
        # Intervals about a wrong answer are no reason to take a method.
        (rows(NUTS=("WRONG", "ARRIVED", 1.0)),
         ["Take EM for estimates, as `fit` does: no score of it has arrived here."]),
    ],
)  # fmt: skip
def test_which_method_to_take_follows_from_the_marks(found, words):
    assert advice(recommended(), found) == words
    assert advice(recommended(reasons=("few rows",)), found) == [*words, "few rows"]


def test_a_fit_with_priors_is_judged_by_the_row_with_priors():
    found = rows(EM=("WRONG", "NONE", 1.0), EM_MAP=("ARRIVED", "NONE", 2.0))
    assert advice(recommended(prior=True), found)[0].startswith("Take EM MAP for estimates: none")
    assert advice(recommended(prior=True), rows(EM=("ARRIVED", "NONE", 1.0)))[0].startswith(
        "Take EM "
    )


@pytest.fixture
def table(tmp_path):
    bits = np.random.default_rng(0).random((60, 3)) < [0.2, 0.5, 0.8]
    np.savetxt(tmp_path / "bits.csv", bits, "%d", ",", header="a,b,c", comments="")
    return tmp_path / "bits.csv"


def run(table, *more):
    arguments = ["compare", "bernoulli_product", "--data", str(table), "--methods", "MAP",
                 "--replicates", "1", "--out", str(table.parent / "out"), *more]  # fmt: skip
    return main(arguments)


def test_a_table_of_ones_own_is_fitted_as_fit_does(table, capsys):
    out = table.parent / "fit.nc"
    assert main(["fit", "bernoulli_product", "--data", str(table), "--out", str(out)]) == 0
    fit = capsys.readouterr().out
    assert run(table) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(fit[: fit.index("\nfit   ")])
    assert shown.index("Take ") < shown.index("nats per row") < shown.index("report  ")
    kept = json.loads((table.parent / "out" / "manifest.json").read_text())["about"]["recommended"]
    assert kept["method"] and "\n".join(kept["lines"]) in fit and kept["reasons"][0] in shown
    assert "Which method to take" in (table.parent / "out" / "report.html").read_text()


@pytest.mark.parametrize("error", [ValueError("no <luck>\nat all"), KeyboardInterrupt()])
def test_a_fit_that_fails_takes_no_comparison_along(table, capsys, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(fit_command, "fit_table", fails)
    assert run(table) == 0
    why = "ValueError: no <luck> at all" if isinstance(error, ValueError) else "interrupted"
    shown = capsys.readouterr().out
    assert shown.startswith(f"no fit    {why}\n") and "MAP" in shown
    assert (table.parent / "out" / "report.html").is_file()


def test_an_example_is_not_fitted(tmp_path, capsys):
    small = ["compare", "bernoulli_product", "--example", "small", "--methods", "MAP"]
    results = tmp_path / "results.jsonl"
    assert main([*small, "--replicates", "1", "--out", str(tmp_path / "out"),
                 "--results", str(results)]) == 0  # fmt: skip
    assert "Take " not in capsys.readouterr().out
    row = json.loads(results.read_text())
    assert (row["program"], row["example"], row["file"]) == ("bernoulli_product", "small", None)
    assert row["methods"]["MAP"].keys() == {
        "score", "uncertainty", "seconds_to_score", "seconds_to_uncertainty", "seconds",
    }  # fmt: skip


def test_other_names_of_programs_and_settings(tmp_path):
    asked = ["--example", "small", "--methods", "EM", "--replicates", "1", "--jobs", "1"]
    out = tmp_path / "out"
    assert main(["compare", "lca", "--set", "n_classes=2", *asked, "--out", str(out)]) == 0
    assert json.loads((out / "manifest.json").read_text())["model"] == "categorical_mixture"
    with xr.open_datatree(out / "EM.nc") as groups:
        assert groups["point_estimate"]["mixing"].shape[-1] == 2


def test_a_row_says_what_ran_where_and_how_it_was_typed():
    row = command._results_row(made())
    assert (row["rows"], row["columns"], row["seed"], row["data_sets"]) == (50, 6, 0, 5)
    assert row["file"] == "made-up bits" and row["limit"] == 120.0 and row["mark"] == 0.01
    assert row["methods"]["NUTS"] == {
        "score": "ARRIVED", "uncertainty": "NOT_YET", "seconds_to_score": 9.52,
        "seconds_to_uncertainty": None, "seconds": 120.0,
    }  # fmt: skip
    assert row["methods"]["SVI flow"]["score"] == "NONE"
    assert row["machine"]["cores"] >= 1 and row["machine"]["backend"] == "cpu"
    assert row["versions"] and row["command"].startswith("compare latent_trait --data")


def test_rows_are_added_below_each_other(tmp_path):
    file = tmp_path / "results.jsonl"
    for seed in range(3):
        append_row(file, {"seed": seed, "words": "R̂\n"}, "--results")
    written = file.read_text().splitlines()
    assert [json.loads(x)["seed"] for x in written] == [0, 1, 2]


def test_a_file_that_cannot_take_a_row_is_said_before_any_work(tmp_path, capsys, monkeypatch):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "sealed.jsonl").write_text("{}\n")
    # Whoever runs the tests may write everywhere.
    monkeypatch.setattr(command.os, "access", lambda *_: False)
    monkeypatch.setattr(command, "_compare", lambda *_: pytest.fail("work was done"))
    for name, words in (
        ("none/results.jsonl", "there is no folder"),
        ("folder.jsonl", "is a folder"),
        ("bits.csv", "the name must end in .jsonl"),
        ("sealed.jsonl", "cannot be written (Permission denied)"),
    ):
        file = str(tmp_path / name)
        out = str(tmp_path / "out")
        assert main(["compare", "latent_trait", "--out", out, "--results", file]) == 2
        said = capsys.readouterr().err
        assert said.startswith("latentbits: --results ") and words in said
        assert said.count("\n") == 1
    assert (tmp_path / "sealed.jsonl").read_text() == "{}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the size of files")
def test_a_row_that_does_not_fit_on_the_disk_leaves_the_table_as_it_was(tmp_path):
    import resource
    import signal

    file = tmp_path / "results.jsonl"
    append_row(file, {"seed": 0}, "--results")
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ValueError, match="cannot be written"):
            append_row(file, {"words": "x" * 200}, "--results")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == before
