"""What draws of the parameters say beyond the likelihood: prior, log prior, replicated rows.

ArviZ wants these beside the posterior for its checks: power-scaling sensitivity to the prior
(`log_prior`), posterior predictive checks and LOO-PIT (`posterior_predictive`). Rows are replicated
with new latents, as the marginal likelihood has them, and kept as two statistics, the total of a
row and the mean of a column; the rows themselves too where they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax, random
from numpyro import handlers

from ..compiling import remembered
from ..reading.anatomy import inspect
from ..reading.log_joint import prior_draw
from ..rows.devices import one_device
from ..types import Arguments
from .arviz import Groups, dataset

BLOCK = 50
"""Draws that are replicated at a time: one compiled piece serves all methods."""
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
    values = {x: np.asarray(params[x]) for x in anatomy.parameters if x in params}
    site = anatomy.observed[0] if len(anatomy.observed) == 1 else None
    device = one_device(*arguments)
    arrays, hollow = device.arrays, device._replace(arrays=[])

    def traced(point: Any, key: Any, arrays: list[Any]) -> Any:
        args, kwargs = hollow.arguments(arrays)
        program = handlers.substitute(handlers.uncondition(model), data=point)
        with handlers.block():
            return handlers.trace(handlers.seed(program, key)).get_trace(*args, **kwargs)

    def log_priors(points: Any, arrays: list[Any]) -> dict[str, Any]:
        def one(point: Any) -> dict[str, Any]:
            trace = traced(point, random.key(0), arrays)
            sites = {x: trace[x] for x in values if trace[x]["type"] == "sample"}
            return {x: site["fn"].log_prob(site["value"]).sum() for x, site in sites.items()}

        return lax.map(one, points)

    def replicated(points: Any, keys: Any, arrays: list[Any]) -> Any:
        return lax.map(lambda x: traced(x[0], x[1], arrays)[site]["value"], (points, keys))

    def priors(keys: Any, arrays: list[Any]) -> Any:
        return jax.vmap(lambda key: prior_draw(model, anatomy, key, hollow.arguments(arrays)))(keys)

    key_prior, key_rows = random.split(random.key(0))
    drawn = remembered(priors)(random.split(key_prior, NUM_PRIOR), arrays)
    drawn = {x: np.asarray(v)[None] for x, v in drawn.items()}
    leading = ("chain", "draw")
    each = _in_blocks(remembered(log_priors), values, arrays)
    groups = {
        "prior": dataset(drawn, leading, columns=columns, dims=dims),
        "log_prior": dataset(each, leading),
    }
    if site is None or not _like(table, replicated, values, arrays):
        return groups
    step = -(-num_draws(values) * table.size // MOST_CELLS)
    some = {x: v[:, step - 1 :: step] for x, v in values.items()}
    keys = random.split(key_rows, num_draws(some))
    whole = num_draws(some) * table.size <= MOST_KEPT

    def kept(points: Any, keys: Any, arrays: list[Any]) -> dict[str, np.ndarray]:
        rows = np.asarray(remembered(replicated)(points, keys, arrays))
        summary = statistics(rows, mask)
        return {**summary, "observed": rows} if whole else summary

    group = dataset(_in_blocks(kept, some, arrays, keys), leading, columns=columns, dims=STATISTICS)
    groups["posterior_predictive"] = group.assign_coords(
        draw=np.arange(next(iter(values.values())).shape[1])[step - 1 :: step]
    )
    return groups


def num_draws(values: Mapping[str, np.ndarray]) -> int:
    """Draws of all chains."""
    shape = next(iter(values.values())).shape
    return shape[0] * shape[1]


def _in_blocks(
    function: Callable, values: dict[str, np.ndarray], arrays: list[Any], keys: Any = None
) -> dict[str, np.ndarray]:
    """A function of blocks of draws, on all of them: (num_chains, num_draws, ...) by name."""
    shape, total = next(iter(values.values())).shape[:2], num_draws(values)
    flat = {x: v.reshape((-1, *v.shape[2:])) for x, v in values.items()}
    parts = []
    for start in range(0, total, BLOCK):
        place = np.minimum(np.arange(start, start + BLOCK), total - 1)  # the last block is filled
        more = () if keys is None else (keys[place],)
        block = function({x: v[place] for x, v in flat.items()}, *more, arrays)
        parts.append({x: np.asarray(v)[: total - start] for x, v in block.items()})
    joined = {x: np.concatenate([part[x] for part in parts]) for x in parts[0]}
    return {x: v.reshape((*shape, *v.shape[1:])) for x, v in joined.items()}


STATISTICS = {"total": ("row",), "column_mean": ("column",), "observed": ("row", "column")}


def statistics(rows: np.ndarray, mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Totals of rows and means of columns, of tables (..., num_data, num_features).

    >>> values = statistics(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[1, 1], [0, 1]]))
    >>> values["total"].tolist(), values["column_mean"].tolist()
    ([1.0, 1.0], [1.0, 0.5])
    """
    there = np.ones(rows.shape[-2:]) if mask is None else np.asarray(mask, float)
    observed = rows * there
    return {
        "total": observed.sum(-1),
        "column_mean": observed.sum(-2) / np.maximum(there.sum(0), 1.0),
    }


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


def _like(table: np.ndarray, function: Callable, values: dict[str, Any], arrays: Any) -> bool:
    """Whether replicated rows are a table like the observed one."""
    some = {x: v[0, :1] for x, v in values.items()}
    replicate = jax.eval_shape(function, some, random.split(random.key(0), 1), arrays)
    return tuple(replicate.shape[1:]) == table.shape
