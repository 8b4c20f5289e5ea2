r"""Which units of a noisy-OR network are missed least, and which patterns the network lacks.

A unit that stands for a blend of two causes stays so, and two units that share one as well: more
sweeps, epochs or data do not part them. The rows show it. Given the states of all units the columns
are independent under the network, so that columns whose residuals

.. math:: e_{nj} = (y_{nj} - \mu_{nj}) / \sqrt{\mu_{nj} (1 - \mu_{nj}) + 0.05} , \qquad
          \mu_{nj} = 1 - e^{-u_{nj}}

go together have a cause that the network lacks; a blend of A and B leaves residuals that are
positive on A where they are negative on B. The leading directions of their covariance are such
patterns, and the unit to give up for one is that without which the rows lose least.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array, random

from .noisy_or import SMALLEST, Network, Seen, Wiring, causal_inputs, exact_product
from .noisy_or_steps import flip_probabilities

SHARPNESS = 2.0
"""How much sooner the unit that is missed least is given up than others."""
OVERLAP = 6.0
"""How much sooner a unit makes way for a pattern that is like it."""
TURNS = 2
"""Products with the covariance: few leave a direction random, many lead all to the first."""
FEWEST = 20
"""Rows of a unit that are enough to look for a pattern among them."""
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


def given_up(
    key: Array, gains: Array, strengths: Array, patterns: Array, share: Array
) -> tuple[Array, Array]:
    """Which units to replace, (units,), and by which of the patterns each, (units,).

    A share of the units, those of little gain sooner than others; or first one that the pattern
    is a part of, as one of two causes is of their blend.
    """
    key_rank, key_count, key_kind = random.split(key, 3)
    units = gains.shape[0]
    missed = jnp.log(jnp.maximum(gains, 1e-6)) - jnp.log(jnp.maximum(gains.mean(), 1e-6))
    noise = random.gumbel(key_rank, (units,))
    rank = noise - SHARPNESS * missed
    length = jnp.linalg.norm(strengths, axis=1) * jnp.linalg.norm(patterns[0]) + 1e-9
    part = noise + OVERLAP * exact_product(strengths, patterns[0]) / length
    first = random.bernoulli(key_kind) & (jnp.arange(units) == part.argmax())
    place = jnp.argsort(jnp.argsort(-jnp.where(first, jnp.inf, rank)))
    return place < jnp.floor(share * units + random.uniform(key_count)), place


def residuals(
    wiring: Wiring, network: Network, bits: Mapping[str, Array], seen: Mapping[str, Seen], site: str
) -> Array:
    """What the causes of a site leave unexplained of its units, (rows, units)."""
    mean = -jnp.expm1(-causal_inputs(wiring, network, bits, site))
    value, mask = (bits[site], None) if site in bits else seen[site]
    left = (value - mean) / jnp.sqrt(mean * (1.0 - mean) + 0.05)
    return left if mask is None else left * mask


def missing_patterns(key: Array, left: Array, on: Array) -> Array:
    """Weights of units for what residuals (rows, columns) have in common, (units, columns).

    :param on: (rows, units), the states of the units of the site: half of the patterns are looked
        for among the rows of one of them, which shows what it is a blend of.
    """
    key_row, key_unit, key_kind = random.split(key, 3)
    units = on.shape[1]
    chosen = on[:, random.randint(key_unit, (units,), 0, units)].T
    inside = random.bernoulli(key_kind, 0.5, (units, 1))
    inside = inside & (chosen.sum(1, keepdims=True) >= FEWEST)
    among = jnp.where(inside, chosen, 1.0)  # (units, rows)
    alone = exact_product(among, left**2)
    patterns = left[random.categorical(key_row, jnp.log(among + 1e-6), axis=1)]
    for _ in range(TURNS):
        # The covariance without its diagonal, which is large where a column is rare.
        turned = exact_product(exact_product(patterns, left.T) * among, left) - alone * patterns
        patterns = turned / (jnp.linalg.norm(turned, axis=1, keepdims=True) + 1e-9)
    # A cause turns few columns on: of a direction and its opposite it is the longer tail.
    patterns = jnp.maximum(patterns * jnp.sign((patterns**3).sum(1, keepdims=True)), 0.0)
    return PLANTED * patterns / (patterns.max(1, keepdims=True) + 1e-9)
