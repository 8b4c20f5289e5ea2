"""The E-step of a noisy-OR network over all states of its hidden units, where they are few.

log p(y | s) is linear in the bits of y, so that the log joints of a block of rows and all states
are one matrix product, and equation (9) needs of the rows no more than how often each state was
met, and with which bits: a table of states × columns, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models.distributions import NoisyOr

from ...numerics.log_sums import normalise
from ...reading.states import AllStates
from .noisy_or import Network, Seen, Wiring, causal_inputs, exact_product
from .noisy_or_steps import Sums, share_out


class Summed(NamedTuple):
    """What all states together say of some rows."""

    evidence: Array  # (num_data,) log p(y), units of closed layers being off
    mean: Array  # (num_data, num_bits) ⟨s⟩
    sums: Sums  # of equation (9)


def sum_states(
    wiring: Wiring,
    network: Network,
    seen: Mapping[str, Seen],
    row_weights: Array,
    open_sites: Mapping[str, Array],
) -> Summed:
    """The posterior of each row over all states, and the sums that learning needs.

    :param row_weights: (num_data,) how much each row counts in the sums.
    :param open_sites: site -> whether its units may be on.
    """
    sizes = [network.leak[site].shape[0] for site in wiring.hidden]
    states = jnp.asarray(AllStates().table((2,) * sum(sizes)), row_weights.dtype)
    parts = jnp.split(states, np.cumsum(sizes)[:-1], axis=1)
    bits = dict(zip(wiring.hidden, parts, strict=True))
    # A state that rules a bit out makes -inf · 0 = NaN in a product: its log odds stay finite.
    log_joint: Array = jnp.zeros(len(states))
    for site in wiring.hidden:
        cells = NoisyOr(causal_inputs(wiring, network, bits, site), validate_args=False)
        is_open, value = open_sites[site], bits[site]
        prior = jnp.where(is_open, cells.log_prob(value).sum(-1), 0.0)
        log_joint += jnp.where(is_open | (value.sum(-1) == 0), prior, -jnp.inf)
    rows: dict[str, tuple[Array, Array | None]] = {}
    for site in wiring.observed:
        value, mask = seen[site]
        inputs = causal_inputs(wiring, network, bits, site)
        log_on = jnp.maximum(NoisyOr(inputs, validate_args=False).log_prob(1.0), -1e30)
        if mask is None:
            rows[site], silent = (value, None), inputs.sum(-1)
        else:
            counted = jnp.broadcast_to(mask, value.shape).astype(value.dtype)
            rows[site], silent = (value * counted, counted), exact_product(counted, inputs.T)
        log_joint = log_joint + exact_product(rows[site][0], (log_on + inputs).T) - silent
    evidence, posterior = normalise(log_joint, 1)
    # How often each state was met, and with which bits: one product, with a column of ones.
    tables = [x for pair in rows.values() for x in pair if x is not None]
    wide = jnp.concatenate([jnp.ones((len(posterior), 1)), *tables], axis=1)
    met, *sums = jnp.split(
        exact_product((posterior * row_weights[:, None]).T, wide),
        np.cumsum([1, *(x.shape[1] for x in tables)])[:-1], axis=1,
    )  # fmt: skip
    tallies = {site: (met * bits[site], jnp.broadcast_to(met, bits[site].shape)) for site in bits}
    found = iter(sums)
    for site, (_, known) in rows.items():
        tally = next(found)
        every = jnp.broadcast_to(met, tally.shape)
        tallies[site] = tally, every if known is None else next(found)
    mean = exact_product(posterior, states)
    return Summed(evidence, mean, share_out(wiring, network, bits, tallies))
