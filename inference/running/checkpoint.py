"""The state of a run in a file: written whole or not at all, and read back only by its own run."""

from __future__ import annotations

import errno
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models.data import InputError
from latentbits.models.data.sealed import check_seal, sealed, write_whole

from .contract import CheckpointError, Method
from .fingerprint import files, parts


class Checkpoint:
    """A folder with the last state of one run, which no other run uses as long as it is open.

    The file says which method, program, settings, data and start it belongs to. A run of anything
    else is refused, so that nothing is overwritten by mistake. Arrays go by their names in the
    state (``state.params['weights']``), so that a file does not depend on their order.
    """

    def __init__(self, folder: Path, origin: dict[str, str]):
        self.path, self.origin = folder / "checkpoint.npz", origin
        self._lock: Any = None
        self._saved: dict[str, np.ndarray] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in (self.path, folder / "checkpoint.lock"):
                if file.exists() and not file.is_file():  # to open a pipe is to wait for ever
                    raise OSError(errno.EINVAL, f"{file.name} is no regular file")
            if jax.process_index() == 0:
                self._lock = (folder / "checkpoint.lock").open("a")
                _lock(self._lock)
        except OSError as error:
            self.close()
            busy = error.errno in (errno.EAGAIN, errno.EACCES) and self._lock is not None
            words = "another run is saving to it" if busy else error.strerror
            raise CheckpointError(f"cannot save to {folder}: {words}") from None

    def __enter__(self) -> Checkpoint:
        """Read what is there: once, and before any work."""
        if self.path.exists():
            try:
                origin, self._saved = _read(self.path)
                _compare(self.path, origin, self.origin)
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Let other runs use the folder; the end of the process does it too."""
        if self._lock is not None:
            self._lock.close()

    def resume(self, progress: Any, num_steps: int) -> Any:
        """The progress that was saved, or what was passed if nothing was."""
        if self._saved is None:
            return progress
        saved, self._saved = self._saved, None
        wanted = _leaves(progress)
        other = set(wanted) ^ set(saved)
        if other:
            raise CheckpointError(f"{self.path} holds another state ({min(other)}): {_REMOVE}")
        done = int(saved["step"])
        if done > num_steps:
            raise CheckpointError(
                f"{self.path} is of step {done}: ask for at least as many, or remove it"
            )
        for name, new in wanted.items():
            shape = _plain(new).shape
            shape = (done, *shape[1:]) if _by_step(name) else shape
            if saved[name].shape != shape:
                raise CheckpointError(
                    f"{self.path} holds {name} of shape {saved[name].shape} where this run has "
                    f"{shape}: {_REMOVE}"
                )
        restored = [
            new.at[: len(saved[name])].set(jnp.asarray(saved[name], new.dtype))
            if _by_step(name) else _like(new, saved[name])
            for name, new in wanted.items()
        ]  # fmt: skip
        return jax.tree.unflatten(jax.tree.structure(progress), restored)

    def save(self, progress: Any) -> None:
        """Replace what was saved; after a crash at any moment there is the one or the other."""
        done, leaves = int(progress.step), _leaves(progress).items()
        # On the host: JAX would compile a slice of each length.
        cut = {k: np.asarray(x)[:done] if _by_step(k) else x for k, x in leaves}
        self._write(self.path, cut)

    def keep(self, state: Any) -> Path:
        """Save a state apart; gives the file."""
        path = self.path.with_name("last_good.npz")
        self._write(path, _leaves({"state": state}))
        return path

    def _write(self, path: Path, leaves: Mapping[str, Array | np.ndarray]) -> None:
        if jax.process_index() != 0:
            return
        arrays: Any = {name: np.asarray(_plain(x)) for name, x in leaves.items()}
        about = json.dumps({"origin": self.origin, "made_with": version("jax")})
        stream = io.BytesIO()
        np.savez(stream, about=np.array(about), **arrays)
        try:
            # No other run uses the folder: what a killed one left behind is written over.
            partly = path.with_name(f".{path.name}")
            write_whole(path, sealed(stream.getvalue()), "--checkpoint", partly)
        except InputError as error:
            kept = "; what was saved before is still there" if path.exists() else ""
            raise CheckpointError(f"{error}{kept}") from None


def origin(
    method: Method, args: tuple, kwargs: dict[str, Any], rng_key: Any, start: Any, search: str
) -> dict[str, str]:
    """What makes a run the run it is, part by part.

    :param start: the parameters or the state that were given to start from.
    :param search: the starts, and how many steps they take before the first step of the run.
    """
    # A name that begins with an underscore is of a cache.
    settings = {x: v for x, v in vars(method).items() if x != "model" and not x.startswith("_")}
    made_of = {
        "version": version("latentbits"), "precision": jnp.result_type(float).name,
        "method": type(method), "setting": settings, "program": method.model,
        "argument": kwargs, "data": args, "start": start, "key": rng_key,
        "search, whose length follows the number of steps,": search,
    }  # fmt: skip
    words = {name: text for whole in made_of.items() for name, _, text in parts(*whole)}
    for name, digest in files(method.model):
        words[f"program in {name}"] = words.get(f"program in {name}", "") + digest
    return words


_REMOVE = "remove it to start anew, or save to another folder"


def _lock(file: Any) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has none
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _leaves(tree: Any) -> dict[str, Array]:
    """Every array of a tree by its name, in the tree's own order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}


def _by_step(name: str) -> bool:
    """Whether an array has one entry per step: of these only the steps done are saved."""
    return name.startswith(("losses", "history"))


def _read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    try:
        check_seal(path)
        # Opened here: NumPy leaves a damaged archive open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            return dict(about["origin"]), {name: file[name] for name in file.files[1:]}
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except InputError as error:
        raise CheckpointError(f"{error}: {_REMOVE}") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError) as error:
        raise CheckpointError(f"{path} is no checkpoint ({error}): {_REMOVE}") from None


def _compare(path: Path, saved: dict[str, str], wanted: dict[str, str]) -> None:
    for name in [*wanted, *saved]:
        there, here = saved.get(name, "absent"), wanted.get(name, "absent")
        if there != here:
            raise CheckpointError(
                f"{path} is of another run: its {name} is {there}, here it is {here}: {_REMOVE}"
            )


def _plain(x: Array | np.ndarray) -> Array | np.ndarray:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _like(new: Array, old: np.ndarray) -> Array:
    if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(old), impl=jax.random.key_impl(new))
    return jnp.asarray(old, new.dtype)
