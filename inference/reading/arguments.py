"""What a program is given, checked before any work.

Data that can only end in NaN, in a number of another size or in an error from deep inside are
refused here, once for all methods, by name and place. A plate that draws its rows
(`subsample_size`) is read on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models.data import InputError
from latentbits.models.data.cells import MOST_COLUMNS, show
from numpyro.primitives import Messenger

from ..rows.chunks import Rows
from ..rows.disk import as_stored, pieces, stored
from .anatomy import Anatomy, ProgramError, inspect
from .tracing import dependence, run_abstractly

LARGEST = 1e15
"""Of a cell: sums of squares of larger ones leave the range of float32."""
LARGEST_WHOLE = 2**31 - 1
"""Of a whole number: JAX keeps 32 bits of it and says nothing of the others."""


def check_data(args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse arguments of a program that cannot be worked with.

    >>> check_data((np.array([[0.0, np.inf]]),), {})
    Traceback (most recent call last):
    latentbits.models.data.cells.InputError: argument 1 holds inf at index (0, 1): mark \
missing cells in `mask` and put 0 there
    """
    check_kinds(args, kwargs)
    for name, value in _named(args, kwargs):
        if not isinstance(value, np.ndarray | Array):
            continue
        if _is_key(value) or isinstance(value, jax.core.Tracer):  # or not known yet
            continue
        if name == "mask":
            _check_mask(np.asarray(value))
        elif value.dtype != bool:
            _check_numbers(name, np.asarray(value))


def check_kinds(args: tuple, kwargs: dict[str, Any]) -> None:
    """The part of it that looks at no value: kinds and shapes."""
    for name, value in _named(args, kwargs):
        _check_kind(name, value)
        if isinstance(value, np.ndarray | Array) and not _is_key(value):
            _check_shape(name, value)


def _named(args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    return [*((f"argument {i}", x) for i, x in enumerate(args, 1)), *kwargs.items()]


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.extended)


def _check_kind(name: str, value: Any) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"{name} is a masked array: pass its numbers, array.filled(0), and mask=~array.mask"
        )
    table = hasattr(value, "to_numpy")  # of pandas, polars or xarray
    listed = isinstance(value, list) and (name == "mask" or name.startswith("argument "))
    if table or listed:
        raise InputError(f"{name} is a {type(value).__name__}: pass an array, numpy.asarray(...)")


def _check_shape(name: str, value: Any) -> None:
    if value.size == 0:
        raise InputError(f"{name} is empty: shape {value.shape}")
    if value.ndim == 2 and value.shape[1] > MOST_COLUMNS:
        raise InputError(
            f"{name} has {value.shape[1]} columns, and {MOST_COLUMNS} are the most: rows are data "
            "and columns features; if it is not lying on its side, choose among its columns first"
        )
    text = isinstance(value, np.ndarray) and value.dtype.kind in "USOTMm"
    odd = (jnp.complexfloating, np.void)
    if text or any(jnp.issubdtype(value.dtype, kind) for kind in odd):
        raise InputError(
            f"{name} holds {value.dtype} at index {(0,) * value.ndim} "
            f"({show(value[(0,) * value.ndim])}): a program takes numbers; "
            "`ppl_models.data.load_table` makes them of words"
        )


def _check_mask(mask: np.ndarray) -> None:
    if mask.dtype != bool:
        raise InputError(
            f"mask holds {mask.dtype}, wanted truth values: True where a cell was observed, False "
            "where it is missing (mask.astype(bool))"
        )
    if not mask.any():
        raise InputError("mask is False everywhere: nothing was observed")


def _check_numbers(name: str, values: np.ndarray) -> None:
    real = jnp.issubdtype(values.dtype, jnp.inexact)
    limit = LARGEST if real else LARGEST_WHOLE
    low, high = float(values.min()), float(values.max())
    if -limit <= low and high <= limit:  # not so if one of them is NaN
        return
    rows = values[None] if values.ndim == 0 else values
    # Not finite first: that is the worse. A few megabytes at a time, since it may be a file.
    for odd in (lambda x: ~np.isfinite(x), lambda x: (x < -limit) | (x > limit)):
        for piece in pieces(rows):
            bad = odd(rows[piece])
            if bad.any():
                row, *rest = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
                where = (piece.start + row, *rest) if values.ndim else ()
                words = "mark missing cells in `mask` and put 0 there"
                if np.isfinite(values[where]):
                    words = f"beyond {limit:.3g} digits are lost; divide the column by its spread"
                raise InputError(f"{name} holds {values[where]} at index {where}: {words}")


