"""A user's own table: any of the usual files in, numbers and a mask of what was observed out."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .array_tables import (
    read_netcdf,
    read_npy,
    read_npz,
    read_parquet,
    unpack_bits,
)
from .bounded import bounded
from .cells import (
    Cells,
    complain,
    decode_binary,
    decode_real,
    show,
    to_numbers,
    user_path,
)
from .columns import Said, arrange, recode, said_of
from .long import long_columns, spread
from .text_tables import TEXT_SUFFIXES, read_text


class Table(NamedTuple):
    """A table, ready for a program: ``model(table.values, mask=table.mask)``.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.csv"
    >>> _ = file.write_text("aid,trade\\nyes,1\\nno,-1\\n")
    >>> table = load_table(file)
    >>> table.values.tolist(), table.coding, bool(table.mask.all())
    ([[1.0, 1.0], [0.0, 0.0]], ('words', '-1/+1'), True)
    """

    values: np.ndarray
    """(num_data, num_features), float32, or int8 of levels; 0 in missing cells"""
    mask: np.ndarray
    """(num_data, num_features), bool: True where the cell was observed"""
    columns: tuple[str, ...]
    """names: those of the file, or x1, x2, …"""
    coding: tuple[str, ...]
    """how each column was read: '0/1', '-1/+1', 'words', 'real'; '' where nothing was observed"""
    path: str
    """the file"""
    levels: tuple[tuple[str, ...], ...] = ()
    """what 0 and 1 stand for in columns of two other values; empty for the rest"""
    ids: tuple[str, ...] | None = None
    """(num_data,): what names the rows, if a column does"""
    notes: tuple[str, ...] = ()
    """a line for each choice that was made in reading"""
    groups: tuple[str, ...] | None = None
    """(num_data,): which group each row belongs to, if a column says so"""

    @property
    def num_levels(self) -> tuple[int, ...]:
        """How many levels each column has, of a table of levels."""
        return tuple(len(x) for x in self.levels)


def load_table(
    path: str | PathLike[str],
    *,
    kind: Literal["binary", "real"] = "binary",
    header: bool | None = None,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    packed: int | None = None,
    allow_missing: bool = True,
    allow_constant: bool = False,
    allow_empty: bool = False,
    said: Said | None = None,
    levels: Mapping[str, tuple[str, str]] | None = None,
) -> Table:
    """A table from a file: rows are data, columns are features.

    Files: ``.csv``, ``.tsv``, ``.txt``, ``.data`` (each also with ``.gz``; comma, semicolon, tab
    or space between cells), ``.parquet``, ``.npy``, ``.npz``, ``.nc``. Missing: an empty cell, NA,
    NaN, null, None or ?, in any case.

    A row may also hold one answer of bits: ``person,item,response``, or what ``said.long`` names.

    Binary cells are 0/1, −1/+1, true/false or yes/no (also t/f, y/n), 1/2 or any two words, such as
    agree/disagree: `levels` then says which of them is 1. Each column is read by itself and must
    keep to one of these. A column that shows one value only cannot tell what its other
    value would be, so it must agree with the rest: nothing but 0 in a table of −1/+1 is an error,
    as is nothing but −1 in a table of 0/1.

    :param kind: "binary", or "real" for any finite numbers.
    :param header: whether the first row of a text file holds names; None: look. It does when some
        cell of it is no value and none looks like the cell beneath.
    :param key: which array of an ``.npz``, which variable of a ``.nc`` file.
    :param columns: names of the columns to keep, in this order; None: all.
    :param packed: the array holds bits as :func:`numpy.packbits` packs them: so many to a row.
    :param allow_missing: False: a missing cell is an error.
    :param allow_constant: True: a column of one value is no error.
    :param allow_empty: True: a row or column with nothing observed is no error.
    :param said: columns to leave out, ids, weights, codes of missing cells, kinds.
    :param levels: column -> what 0 and 1 stand for, where that is known from another table.
    :raises InputError: one line: the file, the row (as a person counts rows in the file, the row of
        names among them), the column, what was found and what is wanted.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.csv"
    >>> _ = file.write_text("aid,trade\\nyes,1\\nno,0\\n?,1\\n")
    >>> table = load_table(file)
    >>> table.columns, table.values.tolist(), table.mask.tolist()[2]
    (('aid', 'trade'), [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]], [False, True])
    """
    if kind not in ("binary", "real"):
        raise ValueError(f"`kind` must be 'binary' or 'real', found {kind!r}")
    file = user_path(path)
    cells = read_cells(file, header=header, key=key, kind=kind)
    if packed is not None:
        cells = unpack_bits(file, cells, packed)
    said = said or Said()
    if kind == "binary" and (names := long_columns(cells, said)) is not None:
        return _long(cells, names, columns, levels, allow_constant)
    fitting = {"skip", kind} | ({"binary", "ordinal", "count"} if kind == "real" else set())
    for name, wanted in said.kinds.items():
        if wanted not in fitting:
            problem = f"kind {show(wanted)} does not fit a program that observes {kind} numbers"
            raise cells.error(problem, name)
    arranged = arrange(cells, said, columns or ())
    cells = chosen(arranged.cells, columns)
    two: dict[str, Any] = {}
    if kind == "binary":
        cells, two = recode(cells, list(said.kinds), levels)
    numbers, words = to_numbers(cells, kind)
    if kind == "binary":
        values, mask, coding = decode_binary(cells, numbers, words)
    else:
        values, mask, coding = decode_real(cells, numbers)
        for name in (x for x, wanted in said.kinds.items() if wanted == "count"):
            _refuse_no_count(cells, cells.columns.index(name), values, mask)
    if not allow_missing:
        _refuse_missing(cells, mask)
    if not allow_empty:
        refuse_empty(cells, mask)
    if not allow_constant:
        _refuse_constant(cells, values, mask, coding)
    if kind == "binary":
        _refuse_doubtful(cells, coding, values, mask)
    coding = tuple(
        "/".join(two[x]) if x in two else c for x, c in zip(cells.columns, coding, strict=True)
    )
    values, mask, ids, groups = arranged.repeated(values, mask, arranged.ids, arranged.groups)
    return Table(
        values, mask, cells.columns, coding, str(file),
        tuple(tuple(two.get(x, ())) for x in cells.columns),
        ids, (*arranged.notes, *said_of(two)), groups,
    )  # fmt: skip


def _long(
    cells: Cells,
    names: tuple[str, str, str],
    columns: Sequence[str] | None,
    levels: Mapping[str, tuple[str, str]] | None,
    allow_constant: bool,
) -> Table:
    """One answer a row: the column of responses is read as a table of one column is."""
    known = None if not levels else {names[2]: next(iter(levels.values()))}
    one, two = recode(cells.select(names[2:]), (), known)
    values, mask, coding = decode_binary(one, *to_numbers(one, "binary"))
    codes = np.where(mask, values, -1)[:, 0].astype(np.int8)
    answers = spread(cells, names, codes, columns)
    pair = tuple(two.get(names[2], ()))
    if columns is None and not allow_constant:
        ones, answered = answers.values.sum(0, dtype=int), answers.mask.sum(0)
        constant = np.flatnonzero((ones == 0) | (ones == answered))
        if len(constant):
            others = f" ({len(constant) - 1} more like it)" if len(constant) > 1 else ""
            problem = f"every answer is the same{others}: leave the item out, or say --constant"
            problem += " (allow_constant=True) to keep it"
            raise cells.error(problem, answers.items[int(constant[0])])
    width = len(answers.items)
    return Table(
        answers.values, answers.mask, answers.items, coding * width, str(cells.path),
        (pair,) * width, answers.people, (answers.note(names), *said_of(two)),
    )  # fmt: skip


def _refuse_no_count(cells: Cells, place: int, values: np.ndarray, mask: np.ndarray) -> None:
    column = values[:, place]
    wrong = mask[:, place] & ((column < 0) | (column != np.round(column)))
    if wrong.any():
        row = int(np.argmax(wrong))
        problem = f"found {show(column[row])}, wanted a count: a whole number from 0"
        raise cells.wrong(row, place, problem)


def read_cells(path: Path, *, header: bool | None, key: str | None, kind: str) -> Cells:
    """The cells of a file as they stand there, by its kind, which its name tells."""
    readers: dict[str, Callable[[], Cells]] = {
        ".npy": lambda: read_npy(path),
        ".npz": lambda: read_npz(path, key),
        ".parquet": lambda: read_parquet(path),
        ".nc": lambda: read_netcdf(path, key),
    }
    for text in TEXT_SUFFIXES:
        readers[text] = readers[text + ".gz"] = lambda: read_text(path, header=header, kind=kind)
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix + (".gz" if name.endswith(".gz") else "")
    check_file(path)
    if suffix not in readers:
        known = ", ".join(readers)
        raise complain(path, f"is of no known kind: its name must end in one of {known}")
    if key is not None and suffix not in (".npz", ".nc"):
        raise complain(path, "key= chooses an array of an .npz or .nc file; this is neither")
    bounded(path)
    try:
        return readers[suffix]()
    except OSError as error:
        raise complain(path, f"cannot be read ({error.strerror or error})") from None


def check_file(path: Path) -> None:
    """Refuse what is no file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise complain(path, "there is no such file") from None
    except OSError as error:
        raise complain(path, f"cannot be read ({error.strerror or error})") from None
    if stat.S_ISDIR(mode):
        raise complain(path, "is a folder, not a file")
    if not stat.S_ISREG(mode):  # a pipe would be waited for
        raise complain(path, "is no regular file")


