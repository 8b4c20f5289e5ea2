"""Lee & Sompolinsky (1998): which images lie beside each other, and where an image lies.

"The hidden values for the original images are first determined": how, it does not say.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from latentbits.models import clipped_gaussian

from ..files.figures import Axes
from ..methods.moments.cells import Cells, count_cells, enumerate_cells
from ..methods.moments.hidden import draw_hidden, hidden_values
from ..methods.moments.probit import modes, reconstruct
from .experiment import Option, Outcome, Page, experiment


@experiment(
    "clipped-neighbours",
    "how many images lie beside an image, by a single flip (Lee & Sompolinsky 1998, section 2)",
    columns=Option(32, "hyperplanes", 8, 3),
    draws=Option(1000, "draws beyond the plane", 50, 2),
    factors=Option([3, 4, 5], "factors beyond the plane", [3]),
)
def run_neighbours(namespace: argparse.Namespace) -> Outcome:
    """ "Each polytope has at least P + 1 neighboring polytopes …": counted.

    In the plane all cells are enumerated, beyond it the cell of each of `--draws` standard normal y
    is taken, so that cells count by their probability. It is so for every bounded cell, since a
    polytope has at least P + 1 facets. It is not for unbounded ones, which may have P: with biases
    these are few (2N of about N²/2 in the plane). Without biases, the case for which the paper says
    it, all hyperplanes pass through the origin and all cells are unbounded: in the plane each is a
    wedge between two lines and has 2 neighbours.

    "A single or small number of spin flips": one, in general position. It takes more where columns
    share a hyperplane, as spins i and i + N/2 of the paper's ring do: 2 there.
    """
    columns, draws = namespace.columns, namespace.draws
    rng = np.random.default_rng(namespace.seed)
    weights, bias = rng.normal(size=(2, columns)), rng.normal(size=columns)
    angle = 2 * np.pi * np.arange(256) / 256
    circle = np.stack([np.cos(angle), np.sin(angle)])
    each: Any = (weights, bias), (weights, np.zeros(columns)), (circle, np.zeros(256))
    plane, wedges, ring = (enumerate_cells({"weights": w, "bias": b}) for w, b in each)
    count = neighbours(plane)
    # A cell reaches to infinity in the directions of a cell of the same lines through the origin.
    open_ended = (plane.bits[:, None] == wedges.bits).all(axis=-1).any(axis=1)
    numbers: dict[str, Any] = {
        "columns": columns,
        "the plane, exactly": {
            "with biases": {
                "cells": len(plane.bits),
                "cells_by_formula": count_cells(columns, 2, central=False),
                "unbounded_cells": int(open_ended.sum()),
                "least_neighbours": int(count.min()),
                "least_neighbours_bounded": int(count[~open_ended].min()),
                "share_of_cells_below_3": float(np.mean(count < 3)),
                "probability_of_cells_below_3": float(plane.probability[count < 3].sum()),
                "mean_neighbours": float(count.mean()),
            },
            "without": _ends(wedges),
            "the ring, 256 spins": {**_ends(ring), "flips_to_a_neighbour": _least_flips(ring)},
        },
    }
    beyond = {}
    for factors in namespace.factors:
        sampled = sampled_neighbours(rng, factors, columns, draws)
        beyond[factors] = sampled["with biases"][0]
        numbers[f"{factors} factors, {draws} draws"] = {
            name: {
                "least_neighbours": int(facets.min()),
                "mean_neighbours": float(facets.mean()),
                "share_unbounded": float(1 - bounded.mean()),
                "share_of_rows_below_P+1": float(np.mean(facets < factors + 1)),
                "least_neighbours_bounded": int(facets[bounded].min()) if bounded.any() else "none",
            }
            for name, (facets, bounded) in sampled.items()
        }
    return Outcome(numbers, (11, 4.8), _draw, (weights, bias, plane, count, beyond))


def _ends(cells: Cells) -> dict[str, int]:
    count = neighbours(cells)
    ends = {"least_neighbours": int(count.min()), "most_neighbours": int(count.max())}
    return {"cells": len(cells.bits), **ends}


def neighbours(cells: Cells) -> np.ndarray:
    """How many cells share an edge with each, (num_cells,).

    Two cells do if one line alone divides them: the bits of all its columns differ, and no other.
    """
    # Columns over all cells; one that is another's opposite has the same line.
    _, where = np.unique(cells.bits ^ cells.bits[:1], axis=1, return_index=True)
    lines = cells.bits[:, where].astype(float)
    apart = lines @ (1 - lines).T
    return (apart + apart.T == 1).sum(axis=1)


def _least_flips(cells: Cells) -> int:
    """Bits that change from a cell to the nearest one, the most over all cells."""
    bits = cells.bits.astype(float)
    apart = bits @ (1 - bits).T
    apart = apart + apart.T
    np.fill_diagonal(apart, np.inf)
    return int(apart.min(axis=1).max())


def sampled_neighbours(
    rng: np.random.Generator, factors: int, columns: int, draws: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Neighbours of the cells of random y, and whether these are bounded; with and without biases.

    Seen from y, a hyperplane in direction n at distance d > 0 is the point n/d of the dual space.
    Those that bound the cell are the corners of the convex hull of these points and the origin, and
    the cell is bounded if the origin is no corner.
    """
    from scipy.spatial import ConvexHull

    weights, bias = rng.normal(size=(factors, columns)), rng.normal(size=columns)
    neighbours = {}
    for name, shift in (("with biases", bias), ("without", np.zeros(columns))):
        height = rng.normal(size=(draws, factors)) @ weights + shift
        dual = np.zeros((draws, columns + 1, factors))
        dual[:, :-1] = -weights.T / height[:, :, None]
        corners = [ConvexHull(points).vertices for points in dual]
        bounded = np.array([columns not in corner for corner in corners])
        neighbours[name] = np.array([len(x) for x in corners]) - ~bounded, bounded
    return neighbours


