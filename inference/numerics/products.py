"""Matrix products with the digits of float32 on the tensor cores of a GPU.

Tensor cores multiply numbers of 11 bits, sixteen times as many in a second as there are products of
float32. A number of float32 is the sum of two such halves, but for its last bit, and of the four
products of halves the least is below the rounding of float32:

    a b = a₁ b₁ + (a₁ b₂ + a₂ b₁) + a₂ b₂,   a₂ b₂ ≤ 2⁻²⁴ a b.

Powers of two that are taken out first keep halves inside the exponents of float16. When they add
up, tensor cores cut digits off instead of rounding: sums of a₁ b₁ are therefore short, and added up
in float32, for many rows in a kernel. On other devices, and in float64, these are plain products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.dtypes import float0
from jax.extend.core import Literal

from . import kernels

TERMS = 352
"""Of a sum that tensor cores add up alone: then as exact as float32."""
ROWS = 512
"""The same where the sums of all blocks are kept side by side."""
MANY_ROWS = 10_000
"""The same of terms that are 2⁻¹¹ of others."""
LEAST = 1 << 28
"""Multiplications below which a product is too small to be split."""


def powers(x: Array, axis: int, largest: Any = None) -> Array:
    """Powers of two that bring numbers into the range of float16, constant along an axis.

    :param largest: what they are known not to exceed in magnitude.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.ones((1, 1), jnp.float32)
    size = jnp.abs(x).max(axis, keepdims=True) if largest is None else jnp.reshape(largest, (1, 1))
    bits = lax.bitcast_convert_type(jnp.maximum(size, 1e-30).astype(jnp.float32), jnp.uint32)
    power = lax.bitcast_convert_type(bits & jnp.uint32(0x7F800000), jnp.float32)
    return 2.0**14 / power


