"""Latent trait: where the quadratic bound breaks, and how many factors a table needs.

Tipping (1998) does not show the first, and takes two factors for the eye's sake.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait
from latentbits.models.data import InputError

from inference.files.figures import Axes
from inference.methods.continuous.bound import BoundEM
from inference.methods.continuous.quadrature import QuadratureEM
from inference.numerics.gaussian import log_normal
from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.running.contract import follow

STRENGTHS = (0.5, 1.0, 2.0, 3.0, 4.0)
NUM_TEST = 500
"""New rows of each table: the error of a difference of two means of them is far below 0.01."""


class Fit(NamedTuple):
    """What is kept of one table's fit: arrays of JAX, later NumPy."""

    size: Any  # of the weights, root mean square
    gap: Any  # nats per row by which the method's own evidence is below the true one
    test: Any  # nats per row of new rows


@experiment(
    "trait-strength",
    "where the bound breaks: tables that were drawn with larger and larger weights",
    tables=Option(8, "tables of each strength", 2, 2),
    num_data=Option(600, "rows of a table", 20, 2),
    steps=Option(40, "steps of each fit", 2),
)
def strength(namespace: argparse.Namespace) -> Outcome:
    """Data from the program itself, its weights made larger and larger, fitted both ways.

    The paper finds the loss "relatively small" on two tables. A row of large logits lies where the
    logistic function is flat, far from any parabola: what counts is how large the fitted weights
    are, as a root mean square, beside the true ones, and what is lost of the likelihood of new
    rows. Each table has weights of its own; intervals hold 90 % of the tables.
    """
    tables, rows = namespace.tables, namespace.num_data
    keys = jax.random.split(jax.random.key(namespace.seed), (len(STRENGTHS), tables, 2))
    sizes = jnp.broadcast_to(jnp.array(STRENGTHS)[:, None], keys.shape[:2])
    quadrature = QuadratureEM(latent_trait, num_nodes=7)
    methods = {"bound": BoundEM(latent_trait), "quadrature": quadrature}
    one = partial(_one_table, methods, rows, namespace.steps)
    # Methods are pure functions: a strength's tables are fitted at once.
    every = jax.jit(partial(jax.lax.map, lambda x: jax.vmap(one)(*x)))
    fitted = every((keys, sizes))
    fits = {name: Fit(*map(np.asarray, fit)) for name, fit in fitted.items()}
    lost = fits["quadrature"].test - fits["bound"].test
    each = {name: fit.size for name, fit in fits.items()}
    each |= {"bound_below_evidence": fits["bound"].gap, "lost_on_new_rows": lost}
    numbers = {
        f"weights of size {true:g}": {
            key: value for name, x in each.items() for key, value in interval(name, x[i]).items()
        }
        for i, true in enumerate(STRENGTHS)
    }
    return Outcome(numbers, (11, 4.4), strength_figure, (fits, lost))


