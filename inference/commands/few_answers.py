"""Cells hidden from a fit, and priors for columns that have few answers."""

from __future__ import annotations

import argparse
import inspect

import numpy as np
import numpyro.distributions as dist
from latentbits.models.data import InputError, Table

from ..methods.continuous.quadrature import few_rows
from .options import Given, tell

FEW_ANSWERS = 20
"""To a column on average, below which priors are used."""


def hide(given: Given, namespace: argparse.Namespace) -> tuple[Given, np.ndarray | None]:
    """Some of the cells are masked, and these, (num_cells, 2)."""
    share = namespace.hold_out
    if share is None:
        return given, None
    other = {x.partition(",")[0] for x in given.table.coding} & {"real", "ordinal", "categorical"}
    if not 0.0 < share < 1.0 or namespace.valid is not None or other:
        raise InputError(f"--hold-out {share:g}: wanted a share between 0 and 1 of cells of bits, "
                         "without --valid")  # fmt: skip
    if "mask" not in inspect.signature(given.program).parameters:
        raise InputError(f"--hold-out {share:g}: {given.name} takes no argument mask")
    mask = given.table.mask
    hidden = mask & (np.random.default_rng(namespace.seed).random(mask.shape) < share)
    if not hidden.any() or (hidden == mask).all():
        raise InputError(f"--hold-out {share:g} leaves no cell, of {int(mask.sum())}")
    table = given.table._replace(mask=mask & ~hidden)
    kwargs = {**given.kwargs, "mask": table.mask}
    return given._replace(table=table, kwargs=kwargs), np.argwhere(hidden)


def sparse(table: Table) -> bool:
    """Whether columns have too few answers to determine them: few rows of very many columns, or a
    table most of whose cells are missing."""
    few = not table.mask.all() and table.mask.sum() < FEW_ANSWERS * table.mask.shape[1]
    return few or few_rows(table.mask.shape)


def held(given: Given) -> Given:
    """With priors that hold columns of few answers, where the program takes them and none were
    said: those of latent_trait are wide, and many columns would outweigh the factors' own."""
    mask = given.table.mask
    takes = inspect.signature(given.program).parameters
    size = given.kwargs.get("num_factors", getattr(takes.get("num_factors"), "default", 0))
    priors, words = {}, "priors are used"
    if {"prior_weights", "prior_bias"} <= set(takes) - set(given.kwargs) and size:
        if size > 1 and few_rows(mask.shape):
            raise InputError(
                f"--set num_factors={size}: {mask.shape[0]} rows do not determine the scale of a "
                f"second factor of {mask.shape[1]} columns; wanted num_factors=1, or "
                "--set prior_weights=... that do"
            )
        mean = np.eye(size, 1, dtype=np.float32)
        priors = {"prior_weights": dist.Normal(mean, 0.5), "prior_bias": dist.Normal(0.0, 2.0)}
        words += ", of discriminations Normal(1, 0.5), of intercepts Normal(0, 2)"
        words += ", which leave factors beyond the first undetermined" if size > 1 else ""
    tell([f"{words}: {mask.sum() / mask.shape[1]:.3g} answers do not determine a column (--set "
          "prior_weights=... for others, --option prior=False: maximum likelihood)"])  # fmt: skip
    return given._replace(kwargs={**given.kwargs, **priors})
