"""E-step over one table of states for all data, whatever its latents.

Where the log joint is quadratic in the bits or affine in the datum, all rows × states are one
matrix product; elsewhere the program is run on the states.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ...numerics.log_sums import normalise, scores, shares
from ...reading.affine import states_met
from ...reading.anatomy import Anatomy
from ...reading.handlers import table_of
from ...reading.joint import listed_of
from ...reading.local import Structure
from ...reading.reader import Reader
from ...reading.states import StateSet
from ...rows.chunks import over_rows
from ...types import Arguments, Params
from ..shared import Expectation


class Table:
    """Sum over the states of a set; categories as well as bits."""

    keep = False

    def __init__(self, states: StateSet):
        self.states = states

    def num_states(self, anatomy: Anatomy) -> int:
        each = [x.num_values or 0 for x in anatomy.latents for _ in range(x.size)]
        return len(self.states.table(each))

    def given(self, anatomy: Anatomy) -> Array | None:
        """The states of each datum, (num_data, S, bits), to go with its chunk; None if shared."""
        table = table_of(anatomy, self.states)
        return None if table.shape[1] == 1 else jnp.swapaxes(table, 0, 1)

    def start(self, anatomy: Anatomy, key: Array) -> None:
        del anatomy, key

    def search(
        self, reader: Reader, params: Params, arguments: Arguments, memory: Any, keys: Array
    ) -> tuple[Array, Any]:
        return self.expect(reader, params, arguments, memory, keys).evidence, memory

    def expect(
        self,
        reader: Reader,
        params: Params,
        arguments: Arguments,
        memory: Array | None = None,
        keys: Array | None = None,
    ) -> Expectation:
        del keys
        own = None if memory is None else jnp.swapaxes(memory, 0, 1)
        if own is None:
            table = table_of(reader.anatomy, self.states)  # (S, 1 or n, bits)
            if table.shape[1] == 1:
                shared = table[:, 0]
                return shared_expectation(shared, *log_joint_of(reader, params, arguments, shared))
            own = table
        return own_expectation(own, own_log_joint(reader, params, arguments, own))


def log_joint_of(
    reader: Reader, params: Params, arguments: Arguments, table: Array
) -> tuple[Array, Array]:
    """Log joints of states (S, bits) that all rows share, (S, n): but for the second, (n,)."""
    by_bits = reader.structure.shared or not reader.affine
    if by_bits and reader.structure is not Structure.GENERAL:
        form = reader.quadratic(params, arguments)
        return scores(*form.over(table.astype(form.linear.dtype))), form.constant
    return listed_of(reader.model, reader.anatomy, params, table[:, None], arguments)


def own_log_joint(reader: Reader, params: Params, arguments: Arguments, states: Array) -> Array:
    """Log joints of the states of each row, (S, n, bits): (S, n)."""
    if reader.structure.shared:
        form = reader.quadratic(params, arguments)
        own = jnp.swapaxes(states, 0, 1).astype(form.linear.dtype)
        return form.constant + form.own(own).T
    return reader.log_joint(params, states, arguments)


def shared_expectation(table: Array, logits: Array, row: Array) -> Expectation:
    """The posterior over states (S, bits) that all rows share, from log joints (S, n) + (n,)."""
    # What is divided by the sum is the moments, and not each of S × n terms.
    evidence, terms, count = shares(logits, 0)
    values = table.astype(logits.dtype)

    def second(weights: Array, active: Array | None = None) -> Array:
        del active
        heavy = states_met(terms, (weights / count)[:, None])
        return jnp.matmul(values.T * heavy[:, 0], values, precision="highest")

    def best() -> Array:
        return table[jnp.argmax(logits, axis=0)].astype(jnp.int32)

    mean = jnp.matmul(terms.T, values, precision="highest") / count[:, None]
    return Expectation(evidence + row, mean, second, lambda: (table[:, None], terms / count), best)


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
    return Expectation(
        evidence, mean, second, lambda: (states.astype(jnp.int32), probability), best
    )
