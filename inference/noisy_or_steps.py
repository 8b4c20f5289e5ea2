r"""One sweep of Gibbs sampling through a noisy-OR network, and one step of learning.

Lewicki & Sejnowski, *Bayesian unsupervised learning of higher order structure*, NIPS 1996. All rows
go at once; within a layer units take turns, since they compete for their children.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax, random
from jax.nn import sigmoid

from inference.noisy_or import Network, Seen, Wiring, causal_inputs, exact_product

# A cause of an impossible effect is certain: large enough a log odds, and still a number.
SMALLEST = 1e-37


class Swept(NamedTuple):
    """What a sweep leaves behind."""

    bits: dict[str, Array]  # site -> (num_data, units), 0/1
    largest_flip: Array  # (num_data,) the largest probability to change that any unit met


def sweep(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    seen: Mapping[str, Seen],
    key: Array,
    *,
    power: Array | float = 1.0,
    open_sites: Mapping[str, Array] | None = None,
) -> Swept:
    """Visit every hidden unit once, from the lowest layer up.

    :param power: of the likelihood: 1 samples the posterior, 0 the prior, between them annealing.
    :param open_sites: site -> whether its units may be on; those of a closed one are off.
    """
    current = {site: bits[site].astype(network.leak[site].dtype) for site in wiring.hidden}
    largest = jnp.zeros(jnp.shape(current[wiring.hidden[0]])[:-1])
    for site in reversed(wiring.hidden):
        key, key_site = random.split(key)
        is_open = None if open_sites is None else open_sites[site]
        current[site], flips = _sweep_site(
            wiring, network, current, seen, site, key_site, power, is_open
        )
        largest = jnp.maximum(largest, flips.max(-1))
    return Swept(current, largest)


def flip_probabilities(
    wiring: Wiring, network: Network, bits: Mapping[str, Array], seen: Mapping[str, Seen]
) -> dict[str, Array]:
    """(6): the probability of every hidden unit to change if all others stay, (num_data, units)."""
    now = {site: bits[site].astype(network.leak[site].dtype) for site in wiring.hidden}
    return {
        site: _sweep_site(wiring, network, now, seen, site, None, 1.0, None)[1]
        for site in wiring.hidden
    }


def _sweep_site(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    seen: Mapping[str, Seen],
    site: str,
    key: Array | None,
    power: Array | float,
    is_open: Array | None,
) -> tuple[Array, Array]:
    """New states of one layer and what each unit's flip probability was: (6) and (7).

    Without a key nothing is drawn and all units stay as they are.

    With u⁰ the causal input of a child without the unit in question, the unit's log odds are

        log(e^u − 1) + Σ_j S_j log(1 + f_j / (e^{u⁰_j} − 1)) − Σ_j (1 − S_j) w_j

    where f = 1 − e^{−w}: the feedback of the layer above, then what each child has to say. The
    inputs of the children go from unit to unit, changed by what flipped.
    """
    states = bits[site]
    children = wiring.children(site)
    inputs, weights, floor, on, off = [], [], [], [], []
    for child in children:
        value = bits[child] if child in bits else seen[child].value.astype(states.dtype)
        counted = jnp.ones_like(value)
        if child in seen:
            mask = seen[child].mask
            counted = counted * power if mask is None else counted * power * mask
        shape = value.shape
        inputs.append(jnp.broadcast_to(causal_inputs(wiring, network, bits, child), shape))
        weights.append(network.weights[site, child])
        floor.append(network.leak[child])
        on.append(counted * value)
        off.append(counted * (1.0 - value))
    weight, least = jnp.concatenate(weights, -1), jnp.concatenate(floor, -1)
    reason, silent = jnp.concatenate(on, -1), jnp.concatenate(off, -1)
    own = jnp.broadcast_to(causal_inputs(wiring, network, bits, site), states.shape)
    odds = jnp.log(jnp.expm1(jnp.maximum(own, SMALLEST))) - exact_product(silent, weight.T)
    draws = jnp.zeros(states.T.shape)
    if key is not None:
        draws = random.uniform(key, draws.shape, odds.dtype)

    def visit(inputs: Array, unit: tuple) -> tuple[Array, tuple[Array, Array]]:
        weight, strength, odds, state, draw = unit
        # Rounding may take more away than was there: without this unit at least the leak is left.
        without = jnp.maximum(inputs - state[:, None] * weight, least)
        # XLA takes twice as long for log1p; what it would save is below the rounding of the sum.
        heard = reason * jnp.log(1.0 + strength / jnp.expm1(without))
        odds = odds + heard.sum(-1)
        new = state if key is None else (draw < sigmoid(odds)).astype(state.dtype)
        flip = sigmoid((1.0 - 2.0 * state) * odds)
        if is_open is not None:
            new, flip = new * is_open, flip * is_open
        return without + new[:, None] * weight, (new, flip)

    least = jnp.maximum(least, SMALLEST)
    units = (weight, -jnp.expm1(-weight), odds.T, states.T, draws)
    _, (new, flips) = lax.scan(visit, jnp.concatenate(inputs, -1), units)
    return new.T, flips.T
