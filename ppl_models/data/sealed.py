"""Files that we write end in a digest of what stands before it, and are read only if it matches.

The digest stands behind the last byte that a reader of .npz or netCDF files asks for, so that NumPy
and ArviZ open them as ever. It is checked before anything is parsed: a damaged header can make a
parser hang, or read other numbers.
"""

from __future__ import annotations

import hashlib
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


def seal(path: Path) -> None:
    """Add the digest to a file that was just written."""
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, 2)
        file.write(_mark(digest))


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
