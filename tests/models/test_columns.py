"""Which columns of a survey are measurements, and what two values of a column mean."""

import numpy as np
import pandas as pd
import pytest
from hostile import refused

from ppl_models.data import Said, load_mixed, load_table

ROWS = 12
RNG = np.random.default_rng(0)
BITS = RNG.random((ROWS, 3)) < 0.5
BITS[:2] = [[0, 0, 0], [1, 1, 1]]
GUESS = Said(guess=True)


def survey(path, index=False, **more):
    """Three questions coded 1/2, agree/disagree and yes/no, and whatever else there is."""
    frame = pd.DataFrame({
        **more,
        "q1": np.where(BITS[:, 0], 2, 1),
        "q2": np.where(BITS[:, 1], "agree", "disagree"),
        "q3": np.where(BITS[:, 2], "yes", "no"),
    })  # fmt: skip
    frame.to_csv(path, index=index)
    return path


def test_two_values_are_read_with_the_choice_stated(tmp_path):
    table = load_table(survey(tmp_path / "x.csv"))
    np.testing.assert_array_equal(table.values, BITS)
    assert table.coding == ("1/2", "disagree/agree", "words")
    assert table.levels == (("1", "2"), ("disagree", "agree"), ())
    assert table.notes == (
        "column 'q1': '1' is read as 0, '2' as 1",
        "column 'q2': 'disagree' is read as 0, 'agree' as 1",
    )
    mixed = load_mixed(tmp_path / "x.csv")
    assert mixed.kinds == ("binary",) * 3 and mixed.notes == table.notes
    np.testing.assert_array_equal(mixed.values, BITS)


def test_new_rows_are_read_as_the_old_ones_were(tmp_path):
    old = load_table(survey(tmp_path / "x.csv"))
    levels = {c: x for c, x in zip(old.columns, old.levels, strict=True) if x}
    text = "q3,age,q2,q1\nno,33,agree,2\nyes,41,agree,2\n"
    (tmp_path / "new.csv").write_text(text)
    new = load_table(tmp_path / "new.csv", columns=old.columns, levels=levels, allow_constant=True)
    np.testing.assert_array_equal(new.values, [[1, 1, 0], [1, 1, 1]])
    (tmp_path / "new.csv").write_text(text.replace("41,agree", "41,maybe"))
    with refused("row 3, column 'q2': found 'maybe', wanted 'disagree' or 'agree'"):
        load_table(tmp_path / "new.csv", columns=old.columns, levels=levels)


@pytest.mark.parametrize(
    ("name", "cells", "reason"),
    [
        ("case", np.arange(101, 101 + ROWS), "in order, like row numbers"),
        ("case", np.arange(ROWS)[::-1], "in order, like row numbers"),
        ("person_id", RNG.permutation(ROWS), "all distinct, like an id"),
        ("who", [f"name {i}" for i in RNG.permutation(ROWS)], "distinct words, like names"),
        ("wt", RNG.random(ROWS) + 0.5, "weighs rows or counts people"),
        ("population", RNG.integers(1000, 9000, ROWS), "weighs rows or counts people"),
    ],
)
def test_what_is_no_measurement_is_left_out_with_a_line(tmp_path, name, cells, reason):
    path = survey(tmp_path / "x.csv", **{name: cells})
    for table in (load_table(path, said=GUESS), load_mixed(path, said=GUESS)):
        assert table.columns == ("q1", "q2", "q3")
        assert f"column '{name}' is left out" in table.notes[0] and reason in table.notes[0]
    if name in ("case", "wt"):
        kept = load_mixed(path, said=GUESS._replace(kinds={name: "real"}))
        assert kept.columns[0] == name and kept.kinds[0] == "real"


def test_measurements_are_kept(tmp_path):
    """Body weights, ages, and a column in order that is too short to tell."""
    path = survey(
        tmp_path / "x.csv", weight=RNG.normal(70, 9, ROWS), age=RNG.integers(20, 90, ROWS)
    )
    assert load_mixed(path, said=GUESS).columns[:2] == ("weight", "age")
    (tmp_path / "short.csv").write_text("a,b\n1,0.5\n2,0.1\n3,0.7\n")
    assert load_mixed(tmp_path / "short.csv", said=GUESS).columns == ("a", "b")


