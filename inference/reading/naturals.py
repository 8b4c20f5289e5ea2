"""What the sites of a program hold: their distributions, masks, and observed values by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ..types import Arguments, Params
from .abstract import explained, innermost, trace_of, undrawn
from .affine import unwrapped
from .anatomy import Anatomy


class Seen(NamedTuple):
    """What was observed in a chunk, columns in the order of the form."""

    value: Array  # (n, columns)
    mask: Array | None  # (n, columns), True where observed; None if everything is


KINDS: dict[str, str] = {
    "Normal": "real",
    "BernoulliLogits": "binary",
    "BernoulliProbs": "binary",
    "CategoricalLogits": "levels",
    "CategoricalProbs": "levels",
    "OrderedLogistic": "ordered",
    "ClippedNormal": "clipped",
    "NoisyOr": "noisy-or",
}


class NotThisError(Exception):
    """The program is not of the form that is tried."""


class Site(NamedTuple):
    """An observed site of the program."""

    name: str
    kind: str
    size: int  # columns
    levels: int  # of a categorical or ordered column
    event_dim: int

    @property
    def order(self) -> tuple[int, int]:
        return list(KINDS.values()).index(self.kind), self.levels

    @property
    def kinds(self) -> tuple[Any, ...]:
        return (self.levels or self.kind,) * self.size


def observed_sites(anatomy: Anatomy, trace: dict[str, dict]) -> tuple[Site, ...]:
    sites = []
    for name in anatomy.observed:
        fn = trace[name]["fn"]
        base = innermost(fn)
        if fn.event_dim > 1 or len(fn.batch_shape) != 1:
            raise NotThisError
        size = fn.event_shape[-1] if fn.event_dim else 1
        kind = KINDS[type(base).__name__]
        levels = jnp.shape(base.logits)[-1] if kind in ("levels", "ordered") else 0
        sites.append(Site(name, kind, size, levels, fn.event_dim))
    return tuple(sorted(sites, key=lambda site: site.order))


def run_program(
    model: Callable, arguments: Arguments, given: Params | None = None
) -> dict[str, dict]:
    """A trace; what is not given is anything of its shape, and nothing must use it."""
    # What is read must be exact, and some devices round the factors of a product to ten bits.
    precise = jax.default_matmul_precision("highest")
    filled = handlers.substitute(model, substitute_fn=undrawn)
    with validation_enabled(False), explained(), precise:
        return trace_of(filled, arguments, given)


def observed(sites: list[dict]) -> Seen:
    values, masks, any_mask = [], [], False
    for site in sites:
        fn = site["fn"]
        value = jnp.asarray(site["value"])
        value = value if fn.event_dim else value[..., None]
        mask, own = jnp.ones(value.shape, bool), unwrapped(fn)[1]
        if own is not None:
            mask, any_mask = mask & (own if fn.event_dim else own[..., None]), True
        values.append(value)
        masks.append(mask)
    kind = jnp.result_type(*values) if len({x.dtype for x in values}) == 1 else float
    table = jnp.concatenate([x.astype(kind) for x in values], -1)
    return Seen(table, jnp.concatenate(masks, -1) if any_mask else None)


def columns_of(value: Any, site: Site) -> Array:
    value = jnp.asarray(value, float)
    return value if site.event_dim else value[..., None]


def cells_of(value: Array, site: Site) -> Array:
    """Values (n, columns) in the shape of a site."""
    return value if site.event_dim else value[..., 0]
