"""Reading tables from text: comma, semicolon, tab or space between cells, with or without names.

pandas reads the cells, fast; what it would let pass in silence (short rows, blank lines, doubled
names) is found here first, in a few vectorised passes over the bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import warnings
import zlib
from itertools import islice
from pathlib import Path

import numpy as np

from .cells import FEWEST_ROWS, MISSING, Cells, complain, name_columns, understand

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")


def read_text(path: Path, *, header: bool | None, kind: str) -> Cells:
    """The cells of a text table, plain or gzipped.

    :param header: whether the first row holds names; None: find out, see :func:`has_header`.
    """
    text = _decode(path, _bytes(path))
    delimiter = _delimiter(path, text)
    first, second, header_lines = _first_records(path, text, delimiter)
    named = has_header(first, second, kind) if header is None else header
    if named and second is not None and 1 < len(first) == len(second) - 1:
        first = ["", *first]  # R's write.table gives names to all columns but the row names
    hint = ""
    if named:
        columns = name_columns(path, first)
        if second is None:
            raise complain(path, "has a row of names and no data below it")
    else:
        columns = name_columns(path, [""] * len(first))
        if header is None:
            hint = " (if row 1 holds the names of the columns, give header=True)"
    body = text.encode()
    if named:
        body = body.split(b"\n", header_lines)[header_lines]
    _check_shape(path, body, delimiter, len(columns), 1 + named)
    cells = plain_bits(body, delimiter, len(columns)) if kind == "binary" else None
    cells = _parse(path, body, delimiter, len(columns)) if cells is None else cells
    return Cells(path, cells, columns, 1 + named, hint)


def has_header(first: list[str], second: list[str] | None, kind: str) -> bool:
    """Whether the first row of a table holds names.

    It does when some cell of it is text that is no value at all, and no cell of it looks like the
    one beneath; or when, in a binary table, it counts the columns (0, 1, 2, … or 1, 2, 3, …).

    >>> has_header(["smokes", "drinks"], ["0", "1"], "binary")
    True
    >>> has_header(["yes", "maybe"], ["yes", "no"], "binary")
    False
    """
    tokens = [understand(cell) for cell in first]
    text = any(token.sort == "text" for token in tokens)
    if second is None:
        return text
    if text:
        for token, below in zip(tokens, map(understand, second), strict=False):
            alike = token.sort == below.sort and token.sort in ("number", "word")
            if alike and (kind == "real" or token.number in (-1.0, 0.0, 1.0)):
                return False
        # Rows of agree and disagree have no names above them.
        return not {x.strip() for x in first if understand(x).sort == "text"} & {
            x.strip() for x in second
        }
    if kind == "real":
        return False
    values = [token.number for token in tokens]
    counted = values in ([float(n + begin) for n in range(len(values))] for begin in (0, 1))
    return counted and max(values) >= 2.0


def _bytes(path: Path) -> bytes:
    if path.suffix.lower() == ".gz":
        try:
            with gzip.open(path) as file:
                return file.read()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise complain(path, f"is not a whole gzip file ({error})") from None
    return path.read_bytes()


def _decode(path: Path, raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise complain(path, "is UTF-16 text: save it as UTF-8")
    if b"\x00" in raw:
        row = raw[: raw.index(b"\x00")].count(b"\n") + 1
        raise complain(path, "holds a NUL byte: this is no text table", row=row)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw[: error.start].count(b"\n") + 1
        byte = f"0x{raw[error.start]:02x}"
        raise complain(path, f"byte {byte} is not UTF-8 text: save it as UTF-8", row=row) from None
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Blank lines after the last row are no rows; spaces within that row are its own.
    last = len(text.rstrip("\n "))
    text = text[:last] + text[last:].split("\n", 1)[0]
    if not text.strip():
        raise complain(path, "is empty")
    return text


def _delimiter(path: Path, text: str) -> str:
    """What stands between cells: a tab in .tsv; else the first of ``; tab , space`` in a row.

    The first row below the top one is asked, because names may hold commas and spaces where values
    do not.
    """
    if ".tsv" in path.name.lower():
        return "\t"
    top, *below = text.split("\n", 20)
    line = next((line for line in below[:19] if line.strip()), top)
    return next((mark for mark in (";", "\t", ",", " ") if mark in line.strip(" ")), ",")


def _first_records(
    path: Path, text: str, delimiter: str
) -> tuple[list[str], list[str] | None, int]:
    """The first two records (the second None if there is none), and the lines of the first."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        first = next(reader)
        header_lines = reader.line_num
        rest = list(islice(reader, 1))
    except csv.Error as error:
        raise complain(path, f"cannot be read as a table ({error})", row=1) from None
    if not first:
        raise complain(path, "is blank: names or values must stand here", row=1)
    return first, rest[0] if rest else None, header_lines