def _draw(
    page: Page, weights: np.ndarray, bias: np.ndarray, plane: Cells, count: np.ndarray, beyond: dict
) -> None:
    (left, right) = page.subplots(1, 2, width_ratios=(1, 1.15))
    _draw_plane(left, weights, bias, plane, count)
    most = max(int(x.max()) for x in beyond.values())
    shares = {2: np.bincount(count, plane.probability, most + 1)}
    shares |= {p: np.bincount(x, minlength=most + 1) / len(x) for p, x in beyond.items()}
    for number, (factors, share) in enumerate(shares.items()):
        drawn = np.flatnonzero(share)
        right.plot(drawn, share[drawn], marker="osD^v<"[number % 6], label=f"P = {factors}",
                   color=f"C{number}")  # fmt: skip
        right.axvline(factors + 1, color=f"C{number}", linewidth=1, linestyle=":")
    right.set(
        title="Neighbours of a cell; dotted: P + 1", xlabel="neighbours",
        ylabel="probability of such a cell",
    )  # fmt: skip
    right.legend()


def _draw_plane(
    axes: Axes, weights: np.ndarray, bias: np.ndarray, plane: Cells, count: np.ndarray
) -> None:
    """The cells of the plane, coloured by their number of neighbours."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    side = np.linspace(-2.5, 2.5, 400)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    images = np.packbits(grid @ weights + bias > 0, axis=1)
    known = {x.tobytes(): c for x, c in zip(np.packbits(plane.bits, axis=1), count, strict=True)}
    value = np.array([known.get(x.tobytes(), 0) for x in images]).reshape(len(side), -1)
    colours = ListedColormap(["#d55e00", "#f0e442", "#9ecae1", "#4292c6", "#08519c"])
    shown = axes.pcolormesh(
        side, side, np.clip(value, 2, 6), cmap=colours, norm=BoundaryNorm(np.arange(1.5, 7), 5),
        rasterized=True,
    )  # fmt: skip
    bar = axes.figure.colorbar(shown, ax=axes, ticks=[2, 3, 4, 5, 6], label="neighbours")
    bar.ax.set_yticklabels(["2", "3", "4", "5", "6+"])
    axes.set(title=f"{weights.shape[1]} bits on two factors", xlabel="$y_1$", ylabel="$y_2$",
             aspect="equal")  # fmt: skip


@experiment(
    "clipped-hidden",
    "hidden values of images under the hard clip (Lee & Sompolinsky 1998, section 4)",
    rows=Option(200, "rows of the table", 12, 2),
    columns=Option(64, "columns of the table", 16, 2),
    factors=Option(5, "factors behind them", 3, 1),
    draws=Option(400, "draws from each cell", 40, 2),
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
    return Outcome(numbers, (5.8, 4.6), _draw_hidden, (truth, drawn))


def _draw_hidden(page: Page, truth: np.ndarray, drawn: np.ndarray) -> None:
    axes = page.subplots()
    low, middle, high = np.quantile(drawn[..., 0], (0.05, 0.5, 0.95), axis=0)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.errorbar(truth[:, 0], middle, yerr=[middle - low, high - middle], fmt="o", markersize=3,
                  linewidth=1, alpha=0.6)  # fmt: skip
    axes.set(title="Draws from the cell of each image", xlabel="true hidden value",
             ylabel="median and 90 % interval")  # fmt: skip
