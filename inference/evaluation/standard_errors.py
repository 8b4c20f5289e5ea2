"""Standard errors of parameters from the observed information of the marginal likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from ..methods.continuous.factor_em import maps_of
from ..methods.continuous.factors import FactorReader
from ..methods.continuous.guessing import Guessing
from ..methods.continuous.opening import FORMS, Opened, open_columns
from ..methods.continuous.regressions import Regressions, bit_information
from ..methods.continuous.rules import Rule, about, default_nodes, nodes_of, peaks, weigh
from ..methods.continuous.shared_nodes import MOST_AT_ONCE, log_table, one_rule
from ..numerics.acceleration import chart
from ..reading.anatomy import ProgramError, inspect
from ..reading.arguments import put
from ..reading.log_joint import log_shared
from ..reading.marginal import row_evidence
from ..reading.reader import open_program
from ..reading.recognition.papers import Form
from ..rows.chunks import Rows, chunk_of, compiled, sum_over_chunks
from ..running.algorithm import pad
from ..types import Arguments, Params
from .evidence import likelihood

LEAST_CURVATURE = 1e-10
"""Of the information, its diagonal scaled to one: what is less is a matter of rounding. In float64
a sum over rows keeps about twelve digits. Parameters in float32 are themselves rounded: there it is
a hundred times their relative error."""


class UndeterminedWarning(UserWarning):
    """Some directions of the parameters are not determined by the data.

    >>> issubclass(UndeterminedWarning, UserWarning)
    True
    """


def standard_errors(
    model: Callable,
    params: Params,
    *args: Any,
    num_nodes: int | None = None,
    chunk_size: int | None = None,
    prior: bool = False,
    **kwargs: Any,
) -> Params:
    r"""Standard errors of maximum-likelihood parameters, by site.

    The observed information is minus the Hessian of :math:`\sum_n \log p(t_n)` in float64:
    discrete latents are summed out as `marginal` does it, factors integrated out by quadrature
    about their modes (at most 3 of them). A rotation of the factors changes nothing, so the
    information is singular in its direction; the canonical form (`continuous.factor_em.canonical`:
    orthogonal rows of W) is the constraint that makes it regular, and the errors are those of the
    parameters under it (Silvey 1959):

    .. math:: \mathrm{cov} = Z (Z^T I Z)^{-1} Z^T, \qquad Z \text{ spans the null space of }
              \partial\,\mathrm{offdiag}(W W^T) / \partial\theta .

    Parameters with constraints (a standard deviation, a simplex) have the covariance of the
    unconstrained ones, carried over by the whole Jacobian of the transform (delta method).

    If :math:`Z^T I Z` is not positive definite, at a condition number that float64 carries, there
    are no standard errors: all are NaN, and an `UndeterminedWarning` says how many directions the
    data do not determine. So it is where the parameters are no maximum, where there are more
    factors than the columns can tell apart, and where a weight is on its way to infinity.

    :param params: a maximum in canonical form, as the methods return it.
    :param prior: it is one of the posterior (``prior=True`` of the methods): the information is
        that of data and priors together.

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> from latentbits.inference.methods.continuous.quadrature import QuadratureEM
    >>> data = prototypes(jax.random.key(0), copies=50, num_features=6, flip=0.3).data
    >>> fit = QuadratureEM(latent_trait).run(jax.random.key(1), 20, data, num_factors=1)
    >>> standard_errors(latent_trait, fit.params, data, num_factors=1)["bias"].shape
    (6,)
    """
    errors, lost, count = _one(model, params, args, kwargs, num_nodes, chunk_size, prior)
    if lost:
        warnings.warn(
            f"{undetermined_words(lost)}: the information of the {count} parameters is not "
            "positive definite there, and all standard errors are NaN. Fit to convergence, take "
            "fewer factors, or keep parameters finite with prior=True",
            UndeterminedWarning,
            stacklevel=2,
        )
    kind = jnp.result_type(float)  # converted by NumPy: JAX would compile that
    return {name: put(np.asarray(value, kind)) for name, value in errors.items()}


def undetermined(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], most_work: float
) -> int:
    """In how many directions the information at these parameters is not positive.

    :param most_work: rows × columns × nodes × parameters up to which it is computed.
    :raises ProgramError: where it is not, with the reason.
    """
    with jax.enable_x64(True):
        opened = open_columns(model, args, kwargs, None)
    factors, rows = opened.reader.num_factors, opened.rows
    numbers = sum(int(np.size(x)) for x in params.values())
    work = rows.num_data * rows.width * default_nodes(factors) ** factors * numbers
    if work > most_work:
        raise ProgramError(f"too large a table: {work:.1e} terms")
    return _one(model, params, args, kwargs)[1]


def undetermined_words(lost: int) -> str:
    """
    >>> undetermined_words(2)
    '2 directions are not determined by these data'
    """
    some = "1 direction is" if lost == 1 else f"{lost} directions are"
    return f"{some} not determined by these data"


def _one(
    model: Callable,
    params: Params,
    args: tuple,
    kwargs: dict[str, Any],
    num_nodes: int | None = None,
    chunk_size: int | None = None,
    prior: bool = False,
) -> tuple[dict[str, np.ndarray], int, int]:
    """The errors by site, in how many directions there are none, and the number of all."""
    information, slopes = _observed(model, params, args, kwargs, num_nodes, chunk_size, prior)
    many, lost = _errors(information, slopes, _least(params))
    return {name: value[0] for name, value in many.items()}, int(lost[0]), information.shape[1]


def covariance_of(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], prior: bool = False
) -> np.ndarray:
    """The covariance of all parameters, laid end to end: see `standard_errors`."""
    information, (carry, normal) = _observed(model, params, args, kwargs, None, None, prior)
    matrix = 0.5 * (information + np.swapaxes(information, -1, -2))
    covariance, _ = _covariance(matrix, normal, _least(params))
    flat = np.concatenate([carry[x][0].reshape(-1, matrix.shape[-1]) for x in params])
    return flat @ covariance[0] @ flat.T


def _observed(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], num_nodes: int | None,
    chunk_size: int | None, prior: bool,
) -> tuple[np.ndarray, Any]:  # fmt: skip
    """The information and the slopes, each with a leading axis of one."""
    with jax.enable_x64(True):
        filled = pad(model, args, kwargs, None)
        if filled is not None:
            with filled.counting():
                return _observed(
                    model, params, filled.args, filled.kwargs, num_nodes, chunk_size, prior
                )
        opened = _open(model, args, kwargs)
        compute = compiled(_computation(opened, num_nodes, chunk_size, prior), opened.rows)
        found = compute(opened.rows.leaves, _wide(params))
        return jax.tree.map(lambda x: np.asarray(x, np.float64)[None], found)


def _wide(params: Params) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float64) for name, value in params.items()}


def _open(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Opened:
    """A program on its data: its factors are integrated out, or its states summed."""
    anatomy = inspect(model, args, kwargs)
    anatomy.check_rows_are_all()
    if not anatomy.latents or any(x.num_values is None for x in anatomy.latents):
        return open_columns(model, args, kwargs, None, mixed=True)
    if likelihood(model, *args, **kwargs).sampled:
        raise ProgramError(
            "the latents of a datum have too many states to be summed: the likelihood is only "
            "estimated, and its second derivatives are not"
        )
    reader: Any
    reader, rows = open_program(model, args, kwargs)
    return Opened(reader, rows, None, None)


def _computation(
    opened: Opened, num_nodes: int | None, chunk_size: int | None, prior: bool = False
) -> Callable[[Rows, Params], tuple[Array, tuple[Params, Array | None]]]:
    """The information at some parameters, with their slopes, as a function that holds no rows."""
    reader, rows, each = opened.reader, opened.rows, opened.rows.width
    if isinstance(reader, FactorReader):
        count = reader.num_factors
        # Second derivatives of sharp items want twice as many in each dimension as a fit.
        rule: Any = nodes_of(reader, num_nodes or 2 * default_nodes(count))
        # Of bits the score of every column is kept.
        each *= len(rule.points) * reader.num_states * (count + 1 if _bits(opened) else 1)
        if num_nodes is None and _levels(opened) is not None:
            rule, each = ON_SHARED_NODES, each + MOST_AT_ONCE[count] ** count
    else:
        rule, each = None, each + reader.anatomy.num_bits
    size, hollow = chunk_of(chunk_size, each, rows), opened.hollow

    def compute(rows: Rows, params: Params) -> Any:
        here = hollow._replace(rows=rows)
        information = _information(here, rule, size, params)
        if prior:
            information = information + _prior_information(here, params)
        return information, _slopes(here, params)

    return compute


ON_SHARED_NODES = "shared"
"""In place of a rule about each row's mode."""


