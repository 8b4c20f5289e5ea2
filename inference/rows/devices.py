"""Where the rows of the data are: on one device, or dealt out to the devices of a mesh.

A device sees its own rows only: the same program, on a smaller plate. What methods sum over the
data (`sum_over_chunks`) is added over the devices as well; parameters are the same everywhere.
This is all there is to it, on the cores of a CPU, on many GPUs, or on many machines:

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    EM(binary_sparse_coding).run(key, 60, data, num_causes=10, mesh=mesh)

On many machines every process runs the same lines after `jax.distributed.initialize()`, on the same
data; from a memory map each reads the rows of its own devices only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..types import Arguments
from .chunks import Share, passed, sharing, within
from .disk import OnDisk, as_stored, stored


class OneDevice(NamedTuple):
    """All rows in one place."""

    arrays: list[Array]  # what is passed to the compiled loop
    static: list  # other arguments, None where an array stands
    tree: Any

    def arguments(self, arrays: list[Array]) -> Arguments:
        """The arguments of the program, of all rows, inside of what is compiled."""
        queue = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(queue) if x is None else x for x in self.static])

    def place(self, progress: Any) -> Any:
        return progress

    def gather(self, progress: Any) -> Any:
        return progress

    def agree(self, flags: list[bool]) -> list[bool]:
        return flags

    def spread(self, block: Callable, progress: Any) -> Callable:
        del progress
        return block


class Devices(NamedTuple):
    """The rows dealt out to the devices of a mesh of one axis."""

    arrays: list[Array]
    is_row: list[bool]  # which of the arrays have rows
    static: list
    tree: Any
    mesh: Mesh
    share: Share
    fields: tuple[str, ...]  # of the state, by row

    def arguments(self, arrays: list[Array]) -> Arguments:
        """The arguments of the program, with the rows of one device."""
        queue = iter(arrays)

        def mine(x: Any) -> Any:
            if x is None:
                return next(queue)
            if isinstance(x, OnDisk):
                return OnDisk(x.file, self.share.size, self.share.begin)
            return x

        return jax.tree.unflatten(self.tree, [mine(x) for x in self.static])

    def place(self, progress: Any) -> Any:
        """The progress of a run, its fields by row dealt out, the rest everywhere."""

        def put(by_row: bool, x: Array) -> Array:
            return self.deal(x) if by_row else self.copy(x)

        return jax.tree.map(put, self._by_row(progress), progress)

    def gather(self, progress: Any) -> Any:
        """The same as one device would have it, on this process's first device."""
        places, by_row = self.share.places, self._by_row(progress)

        def collect(progress: Any) -> Any:
            return jax.tree.map(lambda mine, x: x[places] if mine else x, by_row, progress)

        everywhere = NamedSharding(self.mesh, P())
        whole = jax.jit(collect, out_shardings=everywhere)(progress)
        return jax.tree.map(lambda x: x.addressable_data(0), whole)

    def agree(self, flags: list[bool]) -> list[bool]:
        """What any of the processes found: they must all take the same turn, or wait for ever."""
        if jax.process_count() == 1:
            return flags
        return process_allgather(np.array(flags)).any(axis=0).tolist()

    def spread(self, block: Callable, progress: Any) -> Callable:
        """The block, run by every device on its own rows."""
        specs = jax.tree.map(lambda mine: self._spec(mine), self._by_row(progress))
        arrays = [self._spec(mine) for mine in self.is_row]

        def shared(progress: Any, bounds: tuple, arrays: list[Array]) -> Any:
            with sharing(self.share):
                return block(progress, bounds, arrays)

        return jax.shard_map(
            shared, mesh=self.mesh, in_specs=(specs, P(), arrays), out_specs=specs, check_vma=False
        )

    def deal(self, rows: Any) -> Array:
        """An array by row, dealt out: the last devices may get some rows a second time."""
        host = np.asarray(rows)
        kind = jnp.asarray(np.zeros(0, host.dtype)).dtype
        num_data, size = self.share.num_data, self.share.size

        def part(index: Any) -> np.ndarray:
            begin = min(index[0].start or 0, num_data - size)
            return np.asarray(host[begin : begin + size], kind)

        shape = (size * self.mesh.size, *host.shape[1:])
        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, self._spec(True)), part)

    def copy(self, x: Array) -> Array:
        """An array on every device, those of other processes too."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = self.copy(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        host = np.asarray(x)
        everywhere = NamedSharding(self.mesh, P())
        return jax.make_array_from_callback(host.shape, everywhere, lambda index: host[index])

    def _spec(self, by_row: bool) -> P:
        return P(self.share.axis) if by_row else P()

    def _by_row(self, progress: Any) -> Any:
        """Progress with True for each array that has rows."""

        def mark(state: Any) -> Any:
            rows = {name: getattr(state, name) for name in self.fields}
            marked = jax.tree.map(lambda _: False, state)
            return marked._replace(**jax.tree.map(lambda _: True, rows))

        marked = jax.tree.map(lambda _: False, progress)
        return marked._replace(state=mark(progress.state), good=mark(progress.good))


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def using(mesh: Mesh | None) -> AbstractContextManager[None]:
    """What is summed over rows by `summed` in this context is summed by all devices of the mesh."""
    return within(_mesh, mesh)


def summed(function: Callable[..., Any], num_data: int, *args: Any) -> Any:
    """`function(*args)`, sums over the rows of its arguments, by the devices in use.

    For a method that does its work in `init`, before the loop and its devices are there.
    """
    mesh = _mesh.get()
    if mesh is None:
        return function(*args)
    leaves, tree = jax.tree.flatten((args, {}))
    devices = _deal(leaves, tree, mesh, num_data, ())

    def shared(arrays: list[Array]) -> Any:
        with sharing(devices.share):
            return function(*devices.arguments(arrays)[0])

    specs = [devices._spec(mine) for mine in devices.is_row]
    spread = jax.shard_map(
        shared, mesh=devices.mesh, in_specs=(specs,), out_specs=P(), check_vma=False
    )
    total = jax.jit(spread)(devices.arrays)
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x.addressable_data(0))), total)


def one_device(args: tuple, kwargs: dict[str, Any], num_data: int = 0) -> OneDevice:
    """The arguments of a program, taken apart into what is passed to a compiled function, and the
    rest, which it may close over.

    :param num_data: how many rows there are, where that is known.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays, static = _parted(leaves, num_data)
    return OneDevice([jax.device_put(x) for x in arrays], static, tree)


