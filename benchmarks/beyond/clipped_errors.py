"""Standard errors of the eigenvalues and loadings of moment inversion, and their coverage."""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian

from inference.methods.moments.factor_errors import factor_errors
from inference.methods.moments.inversion import MomentInversion
from inference.methods.moments.spectrum import (
    implied_correlation,
    principal_axes,
    principal_components,
)
from inference.papers.experiment import Option, Outcome, Page, experiment

WEIGHTS = np.array(
    [[1.4, 1.2, 1.0, 0.8, 1.3, 0.9, 1.1, 0.7], [0.9, 0.7, 1.1, 0.8, -0.7, -1.0, -0.8, -0.9]]
)
BIAS = np.array([0.0, 0.5, -0.5, 0.8, -0.8, 0.3, -0.3, 0.0])


@experiment(
    "clipped-errors",
    "standard errors of eigenvalues and loadings, and how often their intervals hold",
    tables=Option(500, "tables of the model", 100, 2),
    rows=Option(1000, "rows of each", 200, 20),
    axes=Option(False, "factors beside a uniqueness, not components"),
)
def run_errors(namespace: argparse.Namespace) -> Outcome:
    """Tables of one known model; the share of 95 % intervals that hold the true values.

    The interval is ± 1.96 standard errors of the delta method (`factor_errors`); "z" is the spread
    of (estimate − truth)/error over tables, which ought to be 1. The truth is what the method gives
    for the model's own correlations.
    """
    tables, rows = namespace.tables, namespace.rows
    truth = {"weights": jnp.asarray(WEIGHTS, float), "bias": jnp.asarray(BIAS, float)}
    correlation = implied_correlation(truth)
    take, noise = (principal_axes, 1.0) if namespace.axes else (principal_components, 0.0)
    true = {
        "eigenvalues": jnp.linalg.eigvalsh(correlation)[::-1][:2],
        "loadings": take(correlation, 2).loadings,
    }
    method = MomentInversion(clipped_gaussian, rank=2)

    def one(key: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        keys = random.split(key)
        hidden = random.normal(keys[0], (rows, 2)) @ truth["weights"] + truth["bias"]
        bits = (hidden + random.normal(keys[1], hidden.shape) > 0).astype(float)
        state = method.invert(key, bits, noise=noise)
        loadings = state.factors.loadings
        sign = jnp.where(jnp.sum(loadings * true["loadings"], 1, keepdims=True) < 0, -1.0, 1.0)
        estimates = {"eigenvalues": state.spectrum.eigenvalues[:2], "loadings": sign * loadings}
        return estimates, factor_errors(state, bits, noise=noise)._asdict()

    keys = random.split(random.key(namespace.seed), tables)
    estimates, errors = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(keys))
    numbers: dict[str, Any] = {"tables": tables, "rows": rows, "columns": WEIGHTS.shape[1]}
    scores = {}
    for name, wanted in true.items():
        error = errors[name]
        usable = np.isfinite(error)
        score = np.where(usable, estimates[name] - np.asarray(wanted), 0.0)
        scores[name] = score = score / np.where(usable, error, 1.0)
        numbers[name] = {
            "true": np.asarray(wanted, float).ravel(),
            "mean_error": float(error[usable].mean()),
            "inside_of_95_percent_intervals": float(np.mean(np.abs(score[usable]) < 1.96)),
            "z": float(score[usable].std()),
            "without_error": float(1 - usable.mean()),
        }
    return Outcome(numbers, (10, 4.2), _draw, (scores,))


def _draw(page: Page, scores: dict[str, np.ndarray]) -> None:
    axes = page.subplots(1, 2, sharey=True)
    side = np.linspace(-4, 4, 200)
    for panel, (name, score) in zip(axes, scores.items(), strict=True):
        panel.hist(score.ravel(), np.linspace(-4, 4, 33), density=True, alpha=0.6)
        panel.plot(side, np.exp(-0.5 * side**2) / np.sqrt(2 * np.pi), color="black", linewidth=1)
        panel.set(title=name, xlabel="(estimate − truth) / standard error")
    axes[0].set_ylabel("density; line: standard normal")
