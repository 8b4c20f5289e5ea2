"""Whether a sum over states has room, before any of them is listed."""

from __future__ import annotations

from ...numerics.memory import available, in_words
from ...reading.anatomy import ProgramError
from ...reading.reader import Reader
from ...reading.states import AllStates, AtMost, StateSet
from ...rows.chunks import Rows
from ..shared import chunk_rows

COPIES = 8
"""Of what is held for a state: as constant, in the compiled program, forwards and backwards. By
measurement, at 2^18 states in bits (1.53 GB), 2^17 by cells (0.34 GB), 2^16 by runs (0.9 GB)."""


def check_room(reader: Reader, rows: Rows, states: StateSet, chunk_size: int | None) -> None:
    """Refuse a table of states for which there is not enough memory.

    By bits a state has a number for each pair of them, by cells a few for each cell; elsewhere the
    program runs on it, for each row of a chunk.
    """
    anatomy = reader.anatomy
    num_states = states.count([x.num_values or 0 for x in anatomy.latents for _ in range(x.size)])
    size = chunk_rows(chunk_size, reader, num_states, rows)
    width = rows.width + anatomy.num_bits
    if reader.structure.shared:
        numbers = anatomy.num_bits * (anatomy.num_bits + 1) // 2 + 1 + size
    else:
        numbers = 3 * width + size if reader.affine else width * size
    needed, there = 4 * COPIES * num_states * numbers, available()
    if needed <= there:
        return
    names = " and ".join(repr(x.name) for x in anatomy.latents)
    instead = "TruncatedEM, or states=AtMost(k)" if anatomy.binary else "fewer values"
    if not isinstance(states, AllStates):
        instead = "a lower max_active" if isinstance(states, AtMost) else "a smaller table"
    raise ProgramError(
        f"{names} {'has' if len(anatomy.latents) == 1 else 'have'} {num_states} states to sum "
        f"over, which take about {in_words(needed)} where {in_words(there)} are available: "
        f"use {instead}"
    )
