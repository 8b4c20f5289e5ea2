"""A user's own table: every accepted form comes back as it went in."""

import gzip
import io
import itertools

import numpy as np
import pytest
from small_tables import BITS, HOLES, write

from ppl_models.data import InputError, Said, Table, load_levels, load_table

NAMES = ("smokes", "drinks, ever", "walks")


def text_table(cells, names=None, mark=","):
    rows = [names] if names else []
    rows += [[str(cell) for cell in row] for row in cells]
    return "\n".join(mark.join(row) for row in rows) + "\n"


def assert_bits(table, mask=None, columns=("x1", "x2", "x3"), bits=BITS):
    assert isinstance(table, Table)
    assert table.values.dtype == np.float32
    assert table.mask.dtype == bool
    mask = np.ones(bits.shape, bool) if mask is None else mask
    np.testing.assert_array_equal(table.mask, mask)
    np.testing.assert_array_equal(table.values, np.where(mask, bits, 0))
    assert table.columns == columns


WORDS = [
    ("1", "0"), ("+1", "-1"), ("1.0", "-1.0"), ("1.0", "0.0"), (" 1", "0 "), ("True", "False"),
    ("TRUE", "false"), ("yes", "no"), ("Yes", "NO"), ("Y", "n"), ("t", "F"), ('"yes"', '"no"'),
    ('"1"', '"0"'),
]  # fmt: skip
FORMS = [(*words, hole) for words in WORDS for hole in (None, "NA")]
FORMS += [("1", "0", hole) for hole in ("", "NaN", "nan", "null", "None", "?", " NA ")]
FORMS += [("yes", "no", hole) for hole in ("", "nan", "?", " NA ")]


@pytest.mark.parametrize("one, zero, hole", FORMS)
def test_text_cells_of_every_accepted_form(tmp_path, one, zero, hole):
    cells = np.where(BITS == 1, one, zero).astype(object)
    mask = None
    if hole is not None:
        mask = HOLES
        cells[~HOLES] = hole
    assert_bits(load_table(write(tmp_path / "a.csv", text_table(cells))), mask)
    named = text_table(cells, ["smokes", '"drinks, ever"', " walks"])
    assert_bits(load_table(write(tmp_path / "a.csv", named)), mask, NAMES)


KINDS = [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.txt", " "), ("a.txt", "\t"),
         ("A.CSV", ",")]  # fmt: skip
ENDS = ["\n", "\r\n", "\r", "\n\n\n", "\n  \n"]


@pytest.mark.parametrize(("kind", "end"), list(itertools.product(range(6), range(5))))
def test_text_files_of_every_accepted_kind(tmp_path, kind, end):
    """Each kind with each end of lines; of both, half are compressed."""
    (name, mark), end, packed = KINDS[kind], ENDS[end], (kind + end) % 2
    line = "\r" if end == "\r" else "\r\n" if end == "\r\n" else "\n"
    text = text_table(BITS, ["a", "b", "c"], mark).rstrip("\n").replace("\n", line) + end
    content = text.encode("utf-8-sig")
    path = tmp_path / (name + ".gz" if packed else name)
    write(path, gzip.compress(content) if packed else content)
    assert_bits(load_table(path), columns=("a", "b", "c"))


def test_quoted_cells_may_hold_commas_and_line_ends_in_names(tmp_path):
    text = '"first\nname","a ""quoted"", one",c\n"1","0","0"\n"0","0","1"\n1,1,0\n1,0,1\n0,1,1\n'
    table = load_table(write(tmp_path / "a.csv", text))
    assert_bits(table, columns=("first\nname", 'a "quoted", one', "c"))


def test_one_column_with_an_empty_cell(tmp_path):
    table = load_table(write(tmp_path / "a.csv", "q\n1\n\n0\n"), allow_empty=True)
    assert table.values.tolist() == [[1.0], [0.0], [0.0]]
    assert table.mask.tolist() == [[True], [False], [True]]
    table = load_table(write(tmp_path / "a.csv", "do you smoke\n\n1\n0\n"), allow_empty=True)
    assert table.columns == ("do you smoke",)
    assert table.mask.tolist() == [[False], [True], [True]]


