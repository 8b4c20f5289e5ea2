"""Gibbs sampling of the bits of a program, all rows at once.

One bit of every row is drawn given all others, then the next. What that takes is the log odds of
the bit, and there are two ways to them: two readings of the program, one with the bit off and one
with it on, which needs nothing but the program; and for noisy-OR networks equations (6) and (7) of
Lewicki & Sejnowski (1996), where a flip costs its children only. Which one applies is read off the
program when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.nn import sigmoid
from numpyro import handlers

from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.arguments import rows_of
from ...reading.handlers import tempered
from ...reading.log_joint import log_joint
from ...reading.reader import examined
from ...reading.recognition.sites import Seen
from ...reading.tracing import trace_of
from ...rows.chunks import Rows
from ...types import Arguments, Params
from .noisy_or import Network, Wiring, find_wiring, network_log_joint, read_network, read_seen
from .noisy_or_steps import sweep

Sweep = Callable[[Array, Array, Array | float], tuple[Array, Array]]
"""(key, bits (num_data, num_bits), power) -> new bits, the largest flip probability of each row."""

Score = Callable[[Array, Array | float], Array]
"""(bits (num_data, num_bits), power) -> log p(s) + power · log p(y | s), (num_data,)."""


class BitProgram(NamedTuple):
    """A program with binary latents, opened. Static: it holds no arrays."""

    model: Callable
    anatomy: Anatomy
    wiring: Wiring | None  # None: two readings per bit
    by: Callable[..., tuple[Sweep, Score]] | None = None  # another way to draw them

    def read(self, params: Params, arguments: Arguments) -> tuple[Sweep, Score]:
        """How to sweep through the bits of these rows, and what states are worth."""
        if self.by is not None:
            return self.by(self, params, arguments)
        if self.wiring is None:
            return self._by_two_readings(params, arguments)
        network = read_network(self.model, self.anatomy, self.wiring, params, arguments)
        observed = read_seen(self.model, self.anatomy, arguments, params)
        return self.by_equations(self.wiring, network, observed)

    def by_equations(
        self,
        wiring: Wiring,
        network: Network,
        seen: Mapping[str, Seen],
        open_sites: Mapping[str, Array] | None = None,
    ) -> tuple[Sweep, Score]:
        """The same of a noisy-OR network whose numbers are known.

        :param open_sites: site -> whether its units may be on, and count; by default all.
        """

        def draw(key: Array, bits: Array, power: Array | float) -> tuple[Array, Array]:
            draws = self.split(random.uniform(key, bits.shape))
            swept, largest = sweep(
                wiring, network, self.split(bits), seen, draws, power=power, open_sites=open_sites
            )
            new = jnp.concatenate([swept[name] for name in self.anatomy.names], axis=-1)
            return new.astype(bits.dtype), largest

        def score(bits: Array, power: Array | float) -> Array:
            return network_log_joint(wiring, network, self.split(bits), seen, power, open_sites)

        return draw, score

    def _by_two_readings(self, params: Params, arguments: Arguments) -> tuple[Sweep, Score]:
        anatomy = self.anatomy

        def log_joints(bits: Array, power: Array | float) -> Array:
            program = tempered(self.model, anatomy.observed, power)
            return log_joint(program, anatomy, params, bits.astype(jnp.int32), arguments)

        def draw(key: Array, bits: Array, power: Array | float) -> tuple[Array, Array]:
            draws = random.uniform(key, (anatomy.num_bits, anatomy.num_data))

            def visit(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
                bits, largest = carry
                both = jnp.stack([bits.at[:, i].set(0), bits.at[:, i].set(1)])
                off, on = log_joints(both, power)
                # Where both are impossible neither is preferred.
                odds = jnp.where(jnp.isnan(on - off), 0.0, on - off)
                flip = sigmoid(jnp.where(bits[:, i] == 1, -odds, odds))
                new = (draws[i] < sigmoid(odds)).astype(bits.dtype)
                return bits.at[:, i].set(new), jnp.maximum(largest, flip)

            start = (bits, jnp.zeros(anatomy.num_data))
            return lax.fori_loop(0, anatomy.num_bits, visit, start)

        return draw, lambda bits, power: log_joints(bits[None], power)[0]

    def check_rows(self, why: str) -> None:
        """Its latents belong to rows, whatever the reason that this is asked for."""
        del why

    def split(self, bits: Array) -> dict[str, Array]:
        """Bits (..., num_data, num_bits) by site; for latents that are vectors."""
        values, start = {}, 0
        for latent in self.anatomy.latents:
            values[latent.name] = bits[..., start : start + latent.size]
            start += latent.size
        return values

    def pack(self, values: dict[str, Array]) -> Array:
        """Values of the sites as bits (num_data, num_bits)."""
        return self.anatomy.from_sites(values).astype(jnp.int32)

    def unpack(self, bits: Array) -> dict[str, Array]:
        """Bits (num_data, num_bits) as values of the sites, in the sites' own shapes."""
        return self.anatomy.by_site(bits)

    def prior_draw(self, key: Array, params: Params, arguments: Arguments) -> Array:
        """Bits drawn from the program itself, without a look at the data."""
        trace = trace_of(handlers.seed(self.model, key), arguments, params)
        return self.pack({name: trace[name]["value"] for name in self.anatomy.names})