def test_the_index_of_pandas_and_of_r_is_no_column(tmp_path):
    survey(tmp_path / "pandas.csv", index=True)
    frame = pd.read_csv(tmp_path / "pandas.csv", index_col=0)
    frame.index = [f"row {i}" for i in RNG.permutation(ROWS)]
    lines = frame.to_csv(sep=" ", header=False).splitlines()
    (tmp_path / "r.txt").write_text("\n".join(["q1 q2 q3", *lines]) + "\n")  # write.table
    for name in ("pandas.csv", "r.txt"):
        table = load_table(tmp_path / name, said=GUESS)
        assert table.columns == ("q1", "q2", "q3")
        assert "numbers or names the rows" in table.notes[0]
        np.testing.assert_array_equal(table.values, BITS)


def test_what_is_said_of_columns_is_done(tmp_path):
    counts = RNG.integers(0, 4, ROWS)
    path = survey(tmp_path / "x.csv", who=[f"p{i}" for i in range(ROWS)], n=counts, age=7)
    text = path.read_text().replace(",yes", ",-99")
    path.write_text(text)
    said = Said(drop=("age",), id="who", weights="n", missing=("-99",))
    with refused("every cell is 0"):  # only the noes are left
        load_table(path, said=said)
    table = load_table(path, said=said, allow_constant=True)
    assert table.columns == ("q1", "q2", "q3")
    assert table.ids == tuple(f"p{i}" for i in np.repeat(np.arange(ROWS), counts))
    np.testing.assert_array_equal(table.values[:, :2], np.repeat(BITS[:, :2], counts, axis=0))
    np.testing.assert_array_equal(table.mask[:, 2], np.repeat(~BITS[:, 2], counts))
    for wrong, words in (
        (Said(drop=("agee",)), "has no column 'agee': it has who, n, age"),
        (Said(weights="q2"), "column 'q2': found"),
        (Said(kinds={"q1": "odd"}), "kind 'odd'"),
        (Said(kinds={"q1": "real"}), "does not fit a program that observes binary numbers"),
    ):
        with refused(words):
            load_table(path, said=wrong)


def test_weights_that_are_no_counts_go_along_with_their_rows(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a;b;w\n1;0;0,5\n0;1;0\n0;0;1,75\n1;1;2\n")  # as German programs write it
    said = Said(weights="w", fractions=True)
    table = load_table(path, said=said)
    np.testing.assert_array_equal(table.weights, [0.5, 1.75, 2.0])
    np.testing.assert_array_equal(table.values, [[1, 0], [0, 0], [1, 1]])
    with refused("row 2, column 'w': found 0.5, and weights are whole numbers here"):
        load_table(path, said=said._replace(fractions=False))
    path.write_text(path.read_text().replace("1,75", "-1"))
    with refused("row 4, column 'w': found -1, and weights are numbers from 0"):
        load_table(path, said=said)


def test_rows_of_two_words_without_names_are_no_names(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("agree,disagree\ndisagree,agree\nagree,agree\n")
    table = load_table(path)
    assert table.columns == ("x1", "x2") and table.values.tolist() == [[1, 0], [0, 1], [1, 1]]


def test_very_many_columns_of_bits_are_looked_at_together(tmp_path, monkeypatch):
    """Thousands of columns of a few rows are the answers of models to questions: one by one they
    took minutes."""
    from ppl_models.data.encoding import Column

    file = tmp_path / "models.csv"
    width = 3000
    answers = np.random.default_rng(0).integers(0, 2, (12, width))
    names = ",".join(f"q{i}" for i in range(width))
    rows = [",".join([f"m{n}", *map(str, row)]) for n, row in enumerate(answers)]
    file.write_text("\n".join(["model," + names, *rows]) + "\n")
    monkeypatch.setattr(Column, "of", None)  # which would look at one
    table = load_table(file, said=Said(id="model", guess=True), allow_constant=True)
    np.testing.assert_array_equal(table.values, answers)
    assert table.ids[1] == "m1"
