"""The readings of a program, and the methods built on them.

Read in this order: `reading.handlers` (what a reading is), `reading.anatomy` (what it looks at),
`running.contract` (what a method is), then any file of `methods`. Public names load when they are
first used: ``latentbits --version`` imports no JAX.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

# In a checkout the folder has a name too: one set of modules under both.
if __name__ == "inference":
    from latentbits._checkout import alias

    sys.modules[__name__] = alias(__name__, "latentbits.inference")


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    # Not `from . import`: that would ask this function first.
    return getattr(import_module("latentbits.inference.public"), name)


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
