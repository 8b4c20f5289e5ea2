"""What a cell of a table may say, as a number, and how to complain about one that does not.

Shared by the readers of files, which bring cells, and by the table, which understands them.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

    path: Path
    """the file"""
    cells: Any
    """(num_rows, num_columns): a NumPy array of numbers, or a pandas DataFrame"""
    columns: tuple[str, ...]
    """names of the columns"""
    first_row: int
    """the number of the first row of cells, as a person counts rows in the file"""
    hint: str
    """what else may be wrong when a cell does not fit, or nothing"""

    def error(self, problem: str, column: str | None = None, row: int | None = None) -> InputError:
        """The complaint about the table, or a column or row of it."""
        return complain(self.path, problem, row=row, column=column)

    def wrong(self, row: int | np.integer, place: int, problem: str) -> InputError:
        """The complaint about one cell; ``row`` and ``place`` count from 0."""
        in_doubt = isinstance(self.cells, np.ndarray) or row == 0
        problem += self.hint if in_doubt else ""
        return self.error(problem, self.columns[place], self.first_row + int(row))

    def of(self, place: int) -> Any:
        """One column as the file has it."""
        array = isinstance(self.cells, np.ndarray)
        return self.cells[:, place] if array else self.cells.iloc[:, place]

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse a name that no column has."""
        for name in names:
            if name not in self.columns:
                raise self.error(f"has no column {show(name)}: it has {listed(self.columns)}")

    def select(self, names: Sequence[str]) -> Cells:
        """These columns, in this order."""
        self.check_names(names)
        place_of = {name: place for place, name in enumerate(self.columns)}
        places = [place_of[name] for name in names]
        array = isinstance(self.cells, np.ndarray)
        kept = self.cells[:, places] if array else self.cells.iloc[:, places]
        return self._replace(cells=kept, columns=tuple(names))


def listed(names: Sequence[str]) -> str:
    """A few names for a message."""
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


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


BINARY = "0/1, -1/+1, true/false or yes/no"

# Rows are gone through in blocks of about this many cells, so that no copy is larger than that.
BLOCK_CELLS = 4_000_000

Decoded = tuple[np.ndarray, np.ndarray, tuple[str, ...]]
"""values (float32, 0 where missing), mask (True where observed), coding of each column"""


def to_numbers(cells: Cells, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All cells as numbers, NaN where missing; and which columns are of words (1 yes, 0 no)."""
    width = len(cells.columns)
    if isinstance(cells.cells, np.ndarray):
        words = np.full(width, cells.cells.dtype.kind == "b")
        return cells.cells, words
    frame = cells.cells
    plain = [isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes]
    words = np.array([isinstance(dtype, np.dtype) and dtype.kind == "b" for dtype in frame.dtypes])
    if all(plain):
        return frame.to_numpy(np.float64), words
    numbers = np.empty(frame.shape, np.float64)
    for place in range(width):
        series = frame.iloc[:, place]
        if plain[place]:
            numbers[:, place] = series.to_numpy()
        else:
            numbers[:, place], words[place] = _words(cells, series, place, kind)
    return numbers, words


def _words(cells: Cells, series: Any, place: int, kind: str) -> tuple[np.ndarray, bool]:
    """One column of text or objects: each different cell is understood once."""
    import pandas as pd

    wanted = BINARY if kind == "binary" else "a number"
    try:
        codes, different = pd.factorize(series)
    except TypeError:
        raise cells.wrong(0, place, f"found {show(series.iloc[0])}, wanted {wanted}") from None
    tokens = [understand(cell) for cell in different]
    above = ""
    # Different cells come in the order of their first rows: the first in the way is named.
    for code, (cell, token) in enumerate(zip(different, tokens, strict=True)):
        if token.sort == "missing":
            continue
        sort = "numbers" if token.sort == "number" else "words"
        problem = ""
        if token.sort == "text" or (token.sort == "word" and kind == "real"):
            problem = f"found {show(cell)}, wanted {wanted}"
        elif kind == "binary" and above not in ("", sort):
            problem = f"found {show(cell)}, but the cells above are {above}: wanted {wanted}"
        if problem:
            raise cells.wrong(np.argmax(codes == code), place, problem)
        above = sort
    # The last place serves the cells that pandas knows to be missing: their code is −1.
    table = np.array([token.number for token in tokens] + [np.nan])
    return table[codes], above == "words"


def _blocks(numbers: np.ndarray, mask: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of the table, after the mask of them is written."""
    rows = max(1, BLOCK_CELLS // numbers.shape[1])
    for start in range(0, len(numbers), rows):
        here = slice(start, start + rows)
        if numbers.dtype.kind == "f":
            mask[here] = ~np.isnan(numbers[here])
        yield here, numbers[here]


def _refuse(cells: Cells, here: slice, block: np.ndarray, bad: np.ndarray, wanted: str) -> None:
    if bad.any():
        row, place = (int(index) for index in np.argwhere(bad)[0])
        problem = f"found {show(block[row, place])}, wanted {wanted}"
        raise cells.wrong(here.start + row, place, problem)


def decode_binary(cells: Cells, numbers: np.ndarray, words: np.ndarray) -> Decoded:
    values = np.zeros(numbers.shape, np.float32)
    mask = np.ones(numbers.shape, bool)
    occurs = np.zeros((3, numbers.shape[1]), bool)
    for here, block in _blocks(numbers, mask):
        minus, zero, one = block == -1, block == 0, block == 1
        _refuse(cells, here, block, mask[here] & ~(minus | zero | one), BINARY)
        values[here] = one
        occurs |= np.stack([minus.any(axis=0), zero.any(axis=0), one.any(axis=0)])
    torn = np.flatnonzero(occurs[0] & occurs[1])
    if len(torn):
        place = int(torn[0])
        column = numbers[:, place]
        row = max(int(np.argmax(column == -1)), int(np.argmax(column == 0)))
        problem = f"found {show(column[row])}, but the column holds both -1 and 0: wanted {BINARY}"
        raise cells.wrong(row, place, problem)
    signed = occurs[0]
    # Columns that hold 1 alone read the same either way; they are counted with the rest.
    rest = "-1/+1" if signed.any() and not (occurs[1] & ~words).any() else "0/1"
    coding = tuple(
        "words" if words[place]
        else "-1/+1" if signed[place]
        else "0/1" if occurs[1, place]
        else rest if occurs[2, place]
        else ""
        for place in range(len(words))
    )  # fmt: skip
    return values, mask, coding


def decode_real(cells: Cells, numbers: np.ndarray) -> Decoded:
    values = np.zeros(numbers.shape, np.float32)
    mask = np.ones(numbers.shape, bool)
    for here, block in _blocks(numbers, mask):
        with np.errstate(over="ignore"):
            values[here] = np.where(mask[here], block, 0)
        bad = ~np.isfinite(values[here])
        _refuse(cells, here, block, bad, "a finite number (of float32)")
    return values, mask, tuple("real" if count else "" for count in mask.sum(axis=0))
