"""Standard errors and intervals of parameters from the marginal likelihood."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from ..methods.continuous.opening import open_columns
from ..methods.continuous.rules import default_nodes
from ..numerics.profile import flat, limit, newton
from ..reading.anatomy import ProgramError
from ..reading.arguments import put
from ..rows.chunks import compiled
from ..running.algorithm import pad
from ..types import Params
from .surface import Curvature, Settings, climb, curvature, open_surface

LEAST_CURVATURE = 1e-10
"""Of the information, its diagonal scaled to one: what is less is a matter of rounding. In float64
a sum over rows keeps about twelve digits. Parameters in float32 are themselves rounded: there it is
a hundred times their relative error."""


MOST_LIMITS = 12
"""Parameters at a bound whose limits a warning states: each takes some thirty gradients."""
MOST_ROUNDS = 5
"""Newton's steps after which parameters are no longer looked for at bounds."""
MOST_CLIMBS = 30
"""Newton's steps to a maximum."""
ENOUGH = 1e-7
"""Nats that the next of them may have left to gain."""
BESIDE = 1e-12
"""Distance from a bound, in units of the range or of one, that the logarithm of a probability can
do with, and a likelihood does not feel."""
DROP = 0.5 * float(chi2.ppf(0.9, 1))
"""By which the profile log likelihood has fallen at a one-sided limit of 95 %: 1.353."""


class UndeterminedWarning(UserWarning):
    """Some directions of the parameters are not determined by the data.

    >>> issubclass(UndeterminedWarning, UserWarning)
    True
    """


class Bound(NamedTuple):
    """A parameter whose most likely value is its bound."""

    site: str
    place: tuple[int, ...]
    value: float  # the bound
    limit: float  # one-sided, of 95 %: where the profile has fallen by 1.353; NaN: not computed

    def __str__(self) -> str:
        """
        >>> str(Bound("probs", (0, 3), 0.0, 0.125)), str(Bound("leak", (), 0.0, float("nan")))
        ('probs[0, 3] = 0 (below 0.12)', 'leak = 0')
        """
        where = f"[{', '.join(map(str, self.place))}]" if self.place else ""
        side = "below" if self.limit > self.value else "above"
        limit = "" if np.isnan(self.limit) else f" ({side} {self.limit:.2g})"
        return f"{self.site}{where} = {self.value:.4g}{limit}"


class BoundWarning(UserWarning):
    """Some parameters are at their bounds, where there is no standard error.

    :ivar bounds: each of them.

    >>> print(BoundWarning([Bound("probs", (0, 3), 0.0, 0.125)], 0))
    at a bound: probs[0, 3] = 0 (below 0.12); limits are one-sided, of 95 %, from the profile \
likelihood. These have no standard error, and those of the others are with these fixed
    """

    def __init__(self, bounds: Sequence[Bound], idle: int):
        self.bounds = tuple(bounds)
        more = f" and {len(bounds) - MOST_LIMITS} more" if len(bounds) > MOST_LIMITS else ""
        lacking = f"; the data say nothing of {idle} others while they are there" if idle else ""
        super().__init__(
            f"at a bound: {', '.join(map(str, bounds[:MOST_LIMITS]))}{more}; limits are one-sided, "
            "of 95 %, from the profile likelihood. These have no standard error, and those of the "
            f"others are with these fixed{lacking}"
        )


