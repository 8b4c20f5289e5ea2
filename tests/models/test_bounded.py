"""Files that expand to more than there is memory for are refused before they are read."""

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hostile import assert_exit, refused

from ppl_models.data import bounded, load_mixed, load_table

ROWS = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]], np.int8)
CELLS = np.tile(ROWS, (2**18, 1))
FRAME = pd.DataFrame(CELLS, columns=list("abcd"))


def packed(content):
    return gzip.compress(content, 1)


def write(path, kind):
    """A table of four million cells, and how many bytes it expands to."""
    if kind == "bits.csv.gz":
        path.write_bytes(packed(b"a,b,c,d\n" + b"0,1,1,0\n1,0,0,1\n1,1,0,0\n0,0,1,1\n" * 2**18))
        return 8 + 2 * CELLS.size
    if kind == "empty.csv.gz":
        path.write_bytes(packed(b",,,,,,,\n" * 2**19))
        return CELLS.size
    if kind == "parts.csv.gz":  # each part claims its own size, the last the least
        path.write_bytes(packed(b"a,b\n" + b"0,1\n1,0\n" * 2**20) + packed(b"0,1\n"))
        return 8 + 8 * 2**20
    if kind == "bits.npz":
        np.savez_compressed(path, x=CELLS)
        return CELLS.nbytes
    if kind == "notes.npz":  # members that are no arrays hide none that is
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            stream = io.BytesIO()
            np.save(stream, CELLS)
            archive.writestr("notes.txt", "hello")
            archive.writestr("x.npy", stream.getvalue())
        return CELLS.nbytes
    if kind == "bits.parquet":
        FRAME.to_parquet(path)
        return CELLS.nbytes
    if kind == "words.parquet":  # long ones, of which the file holds two
        FRAME.iloc[:4096].replace({0: "no" * 200, 1: "yes" * 200}).to_parquet(path)
        return 4 * 4096 * 500  # in the mean
    xr.Dataset({"x": (("row", "column"), CELLS)}).to_netcdf(
        path, engine="h5netcdf", encoding={"x": {"zlib": True, "complevel": 4}}
    )
    return CELLS.nbytes


KINDS = ("bits.csv.gz", "empty.csv.gz", "parts.csv.gz", "bits.npz", "notes.npz", "bits.parquet",
         "words.parquet", "bits.nc")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_reckoned_before_a_file_is_read(tmp_path, monkeypatch, kind):
    """What expands beyond the memory is refused unread. Reading takes no more than was reckoned:
    room for exactly that admits the file, a byte less does not."""
    path = tmp_path / kind
    size = write(path, kind)
    assert path.stat().st_size < size / 20
    options = {"key": "x"} if kind == "notes.npz" else {}
    allowed = {**options, "allow_empty": True, "allow_constant": True}
    reckoned, check = [], bounded.check_room

    def keep(path, size, needed, room=None):
        reckoned.append(needed)
        check(path, size, needed, room)

    tracemalloc.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(bounded, "free_memory", lambda: size)  # reading takes several times that
            for reader in (load_table, load_mixed):
                words = f"{size / 1e6:.0f} MB are free: leave out rows or columns"
                with refused(f"{kind}: expands to ", " MB or more, which takes about ", words):
                    reader(path, **options)
        assert tracemalloc.get_traced_memory()[1] < size
        for module in ("bounded", "array_tables"):
            monkeypatch.setattr(f"ppl_models.data.{module}.check_room", keep)
        load_table(path, **allowed)
        needed = max(reckoned)
        assert tracemalloc.get_traced_memory()[1] <= needed
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(bounded, "free_memory", lambda: needed)
    load_table(path, **allowed)
    monkeypatch.setattr(bounded, "free_memory", lambda: needed - 1)
    with refused("expands to "):
        load_table(path, **options)


def test_a_bomb_is_one_line_of_a_command(tmp_path, capfd, monkeypatch):
    """A gigabyte of commas in a megabyte of .gz."""
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"," * 10**7) * 100)
    assert path.stat().st_size < 1_200_000
    monkeypatch.setattr(bounded, "free_memory", lambda: 300_000_000)
    command = ["check", "bernoulli_product", "--data", path]
    assert_exit(capfd, command, "bomb.csv.gz: expands to ", "300 MB are free", folder=tmp_path)


def test_free_memory_is_that_of_the_machine_or_of_its_container(tmp_path, monkeypatch):
    whole = bounded.free_memory()
    real = type(tmp_path).read_text
    monkeypatch.setattr(
        type(tmp_path), "read_text",
        lambda self, *a: "4096\n" if self.name == "memory.max" else real(self, *a),
    )  # fmt: skip
    assert whole > 4096 == bounded.free_memory()
