r"""Steps of a noisy-OR network: a sweep of Gibbs sampling, a sum over all states, learning.

Lewicki & Sejnowski, *Bayesian unsupervised learning of higher order structure*, NIPS 1996. All rows
go at once; within a layer units take turns, since they compete for their children.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.nn import sigmoid
from latentbits.models.distributions import NoisyOr

from ...numerics.log_sums import normalise
from ...reading.anatomy import ProgramError
from ...reading.states import AllStates
from .noisy_or import SMALLEST, Network, Seen, Wiring, causal_inputs, exact_product

LEAST_STRENGTH = 1e-9


def sweep(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    seen: Mapping[str, Seen],
    draws: Mapping[str, Array],
    *,
    power: Array | float = 1.0,
    open_sites: Mapping[str, Array] | None = None,
) -> tuple[dict[str, Array], Array]:
    """Visit every hidden unit once, from the lowest layer up.

    The results are the new bits by site, (num_data, units), and the largest probability to change
    that a unit of each row met, (num_data,).

    :param draws: site -> (num_data, units) between 0 and 1.
    :param power: of the likelihood: 1 samples the posterior, 0 the prior, between them annealing.
    :param open_sites: site -> whether its units may be on; those of a closed one are off.
    """
    current = {site: bits[site].astype(network.leak[site].dtype) for site in wiring.hidden}
    largest = jnp.zeros(jnp.shape(current[wiring.hidden[0]])[:-1])
    for site in reversed(wiring.hidden):
        is_open = None if open_sites is None else open_sites[site]
        current[site], flips = _sweep_site(
            wiring, network, current, seen, site, draws[site], power, is_open
        )
        largest = jnp.maximum(largest, flips.max(-1))
    return current, largest


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
    draws: Array | None,
    power: Array | float,
    is_open: Array | None,
) -> tuple[Array, Array]:
    """New states of one layer and what each unit's flip probability was: (6) and (7).

    Without draws, (num_data, units) between 0 and 1, all units stay as they are.

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

    def visit(inputs: Array, unit: tuple) -> tuple[Array, tuple[Array, Array]]:
        weight, strength, odds, state, draw = unit
        # Rounding may take more away than was there: without this unit at least the leak is left.
        without = jnp.maximum(inputs - state[:, None] * weight, least)
        # XLA takes twice as long for log1p; what it would save is below the rounding of the sum.
        heard = reason * jnp.log(1.0 + strength / jnp.expm1(without))
        odds = odds + heard.sum(-1)
        new = state if draw is None else (draw < sigmoid(odds)).astype(state.dtype)
        flip = sigmoid((1.0 - 2.0 * state) * odds)
        if is_open is not None:
            new, flip = new * is_open, flip * is_open
        return without + new[:, None] * weight, (new, flip)

    least = jnp.maximum(least, SMALLEST)
    turns = None if draws is None else draws.T
    units = (weight, -jnp.expm1(-weight), odds.T, states.T, turns)
    _, (new, flips) = lax.scan(visit, jnp.concatenate(inputs, -1), units)
    return new.T, flips.T


class Sums(NamedTuple):
    """What learning needs of the states; sums over rows, so that they add up over blocks."""

    share: Network  # Σ_n S_i S_j f_ij / g_j: how often i turned j on, as far as one can tell
    counts: Network  # Σ_n S_i: how often it could have


def sum_shares(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    seen: Mapping[str, Seen],
    row_weights: Array,
) -> Sums:
    """The sums of equation (9) over rows; a leak is the weight of a cause that is always on."""
    tallies = {}
    for site in (*wiring.hidden, *wiring.observed):
        value = bits[site] if site in bits else seen[site].value
        value = value.astype(row_weights.dtype)
        counted = jnp.broadcast_to(row_weights[:, None], value.shape)
        mask = seen[site].mask if site in seen else None
        if mask is not None:
            counted = counted * mask
        tallies[site] = counted * value, counted
    return share_out(wiring, network, bits, tallies)


