"""Scales of an observed site that are too small: at their floor, or for the digits of a float."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.distribution import validation_enabled

from ..types import Arguments, Params
from .anatomy import Anatomy, ProgramError
from .arguments import put, rows_of
from .forms import unwrapped
from .log_joint import local_sites
from .reader import inspect_all
from .tracing import each_value, innermost, run_abstractly, trace_of

MOST_ROWS = 1000
"""Rows by which the spread of what is observed is judged."""
FLOOR = 1e-5
"""Of the deviation of a column: a scale below is at its floor. M-steps stop at a tenth of it."""
MOST_LOST = 1e-3
"""Nats of a cell that rounding may cost."""


class ScaleWarning(UserWarning):
    """A scale of the noise is too small."""


class FloorWarning(ScaleWarning):
    """A scale is as small as numbers allow: the rows are explained without any noise."""


class PrecisionWarning(ScaleWarning):
    """Squares of what is observed have too few digits for its noise."""


class _Opened(NamedTuple):
    """A program with normal columns, and some rows of it."""

    model: Callable
    anatomy: Anatomy  # of these rows
    some: Arguments
    positive: dict[str, np.ndarray]  # the parameters that may be scales
    parts: list[np.ndarray]  # the arguments that have rows


def _open(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], plate: str | None
) -> _Opened | None:
    try:
        model, anatomy = inspect_all(model, args, kwargs, plate)
    except ProgramError:  # that of a method which reads it in its own way
        return None
    if not any("Normal" in name for name in anatomy.likelihoods):
        return None
    names = run_abstractly(model, args, kwargs, _positive)
    there = [x for x in anatomy.parameters if x in params and x in names]
    rows = rows_of(anatomy, args, kwargs)
    parts = [np.array(np.asarray(x)[:MOST_ROWS]) for x in rows.leaves]
    local = anatomy.with_rows(min(rows.num_data, MOST_ROWS))
    positive = {name: np.asarray(params[name]) for name in there}
    # Arrays of JAX's: a program may index them by what is traced.
    return _Opened(model, local, rows.join([put(x) for x in parts]), positive, parts)


def at_floor(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], plate: str | None = None
) -> str | None:
    """Which scale of an observed site ran to its floor, in a sentence; None if none did.

    >>> from latentbits.models import binary_sparse_coding
    >>> data = jnp.array([[1.0, 0.0], [0.0, 3.0]])
    >>> params = {"weights": data, "noise": jnp.array(1e-6), "sparsity": jnp.array(0.5)}
    >>> print(at_floor(binary_sparse_coding, params, (data,), {"num_causes": 2}))
    'noise' is 1e-06, its floor: the rows are explained without noise, so that the likelihood has \
no maximum; use fewer latents, more rows or a prior on it (prior=True)
    >>> at_floor(binary_sparse_coding, {**params, "noise": 0.1}, (data,), {"num_causes": 2})
    """
    opened = _open(model, params, args, kwargs, plate)
    if opened is None:
        return None
    model, _, some, positive, parts = opened
    spread = max((float(np.std(x)) for x in parts), default=0.0)
    for name, value in positive.items():
        if np.min(value) > FLOOR * spread:  # the program need not be run
            continue
        scales = jax.jit(partial(_scales, model, arguments=some))
        before, after = scales(params), scales({**params, name: 2.0 * jnp.asarray(value)})
        for site, (scale, deviation) in before.items():
            if np.array_equal(scale, after[site][0]):
                continue
            columns = deviation if value.shape == deviation.shape else deviation.max()
            low = value[value <= FLOOR * columns]
            if low.size:
                return (
                    f"{name!r} is {low.min():.3g}, its floor: the rows are explained without "
                    "noise, so that the likelihood has no maximum; use fewer latents, more rows "
                    "or a prior on it (prior=True)"
                )
    return None


def lost_digits(
    model: Callable,
    params: Params,
    args: tuple,
    kwargs: dict[str, Any],
    plate: str | None = None,
    columns: Sequence[str] = (),
) -> str | None:
    """Which column is too large beside its noise for the digits of a float, in a sentence; or None.

    Sums over states and rows expand the square of a normal cell about its mean at latents of zero:
    that costs :math:`\\epsilon |y|^2 / \\sigma^2` nats of each.

    :param columns: names of the columns, if the site has as many.

    >>> from latentbits.models import binary_sparse_coding
    >>> data = jnp.array([[1.0, 0.0], [0.0, 3000.0]])
    >>> params = {"weights": data, "noise": jnp.array(1.0), "sparsity": jnp.array(0.5)}
    >>> print(lost_digits(binary_sparse_coding, params, (data,), {"num_causes": 2}))
    column 2 of 'observed' is 2.1e+03 times its noise of 1: squares in float32 are off by 0.5 nats \
a cell; compute in float64 (numpyro.enable_x64() in a script, JAX_ENABLE_X64=1 before a command)
    >>> lost_digits(binary_sparse_coding, {**params, "noise": 100.0}, (data,), {"num_causes": 2})
    """
    opened = _open(model, params, args, kwargs, plate)
    if opened is None:
        return None
    kind = np.finfo(jnp.result_type(float))
    numbers = (x for x in opened.parts if x.dtype.kind in "fiu")
    largest = max((float(np.max(np.abs(x), initial=0.0)) for x in numbers), default=0.0)
    least = min((float(x.min()) for x in opened.positive.values() if x.size), default=0.0)
    if kind.eps * largest**2 <= MOST_LOST * least**2:  # the program need not be run
        return None
    ratios = jax.jit(partial(_ratios, opened.model, opened.anatomy, arguments=opened.some))
    try:
        found = ratios(params)
    except ProgramError:  # one that takes no axis of states
        return None
    for site, (ratio, scale) in found.items():
        place = int(np.argmax(ratio))
        lost = float(kind.eps * ratio[place] ** 2)
        if not lost > MOST_LOST:
            continue
        named = columns[place] if len(columns) == len(ratio) else f"column {place + 1} of {site!r}"
        return (
            f"{named if len(ratio) > 1 else repr(site)} is {ratio[place]:.2g} times its noise of "
            f"{scale[place]:.3g}: squares in {kind.dtype} are off by {lost:.1g} nats a cell; "
            "compute in float64 (numpyro.enable_x64() in a script, JAX_ENABLE_X64=1 before a "
            "command)"
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


def _ratios(
    model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments
) -> dict[str, tuple[Array, Array]]:
    """Normal site -> root mean square of its columns about their means at latents of zero, over
    their scales, (columns,), and these."""
    whole = all(x.num_values is not None for x in anatomy.latents)
    zero = jnp.zeros((1, 1, anatomy.num_bits), int if whole else float)
    ratios = {}
    with validation_enabled(False):  # what fails it has been said
        sites = local_sites(model, anatomy, params, anatomy.unpack(zero), arguments)
    for site in sites:
        base, mask = unwrapped(site.fn)
        if site.latent or not isinstance(base, dist.Normal):
            continue
        away = (site.value - base.loc) / base.scale
        away = away if mask is None else jnp.where(mask, away, 0.0)
        flat = away.reshape(anatomy.num_data, -1)
        scale = jnp.broadcast_to(base.scale, away.shape).reshape(anatomy.num_data, -1)
        ratios[site.name] = jnp.sqrt((flat**2).mean(0)), scale[0]
    return ratios
