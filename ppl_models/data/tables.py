"""A user's own table: any of the usual files in, numbers and a mask of what was observed out."""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .array_tables import read_netcdf, read_npy, read_npz, read_parquet, unpack_bits
from .bounded import bounded
from .cells import Cells, complain, show, understand, user_path
from .columns import Said, arrange, said_of
from .encoding import Encoded, encode
from .long import long_columns, read_answers
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
    covariates: np.ndarray | None = None
    """(num_data, num_covariates): numbers on which the latents of a row depend, if columns say"""
    weights: np.ndarray | None = None
    """(num_data,): how often each row counts, where these are no whole numbers"""

    @property
    def num_levels(self) -> tuple[int, ...]:
        """How many levels each column has, of a table of levels."""
        return tuple(len(x) for x in self.levels)


class MixedTable(NamedTuple):
    """A table for ``mixed_trait(table.values, mask=table.mask, kinds=table.kinds)``.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = file.write_text("age,smokes\\n31,yes\\n48,no\\n")
    >>> table = load_mixed(file)
    >>> table.columns, table.kinds, table.levels
    (('age', 'smokes'), ('real', 'binary'), ((), ('no', 'yes')))
    """

    values: np.ndarray
    """(num_data, num_features), float32: numbers, 0/1, or levels from 0; 0 in missing cells"""
    mask: np.ndarray
    """(num_data, num_features), bool: True where the cell was observed"""
    columns: tuple[str, ...]
    kinds: tuple[str | int, ...]
    """'real', 'binary' or the number of levels"""
    levels: tuple[tuple[str, ...], ...]
    """what the levels of each column are called; empty for real ones"""
    label: np.ndarray | None
    """(num_data,), text: the column that was set apart, or None"""
    path: str
    ids: tuple[str, ...] | None = None
    """(num_data,): what names the rows, if a column does"""
    notes: tuple[str, ...] = ()
    """a line for each choice that was made in reading"""


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
    fitting = {"skip", kind} | ({"binary", "ordinal", "count"} if kind == "real" else set())
    table = _load(
        path, kind, header=header, key=key, packed=packed, columns=columns, said=said,
        known=levels, fitting=fitting, allow_missing=allow_missing, allow_constant=allow_constant,
        allow_empty=allow_empty,
    )  # fmt: skip
    pairs = {x: pair for x, pair in zip(table.columns, table.levels, strict=True) if pair}
    coding = ["/".join(x) or y for x, y in zip(table.levels, table.coding, strict=True)]
    return table._replace(coding=tuple(coding), notes=(*table.notes, *said_of(pairs)))


