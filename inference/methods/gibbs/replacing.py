r"""Copies of a noisy-OR network in which units that explain little are replaced.

A unit that stands for a blend of two causes stays so, and two units that share one as well: more
sweeps, epochs or data do not part them. The rows show it. Given the states of all units the columns
are independent under the network, so that columns whose residuals

.. math:: e_{nj} = (y_{nj} - \mu_{nj}) / \sqrt{\mu_{nj} (1 - \mu_{nj}) + 0.05} , \qquad
          \mu_{nj} = 1 - e^{-u_{nj}}

go together have a cause that the network lacks; a blend of A and B leaves residuals that are
positive on A where they are negative on B. The leading directions of their covariance are such
patterns, and the unit to give up for one is that without which the rows lose least. Where A and B
share most of their columns, such a pattern is small, and the unit is halved instead (`halve`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from .layers import Block, Learning
from .noisy_or import SMALLEST, Network, Seen, Wiring, causal_inputs, exact_product
from .noisy_or_steps import flip_probabilities

SHARPNESS = 2.0
"""How much sooner the unit that is missed least is given up than others."""
TURNS = 2
"""Products with the covariance: few leave a direction random, many lead all to the first."""
TURNS_WITHIN = 10
"""The same within the rows of one unit, of which the first direction is wanted."""
FEWEST = 20.0
"""Rows: a unit of fewer is hardly ever halved."""
PLANTED = 1.5
"""The largest weight of a new unit."""
SAMPLE = 4096
"""Rows, drawn at random, that new units are made from, at most."""


def shown(bits: Mapping[str, Array], seen: Mapping[str, Seen], site: str) -> Array:
    """Bits of a site that are on, as real numbers; a missing cell counts as off."""
    if site in bits:
        return bits[site]
    value, mask = seen[site]
    return value if mask is None else value * mask


def unit_gains(
    wiring: Wiring, network: Network, bits: Mapping[str, Array], seen: Mapping[str, Seen], site: str
) -> Array:
    """Nats per row by which each unit of a site explains rows better than they were without it.

    With all others as they are, and the unit summed out: log(1 − p + p e^d) per row, where d is
    what its effects say. Of two units for one cause each has little to add: (units,).
    """
    flip = flip_probabilities(wiring, network, bits, seen)[site]
    flip = jnp.clip(flip, SMALLEST, 1.0 - 1e-7)
    odds = (1.0 - 2.0 * bits[site]) * (jnp.log(flip) - jnp.log1p(-flip))
    own = causal_inputs(wiring, network, bits, site)
    prior = jnp.log(jnp.expm1(jnp.maximum(own, SMALLEST)))
    return (jax.nn.softplus(odds) - jax.nn.softplus(prior)).mean(0)


def given_up(key: Array, gains: Array, share: Array | float) -> tuple[Array, Array]:
    """Which units to replace, a share of them, and the place of each in that order: (units,) both.

    Units of little gain tend to come first: the order is that of exponential waiting times whose
    means grow with the gain.
    """
    key_count, key_order = random.split(key)
    units = gains.shape[0]
    time = random.exponential(key_order, (units,)) * jnp.maximum(gains, 1e-6) ** SHARPNESS
    place = (time < time[:, None]).sum(1)
    return place < jnp.floor(share * units + random.uniform(key_count)), place


def residuals(
    wiring: Wiring, network: Network, bits: Mapping[str, Array], seen: Mapping[str, Seen], site: str
) -> Array:
    """What the causes of a site leave unexplained of its units, (rows, units)."""
    mean = -jnp.expm1(-causal_inputs(wiring, network, bits, site))
    value, mask = (bits[site], None) if site in bits else seen[site]
    left = (value - mean) / jnp.sqrt(mean * (1.0 - mean) + 0.05)
    return left if mask is None else left * mask


def cause_ratios(
    wiring: Wiring, network: Network, bits: Mapping[str, Array], seen: Mapping[str, Seen], site: str
) -> Array:
    """y / g of each unit of a site: with f, the share of a cause in what it explains."""
    mean = -jnp.expm1(-jnp.maximum(causal_inputs(wiring, network, bits, site), SMALLEST))
    return shown(bits, seen, site) / mean


def missing_patterns(key: Array, units: int, left: Array) -> Array:
    """Weights of units for what residuals (rows, columns) have in common, (units, columns)."""
    starts = random.randint(key, (units,), 0, len(left))
    patterns, _ = _directions(left[starts], left, jnp.ones((units, len(left))), TURNS)
    # A cause turns few columns on: of a direction and its opposite it is the longer tail.
    patterns = jnp.maximum(patterns * jnp.sign((patterns**3).sum(1, keepdims=True)), 0.0)
    return PLANTED * patterns / (patterns.max(1, keepdims=True) + 1e-9)


class Halves(NamedTuple):
    """Two units for one."""

    unit: Array  # () which one
    strengths: Array  # (2, columns) 1 - exp(-w) of the two
    shares: Array  # (2,) of the rows in which it is on


def halve(
    key: Array, left: Array, ratio: Array, on: Array, strengths: Array, kept: Array
) -> Halves:
    """A unit that stands for two causes as two, each with its part of the rows.

    In the rows of a blend residuals are positive on one cause where they are negative on the other,
    whatever columns they share: the leading direction among these rows parts them, and equation (9)
    for either part gives its weights. A unit is the sooner halved the further its rows' covariance
    is from chance.

    :param ratio: (rows, columns), what was observed over its probability: of 0 and 1, y / g.
    :param on: (rows, units); strengths: (units, columns).
    :param kept: (units,), which units may be halved.
    """
    key_rows, key_unit = random.split(key)
    among = on.T
    starts = random.categorical(key_rows, jnp.log(among + 1e-6))
    directions, size = _directions(left[starts], left, among, TURNS_WITHIN)
    apart = jnp.where(kept, size / jnp.sqrt(among.sum(1) + FEWEST), 0.0)
    unit = random.categorical(key_unit, SHARPNESS * jnp.log(apart + 1e-9))
    side = exact_product(left, directions[unit]) > 0.0
    rows = among[unit] * jnp.stack([side, ~side])
    count = rows.sum(1)
    share = exact_product(rows, ratio) * strengths[unit] / (count[:, None] + 1.0)
    return Halves(unit, jnp.clip(share, 0.0, 0.99), (count + 1.0) / (count.sum() + 2.0))


def _directions(ways: Array, left: Array, among: Array, turns: int) -> tuple[Array, Array]:
    """Directions in which residuals vary together among some rows, and how much they do.

    :param ways: (groups, columns) to begin with.
    :param among: (groups, rows), which rows count.
    """
    alone = exact_product(among, left**2)

    def turn(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ways = carry[0]
        # The covariance without its diagonal, which is large where a column is rare.
        turned = exact_product(exact_product(ways, left.T) * among, left) - alone * ways
        size = jnp.linalg.norm(turned, axis=1)
        return turned / (size[:, None] + 1e-9), size

    return lax.fori_loop(0, turns, turn, (ways, jnp.zeros(len(among))))


class Replacing(NamedTuple):
    """What copies of a member have in common."""

    learning: Learning
    units: dict[str, int]  # of each site
    level: Array  # the highest open layer
    fresh: Array  # whether it opens now

    def copy(
        self, key: Array, network: Network, bits: Array | None, share: Array
    ) -> tuple[Network, Array | None]:
        """A copy of a member, a share of the units of whose highest open layer are new."""
        layered, level, fresh = self.learning.layered, self.level, self.fresh
        states = None if bits is None else layered.program.split(bits)
        key_rows, key_states, key = random.split(key, 3)
        num_data = self.learning.rows.num_data
        size = min(SAMPLE, 1 << (num_data.bit_length() - 1))  # fewer than all rows
        rows = random.randint(key_rows, (size,), 0, num_data)
        hidden, observed = self._sample(key_states, network, states, rows)
        leak, weights = dict(network.leak), dict(network.weights)
        for number, site in enumerate(layered.wiring.hidden):
            keys = random.split(random.fold_in(key, number), 6)
            units, here = self.units[site], level == layered.height(site)
            edges = [(site, child) for child in layered.wiring.children(site)]
            read = layered.wiring, network, hidden, observed
            gains = unit_gains(*read, site)
            left = jnp.concatenate([residuals(*read, child) for _, child in edges], 1)
            ratio = jnp.concatenate([cause_ratios(*read, child) for _, child in edges], 1)
            works = -jnp.expm1(-jnp.concatenate([network.weights[edge] for edge in edges], 1))
            which, place = given_up(keys[0], gains, share)
            which = here & (which | fresh)
            # One of the units that are given up becomes a half of another.
            parted = which.any() & ~fresh & random.bernoulli(keys[1])
            patterns = missing_patterns(keys[2], units, left)[place]
            halves = halve(keys[3], left, ratio, hidden[site], works, ~which)
            first = parted & which & (place == 0)
            other_half = parted & (jnp.arange(units) == halves.unit)
            ends = np.cumsum([network.weights[edge].shape[1] for edge in edges])[:-1]
            one, other = random.randint(keys[4], (2, units), 0, len(rows))
            noise = jnp.split(0.05 + 0.1 * random.uniform(keys[5], works.shape), ends, 1)
            parts = jnp.split(-jnp.log1p(-halves.strengths), ends, 1)
            planted = jnp.split(patterns, ends, 1)
            for edge, more, pattern, pair in zip(edges, noise, planted, parts, strict=True):
                child = edge[1]
                value = shown(hidden, observed, child)
                new = more + jnp.where(fresh, value[one] * value[other], pattern)
                new = jnp.where(first[:, None], 0.01 + pair[0], new)
                new = jnp.where(other_half[:, None], 0.01 + pair[1], new)
                changes = which | other_half
                weights[edge] = jnp.where(changes[:, None], new, weights[edge])
                if child not in layered.names.leak:
                    continue
                if child in layered.wiring.observed:
                    # Where a leak has vanished nothing is left for a new unit to explain.
                    some = jnp.maximum(leak[child], 0.02)
                    leak[child] = jnp.where(which.any(), some, leak[child])
                else:  # It stood for all that was above: now there is a cause.
                    leak[child] = jnp.where(here & fresh, 0.1, leak[child])
            if site in layered.names.leak:
                typical = jnp.where(fresh, 0.1, leak[site].mean())
                of_half = leak[site][halves.unit] * halves.shares
                leak[site] = jnp.where(which, typical, leak[site])
                leak[site] = jnp.where(first, of_half[0], leak[site])
                leak[site] = jnp.where(other_half, of_half[1], leak[site])
            if states is not None:
                states[site] = jnp.where(which, 0, states[site])
        if states is None:
            return Network(leak, weights), None
        joined = jnp.concatenate([states[name] for name in layered.program.anatomy.names], axis=-1)
        return Network(leak, weights), joined

    def _sample(
        self, key: Array, network: Network, states: dict[str, Array] | None, rows: Array
    ) -> tuple[dict[str, Array], dict[str, Seen]]:
        """States of the hidden units in some rows, and what was observed there."""
        learning, layered = self.learning, self.learning.layered
        observed = learning.observe(learning.rows.take(rows))
        if states is not None:
            some = {site: x[rows] for site, x in states.items()}
        else:
            zero, phase = jnp.zeros((), int), layered.phase(self.level - self.fresh, False)
            few = Block(zero, zero, observed, jnp.ones(rows.size))
            settled = learning.settle(network, few, None, phase, key)[0]
            some = layered.program.split(settled.bits)
        return {site: x.astype(float) for site, x in some.items()}, observed
