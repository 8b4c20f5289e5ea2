"""Contents of files, and where they will be written: found out before the work that makes them."""

from __future__ import annotations

import csv
import errno
import hashlib
import inspect
import io
import json
import math
import platform
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latentbits.models.data import InputError
from latentbits.models.data.sealed import neighbour
from latentbits.models.data.sealed import write_whole as write_whole

from .figures import Figure, house_style

FIGURES = (".png", ".svg", ".pdf")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet computes."""


def check_output(option: str, path: str | Path | None, suffixes: tuple[str, ...] = ()) -> Any:
    """Where a file will be written, after a look whether it can: to be called before the long run.

    :param option: the option that names the file, for the message.
    :param path: None: no file is asked for, and None is given back.
    :param suffixes: what the name may end in; empty: anything.
    """
    if path is None:
        return None
    file = Path(path).expanduser().resolve()
    if suffixes and file.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    if file.exists() and not file.is_file():
        what = "a folder" if file.is_dir() else "no regular file"
        raise InputError(f"{option} {path}: is {what}")
    if not file.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {file.parent}")
    trial = neighbour(file)
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror})") from None
    return file


def check_folder(option: str, path: str | Path) -> Path:
    """A folder that is there, or can be made: to be called before the long run."""
    folder = Path(path).expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{option} {path}: is no folder")
    inside = folder if folder.is_dir() else folder.parent
    check_output(option, inside / "report.html")
    return folder


def append_row(path: Path, row: dict[str, Any], option: str) -> None:
    """Add a JSON object to a file of one a line, or begin the file: in one write, so that rows of
    processes side by side do not mix. Where the disk is full the file stays as it was."""
    content = f"{json.dumps(plain(row), ensure_ascii=False)}\n".encode()
    try:
        with path.open("ab", buffering=0) as stream:
            before = stream.tell()
            if stream.write(content) < len(content):
                stream.truncate(before)
                raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror})") from None


def versions() -> dict[str, str]:
    """What made a result."""
    packages = ("latentbits", "numpyro", "jax", "jaxlib", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def as_json(content: dict[str, Any]) -> bytes:
    """The bytes of a JSON file; arrays become lists, and what is no finite number becomes null.

    Its last entry is the SHA-256 of the rest as compact JSON, to tell a damaged file from a whole:

    >>> import hashlib
    >>> written = json.loads(as_json({"loss": 0.5}))
    >>> digest = written.pop("sha256")
    >>> rest = json.dumps(written, separators=(",", ":"), ensure_ascii=False)
    >>> hashlib.sha256(rest.encode()).hexdigest() == digest
    True
    """
    made = plain(content)
    made = {**made, "sha256": _digest(made)}
    return f"{json.dumps(made, indent=2, ensure_ascii=False)}\n".encode()


def as_csv(table: Mapping[str, Any], digits: int = 6) -> bytes:
    """The bytes of a CSV file, from columns of one length; numbers with so many digits.

    A text that a spreadsheet would take for a formula gets an apostrophe, with a note on stderr.

    >>> as_csv({"item": ["a", "b,c"], "difficulty": [0.5, 1.25]}).decode().split()
    ['item,difficulty', 'a,0.5', '"b,c",1.25']
    >>> as_csv({"id": ["=1+1", "-5"], "+x": [-0.5, 1]}).decode().split()
    ["id,'+x", "'=1+1,-0.5", '-5,1']
    """
    stream, kept = io.StringIO(newline=""), set[str]()

    def cell(x: Any) -> str:
        if not isinstance(x, str):
            return f"{x:.{digits}g}"
        if not x.startswith(FORMULAS) or _is_number(x):
            return x
        kept.add(x)
        return f"'{x}"

    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(cell, table))
    writer.writerows(map(cell, row) for row in zip(*table.values(), strict=True))
    if kept:
        words = f"{len(kept)} texts begin with =, +, -, @ or a tab (the first: {min(kept)!r})"
        print(
            f"note      {words}: in CSV files each has an apostrophe before it, so that no "
            "spreadsheet takes it for a formula",
            file=sys.stderr,
        )
    return stream.getvalue().encode()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def read_json(file: Path) -> dict[str, Any]:
    """What `as_json` wrote.

    :raises InputError: if that is not what the file holds any more: one line.
    """
    try:
        content = json.loads(file.read_bytes())
        whole = content.pop("sha256") == _digest(content)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise InputError(
            f"{file}: does not match its checksum: it was damaged or changed; make it anew"
        )
    return content


def _digest(made: dict[str, Any]) -> str:
    compact = json.dumps(made, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(compact.encode()).hexdigest()


def as_picture(figure: Figure, suffix: str) -> bytes:
    """The bytes of a PNG, SVG or PDF file; the same figure gives the same bytes."""
    import matplotlib

    kind = suffix.lower().removeprefix(".")
    # Whatever changes from one run or machine to the next is left out.
    without: Any = {{"svg": "Date", "pdf": "CreationDate"}.get(kind, "Software"): None}
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "latentbits"}):
        figure.savefig(stream, format=kind, metadata=without)
    return stream.getvalue()


def draw_picture(draw: Callable[..., Figure], suffix: str, *drawn: Any, **how: Any) -> bytes:
    """The same of what is drawn in the style of the house."""
    with house_style():
        return as_picture(draw(*drawn, **how), suffix)


def plain(value: Any) -> Any:
    """Nested results as JSON has them.

    >>> import numpy as np
    >>> plain({"loss": np.float32(0.5), "bits": np.eye(2, dtype=int), "worst": float("nan")})
    {'loss': 0.5, 'bits': [[1, 0], [0, 1]], 'worst': None}
    """
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # arrays and scalars, of NumPy or JAX
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value


def table_lines(numbers: dict[str, Any]) -> list[str]:
    """Numbers as a small table; a dictionary of like dictionaries gets a column for each key.

    >>> print("\\n".join(table_lines({"recovered": 0.95, "trials": {"a": 1, "b": 2.5}})))
    recovered   0.95
    trials
      a            1
      b          2.5
    """
    flat: list[tuple[str, Any]] = []
    blocks: list[tuple[str, Any]] = []
    for name, value in numbers.items():
        (blocks if isinstance(value, dict) else flat).append((str(name), value))
    rows = [[name, _show(value)] for name, value in flat]
    for name, block in blocks:
        inner = list(block.values())
        if inner and all(isinstance(x, dict) and x.keys() == inner[0].keys() for x in inner):
            rows.append([name, *map(str, inner[0])])
            rows += [[f"  {key}", *map(_show, x.values())] for key, x in block.items()]
        else:
            rows.append([name])
            rows += [[f"  {key}", _show(x)] for key, x in block.items()]
    return align(rows)


def align(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines: names to the left, numbers to the right."""
    width = max((len(row) for row in rows), default=0)
    sizes = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(width)]
    pad = lambda i, cell: cell.rjust(sizes[i]) if i else cell.ljust(sizes[i])  # noqa: E731
    return ["   ".join(pad(i, cell) for i, cell in enumerate(row)).rstrip() for row in rows]


def _show(value: Any) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | int | str) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        parts = [_show(x) for x in value[:6]]
        return " ".join(parts) + (f" … ({len(value)})" if len(value) > 6 else "")
    if isinstance(value, dict):
        return ", ".join(f"{key} {_show(part)}" for key, part in value.items())
    return str(value)


def in_seconds(value: float) -> str:
    """A time as a person reads it.

    >>> in_seconds(0.1314), in_seconds(118.7)
    ('0.13 s', '119 s')
    """
    return f"{value:.2g} s" if value < 9.95 else f"{value:.0f} s"


def words(prior: Any) -> str:
    """A distribution as it is written.

    >>> import numpyro.distributions as dist
    >>> words(dist.Normal(0.0, 2.0))
    'Normal(0, 2)'
    """
    names = inspect.signature(type(prior).__init__).parameters
    values = [getattr(prior, x) for x in names if x not in ("self", "validate_args")]
    return f"{type(prior).__name__}({', '.join(f'{float(v):g}' for v in values)})"
