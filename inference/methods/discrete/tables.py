"""E-step over one table of states for all data, whatever its latents.

Where the log joint is affine in the datum, all rows × states are one matrix product; elsewhere the
program is run on the states.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from ...reading.anatomy import Anatomy
from ...reading.handlers import table_of
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
        if memory is not None:
            table = jnp.swapaxes(memory, 0, 1)
        else:
            table = table_of(reader.anatomy, self.states)  # (S, 1 or n, bits)
        if reader.affine and table.shape[1] == 1:
            form = reader.affine_form(params, table[:, 0], arguments)
            logits = form.log_joint(reader.cells(params, form, arguments))
            return shared_expectation(table[:, 0], logits)
        return expectation_over(reader, params, arguments, table)


def shared_expectation(table: Array, logits: Array) -> Expectation:
    """The posterior over states (S, bits) that all rows share, from log joints (S, n)."""
    evidence = logsumexp(logits, axis=0)
    probability = jnp.exp(logits - evidence)
    values = table.astype(logits.dtype)

    def second(weights: Array) -> Array:
        heavy = jnp.matmul(probability, weights, precision="highest")
        return jnp.matmul(values.T * heavy, values, precision="highest")

    def best() -> Array:
        return table[jnp.argmax(logits, axis=0)].astype(jnp.int32)

    mean = jnp.matmul(probability.T, values, precision="highest")
    return Expectation(evidence, mean, second, lambda: (table[:, None], probability), best)


def expectation_over(
    reader: Reader, params: Params, arguments: Arguments, table: Array, valid: Array | None = None
) -> Expectation:
    """The posterior over states (S, n or 1, bits); those not `valid`, (S, n), are left out."""
    logits = reader.log_joint(params, table, arguments)
    if valid is not None:
        logits = jnp.where(valid, logits, -jnp.inf)
    evidence = logsumexp(logits, axis=0)
    probability = jnp.exp(logits - evidence)
    values = jnp.broadcast_to(table, (*logits.shape, table.shape[-1])).astype(logits.dtype)

    def second(weights: Array) -> Array:
        heavy = (probability * weights)[..., None] * values
        bits = values.shape[-1]
        return over_rows(heavy.reshape(-1, bits), values.reshape(-1, bits))

    def best() -> Array:
        chosen = jnp.argmax(logits, axis=0)[None, :, None]
        return jnp.take_along_axis(values, chosen, axis=0)[0].astype(jnp.int32)

    mean = jnp.einsum("sn,snh->nh", probability, values)
    return Expectation(evidence, mean, second, lambda: (table, probability), best)
