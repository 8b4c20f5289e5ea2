"""Standard errors of items from the observed information of the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..methods.continuous.factor_em import maps_of, rotates
from ..methods.continuous.factors import FactorReader, chunk_of, open_factors, width
from ..methods.continuous.rules import (
    Rule,
    about_modes,
    climb,
    default_nodes,
    gauss_hermite,
    weigh,
)
from ..numerics.acceleration import chart
from ..numerics.compiling import remembered
from ..rows.chunks import Rows, compiled, map_over_chunks, sum_over_chunks
from ..types import Arguments, Params


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
    (`continuous.factor_em.canonical`: orthogonal rows of W) is the constraint that makes it
    regular, and the errors are those of the parameters under it (Silvey 1959):

    .. math:: \mathrm{cov} = Z (Z^T I Z)^{-1} Z^T, \qquad Z \text{ spans the null space of }
              \partial\,\mathrm{offdiag}(W W^T) / \partial\theta .

    :param params: a maximum in canonical form, as the methods return it.

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> from latentbits.inference.methods.continuous.quadrature import QuadratureEM
    >>> data = prototypes(jax.random.key(0), copies=50, num_features=6, flip=0.3).data
    >>> found = QuadratureEM(latent_trait).run(jax.random.key(1), 20, data, num_factors=1)
    >>> standard_errors(latent_trait, found.params, data, num_factors=1)["bias"].shape
    (6,)
    """
    reader, rows = open_factors(model, args, kwargs, None)
    rule = gauss_hermite(reader.num_factors, num_nodes or default_nodes(reader.num_factors))
    params = {name: jnp.asarray(value, float) for name, value in params.items()}
    size = chunk_of(chunk_size, len(rule.points) * width(rows), rows)

    def compute(rows: Rows, params: Params) -> Array:
        return _information(reader, rule, size, rows, params)

    found = compiled(compute, rows)(rows.leaves, params)
    many = _errors(reader, rows, found[None], jax.tree.map(lambda x: x[None], params))
    return {name: value[0] for name, value in many.items()}


def many_standard_errors(
    model: Callable,
    params: Params,
    data: Array,
    *,
    num_nodes: int | None = None,
    **kwargs: Any,
) -> Params:
    """`standard_errors` for many data sets of one shape, in one compiled call.

    Where the parameters are no maximum, their errors are NaN.

    :param params: (num_sets, ...) by site; data: (num_sets, num_data, num_features).
    """
    reader, rows = open_factors(model, (data[0],), kwargs, None)
    rule = gauss_hermite(reader.num_factors, num_nodes or default_nodes(reader.num_factors))
    size = chunk_of(None, len(rule.points) * width(rows), rows)
    hollow = rows._replace(leaves=())

    def one(params: Params, table: Array) -> Array:
        return _information(reader, rule, size, hollow._replace(leaves=(table,)), params)

    return _errors(reader, rows, remembered(jax.vmap(one))(params, data), params, definite=True)


def _information(reader: FactorReader, rule: Rule, size: int, rows: Rows, params: Params) -> Array:
    """Minus the Hessian of the log likelihood of all rows in the unconstrained parameters."""
    space = chart(params, maps_of(reader, rows, params))

    def up(arguments: Arguments, extra: None, start: Array) -> Array:
        del extra, start
        zero = jnp.zeros((size, reader.num_factors))
        return climb(reader.at(size), params, arguments, zero, 15)

    modes = map_over_chunks(up, rows, size, None)

    def part(vector: Array, arguments: Arguments, modes: Array, fresh: Array) -> Array:
        # The nodes stay where the parameters at hand put them: the sum is smooth in the others.
        moved = about_modes(reader.at(size), params, arguments, modes, rule)
        moved = jax.lax.stop_gradient(moved)
        return jnp.sum(fresh * weigh(reader.at(size), space.build(vector), arguments, moved)[0])

    point = space.flatten(params)

    def along(direction: Array) -> Array:
        def chunk(arguments: Arguments, modes: Array, fresh: Array) -> Array:
            slope = jax.grad(lambda v: part(v, arguments, modes, fresh))
            return jax.jvp(slope, (point,), (direction,))[1]

        return sum_over_chunks(chunk, rows, size, modes)

    return -jax.lax.map(along, jnp.eye(len(point)))


def _errors(
    reader: FactorReader, rows: Rows, information: Array, params: Params, definite: bool = False
) -> Params:
    """Errors of each of many sets of parameters, given their information (num_sets, p, p)."""
    maps = maps_of(reader, rows, jax.tree.map(lambda x: x[0], params))
    turns = rotates(reader.model) and params["weights"].shape[1] > 1

    # Errors of the unconstrained parameters, carried over to the constrained ones by their slope.
    def carry(params: Params, errors: Array) -> Params:
        space = chart(params, maps)
        scale = jax.jvp(space.build, (space.flatten(params),), (errors,))[1]
        return {name: jnp.abs(value) for name, value in scale.items()}

    # (num_sets, constraints, p): the directions that leave the canonical form.
    def normals(params: Params) -> Array:
        space = chart(params, maps)
        above = np.triu_indices(params["weights"].shape[0], 1)

        def off_diagonal(vector: Array) -> Array:
            weights = space.build(vector)["weights"]
            return (weights @ weights.T)[above]

        return jax.jacobian(off_diagonal)(space.flatten(params))

    matrix = np.asarray(information, np.float64)  # small, and often ill-conditioned
    matrix = 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
    normal = np.asarray(remembered(jax.vmap(normals))(params), np.float64) if turns else None
    return remembered(jax.vmap(carry))(
        params, jnp.asarray(_deviations(matrix, normal, definite), float)
    )


def _deviations(matrix: np.ndarray, normal: np.ndarray | None, definite: bool) -> np.ndarray:
    """Roots of the diagonal of the inverse information, on the surface of canonical parameters.

    :param definite: NaN where the parameters are no maximum: the information is not positive there.
    """
    span = np.broadcast_to(np.eye(matrix.shape[-1]), matrix.shape)
    if normal is not None:
        turned = np.linalg.svd(normal, full_matrices=True)[2]
        span = np.swapaxes(turned[:, normal.shape[1] :], -1, -2)
    within = np.swapaxes(span, -1, -2) @ matrix @ span
    sound = np.ones(len(within), bool)
    if definite:
        some = np.eye(within.shape[-1])
        sound &= np.isfinite(within).all((-1, -2))
        sound &= np.linalg.eigvalsh(np.where(sound[:, None, None], within, some))[:, 0] > 0.0
        within = np.where(sound[:, None, None], within, some)
    covariance = span @ np.linalg.inv(within) @ np.swapaxes(span, -1, -2)
    diagonal = np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
    return np.where(sound[:, None], np.sqrt(diagonal), np.nan)
