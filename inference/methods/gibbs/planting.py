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

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

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


class Draws(NamedTuple):
    """Uniform random numbers that it takes to replace units of one layer."""

    rank: Array  # (units,) who is given up
    how_many: Array  # ()
    pairs: Array  # (2, units) of rows whose bits a new unit is given
    noise: Array  # (units, columns)
    patterns: Array  # (units,) of rows that the search for a missing pattern begins with
    within: Array  # (rows,) the same, among the rows of a unit
    half: Array  # (units,) which unit is halved
    parted: Array  # () whether one is


def draw_numbers(
    key: Array, copies: int, rows: int, sizes: Sequence[tuple[int, int]]
) -> tuple[Array, list[Draws]]:
    """Uniform numbers for rows (2, rows), and for each layer of these units and columns below it.

    Those of layers have a leading axis of copies. One generator makes all of them: a dozen, one for
    each use, were half of what was compiled.
    """
    whole = []
    for n, columns in sizes:  # in the order of `Draws`
        shapes: list[tuple[int, ...]] = [(n,), (), (2, n), (n, columns), (n,), (rows,), (n,), ()]
        whole += [(copies, *shape) for shape in shapes]
    ends = np.cumsum([math.prod(shape) for shape in whole])
    numbers, first = jnp.split(random.uniform(key, (ends[-1] + 2 * rows,)), ends[-1:])
    pieces = [
        x.reshape(shape) for x, shape in zip(jnp.split(numbers, ends[:-1]), whole, strict=True)
    ]
    each = len(Draws._fields)
    return first.reshape(2, rows), [
        Draws(*pieces[i : i + each]) for i in range(0, len(pieces), each)
    ]


def choose(numbers: Array, log_weights: Array) -> Array:
    """One of several by their weights, from as many uniform numbers (Gumbel's way)."""
    return jnp.argmax(log_weights + gumbel(numbers))


def gumbel(numbers: Array) -> Array:
    return -jnp.log(-jnp.log(jnp.maximum(numbers, SMALLEST)))


def row_of(numbers: Array, count: int) -> Array:
    """A row of so many, all alike, from a uniform number."""
    return jnp.minimum((numbers * count).astype(int), count - 1)


def given_up(draws: Draws, gains: Array, share: Array) -> tuple[Array, Array]:
    """Which units to replace, a share of them, and the place of each in that order: (units,) both.

    Those of little gain sooner than others.
    """
    missed = jnp.log(jnp.maximum(gains, 1e-6)) - jnp.log(jnp.maximum(gains.mean(), 1e-6))
    rank = gumbel(draws.rank) - SHARPNESS * missed
    place = (rank[None] > rank[:, None]).sum(1)
    return place < jnp.floor(share * gains.shape[0] + draws.how_many), place


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


def missing_patterns(draws: Draws, left: Array) -> Array:
    """Weights of units for what residuals (rows, columns) have in common, (units, columns)."""
    first = row_of(draws.patterns, len(left))
    patterns, _ = _directions(first, left, jnp.ones((1, len(left))), TURNS)
    # A cause turns few columns on: of a direction and its opposite it is the longer tail.
    patterns = jnp.maximum(patterns * jnp.sign((patterns**3).sum(1, keepdims=True)), 0.0)
    return PLANTED * patterns / (patterns.max(1, keepdims=True) + 1e-9)


class Halves(NamedTuple):
    """Two units for one."""

    unit: Array  # () which one
    strengths: Array  # (2, columns) 1 - exp(-w) of the two
    shares: Array  # (2,) of the rows in which it is on


def halve(
    draws: Draws, left: Array, ratio: Array, on: Array, strengths: Array, kept: Array
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
    among = on.T
    first = jnp.argmax(draws.within + among, axis=1)  # a row of the unit, if it has any
    directions, size = _directions(first, left, among, TURNS_WITHIN)
    apart = jnp.where(kept, size / jnp.sqrt(among.sum(1) + FEWEST), 0.0)
    unit = choose(draws.half, SHARPNESS * jnp.log(apart + 1e-9))
    side = exact_product(left, directions[unit]) > 0.0
    rows = jnp.stack([among[unit] * side, among[unit] * ~side])
    count = rows.sum(1)
    share = exact_product(rows, ratio) * strengths[unit] / (count[:, None] + 1.0)
    return Halves(unit, jnp.clip(share, 0.0, 0.99), (count + 1.0) / (count.sum() + 2.0))


def _directions(first: Array, left: Array, among: Array, turns: int) -> tuple[Array, Array]:
    """Directions in which residuals vary together among some rows, and how much they do.

    :param first: (groups,), the rows to begin with.
    :param among: (groups, rows), which rows count.
    """
    ways = left[first]
    alone = exact_product(among, left**2)

    def turn(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ways = carry[0]
        # The covariance without its diagonal, which is large where a column is rare.
        turned = exact_product(exact_product(ways, left.T) * among, left) - alone * ways
        size = jnp.linalg.norm(turned, axis=1)
        return turned / (size[:, None] + 1e-9), size

    return lax.fori_loop(0, turns, turn, (ways, jnp.zeros(len(ways))))


def shown(seen: Seen) -> Array:
    """Bits that were observed to be on."""
    return seen.value if seen.mask is None else seen.value * seen.mask


class View(NamedTuple):
    """What some rows say of the units of a layer and of the columns below it."""

    gains: Array  # (units,) `unit_gains`
    left: Array  # (rows, columns) `residuals`
    ratio: Array  # (rows, columns) `cause_ratios`
    strengths: Array  # (units, columns) 1 - exp(-w)
    on: Array  # (rows, units)
    below: Array  # (rows, columns) the states of the columns


class Plan(NamedTuple):
    """New units of a layer."""

    which: Array  # (units,) those that are given up
    changes: Array  # (units,) these, and one that is halved
    weights: Array  # (units, columns) of those that change
    halved: Array  # (2, units) which become the halves of a unit
    halves: Halves

    def leaks(self, leak: Array, fresh: Array) -> Array:
        """How often units are on by themselves, (units,)."""
        new = jnp.where(self.which, jnp.where(fresh, 0.1, leak.mean()), leak)
        of_half = leak[self.halves.unit] * self.halves.shares
        return jnp.where(self.halved.any(0), jnp.where(self.halved[0], of_half[0], of_half[1]), new)


def replan(draws: Draws, view: View, share: Array, here: Array, fresh: Array) -> Plan:
    """Which units of a layer to replace, and by what.

    :param here: whether units of this layer are replaced.
    :param fresh: whether all of them are, each by what two rows share.
    """
    which, place = given_up(draws, view.gains, share)
    which = here & (which | fresh)
    halves = halve(draws, view.left, view.ratio, view.on, view.strengths, ~which)
    patterns = missing_patterns(draws, view.left)[place]
    # One of the units that are given up becomes a half of another.
    parted = which.any() & ~fresh & (draws.parted < 0.5)
    unit = jnp.arange(len(which)) == halves.unit
    halved = parted & jnp.stack([which & (place == 0), unit])
    one, other = view.below[row_of(draws.pairs, len(view.below))]
    new = 0.05 + 0.1 * draws.noise + jnp.where(fresh, one * other, patterns)
    pair = 0.01 - jnp.log1p(-halves.strengths)
    new = jnp.where(halved[0][:, None], pair[0], new)
    new = jnp.where(halved[1][:, None], pair[1], new)
    return Plan(which, which | halved[1], new, halved, halves)
