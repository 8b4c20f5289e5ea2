"""A table that cannot be read gets its line: which file, row and column, and what was wanted."""

import gzip

import numpy as np
import pytest
from small_tables import BITS, HOLES, write

from ppl_models.data import InputError, load_table

# name of the file, its content, arguments, and what the line must say after the name of the file
BAD_TEXT = {
    "third value": ("a,b\n1,0\n0,2\n", {}, "row 3, column 'b': found 2, wanted 0/1, -1/+1"),
    "third value, no names": ("1,0\n0,1\n0.5,1\n", {}, "row 3, column 'x1': found 0.5, wanted"),
    "infinity": ("1,0\n0,1\ninf,1\n", {}, "row 3, column 'x1': found inf, wanted"),
    "text": ("a,b\n1,0\n0,maybe\n1,1\n", {}, "row 3, column 'b': found 'maybe', wanted"),
    "text and holes": ("a,b\n1,0\n?,NA\n0,oui\n", {}, "row 4, column 'b': found 'oui', wanted"),
    "text in row 1": ("yes,maybe\nyes,no\n", {}, "row 1, column 'x2': found 'maybe', wanted"),
    "names denied": ("a,b\n1,0\n0,1\n", {"header": False}, "row 1, column 'x1': found 'a', wanted"),
    "minus one and zero": ("a\n1\n-1\n1\n0\n", {}, "row 5, column 'a': found 0, but the column"),
    "words and numbers": ("a\nyes\nno\n1\n", {}, "row 4, column 'a': found 1, but the"),
    "empty": ("", {}, "is empty"),
    "blank": ("\n \n\n", {}, "is empty"),
    "only a byte order mark": (b"\xef\xbb\xbf", {}, "is empty"),
    "names only": ("a,b\n", {}, "has a row of names and no data below it"),
    "names only, as told": ("1,0", {"header": True}, "has a row of names and no data below it"),
    "starts blank": ("\na,b\n1,0\n", {}, "row 1: is blank"),
    "constant": ("a,b\n1,0\n1,1\n", {}, "column 'a': every cell is 1: it tells nothing"),
    "constant -1": ("a,b\n-1,-1\n-1,1\n", {}, "column 'a': every cell is -1: it tells nothing"),
    "constants": ("a,b\n1,0\n1,0\n", {}, "column 'a': every cell is 1 (1 more like it)"),
    "constant but for holes": ("a,b\n1,0\n?,1\n", {}, "column 'a': every cell is 1"),
    "missing column": ("a,b\n1,\n0,\n", {}, "column 'b': every cell is missing: drop the column"),
    "missing row": ("a,b\n1,0\n,\n0,1\n", {}, "row 3: every cell is missing: drop the row"),
    "missing cell": (
        "a,b\n1,0\n0,NA\n1,1\n",
        {"allow_missing": False},
        "row 3, column 'b': the cell is missing, and none may be",
    ),
    "short row": ("a,b,c\n1,0,1\n0,1\n1,1,1\n", {}, "row 3: has 2 cells, but row 1 has 3"),
    "long row": ("a,b\n1,0\n0,1\n1,1,1\n", {}, "row 4: has 3 cells, but row 1 has 2"),
    "blank row": ("a,b\n1,0\n\n0,1\n", {}, "row 3: is blank"),
    "short row, quoted": ('a,b\n"1","0"\n"1,0"\n', {}, "row 3: has 1 cell, but row 1 has 2"),
    "open quotation": ('a,b\n1,0\n0,"1\n1,1\n', {}, "row 3: a quotation mark is opened"),
    "same name": ("a,b, a\n1,0,1\n0,1,0\n", {}, "columns 1 and 3 have the same name 'a'"),
    "wrong encoding": ("a,é\n1,0\n".encode("latin-1"), {}, "row 1: byte 0xe9 is not UTF-8"),
    "UTF-16": ("a,b\n1,0\n".encode("utf-16"), {}, "is UTF-16 text: save it as UTF-8"),
    "garbage": (b"a,b\n1,0\n\x00\x01\x02", {}, "row 3: holds a NUL byte: this is no text table"),
    "key": ("a\n1\n0\n", {"key": "a"}, "key= chooses an array of an .npz or .nc file"),
    "words where numbers are due": (
        "a\n1.5\nyes\n",
        {"kind": "real"},
        "row 3, column 'a': found 'yes', wanted a number",
    ),
    "infinite real": ("a\n1.5\n-inf\n", {"kind": "real"}, "row 3, column 'a': found -inf, wanted"),
    "beyond float32": ("a\n1.5\n1e300\n", {"kind": "real"}, "row 3, column 'a': found 1e+300"),
}  # fmt: skip


