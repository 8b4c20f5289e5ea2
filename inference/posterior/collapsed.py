"""A program as a density of its parameters alone, in unconstrained coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.util import constrain_fn, log_density, potential_energy, unconstrain_fn

from ..baselines.starts import differentiable
from ..evaluation.evidence import likelihood
from ..reading.anatomy import Anatomy, ChainError, ProgramError, inspect
from ..reading.arguments import as_double, rows_of
from ..reading.marginal import marginal
from ..rows.devices import OneDevice, one_device
from ..types import Params

INSIDE = 0.01
"""How far a start at a bound is moved towards the middle of its support."""
FAR = 7.0
"""Unconstrained coordinate of a bounded parameter that is at its bound: a probability of 0.999."""


def of_rows(
    model: Callable, args: tuple, kwargs: dict[str, Any]
) -> tuple[Callable, tuple, dict[str, Any]]:
    """A program whose rows stand for themselves, with its arguments.

    Where latents are those of a chain, or meet beyond their rows, they are summed and the table is
    one row. The program then holds its arguments: what an index reads must be known when it is
    compiled.
    """
    try:
        inspect(model, args, kwargs).check_rows_are_apart()
    except ChainError:
        return partial(_one_row, model, *as_double((args, kwargs))), (), {}
    return model, args, kwargs


def _one_row(model: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    marginal(model)(*args, **kwargs)
    with numpyro.plate("table", 1):
        numpyro.factor("row", jnp.zeros(1))


def collapsed(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Callable:
    """The program of the parameters alone: every latent of a row is summed or integrated out.

    Discrete latents are summed by `marginal`; continuous ones are integrated by quadrature, at most
    three of a row. The result is a NumPyro program of the same arguments: NUTS and SVI run on it.

    >>> from latentbits.models import latent_trait
    >>> program = collapsed(latent_trait, (jnp.eye(4),), {"num_factors": 1})
    >>> with handlers.trace() as trace, handlers.seed(rng_seed=0):
    ...     program(jnp.eye(4), num_factors=1)
    >>> [name for name, site in trace.items() if not site["is_observed"]]
    ['weights', 'bias']
    """
    anatomy = inspect(model, args, kwargs)
    if all(x.num_values is not None for x in anatomy.latents):
        return differentiable(model, anatomy)
    rule = likelihood(model, *args, **kwargs)
    if rule.sampled:
        raise ProgramError(
            "the likelihood of a row is only estimated (four or more continuous latents): draw "
            "parameters and latents together, NUTS(model)"
        )

    parameters, row_evidence = _parameters(model, anatomy), rule.function

    def program(*args: Any, **kwargs: Any) -> None:
        with handlers.trace() as trace:
            parameters(*args, **kwargs)
        params = {name: trace[name]["value"] for name in anatomy.parameters}
        evidence = row_evidence(params, rows_of(anatomy, args, kwargs))
        numpyro.factor("log_likelihood", jnp.sum(evidence.value))

    return program


def _parameters(model: Callable, anatomy: Anatomy) -> Callable:
    """The program without its rows."""
    shown = (*anatomy.parameters, *anatomy.outside)
    rows = {x.name for x in anatomy.latents}

    def anywhere(site: dict[str, Any]) -> Array | None:
        """A value for what is hidden: none of it is used."""
        if site["name"] not in rows:
            return None
        kind = int if site["fn"].support.is_discrete else float
        return jnp.zeros(site["fn"].shape(), kind)

    filled = handlers.substitute(model, substitute_fn=anywhere)
    return handlers.block(filled, hide_fn=lambda site: site.get("name") not in shown)


def priors_of(program: Callable) -> Callable:
    """A program of parameters alone without what is observed: their priors."""
    return handlers.block(program, hide_fn=lambda site: site.get("is_observed", False))


class Density(NamedTuple):
    """The log density of the parameters, priors and Jacobian included, as functions of arrays.

    They are pure: the rows go in as `arrays`, so that one compiled function serves many tables.
    """

    program: Callable
    device: OneDevice  # without its arrays
    parameters: tuple[str, ...]
    unravel: Callable[[Array], Params]

    def __call__(self, flat: Array, arrays: list[Array]) -> Array:
        """Of unconstrained parameters (p,)."""
        return -potential_energy(self.program, *self.device.arguments(arrays), self.unravel(flat))

    def constrain(self, flat: Array, arrays: list[Array]) -> Params:
        """The parameters by site."""
        free = self.unravel(flat)
        sites = constrain_fn(self.program, *self.device.arguments(arrays), free)
        return {name: sites[name] for name in self.parameters}

    def unconstrain(self, params: Params, arrays: list[Array]) -> Array:
        """Parameters by site as one vector, (p,); not finite at a bound."""
        free = unconstrain_fn(self.program, *self.device.arguments(arrays), params)
        return ravel_pytree({name: free[name] for name in self.parameters})[0]

    def inside(self, params: Params, arrays: list[Array]) -> Array:
        """The same of parameters that may lie at a bound: those are moved towards the middle."""
        flat = self.unconstrain(params, arrays)
        middle = self.constrain(jnp.zeros_like(flat), arrays)
        near = {x: (1.0 - INSIDE) * params[x] + INSIDE * middle[x] for x in self.parameters}
        moved = self.unconstrain(near, arrays)
        # Zero is the middle of the real line alone.
        bounded = {x: jnp.broadcast_to(jnp.any(middle[x] != 0.0), v.shape)
                   for x, v in self.unravel(flat).items()}  # fmt: skip
        far = ravel_pytree(bounded)[0] & ~(jnp.abs(flat) <= FAR)
        return jnp.where(far, moved, flat)

    def log_joint(self, params: Params, arrays: list[Array]) -> Array:
        """The log density of parameters by site, without the Jacobian."""
        return log_density(self.program, *self.device.arguments(arrays), params)[0]


def density_of(
    model: Callable, args: tuple, kwargs: dict[str, Any], params: Params
) -> tuple[Density, Density]:
    """The density of a program on its data, and that of its priors alone.

    :param params: of the right shapes.
    """
    anatomy = inspect(model, args, kwargs)
    program, device = collapsed(model, args, kwargs), one_device(args, kwargs)
    free = jax.eval_shape(lambda x: unconstrain_fn(program, args, kwargs, x), params)
    like = {x: jnp.zeros(free[x].shape) for x in anatomy.parameters}
    unravel = ravel_pytree(like)[1]
    density = Density(program, device._replace(arrays=[]), anatomy.parameters, unravel)
    return density, density._replace(program=priors_of(program))
