"""Gibbs EM from many starts, in which units that are stuck are seeded anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ...numerics.compiling import least_effort, split_key
from ...reading.anatomy import Anatomy
from ...reading.arguments import rows_of
from ...reading.settings import Range
from ...rows.chunks import Rows, compiled
from ...running.algorithm import Algorithm
from ...running.contract import RunResult, Starts
from ...running.restarts import Averaged
from ...running.search import Search
from ...types import Params
from .gibbs_em import GibbsEM
from .layers import Block, Blocks, Layered, Phase, forgotten, run_epoch, settle_block
from .noisy_or import Network, Seen
from .planting import cause_ratios, given_up, halve, missing_patterns, residuals, unit_gains

SIDE_BY_SIDE = Search(num_lineages=2, screening=0, rounds=0, least_steps=2)
"""The members of a population have one ancestor: what it finds, a second one must find too."""


SWEEPS = 2
"""Through a block in an epoch: states are kept, and many short epochs do more than few long."""
SAMPLE = 4096
"""Rows, drawn at random, that new units are made from, at most."""
NEGLIGIBLE = 1e-7
"""Of the loss: what is left to gain when polishing ends."""


class SearchState(NamedTuple):
    """The population, and what the next round needs."""

    members: Network  # every leaf with a leading axis of members
    bits: Array | None  # (population, num_data, num_bits), if states are kept
    scores: Array  # (population,) log joint of data and states, a small top layer summed out
    params: Params  # of the best
    step: Array
    rng_key: Array


@dataclasses.dataclass(frozen=True, eq=False)
class GibbsSearch(Algorithm):
    """Gibbs EM from many starts, where a stuck unit is freed by seeding it anew.

    A unit of a noisy-OR network that stands for a blend of two causes stays so: more sweeps, epochs
    or data do not part them. Two remedies, layer by layer:

    *A start from what patterns share.* At first a unit is given the bits that two rows, drawn at
    random, have in common; upper layers, likewise, what two states of the layer below share.

    *A population.* In each round the best member is copied, in each copy some units of the layer
    are replaced, those that are missed least by patterns that the member lacks, or by a half of a
    unit that stands for two causes (`inference.methods.gibbs.planting`), the copies learn for a few
    epochs, and the best of old and new survive, by the log joint of data and states
    (`Layered.score`).

    A step is a round; after `rounds` of them the next layer opens. The loss is the negative log
    joint of the best member *after* the step. A run of all rounds ends with `polish` epochs in
    which the best member learns all layers together; all its states are summed if they are few.

    :param em: how members learn: a `GibbsEM`, or a program for one of two sweeps a block; its
        schedule, start and rules for layers do not matter here. It says whether states are kept, a
        byte per unit, row and member; where they are not, as with rows on disk, they are sampled
        again when members are compared.
    :param population: members.
    :param rounds: for each layer.
    :param epochs: of learning in a round.
    :param replaced: the mean share of units replaced in a copy; copies get from none to twice that.
    :param polish: most epochs after the last round, of the best member alone; 0: none. Where states
        are drawn, the result is the mean over the second half of them.
    :param search: how many populations there are side by side, and whether they agree; None: one.

    >>> from latentbits.models import noisy_or_network
    >>> from latentbits.models.data import lines
    >>> search = GibbsSearch(GibbsEM(noisy_or_network), population=3, rounds=2, epochs=1)
    >>> result = search.run(random.key(0), 2, lines(random.key(1), 200).data, layers=(4,))
    >>> result.params["weights_1"].shape, result.state.scores.shape
    ((4, 25), (3,))
    """

    why_no_mesh = GibbsEM.why_no_mesh
    starts = Starts.ONE
    staged = True
    draws = True

    em: Any  # a `GibbsEM`, once it is built
    _: dataclasses.KW_ONLY
    population: Annotated[int, Range(2)] = 4
    rounds: int = 30
    epochs: int = 2
    replaced: float = 0.06
    polish: Annotated[int, Range(0)] = 60
    search: Search | None = SIDE_BY_SIDE
    model: Callable = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.em, GibbsEM):
            object.__setattr__(self, "em", GibbsEM(self.em, max_sweeps=SWEEPS))
        object.__setattr__(self, "model", self.em.model)

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        return GibbsEM.admits(anatomy)

    def default_steps(self, anatomy: Anatomy) -> int:
        """The rounds of all layers."""
        return self.rounds * len(anatomy.latents)

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> SearchState:
        """Members start where `GibbsEM` does; the first round seeds their lowest layer."""
        key, key_start = split_key(rng_key, 2)
        state = self.em.init(key_start, *args, init_params=init_params, **kwargs)
        layered = self.em.open(args, kwargs)

        def first(rows: Rows, params: Params, bits: Array | None) -> tuple[Any, Any, Array]:
            network = self.em.read(layered, params, rows.join(rows.leaves))[0]
            many = lambda x: jnp.broadcast_to(x, (self.population, *x.shape))  # noqa: E731
            members, bits = jax.tree.map(many, (network, bits))
            return members, bits, jnp.full(self.population, -jnp.inf)

        # In one piece: operation by operation to read the weights takes longer than a round.
        rows = rows_of(layered.program.anatomy, args, kwargs)
        begin = compiled(first, rows, compiler_options=least_effort())
        members, bits, scores = begin(rows.leaves, state.params, state.bits)
        return SearchState(members, bits, scores, state.params, state.step, key)

    def update(self, state: SearchState, *args: Any, **kwargs: Any) -> tuple[SearchState, Array]:
        layered = self.em.open(args, kwargs)
        blocks, priors = self.em.read_rows(layered, state.params, (args, kwargs))
        key, key_copy, key_learn = random.split(state.rng_key, 3)
        depth, exact = len(layered.wiring.hidden), self.em.exact(layered.program.anatomy)
        turn = state.step // self.rounds
        level = jnp.minimum(turn + 1, depth)
        fresh = (state.step % self.rounds == 0) & (turn < depth)
        phase = layered.phase(level, False)
        best = jnp.argmax(state.scores)

        def copy(key: Array, share: Array) -> tuple[Network, Array | None]:
            return self._replace(layered, state, blocks, best, level, fresh, share, key)

        def learn(key: Array, network: Network, bits: Array | None) -> tuple:
            def epoch(carry: tuple, inputs: tuple) -> tuple[tuple, Array]:
                (network, bits, memory), (learns, key) = carry, inputs
                now = phase._replace(learn=jax.tree.map(lambda x: x & learns, phase.learn))
                done = run_epoch(
                    layered, network, blocks, bits, now, key,
                    rules=self.em.rules, priors=priors, memory=memory, exact=exact,
                )  # fmt: skip
                return (done.network, done.bits, done.memory), done.log_joint

            memory = None
            if self.em.learn_from == "all":
                memory = forgotten(layered, network, blocks.rows.num_data)
            # Where all states are summed, what a member is worth is the log joint of one more
            # epoch, in which nothing is learned: the sum is compiled once.
            count = self.epochs + exact
            inputs = np.arange(count) < self.epochs, random.split(key, count)
            (network, bits, _), worth = lax.scan(epoch, (network, bits, memory), inputs)
            if exact:
                return network, bits, worth[-1]
            return network, bits, self._worth(layered, network, blocks, bits, phase, key)

        rates = jnp.linspace(0.0, 2.0 * self.replaced, self.population)
        copies = jax.vmap(copy)(random.split(key_copy, self.population), rates)
        children = jax.vmap(learn)(random.split(key_learn, self.population), *copies)
        # What was learned without this layer competes no longer.
        parents = (state.members, state.bits, jnp.where(fresh, -jnp.inf, state.scores))
        joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), parents, children)
        order = jnp.argsort(-joined[2])[: self.population]
        members, bits, scores = jax.tree.map(lambda x: x[order], joined)
        params = layered.names.update(state.params, jax.tree.map(lambda x: x[0], members))
        new = SearchState(members, bits, scores, params, state.step + 1, key)
        return new, -scores[0]

    def may_stop(self, state: SearchState) -> Array:
        """Not before the last round: the best member may survive one unchanged."""
        depth = len({parent for parent, _ in state.members.weights})
        return state.step >= self.rounds * depth

    def finish(
        self, result: RunResult, rng_key: Array, budget: float | None, args: tuple, kwargs: dict
    ) -> RunResult:
        """The best member learns by itself, all layers together."""
        state = result.state
        here = state._replace(step=np.asarray(state.step))  # nothing is compiled to compare it
        if self.polish == 0 or result.interrupted or not self.may_stop(here):
            return result
        if budget is not None and result.seconds >= budget:
            return result
        em: Any = dataclasses.replace(self.em, schedule="joint")
        begin = em.init(rng_key, *args, init_params=result.params, **kwargs)
        tolerance: float | None = NEGLIGIBLE
        if state.bits is not None:
            begin = begin._replace(bits=state.bits[0])
        if not em.exact(em.open(args, kwargs).program.anatomy):
            em, tolerance = Averaged(em, self.polish // 2), None
            begin = em.begin(begin)
        polished = em.run(
            rng_key, self.polish, *args, init_state=begin, tolerance=tolerance, **kwargs,
            budget=None if budget is None else budget - result.seconds,
        )  # fmt: skip
        return result._replace(
            params=polished.params,
            stop=polished.stop,
            reason=polished.reason,
            seconds=result.seconds + polished.seconds,
            compile_seconds=result.compile_seconds + polished.compile_seconds,
        )

    def _worth(
        self,
        layered: Layered,
        network: Network,
        blocks: Blocks,
        bits: Array | None,
        phase: Phase,
        key: Array,
    ) -> Array:
        """What a member is worth, from its states or from such as are sampled here."""

        def visit(total: Array, block: Block) -> Array:
            if bits is not None:
                here = lax.dynamic_slice_in_dim(bits, block.begin, len(block.fresh))
            else:
                rules = self.em.rules
                here = settle_block(layered, network, block, None, phase, key, rules)[0].bits
            return total + block.fresh @ layered.score(network, block.seen, here, phase)

        return blocks.scan(visit, jnp.zeros(()))

    def _replace(
        self,
        layered: Layered,
        state: SearchState,
        blocks: Blocks,
        best: Array,
        level: Array,
        fresh: Array,
        share: Array,
        key: Array,
    ) -> tuple[Network, Array | None]:
        """A copy of the best member, some units of whose highest open layer are new."""
        network = jax.tree.map(lambda x: x[best], state.members)
        bits = None if state.bits is None else layered.program.split(state.bits[best])
        key, key_rows = random.split(key)
        num_data = blocks.rows.num_data
        size = min(SAMPLE, 1 << (num_data.bit_length() - 1))
        rows = random.randint(key_rows, (size,), 0, num_data)
        hidden, observed = self._sample(
            layered, network, blocks, bits, rows, level - fresh, key_rows
        )
        leak, weights = dict(network.leak), dict(network.weights)
        for site in layered.wiring.hidden:
            key, key_which, key_pairs, key_noise, key_new = random.split(key, 5)
            here = level == layered.height(site)
            units = network.leak[site].shape[0]
            edges = [(site, child) for child in layered.wiring.children(site)]
            gains = unit_gains(layered.wiring, network, hidden, observed, site)
            left = [
                residuals(layered.wiring, network, hidden, observed, child) for _, child in edges
            ]
            shared = [
                cause_ratios(layered.wiring, network, hidden, observed, child) for _, child in edges
            ]
            works = -jnp.expm1(-jnp.concatenate([network.weights[edge] for edge in edges], 1))
            which, place = given_up(key_which, gains, share)
            which = here & (which | fresh)
            key_parts, key_new, key_kind = random.split(key_new, 3)
            whole = jnp.concatenate(left, 1)
            halves = halve(
                key_parts, whole, jnp.concatenate(shared, 1), hidden[site], works, ~which
            )
            patterns = missing_patterns(key_new, whole, units)[place]
            # One of the units that are given up becomes a half of another.
            parted = which.any() & ~fresh & random.bernoulli(key_kind)
            first = parted & which & (place == 0)
            other_half = parted & (jnp.arange(units) == halves.unit)
            ends = np.cumsum([x.shape[1] for x in left])[:-1]
            one, other = random.randint(key_pairs, (2, units), 0, len(rows))
            parts = jnp.split(-jnp.log1p(-halves.strengths), ends, 1)
            for edge, planted, pair in zip(edges, jnp.split(patterns, ends, 1), parts, strict=True):
                child = edge[1]
                value = hidden[child] if child in hidden else shown(observed[child])
                noise = random.uniform(key_noise, planted.shape, minval=0.05, maxval=0.15)
                new = noise + jnp.where(fresh, value[one] * value[other], planted)
                new = jnp.where(first[:, None], 0.01 + pair[0], new)
                new = jnp.where(other_half[:, None], 0.01 + pair[1], new)
                changes = which | other_half
                weights[edge] = jnp.where(changes[:, None], new, weights[edge])
                if child not in layered.names.leak:
                    continue
                if child in layered.wiring.observed:
                    # Where a leak has vanished nothing is left for a new unit to explain.
                    more = jnp.maximum(leak[child], 0.02)
                    leak[child] = jnp.where(which.any(), more, leak[child])
                else:  # It stood for all that was above: now there is a cause.
                    leak[child] = jnp.where(here & fresh, 0.1, leak[child])
            if site in layered.names.leak:
                typical = jnp.where(fresh, 0.1, leak[site].mean())
                of_half = leak[site][halves.unit] * halves.shares
                leak[site] = jnp.where(which, typical, leak[site])
                leak[site] = jnp.where(first, of_half[0], leak[site])
                leak[site] = jnp.where(other_half, of_half[1], leak[site])
            if bits is not None:
                bits[site] = jnp.where(which, 0, bits[site])
        if bits is None:
            return Network(leak, weights), None
        joined = jnp.concatenate([bits[name] for name in layered.program.anatomy.names], axis=-1)
        return Network(leak, weights), joined

    def _sample(
        self,
        layered: Layered,
        network: Network,
        blocks: Blocks,
        bits: dict[str, Array] | None,
        rows: Array,
        level: Array,
        key: Array,
    ) -> tuple[dict[str, Array], dict[str, Seen]]:
        """States of the hidden units in some rows, and what was observed there."""
        observed = blocks.look(blocks.rows.take(rows))
        if bits is not None:
            states = {site: x[rows] for site, x in bits.items()}
        else:
            zero, fresh = jnp.zeros((), int), jnp.ones(rows.size)
            few, phase = Block(zero, zero, observed, fresh), layered.phase(level, False)
            states = layered.program.split(
                settle_block(layered, network, few, None, phase, key, self.em.rules)[0].bits
            )
        return {site: x.astype(float) for site, x in states.items()}, observed


def shown(seen: Seen) -> Array:
    """Bits that were observed to be on."""
    return seen.value if seen.mask is None else seen.value * seen.mask