def chosen(cells: Cells, columns: Sequence[str] | None) -> Cells:
    """These columns, or all: none may be without cells."""
    cells = cells if columns is None else cells.select(columns)
    if 0 in cells.cells.shape:
        raise cells.error(f"has no {'columns' if cells.cells.shape[0] else 'rows'}")
    return cells


def _refuse_missing(cells: Cells, mask: np.ndarray) -> None:
    holes = np.flatnonzero(~mask.all(axis=1))
    if len(holes):
        row = int(holes[0])
        place = int(np.argmin(mask[row]))
        raise cells.wrong(row, place, "the cell is missing, and none may be")


def refuse_empty(cells: Cells, mask: np.ndarray) -> None:
    some = mask.any(axis=0)
    if not some.all():
        name = cells.columns[int(np.argmin(some))]
        raise cells.error("every cell is missing: drop the column", name)
    some = mask.any(axis=1)
    if not some.all():
        row = cells.first_row + int(np.argmin(some))
        raise cells.error("every cell is missing: drop the row", row=row)


def _refuse_constant(
    cells: Cells, values: np.ndarray, mask: np.ndarray, coding: tuple[str, ...]
) -> None:
    low = np.min(values, axis=0, where=mask, initial=np.inf)
    high = np.max(values, axis=0, where=mask, initial=-np.inf)
    constant = np.flatnonzero(low == high)
    if len(constant):
        place = int(constant[0])
        value = low[place] * 2 - 1 if coding[place] == "-1/+1" else low[place]
        others = f" ({len(constant) - 1} more like it)" if len(constant) > 1 else ""
        problem = (
            f"every cell is {show(value)}{others}: it tells nothing, drop it, or say --constant "
            "(allow_constant=True) to keep it"
        )
        raise cells.error(problem, cells.columns[place])


def _refuse_doubtful(
    cells: Cells, coding: tuple[str, ...], values: np.ndarray, mask: np.ndarray
) -> None:
    """A column of one value, of which the rest of the table says that it is none."""
    ones = (values > 0).sum(axis=0)
    varied = (ones > 0) & (ones < mask.sum(axis=0))
    settled = {code for code, both in zip(coding, varied, strict=True) if both} - {"words"}
    if len(settled) != 1:
        return
    (rest,) = settled
    for place, code in enumerate(coding):
        if not ones[place] and code not in (rest, "words", ""):
            value = "-1" if code == "-1/+1" else "0"
            problem = f"every cell is {value} in a table of {rest}: which of the two is it?"
            raise cells.error(problem, cells.columns[place])
