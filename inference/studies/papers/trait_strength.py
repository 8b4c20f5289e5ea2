"""Latent trait: where the quadratic bound breaks, which the paper (Tipping 1998) does not show."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait

from ...methods.continuous.bound import BoundEM
from ...methods.continuous.quadrature import QuadratureEM
from .experiment import Experiment, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (0.5, 1.0, 2.0, 3.0, 4.0)


def strength(namespace: argparse.Namespace) -> Outcome:
    """Data from the program itself, its weights made larger and larger, fitted both ways.

    A row of large logits lies where the logistic function is flat, far from any parabola. What
    counts is how large the fitted weights are, as a root mean square, beside the true ones.
    """
    key_truth, key_data, key_fit = jax.random.split(jax.random.key(namespace.seed), 3)
    weights = jax.random.normal(key_truth, (2, 16))
    weights = weights / jnp.sqrt(jnp.mean(weights**2))
    keys = jax.random.split(key_data, len(STRENGTHS))
    tables = jax.jit(jax.vmap(partial(_draw_rows, weights, namespace.num_data)))(
        keys, jnp.array(STRENGTHS)
    )
    # Methods are pure functions, so that all tables are fitted at once.
    fits = {
        name: jax.jit(jax.vmap(partial(_fit, method, namespace.steps, key_fit)))(tables)
        for name, method in (
            ("bound", BoundEM(latent_trait)),
            ("quadrature", QuadratureEM(latent_trait, num_nodes=9)),
        )
    }
    sizes = {x: np.sqrt(np.mean(np.asarray(f) ** 2, axis=(1, 2))) for x, f in fits.items()}
    numbers = {
        f"weights of size {true:g}": {name: float(size[i]) for name, size in sizes.items()}
        for i, true in enumerate(STRENGTHS)
    }
    return Outcome(numbers, lambda: strength_figure(sizes))


def _draw_rows(weights: Array, num_data: int, key: Array, size: Array) -> Array:
    key_factors, key_bits = jax.random.split(key)
    factors = jax.random.normal(key_factors, (num_data, 2))
    return jax.random.bernoulli(key_bits, jax.nn.sigmoid(size * factors @ weights)).astype(float)


def _fit(method: Any, num_steps: int, key: Array, table: Array) -> Array:
    def step(state: Any, _: None) -> tuple[Any, None]:
        return method.update(state, table)[0], None

    state = jax.lax.scan(step, method.init(key, table), None, length=num_steps)[0]
    return method.get_params(state)["weights"]


def strength_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-data", type=int, default=600, help="rows of a table (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="of each fit (%(default)s)")


def strength_figure(sizes: dict[str, np.ndarray]) -> Figure:
    """Size of the fitted weights against that of the true ones."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(6.4, 4.4))
    axes = page.subplots()
    axes.plot([0, 4.2], [0, 4.2], color="black", linewidth=0.8, linestyle=":")
    axes.annotate("as they are", (3.0, 3.1), rotation=32, ha="center", va="bottom", fontsize=10)
    for mark, (name, size) in zip("os", sizes.items(), strict=True):
        axes.plot(STRENGTHS, size, marker=mark, label=name)
    axes.set(xlabel="true size of the weights", ylabel="fitted size", xlim=(0, 4.2))
    axes.set_ylim(bottom=0.0)
    axes.legend(loc="upper left")
    return page


EXPERIMENTS = (
    Experiment(
        "trait-strength",
        "where the bound breaks: weights of tables that were drawn with larger and larger ones",
        strength,
        {"num_data": 20, "steps": 2},
        strength_options,
    ),
)
