"""Scalars of a program's parameters that do not depend on the names of its hidden units.

Draws of a sampler wander between orders of the units and turns of the factors, all equally right.
What is ranked, compared or plotted must not notice: sums over the units, sizes, inner products, the
log densities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...evaluation.evidence import likelihood
from ...evaluation.symmetry import Exchange, Rotation, form_of, symmetries
from ...reading.anatomy import inspect
from ...reading.arguments import rows_of
from ...reading.local import log_prior
from ...reading.recognise import Known
from ...types import Params

QUADRATURE_NODES = 11
"""Nodes a dimension for factors integrated out: enough where weights are below 3."""


def of_parameters(form: Known | None, params: Params) -> dict[str, Array]:
    """Invariant scalars of one set of parameters, by name.

    :param form: which of our programs it is; the names are then those of the form.

    >>> from latentbits.models import latent_trait
    >>> form = form_of(latent_trait, ((jnp.eye(2),), {}))
    >>> params = {"weights": jnp.array([[3.0, 1.0], [4.0, 1.0]]), "bias": jnp.zeros(2)}
    >>> values = of_parameters(form, params)
    >>> [name for name in sorted(values) if "weights" in name]
    ['weights size', 'weights, largest axis', 'weights, x1·x2']
    >>> round(float(values["weights, x1·x2"]), 3)
    7.0
    """
    known = symmetries(form)
    params = params if form is None else form.read(params)
    turned = {x.site for x in known if isinstance(x, Rotation)}
    exchanged = {site for x in known if isinstance(x, Exchange) for site, _ in x.sites}
    out: dict[str, Array] = {}
    for site, value in params.items():
        if jnp.ndim(value) == 0:
            out[site] = value
            continue
        size = jnp.sqrt(jnp.mean(value**2))
        if site in turned:
            out[f"{site} size"] = size
            out[f"{site}, x1·x2"] = value[:, 0] @ value[:, 1]
            if value.shape[0] > 1:
                out[f"{site}, largest axis"] = jnp.linalg.norm(value, 2)
            continue
        out[f"{site} mean"] = jnp.mean(value)
        if site in exchanged and value.ndim == 1:
            out[f"{site}, largest"] = jnp.max(value)
        else:
            out[f"{site} size"] = size
        if site not in exchanged:
            out[f"{site}, first"] = value.ravel()[0]
    return out


def scalars(model: Callable, data: Array, **kwargs: Any) -> Callable[[Params, Array], dict]:
    """A function of draws of the parameters (num_draws, ...) and of a table of the shape of `data`.

    It gives, beside `of_parameters`, the log likelihood of the table with its latents summed out,
    and the log prior. The first is the scalar most likely to show what is wrong with a posterior
    (Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman & Vehtari 2023).

    >>> from latentbits.models import bernoulli_product
    >>> table = jnp.array([[1.0], [0.0]])
    >>> values = scalars(bernoulli_product, table)({"probs": jnp.array([[0.5], [0.1]])}, table)
    >>> [round(x, 3) for x in jnp.exp(values["log likelihood"]).tolist()]
    [0.25, 0.09]
    """
    anatomy = inspect(model, (data,), kwargs)
    form = form_of(model, ((data,), kwargs))
    rule = likelihood(model, data, num_nodes=QUADRATURE_NODES, **kwargs)
    hollow = rule.rows._replace(leaves=())

    def one(params: Params, table: Array) -> dict[str, Array]:
        rows = hollow._replace(leaves=(table,))
        density = jnp.sum(rule.function(params, rows).value)
        few = rows_of(anatomy, (table,), kwargs).slice(0, 1)
        prior = log_prior(model, anatomy.with_rows(1), params, few)
        return {
            "log likelihood": density,
            "log prior": prior,
            **of_parameters(form, params),
        }

    def many(draws: Params, table: Array) -> dict[str, Array]:
        return lax.map(lambda params: one(params, table), draws)

    return jax.jit(many)
