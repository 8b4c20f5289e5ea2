"""Latent-variable models of binary and categorical data: one NumPyro program, many readings.

The programs are in `latentbits.models`, the readings and methods in `latentbits.inference`; the
public names of the latter are here too:

>>> from latentbits import EM
>>> from latentbits.models import bernoulli_mixture
>>> EM(bernoulli_mixture).model.__name__
'bernoulli_mixture'
"""

import signal
import sys

# A command that is stopped before it works ends without a traceback; `cli.main` hears Ctrl-C then.
if sys.argv[0].rpartition("/")[2] in ("-m", "latentbits") and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latentbits.inference.public import *  # noqa: F403

if not Path(__file__).with_name("inference").exists():  # a checkout, where the folders stand apart
    from latentbits._checkout import join

    join(Path(__file__).parents[1])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("latentbits")
    if name in ("inference", "models"):
        return import_module(f"latentbits.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    return getattr(import_module("latentbits.inference.public"), name)


def __dir__() -> list[str]:
    return [*globals(), "__version__", *__getattr__("__all__")]