def _bits(opened: Opened) -> bool:
    """Whether the columns are bits, each with a predictor of its own."""
    columns = opened.columns
    return type(columns) is Regressions and columns.logistic


def _levels(opened: Opened) -> Regressions | None:
    """Columns of ordered levels or with asymptotes, of which all rows share their nodes."""
    known: Any = opened.known
    if known is not None and known.form is Form.GUESSING:
        return Guessing(known.kinds)
    return opened.columns if known is not None and known.form is Form.GRADED else None


def _prior_information(opened: Opened, params: Params) -> Array:
    """Minus the Hessian of the log prior in the unconstrained parameters."""
    reader, rows = opened.reader, opened.rows
    space = chart(params, maps_of(reader, rows, params))
    log_prior = lambda v: log_shared(reader.model, reader.anatomy, space.build(v), rows)  # noqa: E731
    return -jax.hessian(log_prior)(space.flatten(params))


def _information(opened: Opened, rule: Rule | str | None, size: int, params: Params) -> Array:
    """Minus the Hessian of the log likelihood of all rows in the unconstrained parameters.

    :param rule: over the factors; None where states are summed.
    """
    reader, rows, known, columns = opened
    space = chart(params, maps_of(reader, rows, params))
    local, point = reader.at(size), space.flatten(params)

    def hessian(evidence: Callable[[Params], Array], fresh: Array) -> Array:
        slope = jax.grad(lambda v: jnp.sum(fresh * evidence(space.build(v))))
        along = lambda direction: jax.jvp(slope, (point,), (direction,))[1]  # noqa: E731
        return -lax.map(along, jnp.eye(len(point)))

    def summed(arguments: Arguments, fresh: Array) -> Array:
        if rule is None:
            own: Any = local
            weight, one = own.weights(params, arguments), own.anatomy
            evidence = lambda new: row_evidence(own.model, one, new, arguments, own.structure)  # noqa: E731
            return hessian(evidence, fresh if weight is None else fresh * weight)
        if isinstance(rule, str):
            levels: Any = _levels(opened)
            known: Any = opened.known
            read = lambda new: levels.read(known.read(new))  # noqa: E731
            nodes = lax.stop_gradient(one_rule(read(params), levels.share))
            responses = levels.responses(*known.cells(reader.model, arguments))
            table = lambda new: log_table(levels, read(new), responses, nodes)  # noqa: E731
            return hessian(lambda new: logsumexp(table(new), 0), fresh)
        modes = peaks(local, params, arguments, local.start(), 15)
        # The nodes stay where the parameters at hand put them: the sum is smooth in the others.
        moved = lax.stop_gradient(about(local, modes, rule))
        if _bits(opened) and columns is not None:
            weight = weigh(local, params, arguments, moved)[1] * fresh
            values, responses = opened.values(params), opened.responses(arguments)
            return bit_information(columns, values, responses, moved.points, weight)
        program = local._replace(closed=None)  # whose logarithms of products differentiate slowly
        return hessian(lambda new: weigh(program, new, arguments, moved)[0], fresh)

    information = sum_over_chunks(summed, rows, size)
    if not _bits(opened) or known is None:
        return information
    # From the numbers of the form to those of the program, and to unconstrained ones. At a maximum
    # the second derivative of that map does not matter.
    places = {role: place.positions for role, place in known.places.items()}
    order = np.concatenate([places["weights"].T, places["bias"][:, None]], 1).ravel()
    carry = jax.jacobian(space.build)(point)
    flat = jnp.concatenate([carry[name].reshape(-1, len(order)) for name in known.shapes])
    return flat[order].T @ information.reshape(len(order), len(order)) @ flat[order]


