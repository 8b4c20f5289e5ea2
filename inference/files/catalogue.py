"""What there is, by name: the public programs and the methods."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from latentbits.models.data import InputError

from ..reading.anatomy import Anatomy, ProgramError


def programs() -> dict[str, Callable]:
    """The public programs, by name."""
    from latentbits import models

    return {name: getattr(models, name) for name in models.__all__}


@cache
def methods() -> dict[str, type]:
    """The bespoke methods, by name: every public class of `inference.methods` that infers.

    >>> "TruncatedEM" in methods()
    True
    """
    return dict(_found())


@cache
def find_method(name: str) -> type | None:
    """One of them, if there is such; the files behind its own are not imported.

    >>> find_method("EM") is methods()["EM"], find_method("NUTS")
    (True, None)
    """
    return next((method for known, method in _found() if known == name), None)


def _found() -> Iterator[tuple[str, type]]:
    from numpyro.infer.mcmc import MCMCKernel

    from .. import methods as wing
    from ..running.algorithm import Algorithm

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
                yield name, member


ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Rasch": ("latent_trait", {"num_factors": 1, "slope": "equal"}),
    "1PL": ("latent_trait", {"num_factors": 1, "slope": "equal"}),
    "2PL": ("latent_trait", {"num_factors": 1}),
    "3PL": ("latent_trait", {"num_factors": 1, "guessing": True}),
    "MIRT": ("latent_trait", {}),
    "GRM": ("graded_trait", {"num_factors": 1}),
    "LCA": ("categorical_mixture", {}),
}
"""What analysts call a program, in any case -> the program, and its settings."""
SETTINGS = {
    "num_classes": "num_components", "n_classes": "num_components", "nclass": "num_components",
    "n_components": "num_components", "n_factors": "num_factors", "nfactors": "num_factors",
}  # fmt: skip
"""What other packages call an argument -> what programs here call it."""


def called(name: str) -> tuple[str, dict[str, Any]]:
    """The program of this name or of this other name, and the settings that go with the latter.

    >>> called("lca"), called("graded_trait")
    (('categorical_mixture', {}), ('graded_trait', {}))
    """
    return {x.lower(): v for x, v in ALIASES.items()}.get(name.lower(), (name, {}))


class Generic(NamedTuple):
    """A method of NumPyro's that runs on the same programs."""

    summary: str
    problem: Callable[[Anatomy], str | None]  # why it does not apply


def generics() -> dict[str, Generic]:
    """What the bespoke methods are compared with, by the name that `compare` and `fit` take.

    >>> list(generics())
    ['NUTS', 'SVI mean_field', 'SVI low_rank', 'SVI flow', 'MAP', 'DiscreteGibbs']
    """
    from ..baselines.samplers import no_discrete_gibbs

    summed = "discrete latents summed out"
    summaries = {
        "NUTS": f"NumPyro's NUTS on the program, {summed}",
        "SVI mean_field": f"NumPyro's SVI with a diagonal normal guide, {summed}",
        "SVI low_rank": f"NumPyro's SVI with a low-rank normal guide, {summed}",
        "SVI flow": f"NumPyro's SVI with an autoregressive flow, {summed}",
        "MAP": f"the mode of the parameters by gradient ascent, {summed}",
    }
    gibbs = Generic("NumPyro's Gibbs: bits in turn, parameters by NUTS", no_discrete_gibbs)
    summed_out = {name: Generic(words, _odd) for name, words in summaries.items()}
    return {**summed_out, "DiscreteGibbs": gibbs}


def _odd(anatomy: Anatomy) -> str | None:
    """Why the latents of a datum can be neither summed out nor sampled by their gradient."""
    odd = (f"{latent.name} {latent.odd}" for latent in anatomy.latents if latent.odd)
    return next(odd, None)


def summary(thing: object) -> str:
    """The first sentence or line of a docstring, in one line.

    >>> summary(methods()["EM"])
    'Expectation–maximisation over a table of states, all of them by default.'
    """
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


@contextmanager
def blame(name: str, doing: str = "") -> Iterator[None]:
    """Say of an error inside a program where in the owner's file it came from."""
    try:
        yield
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from error
    except Exception as error:
        file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
        # An error that the public programs raise is written for people already.
        words = str(error) if file is None else explain(error, file)
        raise ProgramError(f"{name}{doing and ' '}{doing}: {words}") from error


def find_program(name: str) -> Callable:
    """A public program by its name, or ``module:function`` from where the user is.

    >>> find_program("latent_trait").__name__
    'latent_trait'
    """
    known = programs()
    if name in known:
        return known[name]
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise InputError(
            f"there is no program {name!r}{_nearest(name, [*known, *ALIASES])}: choose one of "
            f"{', '.join([*known, *ALIASES])}, or module:function for one of your own"
        )
    if module_name.endswith(".py") or "/" in module_name:
        raise InputError(
            f"{name}: give the module as Python imports it from here, "
            f"{Path(module_name).stem}:{function_name or 'model'}"
        )
    return _own_program(module_name, function_name)


def _own_program(module_name: str, function_name: str) -> Callable:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {module_name!r} in {Path.cwd()}") from None
        raise InputError(f"{module_name} cannot be imported: {explain(error)}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{module_name} cannot be imported: {explain(error)}") from None
    program = getattr(module, function_name, None)
    if not callable(program) or inspect.isclass(program):
        functions = [x for x in vars(module).values() if inspect.isfunction(x)]
        own = [x.__name__ for x in functions if x.__module__ == module_name]
        what = "is no function" if program is not None else "is not there"
        raise InputError(
            f"{module_name}:{function_name} {what}{_nearest(function_name, own)}: "
            f"{module_name} has {', '.join(own) or 'no function'}"
        )
    return program


def explain(error: BaseException, file: str | None = None) -> str:
    """An error of somebody's own program in one line: what, and where in their file.

    :param file: say where in this file; by default where the error was raised.
    """
    words = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '?').name}, line {error.lineno}: {error.msg}"
    places = [frame for frame in frames if file is None or frame.filename == file]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {words}{where}"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
