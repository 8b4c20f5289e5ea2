"""A method by the best of several starts, or by the mean of its last steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from ..reading.anatomy import inspect
from ..reading.log_joint import prior_draw
from ..types import Params
from .algorithm import Algorithm
from .contract import Starts
from .search import best_of


class RestartState(NamedTuple):
    """The states of all starts, and the loss that each had last."""

    states: Any  # a leading axis of num_starts
    losses: Array  # (num_starts,)


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped(Algorithm):
    """A method that is made of another one."""

    method: Any
    model: Callable = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.method.model)
        object.__setattr__(self, "window", self.method.window)


@dataclasses.dataclass(frozen=True, eq=False)
class Restarts(Wrapped):
    """A method from several starts at once, by `vmap`; its parameters are those of least loss.

    One that starts where the data say (`Starts.DATA`) does so once; its further starts are draws
    from the prior, for from the same place all would agree.

    :param method: any method whose steps are pure.
    :param num_starts: how many; each has a key of its own.
    """

    num_starts: int

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> RestartState:
        def start(key: Array, params: Params | None = init_params) -> Any:
            return self.method.init(key, *args, init_params=params, **kwargs)

        keys = random.split(rng_key, self.num_starts)
        if init_params is None and self.method.starts is Starts.DATA and self.num_starts > 1:
            anatomy = inspect(self.model, args, kwargs, plate=getattr(self.method, "plate", None))
            draw = lambda key: prior_draw(self.model, anatomy, key, (args, kwargs))  # noqa: E731
            others = jax.vmap(lambda key: start(key, draw(random.fold_in(key, 1))))(keys[1:])
            first = start(keys[0])
            states = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), first, others)
        else:
            states = jax.vmap(start)(keys)
        return RestartState(states, jnp.zeros(self.num_starts))

    def update(self, state: RestartState, *args: Any, **kwargs: Any) -> tuple[RestartState, Array]:
        step = jax.vmap(lambda one: self.method.update(one, *args, **kwargs))
        states, losses = step(state.states)
        # A start that has gone astray has lost; the others go on.
        losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
        return RestartState(states, losses.astype(state.losses.dtype)), losses.min()

    def get_params(self, state: RestartState) -> Params:
        return self.method.get_params(best_of(state.states, state.losses))


class Averaging(NamedTuple):
    """Where the method stands, and the mean of where it stood."""

    inner: Any
    mean: Params
    step: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Averaged(Wrapped):
    """A method by the mean of its parameters from step `after` on (Polyak & Juditsky 1992).

    Parameters that are re-estimated from drawn states move about the optimum for ever; their mean
    comes to rest there.
    """

    after: int

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> Averaging:
        return self.begin(self.method.init(rng_key, *args, init_params=init_params, **kwargs))

    def begin(self, inner: Any) -> Averaging:
        """The state to go on with from where the method stands."""
        return Averaging(inner, self.method.get_params(inner), jnp.zeros((), int))

    def update(self, state: Averaging, *args: Any, **kwargs: Any) -> tuple[Averaging, Array]:
        inner, loss = self.method.update(state.inner, *args, **kwargs)
        rate = 1.0 / jnp.maximum(state.step + 1.0 - self.after, 1.0)
        new = self.method.get_params(inner)
        mean = jax.tree.map(lambda old, new: old + rate * (new - old), state.mean, new)
        return Averaging(inner, mean, state.step + 1), loss

    def get_params(self, state: Averaging) -> Params:
        return state.mean
