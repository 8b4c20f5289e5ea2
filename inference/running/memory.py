"""How much memory a compiled program will take, before it runs, and what a process took at most."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SHARE = 0.6
"""Of the machine's memory, which a run may take by default."""
PEAK = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class DoesNotFitError(MemoryError):
    """A compiled program would take more memory than it may."""


def default_limit() -> int:
    """Bytes that a run may take by default.

    >>> default_limit() > 0
    True
    """
    try:
        return int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not everywhere is that known
        return 1 << 34


def available() -> int:
    """Bytes that a method may take: of the device, where that says, else of the machine.

    >>> available() > 0
    True
    """
    import jax

    said = jax.local_devices()[0].memory_stats() or {}
    return int(SHARE * said["bytes_limit"]) if "bytes_limit" in said else default_limit()


def check_fits(compiled: Any, limit: float | None, what: str) -> None:
    """Refuse a compiled program that would take more than `limit` bytes.

    :param compiled: of JAX's, by ``jax.jit(...).lower(...).compile()``.
    :param what: it is, for the message.

    >>> import jax, jax.numpy as jnp
    >>> outer = jax.jit(lambda x: jnp.outer(x, x)).lower(jnp.zeros(1000)).compile()
    >>> check_fits(outer, 1e9, "the outer product")
    >>> check_fits(outer, 1e6, "the outer product")
    Traceback (most recent call last):
    latentbits.inference.running.memory.DoesNotFitError: the outer product takes 4.0 MB, more than the 1.0 MB allowed
    """  # noqa: E501
    if limit is None:
        return
    usage = compiled.memory_analysis()
    if usage is None:  # this backend does not say
        return
    needed = usage.temp_size_in_bytes + usage.output_size_in_bytes + usage.argument_size_in_bytes
    if needed > limit:
        raise DoesNotFitError(
            f"{what} takes {in_words(needed)}, more than the {in_words(limit)} allowed"
        )


def in_words(size: float) -> str:
    """Bytes for a reader.

    >>> in_words(23.4e9), in_words(2e5)
    ('23.4 GB', '0.2 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def start_peak() -> None:
    """Forget what this process took before, where the system allows."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def peak() -> int | None:
    """Most bytes that this process held since `start_peak`, or None where that is not known."""
    try:
        lines = PEAK.read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(sizes[0]) if sizes else None
