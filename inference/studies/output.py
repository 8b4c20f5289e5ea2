"""Files that are either there and whole, or not there: nothing is ever half-written."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppl_models.data import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = (".png", ".svg")


def check_output(option: str, path: str | Path, suffixes: tuple[str, ...] = ()) -> Path:
    """Where a file will be written, after a look whether it can: to be called before the long run.

    :param option: the option that names the file, for the message.
    :param suffixes: what the name may end in; empty: anything.
    """
    file = Path(path).expanduser().resolve()
    if suffixes and file.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    if file.exists() and not file.is_file():
        what = "a folder" if file.is_dir() else "no regular file"
        raise InputError(f"{option} {path}: is {what}")
    if not file.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {file.parent}")
    trial = _neighbour(file)
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


def versions() -> dict[str, str]:
    """What made a result."""
    packages = ("latentbits", "numpyro", "jax", "jaxlib", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def write_whole(file: Path, content: bytes) -> None:
    """Write a file beside `file`, then put it in its place in one step."""
    beside = _neighbour(file)
    try:
        with beside.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def write_with(file: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `file`, then put it in its place in one step."""
    beside = _neighbour(file)
    try:
        write(beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def as_json(content: dict[str, Any]) -> bytes:
    """The bytes of a JSON file; arrays become lists, and what is no finite number becomes null."""
    text = json.dumps(plain(content), indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode()


def as_picture(figure: Figure, suffix: str) -> bytes:
    """The bytes of a PNG or SVG file; the same figure gives the same bytes."""
    import matplotlib

    kind = suffix.lower().removeprefix(".")
    # Whatever changes from one run or machine to the next is left out.
    without: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "latentbits"}):
        figure.savefig(stream, format=kind, metadata=without)
    return stream.getvalue()


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


def _neighbour(file: Path) -> Path:
    # In the same folder, hence the same disk: only there is a rename one step.
    return file.parent / f".latentbits-{uuid.uuid4().hex}"
