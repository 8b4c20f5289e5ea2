"""The rows of a program's arguments: what to slice when a chunk of the data is read.

An argument belongs to the rows if it is an array whose leading axis is as long as the data plate.
A chunk of the data is then the same program with those arguments sliced: a smaller plate. So is
what one of several devices holds: there the sums over chunks are added over the devices too, and
nothing else changes (see `inference.rows.devices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..compiling import remembered
from ..types import Arguments
from .disk import OnDisk


class Share(NamedTuple):
    """The rows of this device among those of all: `size` of them from row `begin` on.

    All devices have as many, so that the last ones may hold some rows a second time.
    """

    axis: str
    num_data: int  # rows in all
    size: int

    @property
    def start(self) -> Array:
        """The first row that no device before this one has."""
        return lax.axis_index(self.axis) * self.size

    @property
    def begin(self) -> Array:
        return jnp.minimum(self.start, self.num_data - self.size)

    @property
    def places(self) -> np.ndarray:
        """Where each row stands when the rows of all devices are laid end to end, (num_data,)."""
        row = np.arange(self.num_data)
        owner = row // self.size
        begin = np.minimum(owner * self.size, self.num_data - self.size)
        return owner * self.size + row - begin


_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """A context in which a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def sharing(share: Share) -> AbstractContextManager[None]:
    """What is traced in this context runs on each device, on its share of the rows."""
    return within(_share, share)


_count: ContextVar[Any] = ContextVar("count", default=None)


def counting(count: Any) -> AbstractContextManager[None]:
    """In this context the first `count` rows count, the others are there to fill up a size; None:
    all of them do.

    What is compiled takes the number as an argument, and opens the context for itself: `compiled`.
    """
    return within(_count, count)


def counted() -> Any:
    """How many rows count, if not all of them."""
    return _count.get()