@pytest.mark.parametrize(
    "text, header, columns, rows",
    [
        ("a,b\n1,0\n0,1\n", None, ("a", "b"), 2),
        ("0,1\n1,0\n", None, ("x1", "x2"), 2),
        ("1,0\n1,0\n0,1\n", True, ("1", "0"), 2),
        ("y,n1\n1,0\n0,1\n", None, ("y", "n1"), 2),
        (",b\n1,0\n0,1\n", None, ("x1", "b"), 2),
        ("0,1,2\n1,0,1\n0,1,0\n", None, ("0", "1", "2"), 2),
        ("1,2,3\n1,0,1\n0,1,0\n", None, ("1", "2", "3"), 2),
        ("yes,no\nno,yes\n", None, ("x1", "x2"), 2),
        ("yes,no\nno,yes\n", False, ("x1", "x2"), 2),
        # As pandas and R write row names, and numbers as names.
        (",0,1\n0,1,0\n1,0,1\n2,1,1\n", None, ("x1", "0", "1"), 3),
        ('"","1","2"\n"a",1,0\n"b",0,1\n', None, ("x1", "1", "2"), 2),
        ("2001,2002\n1,0\n0,1\n", None, ("2001", "2002"), 2),
        (",7,5\n12,1,0\n9,0,1\n", None, ("x1", "7", "5"), 2),
        (",1\n1,0\n0,1\n", False, ("x1", "x2"), 3),
    ],
)
def test_names_are_told_from_values(tmp_path, text, header, columns, rows):
    unnamed = [columns[0]] if text[0] in ',"' and columns[1] in "017" else []
    said = Said(drop=tuple(unnamed))
    table = load_table(write(tmp_path / "a.csv", text), header=header, said=said)
    assert table.columns == columns[len(unnamed) :]
    assert table.values.shape == (rows, len(columns) - len(unnamed))


@pytest.mark.parametrize("text", ["1,2\n2,1\n1,1\n", ",0,1\n1,0,1\n,1,1\n"])
def test_names_that_may_be_values_are_asked_about(tmp_path, text):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(InputError, match="row 1: may be names or values: say --header or --no-"):
        load_table(path)
    how = {"allow_constant": True, "allow_empty": True}
    assert [len(load_table(path, said=Said(header=x), **how).mask) for x in (True, False)] == [2, 3]


def test_decimal_commas(tmp_path):
    text = "a;b\n1,5;-0,25\n2;,5\n"
    table = load_table(write(tmp_path / "a.csv", text), kind="real")
    assert table.values.tolist() == [[1.5, -0.25], [2.0, 0.5]]


@pytest.mark.parametrize("text", [
    ",q1,q2,q3,,\na,1,0,1,,\nb,0,0,1,,\nc,1,1,1,,\n",
    "person,item,response\n" + "".join(
        f"{p},{q},{a}\n" for p, row in zip("abc", ("101", "001", "111"), strict=True)
        for q, a in zip(("q1", "q2", "q3"), row, strict=True)
    ),
])  # fmt: skip
def test_columns_of_one_value_can_be_left_out(tmp_path, text):
    path = write(tmp_path / "a.csv", text)
    said = Said(guess=True, vary=True)
    for table in (load_table(path, said=said), load_levels(path, said=said)):
        assert table.columns == ("q1", "q2") and table.ids == ("a", "b", "c")
        assert table.values.tolist() == [[1, 0], [0, 0], [1, 1]]
        assert any("'q3'" in note and "one value or none" in note for note in table.notes)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int64, np.float32, np.float64])
