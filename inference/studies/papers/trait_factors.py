"""Latent trait (Tipping 1998): how many factors, which the paper sets to two for the eye's sake."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait
from latentbits.models.data import InputError

from ...methods.continuous.bound import BoundEM
from ...methods.continuous.quadrature import QuadratureEM
from ...numerics.gaussian import log_normal
from .experiment import Option, Outcome, Page, experiment

COLUMNS, SIZE = 16, 1.5
NUM_DRAWS = 200


@experiment(
    "trait-factors",
    "how many factors a table needs, on tables of known numbers (Tipping 1998 takes two)",
    tables=Option(10, "of each number", 2, 1),
    num_data=Option(600, "rows to fit", 100, 10),
    most=Option(4, "factors that are fitted, up to 6", 2, 2),
    method=Option("bound", "that fits", choices=("bound", "quadrature")),
    steps=Option(40, "of each fit", 10),
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
    data = jnp.stack(
        [
            jax.jit(jax.vmap(partial(_draw_rows, int(q), 2 * rows)))(k[:, 0])
            for q, k in zip(true, keys, strict=True)
        ]
    )
    flat, key = data.reshape(-1, 2 * rows, COLUMNS), keys[..., 1].reshape(-1)
    # Of each number: evidence of all rows, those fitted and new ones, (true, tables, 2 rows).
    evidence = np.stack(
        [
            np.asarray(_fit_all(namespace.method, q, namespace.steps, rows)(key, flat)).reshape(
                data.shape[:3]
            )
            for q in range(1, most + 1)
        ]
    )
    sizes = np.arange(1, most + 1)
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
        numbers[f"{q} factors"] = {
            name: {
                "right": float(np.mean(x[i] == q)),
                "too few": float(np.mean(x[i] < q)),
                "too many": float(np.mean(x[i] > q)),
            }
            for name, x in rules.items()
        }
    gain = (new - new[np.arange(len(true)), np.arange(len(true))]).mean(axis=-1)
    return Outcome(numbers, (6.4, 4.4), _draw, (sizes, true, gain))


def _smallest(new: np.ndarray) -> np.ndarray:
    """The smallest number that no larger one beats by more than the error of the difference."""
    chosen = np.full(new.shape[1:3], len(new))
    for size in range(len(new) - 1, 0, -1):
        gain = new[size:] - new[size - 1]
        beaten = gain.mean(axis=-1) > gain.std(axis=-1, ddof=1) / np.sqrt(gain.shape[-1])
        chosen = np.where(beaten.any(axis=0), chosen, size)
    return chosen


def _draw_rows(factors: int, rows: int, key: Array) -> Array:
    keys = jax.random.split(key, 3)
    weights = jax.random.normal(keys[0], (factors, COLUMNS))
    weights = SIZE * weights / jnp.sqrt(jnp.mean(jnp.sum(weights**2, axis=0)))
    logits = jax.random.normal(keys[1], (rows, factors)) @ weights
    return jax.random.bernoulli(keys[2], jax.nn.sigmoid(logits)).astype(float)


def _fit_all(name: str, factors: int, steps: int, rows: int) -> Any:
    """Keys and tables to the log evidence of each row, (tables, rows): a table at a time."""
    bound = BoundEM(latent_trait)
    exact = QuadratureEM(latent_trait, num_nodes=7 if factors < 3 else 5)
    method: Any = bound if name == "bound" else exact

    def one(key: Array, table: Array) -> Array:
        train = table[:rows]
        first = method.init(key, train, num_factors=factors)
        step = lambda _, s: method.update(s, train, num_factors=factors)[0]  # noqa: E731
        params = method.get_params(jax.lax.fori_loop(0, steps, step, first))
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


def _draw(page: Page, sizes: np.ndarray, true: np.ndarray, gain: np.ndarray) -> None:
    """Likelihood of new rows by number of factors, less that of the true number."""
    axes = page.subplots()
    for number, q in enumerate(true):
        values = gain[:, number]
        low, high = np.quantile(values, (0.05, 0.95), axis=1)
        axes.plot(sizes, values.mean(axis=1), marker="osD^v"[number % 5], label=f"{q}")
        axes.fill_between(sizes, low, high, alpha=0.2, color=f"C{number}", linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="factors that are fitted", ylabel="nats per new row, less the true number's")
    axes.set_xticks(sizes)
    axes.legend(title="true factors", loc="lower right")