def load_levels(
    path: str | PathLike[str],
    *,
    ordered: bool = True,
    header: bool | None = None,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    allow_empty: bool = False,
    said: Said | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A table of answers from a file, for `graded_trait` and `categorical_mixture`.

    The levels of a column are the different cells that occur in it: one never chosen has no
    parameter that could be estimated. Ordered ones stand as `in_order` says: numbers by size, words
    as they stand in a known scale ("never … always"), two words the one that denies first.
    Categories stand in that order too, or else as they first occur in the file.

    Rows are data and columns are features, as in `load_table`; or a row holds one answer
    (`person,item,response`, or what ``said.long`` names), and the table is made of these.

    :param ordered: words whose order is not known are an error.
    :param columns: names of the columns to keep, in this order; None: all.
    :param levels: column -> its levels, where they are known from another table.
    :raises InputError: one line: the file, the row, the column, what was found, what is wanted.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mood.csv"
    >>> _ = file.write_text("calm,score\\nnever,3\\nalways,1\\nsometimes,\\n")
    >>> table = load_levels(file)
    >>> table.levels, table.values.tolist()
    ((('never', 'sometimes', 'always'), ('1', '3')), [[0, 1], [2, 0], [1, 0]])
    >>> table.num_levels, table.mask[2].tolist()
    ((3, 2), [True, False])
    """
    kind = "ordinal" if ordered else "categorical"
    table = _load(
        path, kind, header=header, key=key, columns=columns, said=said, known=levels,
        allow_empty=allow_empty,
    )  # fmt: skip
    words = partial(_shown, between=" < " if ordered else ", ")
    notes = said_of(dict(zip(table.columns, table.levels, strict=True)), words)
    return table._replace(notes=(*table.notes, *notes))


def _shown(levels: Sequence[str], between: str) -> str:
    shown = between.join(levels[:12]) + (" ..." if len(levels) > 12 else "")
    return f"{len(levels)} levels, {shown}"


def load_mixed(
    path: str | PathLike[str],
    *,
    kinds: Mapping[str, str] | None = None,
    label: str | None = None,
    header: bool | None = None,
    key: str | None = None,
    packed: int | None = None,
    levels: Mapping[str, tuple[str, ...]] | None = None,
    columns: Sequence[str] | None = None,
    said: Said | None = None,
) -> MixedTable:
    """A table of any kinds of columns from a file, as `load_table` reads files.

    The kind of a column is seen from its cells: 0/1, −1/+1, 1/2, yes/no and any two words are
    binary, other words categorical (levels as they first occur), other numbers real.

    :param kinds: column -> one of `columns.KINDS`, where that guess is wrong; counts and ordered
        numbers are real here.
    :param label: a column that is no feature but names the rows' groups.
    :param packed: the array holds bits as :func:`numpy.packbits` packs them: so many to a row.
    :param levels: column -> its levels, where they are known from another table.
    :param columns: names of the columns to keep; None: all.
    :param said: columns to leave out, ids, weights, codes of missing cells, kinds.
    :raises InputError: one line that names file, row, column, what was found and what is wanted.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = file.write_text("age,smokes,town\\n31,yes,Ulm\\n48,no,Jena\\n?,no,Bonn\\n")
    >>> table = load_mixed(file)
    >>> table.kinds, table.levels[2], table.values[:, 2].tolist()
    (('real', 'binary', 3), ('Ulm', 'Jena', 'Bonn'), [0.0, 1.0, 2.0])
    """
    said = said or Said()
    said = said._replace(kinds={**said.kinds, **(kinds or {})})
    if label is not None:
        said = said._replace(group=label, drop=(*said.drop, *filter(None, [said.group])))
    table = _load(
        path, "mixed", header=header, key=key, packed=packed, columns=columns, said=said,
        known=levels,
    )  # fmt: skip
    groups = np.array(table.groups or ())
    missing = np.array([understand(x).sort == "missing" for x in groups], bool)
    called = None if label is None else np.where(missing, "?", groups)
    coded = {
        name: pair
        for name, kind, pair in zip(table.columns, table.coding, table.levels, strict=True)
        if kind == "binary" and {understand(x).sort for x in pair} - {"word", "truth"}
        and pair not in (("0", "1"), ("-1", "1"))
    }  # fmt: skip
    return MixedTable(
        table.values, table.mask, table.columns, table.coding, table.levels, called, table.path,
        table.ids, (*table.notes, *said_of(coded)),
    )  # fmt: skip


def _load(
    path: str | PathLike[str],
    kind: str,
    *,
    columns: Sequence[str] | None,
    said: Said | None,
    known: Mapping[str, Sequence[str]] | None,
    fitting: Collection[str] | None = None,
    allow_missing: bool = True,
    allow_constant: bool = True,
    allow_empty: bool = True,
    **reading: Any,
) -> Table:
    """A table of any kind, see `load_table` and `encode`.

    :param fitting: the kinds that a column may be called; None: any.
    :param reading: arguments of `read_cells`.
    """
    said = said or Said()
    look = "binary" if kind == "binary" else "real"
    if reading["header"] is None:
        reading["header"] = said.header
    cells = read_cells(path, kind=look, **reading)
    names = long_columns(cells, said) if kind not in ("real", "mixed") else None
    if names is not None:
        arranged, encoded = read_answers(cells, names, kind, said, columns, known)
        allow_missing, allow_empty = True, True
        allow_constant |= columns is not None
    else:
        for name, wanted in said.kinds.items():
            if fitting is not None and wanted not in fitting:
                problem = f"kind {show(wanted)} does not fit a program that observes {kind} numbers"
                raise cells.error(problem, name)
        arranged = arrange(cells, said, columns, tuple(known or ()))
        encoded = encode(arranged.cells, kind, kinds=said.kinds, known=known)
    cells = arranged.cells
    if not allow_missing:
        _refuse_missing(cells, encoded.mask)
    if not allow_empty:
        _refuse_empty(cells, encoded.mask)
    if not allow_constant:
        _refuse_constant(cells, encoded)
    if kind == "binary":
        _refuse_doubtful(cells, encoded)
    values, mask, ids, *beside = arranged.repeated(encoded.values, encoded.mask)
    return Table(
        values, mask, cells.columns, encoded.coding, str(cells.path), encoded.levels,
        ids, arranged.notes, *beside,
    )  # fmt: skip


SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers", ".sav", ".dta", ".sas7bdat", ".rds")
"""What other programs save as their own."""


def read_cells(
    file: str | PathLike[str],
    *,
    header: bool | None,
    key: str | None,
    kind: str,
    packed: int | None = None,
) -> Cells:
    """The cells of a file as they stand there, by its kind, which its name tells."""
    path = user_path(file)
    text = partial(read_text, header=header, kind=kind)
    readers: dict[str, Callable[[Path], Cells]] = {
        ".npy": read_npy,
        ".npz": partial(read_npz, key=key),
        ".parquet": lambda path: next(read_parquet(path)),
        ".nc": partial(read_netcdf, key=key),
        **{suffix + end: text for suffix in TEXT_SUFFIXES for end in ("", ".gz")},
    }
    check_file(path)
    suffix = next((x for x in readers if path.name.lower().endswith(x)), None)
    if path.suffix.lower() in SHEETS:
        raise complain(
            path, "save it as CSV there: a sheet or a file of another program is not read"
        )
    if suffix is None:
        known = ", ".join(readers)
        raise complain(path, f"is of no known kind: its name must end in one of {known}")
    if key is not None and suffix not in (".npz", ".nc"):
        raise complain(path, "key= chooses an array of an .npz or .nc file; this is neither")
    bounded(path)
    try:
        cells = readers[suffix](path)
    except OSError as error:
        raise complain(path, f"cannot be read ({error.strerror or error})") from None
    return cells if packed is None else unpack_bits(cells, packed)


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


def _refuse_missing(cells: Cells, mask: np.ndarray) -> None:
    holes = np.argwhere(~mask)
    if len(holes):
        row, place = holes[0]
        raise cells.wrong(row, place, "the cell is missing, and none may be")


def _refuse_empty(cells: Cells, mask: np.ndarray) -> None:
    columns, rows = mask.any(axis=0), mask.any(axis=1)
    if not columns.all():
        name = cells.columns[int(np.argmin(columns))]
        raise cells.error("every cell is missing: drop the column", name)
    if not rows.all():
        row = cells.first_row + int(np.argmin(rows))
        raise cells.error("every cell is missing: drop the row", row=row)


def _refuse_constant(cells: Cells, encoded: Encoded) -> None:
    values, mask = encoded.values, encoded.mask
    first = values[np.argmax(mask, axis=0), np.arange(values.shape[1])]  # that is observed
    constant = np.flatnonzero(((values == first) | ~mask).all(axis=0) & mask.any(axis=0))
    if len(constant):
        place = int(constant[0])
        value = first[place] * 2 - 1 if encoded.coding[place] == "-1/+1" else first[place]
        others = f" ({len(constant) - 1} more like it)" if len(constant) > 1 else ""
        problem = (
            f"every cell is {show(value)}{others}: it tells nothing, drop it, or say --constant "
            "(allow_constant=True) to keep it"
        )
        raise cells.error(problem, cells.columns[place])


def _refuse_doubtful(cells: Cells, encoded: Encoded) -> None:
    """A column of one value, of which the rest of the table says that it is none."""
    ones = (encoded.values > 0).sum(axis=0)
    varied = (ones > 0) & (ones < encoded.mask.sum(axis=0))
    signs = {code for code, both in zip(encoded.coding, varied, strict=True) if both} - {"words"}
    if len(signs) != 1:
        return
    (rest,) = signs
    for name, code, some in zip(cells.columns, encoded.coding, ones, strict=True):
        if not some and code not in (rest, "words", ""):
            value = "-1" if code == "-1/+1" else "0"
            problem = f"every cell is {value} in a table of {rest}: which of the two is it?"
            raise cells.error(problem, name)