class Rows(NamedTuple):
    """The arguments of a program, and how to take some of their rows."""

    leaves: tuple  # arrays with a leading axis of num_data, on disk or not
    rest: tuple  # everything else, None where a leaf stands
    tree: Any
    num_data: int

    @property
    def extent(self) -> int:
        """Rows of the data as a whole, those of other devices included."""
        share = _share.get()
        return self.num_data if share is None else share.num_data

    @property
    def total(self) -> Any:
        """How many of them count."""
        count = counted()
        return self.extent if count is None else count

    @property
    def on_disk(self) -> bool:
        return any(isinstance(x, OnDisk) for x in self.leaves)

    @property
    def width(self) -> int:
        """Numbers that a row of the arguments holds."""
        return sum(int(leaf.size) // self.num_data for leaf in self.leaves)

    def slice(self, start: Array | int, size: int) -> Arguments:
        """The arguments with rows start to start + size (clipped to the end of the data)."""
        return self.join([_slice_leaf(x, start, size) for x in self.leaves])

    def whole(self) -> Arguments:
        """The arguments with all rows, read from disk where they lie there."""
        return self.slice(0, self.num_data)

    def head(self) -> Rows:
        """The first row alone."""
        return self._replace(leaves=tuple(_slice_leaf(x, 0, 1) for x in self.leaves), num_data=1)

    def take(self, indices: Array) -> Arguments:
        """The arguments with the rows of these numbers, on whichever device they are."""
        return self.join([take_rows(x, indices) for x in self.leaves])

    def join(self, leaves: Any) -> Arguments:
        taken = iter(leaves)
        merged = [next(taken) if x is None else x for x in self.rest]
        return jax.tree.unflatten(self.tree, merged)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The number of each row among those of all devices: an array by row that is never held."""

    def rows(self, start: Array | int, size: int) -> Array:
        share = _share.get()
        return (0 if share is None else share.begin) + start + jnp.arange(size)


BLOCK_ROWS = 16, 64
"""How many rows are added up together, at least and at most; see `over_rows`."""


def chunk_floats() -> int:
    """Numbers of a chunk's largest array: what the cache of a CPU holds, or enough for a GPU."""
    return 1 << 21 if jax.default_backend() == "cpu" else 1 << 25


def chunk_of(wanted: int | None, floats: int, rows: Rows) -> int:
    """Rows of a chunk: as many as are wanted, else as fit if each takes `floats` numbers."""
    if wanted is None:
        fitting = max(1, chunk_floats() // max(floats, 1))
        # Chunks of one size: the last one reads few rows a second time.
        return -(-rows.num_data // -(-rows.num_data // fitting))
    if wanted < 1:
        raise ValueError(f"chunk_size must be at least 1, found {wanted}")
    return min(wanted, rows.num_data)


class _Here:
    """Stands where an array is passed in."""


def passed(argument: Any, num_data: int) -> bool:
    """Whether an argument is passed to what is compiled, and is not a part of it.

    NumPy's arrays are a part of it unless they are rows: a program may take sizes from their
    values. Without rows (zero of them, as for a chain) all arrays are passed.
    """
    if isinstance(argument, np.ndarray):
        return num_data in (0, *argument.shape[:1])
    return isinstance(argument, Array)


def compiled(function: Callable[..., Any], rows: Rows, **how: Any) -> Callable[..., Any]:
    """`function(rows, *inputs)` as a compiled function of (leaves, *inputs).

    Rows go in as arguments: constants would be copied into what is compiled, and it could not
    serve other rows of the same shapes. What is on disk stays there.

    :param how: further arguments of `jax.jit`.
    """
    kept = [x if isinstance(x, OnDisk) else None for x in rows.leaves]
    given = [x for x in rows.rest if passed(x, rows.num_data)]
    rest = tuple(_Here if passed(x, rows.num_data) else x for x in rows.rest)
    hollow = rows._replace(leaves=(), rest=rest)

    def run(arrays: list[Array], given: list[Array], count: Any, *inputs: Any) -> Any:
        some, others = iter(arrays), iter(given)
        leaves = tuple(next(some) if x is None else x for x in kept)
        rest = tuple(next(others) if x is _Here else x for x in hollow.rest)
        with counting(count):
            return function(hollow._replace(leaves=leaves, rest=rest), *inputs)

    # Where rows are dealt out, or are to be, is part of what is traced.
    whole = remembered(run, _share.get(), **how)

    def call(leaves: tuple, *inputs: Any) -> Any:
        arrays = [x for x in leaves if not isinstance(x, OnDisk)]
        return whole(arrays, given, _count.get(), *inputs)

    return call


def over_rows(left: Array, right: Array, precision: Any = None) -> Array:
    """leftᵀ right, (A, B), of what two arrays (n, A) and (n, B) say of each row.

    On a CPU XLA adds up the terms of a product one after the other. Where many rows are equal, as
    rows of bits are, the error of each addition is the same, and a hundred thousand of them cost
    two digits of float32: the rows are therefore added up in blocks, so large that the result of a
    block takes no more memory than its rows. Wide products are left to XLA, which cuts those into
    blocks of its own: 4e-6 off at worst, whatever the number of rows.

    :param precision: by default what `jax.default_matmul_precision` says, else all digits.
    """
    if precision is None:
        precision = jax.config.values["jax_default_matmul_precision"] or "highest"
    if not left.shape[1] * right.shape[1]:  # nothing to add up, as the pairs of a single bit
        return jnp.zeros((left.shape[1], right.shape[1]), jnp.result_type(left, right))
    least, most = BLOCK_ROWS
    size = max(left.shape[1] * right.shape[1] // (left.shape[1] + right.shape[1]), least)
    if size > most or len(left) <= size:
        return jnp.matmul(left.T, right, precision=precision)
    # Under `vmap` jaxlib 0.10 multiplies wrongly by what it knows to be a constant, ones say, if a
    # sum follows. A zero that it must compute hides it.
    right = right + 0.0 * left[:1, :1]
    lacking = ((0, -len(left) % size), (0, 0))
    blocks = (jnp.pad(x, lacking).reshape(-1, size, x.shape[1]) for x in (left, right))
    return jnp.einsum("bna,bnc->bac", *blocks, precision=precision).sum(0)


def sum_over_chunks(function: Callable[..., Any], rows: Rows, chunk_size: int, *extra: Any) -> Any:
    """Sum a pytree of statistics over the data, a chunk at a time, and over the devices.

    `function(arguments, *extra, fresh)` gets one chunk: `extra` are pytrees of further arrays by
    row (weights, say, or `Numbers`), `fresh` is 1 for rows not counted before. The last chunk
    overlaps the one before it, so that all have one shape and nothing is copied or padded. Sums
    are compensated (Kahan), so that many small chunks lose no digits in float32.
    """
    share, count, size = _share.get(), counted(), min(chunk_size, rows.num_data)
    # On a device that holds rows of the one before it, those come first and are not counted.
    again: Array | int = 0 if share is None else share.start - share.begin

    def fresh_from(begin: Array | int, first: Array | int) -> Array:
        place = begin + jnp.arange(size)
        fresh = place >= first
        return (fresh if count is None else fresh & (place < count)).astype(float)

    @partial(jax.jit, inline=True)  # traced once: its shapes are asked for before it is run
    def one(start: Array) -> Any:
        begin = jnp.minimum(start, rows.num_data - size)
        fresh = fresh_from(begin, jnp.maximum(start, again))
        return function(rows.slice(begin, size), *_slice(extra, begin, size), fresh)

    if size == rows.num_data:
        every = share is None and count is None
        fresh = jnp.ones(size) if every else fresh_from(0, again)
        total = function(rows.whole(), *_slice(extra, 0, size), fresh)
        return _over_devices(total)

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
    return _over_devices(total)


def _over_devices(total: Any) -> Any:
    """The sum over all devices, in one message: over a network each costs more than its bytes."""
    share = _share.get()
    if share is None:
        return total
    leaves, tree = jax.tree.flatten(total)
    for kind in dict.fromkeys(x.dtype for x in leaves):  # in the same order in every process
        mine = [i for i, x in enumerate(leaves) if x.dtype == kind]
        joined = lax.psum(jnp.concatenate([leaves[i].ravel() for i in mine]), share.axis)
        parts = jnp.split(joined, np.cumsum([leaves[i].size for i in mine])[:-1])
        for i, part in zip(mine, parts, strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(tree, leaves)


def map_over_chunks(function: Callable[..., Any], rows: Rows, chunk_size: int, *extra: Any) -> Any:
    """Lay the per-row results of `function(arguments, *extra)` end to end."""
    size = min(chunk_size, rows.num_data)
    if size == rows.num_data:
        return function(rows.whole(), *_slice(extra, 0, size))
    starts = jnp.minimum(jnp.arange(-(-rows.num_data // size)) * size, rows.num_data - size)

    @partial(jax.jit, inline=True)  # as above
    def one(start: Array) -> Any:
        return function(rows.slice(start, size), *_slice(extra, start, size))

    def step(out: Any, start: Array) -> tuple[Any, None]:
        def write(whole: Array, part: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(whole, part, start, 0)

        return jax.tree.map(write, out, one(start)), None

    shapes = jax.eval_shape(one, starts[0])
    empty = jax.tree.map(lambda x: jnp.zeros((rows.num_data, *x.shape[1:]), x.dtype), shapes)
    return lax.scan(step, empty, starts)[0]


def take_rows(leaf: Any, indices: Array) -> Array:
    """Some rows of an array by row, by their numbers among those of all devices."""
    share = _share.get()
    if share is None:
        return leaf.take(indices) if isinstance(leaf, OnDisk) else leaf[indices]
    place = jnp.clip(indices - share.begin, 0, share.size - 1)
    here = leaf.take(place) if isinstance(leaf, OnDisk) else leaf[place]
    mine = (indices >= share.start) & (indices < share.start + share.size)
    mine = mine.reshape(mine.shape + (1,) * (here.ndim - mine.ndim))
    kind = int if here.dtype == bool else here.dtype
    return lax.psum(jnp.where(mine, here, 0).astype(kind), share.axis).astype(here.dtype)


def _slice(tree: Any, start: Array | int, size: int) -> Any:
    return jax.tree.map(lambda x: _slice_leaf(x, start, size), tree)


def _slice_leaf(leaf: Any, start: Array | int, size: int) -> Array:
    if isinstance(leaf, OnDisk | Numbers):
        return leaf.rows(start, size)
    if size == leaf.shape[0]:
        return leaf
    return lax.dynamic_slice_in_dim(leaf, start, size)
