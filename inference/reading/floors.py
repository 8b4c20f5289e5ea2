"""Scales of an observed site that ran to zero: such a likelihood has no maximum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints

from ..numerics.compiling import known, once
from ..types import Arguments, Params
from .abstract import each_value, innermost, run_abstractly, trace_of
from .anatomy import ProgramError
from .arguments import inspect_all, rows_of

MOST_ROWS = 1000
"""Rows by which the spread of what is observed is judged."""


class FloorWarning(UserWarning):
    """A scale is as small as numbers allow: the rows are explained without any noise."""


def at_floor(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], plate: str | None = None
) -> str | None:
    """Which scale of an observed site ran to its floor, in a sentence; None if none did.

    At its floor is a scale whose square is within the rounding of the rows' own variance: a sum of
    squared residuals that small is what subtraction leaves over.

    >>> from latentbits.models import binary_sparse_coding
    >>> data = jnp.array([[1.0, 0.0], [0.0, 3.0]])
    >>> params = {"weights": data, "noise": jnp.array(1e-6), "sparsity": jnp.array(0.5)}
    >>> print(at_floor(binary_sparse_coding, params, (data,), {"num_causes": 2}))
    'noise' is 1e-06, its floor: the rows are explained without noise, so that the likelihood has \
no maximum; use fewer latents, more rows or a prior on it (prior=True)
    >>> at_floor(binary_sparse_coding, {**params, "noise": 0.1}, (data,), {"num_causes": 2})
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    kinds = [(x.shape, str(x.dtype)) if hasattr(x, "shape") else x for x in leaves]
    try:
        model, anatomy = inspect_all(model, args, kwargs, plate)
    except ProgramError:  # that of a method which reads it in its own way
        return None
    if not any("Normal" in name for name in anatomy.likelihoods):
        return None
    names = known(
        partial(run_abstractly, model, args, kwargs, _positive), "positive", model, kinds, tree
    )
    there = [x for x in anatomy.parameters if x in params and x in names]
    positive = {name: np.asarray(params[name]) for name in there}
    rows = rows_of(anatomy, args, kwargs)
    parts = [np.array(np.asarray(x)[:MOST_ROWS]) for x in rows.leaves]
    some = rows.join(parts)
    limit = np.sqrt(100.0 * np.finfo(jnp.result_type(float)).eps)
    spread = max((float(np.std(x)) for x in parts), default=0.0)
    for name, value in positive.items():
        if np.min(value) > limit * spread:  # the program need not be run
            continue
        scales = once(partial(_scales, model, arguments=some))
        before, after = scales(params), scales({**params, name: 2.0 * jnp.asarray(value)})
        for site, (scale, deviation) in before.items():
            if np.array_equal(scale, after[site][0]):
                continue
            columns = deviation if value.shape == deviation.shape else deviation.max()
            low = value[value <= limit * columns]
            if low.size:
                return (
                    f"{name!r} is {low.min():.3g}, its floor: the rows are explained without "
                    "noise, so that the likelihood has no maximum; use fewer latents, more rows "
                    "or a prior on it (prior=True)"
                )
    return None


def _positive(trace: dict[str, dict]) -> set[str]:
    """The sites of positive numbers."""
    names = set()
    for name, site in trace.items():
        support = each_value(site["fn"].support) if site["type"] == "sample" else None
        if support in (constraints.positive, constraints.nonnegative):
            names.add(name)
    return names


def _scales(
    model: Callable, params: Params, arguments: Arguments
) -> dict[str, tuple[Array, Array]]:
    """Observed site -> its scale, and the standard deviation of its values by column."""
    scales = {}
    for name, site in trace_of(model, arguments, params).items():
        fn = innermost(site.get("fn"))
        if site["type"] == "sample" and site["is_observed"] and hasattr(fn, "scale"):
            scales[name] = jnp.asarray(fn.scale), jnp.std(site["value"], axis=0)
    return scales
