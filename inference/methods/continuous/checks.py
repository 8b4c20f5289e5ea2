"""Columns that can only end in nonsense, refused by number before any work."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...reading.recognition.papers import Known
from ...rows.chunks import Rows
from ...rows.disk import pieces


def check_columns(known: Known, rows: Rows, prior: bool) -> None:
    """Refuse levels that there are not, and columns that say nothing unless a prior does.

    :param prior: whether the parameters have priors that keep them finite.
    """
    if known.columns is None or any(isinstance(x, jax.core.Tracer) for x in rows.leaves):
        return
    leaves = [np.asarray(x).reshape(rows.num_data, -1) for x in rows.leaves]
    several = len({column.leaf for column in known.columns}) > 1
    looks = [
        _Look(place.leaf, place.column, place.mask, kind, f"argument {place.leaf + 1}, " * several)
        for place, kind in zip(known.columns, known.kinds, strict=True)
    ]
    for piece in pieces(max(leaves, key=np.size)):
        blocks = [np.array(leaf[piece]) for leaf in leaves]
        for look in looks:
            look.at(piece.start, blocks)
    for look in sorted(looks, key=lambda look: (look.leaf, look.column)):
        look.judge(prior)


class _Look:
    """What was seen of one column so far."""

    def __init__(self, leaf: int, column: int, mask: int | None, kind: Any, where: str):
        self.leaf, self.column, self.mask, self.kind = leaf, column, mask, kind
        self.name = f"{where}column {column}"
        self.levels = 2 if kind == "binary" else None if kind == "real" else int(kind)
        self.values: set = set()  # all levels that were met; of real values the first two

    def at(self, start: int, blocks: list[np.ndarray]) -> None:
        data = blocks[self.leaf]
        rows = np.arange(len(data))
        if self.mask is not None:
            rows = np.flatnonzero(blocks[self.mask][:, self.column])
        values = data[rows, self.column]
        if self.levels is None:
            if len(values) and len(self.values) < 2:
                self.values |= {values[0], values[np.argmax(values != values[0])]}
            return
        wrong = (values < 0) | (values >= self.levels) | (values != np.floor(values))
        if wrong.any():
            bad = int(np.argmax(wrong))
            levels = self.levels
            wanted = "0 or 1" if levels == 2 else f"a level from 0 to {levels - 1}"
            raise ValueError(
                f"row {start + rows[bad]}, {self.name} holds {values[bad]}: wanted {wanted}"
            )
        met = np.bincount(values.astype(int), minlength=self.levels)
        self.values |= set(np.flatnonzero(met))

    def judge(self, prior: bool) -> None:
        if not self.values:
            raise ValueError(f"{self.name} has no observed cell: leave it out")
        if prior:
            return
        advice = "leave it out, or keep its parameters finite with prior=True"
        if self.levels in (None, 2):
            if len(self.values) < 2:
                (only,) = self.values
                raise ValueError(f"{self.name} is {only} in every row: {advice}")
            return
        missing = set(range(self.levels or 0)) - self.values
        if missing:
            raise ValueError(
                f"{self.name} never shows level {min(missing)} of {self.kind}: {advice}"
            )