def devices_of(
    args: tuple,
    kwargs: dict[str, Any],
    mesh: Mesh | None,
    *,
    by_row: tuple[str, ...] | None,
    num_data: int,
    why: str,
) -> OneDevice | Devices:
    """Where the data of a run go.

    :param by_row: fields of its state with an entry for each row; None: it takes no mesh.
    :param num_data: how many rows these arguments have.
    :param why: the sentence for a run that takes no mesh.
    """
    if mesh is None:
        return one_device(args, kwargs, num_data)
    if by_row is None:
        raise ValueError(why)
    leaves, tree = jax.tree.flatten((args, kwargs))
    return _deal(leaves, tree, mesh, num_data, by_row)


def _parted(leaves: list, num_data: int) -> tuple[list, list]:
    """The arrays that are passed, and the other arguments with None where one of them stood."""
    leaves = [as_stored(x) if stored(x) else x for x in leaves]
    is_array = [passed(x, num_data) for x in leaves]
    static = [None if a else x for a, x in zip(is_array, leaves, strict=True)]
    return [x for a, x in zip(is_array, leaves, strict=True) if a], static


def _deal(leaves: list, tree: Any, mesh: Mesh, num_data: int, fields: tuple[str, ...]) -> Devices:
    arrays, static = _parted(leaves, num_data)
    if len(mesh.axis_names) != 1:
        raise ValueError(f"the mesh must have one axis, found {mesh.axis_names}")
    mesh = Mesh(mesh.devices, mesh.axis_names)  # whatever the types of its axes
    share = Share(mesh.axis_names[0], num_data, -(-num_data // mesh.size))
    is_row = [x.shape[:1] == (num_data,) for x in arrays]
    devices = Devices([], is_row, static, tree, mesh, share, fields)
    pairs = zip(is_row, arrays, strict=True)
    placed = [devices.deal(x) if mine else devices.copy(jnp.asarray(x)) for mine, x in pairs]
    return devices._replace(arrays=placed)
