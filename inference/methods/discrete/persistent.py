"""State lists that persist: a datum keeps its best states and tries their neighbours.

A fixed rule for choosing candidates loses mass where single bits do not show which of them belong
together: strongly overlapping causes, many active at once. Here each datum remembers its
`num_states_kept` best states so far. A step draws parents, half of them from their posterior, flips
one or two bits of each, and keeps the best of old and new. Under the new parameters that set has
at least the mass of the old one, so the free energy cannot fall (Lücke, Forster & Dai, JMLR 2018;
Guiraud et al., 2018). Where nothing may be remembered, as of rows on disk, a step begins anew and
takes many such rounds.

Which bits are flipped is blind there, and of 256 bits hardly one is worth it. Where the log joint
is quadratic in the bits, the product that gives the values of the parents also gives what every
flip of every parent would gain: the flips are then the best ones, or drawn the sooner the more they
gain, and the children's values cost nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ...numerics.log_sums import log_total
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.reader import Reader
from ..shared import Chunk, Expectation
from .tables import own_expectation, own_log_joint


class Persistent(NamedTuple):
    """The `num_states_kept` best states of each datum so far; `num_proposals` new ones a round.

    :param rounds: of proposals, where a set is grown from zero.
    :param keep: remember the sets, so that a step is one round.

    >>> from latentbits import TruncatedEM
    >>> from latentbits.models import binary_sparse_coding
    >>> sets = Persistent(num_states_kept=4, num_proposals=2)
    >>> em = TruncatedEM(binary_sparse_coding, persistent=sets)
    >>> em.persistent.num_states_kept
    4
    """

    num_states_kept: int = 32
    num_proposals: int = 32
    rounds: int = 30
    keep: bool = True

    def check(self, num_bits: int) -> None:
        if min(self.num_states_kept, self.num_proposals, self.rounds) < 1:
            raise ProgramError("a persistent set needs at least one state, one proposal, one round")
        if num_bits < 30 and self.num_states_kept > 2**num_bits:
            raise ProgramError(
                f"{self.num_states_kept} states were asked for, but {num_bits} bits have only "
                f"{2**num_bits}: use EM"
            )

    def num_states(self, anatomy: Anatomy) -> int:
        return (self.num_states_kept + self.num_proposals) * (1 + anatomy.num_bits)

    def given(self, anatomy: Anatomy) -> None:
        del anatomy

    def start(self, anatomy: Anatomy, key: Array) -> Array:
        """Start with nothing on, each bit alone, and random states beyond: (num_data, K, bits)."""
        num_bits = anatomy.num_bits
        first = jnp.concatenate([jnp.zeros((1, num_bits), bool), jnp.eye(num_bits, dtype=bool)])
        lacking = max(0, self.num_states_kept - len(first))
        more = random.bernoulli(key, 0.5, (lacking, num_bits))
        table = jnp.concatenate([first, more])[: self.num_states_kept]
        return jnp.broadcast_to(table, (anatomy.num_data, *table.shape))

    def search(self, here: Chunk, memory: Array, keys: Array) -> tuple[Array, Array]:
        """Try neighbours of the kept states; the evidence and the states to keep.

        :param keys: one of each row, so that its proposals do not hang on how rows are dealt out.
        """
        if here.reader.structure.shared:
            form = here.reader.quadratic(*here[1:])
            values, gains = form.around(memory)
            propose = partial(self._propose_best, form.hessian)
            children, others = jax.vmap(propose)(keys, memory, values, gains)
        else:
            values = _values(here, memory)
            children = jax.vmap(self._propose)(keys, memory, values)
            others = _values(here, children)
        pool = jnp.concatenate([memory, children], axis=1)
        scores = jnp.concatenate([values, others], axis=1)
        scores = jnp.where(_repeated(pool), -jnp.inf, scores)
        best, chosen = lax.top_k(scores, memory.shape[1])
        return log_total(best, 1, False), jnp.take_along_axis(pool, chosen[:, :, None], axis=1)

    def grow(self, here: Chunk, keys: Array) -> Array:
        """The states to keep after many rounds, from nothing."""
        # One start for all rows, whatever the chunk: what is random of a row is in its own key.
        start = self.start(here.reader.anatomy, random.key(0))

        def again(i: Array, memory: Array) -> Array:
            turn = jax.vmap(lambda key: random.fold_in(key, i))(keys)
            return self.search(here, memory, turn)[1]

        return lax.fori_loop(0, self.rounds, again, start)

    def _propose(self, key: Array, memory: Array, values: Array) -> Array:
        """Neighbours of the states (K, bits) of one row, (num_proposals, bits)."""
        shape, num_bits = (self.num_proposals,), memory.shape[-1]
        key_parent, key_flip, key_second, key_both = random.split(key, 4)
        children = memory[self._parents(key_parent, values)]
        each = jnp.arange(num_bits)
        flip = random.randint(key_flip, shape, 0, num_bits)[:, None] == each
        second = random.randint(key_second, shape, 0, num_bits)[:, None] == each
        both = random.bernoulli(key_both, 0.5, (*shape, 1))
        return children ^ flip ^ (second & both)

    def _propose_best(
        self, hessian: Array, key: Array, memory: Array, values: Array, gains: Array
    ) -> tuple[Array, Array]:
        """The same by what flips gain, (K, bits), with the values of the children.

        A third of them flip the bit that gains most, a third one drawn by its gain, and a third two
        bits: one drawn, and the one that is then best.
        """
        num_bits, size = memory.shape[-1], self.num_proposals
        key_parent, key_noise = random.split(key)
        parent, each = self._parents(key_parent, values), jnp.arange(num_bits)
        bits, gain = memory[parent], gains[parent]
        # One number per bit, which each child takes from another place on: drawing would dominate.
        noise = random.gumbel(key_noise, (num_bits,))
        noise = noise[(each + 7 * np.arange(size)[:, None]) % num_bits]
        kind = np.arange(size)[:, None] % 3
        # By the root of what a flip gains (Zanella 2020): the best mostly lead to known states.
        score = jnp.where(kind == 0, gain, 0.5 * gain + noise)
        first = score.argmax(1)[:, None]
        one = first == each
        gained = jnp.take_along_axis(gain, first, axis=1)[:, 0]
        pairs = np.flatnonzero(kind == 2)
        sign = 1.0 - 2.0 * bits[pairs]
        bent = jnp.take_along_axis(sign, first[pairs], axis=1) * sign * hessian[first[pairs, 0]]
        then = jnp.where(one[pairs], -jnp.inf, gain[pairs] + bent)
        two = one[pairs] ^ (then.argmax(1)[:, None] == each)
        flips, gained = one.at[pairs].set(two), gained.at[pairs].add(then.max(1))
        return bits ^ flips, values[parent] + gained

    def _parents(self, key: Array, values: Array) -> Array:
        """Which states of a row its children are made from, (num_proposals,)."""
        # A posterior on one state has no parents but that one, and no way to a better one three
        # bits away: every other parent is any state of the list.
        even = jnp.arange(self.num_proposals)[:, None] % 2 == 0
        return random.categorical(key, jnp.where(even, values, 0.0))

    def expect(self, here: Chunk, memory: Any = None, keys: Array | None = None) -> Expectation:
        """The posterior over the states in `memory`, or over those grown from `keys`."""
        if memory is None:
            assert keys is not None
            memory = self.grow(here, keys)
        logits = jnp.where(_repeated(memory), -jnp.inf, _values(here, memory))
        return own_expectation(jnp.swapaxes(memory, 0, 1), logits.T)

    def contains(self, reader: Reader, memory: Array, bits: Array) -> Array:
        """Whether states (S, n, bits) are among those kept: (S, n)."""
        del reader
        same = _codes(bits)[:, :, :, None] == _codes(memory)[:, None]
        return same.all(0).any(-1)


def _values(here: Chunk, bits: Array) -> Array:
    """Log joint of states (n, K, bits): (n, K)."""
    return own_log_joint(here, jnp.swapaxes(bits, 0, 1)).T


def _codes(bits: Array) -> Array:
    """Two random 32-bit sums that tell states apart, (2, ...); random agreement is 1 in 2^64."""
    multipliers = np.random.default_rng(0).integers(
        1 << 32, size=(2, bits.shape[-1]), dtype="uint32"
    )
    return jnp.stack([(bits * m).sum(-1, dtype=jnp.uint32) for m in multipliers])


def _repeated(bits: Array) -> Array:
    """Which states (n, K, bits) stand earlier in the list of the same datum: (n, K)."""
    codes = _codes(bits)
    same = (codes[:, :, :, None] == codes[:, :, None, :]).all(0)
    earlier = jnp.tril(jnp.ones(same.shape[1:], bool), -1)
    return (same & earlier).any(-1)
