"""Files with one answer a row: person, item, response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .cells import Cells, show
from .columns import Said, different, level

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
    if len(cells.columns) != 3 or isinstance(cells.cells, np.ndarray):
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
    places, labels = [], []
    for name in names[:2]:
        column = cells.columns.index(name)
        indices, values = different(cells.of(column))
        if (indices < 0).any():
            row = int(np.argmax(indices < 0))
            raise cells.wrong(row, column, "the cell is missing")
        places.append(np.asarray(indices))
        labels.append([level(x) for x in values])
    people, every = labels
    if items is not None:
        new = {name: place for place, name in enumerate(items)}
        places[1] = np.array([new.get(name, -1) for name in every])[places[1]]
        every = list(items)
    if len(people) * len(every) > MOST_CELLS:
        size = f"{len(people)} × {len(every)}"
        problem = f"makes a table of {size}, which is too large: leave some {names[0]} or "
        raise cells.error(f"{problem}{names[1]} out")
    used = np.flatnonzero((codes >= 0) & (places[1] >= 0))
    rows, across = places[0][used], places[1][used]
    flat = rows.astype(np.int64) * len(every) + across
    first = np.full(len(flat), True)
    order = np.argsort(flat, kind="stable")
    first[order[1:]] = flat[order[1:]] != flat[order[:-1]]
    if not first.all():
        again = int(used[np.argmin(first)])
        problem = (
            f"{names[0]} {show(people[places[0][again]])} answered {names[1]} "
            f"{show(every[places[1][again]])} before: one answer each"
        )
        raise cells.wrong(again, cells.columns.index(names[2]), problem)
    values = np.zeros((len(people), len(every)), np.int8)
    mask = np.zeros(values.shape, bool)
    values[rows, across], mask[rows, across] = codes[used], True
    return Answers(values, mask, tuple(people), tuple(every))
