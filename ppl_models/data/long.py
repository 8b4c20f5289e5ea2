"""Files with one answer a row: person, item, response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .cells import Cells, listed, show
from .columns import Said
from .encoding import Column, Encoded

PEOPLE = ("person", "subject", "student", "user", "participant", "respondent", "model", "id")
ITEMS = ("item", "question", "task", "problem")
RESPONSES = ("response", "answer", "score", "correct", "rating", "value")
"""Names by which the three columns of such a file are recognised, in any case."""
MOST_CELLS = 1 << 30
"""Of the table that is made: 2 GiB, with its mask."""


class Answers(NamedTuple):
    """A table made of single answers."""

    values: np.ndarray  # (people, items), int8; 0 where there is none
    mask: np.ndarray  # (people, items), bool
    people: tuple[str, ...]
    items: tuple[str, ...]

    def note(self, names: Sequence[str]) -> str:
        """What was made of the columns of these names."""
        return (
            f"one answer a row: {len(self.people)} of {show(names[0])} × {len(self.items)} of "
            f"{show(names[1])}, {int(self.mask.sum())} answers in {show(names[2])}"
        )


def long_columns(cells: Cells, said: Said) -> tuple[str, str, str] | None:
    """Which columns hold person, item and response; None where a row is a person.

    They are what a person says, or else three columns of these names and no other.
    """
    if said.long is not None:
        cells.check_names(said.long)
        return said.long
    if len(cells.columns) != 3 or cells.array:
        return None
    matched = []
    for names in (PEOPLE, ITEMS, RESPONSES):
        same = [x for x in cells.columns if x.lower().removesuffix("_id") in names]
        if len(same) != 1:
            return None
        matched += same
    return matched[0], matched[1], matched[2]


def spread(
    cells: Cells,
    names: tuple[str, str, str],
    codes: np.ndarray,
    items: Sequence[str] | None = None,
) -> Answers:
    """The table of all people and items, one byte per cell, of which few may be answered.

    :param codes: of each row of the file, −1 where the response is missing.
    :param items: those wanted, in their order; None: as they occur.
    """
    import pandas as pd

    columns = [Column.of(cells, cells.columns.index(name)) for name in names[:2]]
    for column in columns:
        if (column.codes < 0).any():
            row = int(np.argmax(column.codes < 0))
            raise cells.wrong(row, column.place, "the cell is missing")
    people, every = (tuple(column.words) for column in columns)
    rows, across = (column.codes for column in columns)
    if items is not None:
        new = {name: place for place, name in enumerate(items)}
        across = np.array([new.get(name, -1) for name in every])[across]
        every = tuple(items)
    if len(people) * len(every) > MOST_CELLS:
        size = f"{len(people)} × {len(every)}"
        problem = f"makes a table of {size}, which is too large: leave some {names[0]} or "
        raise cells.error(f"{problem}{names[1]} out")
    used = np.flatnonzero((codes >= 0) & (across >= 0))
    rows, across = rows[used], across[used]
    again = np.flatnonzero(pd.Series(rows * len(every) + across).duplicated())
    if len(again):
        first = again[0]
        problem = (
            f"{names[0]} {show(people[rows[first]])} answered {names[1]} "
            f"{show(every[across[first]])} before: one answer each"
        )
        raise cells.wrong(used[first], cells.columns.index(names[2]), problem)
    values = np.zeros((len(people), len(every)), np.int8)
    mask = np.zeros(values.shape, bool)
    values[rows, across], mask[rows, across] = codes[used], True
    return Answers(values, mask, people, every)


def long_levels(
    cells: Cells,
    names: tuple[str, str, str],
    kind: str,
    said: Said,
    columns: Sequence[str] | None,
    known: Mapping[str, Sequence[str]] | None,
) -> tuple[Answers, Encoded]:
    """One answer a row: an item keeps the levels of the column of responses that it has answers of.

    :param kind: "ordinal" or "categorical".
    """
    every = tuple(dict.fromkeys(word for one in (known or {}).values() for word in one))
    column = Column.of(cells, cells.columns.index(names[2]))
    ordered = kind == "ordinal"
    table, _, scale = column.levels(said.kinds.get(names[2], ""), ordered, every or None)
    answers = spread(cells, names, column.spread(table, -1), columns)
    levels = []
    for name, values, mask in zip(answers.items, answers.values.T, answers.mask.T, strict=True):
        present = [scale[code] for code in np.unique(values[mask])]
        own = tuple(known[name]) if known else tuple(present)
        if unmet := set(present) - set(own):
            problem = f"found {show(min(unmet))}, wanted one of {listed(own)}"
            raise cells.error(problem, name)
        if len(own) < 2:
            problem = f"every answer is {show(own[0])}: leave the item out" if own else "no answer"
            raise cells.error(problem, name)
        index = np.array([own.index(word) if word in own else 0 for word in scale], np.int8)
        values[mask] = index[values[mask]]  # a view of the table
        levels.append(own)
    coding = tuple(f"{kind}, {len(own)} levels" for own in levels)
    return answers, Encoded(answers.values, answers.mask, coding, tuple(levels))
