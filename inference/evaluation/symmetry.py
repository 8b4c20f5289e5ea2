"""What a likelihood cannot tell apart: hidden units in another order, factors turned.

Before parameters of two runs, chains or draws are compared, one is brought to the other: units are
matched one to one (Kuhn's assignment on their parameters), factors are rotated (Procrustes). Which
symmetries a program has follows from its form, under whatever names
(`inference.reading.recognition.papers`); the parameters of a program of another form are left as
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment

from ..reading.anatomy import inspect
from ..reading.arguments import rows_of
from ..reading.recognition.papers import Form, Known, recall, recognise
from ..types import Arguments

Values = dict[str, np.ndarray]


class Exchange(NamedTuple):
    """Units that may change places: in each of these parameters of the form, along its axis."""

    sites: tuple[tuple[str, int], ...]


class Rotation(NamedTuple):
    """A parameter (num_factors, num_features) of the form whose first axis may be turned."""

    site: str


def form_of(model: Callable, arguments: Arguments) -> Known | None:
    """Which of our programs a program is; of the data only kinds and shapes matter."""
    anatomy = inspect(model, *arguments)
    return recognise(model, anatomy, rows_of(anatomy, *arguments)) if anatomy.latents else None


def symmetries(known: Known | None) -> tuple[Exchange | Rotation, ...]:
    """What leaves the likelihood of a program as it is, by the names of its form.

    >>> from latentbits.models import latent_trait
    >>> [type(x).__name__ for x in symmetries(form_of(latent_trait, ((np.eye(4),), {})))]
    ['Rotation']
    """
    if known is None:
        return ()
    if known.form is Form.NOISY_OR:
        layers = sum(role.startswith("weights_") for role in known.places)
        below = [((f"weights_{k}", 0), (f"leak_{k}", 0)) for k in range(1, layers + 1)]
        above = [*(((f"weights_{k}", 1),) for k in range(2, layers + 1)), ()]
        return tuple(Exchange((*x, *y)) for x, y in zip(below, above, strict=True))
    if known.form is Form.SPARSE_CODING:
        own = known.places["sparsity"].positions.ndim  # a prior of each cause goes with it
        return (Exchange((("weights", 0), ("sparsity", 0))[: 1 + own]),)
    if known.form is Form.CLASSES:
        return (Exchange(tuple((role, 0) for role in known.places)),)
    by_form: dict[Form, tuple[Exchange | Rotation, ...]] = {
        Form.TRAIT: (Rotation("weights"),),
        Form.GRADED: (Rotation("weights"),),
        Form.CLIPPED: (Rotation("weights"),),
        Form.MACHINE: (Exchange((("weights", 0), ("bias", 0))),),
        Form.REAL_MACHINE: (Exchange((("weights", 0), ("bias", 0))),),
        Form.MIXTURE: (Exchange((("probs", 0), ("mixing", 0))),),
    }
    return by_form[known.form]


def align(
    model: Callable, params: Values, reference: Values, arguments: Arguments | None = None
) -> Values:
    """Parameters brought as near to the reference as the symmetries allow.

    :param params: by site, with or without leading axes of draws.
    :param arguments: (args, kwargs) of the program; of the data only kinds and shapes matter. They
        may be left out where some method has read the program before.
    """
    params = {name: np.asarray(value) for name, value in params.items()}
    reference = {name: np.asarray(value) for name, value in reference.items()}
    known = recall(model, reference) if arguments is None else form_of(model, arguments)
    group = symmetries(known)
    if known is None or not group:
        return params
    if any(np.shape(reference[name]) != shape for name, shape in known.shapes.items()):
        return params  # of a network of another size
    goal = known.read(reference)
    first = next(iter(reference))
    leading = params[first].shape[: params[first].ndim - np.ndim(reference[first])]
    flat = {x: v.reshape((-1, *v.shape[len(leading) :])) for x, v in params.items()}
    each = ({x: v[i] for x, v in flat.items()} for i in range(len(flat[first])))
    draws = [known.write(_align_one(group, known.read(one), goal)) for one in each]
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
        units = np.moveaxis(params[site], axis, 0).reshape(params[site].shape[axis], -1)
        wanted = np.moveaxis(np.asarray(reference[site]), axis, 0)
        wanted = wanted.reshape(wanted.shape[0], -1)
        if axis == 0 or len(symmetry.sites) == 1:  # a layer above is put in order after this one
            cost = cost + ((wanted[:, None] - units[None]) ** 2).sum(-1)
    return linear_sum_assignment(np.asarray(cost))[1]
