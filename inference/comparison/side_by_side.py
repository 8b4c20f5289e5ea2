"""Methods side by side, each in a process of its own on its own share of the cores.

Most of a comparison on a small table is compiling, which one core does. Two processes halve that,
and since neither runs on the other's cores, what one method takes does not depend on the other.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

import jax

START = "forkserver" if sys.platform == "linux" else "spawn"
"""How workers begin: as copies of a process that imported what they need and ran nothing, or from
nothing, where such copies are not safe."""
INHERITED = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_x64",
)
"""Settings of JAX that a new process inherits."""

MOST_OPENED = 2
"""Data sets whose tasks come in turn: the next is begun before the last of one is done."""


_opened: dict[str, Any] = {}  # in a worker: what tasks of one comparison share, by its name


class Task(NamedTuple):
    """What is to be done, by a function that a worker can import."""

    function: Callable[..., Any]
    arguments: tuple


class Workers(ProcessPoolExecutor):
    """Processes, what they are to do, and by name what comes of that which they have begun."""

    def __init__(self, count: int, *args: Any):
        super().__init__(count, *args)
        self.count = count
        self.waiting: dict[Hashable, Task] = {}
        self.begun: dict[Hashable, Future] = {}

    def feed(self, most: int) -> None:
        """Begin what waits, while fewer than `most` are at work."""
        room = most - sum(not x.done() for x in self.begun.values())
        for name in list(self.waiting)[: max(room, 0)]:
            task = self.waiting.pop(name)
            try:
                self.begun[name] = self.submit(task.function, *task.arguments)
            except BrokenExecutor as error:
                self.begun[name] = Future()
                self.begun[name].set_exception(error)


def processes(count: int, modules: Sequence[str] = ()) -> Workers:
    """Workers that import `modules` at once, on cores of their own where the system has a say."""
    context: Any = multiprocessing.get_context(START)
    if START == "forkserver":
        context.set_forkserver_preload([*modules, __name__])
    places = context.SimpleQueue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for i in range(count):
        places.put(cores[i::count])
    inherited = {name: getattr(jax.config, name) for name in INHERITED}
    # Read when NumPy is imported, before a worker knows its place: threads that share one core
    # spin, and the processor seconds of that are counted.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, len(cores) // count)))
    pool = Workers(count, context, _begin, (places, inherited))
    for _ in range(count):
        pool.submit(_awake, tuple(modules))
    return pool


def _begin(places: Any, inherited: dict[str, Any]) -> None:
    from tqdm import tqdm

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the waiting process hears Ctrl-C
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which we leave behind when we end
    mine = places.get()
    if mine:
        os.sched_setaffinity(0, mine)
    for name, value in inherited.items():
        jax.config.update(name, value)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The waiting process may be killed: then none is left to end us."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _awake(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)


def shared(name: str, make: Callable[[], Any]) -> Any:
    """What the tasks of one comparison share, made by the first of them in this process."""
    if name not in _opened:
        for oldest in list(_opened)[: len(_opened) - MOST_OPENED + 1]:
            del _opened[oldest]
        _opened[name] = make()
    return _opened[name]


Name = TypeVar("Name", bound=Hashable)


def hand_out(pool: Workers, tasks: dict[Any, Task], first: bool = False) -> None:
    """Give workers what is asked for later, by `as_done`: after what they have, or before."""
    new = {x: task for x, task in tasks.items() if x not in pool.begun and x not in pool.waiting}
    pool.waiting = {**new, **pool.waiting} if first else {**pool.waiting, **new}
    pool.feed(pool.count)


def as_done(
    pool: Workers, tasks: dict[Name, Task], then: Callable[[], None] | None = None
) -> Iterator[tuple[Name, Any]]:
    """Names and results of the tasks as they end; that of a worker that died is its exception.

    To stop listening, with Ctrl-C say, ends the workers.

    :param then: called when all of them are handed out.
    """
    hand_out(pool, tasks)
    if then is not None:
        then()
    left = list(tasks)
    try:
        while left:
            ended = [x for x in left if x in pool.begun and pool.begun[x].done()]
            if not ended:
                wait([x for x in pool.begun.values() if not x.done()], None, FIRST_COMPLETED)
            pool.feed(pool.count)
            for name in ended:
                left.remove(name)
                future = pool.begun.pop(name)
                try:
                    yield name, future.result()
                except BrokenExecutor as error:
                    yield name, error
        # They go on while nobody listens.
        pool.feed(pool.count + len(pool.waiting))
    except BaseException:
        close(pool)
        raise


def close(pool: Workers) -> None:
    """End the workers, whatever they are at."""
    mine = list(getattr(pool, "_processes", None) or {})
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        if child.pid in mine:
            child.terminate()


def portable(*values: Any) -> bool:
    """Whether these can be sent to a new process.

    >>> portable("latent_trait", {"num_factors": 2}), portable(lambda x: x)
    (True, False)
    """
    import pickle

    try:
        pickle.loads(pickle.dumps(values))
    except Exception:
        return False
    return True
