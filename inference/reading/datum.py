"""The form of a program that is affine in the datum: read on one row, tested, never assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions.distribution import validation_enabled

from ..rows.chunks import Rows
from ..types import Arguments, Params
from .abstract import run_abstractly
from .affine import AffineForm, Cells, SiteForm, layout_of, site_form, unwrapped
from .anatomy import Anatomy, ProgramError
from .local import anywhere, local_sites, log_joint, stand_in
from .probe import probe

About = tuple[Array | None, ...]


def read_form(
    model: Callable,
    anatomy: Anatomy,
    params: Params,
    table: Array,
    row: Arguments,
    about: About | None = None,
) -> AffineForm | None:
    """The form for states (S, bits) that all rows share; None if a site is not affine.

    :param anatomy: that of one row.
    :param row: the arguments with one row: of its values the form has no more than a point near
        them, which a normal's statistics are taken about.
    :param about: the points that a form of other parameters was taken about (`about_of`).
    """
    constant = jnp.zeros(len(table))
    sites: list[SiteForm] = []
    powers: list[Array] = []
    for site in local_sites(model, anatomy, params, table[:, None].astype(jnp.int32), row):
        if jnp.ndim(site.power) and np.prod(jnp.shape(site.power)) != 1:
            return None
        power = jnp.reshape(site.power, ())
        if site.latent:
            constant = constant + power * anatomy.per_datum(site.log_prob())[:, 0]
            continue
        layout = layout_of(site.fn, anatomy.nesting, anatomy.plate_dim)
        point = about[len(sites)] if about is not None else None
        form = site_form(site.fn, layout, site.value, point)
        if form is None:
            return None
        sites.append(form)
        powers.append(power)
    return AffineForm(constant, tuple(sites), tuple(powers))


def about_of(form: AffineForm) -> About:
    """The points that the statistics of a form are taken about."""
    return tuple(site.family.about for site in form.sites)


def cells_of(
    model: Callable, anatomy: Anatomy, params: Params, form: AffineForm, arguments: Arguments
) -> Cells:
    """What is observed in each row, and where: all that the form wants of the rows."""
    any_state = jnp.zeros((1, 1, anatomy.num_bits), jnp.int32)
    sites = local_sites(model, anatomy, params, any_state, arguments)
    observed = [site for site in sites if not site.latent]
    pairs = zip(form.sites, observed, strict=True)
    return tuple(own.cells(site.value, unwrapped(site.fn)[1]) for own, site in pairs)


def find_affine(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Test on random parameters, rows and states, in float64, whether the form holds."""
    num_rows = min(rows.num_data, 5)
    discrete = lambda trace: [trace[x]["fn"].support.is_discrete for x in anatomy.observed]  # noqa: E731
    # If anything observed is discrete, stand-ins must be whole numbers too.
    whole = any(run_abstractly(model, *rows.slice(0, 1), discrete))

    def error(seed: Array, leaves: list[Array]) -> Array:
        arguments, row = rows.join(leaves), rows.join([leaf[:1] for leaf in leaves])
        few, one = anatomy.with_rows(num_rows), anatomy.with_rows(1)
        key_params, key_states = random.split(random.key(seed))
        most = np.concatenate([np.full(x.size, x.num_values) for x in anatomy.latents])
        table = random.randint(key_states, (32, anatomy.num_bits), 0, most) + anatomy.lowest
        params = anywhere(model, few, key_params, arguments)
        with validation_enabled(False):  # the rows are stand-ins
            direct = log_joint(model, few, params, table[:, None], arguments)
            form = read_form(model, one, params, table, row)
            if form is None:
                return jnp.full((), jnp.inf)
            read = form.log_joint(cells_of(model, few, params, form, arguments))
        apart = jnp.abs(jnp.where(direct == read, 0.0, direct - read)).max()
        return apart / (1.0 + jnp.abs(jnp.where(jnp.isfinite(direct), direct, 0.0)).max())

    with jax.enable_x64(True):
        leaves = [_like(x, num_rows, i, whole) for i, x in enumerate(rows.leaves)]
        try:
            errors = probe(error, [(np.int32(seed), leaves) for seed in range(2)])
        except ProgramError:
            return False  # the program runs on states all the same, or says why it does not
        return all(bool(error <= 1e-9) for error in errors)


def _like(leaf: Any, num_rows: int, seed: int, whole: bool) -> np.ndarray:
    """Stand-ins for rows, no two alike; where something is discrete they hold the data's values."""
    values = stand_in(leaf, num_rows, seed, exact=whole)
    if whole and isinstance(leaf, jax.core.Tracer) and values.dtype.kind == "f":
        return np.random.default_rng(seed).integers(0, 2, values.shape).astype(values.dtype)
    return values
