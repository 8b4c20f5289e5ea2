"""E-step over one table of states for all data, whatever its latents.

Where the log joint is quadratic in the bits or affine in the datum, all rows × states are one
matrix product; elsewhere the program is run on the states.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ...numerics.log_sums import normalise, shares
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.handlers import table_of
from ...reading.log_joint import Structure, listed_of
from ...reading.reader import Reader
from ...reading.states import AllStates, AtMost, StateSet
from ...rows.chunks import Rows, over_rows
from ...running.memory import available, in_words
from ..shared import Chunk, Expectation, chunk_rows


class Table:
    """Sum over the states of a set; categories as well as bits."""

    keep = False

    def __init__(self, states: StateSet):
        self.states = states

    def num_states(self, anatomy: Anatomy) -> int:
        return self.states.count(anatomy.num_values)

    def given(self, anatomy: Anatomy) -> Array | None:
        """The states of each datum, (num_data, S, bits), to go with its chunk; None if shared."""
        table = table_of(anatomy, self.states)
        return None if table.shape[1] == 1 else jnp.swapaxes(table, 0, 1)

    def start(self, anatomy: Anatomy, key: Array) -> None:
        del anatomy, key

    def search(self, here: Chunk, memory: Any, keys: Array) -> tuple[Array, Any]:
        return self.expect(here, memory, keys).evidence, memory

    def expect(self, here: Chunk, memory: Any = None, keys: Array | None = None) -> Expectation:
        del keys
        own = None if memory is None else jnp.swapaxes(memory, 0, 1)
        if own is None:
            table = table_of(here.reader.anatomy, self.states)  # (S, 1 or n, bits)
            if table.shape[1] == 1:
                return listed_expectation(here, table[:, 0])
            own = table
        return own_expectation(own, own_log_joint(here, own))


def listed_expectation(here: Chunk, table: Array) -> Expectation:
    """The posterior over states (S, bits) that all rows share."""
    reader, params, arguments = here
    by_bits = reader.structure.shared or not reader.affine
    if by_bits and reader.structure is not Structure.GENERAL:
        form = reader.quadratic(params, arguments)
        design, features, level = form.over(table.astype(form.linear.dtype))
        if level is not None:  # to add it to the product is another pass over rows × states
            design = jnp.concatenate([design, level[:, None]], 1)
            features = jnp.concatenate([features, jnp.ones_like(features[:1])])
        logits = jnp.matmul(features.T, design.T, precision="highest")
        return shared_expectation(table, logits, form.constant)
    logits, row = listed_of(reader.model, reader.anatomy, params, table[:, None], arguments)
    return shared_expectation(table, logits.T, row)


def own_log_joint(here: Chunk, states: Array) -> Array:
    """Log joints of the states of each row, (S, n, bits): (S, n)."""
    if here.reader.structure.shared:
        form = here.reader.quadratic(*here[1:])
        own = jnp.swapaxes(states, 0, 1).astype(form.linear.dtype)
        return form.constant + form.own(own).T
    return here.log_joint(states)


def shared_expectation(table: Array, logits: Array, row: Array) -> Expectation:
    """The posterior over states (S, bits) that all rows share, from log joints (n, S) + (n,).

    Rows come first, as states are many: XLA on a CPU then sums along memory.
    """
    # What is divided by the sum is the moments, and not each of n × S terms.
    evidence, terms, count = shares(logits, 1)
    values = table.astype(logits.dtype)

    def second(weights: Array, active: Array | None = None) -> Array:
        del active
        heavy = over_rows((weights / count)[:, None], terms, "highest")
        return jnp.matmul(values.T * heavy, values, precision="highest")

    def best() -> Array:
        return table[jnp.argmax(logits, axis=1)].astype(jnp.int32)

    mean = jnp.matmul(terms, values, precision="highest") / count[:, None]
    weighted = lambda: (table[:, None], (terms / count[:, None]).T)  # noqa: E731
    return Expectation(evidence + row, mean, second, weighted, best, 1.0 / count)


def own_expectation(states: Array, logits: Array) -> Expectation:
    """The posterior over the states of each row, (S, n, bits), from their log joints (S, n)."""
    evidence, probability = normalise(logits, 0)
    values = states.astype(logits.dtype)

    def second(weights: Array, active: Array | None = None) -> Array:
        del active
        heavy = (probability * weights)[..., None] * values
        bits = values.shape[-1]
        return over_rows(heavy.reshape(-1, bits), states.reshape(-1, bits))

    def best() -> Array:
        chosen = jnp.argmax(logits, axis=0)[None, :, None]
        return jnp.take_along_axis(states, chosen, axis=0)[0].astype(jnp.int32)

    mean = jnp.einsum("sn,snh->nh", probability, values)
    weighted = lambda: (states.astype(jnp.int32), probability)  # noqa: E731
    return Expectation(evidence, mean, second, weighted, best, probability.max(0))


COPIES = 8
"""Of what is held for a state: as constant, in the compiled program, forwards and backwards. By
measurement, at 2^18 states in bits (1.53 GB), 2^17 by cells (0.34 GB), 2^16 by runs (0.9 GB)."""


def check_room(reader: Reader, rows: Rows, states: StateSet, chunk_size: int | None) -> None:
    """Refuse a table of states for which there is not enough memory.

    By bits a state has a number for each pair of them, by cells a few for each cell; elsewhere the
    program runs on it, for each row of a chunk.
    """
    anatomy = reader.anatomy
    num_states = states.count(anatomy.num_values)
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
