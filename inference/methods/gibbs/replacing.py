"""A copy of a member of a search, some units of which are replaced."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...numerics.draws import below, pieces
from .flips import Rules
from .layers import Block, Blocks, Layered, settle_block
from .noisy_or import Network, Seen
from .planting import cause_ratios, given_up, halve, missing_patterns, residuals, unit_gains

SAMPLE = 4096
"""Rows, drawn at random, that new units are made from, at most."""


class Replacing(NamedTuple):
    """What copies of a member have in common."""

    layered: Layered
    blocks: Blocks
    rules: Rules
    units: dict[str, int]  # of each site
    kept: bool  # whether states are
    level: Array  # the highest open layer
    fresh: Array  # whether it opens now

    @property
    def num_draws(self) -> int:
        """Numbers between 0 and 1 that a copy takes."""
        return sum(map(math.prod, self._shapes()))

    @property
    def _size(self) -> int:
        return min(SAMPLE, 1 << (self.blocks.rows.num_data.bit_length() - 1))

    @property
    def _at_once(self) -> bool:
        """Whether it is known how much the states of some rows take."""
        return not self.kept and self.rules.annealing == 0 and self.rules.restarts == 1

    def _shapes(self) -> list[tuple[int, ...]]:
        """Of what is drawn: for the rows, and their states; for each site, which units, whether one
        is halved, patterns, halves, pairs of rows, and noise."""
        size, wiring = self._size, self.layered.wiring
        shapes: list[tuple[int, ...]] = [(size,)]
        if self._at_once:
            shapes.append((self.rules.max_sweeps, self.layered.program.anatomy.num_bits, size))
        for site in wiring.hidden:
            many, wide = self.units[site], sum(self.units[x] for x in wiring.children(site))
            shapes += [(many + 1,), (), (many,), (many, size + 1), (2, many), (many, wide)]
        return shapes

    def copy(
        self, network: Network, bits: Array | None, share: Array, draws: Array, key: Array
    ) -> tuple[Network, Array | None]:
        """A copy of a member, a share of the units of whose highest open layer are new."""
        layered, level, fresh = self.layered, self.level, self.fresh
        states = None if bits is None else layered.program.split(bits)
        numbers = iter(pieces(draws, *self._shapes()))
        rows = below(next(numbers), self.blocks.rows.num_data)
        source = next(numbers) if self._at_once else key
        hidden, observed = self._sample(network, states, rows, source)
        leak, weights = dict(network.leak), dict(network.weights)
        for site in layered.wiring.hidden:
            here = level == layered.height(site)
            edges = [(site, child) for child in layered.wiring.children(site)]
            gains = unit_gains(layered.wiring, network, hidden, observed, site)
            left = [
                residuals(layered.wiring, network, hidden, observed, child) for _, child in edges
            ]
            shared = [
                cause_ratios(layered.wiring, network, hidden, observed, child) for _, child in edges
            ]
            works = -jnp.expm1(-jnp.concatenate([network.weights[edge] for edge in edges], 1))
            which, place = given_up(next(numbers), gains, share)
            which = here & (which | fresh)
            # One of the units that are given up becomes a half of another.
            parted = which.any() & ~fresh & (next(numbers) < 0.5)
            whole = jnp.concatenate(left, 1)
            patterns = missing_patterns(next(numbers), whole)[place]
            halves = halve(
                next(numbers), whole, jnp.concatenate(shared, 1), hidden[site], works, ~which
            )
            first = parted & which & (place == 0)
            other_half = parted & (jnp.arange(self.units[site]) == halves.unit)
            ends = np.cumsum([x.shape[1] for x in left])[:-1]
            one, other = below(next(numbers), len(rows))
            noise = jnp.split(0.05 + 0.1 * next(numbers), ends, 1)
            parts = jnp.split(-jnp.log1p(-halves.strengths), ends, 1)
            planted = jnp.split(patterns, ends, 1)
            for edge, more, pattern, pair in zip(edges, noise, planted, parts, strict=True):
                child = edge[1]
                value = hidden[child] if child in hidden else shown(observed[child])
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
        self, network: Network, states: dict[str, Array] | None, rows: Array, key: Array
    ) -> tuple[dict[str, Array], dict[str, Seen]]:
        """States of the hidden units in some rows, and what was observed there.

        :param key: or what sweeps draw (`inference.methods.gibbs.flips.settle`).
        """
        layered, observed = self.layered, self.blocks.look(self.blocks.rows.take(rows))
        if states is not None:
            some = {site: x[rows] for site, x in states.items()}
        else:
            zero, phase = jnp.zeros((), int), layered.phase(self.level - self.fresh, False)
            few = Block(zero, zero, observed, jnp.ones(rows.size))
            settled = settle_block(layered, network, few, None, phase, key, self.rules)[0]
            some = layered.program.split(settled.bits)
        return {site: x.astype(float) for site, x in some.items()}, observed


def shown(seen: Seen) -> Array:
    """Bits that were observed to be on."""
    return seen.value if seen.mask is None else seen.value * seen.mask
