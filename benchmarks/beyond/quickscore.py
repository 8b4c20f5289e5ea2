r"""The likelihood of rows under one layer of many causes, summed over what explains each word.

A column that is off says of every cause separately that it did not turn the column on, so that all
of them together cost one product (Heckerman's *quickscore*, 1989). What is left is a sum over sets:
with :math:`g_A` the probability that the causes so far have turned on exactly the set :math:`A` of
a row's words, a cause that is on with probability :math:`q_i` makes of it

.. math:: g \leftarrow (1 - q_i)\, g + q_i \bigotimes_j
          \begin{pmatrix} 1 - f_{ij} & 0 \\ f_{ij} & 1 \end{pmatrix} g ,

and the likelihood is the last entry. All terms are positive, so that float32 will do; a row of k
words takes 2^k k numbers a cause, however many causes may be on together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from inference.methods.gibbs.noisy_or import SMALLEST, exact_product
from inference.reading.states import AllStates

CHUNK_FLOATS = 1 << 19
"""Sets of words times rows that are summed at once."""
MOST_WORDS = 9
"""Of a row that is learned from by all sets of its words. Of a longer one the states of
`CANDIDATES` causes are summed, those that would explain it best if each were alone, the others as
if they explained none of its words: a lower bound."""
CANDIDATES = 10
FLOOR = 0.05
"""The least leak by which candidates are judged: it stands for the other causes."""


class Causes(NamedTuple):
    """One layer of a noisy-OR network, by probabilities. A pytree."""

    strength: Array  # (causes, columns) f: how often a cause that is on turns a column on
    prior: Array  # (causes,)
    leak: Array  # (columns,) how often a column is on without a cause


class Group(NamedTuple):
    """Rows of at most so many words, in chunks of equal size."""

    words: Array  # (chunks, rows, words) columns that are on, filled up with any
    on: Array  # (chunks, rows, columns) whether a column is on
    weight: Array  # (chunks, rows) 0 where filled up
    row: Array  # (chunks, rows) its place in the table


def grouped(data: np.ndarray, sizes: Sequence[int]) -> list[Group]:
    """Rows by their number of words; those of more than the last size are left out."""
    data = np.asarray(data, bool)
    count, least, groups = data.sum(1), -1, []
    for size in sizes:
        rows = np.flatnonzero((count > least) & (count <= size))
        least = size
        if len(rows) == 0:
            continue
        floats = 1 << size if size <= MOST_WORDS else size << CANDIDATES
        number = -(-len(rows) * floats // CHUNK_FLOATS)
        place = np.resize(rows, (number, -(-len(rows) // number)))
        weight = np.arange(place.size).reshape(place.shape) < len(rows)
        words = np.argsort(~data[place], axis=2, kind="stable")[:, :, :size]
        parts = (words, data[place], weight.astype(np.float32), place)
        groups.append(Group(*map(jnp.asarray, parts)))
    return groups


def log_likelihood(causes: Causes, group: Group) -> Array:
    """Log p(y) of the rows of one chunk of a group, (rows,), by all sets of words."""
    base, given = _silent(causes, group)
    # Rows go last, side by side in memory; a word that only fills up is explained from the start.
    words, there = group.words.T, jnp.take_along_axis(group.on, group.words, 1).T
    sets = jnp.ones((1, len(given)))
    for x in jnp.where(there, causes.leak[words], 1.0)[::-1]:
        sets = jnp.concatenate([sets * (1.0 - x), sets * x])

    def explain(sets: Array, effect: Array) -> tuple[Array, None]:
        # The first axis is this word's; it goes last, so that the next word finds its own there.
        pair = sets.reshape(2, -1, sets.shape[-1])
        moved = effect * pair[0]
        return jnp.stack([pair[0] - moved, pair[1] + moved], 1).reshape(sets.shape), None

    def visit(sets: Array, cause: tuple[Array, Array]) -> tuple[Array, None]:
        given, strength = cause
        spread, _ = lax.scan(explain, sets, strength[words] * there)
        return sets + given * (spread - sets), None

    sets, _ = lax.scan(visit, sets, (given.T, causes.strength))
    return base + jnp.log(jnp.maximum(sets[-1], SMALLEST))


def log_truncated(causes: Causes, group: Group) -> Array:
    """A lower bound of the same, by all states of a few causes, for any number of words."""
    base, given = _silent(causes, group)
    floor = jnp.maximum(causes.leak, FLOOR)
    gain = jnp.log1p(causes.strength * (1.0 - floor) / floor)
    odds = jnp.log(given) - jnp.log1p(-given)
    alone = odds + exact_product(group.on.astype(odds.dtype), gain.T)
    who = lax.top_k(lax.stop_gradient(alone), min(CANDIDATES, len(causes.prior)))[1]
    states = jnp.asarray(AllStates().table((2,) * who.shape[1]), odds.dtype)
    weights = -jnp.log1p(-causes.strength[who[:, :, None], group.words[:, None, :]])
    inputs = exact_product(states, weights) - jnp.log1p(-causes.leak)[group.words][:, None, :]
    there = jnp.take_along_axis(group.on, group.words, 1)[:, None, :]
    explained = jnp.where(there, jnp.log(-jnp.expm1(-inputs)), 0.0).sum(2)
    off = jnp.take_along_axis(jnp.log1p(-given), who, 1).sum(1)
    prior = exact_product(jnp.take_along_axis(odds, who, 1), states.T)
    return base + off + logsumexp(prior + explained, axis=1)


def _silent(causes: Causes, group: Group) -> tuple[Array, Array]:
    """The columns that are off: their log likelihood, (rows,), and how probable they leave each
    cause, (rows, causes)."""
    off = 1.0 - group.on.astype(causes.leak.dtype)
    on = causes.prior * jnp.exp(exact_product(off, jnp.log1p(-causes.strength).T))
    either = on + 1.0 - causes.prior
    return jnp.log(either).sum(1) + off @ jnp.log1p(-causes.leak), on / either


def log_empty(causes: Causes) -> Array:
    """Log p(0), of a row without a word."""
    silent = jnp.exp(jnp.log1p(-causes.strength).sum(1))
    return jnp.log1p(-causes.prior * (1.0 - silent)).sum() + jnp.log1p(-causes.leak).sum()


def learn(
    causes: Causes,
    groups: Sequence[Group],
    smoothing: Array,
    counts: float,
    *,
    never_empty: bool,
) -> tuple[Causes, Array]:
    """One step of EM, and the log likelihood before it.

    What equation (9) needs follows from the slopes of the log likelihood L: in N rows a cause of
    prior π was on in π (N + (1 − π) ∂L/∂π), and turned a column on in f (that + (1 − f) ∂L/∂f).

    :param smoothing: (columns,) by how many more rows each cause turned a column on,
    :param counts: of so many more rows in which it was on: the mode under a Beta prior of f.
    :param never_empty: rows without a word were left out of the table: the likelihood is that given
        at least one word, and the rows that are missing, N p(0) / (1 − p(0)) of them, are learned
        from as well.
    """

    def visit(carry: tuple[Array, Causes], chunk: Group) -> tuple[tuple[Array, Causes], None]:
        def worth(causes: Causes) -> Array:
            few = chunk.words.shape[-1] <= MOST_WORDS
            return chunk.weight @ (log_likelihood if few else log_truncated)(causes, chunk)

        return jax.tree.map(jnp.add, carry, jax.value_and_grad(worth)(causes)), None

    total = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, causes))
    for group in groups:
        total, _ = lax.scan(visit, total, group)
    value, slope = total
    rows = jnp.stack([group.weight.sum() for group in groups]).sum()
    if never_empty:
        empty, more = jax.value_and_grad(log_empty)(causes)
        value -= rows * jnp.log(-jnp.expm1(empty))
        missing = rows * jnp.exp(empty) / -jnp.expm1(empty)
        slope = jax.tree.map(lambda a, b: a + missing * b, slope, more)
        rows += missing
    strength, prior, leak = causes
    on = (prior * (rows + (1.0 - prior) * slope.prior))[:, None]
    share = strength * (on + (1.0 - strength) * slope.strength)
    alone = leak * (rows + (1.0 - leak) * slope.leak)
    new = Causes(
        jnp.clip((share + smoothing) / (on + counts), 1e-9, 1.0 - 1e-6),
        (on[:, 0] + 1.0) / (rows + 2.0),
        (alone + 1.0) / (rows + 2.0),
    )
    return new, value
