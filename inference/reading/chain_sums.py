"""A chain read outward and back: the evidence of its sequences, and the posterior of its paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..numerics import chain as sums
from .chain import Chain, Link
from .outside import leave, outside


def sum_chain(model: Callable, chain: Chain, args: tuple, kwargs: dict) -> Any:
    """Run the program with its chain summed out: one factor per sequence is left of it.

    The factor has the name of the first observed site of a step. Where nothing is observed the
    program runs as it is, and simulates.
    """
    if not chain.observed:
        return model(*args, **kwargs)
    within = {*chain.names, *chain.observed, *chain.starters, *chain.hidden}
    trace, given, returned = outside(model, within, args, kwargs)
    evidence = sums.evidence(*chain.factors(model, given, (args, kwargs)))
    left = evidence if chain.plates else evidence[0]
    leave(chain.observed[0], left, trace[chain.links[0].name]["scale"])
    return returned


class ChainPosterior(NamedTuple):
    """The posterior of the paths of a chain, given the parameters."""

    chain: Chain
    factors: Array
    start: Array | None

    def draw(self, rng_key: Array) -> dict[str, Array]:
        return self._sites(*sums.paths(self.factors, self.start, rng_key))

    def best(self) -> dict[str, Array]:
        """The most probable path of each sequence: Viterbi's."""
        return self._sites(*sums.paths(self.factors, self.start))

    def probabilities(self) -> dict[str, Array]:
        """Of each value of each latent at each step: (T, ..., num_values)."""
        _, (joined, begin) = sums.statistics(self.factors, self.start)
        length, num_sequences, num_states, _ = joined.shape
        steps = joined.reshape(length, num_sequences, -1, num_states).sum(2)
        probs = self._values(self.chain.links, self._turned(steps))
        return {**self._values(self.chain.start, begin), **probs} if self.chain.start else probs

    def _values(self, links: tuple[Link, ...], states: Array) -> dict[str, Array]:
        """Probabilities of states (..., N, S) as those of each latent's values."""
        table, place, probs = jnp.asarray(self.chain.table(links)), 0, {}
        for link in links:
            labels = table[:, place : place + link.size]
            hot = (labels[..., None] == jnp.arange(link.num_values)).astype(states.dtype)
            each = jnp.einsum("...ns,sik->k...ni", states, hot)
            probs[link.name] = jnp.moveaxis(link.place(each, self.chain.sizes), 0, -1)
            place += link.size
        return probs

    def _sites(self, codes: Array, begin: Array) -> dict[str, Array]:
        values = self.chain.values(self.chain.links, self._turned(codes))
        return (
            {**self.chain.values(self.chain.start, begin), **values} if self.chain.start else values
        )

    def _turned(self, steps: Array) -> Array:
        return steps[::-1] if self.chain.reverse else steps