def standard_errors(
    model: Callable,
    params: Params,
    *args: Any,
    num_nodes: int | None = None,
    chunk_size: int | None = None,
    prior: bool = False,
    sandwich: bool = False,
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

    Derivatives are taken in the parameters' own units, those of a simplex in all its entries but
    the largest. Parameters with other constraints have the covariance of the unconstrained ones,
    carried over by the whole Jacobian of the transform (delta method).

    **Bounds.** Where the most likely value of a parameter is its bound (a weight or a probability
    of 0), its error is NaN, those of the others are computed with it fixed, and one `BoundWarning`
    names it with a limit: where the profile log likelihood, all other parameters maximised anew,
    has fallen by 1.353 (one-sided, of 95 %). `confidence_intervals` gives those of all parameters,
    which near a bound hold where an estimate ± 1.96 errors does not. Of what the data then say
    nothing, as the probabilities of a class without members, the errors are NaN too.

    If :math:`Z^T I Z` is not positive definite, at a condition number that float64 carries, there
    are no standard errors: all are NaN, and an `UndeterminedWarning` says how many directions the
    data do not determine. So it is where the parameters are no maximum, where there are more
    factors than the columns can tell apart, and where a weight is on its way to infinity.

    :param params: a maximum in canonical form, as the methods return it; of a hidden Markov chain,
        too.
    :param prior: it is one of the posterior (``prior=True`` of the methods): the information is
        that of data and priors together.
    :param sandwich: errors from :math:`A^{-1} B A^{-1}`, with A the information and B the sum of
        outer products of the weighted scores of rows (of the sequences of chains): for survey
        weights (``numpyro.handlers.scale`` in the data plate), which do not count rows, and for
        programs that may be wrong (Huber 1967).

    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> from latentbits.inference.methods.continuous.quadrature import QuadratureEM
    >>> data = prototypes(jax.random.key(0), copies=50, num_features=6, flip=0.3).data
    >>> fit = QuadratureEM(latent_trait).run(jax.random.key(1), 20, data, num_factors=1)
    >>> standard_errors(latent_trait, fit.params, data, num_factors=1)["bias"].shape
    (6,)
    """
    top = Maximum(model, params, args, kwargs, num_nodes, chunk_size, prior, sandwich)
    if top.lost:
        warnings.warn(
            f"{undetermined_words(top.lost)}: the information of the {len(top.held)} parameters is "
            "not positive definite there, and all standard errors are NaN. Fit to convergence, "
            "take fewer factors, or keep parameters finite with prior=True",
            UndeterminedWarning,
            stacklevel=2,
        )
    elif top.held.any():
        warnings.warn(BoundWarning(top.bounds(MOST_LIMITS), int(top.idle.sum())), stacklevel=2)
    kind = jnp.result_type(float)  # converted by NumPy: JAX would compile that
    return {name: put(np.asarray(value, kind)) for name, value in top.errors.items()}


def confidence_intervals(
    model: Callable,
    params: Params,
    *args: Any,
    level: float = 0.95,
    sites: Sequence[str] | None = None,
    num_nodes: int | None = None,
    chunk_size: int | None = None,
    prior: bool = False,
    **kwargs: Any,
) -> Params:
    r"""Confidence intervals of maximum-likelihood parameters from the profile likelihood, by site.

    The interval of a parameter holds all values at which the log likelihood, maximised over all
    other parameters, is at most half the quantile of :math:`\chi^2_1` below its maximum (1.92 at
    95 %). It needs neither a curvature nor a scale on which the estimate is normal: near a bound it
    is not symmetric, and at a bound it begins there. Each end takes some thirty gradients.

    :param params: a maximum, as the methods return it.
    :param sites: whose intervals are computed; by default all.
    :param prior: they are a maximum of the posterior: the profile is that of its density.
    :return: (2, ...) by site, lower and upper ends as of `numpyro.diagnostics.hpdi`; infinite where
        the profile does not fall so far, NaN where it could not be followed.

    >>> from latentbits.models import bernoulli_mixture
    >>> point = {"mixing": np.ones(1), "probs": np.zeros((1, 1))}
    >>> given = {"num_components": 1, "sites": ["probs"]}
    >>> found = confidence_intervals(bernoulli_mixture, point, np.zeros((40, 1)), **given)["probs"]
    >>> [f"{x:.4f}" for x in (*found.ravel(), 1 - np.exp(-1.9207 / 40))]
    ['0.0000', '0.0469', '0.0469']
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level} is no probability between 0 and 1")
    top = Maximum(model, params, args, kwargs, num_nodes, chunk_size, prior)
    at, drop, found = top.at, 0.5 * float(chi2.ppf(level, 1)), {}
    for name in at.carry if sites is None else sites:
        if name not in at.carry:
            raise ValueError(f"{name!r} is no parameter: there are {', '.join(at.carry)}")
        slope, value = at.carry[name], top.params[name]
        if not np.isin(slope.round(9), (-1.0, 0.0, 1.0)).all():
            raise ProgramError(f"site {name!r} has a constraint under which none are computed")
        ends = np.full((2, *value.shape), np.nan)
        for index in np.ndindex(value.shape):
            for k, side in enumerate((-1.0, 1.0)):
                moved = side * top.limit(side * slope[index], drop) - slope[index] @ at.point
                ends[(k, *index)] = value[index] + moved
        found[name] = put(np.asarray(ends, jnp.result_type(float)))
    return found


