"""Reading tables from text: comma, semicolon, tab or space between cells, with or without names.

pandas reads the cells, fast; what it would let pass in silence (short rows, blank lines, doubled
names) is found here first.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .cells import FEWEST_ROWS, MISSING, Cells, Token, complain, name_columns, understand

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
DECIMAL_COMMA = re.compile(r"(?<![^;\t\n \"])([-+]?\d*),(\d+)(?![^;\t\n \"])")
"""A number with a comma for its point, between marks that are none."""
MOST_LOOKED_AT = 1000
"""Rows in which the numbers of the first are looked for."""


def read_text(path: Path, *, header: bool | None, kind: str) -> Cells:
    """The cells of a text table, plain or gzipped.

    :param header: whether the first row holds names; None: find out, see :func:`has_header`.
    """
    text = _decode(path, _bytes(path))
    delimiter = _delimiter(path, text.split("\n", 20)[:20])
    if delimiter != "," and "," in text:
        text = DECIMAL_COMMA.sub(r"\1.\2", text)
    records = _records(io.StringIO(text, newline=""), delimiter)
    try:
        first, num_lines = next(records), records.line_num
        below = list(itertools.islice(records, MOST_LOOKED_AT))
    except csv.Error as error:
        raise complain(path, f"cannot be read as a table ({error})", row=1) from None
    if not first:
        raise complain(path, "is blank: names or values must stand here", row=1)
    named = has_header(first, below, kind) if header is None else header
    if named is None:
        problem = "may be names or values: say --header or --no-header (header=True or False)"
        raise complain(path, problem, row=1)
    second = below[0] if below else None
    if named and second is not None and 1 < len(first) == len(second) - 1:
        first = ["", *first]  # R's write.table gives names to all columns but the row names
    if named and second is None:
        raise complain(path, "has a row of names and no data below it")
    columns = name_columns(path, first if named else len(first))
    hint = " (if row 1 holds the names of the columns: --header, header=True)"
    hint = hint if header is None and not named else ""
    body = text.split("\n", num_lines)[num_lines] if named else text
    cells = plain_bits(body, delimiter, len(columns)) if kind == "binary" else None
    if cells is None:
        cells = _parse(path, body, delimiter, len(columns), 1 + named)
    return Cells(path, cells, columns, 1 + named, hint)


def has_header(first: list[str], below: list[list[str]], kind: str) -> bool | None:
    """Whether the first row of a table holds names; None where it may or may not.

    It does when some cell of it is text that is no value at all, and no cell of it looks like the
    one beneath. Names that are numbers are told by three signs: the column without a name before
    them counts the rows or names them; they are no values of the table; they count the columns
    (0, 1, 2, … or 1, 2, 3, …) and go beyond the values beneath.

    >>> has_header(["smokes", "drinks"], [["0", "1"]], "binary")
    True
    >>> has_header(["yes", "maybe"], [["yes", "no"]], "binary")
    False
    >>> has_header(["", "1", "2"], [["7", "1", "0"], ["8", "0", "1"], ["9", "1", "1"]], "binary")
    True
    >>> has_header(["1", "2", "3"], [["3", "1", "2"]], "real") is None
    True
    """
    tokens = [understand(cell) for cell in first]
    text = any(token.sort == "text" for token in tokens)
    if not below:
        return text
    if text:
        for token, beneath in zip(tokens, map(understand, below[0]), strict=False):
            alike = token.sort == beneath.sort and token.sort in ("number", "word")
            if alike and (kind == "real" or token.number in (-1.0, 0.0, 1.0)):
                return False
        # Rows of agree and disagree have no names above them.
        return not {x.strip() for x in first if understand(x).sort == "text"} & {
            x.strip() for x in below[0]
        }
    corner = len(first) > 1 and not first[0].strip()
    names = [token.number for token in tokens[corner:]]
    if any(token.sort != "number" for token in tokens[corner:]) or len(set(names)) < len(names):
        return False
    if corner and _names_rows([understand(row[0]) for row in below if row]):
        return True
    cells = [understand(cell) for row in below for cell in row[corner:]]
    found = {cell.number for cell in cells if cell.sort == "number"}
    counted = names in ([float(n + begin) for n in range(len(names))] for begin in (0, 1))
    if counted and (corner or max(names) >= 2.0):
        return True if max(names) > max(found, default=0.0) else None
    if len(names) < 2 or not found or found & {*names}:
        return False
    whole = all(number == round(number) for number in names)
    return (
        found <= {-1.0, 0.0, 1.0, 2.0} if kind == "binary" else None if corner and whole else False
    )


def _names_rows(tokens: list[Token]) -> bool:
    """Whether the cells of a column count the rows, or are a different text in each."""
    texts = [token.sort == "text" for token in tokens]
    steps = {b.number - a.number for a, b in itertools.pairwise(tokens)}
    return all(texts) or (len(tokens) > 1 and steps == {1.0})


def _bytes(path: Path) -> bytes:
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise complain(path, f"is not a whole gzip file ({error})") from None


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


def _delimiter(path: Path, lines: list[str]) -> str:
    """What stands between cells: a tab in .tsv; else the first of ``; tab , space`` in a row.

    The first row below the top one is asked, because names may hold commas and spaces where values
    do not.
    """
    if ".tsv" in path.name.lower():
        return "\t"
    line = next((line for line in lines[1:20] if line.strip()), lines[0])
    return next((mark for mark in (";", "\t", ",", " ") if mark in line.strip(" ")), ",")


def plain_bits(body: str, delimiter: str, width: int) -> np.ndarray | None:
    """The cells of a table of 0 and 1 alone, one character each; None if it is another.

    pandas takes longer to import than all else that is done with a small table. Few rows, and three
    columns, are left to it: there names decide what a column is.

    >>> plain_bits("1,0\\n" * 9, ",", 2).sum(0).tolist(), plain_bits("1,2\\n" * 9, ",", 2)
    ([9, 0], None)
    """
    marks = np.frombuffer((body.removesuffix("\n") + "\n").encode(), np.uint8)
    if width == 3 or len(marks) % (2 * width) or len(marks) <= 2 * width * FEWEST_ROWS:
        return None
    marks = marks.reshape(-1, 2 * width)
    cells, between = marks[:, ::2] - np.uint8(ord("0")), marks[:, 1::2]
    ends = np.array([ord(delimiter)] * (width - 1) + [ord("\n")], np.uint8)
    return cells.view(np.int8) if (cells <= 1).all() and (between == ends).all() else None


def _records(lines: Iterable[str], delimiter: str) -> Any:
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != " ")


def _check_lengths(path: Path, counts: list[int], width: int, first_row: int) -> None:
    """Every row has as many cells as the first; only in a single column a cell may be no text."""
    for row, count in enumerate(counts, first_row):
        if count == 0 and width > 1:
            raise complain(path, "is blank", row=row)
        if max(count, 1) != width:
            cells = f"{count} cell" + ("s" if count != 1 else "")
            raise complain(path, f"has {cells}, but row 1 has {width}", row=row)


def _parse(path: Path, body: str, delimiter: str, width: int, first_row: int) -> Any:
    """The rows of a table as a frame, after a look at their lengths."""
    import pandas as pd

    missing = {form for word in MISSING for form in (word, word.upper(), word.title())}
    counts: list[int] = []
    try:
        lines = body.split("\n")
        if '"' in body:
            counts = [len(cells) for cells in _records(lines, delimiter)]
        else:
            counts = [line.count(delimiter) + 1 if line.strip(" ") else 0 for line in lines]
        _check_lengths(path, counts, width, first_row)
        return pd.read_csv(
            io.BytesIO(body.encode()),
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
    # Whole numbers of more than 308 digits overflow in some releases.
    except (csv.Error, pd.errors.ParserError, pd.errors.EmptyDataError, OverflowError) as error:
        if "EOF inside string" in str(error):
            row = first_row + len(counts) - 1
            raise complain(path, "a quotation mark is opened and never closed", row=row) from None
        raise complain(path, f"cannot be read as a table ({error})") from None
