"""What there is, by name: the public programs and the methods."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable


def programs() -> dict[str, Callable]:
    """The public programs, by name."""
    import ppl_models

    return {name: getattr(ppl_models, name) for name in ppl_models.__all__}


def methods() -> dict[str, type]:
    """The bespoke methods, by name: every public class of `inference.methods` that infers.

    >>> "TruncatedEM" in methods()
    True
    """
    from numpyro.infer.mcmc import MCMCKernel

    import inference.methods
    from inference.running.algorithm import Algorithm

    found: dict[str, type] = {}
    wing = inference.methods
    for entry in pkgutil.walk_packages(wing.__path__, f"{wing.__name__}."):
        module = importlib.import_module(entry.name)
        for name, member in vars(module).items():
            if (
                inspect.isclass(member)
                and issubclass(member, Algorithm | MCMCKernel)
                and member.__module__ == module.__name__  # not one that it only imports
                and not name.startswith("_")
                and not inspect.isabstract(member)
            ):
                found[name] = member
    return found


def summary(thing: object) -> str:
    """The first sentence or line of a docstring, in one line.

    >>> summary(methods()["EM"])
    'Expectation–maximisation over a table of states, all of them by default.'
    """
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