def assert_complaint(path, wanted, **arguments):
    """One line, which starts with the file and then says where and what."""
    with pytest.raises(InputError) as caught:
        load_table(path, **arguments)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}: {wanted}"), message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text_gets_its_line(tmp_path, case):
    content, arguments, wanted = BAD_TEXT[case]
    assert_complaint(write(tmp_path / "a.csv", content), wanted, **arguments)


def test_names_in_doubt_get_a_hint(tmp_path):
    path = write(tmp_path / "a.csv", "a,1\n1,0\n0,1\n")
    with pytest.raises(
        InputError, match=r"if row 1 holds the names of the columns: --header, header=True"
    ):
        load_table(path)
    assert load_table(path, header=True).columns == ("a", "1")


def test_long_and_broken_cells_stay_on_one_line(tmp_path):
    cell = '"' + "x\n" * 500 + '"'
    path = write(tmp_path / "a.csv", f"a,b\n1,0\n0,{cell}\n")
    assert_complaint(path, "row 3, column 'b': found 'x\\nx")
    with pytest.raises(InputError) as caught:
        load_table(path)
    assert len(str(caught.value)) < 250 + len(str(path))


def test_kinds_that_are_not_read_get_their_line(tmp_path):
    assert_complaint(write(tmp_path / "a.xlsx", "1,0\n"), "save it as CSV there")
    for name in ("a", "a.npy.gz", "a.gz"):
        assert_complaint(write(tmp_path / name, "1,0\n"), "is of no known kind")
    cut = gzip.compress(b"a,b\n1,0\n" * 100)[:-20]
    assert_complaint(write(tmp_path / "a.csv.gz", cut), "is not a whole gzip file")
    assert_complaint(write(tmp_path / "b.csv.gz", "a,b\n1,0\n"), "is not a whole gzip file")


def test_bad_arrays_get_their_line(tmp_path):
    path, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    np.savez(archive, a=BITS, b=BITS)
    assert_complaint(archive, "holds 2 arrays ('a', 'b'): choose one with key=")
    assert_complaint(archive, "has no array 'c': it holds 'a', 'b'", key="c")
    np.savez(archive)
    assert_complaint(archive, "holds no array")
    for shape in [(5,), (2, 3, 4), ()]:
        np.save(path, np.ones(shape))
        assert_complaint(path, f"has shape {shape}: a table has two dimensions")
    for shape, what in [((0, 3), "rows"), ((3, 0), "columns")]:
        np.save(path, np.ones(shape))
        assert_complaint(path, f"has no {what}")
    np.save(path, 1j * BITS)
    assert_complaint(path, "holds complex128")
    np.save(path, np.array([[(1, 2.0)]], dtype=[("a", int), ("b", float)]))
    assert_complaint(path, "holds [('a'")
    bits = np.random.default_rng(0).integers(0, 2, (1000, 7))
    bits[731, 4] = 9
    np.save(path, bits)
    assert_complaint(path, "row 732, column 'x5': found 9, wanted 0/1")
    np.save(path, np.where(bits == 9, np.inf, bits))
    assert_complaint(path, "row 732, column 'x5': found inf", kind="real")
    holed = np.where(HOLES, BITS, np.nan)
    np.save(path, holed)
    assert_complaint(path, "row 2, column 'x2': the cell is missing", allow_missing=False)


DAMAGED = {
    "a.npy": ("an .npy file", b"\x93NUMPY\x01\x00"),
    "a.npz": ("an .npz file", b"PK\x03\x04"),
    "a.parquet": ("a Parquet file", b"PAR1"),
    "a.nc": ("a netCDF file", b"\x89HDF\r\n\x1a\n"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_get_their_line(tmp_path, name):
    path, (what, start) = tmp_path / name, DAMAGED[name]
    garbage = np.random.default_rng(0).bytes(300)
    assert_complaint(write(path, b""), "is empty")
    assert_complaint(write(path, garbage), f"is not {what}, whatever its name says")
    assert_complaint(write(path, start + garbage), "cannot be read (")


def test_truncated_arrays_get_their_line(tmp_path):
    for name, save in (("a.npy", np.save), ("a.npz", np.savez)):
        path = tmp_path / name
        save(path, np.ones((100, 3)))
        assert_complaint(write(path, path.read_bytes()[:-50]), "cannot be read (")
    np.savez_compressed(path, np.arange(300).reshape(100, 3) % 7)
    damaged = bytearray(path.read_bytes())
    damaged[120:160] = bytes(40)
    assert_complaint(write(path, bytes(damaged)), "array 'arr_0' cannot be read (")


def test_parquet_with_bad_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table([[1, 0], [0, 1]], names=["a", "a"]), path)
    assert_complaint(path, "columns 1 and 2 have the same name 'a'")
    parquet.write_table(pyarrow.table({"a": [[1, 2], [3]]}), path)
    assert_complaint(path, "row 1, column 'a': found")
    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.int64())}), path)
    assert_complaint(path, "has no rows")
