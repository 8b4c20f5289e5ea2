"""What was compiled, kept on disk: the next process starts sooner.

JAX writes each entry in place and never replaces one, so that an entry which a killed process left
half-written would be compiled anew for ever; and its own limit of size fails for good when it meets
such an entry. Here the folder is put in order before it is used: entries that are not whole are
removed, and the oldest, if there are too many.
"""

from __future__ import annotations

import os
import warnings
import zlib
from importlib import import_module
from pathlib import Path

MOST_BYTES = 1 << 30
"""Of the folder, when a process begins: far more than one needs."""
STAMP = ".checked"
"""A file as old as the last look at the entries: only those written since may be in pieces. It
holds the size that was allowed then."""


def cache_compilations(folder: str | Path | None = None, *, max_bytes: int = MOST_BYTES) -> None:
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
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    known = jax.config.values["jax_compilation_cache_dir"]
    if known and folder is None:  # as the user has it
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
