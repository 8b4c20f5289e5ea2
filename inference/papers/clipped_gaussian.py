"""Lee & Sompolinsky (1998): spins on a ring, and the constraint that no Gaussian meets."""

from __future__ import annotations

import argparse
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

from ..methods.moments.cells import count_cells, entropy
from ..methods.moments.inversion import MomentInversion
from ..methods.moments.pairs import count_pairs, invert_moments
from ..methods.moments.spectrum import (
    nearest_correlation,
)
from ..methods.moments.tetrachoric import correlation_of_cells
from .experiment import Option, Outcome, Page, experiment


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
