"""A user's table of answers: ordered levels or categories, as numbers from 0."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cells import Cells, show, understand, user_path
from .columns import Said, arrange, different, level, listed, order, said_of
from .long import long_columns, spread
from .tables import Table, chosen, read_cells, refuse_empty

MOST_LEVELS = 30
"""More different cells than that are measurements or names, not levels."""


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
    Categories stand in that order too, or else in the alphabet's.

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
    file = user_path(path)
    cells = read_cells(file, header=header, key=key, kind="real")
    said = said or Said()
    names = long_columns(cells, said)
    if names is not None:
        return _long(cells, names, said, ordered, columns, levels)
    arranged = arrange(cells, said, (*(columns or ()), *(levels or {})))
    cells = chosen(arranged.cells, columns)
    values = np.zeros(cells.cells.shape, np.int8)
    mask = np.zeros(cells.cells.shape, bool)
    by_column: dict[str, tuple[str, ...]] = {}
    for place, name in enumerate(cells.columns):
        one = _Column(cells, place, said.kinds.get(name), ordered, (levels or {}).get(name))
        by_column[name], coded = one.read()
        values[:, place], mask[:, place] = np.maximum(coded, 0), coded >= 0
    if not allow_empty:
        refuse_empty(cells, mask)
    values, mask, ids, groups = arranged.repeated(values, mask, arranged.ids, arranged.groups)
    return _table(values, mask, by_column, file, ids, arranged.notes, ordered, groups)


def _table(
    values: np.ndarray,
    mask: np.ndarray,
    levels: Mapping[str, tuple[str, ...]],
    path: Path,
    ids: Any,
    notes: Sequence[str],
    ordered: bool,
    groups: Any = None,
) -> Table:
    word, between = ("ordinal", " < ") if ordered else ("categorical", ", ")
    notes = (*notes, *said_of(levels, partial(_shown, between=between)))
    coding = tuple(f"{word}, {len(x)} levels" for x in levels.values())
    return Table(
        values, mask, tuple(levels), coding, str(path), tuple(levels.values()),
        ids, notes, groups,
    )  # fmt: skip


class _Column(NamedTuple):
    """What is known of a column before its cells are read."""

    cells: Cells
    place: int
    kind: str | None  # as a person says it
    ordered: bool
    known: Sequence[str] | None

    def read(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Its levels, and the level of each cell, −1 for a missing one."""
        codes, values = different(self.cells.of(self.place))
        words = [None if understand(x).sort == "missing" else level(x) for x in values]
        present = dict.fromkeys(word for word in words if word is not None)
        levels = self._levels(list(present), self.cells.columns[self.place])
        index = {word: number for number, word in enumerate(levels)}
        for code, word in enumerate(words):
            if word is not None and word not in index:
                problem = f"found {show(word)}, wanted one of {listed(levels)}"
                raise self.cells.wrong(np.argmax(codes == code), self.place, problem)
        table = [-1 if word is None else index[word] for word in words]
        # The last of the table stands for a missing cell, of code −1.
        return levels, np.array([*table, -1], np.int16)[codes]

    def _levels(self, present: list[str], name: str) -> tuple[str, ...]:
        if self.known is not None:
            return tuple(self.known)
        kind, _, words = (self.kind or "").partition(":")
        said = tuple(word.strip() for word in words.split("<")) if words else None
        unmet = [word for word in said or () if word not in present]
        levels = said or (in_order(present) if present else None)
        if levels is None and (kind == "categorical" or not self.ordered):
            levels = tuple(sorted(present))
        if kind not in ("", "ordinal", "categorical", "binary"):
            problem = f"kind {show(kind)} does not fit a program that observes levels"
        elif not present:
            problem = "every cell is missing: drop the column"
        elif len(present) > MOST_LEVELS:
            problem = (
                f"has {len(present)} different cells, and {MOST_LEVELS} levels are the most: "
                f"--drop {name} leaves it out"
            )
        elif kind == "binary" and len(present) > 2:
            problem = f"has {len(present)} levels: it is not binary"
        elif unmet:
            problem = f"no cell is {show(unmet[0])}: leave it out of --kind"
        elif levels is None:
            problem = (
                f"the order of {listed(sorted(present))} is not known: say "
                f"--kind '{name}=ordinal:LOWEST<...<HIGHEST', or --drop {name}"
            )
        elif len(levels) < 2:
            problem = f"every cell is {show(levels[0])}: --drop {name} leaves it out"
        else:
            return levels
        raise self.cells.error(problem, name)