def share_out(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    tallies: Mapping[str, tuple[Array, Array]],
) -> Sums:
    """The sums of equation (9) over states.

    :param bits: site -> (num_states, units) of the hidden units.
    :param tallies: site -> how often each unit was on in that state, and how often it counted,
        (num_states, units) both.
    """
    share, counts = Network({}, {}), Network({}, {})
    for site in (*wiring.hidden, *wiring.observed):
        on, counted = tallies[site]
        inputs = causal_inputs(wiring, network, bits, site)
        # f/g is a share: where the input is zero f is as well, and nothing is to be shared.
        ratio = on / -jnp.expm1(-jnp.maximum(inputs, SMALLEST))
        share.leak[site] = -jnp.expm1(-network.leak[site]) * ratio.sum(0)
        counts.leak[site] = counted.sum(0)
        for parent in wiring.parents(site):
            edge, active = (parent, site), bits[parent].astype(ratio.dtype)
            strength = -jnp.expm1(-network.weights[edge])
            share.weights[edge] = strength * exact_product(active.T, ratio)
            counts.weights[edge] = exact_product(active.T, counted)
    return Sums(share, counts)


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

    log p(y | s) is linear in the bits of y, so that the log joints of a block of rows and all
    states are one matrix product, and equation (9) needs of the rows no more than how often each
    state was met, and with which bits: a table of states × columns.

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
    # How often each state was met, and with which bits.
    heavy = (posterior * row_weights[:, None]).T
    met = heavy.sum(1, keepdims=True)
    tallies = {site: (met * bits[site], jnp.broadcast_to(met, bits[site].shape)) for site in bits}
    for site, (ones, known) in rows.items():
        on = exact_product(heavy, ones)
        every = met if known is None else exact_product(heavy, known)
        tallies[site] = on, jnp.broadcast_to(every, on.shape)
    mean = exact_product(posterior, states)
    return Summed(evidence, mean, share_out(wiring, network, bits, tallies))


def expected_sums(wiring: Wiring, network: Network, count: float) -> Sums:
    """The sums of equation (9) over so many rows as the network itself makes them.

    Learning from these changes nothing. Units are taken as independent given the layers above,
    which decides how much each sum weighs, and not the weights that follow from it.
    """
    share, counts = Network({}, {}), Network({}, {})
    active: dict[str, Array] = {}
    for site in (*wiring.hidden, *wiring.observed):
        silent = jnp.exp(-network.leak[site])
        share.leak[site] = count * (1.0 - silent)
        counts.leak[site] = jnp.full_like(silent, count)
        for parent in wiring.parents(site):
            edge = (parent, site)
            strength = -jnp.expm1(-network.weights[edge])
            on = jnp.broadcast_to(count * active[parent][:, None], strength.shape)
            share.weights[edge], counts.weights[edge] = on * strength, on
            silent = silent * jnp.prod(1.0 - active[parent][:, None] * strength, axis=0)
        active[site] = 1.0 - silent
    return Sums(share, counts)


def reestimate(weight: Array, share: Array, count: Array, prior: dist.Distribution | None) -> Array:
    r"""Equation (9): new weights, from the share of their effects that was theirs.

    With :math:`f = 1 - e^{-w}`, a Gamma(α, β) prior on w, or a Beta(α, β) prior on f,

    .. math::

        f \leftarrow \frac{\sum_n S_i S_j f/g_j + (\alpha - 1) f/w}{\sum_n S_i + \beta}
        \qquad\text{or}\qquad
        f \leftarrow \frac{\alpha - 1 + 2f + \sum_n S_i S_j f/g_j}{\alpha + \beta + \sum_n S_i}

    Printed copies of the paper lack the equation; both have their fixed points where the slope of
    the log posterior in w is zero. Without a prior the likelihood is maximised.

    >>> weights = reestimate(jnp.array([1.0]), jnp.array([3.0]), jnp.array([4.0]), None)
    >>> round(float(1 - jnp.exp(-weights[0])), 4)
    0.75
    """
    strength = -jnp.expm1(-weight)
    if prior is None:
        new = jnp.where(count > 0, share / jnp.where(count > 0, count, 1.0), strength)
    elif isinstance(prior, dist.Beta):
        alpha, beta = prior.concentration1, prior.concentration0
        new = (alpha - 1.0 + 2.0 * strength + share) / (alpha + beta + count)
    elif isinstance(prior, dist.Gamma):
        alpha, beta = prior.concentration, prior.rate
        # As w goes to zero f/w goes to one.
        ratio = jnp.where(weight > 0, strength / jnp.where(weight > 0, weight, 1.0), 1.0)
        new = (share + (alpha - 1.0) * ratio) / (count + beta)
    else:
        raise ProgramError(
            f"the prior of the weights is {type(prior).__name__}: equation (9) is for Gamma on the "
            "weights or Beta on 1 - exp(-weight); pass prior="
        )
    # Neither end has a way back: a weight of zero stays, and one of infinity too.
    return -jnp.log1p(-jnp.clip(new, LEAST_STRENGTH, 1.0 - 1e-6))
