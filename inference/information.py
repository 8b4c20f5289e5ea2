"""Standard errors of items from the observed information of the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from inference.acceleration import chart
from inference.continuous import (
    about_modes,
    chunk_of,
    climb,
    compiled,
    default_nodes,
    gauss_hermite,
    open_factors,
    weigh,
    width,
)
from inference.factor_em import maps_of, rotates
from inference.local import Params
from inference.rows import Arguments, Rows, map_over_chunks, sum_over_chunks


def standard_errors(
    model: Callable,
    params: Params,
    *args: Any,
    num_nodes: int | None = None,
    chunk_size: int | None = None,
    **kwargs: Any,
) -> Params:
    r"""Standard errors of maximum-likelihood parameters, by site.

    The observed information is minus the Hessian of :math:`\sum_n \log p(t_n)`, the factors
    integrated out by quadrature about their modes (at most 3 of them). A rotation of the factors
    changes nothing, so the information is singular in its direction; the canonical form
    (`inference.factor_em.canonical`: orthogonal rows of W) is the constraint that makes it regular,
    and the errors are those of the parameters under it (Silvey 1959):

    .. math:: \mathrm{cov} = Z (Z^T I Z)^{-1} Z^T, \qquad Z \text{ spans the null space of }
              \partial\,\mathrm{offdiag}(W W^T) / \partial\theta .

    :param params: a maximum in canonical form, as the methods return it.

    >>> from ppl_models import latent_trait
    >>> from ppl_models.data import prototypes
    >>> from inference.methods.quadrature import QuadratureEM
    >>> data = prototypes(jax.random.key(0), copies=50, num_features=6, flip=0.3).data
    >>> found = QuadratureEM(latent_trait).run(jax.random.key(1), 20, data, num_factors=1)
    >>> standard_errors(latent_trait, found.params, data, num_factors=1)["bias"].shape
    (6,)
    """
    reader, rows = open_factors(model, args, kwargs, None)
    rule = gauss_hermite(reader.num_factors, num_nodes or default_nodes(reader.num_factors))
    params = {name: jnp.asarray(value, float) for name, value in params.items()}
    space = chart(params, maps_of(reader, rows, params))
    size = chunk_of(chunk_size, len(rule.points) * width(rows), rows.num_data)

    def information(rows: Rows, params: Params) -> Array:
        def up(arguments: Arguments, extra: None, start: Array) -> Array:
            del extra, start
            zero = jnp.zeros((size, reader.num_factors))
            return climb(reader.at(size), params, arguments, zero, 15)

        modes = map_over_chunks(up, rows, size, None)

        def part(vector: Array, arguments: Arguments, modes: Array, fresh: Array) -> Array:
            # The nodes stay where the parameters at hand put them: the sum is smooth in the others.
            moved = about_modes(reader.at(size), params, arguments, modes, rule)
            moved = jax.lax.stop_gradient(moved)
            return fresh @ weigh(reader.at(size), space.build(vector), arguments, moved)[0]

        point = space.flatten(params)

        def along(direction: Array) -> Array:
            def chunk(arguments: Arguments, modes: Array, fresh: Array) -> Array:
                slope = jax.grad(lambda v: part(v, arguments, modes, fresh))
                return jax.jvp(slope, (point,), (direction,))[1]

            return sum_over_chunks(chunk, rows, size, modes)

        return -jax.lax.map(along, jnp.eye(len(point)))

    found = compiled({}, "information", information, rows, params)
    matrix = np.asarray(found, np.float64)
    covariance = _constrained(0.5 * (matrix + matrix.T), space, params, rotates(model))
    errors = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    # Errors of the unconstrained parameters, carried over to the constrained ones by their slope.
    scale = jax.jvp(space.build, (space.flatten(params),), (jnp.asarray(errors, float),))[1]
    return {name: jnp.abs(value) for name, value in scale.items()}


def _constrained(matrix: np.ndarray, space: Any, params: Params, turns: bool) -> np.ndarray:
    """The inverse of the information on the surface of canonical parameters."""
    if not turns or params["weights"].shape[0] == 1:
        return np.linalg.inv(matrix)
    above = np.triu_indices(params["weights"].shape[0], 1)

    def off_diagonal(vector: Array) -> Array:
        weights = space.build(vector)["weights"]
        return (weights @ weights.T)[above]

    normal = np.asarray(jax.jacobian(off_diagonal)(space.flatten(params)), np.float64)
    span = np.linalg.svd(normal, full_matrices=True)[2][len(normal) :].T
    return span @ np.linalg.inv(span.T @ matrix @ span) @ span.T
