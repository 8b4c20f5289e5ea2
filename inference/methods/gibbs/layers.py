"""One epoch of learning a noisy-OR network: the data block by block, layers closed or open.

Lewicki & Sejnowski, *Bayesian unsupervised learning of higher order structure*, NIPS 1996, §4: the
weights of upper layers are adapted after those of the lower ones have settled, since otherwise they
learn priors that are too strong. Here a layer that is not yet open is off and costs nothing; the
leak of the layer below it stands in for all that is above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random

from ...numerics.log_sums import log_total
from ...reading.anatomy import ProgramError
from ...reading.states import AllStates
from ...reading.tracing import innermost
from ...rows.chunks import Rows
from ...types import Arguments, Params
from .flips import BitProgram, Rules, Score, Settled, settle
from .noisy_or import Edge, Names, Network, Seen, Wiring, network_log_joint
from .noisy_or_steps import Sums, expected_sums, reestimate, sum_shares, sum_states

FORGETTING = 0.7
"""The k-th block since a layer opened replaces the share (k + 2)^-0.7 of the running sums: more
than 1/2 and at most 1, so that learning settles (Cappé & Moulines 2009)."""
MOST_REPLACED = 0.1
"""At most this share: a cause of one row in a hundred is then never judged by a single block."""

MAX_SUMMED = 8
"""Units of a layer whose states are all summed when members are compared."""

Priors = Network
"""A prior for each leak and weight: the leaves are distributions, or None."""


class Phase(NamedTuple):
    """What is open and what learns. A pytree of flags."""

    open_sites: dict[str, Array]  # site -> whether its units may be on
    learn: Network  # leak and weights -> whether they change; a flag or one a child


class Layered(NamedTuple):
    """A noisy-OR network that can learn. Static."""

    program: BitProgram
    wiring: Wiring
    names: Names

    def height(self, site: str) -> int:
        """1 for the lowest hidden layer."""
        return len(self.wiring.hidden) - self.wiring.hidden.index(site)

    def phase(
        self, level: Array | int, joint: Array | bool, stable: Mapping[str, Array] | None = None
    ) -> Phase:
        """Layers up to `level` are open; the links from the highest of them learn, or all do.

        :param stable: site -> which of its units, (units,), may get new weights from above.
        """
        hidden = self.wiring.hidden
        at = {site: jnp.asarray(level) == self.height(site) for site in hidden}

        def links(parent: str, child: str) -> Array:
            flag = at[parent] | joint
            return flag & stable[child] if stable and child in stable else flag

        leak = {}
        for site in (*hidden, *self.wiring.observed):
            above = [at[parent] for parent in self.wiring.parents(site)]
            own = [at[site]] if site in at else []
            leak[site] = jnp.stack([*above, *own, jnp.asarray(joint)]).any()
        weights = {edge: links(*edge) for edge in self.wiring.edges}
        top = jnp.where(joint, len(hidden), level)
        return Phase({site: self.height(site) <= top for site in hidden}, Network(leak, weights))

    def score(self, network: Network, seen: Mapping[str, Seen], bits: Array, phase: Phase) -> Array:
        """What states and weights are worth, row by row, to choose between members by.

        It is log p(y, s), closed layers left out, and the highest open layer summed out if it is
        small: where a few top units may each explain what is below, the log joint of one of these
        explanations would favour a network that is sure of itself over one that is right.
        """
        split = self.program.split(bits)

        def log_joint(values: Mapping[str, Array]) -> Array:
            return network_log_joint(self.wiring, network, values, seen, 1.0, phase.open_sites)

        total = log_joint(split)
        for site in self.wiring.hidden:
            units = network.leak[site].shape[0]
            if units > MAX_SUMMED:
                continue
            above = [s for s in self.wiring.hidden if self.height(s) > self.height(site)]
            closed = [~phase.open_sites[other] for other in above]
            is_top = jnp.stack([phase.open_sites[site], *closed]).all()
            states = jnp.asarray(AllStates().table((2,) * units), float)

            def given(state: Array, site: str = site) -> Array:
                return log_joint({**split, site: jnp.broadcast_to(state, split[site].shape)})

            total = jnp.where(is_top, log_total(lax.map(given, states), 0, False), total)
        return total


def open_layers(program: BitProgram) -> Layered:
    """A program that is a noisy-OR network whose weights and leaks are its parameters."""
    wiring = program.wiring
    if wiring is None or wiring.names is None:
        raise ProgramError(
            "the program is not a noisy-OR network (vectors of NoisyOr sites, each causal input a "
            "leak and a weighted sum of the sites above, alike in all rows): equation (9) does not "
            "apply; use EM or TruncatedEM"
        )
    lost = [*wiring.names.lost, *(str(e) for e in wiring.edges if e not in wiring.names.weights)]
    if lost:
        raise ProgramError(
            f"{lost}: equation (9) wants each parameter to be, by itself, the weights between two "
            "layers or the leak of one; use EM or TruncatedEM, whose M-steps take any program"
        )
    return Layered(program, wiring, wiring.names)


def read_priors(
    layered: Layered, trace_of: Callable[[], dict], given: dist.Distribution | str | None
) -> Priors:
    """The prior of each leak and weight: the program's own, or the one that was given."""
    names = layered.names

    def prior_of(name: str) -> dist.Distribution | None:
        if not isinstance(given, str):
            return given
        fn = innermost(trace_of()[name]["fn"])
        if not isinstance(fn, dist.Gamma):
            raise ProgramError(
                f"the prior of {name!r} is {type(fn).__name__}: equation (9) is for Gamma; pass "
                "prior=Gamma(...), Beta(...) or None"
            )
        return fn

    leak: dict[str, Any] = {site: prior_of(name) for site, name in names.leak.items()}
    weights: dict[Edge, Any] = {edge: prior_of(name) for edge, name in names.weights.items()}
    return Network(leak, weights)


