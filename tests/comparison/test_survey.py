"""The map of who wins: cells that are run once, and sentences that follow from their numbers."""

import csv
import json

import jax
import numpy as np
import pytest
import survey
from numpyro.handlers import seed, substitute
from survey import Cell, along, base_of, cells_of, places, sentences, sizes_of, target_of
from survey_truths import GROWTHS

import ppl_models
from inference.files.cards import CARDS
from inference.reading.anatomy import inspect


@pytest.mark.parametrize("name", CARDS)
def test_every_program_grows_in_every_direction(name):
    """The program simulates at that size, with the parameters that the truth names."""
    growth = GROWTHS[name]
    assert base_of(growth).rows == CARDS[name].paper().num_data
    latents = 3 if growth.latents else 0
    made = growth.make(5, 9, latents)
    width = {} if made.num_features is None else {"num_features": made.num_features}
    program = seed(substitute(getattr(ppl_models, name), data=made.params), 0)
    rows = jax.eval_shape(lambda: program(num_data=5, **width, **made.sizes))
    assert rows.shape == (5, 9)
    anatomy = inspect(getattr(ppl_models, name), (np.zeros(rows.shape),), made.sizes)
    assert set(anatomy.parameters) == set(made.params)
    if latents:
        latent = anatomy.latents[0]
        assert latents in (latent.size, latent.num_values)  # a component is one of three values


def test_each_axis_grows_alone_from_the_size_of_the_example():
    growth = GROWTHS["noisy_or_network"]
    sizes = sizes_of(growth, {"rows": [500], "columns": None, "latents": [20, 5]})
    assert sizes == {"rows": [500, 1000], "columns": [12, 25, 50], "latents": [5, 10, 20]}
    grown = cells_of(growth, sizes)
    assert len(grown) == 6 and grown.count(Cell(1000, 25, 10)) == 1  # the axes meet in one
    assert all(sum(x != y for x, y in zip(cell, base_of(growth), strict=True)) <= 1
               for cell in grown)  # fmt: skip
    assert sizes_of(GROWTHS["bernoulli_product"], {"latents": None}) == {}


def cell(latents, **methods):
    """Of 1000 rows, 25 columns and 100 parameters: one arrives below 0.05 + 100 / 2000 nats."""
    rows = {}
    for name, row in methods.items():
        path, clock = row if isinstance(row, tuple) else ([], [])
        rows[name] = {"status": row, "reason": row} if isinstance(row, str) else {
            "status": "done", "excess": path[-1], "path": path, "clock": clock, "checks": "",
        }  # fmt: skip
    return {"cell": [1000, 25, latents], "parameters": 100, "methods": rows}


BASE = Cell(1000, 25, 10)


def test_crossovers_are_named():
    """NUTS is overtaken from 10 causes on, runs out of budget at 20, and at 40 Gibbs is left."""
    known = [
        cell(5, TruncatedEM=([0.2, 0.06], [1.0, 3.0]), NUTS=([0.09], [2.0]),
             BoundEM="does not apply"),
        cell(10, TruncatedEM=([0.2, 0.06], [1.0, 4.0]), NUTS=([0.09], [9.0])),
        cell(20, TruncatedEM=([0.08], [6.0]), NUTS="out of budget", GibbsEM=([0.3], [1.0])),
        cell(40, TruncatedEM=([0.4], [6.0]), NUTS="does not fit", GibbsEM=([0.05], [7.0])),
        cell(80, TruncatedEM=([0.09, 0.4], [1.0, 6.0]), NUTS="does not fit"),
    ]  # fmt: skip
    assert target_of(known[0], 0.05) == pytest.approx(0.1)
    ranked = places(known, 0.05)
    assert {x.method for x in ranked} == {"TruncatedEM", "NUTS", "GibbsEM"}
    line = along(ranked, "latents", BASE)
    assert line[5]["TruncatedEM"].seconds == 3.0 and line[80]["TruncatedEM"].seconds is None
    assert line[80]["GibbsEM"].row["status"] == "not run"  # marked, not dropped
    assert sentences(ranked, "latents", BASE) == [
        "At 5 latents NUTS is first, in 2 s.",
        "From 10 to 20 latents TruncatedEM is first, in 4 s to 6 s.",
        "At 40 latents GibbsEM is first, in 7 s.",
        "At 80 latents no method that was run arrives (TruncatedEM ends 0.40 nats per row from the "
        "truth).",
        "At 5 latents NUTS is before TruncatedEM (2 s against 3 s); from 10 to 20 latents "
        "TruncatedEM is before NUTS (at 20: 6 s; NUTS: out of budget).",
        "At 20 latents TruncatedEM is the only one left.",
        "At 40 latents GibbsEM is the only one left.",
    ]
    assert sentences(ranked, "rows", BASE)[0] == "At 1000 rows TruncatedEM is first, in 4 s."


def test_the_script_runs_each_cell_once_and_marks_what_did_not_come_to_its_turn(
    tmp_path, capsys, monkeypatch
):
    out = tmp_path / "map"
    small = GROWTHS["bernoulli_product"]._replace(rows=40, columns=3)
    monkeypatch.setitem(GROWTHS, "bernoulli_product", small)
    asked = ["bernoulli_product", "--methods", "MAP", "--columns", "none", "--budget",
             "9", "--out", str(out)]  # fmt: skip
    survey.main([*asked, "--rows", "40"])
    assert sorted(x.name for x in out.iterdir()) == [
        "cells", "survey.csv", "survey.json", "survey.png", "survey.txt",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "At 40 rows MAP is first, in" in said and "turn" not in said
    kept = json.loads((out / "cells" / "40x3x0.json").read_text())["methods"]["MAP"]
    assert kept["excess"] == pytest.approx(kept["path"][-1]) and kept["checks"] == ""

    calls = []

    def fail(*_, **__):
        calls.append(1)
        raise MemoryError("too large a table")

    monkeypatch.setattr(survey, "compare", fail)
    survey.main([*asked, "--rows", "40", "--within", "1e-9"])  # read off anew
    assert "within 1e-09 nats" in capsys.readouterr().out
    survey.main([*asked, "--rows", "20", "--total", "1e-9"])
    assert "1 runs did not come to their turn" in capsys.readouterr().out
    with (out / "survey.csv").open() as file:
        assert [(x["rows"], x["status"]) for x in csv.DictReader(file)] == [
            ("20", "not run"), ("40", "done"),
        ]  # fmt: skip
    assert not calls
    survey.main([*asked, "--rows", "10"])
    assert calls == [1]
    with (out / "survey.csv").open() as file:
        assert "too large a table" in next(csv.DictReader(file))["reason"]
    with pytest.raises(SystemExit, match="2"):
        survey.main([*asked, "--rows", "40", "--seed", "1"])
    assert "made with seed 0, not 1" in capsys.readouterr().err


def test_what_is_wrong_is_said_before_any_work(tmp_path, capsys):
    for arguments, words in (
        (["latent_trait", "--within", "0"], "--within 0"),
        (["latent_trait", "--total", "-1"], "--total -1"),
        (["no_such_model"], "'no_such_model'"),
        (["bernoulli_product", "--rows", "none", "--columns", "none"], "nothing is left to grow"),
    ):
        with pytest.raises(SystemExit, match="2"):
            survey.main([*arguments, "--out", str(tmp_path / "out")])
        assert words in capsys.readouterr().err
