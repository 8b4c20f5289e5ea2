"""What the handlers outside of a program say of its sites, and what is left of those summed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist
from jax import Array, random
from numpyro import handlers

from ..types import Params


def outside(
    model: Callable, within: set[str], args: tuple, kwargs: dict, kinds: tuple[str, ...] = ()
) -> tuple[dict[str, dict], Params, Any]:
    """The trace of one run in which handlers outside meet all but some sites; the values of the
    sites and plates that they met; and what the program returns.

    What is hidden is drawn by a key of its own, since there may be none outside.

    :param within: the sites that are hidden.
    :param kinds: of sites that are hidden too.
    """

    def hidden(site: dict[str, Any]) -> bool:
        return site["type"] in kinds or site.get("name") in within

    key = numpyro.prng_key()
    inside = handlers.seed(model, random.key(0) if key is None else key)
    with handlers.block(hide_fn=hidden), handlers.trace() as trace:
        returned = inside(*args, **kwargs)
    fixed = ("sample", "param", "plate")
    shown = [site for site in trace.values() if site["type"] in fixed and not hidden(site)]
    return trace, {site["name"]: site["value"] for site in shown}, returned


def leave(name: str, log_factor: Array, scale: Any, shown: bool = True) -> None:
    """A factor in place of what was summed, under a name, scaled as that was.

    :param shown: as an observed site, not as a factor of the program's own.
    """
    unit = dist.Unit(log_factor)
    with handlers.scale(scale=1.0 if scale is None else scale):
        numpyro.sample(name, unit, obs=unit.sample(None), infer={"is_auxiliary": not shown})
