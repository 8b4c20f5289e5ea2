"""Kernels for a GPU, written in Pallas and compiled by Triton: what they have in common, and one.

A kernel saves passes over memory that XLA would make. It stands for a plain computation, which
every other device takes, and which has its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

LEAST_ROWS = 4096
"""Of a table that is worth a kernel."""
INTERPRETED = False
"""Whether a kernel is only imitated, as tests on a CPU do."""
SIDE, DEPTH = 128, 64
"""Of the blocks of a product: rows and columns, and terms that tensor cores add up alone."""


def in_kernels(table: Array) -> bool:
    """Whether a kernel is used: in float32, for many rows, on NVIDIA's GPUs since Ampere."""
    if jax.default_backend() != "gpu" or table.dtype != jnp.float32 or len(table) < LEAST_ROWS:
        return False
    generation = str(getattr(jax.devices()[0], "compute_capability", "8.0"))
    recent = generation.replace(".", "").isdigit() and float(generation) >= 8.0
    # JAX 0.12 announces that it will do without Triton: then as on any other device.
    return recent and find_spec("jax.experimental.pallas.triton") is not None


def run_kernel(
    kernel: Callable, grid: tuple[int, ...], out: list[tuple], how: tuple[int, int], *args: Array
) -> Any:
    """Call a kernel on references to whole arrays, once for each place of a grid.

    :param out: shape and kind of each array that it makes.
    :param how: number of warps, and of stages of a loop that overlap.
    """
    # To import Pallas takes a third of a second, which a CPU can do without.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    whole = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[whole] * len(args),
        out_specs=[whole] * len(out),
        out_shape=[jax.ShapeDtypeStruct(*x) for x in out],
        compiler_params=triton.CompilerParams(num_warps=how[0], num_stages=how[1]),
        interpret=INTERPRETED,
    )
    return call(*args)


def standing_for(plain: Callable, kernel: Callable, *args: Array) -> Any:
    """What a kernel gives, with the derivatives of the plain computation."""
    both = jax.custom_jvp(kernel)
    both.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return both(*args)


def power_below(x: Array) -> Array:
    bits = lax.bitcast_convert_type(jnp.maximum(x, 1e-30), jnp.int32)
    return lax.bitcast_convert_type(bits & jnp.int32(0x7F800000), jnp.float32)


def split(x: Array) -> tuple[Array, Array]:
    """Two halves, the larger first, as of `products.halves`, by operations that Triton has."""
    bits = lax.bitcast_convert_type(x, jnp.int32) + jnp.int32(0x1000)
    high = lax.bitcast_convert_type(bits & jnp.int32(-0x2000), jnp.float32)
    return high.astype(jnp.float16), (x - high).astype(jnp.float16)


def dot(left: Array, right: Array, axis: int) -> Array:
    over = (((1,), (axis,)), ((), ()))
    return lax.dot_general(left, right, over, preferred_element_type=jnp.float32)


def multiply_halves(left: tuple, right: tuple, scale: Array, other: Array) -> Array:
    """The product (n, m) of factors in halves, (n, K) and (m, K), by a scale of each row of both.

    :param left: as `right`, of a whole number of `DEPTH` terms, which tensor cores add up: these
        sums are added up in float32, without a pass over memory.
    """
    from jax.experimental import pallas as pl

    (num_rows, terms), num_columns = left[0].shape, len(right[0])

    def multiply(a_ref: Any, c_ref: Any, b_ref: Any, d_ref: Any, *refs: Any) -> None:
        # The last blocks may overlap those before: all have one size.
        rows, columns = (
            pl.ds(jnp.minimum(pl.program_id(axis) * SIDE, length - SIDE), SIDE)
            for axis, length in ((1, num_rows), (0, num_columns))
        )
        scale = refs[0][rows][:, None]

        def add(i: Array, total: Array) -> Array:
            some = pl.ds(i * DEPTH, DEPTH)
            high, low = a_ref[rows, some], c_ref[rows, some]
            first, second = b_ref[columns, some], d_ref[columns, some]
            part = dot(low, first, 1) + dot(high, second, 1) + dot(high, first, 1)
            return total + part * scale  # the scale keeps Triton from adding up on tensor cores

        total = lax.fori_loop(0, terms // DEPTH, add, jnp.zeros((SIDE, SIDE), jnp.float32))
        refs[2][rows, columns] = total * refs[1][columns][None, :]

    grid = -(-num_columns // SIDE), -(-num_rows // SIDE)
    out = [((num_rows, num_columns), jnp.float32)]
    return run_kernel(multiply, grid, out, (8, 3), *left, *right, scale, other)[0]
