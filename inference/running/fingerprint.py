"""What makes a run the run it is, part by part, as text that is the same in the next process.

Numbers and text go by `repr`, arrays by the SHA-256 of all their cells, functions and classes by
that of their source. Containers, dataclasses, partials, distributions and handlers go by their
parts. Anything else is refused: nothing says whether a later process has the same.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions.util import lazy_property
from numpyro.infer.reparam import Reparam
from numpyro.primitives import Messenger

from ..rows.disk import OnDisk, pieces
from .contract import CheckpointError

PLAIN = bool | int | float | complex | str | bytes | None | types.ModuleType | enum.Enum
LIBRARIES = {"jax", "jaxlib", "numpy", "numpyro", "optax", "scipy"}
"""Packages whose classes and functions go by their names, as Python's own and those of `OWN` do."""
STANDARD = sysconfig.get_path("stdlib")
OWN = __name__.removesuffix("running.fingerprint")


def parts(name: str, x: Any, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any, str]]:
    """A value and all that it is made of: the name, the value and the text of each.

    >>> for name, _, text in parts("start", {"scale": (1.5, np.zeros(3))}):
    ...     print(name, "is", text)
    start is dict of 1
    start.scale is tuple of 2
    start.scale.0 is 1.5
    start.scale.1 is float64(3,)#9d908ecfb6b2
    """
    # A function that calls itself is in its own closure.
    text, inner = ("itself", {}) if id(x) in above else _open(name, x)
    yield name, x, text
    for key, part in inner.items():
        yield from parts(f"{name}.{key}", part, (*above, id(x)))


def files(model: Any) -> Iterator[tuple[str, str]]:
    """The files that a program is written in, with their digests; of one in a notebook none."""
    modules = {str(getattr(x, "__module__", None)): None for _, x, _ in parts("program", model)}
    for module in modules:
        found: Any = None if _library(module) else sys.modules.get(module)
        if file := getattr(found, "__file__", None):
            for path in sorted(_imported(Path(file), found.__package__ or "")):
                yield path.relative_to(Path(file).parent).as_posix(), _digest([path.read_bytes()])


def _open(name: str, x: Any) -> tuple[str, dict[Any, Any]]:
    """The text of a value, and the parts that it leaves out."""
    kind, module = type(x), str(getattr(x, "__module__", None))
    own_name = getattr(x, "__qualname__", kind.__qualname__)
    if isinstance(x, PLAIN):
        return repr(x), {}
    if isinstance(x, np.ndarray | np.generic | Array | OnDisk) and x.dtype != object:
        return _array(x), {}
    if _library(module) and getattr(sys.modules.get(module), own_name, None) is x:
        return f"{module}.{own_name}", {}
    try:
        inner = {} if isinstance(x, type) else _fields(x)
        if not isinstance(x, types.FunctionType | type):
            return f"{kind.__name__} of {len(inner)}", inner
        # Of the code: `inspect` would give the source of a function that this one wraps.
        source = inspect.getsource(getattr(x, "__code__", x))
        return f"{own_name}{_digest([source.encode()])}", inner
    except (AttributeError, OSError, TypeError, ValueError):
        raise CheckpointError(
            f"{name} ({module}.{own_name}) cannot be compared with that of a later run: make it of "
            "numbers, text, arrays, distributions, dataclasses, partials and functions that are "
            "defined in a file or a notebook, or run without a checkpoint"
        ) from None


def _fields(x: Any) -> dict[Any, Any]:
    """What a value is made of, by name; of a function what it reads beside arguments and module."""
    if isinstance(x, types.FunctionType):
        cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
        defaults = {"defaults": (x.__defaults__, x.__kwdefaults__)}
        return {name: cell.cell_contents for name, cell in cells} | defaults
    if isinstance(x, partial):
        return {"func": x.func, "args": x.args, **x.keywords}
    if isinstance(x, types.MethodType):
        return {"self": x.__self__, "func": x.__func__}
    if isinstance(x, dict):
        return {key: x[key] for key in sorted(x, key=str)}
    if isinstance(x, list | tuple):
        return dict(enumerate(x))
    if isinstance(x, set | frozenset):
        return dict(enumerate(sorted(x, key=repr)))
    if isinstance(x, Messenger | Reparam):
        return {key: part for key, part in vars(x).items() if not key.startswith("__")}
    if isinstance(x, dist.Distribution):  # without what it has computed from its parameters
        lazy = [key for key in vars(x) if isinstance(getattr(type(x), key, None), lazy_property)]
        return {key: vars(x)[key] for key in sorted(vars(x)) if key not in lazy}
    if isinstance(x, dist.constraints.Constraint | dist.transforms.Transform):
        return dict(enumerate(x.tree_flatten()))
    if dataclasses.is_dataclass(x):
        return {field.name: getattr(x, field.name, None) for field in dataclasses.fields(x)}
    return {"function": x.__wrapped__}  # jax.jit and the like; nothing else has it


def _library(module: str) -> bool:
    top = module.partition(".")[0]
    # A user's file may have the name of one of Python's.
    file = getattr(sys.modules.get(top), "__file__", None) or STANDARD
    standard = top in sys.stdlib_module_names and file.startswith(STANDARD)
    return standard or top in LIBRARIES or f"{module}.".startswith(OWN)


def _imported(module: Path, package: str) -> set[Path]:
    """A module's file and those that it imports from its folder, directly or through others.

    Imports are read off the text: a function may import something when it is called.
    """
    folder, found, waiting = module.parent, set(), [module]
    while waiting:
        path = waiting.pop()
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                names = [(node.level, node.module or "", alias.name) for alias in node.names]
            else:
                imports = node.names if isinstance(node, ast.Import) else []
                names = [(0, alias.name, "") for alias in imports]
            for level, origin, last in names:
                base, own = (path.parents[level - 1], "") if level else (folder, f"{package}.")
                words = [*f"{origin}.".removeprefix(own).split("."), last]
                for end in range(1, len(words) + 1) if words[0] not in LIBRARIES else ():
                    file = base.joinpath(*words[:end])
                    both = {file.with_name(f"{file.name}.py"), file / "__init__.py"} - found
                    waiting += [x for x in both if folder in x.parents and x.is_file()]
    return found


def _array(x: Any) -> str:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return f"{jax.random.key_impl(x)} {_array(jax.random.key_data(x))}"
    rows = np.atleast_1d(np.asarray(x))  # a memory map is never loaded as a whole
    return f"{x.dtype}{x.shape}{_digest(rows[piece].tobytes() for piece in pieces(rows))}"


def _digest(contents: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return f"#{digest.hexdigest()[:12]}"
