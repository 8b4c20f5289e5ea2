"""What every program here shares: its data plate, and observing with holes.

A program is a plain NumPyro function

    def model(data=None, *, mask=None, num_data=None, <sizes>, <priors>)

that simulates when ``data`` is None. What recurs in them is written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.primitives import plate


def data_plate(data: Array | None, num_data: int | None) -> plate:
    """The plate ``"data"``: one row, one datum.

    With both arguments, ``data`` are a minibatch of ``num_data`` rows and the plate scales the log
    density accordingly, as NumPyro's own subsampling does.
    """
    if data is None:
        if num_data is None:
            raise ValueError("give `data`, or `num_data` to simulate that many rows")
        return numpyro.plate("data", num_data, dim=-1)
    rows = jnp.shape(data)[0]
    if num_data is None or num_data == rows:
        return numpyro.plate("data", rows, dim=-1)
    if num_data < rows:
        raise ValueError(
            f"`num_data` is {num_data!r:.80}, but `data` has {rows} rows: it must not be less"
        )
    # Which rows are at hand is the caller's choice: there is nothing to draw, so no key is needed.
    with handlers.substitute(data={"data": jnp.arange(rows)}):
        return numpyro.plate("data", num_data, subsample_size=rows, dim=-1)


def num_columns(data: Array | None, num_features: int | None) -> int:
    """The number of observed columns: that of ``data``, or ``num_features`` to simulate."""
    if data is None:
        if num_features is None:
            raise ValueError("give `data`, or `num_features` to simulate that many columns")
        return num_features
    if jnp.ndim(data) != 2:
        raise ValueError(f"`data` must be (num_data, num_features), found shape {jnp.shape(data)}")
    columns = jnp.shape(data)[1]
    if num_features is not None and num_features != columns:
        raise ValueError(f"`num_features` is {num_features!r:.80}; `data` has {columns} columns")
    return columns


def membership(
    num_components: int,
    prior_mixing: dist.Distribution | None,
    covariates: Array | None,
    prior_effects: dist.Distribution,
) -> dist.Distribution:
    """Of the class of a row: the same for all, or a multinomial logit on its covariates.

    :param prior_mixing: a distribution on the simplex; by default the uniform one. Without use
        where there are covariates.
    :param covariates: (num_data, num_covariates); the first class is the reference.
    """
    if covariates is None:
        if prior_mixing is None:
            prior_mixing = dist.Dirichlet(jnp.ones(num_components))
        return dist.Categorical(probs=numpyro.sample("mixing", prior_mixing))
    size = num_components - 1
    intercept = numpyro.sample("class_intercept", prior_effects.expand((size,)).to_event(1))
    logits = predictor(covariates, size, prior_effects) + intercept
    reference = jnp.zeros((*logits.shape[:-1], 1), logits.dtype)
    return dist.Categorical(logits=jnp.concatenate([reference, logits], -1))


def predictor(covariates: Array, size: int, prior_effects: dist.Distribution) -> Array:
    """``covariates @ effects``, (num_data, size), of a site ``"effects"``."""
    shape = jnp.shape(covariates)[-1], size
    effects = numpyro.sample("effects", prior_effects.expand(shape).to_event(2))
    return jnp.asarray(covariates) @ jnp.asarray(effects)


def observe(fn: dist.Distribution, data: Array | None, mask: Array | None) -> Array:
    """The site ``"observed"``: independent columns, of which the masked ones do not count.

    :param fn: a distribution whose last batch axis is the columns.
    :param mask: True where a cell was observed, shape (num_data, num_features).
    """
    if mask is not None:
        if data is not None and jnp.shape(mask) != jnp.shape(data):
            raise ValueError(
                f"`mask` has shape {jnp.shape(mask)}, but `data` has shape {jnp.shape(data)}"
            )
        fn = fn.mask(mask)
    return numpyro.sample("observed", fn.to_event(1), obs=data)


def check_levels(
    data: Array | None,
    mask: Array | None,
    levels: int | Sequence[int],
    num_features: int | None,
) -> tuple[int, ...]:
    """The number of levels of each column, as ``levels`` says it of all or of each."""
    if isinstance(levels, int | np.integer):
        if data is None and num_features is None:
            raise ValueError("give `data`, `num_features`, or `levels` with one number per column")
        columns = num_columns(data, num_features)
        levels = (int(levels),) * columns
    numbers = tuple(int(k) for k in levels)
    for place, k in enumerate(numbers):
        if k < 2:
            raise ValueError(f"`levels` has {k} for column {place}: wanted at least 2")
    width = num_columns(data, len(numbers) if data is None else num_features)
    if width != len(numbers):
        raise ValueError(f"`levels` names {len(numbers)} columns, but `data` has {width}")
    if data is not None and mask is not None and jnp.shape(mask) != jnp.shape(data):
        raise ValueError(
            f"`mask` has shape {jnp.shape(mask)}, but `data` has shape {jnp.shape(data)}"
        )
    return numbers


def by_levels(levels: Sequence[int]) -> dict[int, np.ndarray]:
    """K -> the columns of K levels, small K first.

    >>> {k: columns.tolist() for k, columns in by_levels((5, 2, 5)).items()}
    {2: [1], 5: [0, 2]}
    """
    numbers = np.asarray(levels)
    return {int(k): np.flatnonzero(numbers == k) for k in np.unique(numbers)}


def observe_levels(
    fns: dict[int, dist.Distribution],
    levels: Sequence[int],
    data: Array | None,
    mask: Array | None,
) -> Array:
    """The sites ``"observed_K"``, one for the columns of each number of levels, as one table.

    :param fns: K -> a distribution whose last batch axis is the columns of K levels.
    """
    parts, order = [], []
    for k, columns in by_levels(levels).items():
        fn = fns[k] if mask is None else fns[k].mask(mask[:, columns])
        value = None if data is None else jnp.asarray(data)[:, columns].astype(jnp.int32)
        parts.append(numpyro.sample(f"observed_{k}", fn.to_event(1), obs=value))
        order.append(columns)
    return jnp.concatenate(parts, axis=-1)[..., np.argsort(np.concatenate(order))]
