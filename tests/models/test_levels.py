"""Tables of levels: how kinds are read, from wide and long files, and what is refused."""

import numpy as np
import pytest

from ppl_models.data import InputError, Said, load_levels, load_mixed, load_table

WIDE = """id,calm,mood,score,town
7,never,1: low,10,Ulm
8,Always,2: high,2,Jena
9,sometimes,2: high,,Bonn
10,?,1: low,10,Ulm
"""
LONG = "person,item,response\nann,q1,yes\nbob,q1,no\nann,q2,no\nbob,q2,yes\ncid,q2,NA\ncid,q1,yes\n"


def written(tmp_path, text):
    file = tmp_path / "table.csv"
    file.write_text(text)
    return file


def test_levels_stand_in_the_order_that_the_rules_give(tmp_path):
    said = Said(id="id", drop=("town",))
    table = load_levels(written(tmp_path, WIDE), said=said)
    assert table.columns == ("calm", "mood", "score")
    assert table.levels == (("never", "sometimes", "Always"), ("1: low", "2: high"), ("2", "10"))
    assert table.values.tolist() == [[0, 0, 1], [2, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert table.mask.tolist() == [[True] * 3, [True] * 3, [True, True, False], [False, True, True]]
    assert table.ids == ("7", "8", "9", "10") and table.num_levels == (3, 2, 2)
    assert "column 'calm': 3 levels, never < sometimes < Always" in table.notes


def test_categories_are_told_apart_from_orders_and_groups_from_measurements(tmp_path):
    file = written(tmp_path, WIDE)
    table = load_levels(file, ordered=False, said=Said(id="id", group="town"))
    assert table.groups == ("Ulm", "Jena", "Bonn", "Ulm") and "town" not in table.columns
    table = load_levels(file, ordered=False, columns=["town"])
    assert table.levels == (("Ulm", "Jena", "Bonn"),)
    said = Said(kinds={"town": "ordinal:Ulm<Bonn<Jena"})
    assert load_levels(file, columns=["town"], said=said).values[:, 0].tolist() == [0, 2, 1, 0]


def test_new_rows_are_read_with_the_levels_of_the_old(tmp_path):
    file = written(tmp_path, "calm\nalways\nalways\n")
    known = {"calm": ("never", "always")}
    assert load_levels(file, columns=["calm"], levels=known).values.tolist() == [[1], [1]]
    with pytest.raises(InputError, match="row 3, column 'calm': found 'often', wanted one"):
        load_levels(written(tmp_path, "calm\nalways\noften\n"), columns=["calm"], levels=known)


def test_a_file_with_one_answer_a_row_is_the_table_that_it_means(tmp_path):
    file = written(tmp_path, LONG)
    bits, levels = load_table(file), load_levels(file)
    for table in (bits, levels):
        assert table.columns == ("q1", "q2") and table.ids == ("ann", "bob", "cid")
        assert table.values.tolist() == [[1, 0], [0, 1], [1, 0]]
        assert table.mask.tolist() == [[True, True], [True, True], [True, False]]
        assert table.notes[0].startswith("one answer a row: 3 of 'person' × 2 of 'item', 5 answers")
        assert table.values.dtype == np.int8
    same = written(tmp_path, LONG + "ann,q3,yes\nbob,q3,yes\n")
    with pytest.raises(InputError, match="column 'q3': every cell is 1: it tells nothing, drop"):
        load_table(same)
    assert load_table(same, allow_constant=True).columns == ("q1", "q2", "q3")
    other = written(tmp_path, LONG.replace("person,item,response", "who,what,said"))
    with pytest.raises(InputError):  # words of people are no levels
        load_levels(other)
    assert load_levels(other, said=Said(long=("who", "what", "said"))).values.tolist() == [
        [1, 0], [0, 1], [1, 0],
    ]  # fmt: skip


def test_items_of_a_long_file_keep_their_own_levels(tmp_path):
    text = "student,task,score\na,x,0\nb,x,2\na,y,1\nb,y,0\nc,y,2\n"
    table = load_levels(written(tmp_path, text))
    assert table.levels == (("0", "2"), ("0", "1", "2"))
    assert table.values.tolist() == [[0, 1], [1, 0], [0, 2]]
    again = written(tmp_path, "student,task,score\nz,x,2\n")
    known = dict(zip(table.columns, table.levels, strict=True))
    loaded = load_levels(again, columns=table.columns, levels=known)
    assert loaded.values.tolist() == [[1, 0]] and loaded.mask.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("text", "said", "words"),
    [
        ("a\nred\nblue\ngreen\n", {}, "column 'a': the order of blue, green, red is not known"),
        ("a,b\n1,1\n1,2\n", {}, "column 'a': every cell is '1'"),
        ("a\n" + "\n".join(map(str, range(31))), {}, "has 31 different cells, and 30"),
        ("a,b\n1,1\n2,2\n", {"kinds": {"a": "real"}}, "kind 'real' does not fit"),
        ("a\nlow\nhigh\n", {"kinds": {"a": "ordinal:low<mid<high"}}, "no cell is 'mid'"),
        ("a,b\n1,1\n,\n2,2\n", {}, "row 3: every cell is missing"),
        (LONG + "ann,q1,no\n", {}, "row 8, column 'response': person 'ann' answered item 'q1'"),
        (LONG + ",q1,no\n", {}, "row 8, column 'person': the cell is missing"),
        (LONG, {"long": ("person", "thing", "response")}, "has no column 'thing'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, said, words):
    with pytest.raises(InputError) as caught:
        load_levels(written(tmp_path, text), said=Said(**said))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [lambda *x, **k: load_table(*x, kind="real", **k), load_mixed])
def test_counts_are_whole_numbers(tmp_path, load):
    file, said = written(tmp_path, "a,b\n1,0.5\n3,2\n-1,0\n"), Said(kinds={"a": "count"})
    with pytest.raises(InputError, match="row 4, column 'a': found -1, wanted a count"):
        load(file, said=said)
    assert load(written(tmp_path, "a,b\n1,0.5\n3,2\n"), said=said).values[1, 0] == 3


def test_categories_of_a_mixed_table_stand_in_the_same_order(tmp_path):
    file = written(tmp_path, "dose,how,town\n" + "10,often,Ulm\n2,never,Bonn\n1,always,Jena\n" * 4)
    kinds = dict.fromkeys(["dose", "how", "town"], "categorical")
    wanted = (("1", "2", "10"), ("never", "often", "always"), ("Ulm", "Bonn", "Jena"))
    assert load_mixed(file, kinds=kinds).levels == wanted
    assert load_levels(file, ordered=False).levels == wanted
