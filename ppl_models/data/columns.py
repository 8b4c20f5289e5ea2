"""Which columns of a file are measurements, and what the others say of the rows.

Row numbers, names and weights look like measurements to a program. What a person says of a column
(`Said`) decides; where nothing was said, a command may ask for a guess, and reports each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .cells import FEWEST_ROWS, Cells, level, listed, show, understand
from .encoding import Column

KINDS = ("real", "binary", "categorical", "ordinal", "count", "skip")
"""What a column can be called."""
MOST_CELLS = 10**9
INDEX = frozenset({"unnamed: 0", "index", "rownames", "row.names", "rowid", "row"})
WEIGHT = re.compile(r"(^|_|\.)([psfw]?weights?|[psfw]?wgt|[psfw]?wt|pop|population)\d*($|_|\.)")


WEIGHS = "its name says that it weighs rows or counts people"


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
    header: bool | None = None
    """whether the first row of a text file holds names; None: look"""
    answers: Mapping[str, Sequence[str]] = {}
    """item -> its right answers: its cells become 1 where they are, 0 where not; others go"""
    covariates: tuple[str, ...] = ()
    """columns of numbers on which the latents of a row depend"""
    vary: bool = False
    """leave out columns of one value or none, which say nothing of what they share with others"""
    fractions: bool = False
    """accept weights that are no whole numbers"""

    @property
    def apart(self) -> tuple[str, ...]:
        """The columns that are no measurements but say something of the rows."""
        named = (self.id, self.weights, self.group, *self.covariates)
        return tuple(x for x in named if x is not None)


class Arranged(NamedTuple):
    """The measurements of a file, and what lies beside them."""

    cells: Cells
    ids: tuple[str, ...] | None
    counts: np.ndarray | None
    """(num_rows,): how many times each row counts; whole numbers or not"""
    notes: tuple[str, ...]
    """a line for each guess"""
    groups: tuple[str, ...] | None
    covariates: np.ndarray | None = None
    """(num_rows, num_covariates)"""

    def repeated(self, values: np.ndarray, mask: np.ndarray) -> tuple[Any, ...]:
        """Values, mask, ids (else the number of the row), groups and covariates, every row as many
        times as it counts, and the weights of rows where these are no whole numbers."""
        beside, weights = self.covariates, None
        if self.counts is None:
            return values, mask, self.ids, self.groups, beside, weights
        again = np.flatnonzero(self.counts)
        names = self.ids or tuple(map(str, range(1, len(values) + 1)))
        if (self.counts != np.round(self.counts)).any():
            weights = self.counts[again]
        else:
            total, width = int(self.counts.sum()), values.shape[1]
            if total * width > MOST_CELLS:
                problem = f"its weights make {total} rows of {width} columns, more than memory has"
                raise self.cells.error(problem)
            again = np.repeat(np.arange(len(values)), self.counts.astype(int))
        ids, groups = (x and tuple(x[i] for i in again) for x in (names, self.groups))
        beside = None if beside is None else beside[again]
        return values[again], mask[again], ids, groups, beside, weights


def arrange(
    cells: Cells, said: Said, columns: Sequence[str] | None = None, known: Sequence[str] = ()
) -> Arranged:
    """Set apart what is no measurement.

    :param columns: the measurements that are wanted, in this order; None: all.
    :param known: columns of which nothing is guessed.
    :raises InputError: one line.
    """
    cells.check_names([*said.drop, *said.kinds, *said.apart])
    for name, kind in said.kinds.items():
        if kind.partition(":")[0] not in KINDS:
            raise cells.error(f"kind {show(kind)} is none of {', '.join(KINDS)}", name)
    guess = said.guess and not cells.array
    skipped = {*said.drop, *(name for name, kind in said.kinds.items() if kind == "skip")}
    cells = _without_codes(cells, said.missing, skipped)
    ids, groups = (
        None if x is None else tuple(level(y) for y in cells.of(cells.columns.index(x)))
        for x in (said.id, said.group)
    )
    counts = None
    if said.weights is not None:
        column = Column.of(cells, cells.columns.index(said.weights))
        counts = _counts(column, said.fractions)
    covariates = _covariates(cells, said.covariates) if said.covariates else None
    out = {*skipped, *said.apart}
    notes = []
    if guess:
        sure = {*out, *said.kinds, *(columns or ()), *known}
        bits = _plain_bits(cells)
        for place, name in enumerate(cells.columns):
            reason = None if bits[place] or name in sure else _no_measurement(cells, place)
            if reason is not None:
                out.add(name)
                if ids is None and reason is not WEIGHS:
                    ids = tuple(map(level, cells.of(place)))
                notes.append(f"column {show(name)} is left out: {reason} (--kind {name}=real or "
                             "another kind keeps it)")  # fmt: skip
    if out:
        cells = cells.select([name for name in cells.columns if name not in out])
        if not cells.columns:
            raise cells.error("has no column left")
    cells = cells if columns is None else cells.select(columns)
    if said.answers:
        cells = _scored(cells, said.answers)
    if said.vary and columns is None and 0 not in cells.cells.shape:
        same = [name for name, many in zip(cells.columns, _varied(cells), strict=True) if not many]
        notes += left_out(same, cells)
        cells = cells.select([name for name in cells.columns if name not in set(same)])
    if 0 in cells.cells.shape:
        raise cells.error(f"has no {'columns' if cells.cells.shape[0] else 'rows'}")
    return Arranged(cells, ids, counts, tuple(notes), groups, covariates)


def left_out(names: Sequence[str], cells: Cells) -> list[str]:
    """A line on columns of one value or none."""
    if len(names) == len(cells.columns):
        raise cells.error("every column has one value or none: there is nothing to explain")
    some = f"column{'s' if len(names) > 1 else ''} {listed([show(name) for name in names])}"
    return [f"{some}: one value or none, so left out (--constant keeps)"] if names else []


def _varied(cells: Cells) -> np.ndarray:
    """Which columns have two different values."""
    numbers, numeric = cells.numbers()
    many = np.fmin.reduce(numbers, axis=0) < np.fmax.reduce(numbers, axis=0)  # these pass NaN by
    for place in np.flatnonzero(~numeric):
        many[place] = len(set(Column.of(cells, int(place)).words)) > 1
    return many


def _plain_bits(cells: Cells) -> np.ndarray:
    """Which columns are numbers 0 and 1 and nothing else, holes apart: nothing is guessed of these,
    unless there are few rows."""
    numbers, numeric = cells.numbers()
    bits = ((numbers == 0) | (numbers == 1) | np.isnan(numbers)).all(axis=0)
    return bits & numeric & (len(numbers) > FEWEST_ROWS)


def _scored(cells: Cells, answers: Mapping[str, Sequence[str]]) -> Cells:
    """Whether each answer is right; columns without a right one are left out."""
    import pandas as pd

    cells = cells.select([name for name in cells.columns if name in answers])
    if not cells.columns:
        raise cells.error(f"the key of answers names none of its columns, but {listed([*answers])}")
    frame = {}
    for place, name in enumerate(cells.columns):
        column = Column.of(cells, place)
        frame[place] = column.spread([x in answers[name] for x in column.words], np.nan)
    return cells._replace(cells=pd.DataFrame(frame))


def _without_codes(cells: Cells, codes: Sequence[str], skipped: set[str]) -> Cells:
    """Cells that a person calls missing are missing."""
    if not codes:
        return cells
    import pandas as pd

    words = {code.strip().lower() for code in codes}
    numbers = [token.number for token in map(understand, words) if token.sort == "number"]
    frame = pd.DataFrame(cells.cells).copy()
    for place, name in enumerate(cells.columns):
        if name in skipped:
            continue
        column = Column.of(cells, place)
        meant = (column.sorts == "number") & np.isin(column.numbers, numbers)
        meant |= np.array([word.lower() in words for word in column.words], bool)
        if meant.any():
            hit = column.spread(meant, False)
            frame.isetitem(place, frame.iloc[:, place].mask(hit))
    return cells._replace(cells=frame)


def _covariates(cells: Cells, names: Sequence[str]) -> np.ndarray:
    """Columns of numbers without holes, (num_rows, num_covariates)."""
    places = [cells.columns.index(name) for name in names]
    columns = [Column.of(cells, place) for place in places]
    numbers = np.stack([column.spread(column.numbers, np.nan) for column in columns], 1)
    for row, k in np.argwhere(~np.isfinite(numbers)):
        found = level(cells.of(places[k])[row])
        problem = f"found {show(found)}, and a covariate is a number in every row: code words as "
        problem += "0 and 1, one column for each but one of them, and leave out rows without it"
        raise cells.wrong(int(row), places[k], problem)
    return numbers


def _counts(column: Column, fractions: bool) -> np.ndarray:
    numbers = column.spread(column.numbers, np.nan)
    whole = fractions | (numbers == np.round(numbers))
    for row in np.flatnonzero(~((numbers >= 0) & (numbers <= MOST_CELLS) & whole)):
        wanted = "numbers from 0" if fractions else "whole numbers here (`fit` takes fractions)"
        problem = (
            f"found {show(np.asarray(column.cells.of(column.place), object)[row])}, and weights "
            f"are {wanted}, how many times a row counts; --drop leaves the column out"
        )
        raise column.cells.wrong(row, column.place, problem)
    if not numbers.any():
        raise column.cells.error("every weight is 0", column.name)
    return numbers


def _no_measurement(cells: Cells, place: int) -> str | None:
    """Why a column is none, or None."""
    column, name = Column.of(cells, place), cells.columns[place].lower()
    rows = len(column.codes)
    distinct = len(column.values) == rows
    numbers = column.spread(column.numbers, np.nan)
    # A reader calls a column without a name by its place, as R's and pandas' index has none.
    index = place == 0 and (
        name in INDEX
        or (name == "x1" and any(x != f"x{i}" for i, x in enumerate(cells.columns[1:], 2)))
    )
    if index and distinct and rows > 1:
        return "it numbers or names the rows"
    if rows >= FEWEST_ROWS and set(np.diff(numbers)) in ({1.0}, {-1.0}):
        return "its cells count the rows, in order, like row numbers"
    if distinct and re.search(r"(^|_|\.)(u?id|uuid|guid|key)$", name) and rows > 1:
        return "its cells are all distinct, like an id"
    if distinct and rows >= FEWEST_ROWS and (column.sorts == "text").all():
        return "its cells are all distinct words, like names"
    # A body weight is no weight of a row: those have mean 1, or a name that says more.
    some = numbers[~np.isnan(numbers)]
    body = name in ("weight", "weights") and abs(some.mean() - 1.0) > 0.02
    number = (column.sorts == "number").all() and len(set(column.numbers)) > 2
    if number and WEIGHT.search(name) and not body:
        return WEIGHS
    return None


def _as_bits(pair: Sequence[str]) -> str:
    return f"{show(pair[0])} is read as 0, {show(pair[1])} as 1"


def said_of(
    levels: Mapping[str, Sequence[str]], words: Callable[[Sequence[str]], str] = _as_bits
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
