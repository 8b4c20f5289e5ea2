"""The state of a run in a file: written whole or not at all, and read back only by its own run."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .contract import Method


class CheckpointError(ValueError):
    """A folder or a file that a run cannot be saved to or resumed from; the message says why.

    >>> import tempfile
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> with tempfile.NamedTemporaryFile(prefix="no folder") as file:
    ...     try:
    ...         EM(bernoulli_mixture).run(
    ...             jax.random.key(0), 2, jnp.eye(3), num_components=2, checkpoint=file.name)
    ...     except CheckpointError as error:
    ...         print(str(error).replace(file.name, "FILE"))
    cannot save to FILE: File exists
    """


class Checkpoint:
    """A folder with the last state of one run.

    The file says which method, program, settings and data it belongs to. A run of anything else is
    refused, so that nothing is overwritten by mistake.
    """

    def __init__(self, folder: Path, method: Method, args: tuple, kwargs: dict[str, Any]):
        self.path = folder / "checkpoint.npz"
        self.origin = _origin(method, args, kwargs)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot save to {folder}: {error.strerror}") from None
        if self.path.exists():  # before any work
            _check(self.path, _read(self.path)[0]["origin"], self.origin)

    def resume(self, progress: Any) -> Any:
        """The progress that was saved, or what was passed if nothing was."""
        if not self.path.exists():
            return progress
        _, leaves = _read(self.path)
        found, tree = jax.tree.flatten(progress._replace(losses=None, history=None))
        length = len(jax.tree.leaves(progress.history))
        if len(leaves) != len(found) + length + 1:
            raise CheckpointError(f"{self.path} holds another state: {_REMOVE}")
        losses, rest = leaves[0], leaves[1:]
        history, state = rest[:length], rest[length:]
        for new, old in zip(found, state, strict=True):
            if _plain(new).shape != old.shape:
                raise CheckpointError(
                    f"{self.path} holds an array of shape {old.shape} where this run has "
                    f"{_plain(new).shape}: {_REMOVE}"
                )
        if int(state[-2]) > len(progress.losses):
            raise CheckpointError(
                f"{self.path} is of step {int(state[-2])}: ask for at least as many, or remove it"
            )
        there = jax.tree.unflatten(tree, [_like(n, o) for n, o in zip(found, state, strict=True)])
        seen, history_tree = jax.tree.flatten(progress.history)
        filled = [_fill(new, old) for new, old in zip(seen, history, strict=True)]
        return there._replace(
            losses=_fill(progress.losses, losses),
            history=jax.tree.unflatten(history_tree, filled),
        )

    def save(self, progress: Any) -> None:
        """Replace what was saved; after a crash at any moment there is the one or the other."""
        done = int(progress.step)
        past = [x[:done] for x in jax.tree.leaves((progress.losses, progress.history))]
        state = jax.tree.leaves(progress._replace(losses=None, history=None))
        self._write(self.path, [*past, *state])

    def keep(self, state: Any) -> Path:
        """Save a state apart; gives the file."""
        path = self.path.with_name("last_good.npz")
        self._write(path, jax.tree.leaves(state))
        return path

    def _write(self, path: Path, leaves: list) -> None:
        if jax.process_index() != 0:
            return
        arrays: Any = {f"leaf_{i}": np.asarray(_plain(x)) for i, x in enumerate(leaves)}
        about = json.dumps({"origin": self.origin, "made_with": version("jax")})
        partly = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with partly.open("wb") as file:
                np.savez(file, about=np.array(about), **arrays)
                file.flush()
                os.fsync(file.fileno())
            partly.replace(path)
        except OSError as error:
            partly.unlink(missing_ok=True)
            kept = f"; what was saved before is still in {path}" if path.exists() else ""
            raise CheckpointError(f"cannot save to {path}: {error.strerror}{kept}") from None
        except BaseException:
            partly.unlink(missing_ok=True)
            raise


_REMOVE = "remove it to start anew, or save to another folder"


def _read(path: Path) -> tuple[dict, list]:
    try:
        # Opened here: NumPy leaves a damaged archive open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            leaves = [file[f"leaf_{i}"] for i in range(len(file.files) - 1)]
        if not isinstance(about, dict) or not isinstance(about.get("origin"), dict):
            raise KeyError("origin")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error}): {_REMOVE}") from None
    return about, leaves


def _check(path: Path, found: dict, wanted: dict) -> None:
    for name in wanted:
        if found.get(name) != wanted[name]:
            raise CheckpointError(
                f"{path} is of another run: its {name} is {found.get(name)}, here it is "
                f"{wanted[name]}: {_REMOVE}"
            )


def _origin(method: Method, args: tuple, kwargs: dict[str, Any]) -> dict[str, str]:
    """What makes a run the run it is, in words."""
    settings = {
        name: value
        for name, value in vars(method).items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    leaves, tree = jax.tree.flatten((args, kwargs))
    return {
        "method": f"{type(method).__module__}.{type(method).__qualname__}",
        "model": _name(method.model),
        "settings": str(settings),
        "arguments": str(tree),
        "data": ", ".join(_digest(x) for x in leaves),
        "precision": jnp.result_type(float).name,
    }


def _name(model: Any) -> str:
    while isinstance(model, partial):
        model = model.func
    return f"{getattr(model, '__module__', '?')}:{getattr(model, '__qualname__', type(model))}"


def _digest(x: Any) -> str:
    """A few words that tell one argument from another; of long ones, the ends are looked at."""
    if not isinstance(x, np.ndarray | Array):
        return str(x) if isinstance(x, bool | int | float | str) else type(x).__name__
    rows = np.asarray(x).reshape(len(x), -1) if np.ndim(x) else np.asarray(x).reshape(1, 1)
    some = rows if len(rows) <= 2000 else np.concatenate([rows[:1000], rows[-1000:]])
    return f"{x.dtype}{tuple(x.shape)}#{zlib.crc32(np.ascontiguousarray(some)):08x}"


def _plain(x: Array) -> Array:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _like(new: Array, old: np.ndarray) -> Array:
    if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(old), impl=jax.random.key_impl(new))
    return jnp.asarray(old, new.dtype)


def _fill(buffer: Array, old: np.ndarray) -> Array:
    return buffer.at[: len(old)].set(jnp.asarray(old, buffer.dtype))
