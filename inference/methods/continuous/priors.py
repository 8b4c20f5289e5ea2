"""Priors that the grid can use: normal ones of weights and biases, Beta ones of asymptotes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

from ...reading.recognition.papers import Form
from ...reading.recognition.sites import run_program
from ...reading.tracing import innermost
from .curves import Prior
from .opening import Opened


def normal_priors(opened: Opened) -> Prior | None:
    """The priors of a program of bits; None where one is of another kind.

    >>> from latentbits.models import latent_trait
    >>> from .opening import open_columns
    >>> opened = open_columns(latent_trait, (np.eye(3),), {"num_factors": 1}, None)
    >>> normal_priors(opened).bias[1].round(3).tolist()
    [0.04, 0.04, 0.04]
    """
    known: Any = opened.known
    if known.form is Form.GRADED:
        return None  # their cutpoints depend on each other
    ones = {name: np.full(shape, 0.5) for name, shape in known.shapes.items()}
    program = handlers.substitute(opened.reader.model, data=ones)
    trace = run_program(program, opened.rows.slice(0, 1))
    kinds: list[str] = []
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    for name, shape in known.shapes.items():
        site = trace[name]
        base = innermost(site["fn"]) if site["type"] == "sample" else None
        pair: tuple[Any, Any]
        if isinstance(base, dist.Normal):
            kind, pair = "normal", (base.loc, np.asarray(base.scale, float) ** -2.0)
        elif isinstance(base, dist.Beta):
            pair = (base.concentration1 - 1.0, base.concentration0 - 1.0)
            kind = "beta"
        elif base is None or isinstance(base, dist.Uniform | dist.ImproperUniform):
            kind, pair = "flat", (0.0, 0.0)
        else:
            return None
        size = int(np.prod(shape))
        kinds += [kind] * size
        for parts, one in zip((first, second), pair, strict=True):
            parts.append(np.broadcast_to(np.asarray(one, float), shape).ravel())
    table = np.stack([np.concatenate(first), np.concatenate(second)])
    by_role = {role: table[:, place.positions] for role, place in known.places.items()}
    wanted = {"guessing": {"beta", "flat"}}
    for role, place in known.places.items():
        met = {kinds[i] for i in np.ravel(place.positions)}
        if not met <= wanted.get(role, {"normal", "flat"}):
            return None
    from scipy.special import betaln

    normal, beta = (table[:, np.array(kinds) == kind] for kind in ("normal", "beta"))
    constant = 0.5 * np.log(normal[1] / (2.0 * np.pi)).sum() - betaln(*(beta + 1.0)).sum()
    return Prior(by_role["weights"], by_role["bias"], by_role.get("guessing"), float(constant))
