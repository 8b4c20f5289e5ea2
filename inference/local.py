"""The log joint of one datum as a function of its latents, and its quadratic form by autodiff.

What the papers derive by hand is read off here. For latents s of datum n,

    log p(y_n, s) = c_n + b_n·s + ½ sᵀ A_n s

holds for many programs (linear superposition with Gaussian noise, a bounded logistic, the
combination machine, where A = 0). Then c, b, A are the value, gradient and Hessian at s = 0, and a
state costs a few multiplications instead of a run of the program. Whether it holds is tested on
random states, in float64, and never assumed; where it does not hold the program is run.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers

from inference.anatomy import Anatomy, ProgramError, inspect
from inference.bounds import unmasked
from inference.handlers import states
from inference.rows import Arguments, Rows

Params = dict[str, Array]


def log_joint(
    model: Callable, anatomy: Anatomy, params: Params, bits: Array, arguments: Arguments
) -> Array:
    """log p(y_n, s) of every candidate state for every datum.

    :param bits: states (S, num_data or 1, num_bits).
    :return: (S, num_data). Priors of parameters are not part of it.
    """
    args, kwargs = arguments
    values = anatomy.unpack(bits)
    program = handlers.substitute(states(model, values), data=params)
    with handlers.block():
        trace = handlers.trace(program).get_trace(*args, **kwargs)
    total: Array | float = 0.0
    scale = trace[anatomy.latents[0].name]["scale"] if anatomy.latents else None
    for site in trace.values():
        if site["type"] != "sample":
            continue
        if all(frame.name != anatomy.plate for frame in site["cond_indep_stack"]):
            continue
        # A row that is masked as a whole sits at its prior: see `marginal`.
        fn = unmasked(site["fn"]) if site["name"] in values else site["fn"]
        part = anatomy.per_datum(fn.log_prob(site["value"]))
        # What the whole datum is scaled by (a subsampled plate) is outside the exponent.
        if site["scale"] is not None and site["scale"] is not scale:
            part = part * (site["scale"] / (1.0 if scale is None else scale))
        total = total + part
    return jnp.asarray(total)


def log_prior(model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments) -> Array:
    """Sum of the log prior densities of the parameters."""
    args, kwargs = arguments
    with handlers.block(), handlers.seed(rng_seed=0):
        trace = handlers.trace(handlers.substitute(model, data=params)).get_trace(*args, **kwargs)
    sites = [trace[name] for name in anatomy.parameters if trace[name]["type"] == "sample"]
    return sum((jnp.sum(site["fn"].log_prob(site["value"])) for site in sites), jnp.zeros(()))


class Structure(Enum):
    """How the log joint of a datum depends on its latents."""

    SHARED = "quadratic, one Hessian for all data"
    PER_DATUM = "quadratic, a Hessian for each datum"
    GENERAL = "not quadratic"


def linear_part(function: Callable[[Array], Array], zero: Array) -> tuple[Array, Array]:
    """Value (num_data,) and gradient (num_data, num_bits) at zero of a function of rows."""
    value, pullback = jax.vjp(function, zero)
    return value, pullback(jnp.ones_like(value))[0]


def hessians(function: Callable[[Array], Array], zero: Array) -> Array:
    """Hessian of each row's function at zero, (num_data, num_bits, num_bits).

    One forward pass over the gradient for each bit; rows do not interact, so one pass serves all.
    """
    gradient = jax.grad(lambda x: function(x).sum())
    directions = jnp.eye(zero.shape[-1], dtype=zero.dtype)
    column = lambda e: jax.jvp(gradient, (zero,), (jnp.broadcast_to(e, zero.shape),))[1]  # noqa: E731
    return jax.vmap(column, out_axes=-1)(directions)


def row_function(
    model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments
) -> Callable[[Array], Array]:
    """log p(y_n, s_n) as a function of real-valued latents (num_data, num_bits)."""
    return lambda bits: log_joint(model, anatomy, params, bits[None], arguments)[0]


def find_structure(model: Callable, anatomy: Anatomy, rows: Rows) -> Structure:
    """Test on random parameters, rows and states whether the log joint is quadratic.

    The rows are stand-ins like the data but never equal to each other, masks among them at random:
    the form is a property of the program, not of the values that happen to be passed.
    """
    if not anatomy.binary:
        return Structure.GENERAL
    num_rows = min(rows.num_data, 5)
    # Also inside a trace the test is made at once. Shapes alone are found before: what is known at
    # compile time would be computed, operation by operation, for nothing.
    with jax.enable_x64(True):
        with jax.ensure_compile_time_eval():
            leaves = [stand_in(x, num_rows, i) for i, x in enumerate(rows.leaves)]
        few = inspect(model, *rows.join(leaves), sites=anatomy.names, plate=anatomy.plate)
        if few.num_data != num_rows:
            raise ProgramError(
                f"the plate {anatomy.plate!r} has {few.num_data} rows when {num_rows} are given: "
                "take its size from the data (len(data)), so that a chunk is a smaller plate"
            )
        with jax.ensure_compile_time_eval():
            return _examine(model, few, rows, leaves)


def _examine(model: Callable, anatomy: Anatomy, rows: Rows, leaves: list[Array]) -> Structure:
    shape = (32, anatomy.num_data, anatomy.num_bits)

    # Compiled as one: run operation by operation it would take many seconds. It runs three times on
    # a few numbers, so that optimising it would take longer than it ever saves.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def errors(key: Array, leaves: list[Array]) -> tuple[Array, Array]:
        arguments = rows.join(leaves)
        key_params, key_bits, key_rate = random.split(key, 3)
        bits = random.uniform(key_bits, shape) < random.uniform(key_rate, (32, 1, 1))
        params = prior_draw(model, anatomy, key_params, arguments)
        params = {k: v.astype(jnp.result_type(float)) for k, v in params.items()}
        direct = log_joint(model, anatomy, params, bits.astype(jnp.int32), arguments)
        function = row_function(model, anatomy, params, arguments)
        zero = jnp.zeros(shape[1:])
        constant, linear = linear_part(function, zero)
        quadratic = hessians(function, zero)
        s = bits.astype(zero.dtype)
        read = constant + jnp.einsum("snh,nh->sn", s, linear)
        read = read + 0.5 * jnp.einsum("snh,nhk,snk->sn", s, quadratic, s)
        spread = 1.0 + jnp.abs(direct - constant).max()
        size = jnp.abs(quadratic).max()
        uneven = jnp.abs(quadratic - quadratic[:1]).max()
        return jnp.abs(read - direct).max() / spread, uneven / jnp.where(size > 0, size, 1.0)

    try:
        trials = [errors(random.key(seed), leaves) for seed in range(3)]
    except TypeError:
        return Structure.GENERAL  # the program needs whole numbers (it indexes with its latents)
    if not all(error <= 1e-6 for error, _ in trials):  # also when NaN
        return Structure.GENERAL
    same = all(uneven <= 1e-9 for _, uneven in trials)
    return Structure.SHARED if same else Structure.PER_DATUM


def prior_draw(model: Callable, anatomy: Anatomy, key: Array, arguments: Arguments) -> Params:
    """One draw of the parameters from their priors."""
    args, kwargs = arguments
    with handlers.block():
        trace = handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
    return {name: trace[name]["value"] for name in anatomy.parameters}


def stand_in(leaf: Any, num_rows: int, seed: int) -> Array:
    """A few rows like those of `leaf`, but no two alike: the form must not hang on their values."""
    generator = np.random.default_rng(seed)
    shape = (num_rows, *leaf.shape[1:])
    if jnp.issubdtype(leaf.dtype, jnp.bool_):
        return jnp.asarray(generator.random(shape) < 0.5)
    known = not isinstance(leaf, jax.core.Tracer)
    chosen = np.linspace(0, leaf.shape[0] - 1, num_rows).astype(int)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        values = np.asarray(leaf[chosen], np.float64) if known else generator.normal(size=shape)
        return jnp.asarray(values * generator.uniform(0.5, 1.5, shape))
    whole = np.asarray(leaf[chosen]) if known else generator.integers(0, 2, shape)
    return jnp.asarray(whole).astype(leaf.dtype)