def _check_shape(path: Path, body: bytes, delimiter: str, width: int, first_row: int) -> None:
    """Every row has as many cells as the first. Marks inside quotation marks do not count."""
    marks = np.frombuffer(body, np.uint8)
    cut = marks == ord(delimiter)
    ends = marks == ord("\n")
    if b'"' in body:
        quoted = np.logical_xor.accumulate(marks == ord('"'))
        if quoted[-1]:
            row = first_row + int((ends & ~quoted).sum())
            raise complain(path, "a quotation mark is opened and never closed", row=row)
        cut &= ~quoted
        ends &= ~quoted
        _check_quotes(path, marks, ends, delimiter, first_row)
    starts = np.concatenate([[0], np.flatnonzero(ends) + 1])
    if starts[-1] == len(marks):
        # Only a table of one column may end in an empty cell that takes no room.
        starts = starts[:-1]
    counts = np.add.reduceat(cut, starts, dtype=np.int64) + 1 if len(starts) else np.zeros(0)
    wrong = np.flatnonzero(counts != width)
    if not len(wrong):
        return
    place = int(wrong[0])
    line = body[starts[place] :].split(b"\n", 1)[0]
    if not line.strip():
        raise complain(path, "is blank", row=first_row + place)
    cells = f"{counts[place]} cell" + ("s" if counts[place] != 1 else "")
    raise complain(path, f"has {cells}, but row 1 has {width}", row=first_row + place)


def _check_quotes(
    path: Path, marks: np.ndarray, ends: np.ndarray, delimiter: str, first_row: int
) -> None:
    """Quotation marks stand at the ends of cells, or doubled: elsewhere every parser has its own
    idea of what they mean, and cells would move."""
    places = np.flatnonzero(marks == ord('"'))
    border = [ord(mark) for mark in (delimiter, "\n", " ", '"')]
    opening, closing = places[::2], places[1::2]
    before = opening[(opening > 0) & ~np.isin(marks[opening - 1], border)]
    after = closing[~np.isin(marks[np.minimum(closing + 1, len(marks) - 1)], border)]
    if len(before) or len(after):
        place = min((*before[:1], *after[:1]))
        problem = "a quotation mark stands inside a cell: put it at both ends, or double it"
        raise complain(path, problem, row=first_row + int(ends[:place].sum()))


def plain_bits(body: bytes, delimiter: str, width: int) -> np.ndarray | None:
    """The cells of a table of 0 and 1 alone, one character each; None if it is another.

    pandas takes longer to import than all else that is done with a small table. Few rows, and three
    columns, are left to it: there names decide what a column is.

    >>> plain_bits(b"1,0\\n" * 9, ",", 2).sum(0).tolist(), plain_bits(b"1,2\\n" * 9, ",", 2)
    ([9, 0], None)
    """
    marks = np.frombuffer(body if body.endswith(b"\n") else body + b"\n", np.uint8)
    if width == 3 or len(marks) % (2 * width) or len(marks) <= 2 * width * FEWEST_ROWS:
        return None
    marks = marks.reshape(-1, 2 * width)
    cells, between = marks[:, ::2] - np.uint8(ord("0")), marks[:, 1::2]
    ends = np.array([ord(delimiter)] * (width - 1) + [ord("\n")], np.uint8)
    return cells.view(np.int8) if (cells <= 1).all() and (between == ends).all() else None


def _parse(path: Path, body: bytes, delimiter: str, width: int):
    import pandas as pd

    missing = {form for word in MISSING for form in (word, word.upper(), word.title())}
    try:
        # What pandas only warns of (a quotation mark inside a cell, which it reads in a way of its
        # own) is a loss of cells.
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            return pd.read_csv(
                io.BytesIO(body),
                header=None,
                names=list(range(width)),
                index_col=False,
                sep=delimiter,
                skipinitialspace=delimiter != " ",
                skip_blank_lines=False,
                keep_default_na=False,
                na_values=sorted(missing | {"NaN"}),
                low_memory=False,
            )
    except pd.errors.ParserWarning:
        problem = "some row has cells beyond the last column: look for quotation marks in cells"
        raise complain(path, problem) from None
    # Whole numbers of more than 308 digits overflow in some releases.
    except (pd.errors.ParserError, pd.errors.EmptyDataError, OverflowError) as error:
        raise complain(path, f"cannot be read as a table ({error})") from None