def interval(name: str, values: np.ndarray) -> dict[str, float | list[float]]:
    """Mean over tables, its standard error, and what 90 % of the tables lie between."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    between = [float(x) for x in np.quantile(values, (0.05, 0.95))]
    return {name: float(values.mean()), f"{name}_error": float(error), f"{name}_90": between}


def _one_table(
    methods: dict[str, Any], rows: int, steps: int, keys: Array, size: Array
) -> dict[str, Fit]:
    key_truth, key_rows = jax.random.split(keys[0])
    weights = jax.random.normal(key_truth, (2, 16))
    weights = size * weights / jnp.sqrt(jnp.mean(weights**2))
    data = _draw_rows(weights, rows + NUM_TEST, jax.random.split(key_rows))
    table, new = data[:rows], data[rows:]
    fits = {}
    for name, method in methods.items():
        first = method.init(keys[1], table)
        empty = (first, method.get_params(first), jnp.zeros(()))
        _, params, loss = jax.lax.fori_loop(0, steps + 1, partial(_step, method, table), empty)
        fits[name] = Fit(
            jnp.sqrt(jnp.mean(params["weights"] ** 2)),
            _evidence(params, table) + loss / rows,
            _evidence(params, new),
        )
    return fits


def _step(method: Any, table: Array, _: Array, before: tuple) -> tuple:
    """The next state, and the parameters that its loss is of."""
    state, loss = method.update(before[0], table)
    return state, method.get_params(before[0]), loss


def _draw_rows(weights: Array, num_data: int, keys: Array) -> Array:
    factors = jax.random.normal(keys[0], (num_data, len(weights)))
    return jax.random.bernoulli(keys[1], jax.nn.sigmoid(factors @ weights)).astype(float)


def _evidence(params: dict[str, Array], table: Array) -> Array:
    """log p per row, in the mean: a sum over a grid, a product for all rows, as sharp as 0.2."""
    side = jnp.linspace(-4.8, 4.8, 49)
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    logits = grid @ params["weights"] + params["bias"]
    prior = -0.5 * jnp.sum(grid**2, axis=1)
    level = prior - jax.nn.logsumexp(prior) - jax.nn.softplus(logits).sum(axis=1)
    return jnp.mean(jax.nn.logsumexp(table @ logits.T + level, axis=1))


def strength_figure(page: Page, fits: dict[str, Fit], lost: np.ndarray) -> None:
    """Size of the fitted weights against that of the true ones, and what is lost by it."""
    left, right = page.subplots(1, 2)
    left.plot([0, 4.2], [0, 4.2], color="black", linewidth=0.8, linestyle=":")
    left.annotate("the truth", (3.5, 3.35), rotation=36, ha="center", va="top", fontsize=10)
    for number, (name, fit) in enumerate(fits.items()):
        _band(left, STRENGTHS, fit.size, name, number)
    left.set(xlabel="true size of the weights", ylabel="fitted size", xlim=(0, 4.2))
    left.set_ylim(bottom=0.0)
    left.legend(loc="upper left")
    _band(right, STRENGTHS, fits["bound"].gap, "bound below the evidence", 0)
    _band(right, STRENGTHS, lost, "lost on new rows", 2)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xlabel="true size of the weights", ylabel="nats per row", xlim=(0, 4.2))
    right.legend(loc="upper left")


def _band(axes: Axes, at: Any, values: np.ndarray, label: str, number: int) -> None:
    """Means over tables, and what 90 % of them lie between."""
    low, high = np.quantile(values, (0.05, 0.95), axis=1)
    colour = f"C{number}"
    axes.plot(at, values.mean(axis=1), marker="osD^v"[number % 5], label=label, color=colour)
    axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)


COLUMNS, SIZE = 16, 1.5
NUM_DRAWS = 200


@experiment(
    "trait-factors",
    "how many factors a table needs, on tables of known numbers (Tipping 1998 takes two)",
    tables=Option(10, "tables of each number", 2, 1),
    num_data=Option(600, "rows to fit", 100, 10),
    most=Option(4, "factors that are fitted, up to 6", 2, 2),
    method=Option("bound", "method that fits", choices=("bound", "quadrature")),
    steps=Option(40, "steps of each fit", 10),
)
def number_of_factors(namespace: argparse.Namespace) -> Outcome:
    """Tables of known numbers of factors, fitted with each number by the paper's own method.

    Evidence by importance sampling about each row's posterior. Rules: AIC, BIC (a rotation takes
    Q(Q − 1)/2 parameters off), the likelihood of as many new rows, and the smallest number that no
    larger one beats there by more than the error of the difference, which is what ``latentbits
    choose`` takes. All but the best on new rows are right for one and two factors; of three, BIC
    takes too few at times, and new rows too many.
    """
    tables, rows, most = namespace.tables, namespace.num_data, namespace.most
    limit = 3 if namespace.method == "quadrature" else 6
    if most > limit:
        raise InputError(f"--most {most}: --method {namespace.method} fits up to {limit} factors")
    true = np.arange(1, most)
    keys = jax.random.split(jax.random.key(namespace.seed), (len(true), tables, 2))
    draws = (jax.jit(jax.vmap(partial(_draw_factor_rows, int(q), 2 * rows))) for q in true)
    data = jnp.stack([draw(k[:, 0]) for draw, k in zip(draws, keys, strict=True)])
    flat, key = data.reshape(-1, 2 * rows, COLUMNS), keys[..., 1].reshape(-1)
    # Of each number: evidence of all rows, those fitted and new ones, (true, tables, 2 rows).
    sizes = np.arange(1, most + 1)
    fits = (_fit_all(namespace.method, int(q), namespace.steps, rows) for q in sizes)
    evidence = np.stack([np.reshape(fit(key, flat), data.shape[:3]) for fit in fits])
    free = COLUMNS * (sizes + 1) - sizes * (sizes - 1) / 2
    inside, new = evidence[..., :rows].sum(axis=-1), evidence[..., rows:]
    penalty = free[:, None, None]
    rules = {
        "AIC": sizes[(inside - penalty).argmax(axis=0)],
        "BIC": sizes[(inside - 0.5 * np.log(rows) * penalty).argmax(axis=0)],
        "new rows, best": sizes[new.mean(axis=-1).argmax(axis=0)],
        "new rows, within an error": _smallest(new),
    }
    numbers: dict[str, Any] = {"tables": tables, "rows": rows, "columns": COLUMNS}
    for i, q in enumerate(true):
        sides = {"right": np.equal, "too few": np.less, "too many": np.greater}
        numbers[f"{q} factors"] = {
            name: {side: float(of(x[i], q).mean()) for side, of in sides.items()}
            for name, x in rules.items()
        }
    gain = (new - new[np.arange(len(true)), np.arange(len(true))]).mean(axis=-1)
    return Outcome(numbers, (6.4, 4.4), _draw_gain, (sizes, true, gain))


def _smallest(new: np.ndarray) -> np.ndarray:
    """The smallest number that no larger one beats by more than the error of the difference."""
    chosen = np.full(new.shape[1:3], len(new))
    for size in range(len(new) - 1, 0, -1):
        gain = new[size:] - new[size - 1]
        beaten = gain.mean(axis=-1) > gain.std(axis=-1, ddof=1) / np.sqrt(gain.shape[-1])
        chosen = np.where(beaten.any(axis=0), chosen, size)
    return chosen


def _draw_factor_rows(factors: int, rows: int, key: Array) -> Array:
    keys = jax.random.split(key, 3)
    weights = jax.random.normal(keys[0], (factors, COLUMNS))
    weights = SIZE * weights / jnp.sqrt(jnp.mean(jnp.sum(weights**2, axis=0)))
    return _draw_rows(weights, rows, keys[1:])


def _fit_all(name: str, factors: int, steps: int, rows: int) -> Any:
    """Keys and tables to the log evidence of each row, (tables, rows): a table at a time."""
    bound = BoundEM(latent_trait)
    exact = QuadratureEM(latent_trait, num_nodes=7 if factors < 3 else 5)
    method: Any = bound if name == "bound" else exact

    def one(key: Array, table: Array) -> Array:
        train = table[:rows]
        first = method.init(key, train, num_factors=factors)
        params = method.get_params(follow(method, first, steps, train, num_factors=factors)[0])
        posterior = bound.posterior(params, table, gap=False, num_factors=factors)
        # The bound's Gaussian is too narrow: twice the variance covers the tails.
        half = jnp.linalg.cholesky(2.0 * posterior.covariance)
        # Draws of its own for each row: errors of shared ones would not average out.
        draws = jax.random.normal(key, (NUM_DRAWS, *posterior.mean.shape))

        def log_weight(draw: Array) -> Array:
            place = posterior.mean + jnp.einsum("nqr,nr->nq", half, draw)
            logits = place @ params["weights"] + params["bias"]
            likelihood = jnp.sum(table * logits - jax.nn.softplus(logits), axis=1)
            size = jnp.sum(jnp.log(jnp.diagonal(half, axis1=1, axis2=2)), axis=1)
            return likelihood + log_normal(place) - log_normal(draw) + size

        return jax.nn.logsumexp(jax.lax.map(log_weight, draws), axis=0) - jnp.log(NUM_DRAWS)

    return jax.jit(lambda keys, tables: jax.lax.map(lambda x: one(*x), (keys, tables)))


def _draw_gain(page: Page, sizes: np.ndarray, true: np.ndarray, gain: np.ndarray) -> None:
    """Likelihood of new rows by number of factors, less that of the true number."""
    axes = page.subplots()
    for number, q in enumerate(true):
        _band(axes, sizes, gain[:, number], f"{q}", number)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="factors that are fitted", ylabel="nats per new row, less the true number's")
    axes.set_xticks(sizes)
    axes.legend(title="true factors", loc="lower right")
