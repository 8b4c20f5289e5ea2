"""What a cell of a table may say, as a number, and how to complain about one that does not.

Shared by the readers of files, which bring cells, and by the table, which understands them.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
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


def level(cell: Any) -> str:
    """A value as it is called; 3.0 from a column of numbers is called 3."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


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
    """The cells of a file, as a reader brings them."""

    path: Path
    """the file"""
    cells: Any
    """(num_rows, num_columns): a NumPy array of numbers, or a pandas DataFrame"""
    columns: tuple[str, ...]
    """names of the columns"""
    first_row: int = 1
    """the number of the first row of cells, as a person counts rows in the file"""
    hint: str = ""
    """what else may be wrong when a cell does not fit, or nothing"""

    @property
    def array(self) -> bool:
        """Whether the cells are one array of numbers."""
        return isinstance(self.cells, np.ndarray)

    def error(self, problem: str, column: str | None = None, row: int | None = None) -> InputError:
        """The complaint about the table, or a column or row of it."""
        return complain(self.path, problem, row=row, column=column)

    def wrong(self, row: int | np.integer, place: int, problem: str) -> InputError:
        """The complaint about one cell; ``row`` and ``place`` count from 0."""
        problem += self.hint if self.array or row == 0 else ""
        return self.error(problem, self.columns[place], self.first_row + int(row))

    def of(self, place: int) -> Any:
        """One column as the file has it."""
        return self.cells[:, place] if self.array else self.cells.iloc[:, place]

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse a name that no column has."""
        present = set(self.columns)
        for name in names:
            if name not in present:
                raise self.error(f"has no column {show(name)}: it has {listed(self.columns)}")

    def select(self, names: Sequence[str]) -> Cells:
        """These columns, in this order."""
        self.check_names(names)
        place_of = {name: place for place, name in enumerate(self.columns)}
        places = [place_of[name] for name in names]
        kept = self.cells[:, places] if self.array else self.cells.iloc[:, places]
        return self._replace(cells=kept, columns=tuple(names))

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The cells of numeric columns as one array, NaN in other columns; which columns these are.

        An array is not copied, nor is a frame whose columns are of one type.
        """
        if self.array:
            return self.cells, np.ones(len(self.columns), bool)
        types = self.cells.dtypes
        numeric = np.array([isinstance(x, np.dtype) and x.kind in "biuf" for x in types], bool)
        if numeric.all():
            return self.cells.to_numpy(np.result_type(np.bool_, *set(types))), numeric
        numbers = np.full(self.cells.shape, np.nan)
        numbers[:, numeric] = self.cells.iloc[:, np.flatnonzero(numeric)].to_numpy(np.float64)
        return numbers, numeric


def listed(names: Sequence[str]) -> str:
    """A few names for a message."""
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def name_columns(path: Path, names: Sequence[str] | int) -> tuple[str, ...]:
    """Names without blanks around, each once; a column without a name is called by its place.

    :param names: as the file has them, or the number of columns without any. A table too wide for
        any method is refused before anything else is made of it.
    """
    width = names if isinstance(names, int) else len(names)
    if width > MOST_COLUMNS:
        raise complain(
            path,
            f"has {width} columns, and {MOST_COLUMNS} are the most: rows are data and columns "
            "features; if it is not lying on its side, choose among its columns first",
        )
    named = [""] * width if isinstance(names, int) else names
    columns = tuple(name.strip() or f"x{place}" for place, name in enumerate(named, start=1))
    if len(set(columns)) < len(columns):
        name = Counter(columns).most_common(1)[0][0]
        places = [str(place) for place, other in enumerate(columns, start=1) if other == name]
        listed = " and ".join(places[:3]) + (" and more" if len(places) > 3 else "")
        raise complain(path, f"columns {listed} have the same name {show(name)}: rename one")
    return columns
