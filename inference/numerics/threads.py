"""Small products of matrices by one thread: others would wait for each other, and long after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_inside: list[Any] = []
"""The limit, once for each that is inside."""


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """NumPy's matrix products by one thread, for all threads that are running, if they are `small`.

    Threads of OpenBLAS that have done their part spin for a tenth of a second: a product that takes
    a millisecond costs a hundred.

    >>> with one_thread():
    ...     {x["num_threads"] for x in _libraries().info() if x["user_api"] == "blas"}
    {1}
    """
    if not small:
        yield
        return
    with _lock:
        limit = _inside[0] if _inside else _libraries().limit(limits=1, user_api="blas")
        _inside.append(limit)
    try:
        yield
    finally:
        with _lock:
            if len(_inside) == 1:
                limit.restore_original_limits()
            _inside.pop()
