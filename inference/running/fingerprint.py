"""What makes a run the run it is: its data, its settings and its program, each as a few characters.

A digest goes over values, never over addresses or names of modules, so that it is the same in the
next process. Of a function it takes the code that runs, what its closure holds, the constants that
it mentions, and the functions that lie in the same folder.
"""

from __future__ import annotations

import enum
import hashlib
import types
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics.identity import names_in
from ..rows.disk import OnDisk, pieces

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def fingerprint(thing: Any) -> str:
    """A digest of any value: arrays by all their cells, functions by their code.

    >>> one, other = (lambda x: x + 1), (lambda x: x + 2)
    >>> fingerprint(one) == fingerprint(lambda x: x + 1), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    digest = hashlib.sha256()
    _feed(digest, thing, (), {})
    return digest.hexdigest()[:12]


def describe(thing: Any) -> str:
    """The same for a message: simple values as they are written, others by kind and digest.

    >>> describe((1, "a")), describe(np.zeros((2, 3)))
    ("(1, 'a')", 'float64(2, 3)#d8a95a714b43')
    """
    if isinstance(thing, PLAIN) or (
        type(thing) is tuple and all(isinstance(x, PLAIN) for x in thing)
    ):
        return repr(thing)
    kind = type(thing).__name__
    if isinstance(thing, np.ndarray | Array):
        kind = f"{thing.dtype}{tuple(thing.shape)}"
    elif callable(thing):
        kind = getattr(thing, "__name__", kind)
    return f"{kind}#{fingerprint(thing)}"


def public_name(thing: Any) -> str:
    """A class or function by the name that people use: ours alone, others' with their module.

    >>> from latentbits.models import bernoulli_mixture
    >>> public_name(partial(bernoulli_mixture, num_components=3))
    'bernoulli_mixture'
    """
    while isinstance(thing, partial):
        thing = thing.func
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    module = getattr(thing, "__module__", "?")
    ours = module.partition(".")[0] in (__name__.partition(".")[0], "inference", "ppl_models")
    return name if ours else f"{module}:{name}"


def _feed(digest: Any, x: Any, above: tuple[int, ...], known: dict[Any, int]) -> None:
    """Add one value to a digest.

    :param above: what it is part of: a value that holds itself is not entered twice.
    :param known: functions that were entered, since helpers are mentioned by many.
    """
    kind = type(x).__name__
    parts: Any = ()
    if isinstance(x, enum.Enum):
        kind, parts = f"{kind}.{x.name}", ()
    elif isinstance(x, PLAIN):
        kind = f"{kind} {x!r}"
    elif isinstance(x, np.ndarray | np.generic | Array | OnDisk):
        _feed_array(digest, x)
    elif id(x) in above:
        kind = "itself"
    elif isinstance(x, types.FunctionType) and x in known:
        kind = f"function {known[x]}"
    else:
        if isinstance(x, types.FunctionType):
            known[x] = len(known)
        kind, parts = _parts(x, kind)
    digest.update(f"<{kind} {len(parts)}>".encode())
    for part in parts:
        _feed(digest, part, (*above, id(x)), known)


def _parts(x: Any, kind: str) -> tuple[str, Any]:
    """What a value is called, and the values that it is made of."""
    if isinstance(x, dict):
        return "dict", [part for key in sorted(x, key=str) for part in (str(key), x[key])]
    if isinstance(x, list | tuple):
        return kind, x
    if isinstance(x, set | frozenset):
        return kind, sorted(fingerprint(part) for part in x)
    if isinstance(x, partial):
        return kind, (x.func, x.args, x.keywords)
    if isinstance(x, types.MethodType):
        return kind, (x.__self__, x.__func__)
    if isinstance(x, types.FunctionType):
        consts = tuple(c for c in x.__code__.co_consts if c is None or c is not x.__doc__)
        code = x.__code__.replace(co_consts=consts)
        return kind, (code, x.__defaults__, x.__kwdefaults__, *_surroundings(x))
    if isinstance(x, types.CodeType):
        return kind, (x.co_code, x.co_consts, x.co_names, x.co_varnames, x.co_freevars)
    if isinstance(x, type | types.ModuleType):
        return f"{kind} {public_name(x) if isinstance(x, type) else x.__name__}", ()
    if hasattr(x, "__wrapped__"):  # jax.jit and other decorators
        return kind, (x.__wrapped__,)
    if hasattr(x, "gather_pytree_data_fields"):  # a distribution, less what it has cached
        names = [*x.gather_pytree_data_fields(), *x.gather_pytree_aux_fields()]
        return kind, [vars(x).get(name) for name in names]
    if hasattr(x, "__dict__"):
        names = sorted(name for name in vars(x) if not name.startswith("_"))  # those are caches
        return kind, [part for name in names for part in (name, vars(x)[name])]
    return f"{kind} {getattr(x, '__qualname__', '')}", ()


def _surroundings(function: types.FunctionType) -> list[Any]:
    """What a function reads beside its arguments: its closure, and what its file defines."""
    surroundings: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            surroundings.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            surroundings.append("empty")
    for name in sorted(names_in(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType):
            here, there = (Path(f.__code__.co_filename).parent for f in (function, value))
            surroundings += [name, value] if here == there else []
        elif isinstance(value, (*PLAIN, tuple, list, dict, np.ndarray, Array)):
            surroundings += [name, value]
    return surroundings


def _feed_array(digest: Any, x: Any) -> None:
    if isinstance(x, OnDisk):
        x = x.file
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        digest.update(str(jax.random.key_impl(x)).encode())
        x = jax.random.key_data(x)
    digest.update(f"{x.dtype}{tuple(x.shape)}".encode())
    if np.ndim(x) == 0 or x.dtype.hasobject:
        digest.update(repr(np.asarray(x).tolist()).encode())
        return
    values = x if isinstance(x, np.ndarray) else np.asarray(x)
    for piece in pieces(values):  # a memory map is never loaded as a whole
        digest.update(np.ascontiguousarray(values[piece]).view(np.uint8).data)
