"""Lee & Sompolinsky (1998): the ring, the handwritten twos, the constraint no Gaussian meets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian
from latentbits.models.data import (
    InputError,
    digits,
    load_table,
    ring,
    ring_moments,
    small_digits,
    sum_constraint_moments,
)

from ...methods.moments.cells import count_cells, entropy
from ...methods.moments.inversion import MomentInversion, MomentState
from ...methods.moments.pairs import Pairs, count_pairs, invert_moments
from ...methods.moments.probit import Morph, modes, morph, reconstruct
from ...methods.moments.spectrum import nearest_correlation
from ...methods.moments.tetrachoric import correlation_of_cells
from .experiment import Experiment, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run_ring(namespace: argparse.Namespace) -> Outcome:
    """Figure 3: what takes 128 eigenvalues of the spins takes two of the Gaussian behind them."""
    rows, size = namespace.rows, namespace.size
    if rows < 1:
        raise InputError(f"--rows {rows}: must be at least 1")
    if size < 4 or size % 2:
        raise InputError(f"--size {size}: half of the spins are up, so even and at least 4")
    with jax.enable_x64(True):
        moments = ring_moments(size)
        inverted = invert_moments(moments.mean, moments.correlation)
        exact = {
            "binary": _eigenvalues(moments.correlation),
            "gaussian": _eigenvalues(inverted.correlation),
        }
    data = ring(random.key(namespace.seed), rows, size).data
    method = MomentInversion(clipped_gaussian, rank="spectrum")
    state = method.init(random.key(namespace.seed), data, noise=0.0)
    assert state.edge is not None
    sample = {
        "binary": _eigenvalues(count_pairs(data).second_moment),
        "gaussian": np.asarray(state.spectrum.eigenvalues),
    }
    numbers: dict[str, Any] = {
        "positive_eigenvalues_binary": _positive(exact["binary"]),
        "positive_eigenvalues_gaussian": _positive(exact["gaussian"]),
        "largest_other": _largest_other(exact["gaussian"]),
        "sample_rows": rows,
        "sample_positive_eigenvalues_binary": _positive(sample["binary"]),
        "sample_rank_gaussian": state.rank,
        "sample_noise_edge": float(state.edge),
        "sample_largest_other": _largest_other(sample["gaussian"]),
        "cells": count_cells(size, 2),
        "entropy_nats": entropy(state.params).nats,
        "entropy_nats_of_the_ring": float(np.log(size)),
    }
    return Outcome(numbers, lambda: _draw_ring(np.asarray(data[:40]), exact, sample))


def _eigenvalues(matrix: Array) -> np.ndarray:
    return np.linalg.eigvalsh(np.asarray(matrix, float))[::-1]


def _positive(eigenvalues: np.ndarray) -> int:
    """How many are positive, beyond what rounding makes of zero."""
    return int((eigenvalues > 1e-6 * eigenvalues[0]).sum())


def _largest_other(eigenvalues: np.ndarray) -> float:
    """The largest in size after the first two, as a share of the first."""
    return float(np.abs(eigenvalues[2:]).max() / eigenvalues[0])


def _draw_ring(rows: np.ndarray, exact: dict, sample: dict) -> Figure:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1, 1.15))
    left.imshow(rows, cmap="gray_r", aspect="auto", interpolation="nearest")
    left.set(title="Spins on a ring: one block, anywhere", xlabel="unit", ylabel="sample")
    styles = {"binary": ("C0", "spins"), "gaussian": ("C1", "Gaussian")}
    for name, (colour, label) in styles.items():
        ranks = np.arange(1, len(exact[name]) + 1)
        shown = np.where(exact[name] > 1e-6 * exact[name][0], exact[name], np.nan)
        right.plot(ranks, shown, "o", color=colour, markersize=6, label=f"{label}, exact")
        drawn = np.where(sample[name] > 1e-6 * sample[name][0], sample[name], np.nan)
        right.plot(
            ranks, drawn, "-", color=colour, linewidth=1.2, alpha=0.8, label=f"{label}, sample"
        )
    right.set(
        title="Two of the Gaussian's eigenvalues say it all",
        xlabel="rank",
        ylabel="eigenvalue",
        xscale="log",
        yscale="log",
    )
    right.legend(loc="lower left")
    return figure


def ring_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000, help="of the sample (default 10000)")
    parser.add_argument("--size", type=int, default=256, help="spins on the ring (default 256)")


def run_digits(namespace: argparse.Namespace) -> Outcome:
    """Figure 4: spectra, 16 eigenvectors and a morph of handwritten twos."""
    bits, shape = _images(namespace)
    key, rank = random.key(namespace.seed), namespace.rank
    data = jnp.asarray(bits)
    if namespace.steps < 2:
        raise InputError(f"--steps {namespace.steps}: a path has at least 2 images")
    if not namespace.smoothing >= 0:
        raise InputError(f"--smoothing {namespace.smoothing}: must not be negative")
    if not 0 < rank <= bits.shape[1]:
        raise InputError(f"--rank {rank}: must be from 1 to {bits.shape[1]}, the number of columns")
    raw = MomentInversion(clipped_gaussian, rank="spectrum").init(key, data)
    settings: dict[str, Any] = {"smoothing": namespace.smoothing, "nearest": True}
    state = MomentInversion(clipped_gaussian, rank=rank, **settings).init(key, data)
    factors = modes(clipped_gaussian, state.params, (data,), {"num_factors": rank})
    wrong = np.abs(np.asarray(reconstruct(state.params, factors)) - bits).sum(axis=1)
    plain = np.abs(_plain_components(bits, rank) - bits).sum(axis=1)
    pair = _unlike(bits)
    path = morph(state.params, data[pair[0]], data[pair[1]], namespace.steps)

    varies = ~np.asarray(raw.repairs.constant)
    gaussian = _eigenvalues(np.asarray(raw.correlation)[np.ix_(varies, varies)])
    repaired = _eigenvalues(np.asarray(state.correlation)[np.ix_(varies, varies)])
    binary = _eigenvalues(_bit_correlation(count_pairs(data))[np.ix_(varies, varies)])
    assert raw.edge is not None
    edge = float(raw.edge)
    numbers: dict[str, Any] = {
        "rows": len(bits),
        "columns": bits.shape[1],
        "constant_columns": int((~varies).sum()),
        "empty_cells": int(raw.repairs.empty),
        f"share_of_first_{rank}_binary": _share(binary, rank),
        f"share_of_first_{rank}_gaussian": _share(repaired, rank),
        f"share_of_first_{rank}_gaussian_unrepaired": _share(gaussian, rank),
        "negative_eigenvalues": int(raw.spectrum.num_negative),
        "least_eigenvalue": float(gaussian[-1]),
        "negative_share": float(raw.spectrum.negative_share),
        "rank_by_spectrum": raw.rank,
        "noise_edge": edge,
        "smoothing": namespace.smoothing,
        "moved_to_nearest": float(state.moved) if state.moved is not None else 0.0,
        "bits_wrong": float(wrong.mean()),
        "bits_wrong_pca": float(plain.mean()),
        "morph_hamming": np.asarray(path.hamming, int),
        "morph_ends_wrong": np.asarray(path.wrong, int),
    }
    spectra = {"bits": binary, "Gaussian": gaussian, "Gaussian, smoothed, nearest": repaired}
    return Outcome(numbers, lambda: _draw_digits(state, spectra, edge, path, bits[pair], shape))


def _images(namespace: argparse.Namespace) -> tuple[np.ndarray, tuple[int, int]]:
    if namespace.data is None and namespace.side == 16:
        bits = np.asarray(digits([2]).data)
    elif namespace.data is None:
        every = small_digits()
        bits = np.asarray(every.data)[np.asarray(every.label) == 2]
    else:
        table = load_table(
            namespace.data,
            key=namespace.key,
            packed=namespace.packed,
            allow_missing=False,
            allow_constant=True,
        )
        bits = table.values
    if namespace.rows is not None:
        if not 2 <= namespace.rows <= len(bits):
            raise InputError(f"--rows {namespace.rows}: wanted 2 to {len(bits)}")
        bits = bits[: namespace.rows]
    side = round(bits.shape[1] ** 0.5)
    if side * side != bits.shape[1]:
        raise InputError(f"--data {namespace.data}: {bits.shape[1]} columns are no square image")
    return bits, (side, side)


def _plain_components(bits: np.ndarray, rank: int) -> np.ndarray:
    """What principal components of the bits themselves make of each row, cut at one half."""
    mean = bits.mean(axis=0)
    basis = np.linalg.svd(bits - mean, full_matrices=False)[2][:rank]
    return ((bits - mean) @ basis.T @ basis + mean > 0.5).astype(bits.dtype)


def _bit_correlation(pairs: Pairs) -> np.ndarray:
    """C^ss about the means and with a unit diagonal, as C^xx has one; zero for constants."""
    mean, second = np.asarray(pairs.mean), np.asarray(pairs.second_moment)
    covariance = second - mean[:, None] * mean
    deviation = np.sqrt(np.maximum(np.diagonal(covariance), 1e-30))
    return covariance / deviation[:, None] / deviation


def _share(eigenvalues: np.ndarray, rank: int) -> float:
    """Of the first few in the whole spectrum, in which a negative one counts by its size."""
    return float(eigenvalues[:rank].sum() / np.abs(eigenvalues).sum())


def _unlike(bits: np.ndarray) -> list[int]:
    """Two of the first hundred images, of ordinary weight and as unlike as two usually are."""
    first, weight = bits[:100], bits.sum(axis=1)
    ordinary = np.abs(first.sum(axis=1) - weight.mean()) <= weight.std()
    distance = np.abs(first[:, None] - first).sum(axis=-1)
    pairs = np.argwhere(np.triu(ordinary[:, None] & ordinary, k=1))
    order = np.argsort(distance[pairs[:, 0], pairs[:, 1]], kind="stable")
    return [int(i) for i in pairs[order[len(order) // 2]]]


def _draw_digits(
    state: MomentState,
    spectra: dict[str, np.ndarray],
    edge: float,
    path: Morph,
    ends: np.ndarray,
    shape: tuple[int, int],
) -> Figure:
    from matplotlib import pyplot

    from ..figures import image_grid

    figure = pyplot.figure(figsize=(13, 5.2))
    parts: Any = figure.subfigures(1, 3, width_ratios=(1.25, 1, 1.2))
    left, middle, right = parts
    draw_spectra(left.subplots(), spectra, edge)
    columns = int(np.ceil(state.rank**0.5))
    vectors = np.full((columns * columns, *shape), np.nan)
    found = np.linalg.eigh(np.asarray(state.correlation))[1][:, ::-1].T[: state.rank]
    vectors[: state.rank] = found.reshape(-1, *shape)
    vectors = vectors[: -(-state.rank // columns) * columns]
    image_grid(
        middle,
        vectors.reshape(-1, columns, *shape),
        scale="image",
        title=f"First {state.rank} eigenvectors",
    )
    # The two images as they are come first and last; between them, what the model makes.
    story = np.concatenate([ends[:1], np.asarray(path.images), ends[1:]])
    wide = 4
    frames = np.full((-(-len(story) // wide) * wide, *shape), np.nan)
    frames[: len(story)] = story.reshape(-1, *shape)
    image_grid(
        right, frames.reshape(-1, wide, *shape), signed=False, title="From one two to another"
    )
    return figure


def draw_spectra(axes: Axes, spectra: dict[str, np.ndarray], edge: float) -> None:
    """Eigenvalues by rank, and the edge above which they count as factors."""
    from ..figures import spectrum

    spectrum(axes, spectra)
    axes.axhline(edge, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        "independent columns stay below", (1.0, edge), xycoords=("axes fraction", "data"),
        xytext=(0, 4), textcoords="offset points", ha="right", fontsize=10,
    )  # fmt: skip
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_title("Spectra of the correlations")


def digits_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FILE", help="images of your own, a row each; 0/1")
    parser.add_argument("--key", help="which array of an .npz file")
    parser.add_argument("--packed", type=int, metavar="BITS", help="rows are packed bits")
    parser.add_argument(
        "--side", type=int, choices=(8, 16), default=16, help="pixels of our own twos (default 16)"
    )
    parser.add_argument("--rows", type=int, help="how many, from the first on; default all")
    parser.add_argument("--rank", type=int, default=16, help="factors (default 16)")
    parser.add_argument("--steps", type=int, default=10, help="images of the morph (default 10)")
    parser.add_argument(
        "--smoothing", type=float, default=1.0, help="rows of independence added (default 1)"
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
        "min_eigenvalue": float(_eigenvalues(inverted)[-1]),
        "nearest_matrix_pair": float(nearest[0, 1]),
        "nearest_matrix_away": float(np.linalg.norm(np.asarray(nearest - inverted))),
        "min_eigenvalue_by_size": {str(n): float(x) for n, x in zip(sizes, least, strict=True)},
    }
    return Outcome(numbers, lambda: _draw_constraint(sizes, least))


def _draw_constraint(sizes: np.ndarray, least: np.ndarray) -> Figure:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4.2))
    fine = np.linspace(2, sizes[-1], 500)
    axes.plot(fine, 1 - (fine - 1) * np.sin(np.pi / (2 * (fine - 1))), color="C0", label="formula")
    axes.plot(sizes, least, "o", color="C1", label="inverted matrix")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(1 - np.pi / 2, color="black", linestyle=":", linewidth=1)
    axes.annotate("$1 - \\pi/2$", (sizes[-1], 1 - np.pi / 2), (0, 4),
                  textcoords="offset points", ha="right")  # fmt: skip
    axes.set(
        title="No Gaussian makes spins that add up to zero",
        xlabel="number of spins",
        ylabel="least eigenvalue",
        xscale="log",
    )
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.legend()
    return figure


EXPERIMENTS = (
    Experiment(
        "clipped-ring",
        "two eigenvalues of a Gaussian for 128 of the spins (Lee & Sompolinsky 1998, figure 3)",
        run_ring,
        {"size": 16, "rows": 500},
        ring_options,
    ),
    Experiment(
        "clipped-digits",
        "spectra, factors and a morph of handwritten twos (Lee & Sompolinsky 1998, figure 4)",
        run_digits,
        {"side": 8, "rows": 60, "rank": 2, "steps": 3},
        digits_options,
    ),
    Experiment(
        "clipped-constraint",
        "spins that add up to zero, which no Gaussian makes (Lee & Sompolinsky 1998, discussion)",
        run_constraint,
        {},
    ),
)
