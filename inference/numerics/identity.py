"""When two functions are one: what they are made of, as a value that can be compared.

Methods build the functions that they compile anew in every call, around the settings and sizes at
hand. Two of these are equal if their code is and everything that they close over; so one that was
compiled before can stand in for the next. A user's function may also read variables of its module,
which change when a notebook is run again: their values are part of it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax import Array

MOST_BYTES = 1 << 20
"""Of an array inside a function: what is larger are data, which are not to be held."""
MOST_PARTS = 20_000
"""What consists of more is not taken apart."""
OURS = {"latentbits", "jax", "jaxlib", "numpyro", "numpy", "scipy", "optax"}
"""Packages whose modules do not change while a process runs."""


class NoIdentityError(TypeError):
    """A value that cannot stand in a key: one that is not known yet, rows, or a file."""


class Same:
    """A key of one object only."""

    def __init__(self, of: Any):
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of


def identity(value: Any) -> Hashable:
    """A key that equal values share, functions among them.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> identity(scaled(2)) == identity(scaled(2)), identity(scaled(2)) == identity(scaled(3))
    (True, False)
    """
    return _Parts().of(value)


class _Parts:
    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # what is being taken apart, so that a circle ends
        self.count = 0

    def of(self, x: Any) -> Hashable:
        self.count += 1
        if self.count > MOST_PARTS:
            raise NoIdentityError("it has too many parts")
        if x is None or isinstance(x, bool | int | str | bytes | complex | enum.Enum):
            return type(x), x
        if isinstance(x, float):
            return float, x.hex()
        if isinstance(x, np.memmap | jax.core.Tracer):
            raise NoIdentityError(type(x).__name__)
        if isinstance(x, np.ndarray | np.generic | Array):
            return _digest(x)
        if isinstance(x, type | types.ModuleType | types.BuiltinFunctionType | types.CodeType):
            return x if isinstance(x, types.CodeType) else Same(x)
        if id(x) in self.open:
            return "circle", self.open[id(x)]
        self.open[id(x)] = len(self.open)
        try:
            return self._compound(x)
        finally:
            del self.open[id(x)]

    def _compound(self, x: Any) -> Hashable:
        kind = type(x)
        if isinstance(x, tuple | list):
            return kind, *map(self.of, x)
        if isinstance(x, dict):
            return kind, *((self.of(name), self.of(value)) for name, value in x.items())
        if isinstance(x, set | frozenset):
            return kind, frozenset(map(self.of, x))
        if isinstance(x, functools.partial):
            return kind, self.of(x.func), self.of(x.args), self.of(x.keywords)
        if isinstance(x, types.MethodType):
            return kind, self.of(x.__func__), self.of(x.__self__)
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if dataclasses.is_dataclass(x):
            fields = [(f.name, self.of(getattr(x, f.name, None))) for f in dataclasses.fields(x)]
            return kind, *fields
        if _is_library(kind.__module__) and _compares(kind):  # meshes, trees, dtypes
            return kind, x
        if _plain(kind) and hasattr(x, "__dict__"):
            return kind, *((name, self.of(value)) for name, value in vars(x).items())
        return Same(x)

    def _function(self, x: types.FunctionType) -> Hashable:
        inner = x.__closure__ is not None or "<locals>" in x.__qualname__
        library = _is_library(x.__module__)
        if library and not inner:
            return Same(x)
        cells = [self.of(_content(cell)) for cell in x.__closure__ or ()]
        names = () if library else sorted(names_in(x.__code__) & set(x.__globals__))
        read = [(n, self.of(x.__globals__[n])) for n in names]
        defaults = self.of((x.__defaults__, x.__kwdefaults__))
        return x.__code__, x.__module__, *cells, *read, defaults


def _digest(x: Any) -> Hashable:
    if isinstance(x, Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return "key", str(jax.random.key_impl(x)), _digest(jax.random.key_data(x))
    if x.nbytes > MOST_BYTES or x.dtype.kind == "O":
        raise NoIdentityError(f"an array of {x.dtype}{x.shape}")
    content = hashlib.sha256(np.ascontiguousarray(x)).digest()
    return isinstance(x, Array), str(x.dtype), x.shape, content


def _compares(kind: type) -> bool:
    return kind.__hash__ not in (None, object.__hash__) and kind.__eq__ is not object.__eq__


def _plain(kind: type) -> bool:
    """Whether all that an object of this class is stands in its `__dict__`."""
    if any(base.__module__ == "builtins" for base in kind.__mro__[:-1]):
        return False
    heap = 1 << 9  # Py_TPFLAGS_HEAPTYPE: written in Python
    slots = any(vars(base).get("__slots__") for base in kind.__mro__[:-1])
    return not slots and all(base.__flags__ & heap for base in kind.__mro__[:-1])


def _is_library(module: str | None) -> bool:
    top = (module or "").partition(".")[0]
    return top in OURS or (top in sys.stdlib_module_names and top != "__main__")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is filled later
        raise NoIdentityError("a variable without a value") from None


def names_in(code: types.CodeType) -> set[str]:
    """What a function, or one that it defines, may read of its module."""
    inner = [names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(code.co_names).union(*inner)