def test_numpy_arrays(tmp_path, dtype):
    order = "F" if dtype in (bool, np.int64, np.float64) else "C"
    array = np.asarray(BITS, dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    assert_bits(load_table(tmp_path / "a.npy"))
    np.savez(tmp_path / "a.npz", array)
    assert_bits(load_table(tmp_path / "a.npz"))
    np.savez_compressed(tmp_path / "b.npz", labels=np.arange(5), table=array)
    assert_bits(load_table(tmp_path / "b.npz", key="table"))
    if dtype not in (bool, np.uint8):
        np.save(tmp_path / "a.npy", 2 * array - 1)
        assert_bits(load_table(tmp_path / "a.npy"))
    if np.dtype(dtype).kind == "f":
        np.save(tmp_path / "a.npy", np.where(HOLES, array, np.nan))
        assert_bits(load_table(tmp_path / "a.npy"), HOLES)


def test_arrays_of_words(tmp_path):
    np.save(tmp_path / "a.npy", np.where(HOLES, np.where(BITS == 1, "yes", "no"), "?"))
    assert_bits(load_table(tmp_path / "a.npy"), HOLES)


def test_packed_bits(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, (30, 11))
    np.savez(tmp_path / "a.npz", bits=np.packbits(bits.astype(bool), axis=1))
    table = load_table(tmp_path / "a.npz", packed=11)
    np.testing.assert_array_equal(table.values, bits)
    with pytest.raises(InputError, match=r"has 2 bytes per row, but 20 bits fill 3"):
        load_table(tmp_path / "a.npz", packed=20)
    with pytest.raises(InputError, match=r"if these are packed bits, give packed="):
        load_table(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", bits)
    with pytest.raises(InputError, match=r"must be an array of bytes"):
        load_table(tmp_path / "b.npy", packed=11)


def test_parquet(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame(BITS, columns=["a", "b", "c"])
    frame.to_parquet(path)
    assert_bits(load_table(path), columns=("a", "b", "c"))
    frame.set_axis(pd.Index(["p", "q", "r", "s", "t"], name="person")).to_parquet(path)
    assert_bits(load_table(path), columns=("a", "b", "c"))
    mixed = pd.DataFrame(
        {
            "a": np.where(BITS[:, 0] == 1, "yes", "no"),
            "b": pd.array([0, None, 1, 0, 1], dtype="Int64"),
            "c": pd.array([False, True, False, None, True], dtype="boolean"),
        }
    )
    mixed.to_parquet(path)
    table = load_table(path)
    assert_bits(table, HOLES, columns=("a", "b", "c"))
    assert table.coding == ("words", "0/1", "words")
    mixed.assign(a=mixed["a"].astype("category")).to_parquet(path)
    assert_bits(load_table(path), HOLES, columns=("a", "b", "c"))


def test_netcdf(tmp_path):
    xarray = pytest.importorskip("xarray")
    path = tmp_path / "a.nc"
    names = ["a", "b", "c"]
    array = xarray.DataArray(
        np.where(HOLES, BITS, np.nan), dims=("person", "item"), coords={"item": names}
    )
    array.to_dataset(name="answers").to_netcdf(path, engine="h5netcdf")
    assert_bits(load_table(path), HOLES, columns=("a", "b", "c"))
    columns = xarray.Dataset({name: ("person", BITS[:, i]) for i, name in enumerate(names)})
    columns.to_netcdf(path, engine="h5netcdf")
    assert_bits(load_table(path), columns=("a", "b", "c"))
    two = xarray.Dataset(
        {"answers": (("person", "item"), BITS), "other": (("person", "item"), 7 * BITS)}
    )
    two.to_netcdf(path, engine="h5netcdf")
    assert_bits(load_table(path, key="answers"))
    with pytest.raises(InputError, match=r"holds 2 variables \('answers', 'other'\): choose one"):
        load_table(path)
    two[["answers"]].to_netcdf(path, engine="scipy")
    assert_bits(load_table(path))
    xarray.Dataset().to_netcdf(path, engine="h5netcdf")
    with pytest.raises(InputError, match="holds no variable at its top level"):
        load_table(path)


def test_each_column_is_coded_by_itself(tmp_path):
    text = "a,b,c,d\n1,-1,yes,1\n0,1,no,1\n1,1,?,?\n"
    table = load_table(write(tmp_path / "a.csv", text), allow_constant=True)
    assert table.values.tolist() == [[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]]
    assert table.coding == ("0/1", "-1/+1", "words", "0/1")


def test_a_column_of_one_value_must_agree_with_the_rest(tmp_path):
    path = tmp_path / "a.csv"
    allowed = {"allow_constant": True}
    table = load_table(write(path, "a,b,c\n-1,1,-1\n1,1,-1\n"), **allowed)
    assert table.values.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert table.coding == ("-1/+1",) * 3
    with pytest.raises(InputError, match=r"column 'b': every cell is 0 in a table of -1/\+1"):
        load_table(write(path, "a,b,c\n-1,0,1\n1,0,1\n"), **allowed)
    with pytest.raises(InputError, match="column 'b': every cell is -1 in a table of 0/1"):
        load_table(write(path, "a,b\n0,-1\n1,-1\n"), **allowed)


def test_real_tables(tmp_path):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(20, 3)).astype(np.float32)
    path = tmp_path / "a.csv"
    buffer = io.StringIO()
    np.savetxt(buffer, numbers, delimiter=",")
    table = load_table(write(path, buffer.getvalue()), kind="real")
    np.testing.assert_allclose(table.values, numbers, rtol=1e-6)
    assert table.coding == ("real",) * 3
    table = load_table(write(path, "a,b\n1.5,2\n,3e2\n"), kind="real", allow_constant=True)
    assert table.values.tolist() == [[1.5, 2.0], [0.0, 300.0]]
    assert table.mask.tolist() == [[True, True], [False, True]]
    np.save(tmp_path / "a.npy", numbers)
    np.testing.assert_array_equal(load_table(tmp_path / "a.npy", kind="real").values, numbers)
    with pytest.raises(ValueError, match="`kind` must be 'binary' or 'real', found 'count'"):
        load_table(path, kind="count")


def test_columns_are_chosen_by_name(tmp_path):
    path = write(tmp_path / "a.csv", "id,a,b,c\nann,1,0,0\nbob,0,0,1\ncy,1,1,0\n")
    table = load_table(path, columns=["c", "a"])
    assert table.columns == ("c", "a")
    assert table.values.tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(InputError, match="has no column 'd'"):
        load_table(path, columns=["a", "d"])


def test_what_may_be_allowed(tmp_path):
    path = write(tmp_path / "a.csv", "a,b,c,d\n1,0,,1\n,,,\n0,1,,1\n")
    table = load_table(path, allow_empty=True, allow_constant=True)
    assert table.mask.sum() == 6
    assert table.coding == ("0/1", "0/1", "", "0/1")
