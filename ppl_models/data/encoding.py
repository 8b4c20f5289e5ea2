"""From cells to numbers: one grammar for bits, numbers, ordered levels, categories and mixtures.

Each different cell of a column is understood once (`Column`); columns that are plain numbers are
encoded together (`encode`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cells import Cells, level, listed, show, understand

MOST_LEVELS = 30
"""More different cells than that are measurements or names, not levels."""
LARGEST = float(np.finfo(np.float32).max)
BINARY = "0/1, -1/+1, true/false or yes/no"
NEGATIVE = ("not ", "no ", "non", "dis", "un", "in", "im", "ab")

Coded = tuple[np.ndarray, Any, tuple[str, ...]]
"""the number of each different cell of a column, how it was read, names of its levels if any"""


class Column(NamedTuple):
    """The different cells of a column, in the order in which they occur."""

    cells: Cells
    place: int
    codes: np.ndarray
    """(num_rows,): the place of each cell in what follows, −1 where it is missing"""
    values: list[Any]
    """the different cells that are not missing"""
    words: list[str]
    """what they are called, without blanks around"""
    sorts: np.ndarray
    """which sort of thing each is, see `understand`"""
    numbers: np.ndarray
    """their numbers, NaN for text"""

    @classmethod
    def of(cls, cells: Cells, place: int) -> Column:
        """A column of a table."""
        import pandas as pd

        try:
            codes, values = pd.factorize(cells.of(place))
        except TypeError:
            problem = f"found {show(cells.of(place).iloc[0])}, wanted one number or word in a cell"
            raise cells.wrong(0, place, problem) from None
        tokens = [understand(value) for value in values]
        present = [i for i, token in enumerate(tokens) if token.sort != "missing"]
        place_of = np.full(len(tokens) + 1, -1)  # the last serves the code −1
        place_of[present] = np.arange(len(present))
        return cls(
            cells, place, place_of[codes], [values[i] for i in present],
            [level(values[i]) for i in present],
            np.array([tokens[i].sort for i in present], object),
            np.array([tokens[i].number for i in present], float),
        )  # fmt: skip

    @property
    def name(self) -> str:
        return self.cells.columns[self.place]

    def spread(self, table: Any, missing: float) -> np.ndarray:
        """(num_rows,): the entry of `table` that belongs to each cell."""
        return np.append(table, missing)[self.codes]

    def refuse(self, bad: Any, wanted: str, but: str = "") -> None:
        """Complain about the first of the different cells that are `bad`, if any is."""
        places = np.flatnonzero(bad)
        if len(places):
            first = places[0]
            number = self.sorts[first] == "number"
            found = show(self.numbers[first] if number else self.values[first])
            row = np.argmax(self.codes == first)
            why = f", but {but}:" if but else ","
            raise self.cells.wrong(row, self.place, f"found {found}{why} wanted {wanted}")

    def real(self, count: bool = False) -> Coded:
        """Finite numbers, or counts."""
        numbers = self.numbers
        self.refuse(~np.isin(self.sorts, ("number", "truth")), "a number")
        self.refuse(~(np.abs(numbers) <= LARGEST), "a finite number (of float32)")
        if count:
            whole = (numbers >= 0) & (numbers == np.round(numbers))
            self.refuse(~whole, "a count: a whole number from 0")
        return numbers, "real" if len(numbers) else "", ()

    def bits(self, known: Sequence[str] | None, asked: bool, pairs: bool = True) -> Coded:
        """0/1, −1/+1, words for them, or two other values.

        :param known: what 0 and 1 stand for, where that is known from another table.
        :param asked: whether a person calls the column binary: there any two values are meant.
        :param pairs: False: no other values are bits.
        """
        pair = known or (self._pair(asked) if pairs else None)
        if pair:
            table = np.array([pair.index(x) if x in pair else np.nan for x in self.words])
            self.refuse(np.isnan(table), f"{show(pair[0])} or {show(pair[1])}")
            return table, "0/1", (pair[0], pair[1])
        numbers = self.numbers
        self.refuse(~np.isin(numbers, (-1, 0, 1)), BINARY)
        number = self.sorts == "number"
        if not asked:
            above = "numbers" if number[:1].any() else "words"
            self.refuse(number != number[:1], BINARY, f"the cells above are {above}")
        both = (numbers <= 0) & ~np.isin(numbers, numbers[numbers <= 0][:1])
        self.refuse(both, BINARY, "the column holds both -1 and 0")
        signs = "-1/+1" if -1 in numbers else "0/1" if 0 in numbers else "1"
        coding = "words" if len(number) and not number[0] else signs
        return (numbers > 0).astype(float), coding if len(numbers) else "", ()

    def _pair(self, asked: bool) -> tuple[str, str] | None:
        """The values that 0 and 1 stand for, or None where they are clear or there are not two."""
        present, sorts = set(self.words), set(self.sorts)
        if len(present) != 2:
            return None
        if sorts == {"number"}:
            named = dict(zip(self.numbers, self.words, strict=True))
            low, high = min(named), max(named)
            if low == high or (low, high) in ((0, 1), (-1, 1)):
                return None
            return (named[low], named[high]) if asked or (low, high) == (1, 2) else None
        return order(present) if sorts == {"text"} or (asked and sorts != {"word"}) else None

    def levels(self, kind: str, ordered: bool, known: Sequence[str] | None) -> Coded:
        """Levels as numbers from 0.

        :param kind: what a person calls the column, with the order of its levels; or ''.
        """
        levels = tuple(known) if known is not None else self._levels(kind, ordered)
        index = {word: number for number, word in enumerate(levels)}
        self.refuse([word not in index for word in self.words], f"one of {listed(levels)}")
        word = "ordinal" if ordered else "categorical"
        table = np.array([index[word] for word in self.words], np.int8)
        return table, f"{word}, {len(levels)} levels", levels

    def _levels(self, kind: str, ordered: bool) -> tuple[str, ...]:
        present = list(dict.fromkeys(self.words))
        kind, _, words = kind.partition(":")
        said = tuple(word.strip() for word in words.split("<")) if words else None
        unmet = [word for word in said or () if word not in present]
        levels = said or (in_order(present) if present else None)
        if levels is None and (kind == "categorical" or not ordered):
            levels = tuple(present)
        if kind not in ("", "ordinal", "categorical", "binary"):
            problem = f"kind {show(kind)} does not fit a program that observes levels"
        elif not present:
            problem = "every cell is missing: drop the column"
        elif len(present) > MOST_LEVELS:
            problem = (
                f"has {len(present)} different cells, and {MOST_LEVELS} levels are the most: "
                f"--drop {self.name} leaves it out"
            )
        elif kind == "binary" and len(present) > 2:
            problem = f"has {len(present)} levels: it is not binary"
        elif unmet:
            problem = f"no cell is {show(unmet[0])}: leave it out of --kind"
        elif levels is None:
            problem = (
                f"the order of {listed(sorted(present))} is not known: say "
                f"--kind '{self.name}=ordinal:LOWEST<...<HIGHEST', or --drop {self.name}"
            )
        elif len(levels) < 2:
            problem = f"every cell is {show(levels[0])}: --drop {self.name} leaves it out"
        else:
            return levels
        raise self.cells.error(problem, self.name)

    def mixed(self, kind: str, known: Sequence[str] | None) -> Coded:
        """Numbers, bits or categories, as the cells show or a person says.

        Two words stand as `order` says, more categories as they first occur.
        """
        sorts, distinct, present = set(self.sorts), set(self.numbers), [*dict.fromkeys(self.words)]
        if not present:
            raise self.cells.error("every cell is missing: drop the column", self.name)
        if kind.startswith("ordinal"):
            if sorts != {"number"}:
                problem = "has ordered words: call it categorical here, or fit graded_trait"
                raise self.cells.error(problem, self.name)
            kind = "real"
        if not kind and sorts == {"number"}:
            two = distinct <= {0.0, 1.0} or distinct in ({-1.0, 1.0}, {1.0, 2.0})
            kind = "binary" if two else "real"
        kind = kind or ("binary" if sorts <= {"word", "truth"} else "categorical")
        if kind in ("real", "count"):
            coded = self.real(kind == "count")
        elif kind == "binary" and known is None and "text" not in sorts and len(distinct) <= 2:
            table, _, _ = self.bits(None, asked=True)
            names = dict(zip(table, self.words, strict=True))
            coded = table, "binary", (names.get(0.0, ""), names.get(1.0, ""))
        else:
            if known is None and len(present) == 2:
                known = order(present)
            elif known is None and kind == "categorical" and 2 < len(present) <= MOST_LEVELS:
                known = in_order(present) or present
            table, _, levels = self.levels(kind, ordered=False, known=known)
            return table, "binary" if len(levels) == 2 else len(levels), levels
        if len(distinct) < 2 and known is None:
            raise self.cells.error(f"every cell is {show(self.values[0])}: skip it", self.name)
        return coded


class Encoded(NamedTuple):
    """A table as numbers."""

    values: np.ndarray
    """(num_rows, num_columns): float32, or int8 of levels; 0 in missing cells"""
    mask: np.ndarray
    """(num_rows, num_columns), bool: True where the cell was observed"""
    coding: tuple[Any, ...]
    """how each column was read"""
    levels: tuple[tuple[str, ...], ...]
    """what 0, 1, … stand for in each column, if not for themselves"""


def encode(
    cells: Cells,
    kind: str,
    *,
    kinds: Mapping[str, str] | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
    pairs: bool = True,
) -> Encoded:
    """The numbers that the cells of a table stand for.

    :param kind: "binary", "real", "ordinal", "categorical", or "mixed": each column of its own.
    :param kinds: column -> kind, where a person says it.
    :param known: column -> its levels, where they are known from another table.
    :param pairs: False: of a binary table, values that are neither 0/1, −1/+1 nor words for them
        are an error.
    """
    kinds, known = kinds or {}, known or {}
    shape, width = cells.cells.shape, len(cells.columns)
    values = np.zeros(shape, np.int8 if kind in ("ordinal", "categorical") else np.float32)
    mask = np.zeros(shape, bool)
    coding: list[Any] = [""] * width
    levels: list[tuple[str, ...]] = [()] * width
    left = np.ones(width, bool)
    if kind in ("binary", "real"):
        special = [x in known or kinds.get(x) == "count" for x in cells.columns]
        together = _bits if kind == "binary" else _reals
        left = ~together(cells, np.array(special, bool), values, mask, coding)
    for place in np.flatnonzero(left):
        column, name = Column.of(cells, int(place)), cells.columns[place]
        said, levels_of = kinds.get(name, ""), known.get(name)
        if kind == "binary":
            coded = column.bits(levels_of, name in kinds, pairs)
        elif kind == "real":
            coded = column.real(said == "count")
        elif kind == "mixed":
            coded = column.mixed(said, levels_of)
        else:
            coded = column.levels(said, kind == "ordinal", levels_of)
        table, coding[place], levels[place] = coded
        values[:, place], mask[:, place] = column.spread(table, 0), column.codes >= 0
    # Columns that hold 1 alone read the same either way; they are counted with the rest.
    rest = "-1/+1" if "-1/+1" in coding and "0/1" not in coding else "0/1"
    coding = [rest if code == "1" else code for code in coding]
    return Encoded(values, mask, tuple(coding), tuple(levels))


def _bits(
    cells: Cells, special: np.ndarray, values: np.ndarray, mask: np.ndarray, coding: list[Any]
) -> np.ndarray:
    """Encode the columns of plain 0/1, −1/+1 and truth values: which these were."""
    numbers, numeric = cells.numbers()
    one, low = numbers == 1, numbers == 0
    zeros, observed = low.any(axis=0), one | low
    np.equal(numbers, -1, out=low)
    minus = low.any(axis=0)
    observed |= low
    fit = (observed if numbers.dtype.kind != "f" else observed | np.isnan(numbers)).all(axis=0)
    done = numeric & ~special & fit & ~(zeros & minus)
    values[...] = one & done
    np.logical_and(observed, done, out=mask)
    ones, types = one.any(axis=0), [numbers.dtype] if cells.array else cells.cells.dtypes
    truth = np.broadcast_to([x == np.bool_ for x in types], done.shape)
    for place in np.flatnonzero(done):
        signs = "-1/+1" if minus[place] else "0/1" if zeros[place] else "1" if ones[place] else ""
        coding[place] = "words" if truth[place] else signs
    return done


def _reals(
    cells: Cells, special: np.ndarray, values: np.ndarray, mask: np.ndarray, coding: list[Any]
) -> np.ndarray:
    """Encode the columns of plain numbers: which these were."""
    numbers, numeric = cells.numbers()
    done = numeric & ~special
    np.copyto(mask, ~np.isnan(numbers), where=done)
    with np.errstate(over="ignore"):
        np.copyto(values, numbers, where=mask, casting="unsafe")
    bad = ~np.isfinite(values)
    if bad.any():
        row, place = (int(index) for index in np.argwhere(bad)[0])
        found = show(numbers[row, place])
        raise cells.wrong(row, place, f"found {found}, wanted a finite number (of float32)")
    for column in np.flatnonzero(done & mask.any(axis=0)):
        coding[column] = "real"
    return done


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


SCALES = Path(__file__).with_name("scales.txt").read_text("utf-8").splitlines()
_RANKS = [
    {word.strip(): rank for rank, words in enumerate(line.split(";")) for word in words.split(",")}
    for line in SCALES if line[0] != "#"
]  # fmt: skip
"""Of each scale in scales.txt, the rank of each word."""


def in_order(words: Collection[str]) -> tuple[str, ...] | None:
    """The words of a scale from the lowest to the highest; None where no rule says so.

    The rules, in the order in which they are tried, after what a person says (``--kind``):

    1. numbers by their size, and words that begin with different numbers ("1 - never") by these;
    2. words that all stand in one line of scales.txt, in any case, as they stand there;
    3. two words: the one that denies first (`order`).

    >>> in_order({"Always", "never", "often"})
    ('never', 'often', 'Always')
    >>> in_order({"3", "10", "1"}), in_order({"1: low", "2: high"})
    (('1', '3', '10'), ('1: low', '2: high'))
    >>> in_order({"disagree", "agree"}), in_order({"cats", "dogs", "fish"})
    (('disagree', 'agree'), None)
    """
    tokens = {word: understand(word) for word in words}
    if all(token.sort == "number" for token in tokens.values()):
        return tuple(sorted(words, key=lambda word: tokens[word].number))
    first = {word: re.match(r"\s*(-?\d+)\b", word) for word in words}
    numbers = [int(match[1]) for match in first.values() if match]
    if len(set(numbers)) == len(words):
        return tuple(word for _, word in sorted(zip(numbers, words, strict=True)))
    plain = {word: " ".join(word.lower().replace("_", " ").split()) for word in words}
    for ranks in _RANKS:
        places = [ranks.get(plain[word]) for word in words]
        if None not in places and len(set(places)) == len(words):
            return tuple(sorted(words, key=lambda word: ranks[plain[word]]))
    return order(words) if len(words) == 2 else None
