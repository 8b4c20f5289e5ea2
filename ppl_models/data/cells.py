"""What a cell of a table may say, and how to complain about one that does not.

Shared by the readers of files, which bring cells, and by the table, which understands them.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np


class InputError(ValueError):
    """A file or a table that cannot be used; its message is one line, written for its owner.

    >>> from latentbits.models.data import load_table
    >>> load_table("nowhere.csv")
    Traceback (most recent call last):
    latentbits.models.data.cells.InputError: nowhere.csv: there is no such file
    """


MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""What stands for a missing cell, in any case."""

WORDS = {"yes": 1.0, "y": 1.0, "true": 1.0, "t": 1.0, "no": 0.0, "n": 0.0, "false": 0.0, "f": 0.0}
"""Words for one and zero, in any case."""

MOST_COLUMNS = 100_000
"""A table that is wider lies on its side, or has not been thinned out: no method here serves it."""

FEWEST_ROWS = 8
"""Of a column that is an id because it is in order: fewer are in order by accident."""

Sort = Literal["missing", "number", "truth", "word", "text"]


class Token(NamedTuple):
    """A cell understood: which sort of thing it is, and its number (NaN where it has none)."""

    sort: Sort
    number: float


def understand(cell: Any) -> Token:
    """The sort and number of one cell, given as text or as a Python object.

    >>> understand(" Yes "), understand("-1"), understand("?").sort, understand("maybe").sort
    (Token(sort='word', number=1.0), Token(sort='number', number=-1.0), 'missing', 'text')
    """
    if cell is None:
        return Token("missing", math.nan)
    if isinstance(cell, bool | np.bool_):
        return Token("truth", float(cell))
    if isinstance(cell, numbers.Real):
        number = _float(cell)
        return Token("missing" if math.isnan(number) else "number", number)
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        text = cell.strip().lower()
        if text in MISSING:
            return Token("missing", math.nan)
        if text in WORDS:
            return Token("word", WORDS[text])
        # float() also takes 1_000, which no table means by it.
        if "_" not in text:
            try:
                return Token("number", float(text))
            except ValueError:
                pass
    return Token("text", math.nan)


def show(cell: Any) -> str:
    """A cell as it goes into a message: short, on one line.

    >>> show("two\\nlines"), show(2.0), show("x" * 100)
    ("'two\\\\nlines'", '2', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'")
    """
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell))
    if isinstance(cell, numbers.Real):
        return f"{_float(cell):.6g}"
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:36] + "...")


def _float(number: Any) -> float:
    """A number as a float; a whole number may be larger than any."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def user_path(path: str | PathLike[str]) -> Path:
    """A path as a person writes it, with ~ for somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # there is no such person
        raise complain(Path(path), f"cannot be found ({error})") from None


def complain(
    path: Path, problem: str, *, row: int | None = None, column: str | None = None
) -> InputError:
    """The error for ``path``, in one line that says where.

    >>> print(complain(Path("votes.csv"), "found 2, wanted 0 or 1", row=7, column="aid"))
    votes.csv: row 7, column 'aid': found 2, wanted 0 or 1
    """
    name = str(path)
    parts = [name if name.isprintable() else repr(name)]
    where = [f"row {row}"] if row is not None else []
    if column is not None:
        where.append(f"column {show(column)}")
    if where:
        parts.append(", ".join(where))
    parts.append(" ".join(problem.split()))
    return InputError(": ".join(parts))


class Cells(NamedTuple):
    """What a reader brings: cells as the file holds them."""

    cells: Any
    """(num_rows, num_columns): a NumPy array of numbers, or a pandas DataFrame"""
    columns: tuple[str, ...]
    """names of the columns"""
    first_row: int
    """the number of the first row of cells, as a person counts rows in the file"""
    hint: str
    """what else may be wrong when a cell does not fit, or nothing"""


def check_width(path: Path, width: int) -> None:
    """Refuse a table too wide for any method, before anything else is made of it."""
    if width > MOST_COLUMNS:
        raise complain(
            path,
            f"has {width} columns, and {MOST_COLUMNS} are the most: rows are data and columns "
            "features; if it is not lying on its side, choose among its columns first",
        )


def name_columns(path: Path, names: list[str]) -> tuple[str, ...]:
    """Names without blanks around, each once; a column without a name is called by its place."""
    columns = tuple(name.strip() or f"x{place}" for place, name in enumerate(names, start=1))
    check_width(path, len(columns))
    if len(set(columns)) < len(columns):
        name = Counter(columns).most_common(1)[0][0]
        places = [str(place) for place, other in enumerate(columns, start=1) if other == name]
        listed = " and ".join(places[:3]) + (" and more" if len(places) > 3 else "")
        raise complain(path, f"columns {listed} have the same name {show(name)}: rename one")
    return columns