def _least(params: Params) -> float:
    kinds = [np.asarray(x).dtype for x in params.values() if np.asarray(x).dtype.kind == "f"]
    return max([LEAST_CURVATURE, *(100.0 * float(np.finfo(kind).eps) for kind in kinds)])


def _slopes(opened: Opened, params: Params) -> tuple[Params, Array | None]:
    """How the parameters change with the unconstrained ones, (..., p) by site; and the directions
    that leave the canonical form, (constraints, p)."""
    space = chart(params, maps_of(opened.reader, opened.rows, params))
    known, point = opened.known, space.flatten(params)
    carry = jax.jacobian(space.build)(point)
    if known is None or known.form not in FORMS or opened.reader.num_factors == 1:
        return carry, None
    above = np.triu_indices(opened.reader.num_factors, 1)

    def off_diagonal(vector: Array) -> Array:
        weights = known.read(space.build(vector))["weights"]
        return (weights @ weights.T)[above]

    return carry, jax.jacobian(off_diagonal)(point)


def _errors(
    information: np.ndarray, slopes: tuple[dict[str, np.ndarray], np.ndarray | None], least: float
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Errors of each of many sets of parameters, given their information (num_sets, p, p).

    :param slopes: as `_slopes` has them, with a leading axis of num_sets.
    :return: by site, and in how many directions each set is not determined, (num_sets,).
    """
    carry, normal = slopes
    matrix = np.asarray(information, np.float64)
    covariance, lost = _covariance(0.5 * (matrix + np.swapaxes(matrix, -1, -2)), normal, least)
    errors = {}
    for name, slope in carry.items():
        flat = slope.reshape(len(slope), -1, slope.shape[-1])
        variance = np.einsum("sap,spq,saq->sa", flat, covariance, flat)
        errors[name] = np.sqrt(variance).reshape(slope.shape[:-1])
    return errors, lost


def _covariance(
    matrix: np.ndarray, normal: np.ndarray | None, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """The inverse information on the surface of canonical parameters, NaN where it is not definite.

    :return: (num_sets, p, p), and the number of directions that are not determined, (num_sets,).
    """
    span = np.broadcast_to(np.eye(matrix.shape[-1]), matrix.shape)
    if normal is not None:
        basis = np.linalg.svd(normal, full_matrices=True)[2]
        span = np.swapaxes(basis[:, normal.shape[1] :], -1, -2)
    within = np.swapaxes(span, -1, -2) @ matrix @ span
    finite = np.isfinite(within).all((-1, -2))
    within = np.where(finite[:, None, None], within, -np.eye(within.shape[-1]))
    # In units of each direction's own curvature: a column of large numbers is not ill-conditioned.
    size = np.abs(np.diagonal(within, axis1=-2, axis2=-1))
    scale = 1.0 / np.sqrt(np.where(size > 0, size, 1.0))
    values, vectors = np.linalg.eigh(within * scale[:, :, None] * scale[:, None, :])
    lost = (values <= least * values[:, -1:].clip(0.0)).sum(-1)
    roots = np.sqrt(np.where(lost[:, None] > 0, np.nan, values))
    half = span @ (scale[:, :, None] * vectors / roots[:, None])
    return half @ np.swapaxes(half, -1, -2), lost
