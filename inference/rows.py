"""The rows of a program's arguments: what to slice when a chunk of the data is read.

An argument belongs to the rows if it is an array whose leading axis is as long as the data plate.
A chunk of the data is then the same program with those arguments sliced: a smaller plate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from inference.anatomy import Anatomy, ProgramError

Arguments = tuple[tuple, dict[str, Any]]


class Rows(NamedTuple):
    """The arguments of a program, and how to take some of their rows."""

    leaves: tuple  # arrays with a leading axis of num_data
    rest: tuple  # everything else, None where a leaf stands
    tree: Any
    num_data: int

    def slice(self, start: Array | int, size: int) -> Arguments:
        """The arguments with rows start to start + size (clipped to the end of the data)."""
        if size == self.num_data:
            return self.join(self.leaves)
        return self.join([lax.dynamic_slice_in_dim(x, start, size) for x in self.leaves])

    def join(self, leaves: Any) -> Arguments:
        taken = iter(leaves)
        merged = [next(taken) if x is None else x for x in self.rest]
        return jax.tree.unflatten(self.tree, merged)


def rows_of(
    anatomy: Anatomy, args: tuple, kwargs: dict, by_row: tuple[bool, ...] | None = None
) -> Rows:
    """Find the arguments that have one entry per datum, unless `by_row` says which they are."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    num_data = anatomy.num_data
    mine = by_row or [hasattr(x, "shape") and x.shape[:1] == (num_data,) for x in leaves]
    if not any(mine):
        raise ProgramError(
            f"the plate {anatomy.plate!r} has {num_data} rows, but no argument of the program has: "
            "pass the data as an array (num_data, ...)"
        )
    rows = tuple(jnp.asarray(x) for x, is_row in zip(leaves, mine, strict=True) if is_row)
    rest = tuple(None if is_row else x for x, is_row in zip(leaves, mine, strict=True))
    return Rows(rows, rest, tree, num_data)


def sum_over_chunks(
    function: Callable[[Arguments, Any, Array], Any], rows: Rows, chunk_size: int, extra: Any
) -> Any:
    """Sum a pytree of statistics over the data, a chunk at a time.

    `function(arguments, extra, fresh)` gets one chunk: `extra` is a pytree of further arrays by row
    (weights, say), `fresh` is 1 for rows not counted before. The last chunk overlaps the one before
    it, so that all have one shape and nothing is copied or padded. Sums are compensated (Kahan), so
    that many small chunks lose no digits in float32.
    """
    size = min(chunk_size, rows.num_data)
    if size == rows.num_data:
        return function(rows.join(rows.leaves), extra, jnp.ones(size))

    def one(start: Array) -> Any:
        begin = jnp.minimum(start, rows.num_data - size)
        fresh = (begin + jnp.arange(size) >= start).astype(float)
        return function(rows.slice(begin, size), _slice(extra, begin, size), fresh)

    def step(carry: Any, start: Array) -> tuple[Any, None]:
        total, lost = carry
        part = jax.tree.map(jnp.subtract, one(start), lost)
        new = jax.tree.map(jnp.add, total, part)
        lost = jax.tree.map(lambda n, t, p: (n - t) - p, new, total, part)
        return (new, lost), None

    zero = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, jnp.zeros((), int))
    )
    starts = jnp.arange(-(-rows.num_data // size)) * size
    (total, _), _ = lax.scan(step, (zero, zero), starts)
    return total


def map_over_chunks(
    function: Callable[[Arguments, Any, Array], Any], rows: Rows, chunk_size: int, extra: Any
) -> Any:
    """Lay the per-row results of `function(arguments, extra, first_row)` end to end."""
    size = min(chunk_size, rows.num_data)
    if size == rows.num_data:
        return function(rows.join(rows.leaves), extra, jnp.zeros((), int))
    starts = jnp.minimum(jnp.arange(-(-rows.num_data // size)) * size, rows.num_data - size)

    def one(start: Array) -> Any:
        return function(rows.slice(start, size), _slice(extra, start, size), start)

    def step(out: Any, start: Array) -> tuple[Any, None]:
        def write(whole: Array, part: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(whole, part, start, 0)

        return jax.tree.map(write, out, one(start)), None

    shapes = jax.eval_shape(one, starts[0])
    empty = jax.tree.map(lambda x: jnp.zeros((rows.num_data, *x.shape[1:]), x.dtype), shapes)
    return lax.scan(step, empty, starts)[0]


def _slice(tree: Any, start: Array, size: int) -> Any:
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), tree)
