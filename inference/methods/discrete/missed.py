"""How much posterior mass lies outside the truncated set: at least so much.

The mass is looked for where a truncation would not: each datum climbs from the best state of the
set, from no bit on, from a draw of the prior and from the pairs of bits that explain it best (two
large causes that nearly cancel are each bad alone), by the best flip of one bit or of two at once.
What lies at the ends of these climbs and around them is summed. Mass that no climb comes near stays
unseen: the figure is a lower one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from numpyro import handlers

from ...numerics.log_sums import best_bits, log_total
from ...reading.tracing import trace_of
from ..shared import Chunk, Expectation

NUM_PAIRS = 4
"""Pairs of flips from which climbs start."""
MOST_PAIRS = 512
"""Pairs of bits tried in a round, where each is a run of the program."""

LEAST_GAIN = 1e-3
"""Nats that a flip must gain: less is lost in rounding, and a climb would go to and fro."""


def missed_mass(
    here: Chunk,
    contains: Callable[[Array], Array],
    posterior: Expectation,
    key: Array,
    num_draws: int,
) -> tuple[Array, Array]:
    r"""Share of each datum's posterior outside the set K, at least, and its standard error, (n,).

    With M the ends of the climbs, and states drawn bit by bit from a mixture r of neighbourhoods of
    these and of the truncated posterior,

    .. math:: Z_{out} = \sum_{s \in M \setminus K} p(y, s) + \mathbb E_r\Big[
              \mathbf 1\{s \notin K \cup M\}\, \frac{p(y, s)}{r(s)}\Big], \qquad
              \text{missed} = \frac{Z_{out}}{Z_K + Z_{out}} .

    The error is that of the draws; it knows nothing of mass that neither climbs nor draws found.
    """
    key_start, key_draw = random.split(key)
    reader, params, arguments = here
    best = posterior.best().astype(bool)
    trace = trace_of(handlers.seed(reader.model, key_start), arguments, params)
    drawn = reader.anatomy.from_sites({x: trace[x]["value"] for x in reader.anatomy.names})
    others = jnp.stack([best, drawn.astype(bool)])
    ends, gains = _Flips(here).ends(others)

    # One or two bits of a draw differ from the centre's: far enough to leave K, near enough to
    # land where mass may be.
    loose = min(0.5, 2.0 / reader.anatomy.num_bits)
    mean = (1.0 - loose) * posterior.mean + loose * jnp.minimum(0.5, posterior.mean.mean() + 0.1)
    turned = jnp.clip(jax.nn.sigmoid(gains), 0.5 * loose, 0.5)
    rates = jnp.concatenate([mean[None], jnp.where(ends, 1.0 - turned, turned)])
    rates = jnp.clip(rates, 1e-4, 1.0 - 1e-4)
    each = -(-num_draws // len(rates))
    bits = random.bernoulli(key_draw, rates, (each, *rates.shape)).reshape(-1, *best.shape)
    one = lambda rate: jnp.where(bits, jnp.log(rate), jnp.log1p(-rate)).sum(-1)  # noqa: E731
    log_draw = log_total(jax.vmap(one)(rates), 0, False)

    every = jnp.concatenate([ends, bits])
    value = here.log_joint(every) - posterior.evidence
    value = jnp.where(contains(every), -jnp.inf, value)
    same = jax.vmap(lambda end: (every == end).all(-1))(ends)  # (ends, ends and draws, n)
    earlier = jnp.arange(len(ends))[:, None] < jnp.arange(len(every))
    value = jnp.where((same & earlier[..., None]).any(0), -jnp.inf, value)
    log_ends, log_ratio = value[: len(ends)], value[len(ends) :] - log_draw + jnp.log(len(rates))

    # In logs, and relative to the largest: a set may hold e^-100 of the mass.
    top = jnp.maximum(log_ratio.max(0), -1e30)
    ratio = jnp.exp(log_ratio - top)
    log_out = jnp.logaddexp(log_total(log_ends, 0, False), top + jnp.log(ratio.mean(0)))
    log_error = top + jnp.log(ratio.std(0)) - 0.5 * jnp.log(len(bits))
    return jax.nn.sigmoid(log_out), jnp.exp(log_error + 2.0 * jax.nn.log_sigmoid(-log_out))


class _Flips:
    """What the log joint gains where bits of states (n, bits) are flipped."""

    def __init__(self, here: Chunk):
        self.here, self.num_bits = here, here.reader.anatomy.num_bits
        self.form = here.reader.quadratic(*here[1:]) if here.reader.structure.shared else None

    def gains(self, bits: Array) -> Array:
        """Of each bit alone, (n, bits)."""
        if self.form is None:
            return self._run(bits, bits)
        return self.form.around(bits[:, None])[1][:, 0]

    def pairs(self, bits: Array, gains: Array, first: Array) -> Array:
        """Of bit `first` and each other; of `first` alone in its own place: (n, bits)."""
        alone = jnp.arange(self.num_bits) == first
        if self.form is None:
            return self._run(bits, bits ^ alone, first)
        sign = 1.0 - 2.0 * bits
        both = sign[:, first, None] * sign * self.form.hessian[first]
        return gains[:, first, None] + jnp.where(alone, 0.0, gains + both)

    def best_pairs(
        self, bits: Array, gains: Array, turn: Array | int, count: int
    ) -> tuple[Array, Array]:
        """Which bits to flip, (count, n, bits): the best pairs of each datum; and what they gain.

        A quadratic form gives all pairs at the price of one. Where each is a run of the program,
        some bits are tried with all the others: others in another `turn`. A bit with itself is
        flipped alone.
        """
        num_bits, each = self.num_bits, jnp.arange(self.num_bits)
        tried = num_bits if self.form else min(num_bits, -(-MOST_PAIRS // num_bits))
        firsts = (turn * tried + jnp.arange(tried)) % num_bits
        place = (each - firsts[0]) % num_bits

        def best_with(first: Array) -> tuple[Array, Array]:
            pair_gains = self.pairs(bits, gains, first)
            pair_gains = jnp.where(place < place[first], -jnp.inf, pair_gains)  # each pair once
            return pair_gains.max(1), pair_gains.argmax(1)

        value, second = (x.T for x in lax.map(best_with, firsts))  # (n, tried)
        chosen = best_bits(value, min(count, tried))
        value, second = (jnp.take_along_axis(x, chosen, axis=1) for x in (value, second))
        flips = (each == firsts[chosen][..., None]) | (each == second[..., None])
        return jnp.swapaxes(flips, 0, 1), value.T

    def ends(self, others: Array) -> tuple[Array, Array]:
        """Where climbs end, (climbs, n, bits), and the gains of single bits there.

        They start from no bit on, then from the best end so far; each time also from `NUM_PAIRS`
        pairs of flips away from it, and from one of `others` (rounds, n, bits).
        """

        def again(start: Array, x: tuple[Array, Array]) -> tuple:
            other, turn = x
            pairs, _ = self.best_pairs(start, self.gains(start), turn, NUM_PAIRS)
            starts = jnp.concatenate([start[None], other[None], start ^ pairs])
            turns = 2 * (turn + jnp.arange(len(starts)))
            climbed = lax.map(lambda x: self.climb(*x), (starts, turns))
            value = self.here.log_joint(climbed[0])
            best = jnp.take_along_axis(climbed[0], value.argmax(0)[None, :, None], axis=0)[0]
            return best, climbed

        each: Any = (others, jnp.arange(len(others)))
        climbed: tuple[Array, Array] = lax.scan(again, jnp.zeros_like(others[0]), each)[1]
        ends, gains = climbed
        return ends.reshape(-1, *ends.shape[2:]), gains.reshape(-1, *gains.shape[2:])

    def climb(self, bits: Array, turn: Array) -> tuple[Array, Array]:
        """Where the best flips lead from states (n, bits), and the gains of single bits there.

        By two bits at once, then by single ones as long as one gains, and the same once more.
        """
        each = jnp.arange(self.num_bits)

        def single(carry: tuple) -> tuple:
            bits, gains, step = carry
            bits = bits ^ ((each == gains.argmax(1)[:, None]) & (gains > LEAST_GAIN))
            return bits, self.gains(bits), step + 1

        def up(carry: tuple, turn: Array) -> tuple:
            bits, gains = carry
            flips, value = self.best_pairs(bits, gains, turn, 1)
            bits = bits ^ (flips[0] & (value[0] > LEAST_GAIN)[:, None])
            more = lambda x: (x[1] > LEAST_GAIN).any() & (x[2] < 2 * self.num_bits)  # noqa: E731
            return lax.while_loop(more, single, (bits, self.gains(bits), 0))[:2], None

        return lax.scan(up, (bits, self.gains(bits)), turn + jnp.arange(2))[0]

    def _run(self, before: Array, bits: Array, alone: Array | int = -1) -> Array:
        """The gain over `before` of `bits` with each bit flipped in turn but `alone`: (n, bits)."""
        turn = jnp.eye(self.num_bits, dtype=bool) & (jnp.arange(self.num_bits) != alone)
        states = jnp.concatenate([before[None], bits[None] ^ turn[:, None]])
        value = jnp.maximum(self.here.log_joint(states), -1e30)
        return (value[1:] - value[0]).T
