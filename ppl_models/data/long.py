"""Files with one answer a row: person, item, response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .cells import Cells, listed, show
from .columns import Arranged, Said, left_out
from .encoding import Column, Encoded, encode

PEOPLE = ("person", "subject", "student", "user", "participant", "respondent", "model", "id")
ITEMS = ("item", "question", "task", "problem")
RESPONSES = ("response", "answer", "score", "correct", "rating", "value")
"""Names by which the three columns of such a file are recognised, in any case."""
MOST_CELLS = 1 << 30
"""Of the table that is made: 2 GiB, with its mask."""


def long_columns(cells: Cells, said: Said) -> tuple[str, str, str] | None:
    """Which columns hold person, item and response; None where a row is a person.

    They are what a person says, or else three columns of these names and no other.
    """
    if said.long is not None:
        cells.check_names(said.long)
        return said.long
    if len(cells.columns) != 3:
        return None
    matched = []
    for names in (PEOPLE, ITEMS, RESPONSES):
        same = [x for x in cells.columns if x.lower().removesuffix("_id") in names]
        if len(same) != 1:
            return None
        matched += same
    return matched[0], matched[1], matched[2]


def read_answers(
    cells: Cells,
    names: tuple[str, str, str],
    kind: str,
    said: Said,
    items: Sequence[str] | None,
    known: Mapping[str, Sequence[str]] | None,
) -> tuple[Arranged, Encoded]:
    """The table of all people and items, one byte per cell, of which few may be answered.

    The column of responses is encoded as a table of one column is; an item keeps the levels that it
    has answers of.

    :param kind: "binary", "ordinal" or "categorical".
    :param items: those wanted, in their order; None: as they occur.
    :param known: item -> its levels, where they are known from another table.
    """
    import pandas as pd

    every = tuple(dict.fromkeys(word for one in (known or {}).values() for word in one))
    known_here = {names[2]: every} if every else None
    one = encode(cells.select(names[2:]), kind, kinds=said.kinds, known=known_here)
    people, asked = (Column.of(cells, cells.columns.index(name)) for name in names[:2])
    for column in (people, asked):
        if (column.codes < 0).any():
            row = int(np.argmax(column.codes < 0))
            raise cells.wrong(row, column.place, "the cell is missing")
    items_are_free = items is None
    items = tuple(asked.words if items is None else items)
    place_of = {name: place for place, name in enumerate(items)}
    across = asked.spread([place_of.get(name, -1) for name in asked.words], -1)
    shape = (len(people.words), len(items))
    if shape[0] * shape[1] > MOST_CELLS:
        problem = f"makes a table of {shape[0]} × {shape[1]}, which is too large: leave some "
        raise cells.error(f"{problem}{names[0]} or {names[1]} out")
    used = np.flatnonzero(one.mask[:, 0] & (across >= 0))
    at = (people.codes[used], across[used])
    again = np.flatnonzero(pd.Series(at[0] * len(items) + at[1]).duplicated())
    if len(again):
        row = used[again[0]]
        problem = (
            f"{names[0]} {show(people.words[people.codes[row]])} answered {names[1]} "
            f"{show(items[across[row]])} before: one answer each"
        )
        raise cells.wrong(row, cells.columns.index(names[2]), problem)
    values, mask = np.zeros(shape, np.int8), np.zeros(shape, bool)
    values[at], mask[at] = one.values[used, 0], True
    note = (
        f"one answer a row: {shape[0]} of {show(names[0])} × {shape[1]} of {show(names[1])}, "
        f"{len(used)} answers in {show(names[2])}"
    )
    notes = [note]
    if said.vary and items_are_free:
        low, high = (f(values, 0, where=mask, initial=e) for f, e in ((np.min, 127), (np.max, -1)))
        kept = [i for i, many in enumerate(low < high) if many]
        notes += left_out([x for i, x in enumerate(items) if low[i] >= high[i]], cells)
        items, values, mask = tuple(items[i] for i in kept), values[:, kept], mask[:, kept]
    table = Arranged(cells._replace(columns=items), tuple(people.words), None, tuple(notes), None)
    coding, levels = one.coding * len(items), one.levels * len(items)
    if kind != "binary":
        levels = _own_levels(table.cells, values, mask, one.levels[0], known)
        coding = tuple(f"{kind}, {len(own)} levels" for own in levels)
    return table, Encoded(values, mask, coding, levels)


def _own_levels(
    cells: Cells,
    values: np.ndarray,
    mask: np.ndarray,
    scale: Sequence[str],
    known: Mapping[str, Sequence[str]] | None,
) -> tuple[tuple[str, ...], ...]:
    """The levels of each item; `values` count levels of `scale`, and then these."""
    levels = []
    for name, column, seen in zip(cells.columns, values.T, mask.T, strict=True):
        present = [scale[code] for code in np.unique(column[seen])]
        own = tuple(known[name] if known else present)
        if unmet := set(present) - set(own):
            problem = f"found {show(min(unmet))}, wanted one of {listed(own)}"
            raise cells.error(problem, name)
        if len(own) < 2:
            problem = f"every answer is {show(own[0])}: leave the item out" if own else "no answer"
            raise cells.error(problem, name)
        index = np.array([own.index(word) if word in own else 0 for word in scale], np.int8)
        column[seen] = index[column[seen]]
        levels.append(own)
    return tuple(levels)
