"""What a likelihood cannot tell apart: hidden units in another order, factors turned.

Before parameters of two runs, chains or draws are compared, one is brought to the other: units are
matched one to one (Kuhn's assignment on their parameters), factors are rotated (Procrustes). A
program of somebody's own has no known symmetry: its parameters are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment

from latentbits import models

Values = dict[str, np.ndarray]


class Exchange(NamedTuple):
    """Units that may change places: in each of these sites, along its axis."""

    sites: tuple[tuple[str, int], ...]


class Rotation(NamedTuple):
    """A site (num_factors, num_features) whose first axis may be turned and mirrored."""

    site: str


def symmetries(model: Callable, params: Values) -> tuple[Exchange | Rotation, ...]:
    """What leaves the likelihood of a public program as it is.

    >>> [type(x).__name__ for x in symmetries(ppl_models.latent_trait, {})]
    ['Rotation']
    """
    while isinstance(model, partial):
        model = model.func
    name = getattr(model, "__name__", "")
    if getattr(models, name, None) is not model:
        return ()
    if name in ("latent_trait", "mixed_trait", "clipped_gaussian"):
        return (Rotation("weights"),)
    if name == "binary_sparse_coding":
        return (Exchange((("weights", 0),)),)
    if name in ("combination_machine", "real_combination_machine"):
        return (Exchange((("weights", 0), ("bias", 0))),)
    if name == "bernoulli_mixture":
        return (Exchange((("probs", 0), ("mixing", 0))),)
    if name == "noisy_or_network":
        layers = sum(site.startswith("weights_") for site in params)
        return tuple(_layer(k, k == layers) for k in range(1, layers + 1))
    return ()


def _layer(number: int, top: bool) -> Exchange:
    below = ((f"weights_{number}", 0), (f"leak_{number}", 0))
    return Exchange(below if top else (*below, (f"weights_{number + 1}", 1)))


def align(model: Callable, params: Values, reference: Values) -> Values:
    """Parameters brought as near to the reference as the symmetries allow.

    :param params: by site, with or without leading axes of draws.

    >>> mixture = ppl_models.bernoulli_mixture
    >>> wanted = {"mixing": np.array([0.9, 0.1]), "probs": np.array([[0.2], [0.7]])}
    >>> found = {"mixing": np.array([0.2, 0.8]), "probs": np.array([[0.6], [0.1]])}
    >>> align(mixture, found, wanted)["mixing"].tolist()
    [0.8, 0.2]
    """
    params = {name: np.asarray(value) for name, value in params.items()}
    known = symmetries(model, params)
    if not known:
        return params
    first = next(iter(reference))
    leading = params[first].shape[: params[first].ndim - np.ndim(reference[first])]
    flat = {x: v.reshape((-1, *v.shape[len(leading) :])) for x, v in params.items()}
    count = len(flat[first])
    draws = [_align_one(known, {x: v[i] for x, v in flat.items()}, reference) for i in range(count)]
    return {x: np.stack([d[x] for d in draws]).reshape(params[x].shape) for x in params}


def _align_one(known: tuple[Exchange | Rotation, ...], params: Values, reference: Values) -> Values:
    for symmetry in known:
        if isinstance(symmetry, Rotation):
            site = symmetry.site
            turn, _ = orthogonal_procrustes(params[site].T, np.asarray(reference[site]).T)
            params = {**params, site: turn.T @ params[site]}
        else:
            order = _match(symmetry, params, reference)
            params = {**params, **{s: np.take(params[s], order, a) for s, a in symmetry.sites}}
    return params


def _match(symmetry: Exchange, params: Values, reference: Values) -> np.ndarray:
    """The unit of `params` that stands for each of the reference."""
    cost: np.ndarray | float = 0.0
    for site, axis in symmetry.sites:
        found = np.moveaxis(params[site], axis, 0).reshape(params[site].shape[axis], -1)
        wanted = np.moveaxis(np.asarray(reference[site]), axis, 0)
        wanted = wanted.reshape(wanted.shape[0], -1)
        if axis == 0 or len(symmetry.sites) == 1:  # a layer above is put in order after this one
            cost = cost + ((wanted[:, None] - found[None]) ** 2).sum(-1)
    return linear_sum_assignment(np.asarray(cost))[1]