class Epoch(NamedTuple):
    """The network and the states after all blocks, and what happened."""

    network: Network
    bits: Array | None  # (num_data, num_bits), None if they are not kept
    log_joint: Array  # () Σ log p(y, s), each block under the weights that its states were drawn by
    changed: Array  # (num_bits,) how often a bit changed in a sweep
    memory: Memory | None


class Memory(NamedTuple):
    """What was learned from so far."""

    sums: Sums  # of equation (9), as if of all rows
    blocks: Array  # how many have gone into them since a layer opened


class Block(NamedTuple):
    """Some rows of the data."""

    start: Array  # the first that was not seen before
    begin: Array  # the first
    seen: dict[str, Seen]
    fresh: Array  # 1 for rows not seen before, so that nothing counts twice


class Learning(NamedTuple):
    """Rows that a network learns from, a block at a time, and by which rules. Static."""

    layered: Layered
    rows: Rows
    size: int  # of a block; the last one overlaps the one before it
    observe: Callable[[Arguments], dict[str, Seen]]  # what was observed in these rows
    priors: Priors
    rules: Rules
    exact: bool  # sum over all states instead of drawing some; the log joint is the evidence then

    @property
    def number(self) -> int:
        """Of blocks."""
        return -(-self.rows.num_data // self.size)

    def scan(self, function: Callable[[Any, Block], Any], start: Any) -> Any:
        """`carry = function(carry, block)` from block to block."""

        def step(carry: Any, start: Array) -> tuple[Any, None]:
            begin = jnp.minimum(start, self.rows.num_data - self.size)
            fresh = (begin + jnp.arange(self.size) >= start).astype(float)
            observed = self.observe(self.rows.slice(begin, self.size))
            return function(carry, Block(start, begin, observed, fresh)), None

        return lax.scan(step, start, jnp.arange(self.number) * self.size)[0]

    def epoch(
        self, network: Network, bits: Array | None, phase: Phase, key: Array, memory: Memory | None
    ) -> Epoch:
        """Go through the data in blocks: draw states, then re-estimate the weights.

        The weights follow running sums, in which a block counts for as many rows as all blocks have
        and older ones fade; after the last block, the sums of this epoch, in which every row counts
        once.

        :param bits: where the rows stand; None: all units begin off, and nothing is kept.
        :param memory: the running sums; None: each block by itself, with the whole prior, as in the
            paper.
        """
        layered, wiring, num_data = self.layered, self.layered.wiring, self.rows.num_data

        def visit(carry: tuple, block: Block) -> tuple:
            network, bits, total, changed, memory, whole = carry
            if self.exact:
                summed = sum_states(wiring, network, block.seen, block.fresh, phase.open_sites)
                worth, sums = summed.evidence, summed.sums
                # What two draws of the posterior would differ in.
                flips = 2.0 * (summed.mean * (1.0 - summed.mean)).mean(0)
            else:
                settled, score = self.settle(network, block, bits, phase, key)
                split = layered.program.split(settled.bits)
                worth, flips = score(settled.bits, 1.0), settled.changed
                sums = sum_shares(wiring, network, split, block.seen, block.fresh)
                if bits is not None:
                    bits = lax.dynamic_update_slice_in_dim(bits, settled.bits, block.begin, 0)
            total, changed = total + block.fresh @ worth, changed + flips
            if memory is not None:
                whole = jax.tree.map(jnp.add, whole, sums)
                memory = _remember(memory, sums, num_data / block.fresh.sum(), self.number)
                sums = memory.sums
            network = self._learn(network, sums, phase)
            return network, bits, total, changed, memory, whole

        zero = jnp.zeros((), network.leak[wiring.observed[0]].dtype)
        whole = None if memory is None else jax.tree.map(jnp.zeros_like, memory.sums)
        start = (network, bits, zero, jnp.zeros(layered.program.anatomy.num_bits), memory, whole)
        network, bits, total, changed, memory, whole = self.scan(visit, start)
        if memory is not None and self.number > 1:
            memory = memory._replace(sums=whole)
            network = self._learn(network, whole, phase)
        return Epoch(network, bits, total, changed / self.number, memory)

    def forgotten(self, network: Network) -> Memory:
        """Before any block: what the network itself expects, so that nothing is lost by the
        first."""
        sums = expected_sums(self.layered.wiring, network, float(self.rows.num_data))
        return Memory(sums, jnp.zeros((), int))

    def settle(
        self, network: Network, block: Block, bits: Array | None, phase: Phase, key: Array
    ) -> tuple[Settled, Score]:
        """States of a block's rows, from where they stand or from zero, and what states are
        worth."""
        program, size = self.layered.program, len(block.fresh)
        now = jnp.zeros((size, program.anatomy.num_bits), jnp.int8)
        now = now if bits is None else lax.dynamic_slice_in_dim(bits, block.begin, size)
        draw, score = program.by_equations(
            self.layered.wiring, network, block.seen, phase.open_sites
        )
        return settle(draw, score, random.fold_in(key, block.start), now, self.rules), score

    def _learn(self, network: Network, sums: Any, phase: Phase) -> Network:
        def new(kind: str, place: Any) -> Array:
            old = getattr(network, kind)[place]
            share, count = getattr(sums.share, kind)[place], getattr(sums.counts, kind)[place]
            learned = reestimate(old, share, count, getattr(self.priors, kind)[place])
            return jnp.where(getattr(phase.learn, kind)[place], learned, old)

        names = self.layered.names
        leak = {site: new("leak", site) for site in names.leak}
        weights = {edge: new("weights", edge) for edge in names.weights}
        return Network({**network.leak, **leak}, weights)


def _remember(memory: Memory, sums: Sums, scale: Array, number: int) -> Memory:
    """The running sums with one more block, `number` of which are all rows."""
    rate = jnp.minimum((memory.blocks + 2.0) ** -FORGETTING, MOST_REPLACED)
    rate = jnp.maximum(rate, 1.0 / number)
    mixed = jax.tree.map(lambda old, new: old + rate * (scale * new - old), memory.sums, sums)
    return Memory(mixed, memory.blocks + 1)


def start_uniform(layered: Layered, key: Array, like: Mapping[str, Any]) -> Params:
    """The paper's start: all weights between 0.05 and 0.15, those of the leaks as well."""
    names = (*layered.names.leak.values(), *layered.names.weights.values())
    keys = zip(names, random.split(key, len(names)), strict=True)
    return {name: random.uniform(k, like[name].shape, float, 0.05, 0.15) for name, k in keys}
