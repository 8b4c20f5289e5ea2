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


def rows_of(anatomy: Anatomy, args: tuple, kwargs: dict) -> Rows:
    """Find the arguments that have one entry per datum."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    num_data = anatomy.num_data
    mine = [hasattr(x, "shape") and x.shape[:1] == (num_data,) for x in leaves]
    if not any(mine):
        raise ProgramError(
            f"the plate {anatomy.plate!r} has {num_data} rows, but no argument of the program has: "
            "pass the data as an array (num_data, ...)"
        )
    rows = tuple(jnp.asarray(x) for x, is_row in zip(leaves, mine, strict=True) if is_row)
    rest = tuple(None if is_row else x for x, is_row in zip(leaves, mine, strict=True))
    return Rows(rows, rest, tree, num_data)


def sum_over_chunks(
    function: Callable[[Arguments, Array, Array], Any], rows: Rows, chunk_size: int, extra: Array
) -> Any:
    """Sum a pytree of statistics over the data, a chunk at a time.

    `function(arguments, extra, fresh)` gets one chunk; `extra` are further rows (weights, say) and
    `fresh` is 1 for rows not counted before: the last chunk overlaps the one before it, so that all
    have one shape and nothing is copied or padded. Sums are compensated (Kahan), so that many small
    chunks lose no digits in float32.
    """
    num_data, size = rows.num_data, min(chunk_size, rows.num_data)
    if size == num_data:
        return function(rows.join(rows.leaves), extra, jnp.ones(num_data))
    num_chunks = -(-num_data // size)

    def one(start: Array) -> Any:
        begin = jnp.minimum(start, num_data - size)
        fresh = (begin + jnp.arange(size) >= start).astype(float)
        part = lax.dynamic_slice_in_dim(extra, begin, size)
        return function(rows.slice(begin, size), part, fresh)

    def step(carry: Any, start: Array) -> tuple[Any, None]:
        total, lost = carry
        part = one(start)
        corrected = jax.tree.map(jnp.subtract, part, lost)
        new = jax.tree.map(jnp.add, total, corrected)
        lost = jax.tree.map(lambda n, t, c: (n - t) - c, new, total, corrected)
        return (new, lost), None

    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, jnp.zeros((), int)))
    starts = jnp.arange(num_chunks) * size
    (total, _), _ = lax.scan(step, (zero, zero), starts)
    return total


def map_over_chunks(function: Callable[[Arguments, Array], Any], rows: Rows, chunk_size: int) -> Any:
    """Apply a function of a chunk and its first row, and lay its per-row results end to end."""
    num_data, size = rows.num_data, min(chunk_size, rows.num_data)
    if size == num_data:
        return function(rows.join(rows.leaves), jnp.zeros((), int))
    starts = jnp.minimum(jnp.arange(-(-num_data // size)) * size, num_data - size)

    def step(out: Any, start: Array) -> tuple[Any, None]:
        part = function(rows.slice(start, size), start)
        write = lambda whole, x: lax.dynamic_update_slice_in_dim(whole, x, start, 0)  # noqa: E731
        return jax.tree.map(write, out, part), None

    shape = jax.eval_shape(function, rows.slice(0, size), jnp.zeros((), int))
    empty = jax.tree.map(lambda x: jnp.zeros((num_data, *x.shape[1:]), x.dtype), shape)
    return lax.scan(step, empty, starts)[0]
