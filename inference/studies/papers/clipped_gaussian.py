"""Lee & Sompolinsky (1998): spins on a ring, and the constraint that no Gaussian meets.

Beside these what they leave out: generic samplers, and how uncertain moment inversion is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian
from latentbits.models.data import (
    InputError,
    ring,
    ring_moments,
    sum_constraint_moments,
)
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

from ...methods.moments.cells import count_cells, entropy
from ...methods.moments.factor_errors import factor_errors
from ...methods.moments.inversion import MomentInversion
from ...methods.moments.pairs import count_pairs, invert_moments
from ...methods.moments.spectrum import (
    implied_correlation,
    nearest_correlation,
    principal_axes,
    principal_components,
)
from ...methods.moments.tetrachoric import correlation_of_cells
from .experiment import Option, Outcome, Page, experiment, timed


@experiment(
    "clipped-ring",
    "two eigenvalues of a Gaussian for 128 of the spins (Lee & Sompolinsky 1998, figure 3)",
    rows=Option(10_000, "rows of the sample", 500, 1),
    size=Option(256, "spins on the ring", 16),
)
def run_ring(namespace: argparse.Namespace) -> Outcome:
    """Figure 3: what takes 128 eigenvalues of the spins takes two of the Gaussian behind them."""
    rows, size = namespace.rows, namespace.size
    if size < 4 or size % 2:
        raise InputError(f"--size {size}: half of the spins are up, so even and at least 4")
    with jax.enable_x64(True):
        moments = ring_moments(size)
        inverted = invert_moments(moments.mean, moments.correlation)
        exact = {
            "binary": eigenvalues(moments.correlation),
            "gaussian": eigenvalues(inverted.correlation),
        }
    correlation = np.asarray(inverted.correlation, float)
    scaled = eigenvalues(rescaled(correlation, namespace.seed))
    data = ring(random.key(namespace.seed), rows, size).data
    method = MomentInversion(clipped_gaussian, rank="spectrum")
    state = method.invert(random.key(namespace.seed), data, noise=0.0)
    assert state.edge is not None
    sample = {
        "binary": eigenvalues(count_pairs(data).second_moment),
        "gaussian": np.asarray(state.spectrum.eigenvalues),
    }
    numbers: dict[str, Any] = {
        "positive_eigenvalues_binary": _positive(exact["binary"]),
        "positive_eigenvalues_gaussian": _positive(exact["gaussian"]),
        "largest_other": _largest_other(exact["gaussian"]),
        "positive_eigenvalues_scaled": _positive(scaled),
        "first_two_eigenvalues": exact["gaussian"][:2],
        "first_two_eigenvalues_scaled": scaled[:2],
        "sample_rows": rows,
        "sample_positive_eigenvalues_binary": _positive(sample["binary"]),
        "sample_rank_gaussian": state.rank,
        "sample_noise_edge": float(state.edge),
        "sample_largest_other": _largest_other(sample["gaussian"]),
        "cells": count_cells(size, 2),
        "entropy_nats": entropy(state.params).nats,
        "entropy_nats_of_the_ring": float(np.log(size)),
    }
    return Outcome(numbers, (11, 4.2), _draw_ring, (np.asarray(data[:40]), exact, sample))


def eigenvalues(matrix: Array | np.ndarray) -> np.ndarray:
    """Largest first."""
    return np.linalg.eigvalsh(np.asarray(matrix, float))[::-1]


def rescaled(correlation: np.ndarray, seed: int) -> np.ndarray:
    """Covariances after each x_i was multiplied by a factor of its own, log-normal, σ = ½.

    No clip can tell (7), and by Sylvester's law no count of positive eigenvalues changes.
    """
    scale = np.exp(0.5 * np.random.default_rng(seed).normal(size=len(correlation)))
    scale /= np.sqrt(np.mean(scale**2))
    return scale[:, None] * correlation * scale


def _positive(eigenvalues: np.ndarray) -> int:
    """How many are positive, beyond what rounding makes of zero."""
    return int((eigenvalues > 1e-6 * eigenvalues[0]).sum())


def _largest_other(eigenvalues: np.ndarray) -> float:
    """The largest in size after the first two, as a share of the first."""
    return float(np.abs(eigenvalues[2:]).max() / eigenvalues[0])


def _draw_ring(page: Page, rows: np.ndarray, exact: dict, sample: dict) -> None:
    (left, right) = page.subplots(1, 2, width_ratios=(1, 1.15))
    left.imshow(rows, cmap="gray_r", aspect="auto", interpolation="nearest")
    left.set(title="Spins on a ring: one block, anywhere", xlabel="unit", ylabel="sample")
    styles = {"binary": ("C0", "spins"), "gaussian": ("C1", "Gaussian")}
    for name, (colour, label) in styles.items():
        ranks = np.arange(1, len(exact[name]) + 1)
        shown, drawn = (np.where(x > 1e-6 * x[0], x, np.nan) for x in (exact[name], sample[name]))
        right.plot(ranks, shown, "o", color=colour, markersize=6, label=f"{label}, exact")
        line = {"color": colour, "linewidth": 1.2, "alpha": 0.8, "label": f"{label}, sample"}
        right.plot(ranks, drawn, "-", **line)
    right.set(title="Before the clip two eigenvalues suffice", xlabel="rank", ylabel="eigenvalue")
    right.set(xscale="log", yscale="log")
    right.legend(loc="lower left")


@experiment(
    "clipped-constraint",
    "spins that add up to zero, which no Gaussian makes (Lee & Sompolinsky 1998, discussion)",
)
def run_constraint(namespace: argparse.Namespace) -> Outcome:
    """Spins that add up to zero: the inverted matrix has a negative eigenvalue, for all N ≥ 4."""
    del namespace
    sizes = np.array([2, 4, 6, 8, 12, 16, 32, 64])
    with jax.enable_x64(True):
        moments = sum_constraint_moments(4)
        inverted = invert_moments(moments.mean, moments.correlation).correlation
        nearest = nearest_correlation(inverted, tolerance=1e-9)
        # All pairs of one size are alike: a table for each size is all there is to invert.
        agree = jnp.asarray(0.25 * (1 - 1 / (sizes - 1)))
        cells = (agree, 0.5 - agree, 0.5 - agree, agree)
        pair = np.asarray(correlation_of_cells(jnp.zeros(len(sizes)), jnp.zeros(1), cells))
    least = 1 + (sizes - 1) * pair
    numbers = {
        "min_eigenvalue": float(eigenvalues(inverted)[-1]),
        "nearest_matrix_pair": float(nearest[0, 1]),
        "nearest_matrix_away": float(np.linalg.norm(np.asarray(nearest - inverted))),
        "min_eigenvalue_by_size": {str(n): float(x) for n, x in zip(sizes, least, strict=True)},
    }
    return Outcome(numbers, (6.5, 4.2), _draw_constraint, (sizes, least))


def _draw_constraint(page: Page, sizes: np.ndarray, least: np.ndarray) -> None:
    axes = page.subplots()
    fine = np.linspace(2, sizes[-1], 500)
    axes.plot(fine, 1 - (fine - 1) * np.sin(np.pi / (2 * (fine - 1))), color="C0", label="formula")
    axes.plot(sizes, least, "o", color="C1", label="inverted matrix")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(1 - np.pi / 2, color="black", linestyle=":", linewidth=1)
    axes.annotate("$1 - \\pi/2$", (sizes[-1], 1 - np.pi / 2), (0, 4),
                  textcoords="offset points", ha="right")  # fmt: skip
    axes.set(title="No Gaussian makes spins that add up to zero", xscale="log")
    axes.set(xlabel="number of spins", ylabel="least eigenvalue")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.legend()


@experiment(
    "clipped-baselines",
    "moment inversion, SVI and NUTS on one clipped Gaussian: correlations and time",
    rows=Option(300, "rows of the data", 80, 2),
    columns=Option(8, "columns of the data", 4, 3),
    draws=Option(200, "draws of NUTS, after as many to warm up", 30, 2),
    svi_steps=Option(2000, "steps of SVI", 300, 2),
)
def run_baselines(namespace: argparse.Namespace) -> Outcome:
    """NUTS and SVI on the same program: correlations recovered, and the time it takes."""
    rows, columns, rank = namespace.rows, namespace.columns, 2
    draws, svi_steps = namespace.draws, namespace.svi_steps
    keys = random.split(random.key(namespace.seed), 6)
    sizes = {"num_data": rows, "num_features": columns, "num_factors": rank}
    truth = {
        "weights": random.normal(keys[0], (rank, columns)),
        "bias": random.uniform(keys[1], (columns,), minval=-1.0, maxval=1.0),
    }
    simulate = Predictive(clipped_gaussian, posterior_samples=truth, batch_ndims=0)
    data = jax.jit(lambda key: simulate(key, **sizes)["observed"])(keys[2])
    correlations = jax.jit(implied_correlation)
    wanted = np.asarray(correlations(truth))
    pairs = np.triu_indices(columns, k=1)
    estimates: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, float]] = {}

    def record(name: str, correlation: Array, seconds: float, compiling: float) -> None:
        estimates[name] = np.asarray(correlation)
        error = float(np.abs(estimates[name] - wanted)[pairs].mean())
        times = {"seconds": seconds, "compile_seconds": compiling}
        table[name] = {"mean_abs_error": error, **times}

    def inverted() -> tuple[Any, float]:
        began = time.perf_counter()
        state = jax.block_until_ready(method.invert(keys[3], data, num_factors=rank))
        return state, time.perf_counter() - began

    method = MomentInversion(clipped_gaussian)
    _, cold = inverted()
    state, warm = inverted()
    record("moments, pairs", state.correlation, warm, cold - warm)
    record("moments, factors", correlations(state.params), warm, cold - warm)

    # Both start from the moments' parameters, so that neither loses time looking for them.
    start = init_to_value(values={**state.params})
    guide = AutoNormal(clipped_gaussian, init_loc_fn=start)
    svi = SVI(clipped_gaussian, guide, Adam(0.02), Trace_ELBO())

    def guided(key: Array) -> Any:
        params = svi.run(key, svi_steps, data, num_factors=rank, progress_bar=False).params
        return guide.sample_posterior(key, params, data, num_factors=rank, sample_shape=(200,))

    def sampled(key: Array) -> Any:
        mcmc = MCMC(
            NUTS(clipped_gaussian, init_strategy=start),
            num_warmup=draws, num_samples=draws, progress_bar=False,
        )  # fmt: skip
        mcmc.run(key, data, num_factors=rank)
        return mcmc.get_samples()

    for name, work, key in (("SVI, normal guide", guided, keys[4]), ("NUTS", sampled, keys[5])):
        drawn, seconds, compiling = timed(work, key)
        record(name, correlations(drawn).mean(axis=0), seconds, compiling)
    numbers = {"rows": rows, "columns": columns, "factors": rank, "methods": table}
    size = (3.4 * len(estimates), 4.6)
    return Outcome(numbers, size, _draw_baselines, (wanted[pairs], estimates, table, pairs))


def _draw_baselines(
    page: Page, wanted: np.ndarray, estimates: dict, table: dict, pairs: Any
) -> None:
    axes = page.subplots(1, len(estimates), sharey=True)
    for panel, (name, correlation) in zip(axes, estimates.items(), strict=True):
        panel.axline((0, 0), slope=1, color="black", linewidth=0.8)
        panel.plot(wanted, correlation[pairs], "o", markersize=4, alpha=0.7)
        error, seconds = table[name]["mean_abs_error"], table[name]["seconds"]
        spent = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
        panel.set_title(f"{name}\nerror {error:.3f}, {spent}")
        panel.set(xlabel="true correlation", aspect="equal")
    axes[0].set_ylabel("recovered")


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
