"""Lee & Sompolinsky (1998): "the hidden values for the original images are first determined"."""

from __future__ import annotations

import argparse

import numpy as np
from latentbits.models import clipped_gaussian

from ...methods.moments.hidden import draw_hidden, hidden_values
from ...methods.moments.probit import modes, reconstruct
from .experiment import Option, Outcome, Page, experiment


@experiment(
    "clipped-hidden",
    "hidden values of images under the hard clip (Lee & Sompolinsky 1998, section 4)",
    rows=Option(200, "of the table", 12, 2),
    columns=Option(64, "of the table", 16, 2),
    factors=Option(5, "behind them", 3, 1),
    draws=Option(400, "from each cell", 40, 2),
)
def run_hidden(namespace: argparse.Namespace) -> Outcome:
    """How: the paper does not say. Under the hard clip itself, by linear programming.

    Every row of a known model has a cell; the programme finds it, and draws from the cell have the
    true y in their 90 % intervals as often as they say. The mode under the probit relaxation, which
    has no cell, gets some bits wrong. What becomes of real images: ``clipped-digits``.
    """
    rows, draws = namespace.rows, namespace.draws
    factors, columns = namespace.factors, namespace.columns
    rng = np.random.default_rng(namespace.seed)
    known = {"weights": rng.normal(size=(factors, columns)), "bias": rng.normal(size=columns)}
    truth = rng.normal(size=(rows, factors))
    bits = (truth @ known["weights"] + known["bias"] > 0).astype(float)
    deepest = hidden_values(known, bits)
    drawn = draw_hidden(namespace.seed, known, bits, deepest.factors, draws)
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    mode = modes(clipped_gaussian, known, (bits,), {"num_factors": factors})
    error = lambda x: float(np.sqrt(np.mean((np.asarray(x) - truth) ** 2)))  # noqa: E731

    numbers = {
        "rows": rows,
        "columns": columns,
        "factors": factors,
        "bits_wrong": int(deepest.wrong.sum()),
        "bits_wrong_by_mode": int(np.abs(np.asarray(reconstruct(known, mode)) - bits).sum()),
        "error_of_deepest_point": error(deepest.factors),
        "error_of_mean_of_draws": error(drawn.mean(axis=0)),
        "error_of_mode": error(mode),
        "inside_of_90_percent_intervals": float(np.mean((low <= truth) & (truth <= high))),
    }
    return Outcome(numbers, (5.8, 4.6), _draw, (truth, drawn))


def _draw(page: Page, truth: np.ndarray, drawn: np.ndarray) -> None:
    axes = page.subplots()
    low, middle, high = np.quantile(drawn[..., 0], (0.05, 0.5, 0.95), axis=0)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.errorbar(truth[:, 0], middle, yerr=[middle - low, high - middle], fmt="o", markersize=3,
                  linewidth=1, alpha=0.6)  # fmt: skip
    axes.set(title="Draws from the cell of each image", xlabel="true hidden value",
             ylabel="median and 90 % interval")  # fmt: skip
