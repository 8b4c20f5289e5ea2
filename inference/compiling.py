"""Compiled functions that are used again: by equal functions, and by the next process.

Methods build the functions that they compile anew in every call, around the settings and sizes at
hand. `jax.jit` tells functions apart by identity. In `remembered` two are equal if their code is
and everything that they close over, so that a second run on other data of the same shapes compiles
nothing. A user's function may also read variables of its module, which change when a notebook is
run again: their values are part of it.

`cache_compilations` keeps what is compiled on disk. JAX writes each entry in place and never
replaces one, so that an entry which a killed process left half-written would be compiled anew for
ever; and its own limit of size fails for good when it meets such an entry. The folder is therefore
put in order before it is used: entries that are not whole are removed, and the oldest, if there are
too many.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Hashable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro import handlers

MOST_BYTES = 1 << 20
"""Of an array inside a function: what is larger are data, which are not to be held."""
MOST_DEPTH = 50
"""Of objects within objects: what is deeper is not taken apart."""
MOST_KEPT = 512
"""Functions and facts that are kept, the latest used. A function holds what was compiled of it, and
no rows."""
LIBRARIES = {"latentbits", "jax", "jaxlib", "numpyro", "numpy", "scipy", "optax"}
"""Packages whose modules do not change while a process runs."""


class NoValueError(TypeError):
    """Something that cannot be compared by value: a tracer, rows, or a file."""


def remembered(function: Callable, *more: Any, **how: Any) -> Callable:
    """`jax.jit(function, **how)`, which shares what is compiled with equal functions.

    Rows must be arguments of the function: one that closes over them is compiled anew each time.
    Effect handlers that are open outside do not see what happens inside.

    :param more: whatever else tells two functions apart that are built alike.

    >>> def power(n):
    ...     return remembered(lambda x: x**n)
    >>> power(2) is power(2), power(2) is power(3), int(power(3)(2))
    (True, False, 8)
    """

    @functools.wraps(function)
    def closed(*inputs: Any, **keywords: Any) -> Any:
        with handlers.block():
            return function(*inputs, **keywords)

    return known(lambda: jax.jit(closed, **how), function, more, how)


def executable(make: Callable[[], Any], inputs: Any, *key: Any) -> Any:
    """`make()`, what is compiled for inputs of these shapes, or what it gave for an equal key.

    For what must be compiled before the clock runs. The key says all that `make` closes over, which
    holds no rows.

    >>> import numpy as np
    >>> double = lambda n: jax.jit(lambda x: 2 * x).lower(np.zeros(n)).compile()
    >>> made = [executable(lambda n=n: double(n), np.zeros(n), "double") for n in (3, 3, 4)]
    >>> made[0] is made[1], made[1] is made[2]
    (True, False)
    """
    leaves, tree = jax.tree.flatten(inputs)
    return known(make, "executable", key, [(np.shape(x), str(x.dtype)) for x in leaves], tree)


def known(find: Callable[[], Any], *key: Any) -> Any:
    """`find()`, or what it gave for an equal key before: a property of a program, say.

    >>> known(lambda: 1, "a fact about", len), known(lambda: 2, "a fact about", len)
    (1, 1)
    """
    try:
        value = jax.config.values["jax_enable_x64"], value_of(key)
    except NoValueError:
        return find()
    found = _kept.pop(value, _kept)
    found = _kept[value] = find() if found is _kept else found  # the last one used comes last
    if len(_kept) > MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    return found


_kept: dict[Any, Any] = {}


def value_of(x: Any, outer: tuple[int, ...] = ()) -> Hashable:
    """A key that equal values share, functions among them.

    :param outer: what is being taken apart, so that a circle ends.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> value_of(scaled(2)) == value_of(scaled(2)), value_of(scaled(2)) == value_of(scaled(3))
    (True, False)
    """
    kind = type(x)
    if isinstance(x, np.memmap | jax.core.Tracer):
        raise NoValueError(kind.__name__)
    if isinstance(x, float):
        return kind, x.hex()
    if isinstance(x, np.ndarray | np.generic | Array):
        return _digest(x)
    if isinstance(x, type | types.ModuleType | types.CodeType):
        return kind, x
    if len(outer) > MOST_DEPTH:
        raise NoValueError(f"more than {MOST_DEPTH} levels of objects")
    if id(x) in outer:
        return "circle", outer.index(id(x))
    each = functools.partial(value_of, outer=(*outer, id(x)))
    if isinstance(x, tuple | list):
        return kind, *map(each, x)
    if isinstance(x, dict):
        return kind, *((each(name), each(value)) for name, value in x.items())
    if isinstance(x, set | frozenset):
        return kind, frozenset(map(each, x))
    if isinstance(x, functools.partial):
        return kind, each(x.func), each(x.args), each(x.keywords)
    if isinstance(x, types.MethodType):
        return kind, each(x.__func__), each(x.__self__)
    if isinstance(x, types.FunctionType):
        return _function(x, each)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return kind, *((f.name, each(getattr(x, f.name, None))) for f in dataclasses.fields(x))
    if kind.__hash__ is None:
        raise NoValueError(kind.__name__)
    if kind.__eq__ is object.__eq__ and hasattr(x, "__dict__"):
        return kind, *((name, each(value)) for name, value in vars(x).items())
    return kind, x


def _function(x: types.FunctionType, each: Callable[[Any], Hashable]) -> Hashable:
    inner = x.__closure__ is not None or "<locals>" in x.__qualname__
    top = (x.__module__ or "").partition(".")[0]
    library = top in LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")
    if library and not inner:
        return x
    try:
        cells = [each(cell.cell_contents) for cell in x.__closure__ or ()]
    except ValueError:  # it is filled later
        raise NoValueError("a variable without a value") from None
    names = () if library else sorted(names_in(x.__code__) & set(x.__globals__))
    read = [(name, each(x.__globals__[name])) for name in names]
    return x.__code__, x.__module__, *cells, *read, each((x.__defaults__, x.__kwdefaults__))


def _digest(x: Any) -> Hashable:
    if isinstance(x, Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return "key", str(jax.random.key_impl(x)), _digest(jax.random.key_data(x))
    if x.nbytes > MOST_BYTES or x.dtype.kind == "O":
        raise NoValueError(f"an array of {x.dtype}{x.shape}")
    content = hashlib.sha256(np.ascontiguousarray(x)).digest()
    return isinstance(x, Array), str(x.dtype), x.shape, content


def names_in(code: types.CodeType) -> set[str]:
    """What a function, or one that it defines, may read of its module."""
    inner = [names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(code.co_names).union(*inner)


CACHE_BYTES = 1 << 30
"""Of the folder, when a process begins: far more than one needs."""
STAMP = ".checked"
"""A file as old as the last look at the entries: only those written since may be in pieces. It
holds the size that was allowed then."""


def cache_compilations(folder: str | Path | None = None, *, max_bytes: int = CACHE_BYTES) -> None:
    """Keep what JAX compiles in a folder, so that the next process need not compile it.

    One line at the top of a script; the command line does it by itself. A folder that cannot be
    written is no error: nothing is kept then.

    :param folder: by default ``$JAX_COMPILATION_CACHE_DIR``, else ``latentbits`` in the user's
        folder for caches (``$XDG_CACHE_HOME``, else ``~/.cache``).
    :param max_bytes: entries that were not used for longest are removed beyond that.

    >>> import tempfile
    >>> import jax
    >>> before = jax.config.jax_compilation_cache_dir
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache_compilations(folder)
    ...     jax.config.jax_compilation_cache_dir == folder
    True
    >>> jax.config.update("jax_compilation_cache_dir", before)
    """
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    given = jax.config.values["jax_compilation_cache_dir"]
    if given and folder is None:  # as the user has it
        return
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if folder is None:
            folder = (base if base.is_absolute() else Path.home() / ".cache") / "latentbits"
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK | os.X_OK):
            return
        tidy(place, max_bytes)
    except (OSError, RuntimeError):  # RuntimeError: the home of the user is not known
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    # Also what compiles quickly: outside of jit, hundreds of little programs add up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    # An entry that another process is writing is compiled here too, without a word.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    reset_cache()  # JAX asks once whether there is one


def tidy(folder: Path, max_bytes: int) -> None:
    """Remove entries that are not whole, and the least used of those that are too many."""
    stamp = folder / STAMP
    # A second earlier: clocks of file systems are coarse.
    last = stamp.stat().st_mtime - 1.0 if stamp.exists() else 0.0
    # A folder is as old as the last entry that was added: to look through thousands takes longer
    # than a small fit.
    if folder.stat().st_mtime < last and stamp.read_text() == str(max_bytes):
        return
    stamp.write_text(str(max_bytes))
    kept = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file() and entry.name.endswith("-cache"):
                about = entry.stat()
                if about.st_mtime >= last and not _whole(Path(entry.path)):
                    Path(entry.path).unlink(missing_ok=True)
                else:
                    used = max(about.st_atime, about.st_mtime)
                    kept.append((used, about.st_size, entry.path))
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= max_bytes:
            break
        Path(path).unlink(missing_ok=True)
        total -= size


def _whole(path: Path) -> bool:
    """Whether an entry can be unpacked, by whichever library JAX packs with."""
    try:
        content = path.read_bytes()
        if content[:4] != b"\x28\xb5\x2f\xfd":
            unpack = zlib.decompressobj()
            unpack.decompress(content)
            return unpack.eof
        for name in ("compression.zstd", "zstandard"):
            try:
                library = import_module(name)
            except ImportError:
                continue
            unpack = library.ZstdDecompressor()
            unpack = unpack if name == "compression.zstd" else unpack.decompressobj()
            unpack.decompress(content)
            return bool(unpack.eof)
    except Exception:  # each library has errors of its own
        return False
    return True  # it cannot be known here: nor could JAX read it