def halves(x: Array, power: Array) -> tuple[Array, Array | None]:
    """x · power in two parts of float16, the larger first; one for whole numbers, of bits say."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.float16), None
    x = x * power
    # Not a conversion there and back, which XLA would leave out.
    high = lax.reduce_precision(x, 5, 10)
    return high.astype(jnp.float16), (x - high).astype(jnp.float16)


def in_halves(*factors: Array, terms: int) -> bool:
    """Whether a product is made of halves: on a GPU, in float32, and if it is large."""
    kinds = {x.dtype for x in factors if jnp.issubdtype(x.dtype, jnp.floating)}
    sides = [x.size // terms for x in factors]
    large = min(sides) >= 32 and np.prod(sides, dtype=float) * terms >= LEAST
    return jax.default_backend() == "gpu" and kinds == {jnp.dtype("float32")} and bool(large)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def product(left: Array, right: Array, largest: float | None = None) -> Array:
    """left (n, K) times right (m, K), transposed: (n, m), in the precision of float32.

    :param left: factors of whole numbers must be so small that 11 bits hold them.
    :param largest: what the left factor is known not to exceed in magnitude.

    >>> product(jnp.array([[1.0, 2.0]]), jnp.array([[3, 4], [0, 1]])).tolist()
    [[11.0, 2.0]]
    """
    made = in_halves(left, right, terms=left.shape[1])
    return by_halves(left, right, largest) if made else _plain(left, right)


def by_halves(left: Array, right: Array, largest: Any = None) -> Array:
    terms, columns = left.shape[1], len(right)
    if left.dtype == right.dtype and columns >= kernels.SIDE and kernels.in_kernels(left):
        power, other = powers(left, 1, largest), powers(right, 1)
        whole = ((0, 0), (0, -terms % kernels.DEPTH))
        a, b = (halves(jnp.pad(x, whole), y) for x, y in ((left, power), (right, other)))
        scale = jnp.broadcast_to(1.0 / power[:, 0], len(left))
        return kernels.multiply_halves(a, b, scale, 1.0 / other[:, 0])
    return _by_library(left, right, largest)


def _by_library(left: Array, right: Array, largest: Any) -> Array:
    terms, columns = left.shape[1], len(right)
    parts = -(-terms // TERMS)
    size = -(-terms // (8 * parts)) * 8  # as tensor cores want them
    right = jnp.pad(right, ((0, -columns % 8), (0, 0)))
    power, other = powers(left, 1, largest), powers(right, 1)
    cut = [slice(i * size, min((i + 1) * size, terms)) for i in range(parts)]
    wide = [((0, 0), (0, size - (x.stop - x.start))) for x in cut]
    # Each part is split by itself: parts of what is split already would be copied.
    a = [halves(jnp.pad(left[:, x], w), power) for x, w in zip(cut, wide, strict=True)]
    b = [halves(jnp.pad(right[:, x], w), other) for x, w in zip(cut, wide, strict=True)]
    small = [(x[1], y[0]) for x, y in zip(a, b, strict=True) if x[1] is not None]
    small += [(x[0], y[1]) for x, y in zip(a, b, strict=True) if y[1] is not None]
    large = [(x[0], y[0]) for x, y in zip(a, b, strict=True)]
    # What is small comes first: digits of it are below those that are cut off later.
    total = _joined([*small, large[0]])
    for pair in large[1:]:
        total = total + _dot(*pair)
    return (total * (1.0 / power) * (1.0 / other).T)[:, :columns]


def _joined(pairs: list[tuple[Array, Array]]) -> Array:
    return _dot(*(jnp.concatenate(x, 1) for x in zip(*pairs, strict=True)))


@product.defjvp
def _product_jvp(largest: float | None, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (left, right), (up, down) = primals, tangents
    changes = [(x, y) for x, y in ((up, right), (left, down)) if float0 not in (x.dtype, y.dtype)]
    value = product(left, right, largest)
    return value, sum((_plain(*x) for x in changes), jnp.zeros_like(value))


def sum_by_halves(left: Array, right: Array, largest: Any = None) -> Array:
    """leftᵀ right, (A, B), of factors (n, A) and (n, B)."""
    shape = left.shape[1], right.shape[1]
    many = -(-len(left) // MANY_ROWS)
    blocks = many * -(-len(left) // (many * ROWS))
    lacking = -(-len(left) // (8 * blocks)) * 8 * blocks - len(left)
    power, other = powers(left, 0, largest), powers(right, 0)
    pad = lambda x: jnp.pad(x, ((0, lacking), (0, -x.shape[1] % 8)))  # noqa: E731
    a, b = (
        tuple(x if x is None else pad(x) for x in y)
        for y in (halves(left, power), halves(right, other))
    )

    def sums(x: Array | None, y: Array | None, blocks: int) -> Array | float:
        if x is None or y is None:
            return 0.0
        x, y = (z.reshape(blocks, -1, z.shape[1]) for z in (x, y))
        total = _dot(x, y, ((1,), (1,)), ((0,), (0,))).sum(0)
        return total[: shape[0], : shape[1]]

    rest = sums(a[1], b[0], many) + sums(a[0], b[1], many)
    return (sums(a[0], b[0], blocks) + rest) * (1.0 / power).T * (1.0 / other)


def _dot(left: Array, right: Array, over: Any = ((1,), (1,)), by: Any = ((), ())) -> Array:
    how = {"precision": lax.Precision.DEFAULT, "preferred_element_type": jnp.float32}
    return lax.dot_general(left, right, (over, by), **how)


def _plain(left: Array, right: Array) -> Array:
    kind = jnp.result_type(left, right, jnp.float32)
    left, right = left.astype(kind), right.astype(kind)
    return jnp.matmul(left, right.T, precision=lax.Precision.HIGHEST)


def on_tensor_cores(function: Callable) -> Callable:
    """The same function, whose large products in the precision of float32 are made of halves.

    So the products of a program are, which does not know of it.
    """
    if jax.default_backend() != "gpu":
        return function

    def run(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        out = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    return run


def _evaluate(closed: Any, args: list[Array]) -> list[Array]:
    jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
    read = lambda x: x.val if isinstance(x, Literal) else values[x]  # noqa: E731
    for step in jaxpr.eqns:
        inputs = [read(x) for x in step.invars]
        if step.primitive.name in ("jit", "pjit"):
            out = _evaluate(step.params["jaxpr"], inputs)
        elif step.primitive is lax.dot_general_p and _fits(inputs, step.params):
            out = [_any_axes(inputs, step.params["dimension_numbers"][0])]
        else:
            how = step.primitive.get_bind_params(step.params)
            functions, params = how if isinstance(how, tuple) else ((), how)  # JAX 0.8, 0.10
            result = step.primitive.bind(*functions, *inputs, **params)
            out = result if step.primitive.multiple_results else [result]
        values.update(zip(step.outvars, out, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _fits(factors: list[Array], params: dict) -> bool:
    over, by = params["dimension_numbers"]
    exact = params["precision"] == (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    if not exact or by[0] or len(over[0]) != 1:
        return False
    return in_halves(*factors, terms=factors[0].shape[over[0][0]])


def _any_axes(factors: list[Array], over: Any) -> Array:
    """The product over one axis of each."""
    ends = [jnp.moveaxis(x, i[0], -1) for x, i in zip(factors, over, strict=True)]
    shape = ends[0].shape[:-1] + ends[1].shape[:-1]
    return product(*(x.reshape(-1, x.shape[-1]) for x in ends)).reshape(shape)
