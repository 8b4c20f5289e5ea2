"""Several starts of a method, run side by side; the best of them is the result."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from ..types import Params
from .algorithm import Algorithm


class RestartState(NamedTuple):
    """The states of all starts, and the loss that each had last."""

    states: Any  # a leading axis of num_starts
    losses: Array  # (num_starts,)


class Restarts(Algorithm):
    """A method from several starts at once, by `vmap`; its parameters are those of least loss.

    :param method: any method whose steps are pure.
    :param num_starts: how many; each has a key of its own.

    >>> from latentbits.inference.methods.discrete.em import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.5, (30, 4)).astype(float)
    >>> four = Restarts(EM(bernoulli_mixture), 4)
    >>> result = four.run(random.key(1), 5, data, num_components=2)
    >>> result.params["probs"].shape, result.state.losses.shape
    ((2, 4), (4,))
    """

    def __init__(self, method: Algorithm, num_starts: int):
        if num_starts < 1:
            raise ValueError(f"num_starts must be at least 1, found {num_starts}")
        self.method, self.num_starts = method, num_starts
        self.model = method.model

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> RestartState:
        def start(key: Array) -> Any:
            return self.method.init(key, *args, init_params=init_params, **kwargs)

        states = jax.vmap(start)(random.split(rng_key, self.num_starts))
        return RestartState(states, jnp.zeros(self.num_starts))

    def update(self, state: RestartState, *args: Any, **kwargs: Any) -> tuple[RestartState, Array]:
        step = jax.vmap(lambda one: self.method.update(one, *args, **kwargs))
        states, losses = step(state.states)
        # A start that has gone astray has lost; the others go on.
        losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
        return RestartState(states, losses.astype(state.losses.dtype)), losses.min()

    def get_params(self, state: RestartState) -> Params:
        best = jnp.argmin(state.losses)
        return self.method.get_params(jax.tree.map(lambda x: x[best], state.states))
