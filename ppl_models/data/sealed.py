"""Files that we write: whole or not at all, and results with a digest, which is checked.

The digest of what stands before it is the end of a file, and a file is read only if it matches. It
stands behind the last byte that a reader of .npz or netCDF files asks for, so that NumPy and ArviZ
open them as ever. It is checked before anything is parsed: a damaged header can make a parser hang,
or read other numbers.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

from .cells import complain

MARK = b"\nlatentbits sha256 "
LENGTH = len(MARK) + 64 + 1
PIECE = 1 << 20


def sealed(content: bytes) -> bytes:
    """The content of a file with its digest.

    >>> len(sealed(b"numbers")) - len(b"numbers")
    84
    """
    return content + _mark(hashlib.sha256(content).hexdigest())


def write_whole(
    path: Path, content: bytes, option: str | None = None, beside: Path | None = None
) -> None:
    """Write a file beside `path`, then put it in its place in one step.

    :param option: of a command, which names another place, for the message.
    :param beside: the name of that file; by default a new one. A killed process leaves it behind.
    :raises InputError: one line; what was at `path` before is still there.
    """
    beside = beside or neighbour(path)
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError as error:
        other = "name another place" if option is None else f"say {option} ELSEWHERE"
        problem = f"cannot be written ({error.strerror}): it takes {len(content)} bytes; {other}"
        raise complain(path, problem) from None
    finally:
        beside.unlink(missing_ok=True)


def neighbour(path: Path) -> Path:
    """A new name in the same folder, hence on the same disk: only there is a rename one step."""
    return path.parent / f".latentbits-{uuid.uuid4().hex}"


def check_seal(path: Path) -> None:
    """Refuse a file whose content is not that which was written.

    :raises InputError: one line.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = file.seek(0, 2) - LENGTH
        file.seek(0)
        for start in range(0, left, PIECE):
            digest.update(file.read(min(PIECE, left - start)))
        end = file.read()
    if not end.startswith(MARK):
        raise complain(
            path,
            "ends without a checksum: it is not whole, was saved by another program, or by a "
            "version of latentbits that wrote none",
        )
    if end != _mark(digest.hexdigest()):
        raise complain(path, "does not match its checksum: it was damaged or changed; make it anew")


def _mark(digest: str) -> bytes:
    return MARK + digest.encode() + b"\n"