def finish(
    model: Callable, params: Params, *args: Any, prior: bool = False, **kwargs: Any
) -> tuple[Params, float, float]:
    """Parameters at the end of a run, moved to the maximum of the likelihood by Newton's method.

    EM gains less than the rounding of its loss long before the maximum where classes overlap. Here
    all is float64; a step is halved until the likelihood is higher, and stays within the bounds.

    :return: the parameters, their log likelihood (with ``prior=True`` that of the posterior, up to
        a constant), and the nats that another step would gain: infinite where no step is known.

    >>> from latentbits.models import bernoulli_mixture
    >>> rates = {"mixing": np.ones(1), "probs": np.full((1, 1), 0.4)}
    >>> there, value, left = finish(bernoulli_mixture, rates, np.eye(4)[:, :1], num_components=1)
    >>> float(there["probs"].round(4)[0, 0]), round(value, 4), left < 1e-7
    (0.25, -2.2493, True)
    """
    surface, left = Surface(model, params, args, kwargs, prior=prior), np.inf
    for _ in range(MOST_CLIMBS):
        at, step = surface.at, np.zeros(len(surface.at.point))
        linear = all(np.isin(x.round(9), (-1.0, 0.0, 1.0)).all() for x in at.carry.values())
        if at.slope is None or not linear or not np.isfinite(at.information).all():
            return params, np.nan, np.inf
        free = np.flatnonzero(~flat(at.information, at.point))
        within = at.information[np.ix_(free, free)], at.slope[free], at.point[free]
        there, left = newton(*within, (at.box[0][free], at.box[1][free]))
        for share in 0.5 ** np.arange(8.0) if left > ENOUGH else ():
            step[free] = share * (there - at.point[free])
            surface.stand({x: v + at.carry[x] @ step for x, v in at.params.items()})
            if surface.at.value > at.value:
                break
        else:
            break
    # From the edge of the box to the bounds, where the logarithm of a probability is a number yet.
    bounds = at.bounds[0] + BESIDE, at.bounds[1] - BESIDE
    ends = np.select([at.point <= at.box[0], at.point >= at.box[1]], bounds, at.point) - at.point
    return {x: v + at.carry[x] @ ends for x, v in at.params.items()}, float(at.value), left


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
    top = Maximum(model, params, args, kwargs)
    return top.lost + int(top.idle.sum())


def undetermined_words(lost: int) -> str:
    """
    >>> undetermined_words(2)
    '2 directions are not determined by these data'
    """
    some = "1 direction is" if lost == 1 else f"{lost} directions are"
    return f"{some} not determined by these data"


class Surface:
    """The log likelihood of a program on its data, in float64.

    :ivar at: it and its derivatives at some parameters.
    """

    def __init__(
        self, model: Callable, params: Params, args: tuple, kwargs: dict, *how: Any, **more: Any
    ) -> None:
        self.how = Settings(*how, **more)
        with jax.enable_x64(True):
            self.filled = pad(model, args, kwargs, None)
            if self.filled is not None:
                args, kwargs = self.filled.args, self.filled.kwargs
            self.opened = open_surface(model, args, kwargs)
        self.stand(_wide(params))

    def stand(self, params: dict[str, np.ndarray]) -> None:
        """Take the derivatives at these parameters."""
        self.params = params
        self.at: Curvature = self._run(curvature(self.opened, self.how), params)

    def _run(self, function: Callable, *inputs: Any) -> Any:
        """A function of the rows, compiled, in float64."""
        rows = self.opened.rows
        with jax.enable_x64(True), contextlib.ExitStack() as stack:
            if self.filled is not None:
                stack.enter_context(self.filled.counting())
            return jax.device_get(compiled(function, rows)(rows.leaves, *inputs))


