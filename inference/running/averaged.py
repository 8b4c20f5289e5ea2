"""The mean of the parameters over the last steps of a method whose steps are random."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..types import Params
from .algorithm import Algorithm


class Averaging(NamedTuple):
    """Where the method stands, and the mean of where it stood."""

    inner: Any
    mean: Params
    step: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Averaged(Algorithm):
    """A method by the mean of its parameters from step `after` on (Polyak & Juditsky 1992).

    Parameters that are re-estimated from drawn states move about the optimum for ever; their mean
    comes to rest there.
    """

    method: Any
    after: int
    model: Callable = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.method.model)

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
