"""Where a chain begins: at the best of several climbs.

With latents summed out, the posterior of a program with hidden units has modes in which two units
share one cause and a third has none. They hold next to no mass, but whatever starts there at random
stays (`latentbits calibrate binary_sparse_coding` counts the trials in which a sampler sticks). A
climb is cheap beside a chain, so several are made, and the chain begins where the density is
highest. Warm-up then takes it from the mode into the bulk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro import handlers
from numpyro.infer import init_to_uniform
from numpyro.infer.util import initialize_model, log_density

from ..reading.anatomy import Anatomy
from ..reading.marginal import marginal
from ..rows.devices import OneDevice
from ..running.memory import check_fits
from ..running.search import each
from ..types import Params
from .pacing import Budget, in_blocks, kept, lower, results, timed

NUM_CLIMBS = 24
"""On a noisy-OR network most climbs end in a lesser mode, where chains would stay."""
NUM_STEPS = 150
STEP_SIZE = 0.6
"""Of Adam, at first: a sixth of it leaves most climbs half-way."""
RADIUS = 0.5
"""Of the box about zero where climbs begin, unconstrained: from one as wide as NumPyro's own, 2,
fewer find the top of a noisy-OR network or a combination machine."""


def differentiable(model: Callable, anatomy: Anatomy) -> Callable:
    """The program without discrete latents: as it is, or with them summed out."""
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    return marginal(model, plate=anatomy.plate) if discrete else model


@dataclass(frozen=True)
class Climbs:
    """Several climbs for each chain, from random places by Adam, in parts that a clock can end."""

    model: Callable
    anatomy: Anatomy

    def __call__(self, key: Array, args: tuple, kwargs: dict[str, Any]) -> Params:
        """Where one chain begins, by all steps at once."""
        climbs = self.begin(key[None], args, kwargs)
        ends = self.best(self.advance(climbs, NUM_STEPS, args, kwargs), args, kwargs)
        return jax.tree.map(lambda x: x[0], ends)

    def begin(self, keys: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Where the climbs of each chain are, unconstrained, and how they move."""

        def one(key: Array) -> tuple[Params, Any, Array]:
            places = self._open(random.split(key, NUM_CLIMBS), args, kwargs).param_info.z
            return places, jax.vmap(_optimiser().init)(places), jnp.full(NUM_CLIMBS, jnp.inf)

        return jax.vmap(one)(keys)

    def advance(self, climbs: Any, count: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """So many steps of all climbs."""
        import optax  # where it is used: a fit of another method need not wait for it

        # Of where this one begins nothing is used: the compiler leaves it out.
        slope = jax.value_and_grad(self._open(random.key(0), args, kwargs).potential_fn)
        optimiser = _optimiser()

        def step(place: Params, memory: Any) -> tuple[Params, Any, Array]:
            value, gradient = slope(place)
            move, memory = optimiser.update(gradient, memory)
            return optax.apply_updates(place, move), memory, value

        def one(climbs: tuple[Params, Any, Array]) -> tuple[Params, Any, Array]:
            return lax.fori_loop(0, count, lambda _, x: jax.vmap(step)(*x[:2]), climbs)

        # Those of one chain after those of another: all at once take three quarters of a gigabyte
        # on a network of ten causes.
        return each(one)(climbs)

    def best(self, climbs: Any, args: tuple, kwargs: dict[str, Any]) -> Params:
        """The highest place of each chain."""
        del args, kwargs

        def one(places: Params, values: Array) -> Params:
            place = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
            return jax.tree.map(lambda x: x[place], places)

        return jax.vmap(one)(climbs[0], climbs[2])

    def _open(self, keys: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        return initialize_model(
            keys, differentiable(self.model, self.anatomy), model_args=args, model_kwargs=kwargs,
            init_strategy=init_to_uniform(radius=RADIUS), validate_grad=False,
        )  # fmt: skip


def _optimiser() -> Any:
    import optax

    return optax.adam(optax.cosine_decay_schedule(STEP_SIZE, NUM_STEPS))


def climbs_of(model: Callable, anatomy: Anatomy) -> Climbs | None:
    """Climbs of the program; None where nothing is summed out: a joint density of factors is no
    place to climb, and a random start does."""
    return None if differentiable(model, anatomy) is model else Climbs(model, anatomy)


CLIMBING = 0.25
"""Share of a budget that climbs may take."""


def climb(
    start: Climbs, device: OneDevice, keys: Array, budget: float | None, memory: float | None
) -> tuple[Params, float, float]:
    """Where chains begin, the seconds of a gradient for all of them, and those of the climbs."""

    def make() -> tuple[Any, Any, Any]:
        begins = lower(start.begin, device, keys)
        climbs = results(begins)
        on = lower(start.advance, device, climbs, np.int32(1))
        return begins, on, lower(start.best, device, climbs)

    first, on, last = kept(make, device, keys, start)
    check_fits(on, memory, "a step of its climbs")
    climbs, ran = timed(first, device, keys)
    timer = Budget(None if budget is None else max(CLIMBING * budget - ran, 0.0))
    go_on = lambda climbs, count: (on(device.arrays, climbs, count), ())  # noqa: E731
    course = in_blocks(go_on, climbs, NUM_STEPS, timer, NUM_STEPS, least=1)
    seconds = course.seconds[-1]
    gradient = seconds / course.done / NUM_CLIMBS
    return last(device.arrays, course.state), gradient, ran + seconds


def seconds_of_gradient(program: Callable, device: OneDevice, keys: Array) -> float:
    """Seconds of a gradient for all chains."""

    def slope(keys: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        opened = initialize_model(
            keys, program, model_args=args, model_kwargs=kwargs, validate_grad=False
        )
        return jax.vmap(jax.value_and_grad(opened.potential_fn))(opened.param_info.z)

    return _seconds_of(slope, device, keys)


def seconds_of_reading(model: Callable, device: OneDevice, keys: Array) -> float:
    """Seconds of one run of the program for all chains."""

    def read(keys: Array, args: tuple, kwargs: dict[str, Any]) -> Array:
        one = lambda key: log_density(handlers.seed(model, key), args, kwargs, {})[0]  # noqa: E731
        return jax.vmap(one)(keys)

    return _seconds_of(read, device, keys)


def _seconds_of(function: Callable, device: OneDevice, keys: Array) -> float:
    """Of the second of two runs."""
    compiled = kept(lambda: lower(function, device, keys), device, keys, function)
    timed(compiled, device, keys)
    return timed(compiled, device, keys)[1]
