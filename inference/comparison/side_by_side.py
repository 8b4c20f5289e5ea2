"""Methods side by side, each in a process of its own on its own share of the cores.

Most of a comparison on a small table is compiling, which one core does. Two processes halve that,
and since neither runs on the other's cores, the seconds of one method do not depend on the other.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from typing import Any

import jax

START = "forkserver" if sys.platform == "linux" else "spawn"
"""How workers begin: as copies of a process that imported what they need and ran nothing, or from
nothing, where such copies are not safe."""
INHERITED = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_x64",
)
"""Settings of JAX that a worker inherits."""


class Workers(ProcessPoolExecutor):
    """Processes on cores of their own, and by name the results of tasks that were begun.

    :param count: number of processes.
    :param modules: modules that they import before the first task.
    """

    def __init__(self, count: int, modules: Sequence[str] = ()):
        context: Any = multiprocessing.get_context(START)
        if START == "forkserver":
            context.set_forkserver_preload([*modules, __name__])
        places = context.SimpleQueue()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        for i in range(count):
            places.put(cores[i::count])
        # NumPy reads it when it is imported, before a worker knows its cores: threads that share
        # one core spin, and the processor seconds of that are counted.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, len(cores) // count)))
        inherited = {name: getattr(jax.config, name) for name in INHERITED}
        super().__init__(count, context, _set_up, (places, inherited))
        self.count = count
        self.begun: dict[Hashable, Future] = {}
        self.others = multiprocessing.active_children()

    def begin(self, name: Hashable, function: Callable, *arguments: Any) -> None:
        """Queue a task, unless one of its name was begun and its result not asked for."""
        if name in self.begun:
            return
        try:
            self.begun[name] = self.submit(function, *arguments)
        except BrokenExecutor as error:
            self.begun[name] = Future()
            self.begun[name].set_exception(error)

    def results(self, names: Iterable[Hashable]) -> Iterator[tuple[Any, Any]]:
        """Names and results of tasks as they end; of a worker that died, its exception.

        To stop listening, with Ctrl-C say, ends the workers.
        """
        named = {self.begun.pop(name): name for name in names}
        try:
            for future in as_completed(named):
                error = future.exception()
                broken = isinstance(error, BrokenExecutor)
                yield named[future], error if broken else future.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, whatever they do."""
        self.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():  # a pool starts them one by one
            if child not in self.others:
                child.kill()


def _set_up(places: Any, inherited: dict[str, Any]) -> None:
    from tqdm import tqdm

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the waiting process handles Ctrl-C
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which outlives a killed process
    cores = places.get()
    if cores:
        os.sched_setaffinity(0, cores)
    for name, value in inherited.items():
        jax.config.update(name, value)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The waiting process may be killed: then none is left to end us."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def packed(value: Any) -> bytes | None:
    """The pickle of a value, or None if it cannot be sent to another process.

    >>> packed(("latent_trait", {"num_factors": 2})) is None, packed(lambda x: x) is None
    (False, True)
    """
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return None
    return pickle.dumps(value)
