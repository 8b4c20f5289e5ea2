"""EM of noisy-OR networks with Gibbs sampling as its E-step, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random

from ...reading.anatomy import Anatomy
from ...reading.arguments import rows_of
from ...reading.reader import check_data, check_support
from ...reading.tracing import somewhere
from ...rows.chunks import Numbers, Rows, chunk_of, compiled, map_over_chunks
from ...running.algorithm import Algorithm
from ...running.contract import Posterior
from ...types import Arguments, Params
from ..shared import check_shapes
from .flips import Rules, open_bits
from .layers import (
    Layered,
    Learning,
    Memory,
    Phase,
    open_layers,
    read_priors,
    start_uniform,
)
from .noisy_or import Network, Seen, read_network, read_seen, trace_off

FILE_ROWS = 1 << 12
"""Rows of a file whose posteriors are sampled together."""

Schedule = Literal["layers", "stability", "joint"]


class GibbsEMState(NamedTuple):
    """What the next epoch needs."""

    params: Params
    step: Array
    rng_key: Array
    bits: Array | None  # (num_data, num_bits): where the next sweep begins; None: all units off
    level: Array  # layers that are open, counted from the inputs
    changed: Array | None  # (num_bits,) how often bits changed in a sweep; of "stability" alone
    memory: Memory | None  # running sums over all blocks; None: each block is learned by itself


GibbsPosterior = Posterior


@dataclasses.dataclass(frozen=True, eq=False)
class GibbsEM(Algorithm):
    """EM of a noisy-OR network by Gibbs sampling, layer by layer (Lewicki & Sejnowski 1996).

    A step is an epoch: each block of rows is sampled by equations (6), (7) until no bit is likely
    to change, then the weights are re-estimated by (9), from running sums over all rows. The loss
    is the negative log joint of data and sampled states, open layers only; it is noisy, and it
    jumps when a layer opens.

    :param model: a program that is a noisy-OR network, known by its form.
    :param prior: of the weights: the program's own (``"program"``, Gamma in the paper), a
        ``Gamma`` on w, a ``Beta`` on 1 − exp(−w), or None for maximum likelihood.
    :param schedule: ``"layers"`` opens a layer every `epochs_per_layer` epochs, the lowest first,
        and fine-tunes all of them when the last has had its turn; ``"stability"`` opens the next
        layer when the bits of the highest change in less than `stable_below` of their visits, and
        frees the weights to a unit when that unit is as stable; ``"joint"`` learns all at once,
        which the paper found to give priors that are too strong.
    :param block_size: rows between two estimates of the weights.
    :param max_sweeps: sweeps through the units for a block, at most.
    :param stop_below: a row stops when no unit had a larger probability to change.
    :param annealing: sweeps beforehand in which the likelihood's power rises from 0 to 1.
    :param restarts: chains a row, of which the best by log joint is learned from.
    :param max_states: a network with at most so many states of its hidden units is not sampled: all
        states are summed, which is exact and sooner done. The loss is then the negative log
        evidence. 1: always sample.
    :param learn_from: ``"all"``: sums over the blocks so far, the last counting most, and at the
        end of an epoch the sums over all rows; the prior counts once. ``"block"``: the last block
        alone, with the whole prior, as in the paper, which loses causes that are rare in a block.
    :param keep_states: begin where the last epoch ended, a byte per unit and row, instead of with
        all units off. By default, unless the rows are on disk: memory then holds a block, and
        `max_sweeps` must be enough to find a row's states from zero.
    :param start: ``start(key, *args, **kwargs) -> params``; by default the paper's, uniform between
        0.05 and 0.15.

    >>> from latentbits.models import noisy_or_network
    >>> from latentbits.models.data import lines
    >>> em = GibbsEM(noisy_or_network, epochs_per_layer=2)
    >>> result = em.run(random.key(0), 4, lines(random.key(1), 200).data, layers=(4, 2))
    >>> result.params["weights_1"].shape, result.params["weights_2"].shape
    ((4, 25), (2, 4))
    """

    staged = True
    draws = True
    why_no_mesh = "its weights change after every block of rows, one block after the other"

    model: Callable
    _: dataclasses.KW_ONLY
    prior: dist.Distribution | Literal["program"] | None = "program"
    schedule: Schedule = "layers"
    epochs_per_layer: int = 10
    stable_below: float = 0.05
    block_size: int = 200
    max_sweeps: int = 15
    stop_below: float = 0.05
    annealing: int = 0
    restarts: int = 1
    max_states: int = 1 << 10
    learn_from: Literal["all", "block"] = "all"
    keep_states: bool | None = None
    start: Callable[..., Params] | None = None
    plate: str | None = None

    def __post_init__(self) -> None:
        self.rules.check()

    @property
    def rules(self) -> Rules:
        """Of the sweeps through a block of rows."""
        return Rules(self.max_sweeps, self.stop_below, self.annealing, self.restarts)

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        other = [x.name for x in anatomy.latents if not x.binary]
        if other or not anatomy.latents:
            return f"{other[0]} is not binary" if other else "no latent in the data plate"
        if set(anatomy.likelihoods) != {"NoisyOr"}:
            return f"{anatomy.observed[0]} is not a noisy-OR site"
        return anatomy.why_not_once

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> GibbsEMState:
        layered, rows = self._checked(args, kwargs)
        anatomy = layered.program.anatomy
        key_start, key = random.split(rng_key)
        start = {} if self.start is None else self.start(key_start, *args, **kwargs)
        given = {**start, **(init_params or {})}

        one = rows.slice(0, 1)
        like = jax.eval_shape(lambda: somewhere(self.model, anatomy.parameters, one))
        check_shapes({name: x.shape for name, x in like.items()}, given)
        drawn = {} if like.keys() <= given.keys() else start_uniform(layered, key_start, like)
        params = {name: jnp.asarray(x, float) for name, x in {**drawn, **given}.items()}
        bits, keep = None, not rows.on_disk if self.keep_states is None else self.keep_states
        if keep and not self.exact(anatomy):
            bits = jnp.zeros((anatomy.num_data, anatomy.num_bits), jnp.int8)
        level = jnp.asarray(len(anatomy.latents) if self.schedule == "joint" else 1)
        changed = jnp.ones(anatomy.num_bits) if self.schedule == "stability" else None
        memory = None
        if self.learn_from == "all":  # running sums, as yet empty: the first epoch fills them

            def read(params: Params) -> Memory:
                learning = self.learning(layered, params, (args, kwargs))
                return learning.forgotten(self.network(layered, params, (args, kwargs)))

            like = jax.eval_shape(read, params)
            memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        return GibbsEMState(params, jnp.zeros((), int), key, bits, level, changed, memory)

    def _checked(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Layered, Rows]:
        """The network that the program is, and its rows, where it can learn from them."""
        check_data(args, kwargs)
        layered = self.open(args, kwargs)
        anatomy = layered.program.anatomy
        anatomy.check_unweighted()
        anatomy.check_rows_are_all()
        rows = rows_of(anatomy, args, kwargs)
        check_support(self.model, anatomy, rows)
        return layered, rows

    def refuse(self, rng_key: Array, *args: Any, **kwargs: Any) -> None:
        del rng_key
        self._checked(args, kwargs)  # without the start that `init` would trace

    def update(self, state: GibbsEMState, *args: Any, **kwargs: Any) -> tuple[GibbsEMState, Array]:
        layered = self.open(args, kwargs)
        network = self.network(layered, state.params, (args, kwargs))
        learning = self.learning(layered, state.params, (args, kwargs))
        key, key_epoch = random.split(state.rng_key)
        level, phase = self._phase(layered, state)
        memory = state.memory
        if memory is not None:
            # What was learned without the layer that opens now says nothing of it.
            keep = (state.step > 0) & (level == state.level)
            memory = jax.tree.map(partial(jnp.where, keep), memory, learning.forgotten(network))
        epoch = learning.epoch(network, state.bits, phase, key_epoch, memory)
        params = layered.names.update(state.params, epoch.network)
        changed = None if state.changed is None else epoch.changed
        new = GibbsEMState(params, state.step + 1, key, epoch.bits, level, changed, epoch.memory)
        return new, -epoch.log_joint

    def posterior(
        self,
        params: Params,
        *args: Any,
        rng_key: Array | None = None,
        num_chains: int = 4,
        num_sweeps: int = 50,
        annealing: int = 25,
        **kwargs: Any,
    ) -> Posterior:
        """The posterior of each row by annealed chains, and how far they disagree."""
        program = self.open(args, kwargs).program
        num_bits = program.anatomy.num_bits
        rows = rows_of(program.anatomy, args, kwargs)
        size = chunk_of(FILE_ROWS, 0, rows) if rows.on_disk else rows.num_data
        num_data = rows.num_data
        key_all = random.key(0) if rng_key is None else rng_key

        def chains(key_all: Array, arguments: Arguments, params: Params, start: Array) -> Posterior:
            here = program._replace(anatomy=program.anatomy.with_rows(size))
            draw, score = here.read(params, arguments)

            def one(key: Array) -> tuple[Array, Array, Array]:
                def again(i: Array, carry: tuple) -> tuple:
                    bits, total, best, value = carry
                    power = jnp.minimum(i / annealing, 1.0) if annealing else 1.0
                    bits, _ = draw(random.fold_in(key, i), bits, power)
                    here = jnp.where(i < annealing, -jnp.inf, score(bits, 1.0))
                    best = jnp.where((here > value)[:, None], bits, best)
                    total = total + jnp.where(i > annealing, bits, 0)
                    return bits, total, best, jnp.maximum(here, value)

                # One loop, and one sweep to compile: heated, then one that does not count.
                off = jnp.zeros((size, num_bits), jnp.int8)
                start = (off, jnp.zeros(off.shape), off, jnp.full(size, -jnp.inf))
                count = annealing + 1 + num_sweeps
                _, total, best, value = jax.lax.fori_loop(0, count, again, start)
                return total / num_sweeps, best, value

            key = key_all if size == num_data else random.fold_in(key_all, start)
            means, bests, values = jax.vmap(one)(random.split(key, num_chains))
            chosen, each = jnp.argmax(values, axis=0), jnp.arange(size)
            error = means.std(0, ddof=1) / jnp.sqrt(num_chains)
            return Posterior(
                means.mean(0), error=error, best=bests[chosen, each],
                log_joint=values[chosen, each],
            )  # fmt: skip

        def whole(rows: Rows, params: Params, key: Array) -> Posterior:
            visit = lambda arguments, numbers: chains(key, arguments, params, numbers[0])  # noqa: E731
            return map_over_chunks(visit, rows, size, Numbers())

        return compiled(whole, rows)(rows.leaves, params, key_all)

    def open(self, args: tuple, kwargs: dict[str, Any]) -> Layered:
        """The network that the program is."""
        return open_layers(open_bits(self.model, args, kwargs, plate=self.plate))

    def network(self, layered: Layered, params: Params, arguments: Arguments) -> Network:
        """The numbers of the network."""
        anatomy = layered.program.anatomy
        one = rows_of(anatomy, *arguments).slice(0, 1)
        return read_network(self.model, anatomy.with_rows(1), layered.wiring, params, one)

    def learning(self, layered: Layered, params: Params, arguments: Arguments) -> Learning:
        """The data in blocks, the priors, and the rules."""
        anatomy = layered.program.anatomy
        rows = rows_of(anatomy, *arguments)
        one, size = rows.slice(0, 1), chunk_of(self.block_size, 0, rows)

        def observe(arguments: Arguments) -> dict[str, Seen]:
            return read_seen(self.model, anatomy, arguments, params)

        @cache
        def trace() -> dict:
            return trace_off(self.model, anatomy, one, params)

        priors, exact = read_priors(layered, trace, self.prior), self.exact(anatomy)
        return Learning(layered, rows, size, observe, priors, self.rules, exact)

    def exact(self, anatomy: Anatomy) -> bool:
        """Whether all states are summed."""
        return 1 << anatomy.num_bits <= self.max_states

    def _phase(self, layered: Layered, state: GibbsEMState) -> tuple[Array, Phase]:
        depth = len(layered.wiring.hidden)
        if self.schedule == "joint":
            return state.level, layered.phase(depth, True)
        if self.schedule == "layers":
            turn = state.step // self.epochs_per_layer + 1
            level = jnp.minimum(turn, depth)
            return level, layered.phase(level, turn > depth)
        assert state.changed is not None
        changed = layered.program.split(state.changed)
        calm = jnp.stack([changed[site].mean() for site in reversed(layered.wiring.hidden)])
        settled = calm[state.level - 1] < self.stable_below
        level = jnp.minimum(state.level + settled, depth)
        stable = {site: changed[site] < self.stable_below for site in layered.wiring.hidden}
        return level, layered.phase(level, (state.level == depth) & settled, stable)