class Maximum(Surface):
    """A maximum of the likelihood of a program on its data.

    Parameters on their way to a bound are put there, and others that have one moved to where the
    likelihood is then largest, to second order.

    :ivar at: the log likelihood there.
    :ivar held: (p,), which parameters are at a bound.
    :ivar idle: (p,), of which the data say nothing while those are.
    :ivar covariance: (p, p), of the others, and zero for these.
    :ivar lost: how many directions are not determined.
    """

    def __init__(
        self, model: Callable, params: Params, args: tuple, kwargs: dict, *how: Any, **more: Any
    ) -> None:
        super().__init__(model, params, args, kwargs, *how, **more)
        self.held, self.gain = np.zeros(len(self.at.point), bool), 0.0
        for _ in range(MOST_ROUNDS):
            if not self._hold():
                break
            self.stand(self.params)
        self.idle = flat(self.at.information, self.at.point) & ~self.held & self.held.any()
        free = ~self.held & ~self.idle
        self.covariance, self.lost = _covariance(self.at, free, _least(params))

    def _hold(self) -> bool:
        """Put more parameters at the bounds where Newton's step takes them, if there are such; then
        others that have bounds go with that step as well."""
        at = self.at
        if at.slope is None or not np.isfinite(at.information).all():
            return False
        free = np.flatnonzero(~flat(at.information, at.point) & ~self.held)
        low, high = (x[free] for x in at.bounds)
        within = at.information[np.ix_(free, free)], at.slope[free], at.point[free]
        there, self.gain = newton(*within, (low, high))
        ends = (there <= low) | (there >= high)
        self.held[free[ends]] = True
        moved = (np.isfinite(low) | np.isfinite(high)) & ends.any()
        for i, value in zip(free[moved], there[moved], strict=True):
            site, place = parameter_at(at.carry, int(i))
            self.params[site][place] = value
        return bool(ends.any())

    @property
    def errors(self) -> dict[str, np.ndarray]:
        """By site; NaN where a parameter is at a bound or not determined."""
        errors = {}
        for name, slope in self.at.carry.items():
            variance = np.einsum("...p,pq,...q->...", slope, self.covariance, slope)
            told = (variance > 0) & ~(slope[..., self.idle] != 0).any(-1)
            errors[name] = np.sqrt(np.where(told, variance, np.nan))
        return errors

    def climb(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The log likelihood and its gradient at a vector of parameters."""
        return self._run(climb(self.opened, self.how), self.params, vector)

    def limit(self, ahead: np.ndarray, drop: float) -> float:
        """How large `ahead` times the vector can be until the profile has fallen by `drop`."""
        size = np.diagonal(self.at.information)
        unit = 1.0 / np.sqrt(np.where(size > 0, size, 1.0))
        drop = drop - self.gain  # the point may be below the maximum
        return limit(self.climb, self.at.point, ahead, drop, self.at.box, unit)

    def bounds(self, most: int) -> list[Bound]:
        """The parameters at a bound, and limits of the first `most` of them."""
        at, found = self.at, list[Bound]()
        for i in np.flatnonzero(self.held):
            upper = at.point[i] > 0.5 * (at.box[0][i] + at.box[1][i])  # where one is infinite too
            side = np.where(np.arange(len(at.point)) == i, -1.0 if upper else 1.0, 0.0)
            far = side[i] * self.limit(side, DROP) if len(found) < most else np.nan
            found.append(
                Bound(*parameter_at(at.carry, int(i)), float(at.bounds[int(upper)][i]), far)
            )
        return found


def parameter_at(carry: dict[str, np.ndarray], coordinate: int) -> tuple[str, tuple[int, ...]]:
    """The parameter that is this coordinate of the vector."""
    sites = ((x, np.argwhere(np.isclose(of[..., coordinate], 1.0))) for x, of in carry.items())
    name, hits = next((x, hits) for x, hits in sites if len(hits))
    return name, tuple(hits[0].tolist())


def covariance_of(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], **how: bool
) -> np.ndarray:
    """The covariance of all parameters, laid end to end: see `standard_errors`.

    Zero for those at a bound.
    """
    top = Maximum(model, params, args, kwargs, **how)
    rows = np.concatenate([top.at.carry[x].reshape(-1, len(top.held)) for x in params])
    return rows @ top.covariance @ rows.T


def _wide(params: Params) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float64) for name, value in params.items()}


def _least(params: Params) -> float:
    kinds = [np.asarray(x).dtype for x in params.values() if np.asarray(x).dtype.kind == "f"]
    return max([LEAST_CURVATURE, *(100.0 * float(np.finfo(kind).eps) for kind in kinds)])


def _covariance(at: Curvature, free: np.ndarray, least: float) -> tuple[np.ndarray, int]:
    """The inverse information of the free coordinates on the surface of canonical parameters, zero
    for the others; NaN where it is not definite.

    :return: (p, p), and the number of directions that are not determined.
    """
    span = np.eye(len(free))[:, free]
    if at.normal is not None:
        span = span @ np.linalg.svd(at.normal[:, free])[2][len(at.normal) :].T
    within = span.T @ (0.5 * (at.information + at.information.T)) @ span
    if not np.isfinite(within).all():
        within = -np.eye(len(within))
    # In units of each direction's own curvature: a column of large numbers is not ill-conditioned.
    size = np.abs(np.diagonal(within))
    scale = 1.0 / np.sqrt(np.where(size > 0, size, 1.0))
    values, vectors = np.linalg.eigh(within * scale[:, None] * scale)
    lost = int((values <= least * values[-1:].clip(0.0)).sum())
    roots = np.sqrt(np.full_like(values, np.nan) if lost else values)
    half = span @ (scale[:, None] * vectors / roots)
    covariance = half @ half.T
    return covariance if at.outer is None else covariance @ at.outer @ covariance, lost
