"""What the handlers outside of a program say of its sites, before the program is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpyro
from jax import random
from numpyro import handlers

from ..types import Params


def outside(
    model: Callable, hidden: Callable[[dict[str, Any]], bool], args: tuple, kwargs: dict
) -> tuple[dict[str, dict], Any]:
    """The trace of one run in which handlers outside meet all but hidden sites; what it returns.

    What is hidden is drawn by a key of its own, since there may be none outside.
    """
    key = numpyro.prng_key()
    inside = handlers.seed(model, random.key(0) if key is None else key)
    with handlers.block(hide_fn=hidden), handlers.trace() as trace:
        returned = inside(*args, **kwargs)
    return trace, returned


def given_by(trace: dict[str, dict], hidden: Callable[[dict[str, Any]], bool]) -> Params:
    """The values of the sites and plates that were not hidden."""
    kinds = ("sample", "param", "plate")
    shown = [site for site in trace.values() if site["type"] in kinds and not hidden(site)]
    return {site["name"]: site["value"] for site in shown}
