"""Files are data only: whatever is in them, nothing is run, nothing half-read, nothing strayed.

Whole files of every kind are cut short, altered byte by byte, swapped for one another and filled
with what does not belong there. Each is read rightly or refused in one line.
"""

import gzip
import io
import os
import zipfile

import numpy as np
import pytest
import xarray as xr
from hostile import BITS, FRAME, assert_exit, examples, refused
from hypothesis import given
from hypothesis import strategies as st

from inference.files.map.fit import Map
from ppl_models.data import InputError, load_mixed, load_table
from ppl_models.data.sealed import sealed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def whole(folder):
    """The bytes of a sound file of each kind."""
    made = {}
    FRAME.to_csv(folder / "x.csv", index=False)
    np.save(folder / "x.npy", BITS)
    np.savez(folder / "x.npz", bits=BITS)
    FRAME.to_parquet(folder / "x.parquet")
    grid = xr.Dataset({"bits": (("row", "column"), BITS.astype(float))})
    grid.to_netcdf(folder / "x.nc", engine="h5netcdf")
    for suffix in (".csv", ".npy", ".npz", ".parquet", ".nc"):
        made[suffix] = (folder / f"x{suffix}").read_bytes()
        (folder / f"x{suffix}").unlink()
    made[".csv.gz"] = gzip.compress(made[".csv"], mtime=0)
    return made


KINDS = (".csv", ".csv.gz", ".npy", ".npz", ".parquet", ".nc")


def read(path):
    """Read a table in every way: a table without NaN, or one line."""
    for reader, options in ((load_table, {}), (load_table, {"kind": "real"}), (load_mixed, {})):
        try:
            table = reader(path, **options)
        except InputError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)
            continue
        assert np.isfinite(table.values).all() and not table.values[~table.mask].any()


@given(kind=st.sampled_from(KINDS), data=st.data())
@examples(120)
def test_a_damaged_table_is_read_or_refused(folder, whole, kind, data, capfd):
    content = bytearray(whole[kind])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[place] = data.draw(st.sampled_from([0, 0x22, 0x30, 0x32, 0xFF]))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = folder / f"damaged{kind}"
    path.write_bytes(bytes(content[:end]))
    read(path)
    assert capfd.readouterr() == ("", "")  # no traceback of a library on its way out


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_another_than_its_name_says(folder, whole, kind):
    path = folder / f"other{kind}"
    for other, content in whole.items():
        path.write_bytes(content)
        if {kind, other} & {".csv"} or kind == other:
            read(path)
        else:
            with refused(str(path)):
                load_table(path)
    path.write_bytes(b"")
    with refused("is empty" if kind != ".csv.gz" else str(path)):
        load_table(path)


class Bomb:
    """What would leave a file behind if it were ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(folder, capfd):
    mark = folder / "went off"
    bomb = np.array([[Bomb(mark)]], object)
    np.save(folder / "bomb.npy", bomb, allow_pickle=True)
    np.savez(folder / "bomb.npz", x=bomb)
    np.savez(folder / "map.npz", about=bomb, centre=bomb, scale=bomb, mean=bomb)
    (folder / "map.npz").write_bytes(sealed((folder / "map.npz").read_bytes()))
    for path, what in ((folder / "bomb.npy", ""), (folder / "bomb.npz", "array 'x' ")):
        for reader in (load_table, load_mixed):
            with refused(f"{path}: {what}holds Python objects, which are not loaded"):
                reader(path)
    with refused("is no saved map"):
        Map.load(folder / "map.npz")
    command = ["check", "bernoulli_product", "--data", folder / "bomb.npy"]
    assert_exit(capfd, command, "Python objects", folder=folder)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "notes.txt", "x.npy/", "bits"])
def test_archives_with_odd_members(folder, name):
    path = folder / "odd.npz"
    stream = io.BytesIO()
    np.save(stream, BITS)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, stream.getvalue() if name.endswith("npy") else b"hello")
    before = sorted(folder.parent.rglob("*"))
    read(path)
    with refused(str(path), "has no array 'x/y'"):
        load_table(path, key="x/y")
    if name == "notes.txt":
        with refused("member 'notes.txt' is no array"):
            load_table(path)
    assert sorted(folder.parent.rglob("*")) == before


def test_paths_that_are_no_files(folder, monkeypatch):
    (folder / "folder.csv").mkdir()
    (folder / "loop.csv").symlink_to(folder / "loop.csv")
    os.mkfifo(folder / "pipe.csv")
    for path, words in (
        (folder / "folder.csv", "is a folder"),
        (folder / "none.csv", "there is no such file"),
        (folder / "loop.csv", "cannot be read"),
        (folder / "pipe.csv", "is no regular file"),
        ("x\0y.csv", "there is no such file"),
        ("x" * 300 + ".csv", "cannot be read (File name too long)"),
        ("~nobody at all/x.csv", "cannot be found"),
    ):
        for reader in (load_table, load_mixed):
            with refused(words):
                reader(path)

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    (folder / "mine.csv").write_text("a,b\n0,1\n1,0\n")
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)  # root may read everything
    with refused("mine.csv: cannot be read (Permission denied)"):
        load_table(folder / "mine.csv")
