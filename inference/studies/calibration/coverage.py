"""How often intervals hold the truth: EM's standard errors beside the quantiles of NUTS's draws.

The programs are those with continuous factors, `latent_trait` foremost, in canonical form: rows of
the weights orthogonal, longest first, their signs as in the truth. Over parameters drawn from the
prior, quantiles of the true posterior cover exactly; maximum likelihood ± z standard errors covers
as the number of rows grows. Every table counts: one whose information is not positive definite has
no interval, and what has no interval does not hold the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ...evaluation.standard_errors import many_standard_errors
from ...evaluation.symmetry import form_of
from ...methods.continuous.factor_em import canonical
from ...methods.continuous.opening import FORMS
from ...methods.continuous.quadrature import QuadratureEM
from ...reading.anatomy import inspect
from ...reading.recognise import Known
from ...types import Params

LEVELS = (0.5, 0.9, 0.95)
NUM_STEPS = 60
NUM_NODES = 15
"""Nodes a dimension: in one dimension, at weights of about one, the error is beyond float32."""


def no_coverage(model: Callable, data: Array, **kwargs: Any) -> str | None:
    """Why there is no such comparison for a program, or None.

    :param data: one table.
    """
    known = form_of(model, ((data,), kwargs))
    if known is None or known.form not in FORMS:
        return "standard errors are for programs with factors that rotate"
    if inspect(model, (data,), kwargs).num_bits > 3:
        return "quadrature is for up to 3 factors"
    return None


def fit_many(model: Callable, rng_key: Array, data: Array, **kwargs: Any) -> Params:
    """Maximum likelihood for each of ``data[i]``, all at once, in canonical form."""
    em = QuadratureEM(model, num_nodes=NUM_NODES)

    def one(key: Array, table: Array) -> Params:
        state = em.init(key, table, **kwargs)

        def step(state: Any, _: None) -> tuple[Any, None]:
            return em.update(state, table, **kwargs)[0], None

        return em.get_params(lax.scan(step, state, None, length=NUM_STEPS)[0])

    return jax.jit(jax.vmap(one))(random.split(rng_key, len(data)), data)


def with_signs(params: Params, truth: Params) -> Params:
    """Each row of the weights with the sign that brings it nearer to the truth's.

    >>> like = {"weights": jnp.array([[1.0, 2.0]])}
    >>> with_signs({"weights": jnp.array([[-1.0, -1.0]])}, like)["weights"].tolist()
    [[1.0, 1.0]]
    """
    inner = jnp.sum(params["weights"] * truth["weights"], -1, keepdims=True)
    return {**params, "weights": params["weights"] * jnp.where(inner < 0, -1.0, 1.0)}


def coverage(
    model: Callable, rng_key: Array, truth: Params, data: Array, draws: Params, **kwargs: Any
) -> dict[str, dict[str, Any]]:
    """Method -> site -> level -> share of the intervals that hold the truth, with its error.

    :param truth: (num_trials, ...) by site.
    :param draws: (num_trials, num_draws, ...) by site, of the posterior.
    """
    fitted = fit_many(model, rng_key, data, **kwargs)
    errors = many_standard_errors(model, fitted, data, num_nodes=NUM_NODES, **kwargs)
    known = form_of(model, ((data[0],), kwargs))
    assert known is not None
    return shares(known, truth, fitted, errors, draws)


def shares(
    known: Known, truth: Params, fitted: Params, errors: Params, draws: Params
) -> dict[str, dict[str, Any]]:
    """`coverage` of given estimates (num_trials, ...) with their errors, and of given draws.

    :param known: the form of the program, whose names the result has.
    """
    errors = jax.vmap(known.read)(errors)

    @jax.jit
    @jax.vmap
    def bring(truth: Params, fitted: Params, draws: Params) -> tuple[Params, Params, Params]:
        truth = canonical(known.read(truth))
        turned = jax.vmap(lambda one: with_signs(canonical(known.read(one)), truth))(draws)
        return truth, with_signs(known.read(fitted), truth), turned

    truth, fitted, draws = bring(truth, fitted, draws)
    out: dict[str, dict[str, Any]] = {"EM ± standard errors": {}, "NUTS quantiles": {}}
    for site in truth:
        about, spread = np.asarray(fitted[site]), np.asarray(errors[site])
        for level in LEVELS:
            half = NormalDist().inv_cdf(0.5 + level / 2) * spread
            ends = np.quantile(np.asarray(draws[site]), [0.5 - level / 2, 0.5 + level / 2], axis=1)
            intervals = {"EM ± standard errors": (about - half, about + half)}
            intervals["NUTS quantiles"] = (ends[0], ends[1])
            for name, (lower, upper) in intervals.items():
                here = out[name].setdefault(site, {})
                here[f"{100 * level:g} %"] = _share(np.asarray(truth[site]), lower, upper)
    return out


def _share(truth: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> dict[str, float]:
    """Over all tables; the intervals of one table are dependent, so tables are counted.

    >>> truth, ends = np.zeros((4, 1)), np.array([[1.0], [1.0], [1.0], [np.nan]])
    >>> coverage = _share(truth, -ends, ends)
    >>> coverage["share"], coverage["without"]
    (0.75, 1)
    """
    known = np.isfinite(upper - lower).reshape(len(truth), -1).all(1)
    held = ((lower <= truth) & (truth <= upper)).reshape(len(truth), -1).mean(1)
    width = (upper - lower).reshape(len(truth), -1)[known]
    return {
        "share": float(held.mean()),
        "error": float(held.std() / np.sqrt(len(held))),
        "median_width": float(np.median(width)) if known.any() else float("nan"),
        "trials": len(truth),
        "without": int((~known).sum()),
    }
