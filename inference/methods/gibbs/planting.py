r"""Which units of a noisy-OR network are missed least, and which patterns the network lacks.

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
from jax import Array, lax

from ...numerics.draws import below, first_of
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


def given_up(draws: Array, gains: Array, share: Array) -> tuple[Array, Array]:
    """Which units to replace, a share of them, and the place of each in that order: (units,) both.

    Those of little gain sooner than others.

    :param draws: (units + 1,) between 0 and 1.
    """
    units = gains.shape[0]
    # The order in which clocks strike, that of a unit the sooner the less it is missed.
    time = -jnp.log1p(-draws[1:]) * jnp.maximum(gains, 1e-6) ** SHARPNESS
    place = (time < time[:, None]).sum(1)
    return place < jnp.floor(share * units + draws[0]), place


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
    value, mask = (bits[site], None) if site in bits else seen[site]
    return value / mean if mask is None else value * mask / mean


def missing_patterns(draws: Array, left: Array) -> Array:
    """Weights of units for what residuals (rows, columns) have in common, (units, columns).

    :param draws: (units,) between 0 and 1.
    """
    starts = below(draws, len(left))
    patterns, _ = _directions(left[starts], left, jnp.ones((len(starts), len(left))), TURNS)
    # A cause turns few columns on: of a direction and its opposite it is the longer tail.
    patterns = jnp.maximum(patterns * jnp.sign((patterns**3).sum(1, keepdims=True)), 0.0)
    return PLANTED * patterns / (patterns.max(1, keepdims=True) + 1e-9)


class Halves(NamedTuple):
    """Two units for one."""

    unit: Array  # () which one
    strengths: Array  # (2, columns) 1 - exp(-w) of the two
    shares: Array  # (2,) of the rows in which it is on


def halve(
    draws: Array, left: Array, ratio: Array, on: Array, strengths: Array, kept: Array
) -> Halves:
    """A unit that stands for two causes as two, each with its part of the rows.

    In the rows of a blend residuals are positive on one cause where they are negative on the other,
    whatever columns they share: the leading direction among these rows parts them, and equation (9)
    for either part gives its weights. A unit is the sooner halved the further its rows' covariance
    is from chance.

    :param draws: (units, rows + 1) between 0 and 1.
    :param ratio: (rows, columns), what was observed over its probability: of 0 and 1, y / g.
    :param on: (rows, units); strengths: (units, columns).
    :param kept: (units,), which units may be halved.
    """
    among = on.T
    starts = first_of(draws[:, 1:], among + 1e-6)
    directions, size = _directions(left[starts], left, among, TURNS_WITHIN)
    apart = jnp.where(kept, size / jnp.sqrt(among.sum(1) + FEWEST), 0.0)
    unit = first_of(draws[:, 0], (apart + 1e-9) ** SHARPNESS)
    side = exact_product(left, directions[unit]) > 0.0
    rows = among[unit] * jnp.stack([side, ~side])
    # With a column of ones: to count the rows by themselves is six loops to compile.
    sums = exact_product(rows, jnp.pad(ratio, ((0, 0), (0, 1)), constant_values=1.0))
    count = sums[:, -1:]
    share = sums[:, :-1] * strengths[unit] / (count + 1.0)
    shares = (count[:, 0] + 1.0) / (count[0] + count[1] + 2.0)
    return Halves(unit, jnp.clip(share, 0.0, 0.99), shares)


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
