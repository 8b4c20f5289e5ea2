"""Gibbs EM from many starts, in which units that are stuck are seeded anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ...reading.anatomy import Anatomy
from ...reading.arguments import rows_of
from ...rows.chunks import Rows, compiled
from ...running.algorithm import Algorithm
from ...running.contract import RunResult, Starts
from ...running.restarts import Averaged
from ...running.search import Search, each
from ...running.settings import Range
from ...types import Params
from .gibbs_em import GibbsEM
from .layers import Block, Learning, Phase
from .noisy_or import Network
from .replacing import Replacing

SIDE_BY_SIDE = Search(num_lineages=2, screening=0, rounds=0, least_steps=2)
"""The members of a population have one ancestor: what it finds, a second one must find too."""


SWEEPS = 2
"""Through a block in an epoch: states are kept, and many short epochs do more than few long."""
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
    unit that stands for two causes (`inference.methods.gibbs.replacing`), the copies learn for a
    few epochs, and the best of old and new survive, by the log joint of data and states
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
        em = dataclasses.replace(self.em, learn_from="block")  # running sums begin with each round
        state = em.init(rng_key, *args, init_params=init_params, **kwargs)
        layered = self.em.open(args, kwargs)

        def first(rows: Rows, params: Params, bits: Array | None) -> tuple[Any, Any, Array]:
            network = self.em.network(layered, params, rows.join(rows.leaves))
            many = lambda x: jnp.broadcast_to(x, (self.population, *x.shape))  # noqa: E731
            members, bits = jax.tree.map(many, (network, bits))
            return members, bits, jnp.full(self.population, -jnp.inf)

        # In one piece: operation by operation to read the weights takes longer than a round.
        rows = rows_of(layered.program.anatomy, args, kwargs)
        begin = compiled(first, rows)
        members, bits, scores = begin(rows.leaves, state.params, state.bits)
        return SearchState(members, bits, scores, state.params, state.step, state.rng_key)

    def refuse(self, rng_key: Array, *args: Any, **kwargs: Any) -> None:
        self.em.refuse(rng_key, *args, **kwargs)

    def update(self, state: SearchState, *args: Any, **kwargs: Any) -> tuple[SearchState, Array]:
        layered = self.em.open(args, kwargs)
        learning = self.em.learning(layered, state.params, (args, kwargs))
        depth, exact = len(layered.wiring.hidden), learning.exact
        turn = state.step // self.rounds
        level = jnp.minimum(turn + 1, depth)
        fresh = (state.step % self.rounds == 0) & (turn < depth)
        phase = layered.phase(level, False)
        best = jnp.argmax(state.scores)

        units = {site: x.shape[-1] for site, x in state.members.leak.items()}
        replacing = Replacing(learning, units, level, fresh)
        key, key_children = random.split(state.rng_key)

        def learn(key: Array, network: Network, bits: Array | None) -> tuple:
            def epoch(i: Array, carry: tuple) -> tuple:
                network, bits, memory, _ = carry
                learns = jax.tree.map(lambda x: x & (i < self.epochs), phase.learn)
                now, key_epoch = phase._replace(learn=learns), random.fold_in(key, i)
                done = learning.epoch(network, bits, now, key_epoch, memory)
                return done.network, done.bits, done.memory, done.log_joint

            memory = None  # of earlier blocks: none where all rows are one
            if self.em.learn_from == "all" and learning.number > 1:
                memory = learning.forgotten(network)
            # Where all states are summed, what a member is worth is the log joint of one more
            # epoch, in which nothing is learned.
            begin = (network, bits, memory, jnp.zeros_like(state.scores[0]))
            network, bits, _, worth = lax.fori_loop(0, self.epochs + exact, epoch, begin)
            if exact:
                return network, bits, worth
            return network, bits, worth_of(learning, network, bits, phase, key)

        def child(key: Array, share: Array) -> tuple:
            network, bits = jax.tree.map(lambda x: x[best], (state.members, state.bits))
            key_copy, key_learn = random.split(key)
            return learn(key_learn, *replacing.copy(key_copy, network, bits, share))

        shares = jnp.asarray(np.linspace(0.0, 2.0 * self.replaced, self.population))
        children = each(child)(random.split(key_children, self.population), shares)
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


def worth_of(
    learning: Learning, network: Network, bits: Array | None, phase: Phase, key: Array
) -> Array:
    """What a member is worth, from its states or from such as are sampled here."""

    def visit(total: Array, block: Block) -> Array:
        if bits is not None:
            here = lax.dynamic_slice_in_dim(bits, block.begin, len(block.fresh))
        else:
            here = learning.settle(network, block, None, phase, key)[0].bits
        return total + block.fresh @ learning.layered.score(network, block.seen, here, phase)

    return learning.scan(visit, jnp.zeros(()))
