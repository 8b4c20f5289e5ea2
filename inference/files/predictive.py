"""What draws of the parameters say beyond the likelihood: prior, log prior, replicated rows.

ArviZ wants these beside the posterior for its checks: power-scaling sensitivity to the prior
(`log_prior`), posterior predictive checks and LOO-PIT (`posterior_predictive`). Rows are replicated
with new latents, as the marginal likelihood has them, and kept as two statistics, the total of a
row and the mean of a column; the rows themselves too where they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax, random
from numpyro import handlers

from ..compiling import remembered
from ..evaluation.evidence import likelihood
from ..posterior.draws import PosteriorDraws
from ..reading.anatomy import inspect
from ..reading.log_joint import prior_draw
from ..rows.devices import one_device
from ..types import Arguments
from .arviz import Groups, container, dataset, posterior_groups
from .cards import dims_of

MOST_CELLS, MOST_KEPT = 50_000_000, 4_000_000
"""Cells of all replicates that are made, and that are kept whole."""
NUM_PRIOR = 500
MOST_TABLES, MOST_BINS = 400, 100
"""Of a posterior predictive check."""


def predictive_groups(
    model: Callable,
    params: Mapping[str, np.ndarray],
    arguments: Arguments,
    *,
    columns: Any = None,
    dims: Mapping[str, tuple[str, ...]] | None = None,
    mask: np.ndarray | None = None,
) -> Groups:
    """The groups `log_prior`, `prior` and, of a table of one site, `posterior_predictive`.

    :param params: draws (num_chains, num_draws, ...) by site.
    :param arguments: (args, kwargs) of the program, of which the first is the table.
    :param mask: cells of the table that are there: totals and means are of these.
    """
    anatomy = inspect(model, *arguments)
    table = np.asarray(arguments[0][0])
    shape = next(iter(params.values())).shape[:2]
    values = {x: np.asarray(params[x]) for x in anatomy.parameters if x in params}
    site = anatomy.observed[0] if len(anatomy.observed) == 1 else None
    device = one_device(*arguments)
    arrays, hollow = device.arrays, device._replace(arrays=[])

    def traced(point: Any, key: Any, arrays: list[Any]) -> Any:
        args, kwargs = hollow.arguments(arrays)
        program = handlers.substitute(handlers.uncondition(model), data=point)
        with handlers.block():
            return handlers.trace(handlers.seed(program, key)).get_trace(*args, **kwargs)

    def log_prior(points: Any, arrays: list[Any]) -> dict[str, Any]:
        def one(point: Any) -> dict[str, Any]:
            trace = traced(point, random.key(0), arrays)
            sites = {x: trace[x] for x in point if trace[x]["type"] == "sample"}
            return {x: site["fn"].log_prob(site["value"]).sum() for x, site in sites.items()}

        return lax.map(one, points)

    def replicated(points: Any, keys: Any, there: Any, arrays: list[Any]) -> Any:
        def one(pair: tuple[Any, Any]) -> dict[str, Any]:
            rows = traced(*pair, arrays)[site]["value"]
            return {**statistics(rows, there), **({"observed": rows} if whole else {})}

        return lax.map(one, (points, keys))

    def priors(keys: Any, arrays: list[Any]) -> Any:
        return jax.vmap(lambda key: prior_draw(model, anatomy, key, hollow.arguments(arrays)))(keys)

    def flat(some: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {x: v.reshape((-1, *v.shape[2:])) for x, v in some.items()}

    def group(found: Mapping[str, Any], shape: tuple[int, ...], **how: Any) -> Any:
        chains = {x: np.asarray(v).reshape((*shape, *v.shape[1:])) for x, v in found.items()}
        return dataset(chains, ("chain", "draw"), **how)

    key_prior, key_rows = random.split(random.key(0))
    drawn = remembered(priors)(random.split(key_prior, NUM_PRIOR), arrays)
    groups = {
        "prior": group(drawn, (1, NUM_PRIOR), columns=columns, dims=dims),
        "log_prior": group(remembered(log_prior)(flat(values), arrays), shape),
    }
    if site is None:
        return groups
    first = {x: v[0, 0] for x, v in values.items()}
    rows = jax.eval_shape(lambda *x: traced(*x)[site]["value"], first, key_rows, arrays)
    if rows.shape != table.shape:
        return groups
    step = -(-math.prod(shape) * table.size // MOST_CELLS)
    draws = np.arange(shape[1])[step - 1 :: step]
    keys = random.split(key_rows, shape[0] * len(draws))
    whole = len(keys) * table.size <= MOST_KEPT
    some = flat({x: v[:, draws] for x, v in values.items()})
    there = np.ones(table.shape, np.float32) if mask is None else np.asarray(mask, np.float32)
    made = remembered(replicated)(some, keys, there, arrays)
    replicates = group(made, (shape[0], len(draws)), columns=columns, dims=STATISTICS)
    groups["posterior_predictive"] = replicates.assign_coords(draw=draws)
    return groups


def draws_groups(
    model: Callable, posterior: PosteriorDraws, arguments: Arguments, columns: Any = None
) -> Groups:
    """All groups of draws about a fit, with the marginal log likelihood of each row.

    :param arguments: (args, kwargs) of the program, of which the first is the table.
    """
    mask = arguments[1].get("mask")
    about = {
        "how": str(posterior), "pareto_k": posterior.pareto_k, "effective": posterior.effective,
        "log_evidence": posterior.log_evidence, "notes": "; ".join(posterior.notes),
    }  # fmt: skip
    groups = posterior_groups(
        model, posterior.params, posterior.stats, columns=columns, attrs=about, arguments=arguments
    )
    params = {x: groups["posterior"][x].values for x in posterior.params}
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in params.items()}
    rows = likelihood(model, *arguments[0], **arguments[1]).of_draws(flat).value
    shape = next(iter(params.values())).shape[:2]
    groups["log_likelihood"] = dataset(
        {"observed": rows.reshape((*shape, -1))}, ("chain", "draw"), dims={"observed": ("row",)}
    )
    return groups | predictive_groups(
        model, params, arguments, columns=columns, mask=mask,
        dims=dims_of(getattr(model, "__name__", "")),
    )  # fmt: skip


def to_arviz(posterior: PosteriorDraws, model: Callable, *args: Any, **kwargs: Any) -> Any:
    """What `posterior_draws` gives as ArviZ's own container.

    Groups are `posterior`, `sample_stats`, `log_likelihood` (marginal, of each row), `log_prior`,
    `prior`, `posterior_predictive` and `observed_data`. Draws have equal weight, and are one chain
    unless NUTS made them.

    :param args: the arguments of the program, of which the first is the table, and `kwargs`.

    >>> from latentbits import posterior_draws, to_arviz
    >>> from latentbits.models import bernoulli_product
    >>> data = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    >>> found = posterior_draws(bernoulli_product, {"probs": np.array([0.6, 0.3])}, data)
    >>> to_arviz(found, bernoulli_product, data).posterior["probs"].shape
    (1, 1000, 2)
    """
    groups = draws_groups(model, posterior, (args, kwargs))
    table = np.asarray(args[0])
    observed = {"observed": table, **statistics(table, kwargs.get("mask"))}
    return container({**groups, "observed_data": dataset(observed, dims=STATISTICS)})


STATISTICS = {"total": ("row",), "column_mean": ("column",), "observed": ("row", "column")}


def statistics(rows: Any, mask: Any = None) -> dict[str, Any]:
    """Totals of rows and means of columns, of tables (..., num_data, num_features).

    >>> values = statistics(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[1, 1], [0, 1]]))
    >>> values["total"].tolist(), values["column_mean"].tolist()
    ([1.0, 1.0], [1.0, 0.5])
    """
    there = np.ones(rows.shape[-2:]) if mask is None else mask * 1.0
    observed = rows * there
    return {"total": observed.sum(-1), "column_mean": observed.sum(-2) / there.sum(0).clip(1.0)}


def check_totals(groups: Groups) -> dict[str, Any]:
    """How many rows have each total, observed and in replicated tables: mean and 90 % interval.

    >>> seen = dataset({"total": np.array([0.0, 1.0, 1.0])}, dims=STATISTICS)
    >>> made = dataset({"total": np.ones((1, 5, 3))}, ("chain", "draw"), dims=STATISTICS)
    >>> check = check_totals({"observed_data": seen, "posterior_predictive": made})
    >>> check["observed"], check["mean"], check["outside"]
    ([1, 2], [0.0, 3.0], 2)
    """
    totals = groups["observed_data"]["total"].values
    made = groups["posterior_predictive"]["total"].values.reshape((-1, len(totals)))[-MOST_TABLES:]
    whole = bool((totals == np.round(totals)).all() and np.ptp(totals) <= MOST_BINS)
    low, high = min(totals.min(), made.min()), max(totals.max(), made.max())
    edges = np.arange(low - 0.5, high + 1.0) if whole else np.linspace(low, high, MOST_BINS // 2)
    counts = np.stack([np.histogram(one, edges)[0] for one in made])
    observed = np.histogram(totals, edges)[0]
    band = np.quantile(counts, [0.05, 0.95], axis=0)
    return {
        "middle": (0.5 * (edges[1:] + edges[:-1])).tolist(), "observed": observed.tolist(),
        "mean": counts.mean(0).tolist(), "low": band[0].tolist(), "high": band[1].tolist(),
        "outside": int(((observed < band[0]) | (observed > band[1])).sum()),
    }  # fmt: skip