def open_bits(
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    *,
    plate: str | None = None,
    by_network: bool = True,
) -> BitProgram:
    """Inspect a program whose bits are to be sampled, and find the cheapest way that is right.

    :param by_network: look for a noisy-OR network; otherwise two readings per bit.
    """
    anatomy = inspect(model, args, kwargs, plate=plate)
    if not anatomy.latents:
        raise ProgramError(f"no latent in the plate {anatomy.plate!r}: there is nothing to sample")
    other = [x.name for x in anatomy.latents if not x.binary]
    if other:
        raise ProgramError(
            f"the latents {other} are not binary: condition on them, or leave them to another "
            "block of numpyro.infer.Gibbs"
        )
    anatomy.check_observed()
    anatomy.check_unweighted()
    anatomy.check_rows_are_apart()
    if not by_network:
        return BitProgram(model, anatomy, None)
    try:
        rows = rows_of(anatomy, args, kwargs)
    except ProgramError:  # its data are part of it
        leaves, tree = jax.tree.flatten((args, kwargs))
        rows = Rows((), tuple(leaves), tree, anatomy.num_data)
    return BitProgram(model, anatomy, examined(find_wiring, model, anatomy, rows))


class Rules(NamedTuple):
    """How long to sample one block of rows, and what to do against sticking.

    The first two are the paper's (§5). Annealing and restarts start afresh: they do not use
    where the rows stood.
    """

    max_sweeps: int = 15
    stop_below: float = 0.05  # stop a row when no bit had a larger probability to change
    annealing: int = 0  # sweeps beforehand, over which the likelihood's power rises to one
    restarts: int = 1  # so many chains a row, the one of highest log joint is kept

    def check(self) -> None:
        if self.max_sweeps < 1 or self.restarts < 1 or self.annealing < 0:
            raise ValueError(
                "max_sweeps and restarts must be at least 1 and annealing at least 0, found "
                f"{self.max_sweeps}, {self.restarts} and {self.annealing}"
            )


class Settled(NamedTuple):
    """States that the sweeps ended in."""

    bits: Array  # (num_data, num_bits)
    largest_flip: Array  # (num_data,) in the last sweep of each row
    sweeps: Array  # (num_data,)
    changed: Array  # (num_bits,) how often a bit changed in a sweep, over the rows still going


def settle(draw: Sweep, score: Score, key: Array, bits: Array, rules: Rules) -> Settled:
    """Sweep until no bit is likely to change any more, row by row, or `max_sweeps` are over."""
    if rules.restarts == 1:
        return _settle_once(draw, key, bits, rules)
    key_start, key_runs = random.split(key)
    shape = (rules.restarts - 1, *bits.shape)
    fresh = random.bernoulli(key_start, 0.5, shape).astype(bits.dtype)
    starts = jnp.concatenate([bits[None], fresh])
    keys = random.split(key_runs, rules.restarts)
    runs = jax.vmap(lambda k, b: _settle_once(draw, k, b, rules))(keys, starts)
    best = jnp.argmax(jax.vmap(lambda b: score(b, 1.0))(runs.bits), axis=0)
    rows = jnp.arange(bits.shape[0])
    bits, flip, sweeps = (x[best, rows] for x in (runs.bits, runs.largest_flip, runs.sweeps))
    return Settled(bits, flip, sweeps, runs.changed.mean(0))


def _settle_once(draw: Sweep, key: Array, bits: Array, rules: Rules) -> Settled:
    if rules.annealing:

        def heat(i: Array, bits: Array) -> Array:
            return draw(random.fold_in(key, -1 - i), bits, i / rules.annealing)[0]

        bits = lax.fori_loop(0, rules.annealing, heat, bits)

    def unfinished(carry: tuple) -> Array:
        i, _, largest, _, _ = carry
        return (i < rules.max_sweeps) & (largest >= rules.stop_below).any()

    def again(carry: tuple) -> tuple:
        i, bits, largest, sweeps, changed = carry
        going = largest >= rules.stop_below
        new, flip = draw(random.fold_in(key, i), bits, 1.0)
        new = jnp.where(going[:, None], new, bits)
        largest = jnp.where(going, flip, largest)
        return i + 1, new, largest, sweeps + going, changed + (new != bits).sum(0)

    rows, num_bits = bits.shape
    zero = jnp.zeros((), int)
    start = (zero, bits, jnp.ones(rows), jnp.zeros(rows, int), jnp.zeros(num_bits))
    _, bits, largest, sweeps, changed = lax.while_loop(unfinished, again, start)
    return Settled(bits, largest, sweeps, changed / jnp.maximum(sweeps.sum(), 1))
