"""What the sites of a program hold: their distributions, masks, and observed values by column.

To learn which column of which argument an observed one is, the program is run where each cell of
its arguments holds the number of its column: what it observes then says where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ...types import Arguments, Params
from ..anatomy import Anatomy
from ..forms import unwrapped
from ..tracing import explained, innermost, trace_of, undrawn


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


class Column(NamedTuple):
    """Where an observed column comes from."""

    leaf: int  # which of the arguments with an entry for each row
    column: int
    mask: int | None  # the argument that says in which rows it was observed, at the same column


def codes(leaves: list[np.ndarray], shift: int) -> list[np.ndarray]:
    """The arguments with a number in each cell that says which column it stands in.

    >>> int(codes([np.zeros((1, 200), np.int8)], 0)[0].max())
    201
    """
    coded, start = [], 2
    total = start + sum(x[0].size for x in leaves)
    for leaf in leaves:
        if _hides(leaf, leaves):
            coded.append(leaf)
            continue
        number = np.arange(start, start + leaf[0].size).reshape(leaf.shape[1:]) + shift * total
        # A byte would not hold the numbers of more than some hundred columns.
        kind = np.int32 if leaf.dtype.kind in "biu" and leaf.itemsize < 4 else leaf.dtype
        coded.append(np.broadcast_to(number, leaf.shape).astype(kind))
        start += leaf[0].size
    return coded


def _hides(leaf: np.ndarray, leaves: list[np.ndarray]) -> bool:
    """Whether it may say which cells were observed: alone, it is the data."""
    return leaf.dtype == bool and len(leaves) > 1


def columns(
    leaves: list[np.ndarray], coded: Sequence[np.ndarray], seen: np.ndarray | None
) -> tuple[Column, ...] | None:
    """Which column of which argument each observed one is; None where they are not plain columns.

    :param coded: what the program observes where the arguments are `codes` of shift 0 and 1.
    :param seen: which cells are observed, where the arguments are `leaves`.
    """
    total = 2 + sum(x[0].size for x in leaves)
    first, second = coded
    if (second - first != total).any() or (first != first[:1]).any():
        return None
    starts = np.cumsum([2, *(0 if _hides(x, leaves) else x[0].size for x in leaves)])
    matched = []
    for place, code in enumerate(first[0].astype(int)):
        leaf = int(np.searchsorted(starts, code, side="right")) - 1
        column, mask = int(code - starts[leaf]), None
        if leaves[leaf].ndim > 2:
            return None
        if seen is not None:
            own, shape = seen[:, place], leaves[leaf].shape
            masks = [i for i, x in enumerate(leaves) if x.dtype == bool and x.shape == shape]
            flat = {i: leaves[i].reshape(len(own), -1)[:, column] for i in masks}
            same = [i for i, x in flat.items() if (x == own).all()]
            if len(same) != 1:
                return None
            (mask,) = same
        matched.append(Column(leaf, column, mask))
    return tuple(matched)


def taken(places: Sequence[Column], leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The observed columns and what says where they were observed, as they lie in the arguments.

    An argument that is all of them is handed on as it is, also where it is a file.
    """
    columns = [place.column for place in places]

    def gather(sources: list[int]) -> Any:
        first = leaves[sources[0]]
        if len(set(sources)) == 1 and columns == list(range(int(np.prod(first.shape[1:])))):
            return first if len(first.shape) > 1 else first[:, None]
        if len(set(sources)) == 1:
            return first.reshape(first.shape[0], -1)[:, np.array(columns)]
        pairs = zip(sources, columns, strict=True)
        parts = [leaves[i].reshape(leaves[i].shape[0], -1)[:, column] for i, column in pairs]
        return (np if isinstance(parts[0], np.ndarray) else jnp).stack(parts, 1)

    masks = [place.mask for place in places if place.mask is not None]
    return gather([place.leaf for place in places]), gather(masks) if masks else None
