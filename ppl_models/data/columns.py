"""Which columns of a file are measurements, and how a column of two values is read.

Row numbers, names and weights look like measurements to a program. What a person says of a column
(`Said`) decides; where nothing was said, a command may ask for a guess, and reports each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .cells import FEWEST_ROWS, Cells, listed, show, understand

KINDS = ("real", "binary", "categorical", "ordinal", "count", "skip")
"""What a column can be called."""
MOST_CELLS = 10**9
INDEX = frozenset({"unnamed: 0", "index", "rownames", "row.names", "rowid", "row"})
WEIGHT = re.compile(r"(^|_|\.)([psfw]?weights?|[psfw]?wgt|[psfw]?wt|pop|population)\d*($|_|\.)")
NEGATIVE = ("not ", "no ", "non", "dis", "un", "in", "im", "ab")


class Said(NamedTuple):
    """What a person says of the columns of a file.

    >>> Said(drop=("age",), missing=("-99",)).kinds
    {}
    """

    drop: tuple[str, ...] = ()
    """columns that are left out"""
    id: str | None = None
    """a column that names the rows"""
    weights: str | None = None
    """a column that says how many times each row counts"""
    missing: tuple[str, ...] = ()
    """cells that mean a missing value, beside the usual ones: -99"""
    kinds: Mapping[str, str] = {}
    """column -> one of `KINDS`; 'ordinal:low<middle<high' says the order of its levels too"""
    guess: bool = False
    """leave out columns that look like row numbers, names or weights"""
    group: str | None = None
    """a column that says which group a row belongs to"""
    long: tuple[str, str, str] | None = None
    """the columns of person, item and response, in a file with one answer a row"""

    @property
    def apart(self) -> tuple[str, ...]:
        """The columns that are no measurements but say something of the rows."""
        return tuple(x for x in (self.id, self.weights, self.group) if x is not None)


class Arranged(NamedTuple):
    """The measurements of a file, and what lies beside them."""

    cells: Cells
    ids: tuple[str, ...] | None
    counts: np.ndarray | None
    """(num_rows,): how many times each row counts"""
    notes: tuple[str, ...]
    """a line for each guess"""
    groups: tuple[str, ...] | None = None

    def repeated(self, values: np.ndarray, *parts: Any) -> list[Any]:
        """Values and other parts of the table, every row as many times as it counts."""
        parts = values, *parts
        if self.counts is None:
            return list(parts)
        total, width = int(self.counts.sum()), values.shape[1]
        if total * width > MOST_CELLS:
            problem = f"its weights make {total} rows of {width} columns, more than memory holds"
            raise self.cells.error(problem)
        again = np.repeat(np.arange(len(values)), self.counts)
        pick = lambda x: x[again] if isinstance(x, np.ndarray) else tuple(x[i] for i in again)  # noqa: E731
        return [None if x is None else pick(x) for x in parts]


def arrange(cells: Cells, said: Said, keep: Sequence[str] = ()) -> Arranged:
    """Set apart what is no measurement.

    :param keep: columns of which nothing is guessed.
    :raises InputError: one line.
    """
    cells.check_names([*said.drop, *said.kinds, *said.apart])
    for name, kind in said.kinds.items():
        if kind.partition(":")[0] not in KINDS:
            raise cells.error(f"kind {show(kind)} is none of {', '.join(KINDS)}", name)
    cells = _without_codes(cells, said.missing)
    counts = None
    ids, groups = (
        None if x is None else tuple(level(x) for x in column_of(cells, cells.columns.index(x)))
        for x in (said.id, said.group)
    )
    if said.weights is not None:
        counts = _counts(cells, cells.columns.index(said.weights))
    out = {*said.drop, *said.apart}
    out |= {name for name, kind in said.kinds.items() if kind == "skip"}
    notes = []
    if said.guess and not isinstance(cells.cells, np.ndarray):
        sure = {*out, *said.kinds, *keep}
        bits = plain_bits(cells) & (len(cells.cells) > FEWEST_ROWS)
        for place, name in enumerate(cells.columns):
            known = bits[place] or name in sure
            reason = None if known else _no_measurement(cells, place)
            if reason is not None:
                out.add(name)
                notes.append(f"column {show(name)} is left out: {reason} (--kind {name}=real or "
                             "another kind keeps it)")  # fmt: skip
    if out:
        left = [name for name in cells.columns if name not in out]
        if not left:
            raise cells.error("has no column left")
        cells = cells.select(left)
    return Arranged(cells, ids, counts, tuple(notes), groups)


def column_of(cells: Cells, place: int) -> np.ndarray:
    """The cells of one column as Python objects."""
    return np.asarray(cells.of(place), object)


def plain_bits(cells: Cells) -> np.ndarray:
    """Which columns of a frame are numbers 0 and 1 and nothing else, holes apart: most tables have
    thousands of these, and one look serves them all."""
    frame = cells.cells
    plain = np.array([isinstance(x, np.dtype) and x.kind in "iuf" for x in frame.dtypes], bool)
    numbers = frame.iloc[:, np.flatnonzero(plain)].to_numpy()
    plain[plain] = ((numbers == 0) | (numbers == 1) | np.isnan(numbers)).all(0)
    return plain


def _without_codes(cells: Cells, codes: Sequence[str]) -> Cells:
    """Cells that a person calls missing are missing."""
    if not codes:
        return cells
    words = {code.strip().lower() for code in codes}
    numbers = [token.number for token in map(understand, words) if token.sort == "number"]
    if isinstance(cells.cells, np.ndarray):
        values = cells.cells.astype(np.float64)
        return cells._replace(cells=np.where(np.isin(values, numbers), np.nan, values))
    frame = cells.cells.copy()
    for place in range(frame.shape[1]):
        series = frame.iloc[:, place]
        if series.dtype.kind in "iufb":
            hit = series.isin(numbers)
        else:
            text = series.astype(str).str.strip().str.lower()
            hit = text.isin(words) | text.isin([f"{x:g}" for x in numbers])
        if hit.any():
            frame.isetitem(place, series.where(~hit))
    return cells._replace(cells=frame)


def _counts(cells: Cells, place: int) -> np.ndarray:
    raw = column_of(cells, place)
    numbers = np.array([understand(x).number for x in raw])
    for row in np.flatnonzero(~((numbers >= 0) & (numbers == np.round(numbers)))):
        problem = (
            f"found {show(raw[row])}, and weights are whole numbers here, how many times a row "
            "counts; --drop leaves the column out"
        )
        raise cells.wrong(row, place, problem)
    if not numbers.any():
        raise cells.error("every weight is 0", cells.columns[place])
    return numbers.astype(int)


def _no_measurement(cells: Cells, place: int) -> str | None:
    """Why a column is none, or None."""
    name, series = cells.columns[place].lower(), cells.cells.iloc[:, place]
    codes, values = different(series)
    distinct, rows = len(values) == len(series), len(series)
    tokens = [understand(x) for x in values]
    numbers = np.array([token.number for token in tokens] + [np.nan])[codes]
    whole = bool(np.all(numbers == np.round(numbers)))  # NaN is not
    # A reader calls a column without a name by its place, as R's and pandas' index has none.
    index = place == 0 and (
        name in INDEX
        or (name == "x1" and any(x != f"x{i}" for i, x in enumerate(cells.columns[1:], 2)))
    )
    if index and distinct and rows > 1:
        return "it numbers or names the rows"
    steps = np.sign(np.diff(numbers))
    if whole and rows >= FEWEST_ROWS and steps[0] and (steps == steps[0]).all():
        return "its cells are all distinct and in order, like row numbers"
    if distinct and re.search(r"(^|_|\.)(u?id|uuid|guid|key)$", name) and rows > 1:
        return "its cells are all distinct, like an id"
    if distinct and rows >= FEWEST_ROWS and all(x.sort == "text" for x in tokens):
        return "its cells are all distinct words, like names"
    some = numbers[~np.isnan(numbers)]
    number = all(token.sort in ("number", "missing") for token in tokens)
    # A body weight is no weight of a row: those have mean 1, or a name that says more.
    body = name in ("weight", "weights") and abs(some.mean() - 1.0) > 0.02
    if number and len(set(some)) > 2 and WEIGHT.search(name) and not body:
        return "its name says that it weighs rows or counts people"
    return None


def _as_bits(pair: tuple[str, ...]) -> str:
    return f"{show(pair[0])} is read as 0, {show(pair[1])} as 1"


def said_of(
    levels: Mapping[str, tuple[str, ...]], words: Callable[[tuple[str, ...]], str] = _as_bits
) -> list[str]:
    """A line for each coding that was chosen, with the columns that have it.

    >>> said_of({"a": ("1", "2"), "b": ("1", "2")})
    ["columns 'a', 'b': '1' is read as 0, '2' as 1"]
    """
    lines = []
    for coding in dict.fromkeys(tuple(x) for x in levels.values()):
        names = [show(name) for name, other in levels.items() if tuple(other) == coding]
        lines.append(f"column{'s' if len(names) > 1 else ''} {listed(names)}: {words(coding)}")
    return lines


def different(series: Any) -> tuple[np.ndarray, Any]:
    """The place of each cell among the different ones, −1 where it is missing; and these."""
    import pandas as pd

    try:
        return pd.factorize(series)
    except TypeError:  # lists in cells: the reader complains of them by row
        return np.full(len(series), -1), []


def recode(
    cells: Cells,
    binary: Sequence[str] = (),
    known: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Cells, dict[str, tuple[str, str]]]:
    """Columns of two values that are no bits yet, as 0 and 1: 1/2, agree/disagree, any two words.

    :param binary: columns that a person calls binary: there any two values are meant.
    :param known: what the values were in another table.
    :return: the cells, and what 0 and 1 stand for in each column that was read so.
    """
    recoded: dict[str, tuple[str, str]] = {}
    if isinstance(cells.cells, np.ndarray):
        if cells.cells.dtype.kind not in "iuf" or not cells.cells.size:
            return cells, recoded
        low, high = np.nanmin(cells.cells, axis=0), np.nanmax(cells.cells, axis=0)
        if not ((low == 1) & (high == 2)).any() and not known:
            return cells, recoded
    import pandas as pd

    frame = pd.DataFrame(cells.cells).copy()
    bits = plain_bits(cells._replace(cells=frame))
    for place, name in enumerate(cells.columns):
        if bits[place] and name not in (known or {}):
            continue
        codes, values = different(frame.iloc[:, place])
        tokens = [understand(x) for x in values]
        words = [level(x) for x in values]
        present = {w for w, t in zip(words, tokens, strict=True) if t.sort != "missing"}
        pair = (known or {}).get(name) or _pair(tokens, words, present, name in binary)
        if pair is None:
            continue
        places = {pair[0]: 0.0, pair[1]: 1.0}
        for code, (word, token) in enumerate(zip(words, tokens, strict=True)):
            if token.sort != "missing" and word not in places:
                row = int(np.argmax(codes == code))
                problem = f"found {show(word)}, wanted {show(pair[0])} or {show(pair[1])}"
                raise cells.wrong(row, place, problem)
        table = np.array([places.get(word, np.nan) for word in words] + [np.nan])
        frame.isetitem(place, table[codes])
        recoded[name] = pair[0], pair[1]
    return (cells._replace(cells=frame), recoded) if recoded else (cells, recoded)


def _pair(tokens: list, words: list[str], present: set[str], asked: bool) -> tuple | None:
    """The values that 0 and 1 stand for, or None where they are clear or there are not two."""
    if len(present) != 2:
        return None
    sorts = {token.sort for token in tokens} - {"missing"}
    numbers = {t.number: w for t, w in zip(tokens, words, strict=True) if t.sort == "number"}
    if sorts == {"number"}:
        low, high = sorted(numbers)
        if (low, high) in ((0.0, 1.0), (-1.0, 1.0)) or not (asked or (low, high) == (1.0, 2.0)):
            return None
        return numbers[low], numbers[high]
    return order(present) if sorts == {"text"} or (asked and sorts != {"word"}) else None


def order(words: Any) -> tuple[str, str]:
    """Two words, the one that denies first; else as the alphabet has them.

    >>> order({"agree", "disagree"}), order({"female", "male"})
    (('disagree', 'agree'), ('female', 'male'))
    """
    first, second = sorted(words)
    for one, other in ((first, second), (second, first)):
        if any(one.lower() == prefix + other.lower() for prefix in NEGATIVE):
            return one, other
    return first, second


def level(cell: Any) -> str:
    """A value as it is called; 3.0 from a column of numbers is called 3."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()
