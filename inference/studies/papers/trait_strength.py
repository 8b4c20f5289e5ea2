"""Latent trait: where the quadratic bound breaks, which the paper (Tipping 1998) does not show."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait

from ...methods.continuous.bound import BoundEM
from ...methods.continuous.quadrature import QuadratureEM
from .experiment import Option, Outcome, Page, experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    tables=Option(8, "of each strength", 2, 2),
    num_data=Option(600, "rows of a table", 20, 2),
    steps=Option(40, "of each fit", 2),
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
    methods = {
        "bound": BoundEM(latent_trait),
        "quadrature": QuadratureEM(latent_trait, num_nodes=7),
    }
    one = partial(_one_table, methods, rows, namespace.steps)
    # Methods are pure functions: a strength's tables are fitted at once.
    fitted = jax.jit(lambda keys, sizes: jax.lax.map(lambda x: jax.vmap(one)(*x), (keys, sizes)))(
        keys, sizes
    )
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
    data = _draw_rows(weights, rows + NUM_TEST, key_rows)
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


def _draw_rows(weights: Array, num_data: int, key: Array) -> Array:
    key_factors, key_bits = jax.random.split(key)
    factors = jax.random.normal(key_factors, (num_data, 2))
    return jax.random.bernoulli(key_bits, jax.nn.sigmoid(factors @ weights)).astype(float)


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
        _band(left, fit.size, name, number)
    left.set(xlabel="true size of the weights", ylabel="fitted size", xlim=(0, 4.2))
    left.set_ylim(bottom=0.0)
    left.legend(loc="upper left")
    _band(right, fits["bound"].gap, "bound below the evidence", 0)
    _band(right, lost, "lost on new rows", 2)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xlabel="true size of the weights", ylabel="nats per row", xlim=(0, 4.2))
    right.legend(loc="upper left")


def _band(axes: Axes, values: np.ndarray, label: str, number: int) -> None:
    """Means over tables, and what 90 % of them lie between."""
    low, high = np.quantile(values, (0.05, 0.95), axis=1)
    colour = f"C{number}"
    axes.plot(STRENGTHS, values.mean(axis=1), marker="osD"[number], label=label, color=colour)
    axes.fill_between(STRENGTHS, low, high, color=colour, alpha=0.2, linewidth=0)