def check_params(model: Callable, params: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse parameters that are not those of a program: a file may hold those of another."""
    anatomy = inspect(model, args, kwargs)
    wanted = dict(zip(anatomy.parameters, anatomy.shapes, strict=True))
    if set(params) != set(wanted):
        raise InputError(
            f"the parameters are {sorted(params)}, but those of the program {sorted(wanted)}"
        )
    for name, shape in wanted.items():
        value = np.asarray(params[name])
        if value.shape != shape:
            raise InputError(
                f"parameter {name!r} has shape {value.shape}, but the program's has {shape}"
            )
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise InputError(f"parameter {name!r} does not hold finite numbers")


def put(value: Any) -> Array:
    """An argument on the device; for arrays of NumPy's `jnp.asarray` would compile a copy."""
    return jax.device_put(value) if isinstance(value, np.ndarray) else jnp.asarray(value)


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
    mine = [is_row and x is not None for x, is_row in zip(leaves, mine, strict=True)]
    own = [x for x, is_row in zip(leaves, mine, strict=True) if is_row]
    rows = tuple(as_stored(x) if stored(x) else put(x) for x in own)
    rest = tuple(None if is_row else x for x, is_row in zip(leaves, mine, strict=True))
    return Rows(rows, rest, tree, num_data)


# A method that deals with rows itself, chunk by chunk or a batch a step, wants them all: which rows
# a plate would have drawn is the business of SVI.
class every_row(Messenger):  # noqa: N801
    """The program with all rows in each of its plates.

    >>> import numpyro, numpyro.distributions as dist
    >>> from latentbits import inspect
    >>> def drawn(data):
    ...     with numpyro.plate("data", len(data), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(0.0, 1.0), obs=data[rows])
    >>> [inspect(program, (jnp.zeros(9),)).num_data for program in (drawn, every_row(drawn))]
    [2, 9]
    """

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


def as_double(tree: Any) -> Any:
    """Arrays of real numbers in float64, of whole ones in int32, as NumPy's.

    An index of int64 that JAX has read in float32 fails in float64.
    """
    kinds = {"f": np.float64, "i": np.int32}
    real = lambda x: isinstance(x, np.ndarray | Array) and getattr(x.dtype, "kind", "") in kinds  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(x, kinds[x.dtype.kind]) if real(x) else x, tree)


# What `obs_mask` leaves unobserved of a response integrates to one. It is no latent of a row.
class seen_alone(Messenger):  # noqa: N801
    """The program without some unobserved sites, whose values nothing else depends on.

    They are hidden from every handler outside. Their numbers are NaN, or 0 where they are whole.
    """

    def __init__(self, fn: Callable, sites: tuple[str, ...]):
        self.sites = sites
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.sites:
            discrete, shape = msg["fn"].support.is_discrete, msg["fn"].shape()
            msg["value"] = jnp.zeros(shape, int) if discrete else jnp.full(shape, jnp.nan)
            msg["stop"] = True


HIDDEN = "_unobserved"
"""What NumPyro adds to the name of a site for the part of it that `obs_mask` leaves out."""


def without_missing(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Callable:
    """The program without the responses that are missing; itself if it has none.

    >>> import numpyro, numpyro.distributions as dist
    >>> def grown(length, seen):
    ...     with numpyro.plate("data", len(length)):
    ...         z = numpyro.sample("z", dist.Bernoulli(0.3))
    ...         numpyro.sample("length", dist.Normal(z, 1.0), obs=length, obs_mask=seen)
    >>> program = without_missing(grown, (np.ones(2), np.array([True, False])), {})
    >>> program.sites
    ('length_unobserved',)
    """

    def read(trace: dict[str, dict]) -> tuple[str, ...]:
        sampled = [x for x in trace.values() if x["type"] == "sample"]
        seen = {x["name"].removesuffix("_observed") + HIDDEN for x in sampled if x["is_observed"]}
        masked = [x["name"] for x in sampled if x["name"] in seen and not x["is_observed"]
                  and not x.get("_control_flow_done")]  # fmt: skip
        if not masked:
            return ()
        depends = dependence(model, (args, kwargs), trace, masked)
        read = {on for x in sampled for on in depends[x["name"]] - {x["name"]}}
        return tuple(x for x in masked if x not in read)

    missing = run_abstractly(model, args, kwargs, read)
    return seen_alone(model, missing) if missing else model
