"""Cache of jitted functions.

`remembered` is `jax.jit` for functions that are built anew in every call: an equal one that was
compiled before is used again, so that a second run on other data of the same shapes compiles
nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE as under_jit
from numpyro.distributions import Distribution
from numpyro.primitives import _PYRO_STACK

from .identity import NoIdentityError, identity

MOST_KEPT = 512
"""Functions and facts that are kept, the latest used. A function holds what was compiled of it, and
no rows."""

_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def remembered(function: Callable, *more: Any, **how: Any) -> Any:
    """`jax.jit(function, **how)`, or what that gave for an equal function before.

    Rows must be arguments of the function: one that closes over them is compiled anew each time.

    :param more: whatever else tells two functions apart that are built alike.

    >>> def power(n):
    ...     return remembered(lambda x: x**n)
    >>> power(2) is power(2), power(2) is power(3), int(power(3)(2))
    (True, False, 8)
    """
    # Handlers that are open outside see what the function does, each time that it is done.
    if _PYRO_STACK:
        return jax.jit(function, **how)
    try:
        context = jax.config.values["jax_enable_x64"], Distribution._validate_args
        key = identity((function, more, how, context))
    except NoIdentityError:
        return jax.jit(function, **how)
    return _keep(key, lambda: jax.jit(function, **how))


def executable(make: Callable[[], Any], inputs: Any, *key: Any) -> Any:
    """`make()`, what is compiled for inputs of these shapes, or what it gave for an equal key.

    For what must be compiled before the clock runs. The key says all that `make` closes over, which
    holds no rows.

    >>> import numpy as np
    >>> double = lambda n: jax.jit(lambda x: 2 * x).lower(np.zeros(n)).compile()
    >>> made = [executable(lambda n=n: double(n), np.zeros(n), "double") for n in (3, 3, 4)]
    >>> made[0] is made[1], made[1] is made[2]
    (True, False)
    """
    if _PYRO_STACK or under_jit():
        return make()
    leaves, tree = jax.tree.flatten(inputs)
    shapes = [(np.shape(x), str(x.dtype)) for x in leaves]
    context = jax.config.values["jax_enable_x64"], Distribution._validate_args
    return known(make, "executable", key, shapes, tree, context)


def known(find: Callable[[], Any], *key: Any) -> Any:
    """`find()`, or what it gave for an equal key before: a property of a program, say.

    >>> known(lambda: 1, "a fact about", len), known(lambda: 2, "a fact about", len)
    (1, 1)
    """
    try:
        return _keep(identity(key), find)
    except NoIdentityError:
        return find()


def _keep(key: Hashable, make: Callable[[], Any]) -> Any:
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    made = make()  # not under the lock: it may ask for others
    with _lock:
        _kept[key] = made
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return made
