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
from functools import partial
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
    """Several climbs from random places, in parts that a clock can end; called, all at once."""

    begin: Callable[[Array], Any]  # a key -> where the climbs are, and how they move
    advance: Callable[[Any, Any], Any]  # so many steps of all of them
    best: Callable[[Any], Params]  # the highest place, unconstrained

    def __call__(self, key: Array) -> Params:
        return self.best(self.advance(self.begin(key), NUM_STEPS))


def climbs_of(
    model: Callable, anatomy: Anatomy
) -> Callable[[tuple, dict[str, Any]], Climbs | None] | None:
    """`good_start` as a function of the arguments, or None where it would give none."""
    if differentiable(model, anatomy) is model:
        return None
    return partial(good_start, model, anatomy)


def good_start(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict[str, Any]
) -> Climbs | None:
    """Climbs from a key to unconstrained parameters; None where a random start does."""
    program = differentiable(model, anatomy)
    if program is model:
        return None  # nothing was summed out: a joint density of factors is no place to climb
    import optax  # where it is used: a fit of another method need not wait for it

    optimiser = optax.adam(optax.cosine_decay_schedule(STEP_SIZE, NUM_STEPS))

    def open_at(keys: Array) -> Any:
        return initialize_model(
            keys, program, init_strategy=init_to_uniform(radius=RADIUS),
            model_args=args, model_kwargs=kwargs, validate_grad=False,
        )  # fmt: skip

    def begin(key: Array) -> tuple[Params, Any, Array]:
        places = open_at(random.split(key, NUM_CLIMBS)).param_info.z
        return places, jax.vmap(optimiser.init)(places), jnp.full(NUM_CLIMBS, jnp.inf)

    def advance(climbs: tuple[Params, Any, Array], count: Any) -> tuple[Params, Any, Array]:
        # Of where this one begins nothing is used: the compiler leaves it out.
        slope = jax.value_and_grad(open_at(random.key(0)).potential_fn)

        def step(place: Params, memory: Any) -> tuple[Params, Any, Array]:
            value, gradient = slope(place)
            move, memory = optimiser.update(gradient, memory)
            return optax.apply_updates(place, move), memory, value

        return lax.fori_loop(0, count, lambda _, x: jax.vmap(step)(*x[:2]), climbs)

    def best(climbs: tuple[Params, Any, Array]) -> Params:
        places, _, values = climbs
        place = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return jax.tree.map(lambda x: x[place], places)

    return Climbs(begin, advance, best)


CLIMBING = 0.25
"""Share of a budget that climbs may take."""


def climb(
    start: Callable[[tuple, dict[str, Any]], Any],
    device: OneDevice,
    keys: Array,
    budget: float | None,
    memory: float | None,
) -> tuple[Params, float, float]:
    """Where chains begin, the seconds of a gradient for all of them, and those of the climbs."""

    def begin(keys: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        return jax.vmap(start(args, kwargs).begin)(keys)

    def advance(climbs: Any, count: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        # Those of one chain after those of another: all at once take three quarters of a gigabyte
        # on a network of ten causes.
        return each(lambda one: start(args, kwargs).advance(one, count))(climbs)

    def best(climbs: Any, args: tuple, kwargs: dict[str, Any]) -> Params:
        return jax.vmap(start(args, kwargs).best)(climbs)

    def make() -> tuple[Any, Any, Any]:
        begins = lower(begin, device, keys)
        climbs = results(begins)
        return begins, lower(advance, device, climbs, np.int32(1)), lower(best, device, climbs)

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
