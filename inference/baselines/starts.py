"""Where a chain begins: at the best of several climbs.

With latents summed out, the posterior of a program with hidden units has modes in which two units
share one cause and a third has none. They hold next to no mass, but whatever starts there at random
stays (`latentbits calibrate binary_sparse_coding` counts the trials in which a sampler sticks). A
climb is cheap beside a chain, so several are made, and the chain begins where the density is
highest. Warm-up then takes it from the mode into the bulk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from numpyro.infer import init_to_uniform
from numpyro.infer.util import initialize_model

from ..reading.anatomy import Anatomy
from ..reading.handlers import marginal
from ..types import Params

NUM_CLIMBS = 24
"""On a noisy-OR network most climbs end in a lesser mode, where chains would stay."""
NUM_STEPS = 150
STEP_SIZE = 0.6
"""Of Adam, at first: a sixth of it leaves most climbs half-way."""
RADIUS = 0.5
"""Of the box about nought where climbs begin, unconstrained: from one as wide as NumPyro's own, 2,
fewer find the top of a noisy-OR network or a combination machine."""


def differentiable(model: Callable, anatomy: Anatomy) -> Callable:
    """The program without discrete latents: as it is, or with them summed out."""
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    return marginal(model, plate=anatomy.plate) if discrete else model


def good_start(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict[str, Any]
) -> Callable[[Array], Params] | None:
    """A function from a key to unconstrained parameters; None where a random start does.

    >>> from latentbits.inference.reading.anatomy import inspect
    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.5, (30, 4)).astype(float)
    >>> kwargs = {"num_components": 2}
    >>> anatomy = inspect(bernoulli_mixture, (data,), kwargs)
    >>> start = good_start(bernoulli_mixture, anatomy, (data,), kwargs)
    >>> {x: v.shape for x, v in sorted(jax.jit(start)(random.key(1)).items())}
    {'mixing': (1,), 'probs': (2, 4)}
    """
    program = differentiable(model, anatomy)
    if program is model:
        return None  # nothing was summed out: a joint density of factors is no place to climb
    optimiser = optax.adam(optax.cosine_decay_schedule(STEP_SIZE, NUM_STEPS))

    def start(key: Array) -> Params:
        info = initialize_model(
            random.split(key, NUM_CLIMBS), program, init_strategy=init_to_uniform(radius=RADIUS),
            model_args=args, model_kwargs=kwargs, validate_grad=False,
        )  # fmt: skip
        slope = jax.value_and_grad(info.potential_fn)

        def step(carry: tuple[Params, Any], _: None) -> tuple[tuple[Params, Any], Array]:
            place, memory = carry
            value, gradient = slope(place)
            move, memory = optimiser.update(gradient, memory)
            return (optax.apply_updates(place, move), memory), value

        def climb(place: Params) -> tuple[Params, Array]:
            (place, _), values = lax.scan(step, (place, optimiser.init(place)), None, NUM_STEPS)
            return place, values[-1]

        places, values = jax.vmap(climb)(info.param_info.z)
        best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return jax.tree.map(lambda x: x[best], places)

    return start