def _shown(levels: Sequence[str], between: str) -> str:
    shown = between.join(levels[:12]) + (" ..." if len(levels) > 12 else "")
    return f"{len(levels)} levels, {shown}"


def _long(
    cells: Cells,
    names: tuple[str, str, str],
    said: Said,
    ordered: bool,
    columns: Sequence[str] | None,
    levels: Mapping[str, Sequence[str]] | None,
) -> Table:
    """One answer a row: all items have the levels of the column of responses."""
    place = cells.columns.index(names[2])
    known = levels and tuple(dict.fromkeys(word for one in levels.values() for word in one))
    one = _Column(cells, place, said.kinds.get(names[2]), ordered, known or None)
    scale, coded = one.read()
    answers = spread(cells, names, coded, columns)
    values, mask = answers.values, answers.mask
    by_item: dict[str, tuple[str, ...]] = {}
    for item, name in enumerate(answers.items):
        cell = mask[:, item]
        present = np.unique(values[cell, item])  # an item keeps the levels that it has answers of
        own = tuple(scale[int(x)] for x in present)
        if levels:
            own = tuple(levels[name])
            if unmet := {scale[int(x)] for x in present} - set(own):
                problem = f"found {show(min(unmet))}, wanted one of {listed(own)}"
                raise cells.error(problem, name)
        if len(own) < 2:
            problem = f"every answer is {show(own[0])}: leave the item out" if own else "no answer"
            raise cells.error(problem, name)
        index = np.array([own.index(word) if word in own else 0 for word in scale], np.int8)
        values[:, item] = np.where(cell, index[values[:, item]], 0)
        by_item[name] = own
    notes = [answers.note(names)]
    return _table(values, mask, by_item, cells.path, answers.people, notes, ordered)


SCALES = (
    "never; almost never, hardly ever, very rarely; rarely, seldom; occasionally, once in a while; "
    "sometimes; half the time; often, frequently; very often, very frequently, usually, "
    "most of the time; almost always, nearly always; always",
    "strongly disagree, disagree strongly, completely disagree; disagree, mostly disagree; "
    "somewhat disagree, slightly disagree, disagree slightly, disagree somewhat, tend to disagree; "
    "neutral, neither, neither agree nor disagree, undecided, unsure, not sure; "
    "somewhat agree, slightly agree, agree slightly, agree somewhat, tend to agree; "
    "agree, mostly agree; strongly agree, agree strongly, completely agree",
    "terrible; very poor, very bad; poor, bad; fair, average, acceptable; good; very good; "
    "excellent, outstanding",
    "not at all, none; a little, a little bit, slightly, mild; somewhat, moderately, moderate; "
    "quite a bit, a lot, considerably; very much, very, severe; extremely",
    "very unlikely, extremely unlikely; unlikely; somewhat unlikely; neutral; somewhat likely; "
    "likely; very likely, extremely likely",
    "very dissatisfied; dissatisfied; somewhat dissatisfied; neutral; somewhat satisfied; "
    "satisfied; very satisfied",
    "very low; low; medium, middle, moderate; high; very high",
    "no; maybe, unsure, don't know; yes",
    "wrong, incorrect, fail; partly, partial; right, correct, pass",
)
"""From the lowest level to the highest; words between commas are the same level."""
_RANKS = [
    {word.strip(): rank for rank, words in enumerate(line.split(";")) for word in words.split(",")}
    for line in SCALES
]


def in_order(words: Collection[str]) -> tuple[str, ...] | None:
    """The words of a scale from the lowest to the highest; None where no rule says so.

    The rules, in the order in which they are tried, after what a person says (``--kind``):

    1. numbers by their size, and words that begin with different numbers ("1 - never") by these;
    2. words that all stand in one of `SCALES`, in any case, as they stand there;
    3. two words: the one that denies first (`columns.order`).

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
