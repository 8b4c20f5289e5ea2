"""The M-step of a program without a closed form: quasi-Newton steps on the same expectation.

The posterior of the old parameters is held fixed while the expected log joint

    Q(θ) = Σ_n Σ_s q_n(s) log p(y_n, s | θ)   [+ log p(θ)]

is raised by L-BFGS with a line search, in the unconstrained space of the parameters, so that the
free energy cannot fall. The data go through in chunks; q is computed anew in each, so that nothing
of size data × states is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro import handlers
from numpyro.distributions.transforms import biject_to

from inference.local import Params, log_prior
from inference.reader import Reader
from inference.rows import Arguments, Rows, sum_over_chunks

Expect = Callable[[Reader, Params, Arguments, Any], Any]


def transforms(reader: Reader, params: Params, arguments: Arguments) -> dict[str, Any]:
    """Site -> the map from the real line to where the parameter lives."""
    args, kwargs = arguments
    with handlers.block(), handlers.seed(rng_seed=0):
        model = handlers.substitute(reader.model, data=params)
        trace = handlers.trace(model).get_trace(*args, **kwargs)
    out = {}
    for name in reader.anatomy.parameters:
        site = trace[name]
        constraint = site["fn"].support if site["type"] == "sample" else None
        if constraint is None:
            constraint = site["kwargs"].get("constraint")
        out[name] = biject_to(constraint) if constraint is not None else (lambda x: x)
    return out


def gradient_step(
    reader: Reader,
    params: Params,
    rows: Rows,
    chunk_size: int,
    weights: Array,
    memory: Any,
    expect: Expect,
    *,
    prior: bool,
    num_steps: int,
) -> Params:
    """New parameters after `num_steps` of L-BFGS on the expected log joint."""
    import optax  # the only place that needs it: closed forms run without

    few = rows.slice(0, 1)
    one = reader.at(1)
    maps = transforms(one, params, few)
    size = min(chunk_size, rows.num_data)
    chunk_reader = reader.at(size)

    def constrain(free: Params) -> Params:
        return {name: maps[name](value) for name, value in free.items()}

    def negative(free: Params, arguments: Arguments, extra: Any, fresh: Array) -> Array:
        weights, memory = extra
        posterior = expect(chunk_reader, params, arguments, memory)
        states, probability = lax.stop_gradient(posterior.weighted())
        new = chunk_reader.log_joint(constrain(free), states, arguments)
        # A state of probability zero may have a log joint of minus infinity: 0 · ∞ is 0 here.
        seen = probability > 0
        terms = jnp.where(seen, probability * jnp.where(seen, new, 0.0), 0.0)
        return -jnp.sum(terms.sum(0) * weights * fresh)

    def value_and_grad(free: Params) -> tuple[Array, Params]:
        part = jax.value_and_grad(negative)
        value, slope = sum_over_chunks(
            lambda *chunk: part(free, *chunk), rows, chunk_size, (weights, memory)
        )
        if prior:
            extra = jax.value_and_grad(
                lambda f: -log_prior(reader.model, one.anatomy, constrain(f), few)
            )
            value, slope = jax.tree.map(jnp.add, (value, slope), extra(free))
        count = jnp.maximum(weights.sum(), 1.0)
        return value / count, jax.tree.map(lambda g: g / count, slope)

    # The line search needs a function whose gradient JAX can take: give it the one above.
    @jax.custom_vjp
    def objective(free: Params) -> Array:
        return value_and_grad(free)[0]

    objective.defvjp(value_and_grad, lambda slope, g: (jax.tree.map(lambda s: g * s, slope),))

    free = {name: _inverse(maps[name], value) for name, value in params.items()}
    optimiser = optax.lbfgs(memory_size=5)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        free, state = carry
        value, slope = optax.value_and_grad_from_state(objective)(free, state=state)
        changes, state = optimiser.update(
            slope, state, free, value=value, grad=slope, value_fn=objective
        )
        return (optax.apply_updates(free, changes), state), None

    (new, _), _ = lax.scan(step, (free, optimiser.init(free)), None, length=num_steps)
    # A line search that found nothing better must not make anything worse.
    better = value_and_grad(new)[0] <= value_and_grad(free)[0]
    chosen = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, free)
    return constrain(chosen)


def _inverse(transform: Any, value: Array) -> Array:
    inverse = getattr(transform, "inv", None) or getattr(transform, "_inverse", None)
    return jnp.asarray(value) if inverse is None else inverse(jnp.asarray(value, float))
