"""Lee & Sompolinsky (1998): spins on a ring, the constraint that no Gaussian meets, and handwritten
twos, figure 4, with principal components beside them."""

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
    digits,
    ring,
    ring_moments,
    small_digits,
    sum_constraint_moments,
)

from ..files.figures import Axes, image_grid, spectrum
from ..methods.moments.cells import count_cells, entropy
from ..methods.moments.hidden import hidden_values
from ..methods.moments.inversion import MomentInfo, MomentInversion
from ..methods.moments.pairs import Pairs, count_pairs, invert_moments
from ..methods.moments.probit import modes, morph, reconstruct
from ..methods.moments.spectrum import nearest_correlation, principal_components
from ..methods.moments.tetrachoric import correlation_of_cells
from .experiment import (
    IMAGES,
    Option,
    Outcome,
    Page,
    across,
    down,
    experiment,
    in_rows,
    load_images,
)


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
        **{f"positive_eigenvalues_{kind}": _positive(x) for kind, x in exact.items()},
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


IN_CELLS = 200
"""Rows whose cell is looked for: a linear programme each."""


@experiment(
    "clipped-digits",
    "spectra, factors and a morph of handwritten twos (Lee & Sompolinsky 1998, figure 4)",
    **IMAGES,
    side=Option(16, "pixels of our own twos", 8, choices=(8, 16)),
    rows=Option(int, "how many, from the first on; default all", 60),
    rank=Option(16, "factors", 2, 1),
    steps=Option(10, "images of the morph", 3, 2),
    smoothing=Option(1.0, "rows of independence added", least=0),
)
def run_digits(namespace: argparse.Namespace) -> Outcome:
    """Figure 4: spectra, 16 eigenvectors and a morph of handwritten twos.

    "The hidden values for the original images are first determined": the paper does not say how.
    The morph takes modes under the probit relaxation. Under the hard clip itself a linear programme
    decides: hardly any two is an image of 16 factors, so that most have no hidden values in the
    paper's sense; the nearest that there are get fewer bits wrong than the modes.
    """
    bits = load_images(namespace, lambda: twos(namespace.side), 2)
    side = round(bits.shape[1] ** 0.5)
    key, rank = random.key(namespace.seed), namespace.rank
    data = jnp.asarray(bits)
    if rank > bits.shape[1]:
        raise InputError(f"--rank {rank}: must be at most {bits.shape[1]}, the number of columns")
    raw = MomentInversion(clipped_gaussian, rank="spectrum").invert(key, data)
    settings: dict[str, Any] = {"smoothing": namespace.smoothing, "nearest": True}
    state = MomentInversion(clipped_gaussian, rank=rank, **settings).invert(key, data)
    factors = modes(clipped_gaussian, state.params, (data,), {"num_factors": rank})
    wrong = np.abs(np.asarray(reconstruct(state.params, factors)) - bits).sum(axis=1)
    inside = hidden_values(_hard(state), bits[:IN_CELLS])
    # What principal components of the bits themselves make of each row, cut at one half.
    plain = np.abs((_projected(bits, rank) > 0.5) - bits).sum(axis=1)
    pair = _unlike(bits)
    path = morph(state.params, data[pair[0]], data[pair[1]], namespace.steps)
    grey = linear_morph(bits, rank, pair, namespace.steps)

    varies = ~np.asarray(raw.repairs.constant)
    those = lambda matrix: np.asarray(matrix)[np.ix_(varies, varies)]  # noqa: E731
    every = _bit_correlation(count_pairs(data)), raw.correlation, state.correlation
    binary, gaussian, repaired = (eigenvalues(those(matrix)) for matrix in every)
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
        "bits_wrong_hard_clip": float(inside.wrong.mean()),
        "share_of_twos_a_hard_clip_makes": float(np.mean(inside.wrong == 0)),
        "morph_hamming": np.asarray(path.hamming, int),
        "morph_ends_wrong": np.asarray(path.wrong, int),
        **between(np.asarray(path.images), grey, bits),
        **scaling(those(state.correlation), rank, namespace.seed),
    }
    spectra = {"bits": binary, "Gaussian": gaussian, "Gaussian, smoothed, nearest": repaired}
    paths = (np.asarray(path.images), grey)
    drawn = (state, spectra, edge, paths, bits[pair], side)
    return Outcome(numbers, (10.5, 7.4), _draw_digits, drawn)


def _hard(state: MomentInfo) -> dict[str, Array]:
    """The paper's own parameters from the same correlations: principal components, no noise."""
    loadings = principal_components(state.correlation, state.rank).loadings
    size = jnp.linalg.norm(loadings, axis=0)
    return {"weights": loadings / jnp.where(size > 0, size, 1.0), "bias": state.threshold}


def twos(side: int) -> np.ndarray:
    """Our own, of 16 × 16 or 8 × 8 pixels."""
    if side == 16:
        return np.asarray(digits([2]).data)
    every = small_digits()
    return np.asarray(every.data)[np.asarray(every.label) == 2]


def _projected(bits: np.ndarray, rank: int) -> np.ndarray:
    mean = bits.mean(axis=0)
    basis = np.linalg.svd(bits - mean, full_matrices=False)[2][:rank]
    return (bits - mean) @ basis.T @ basis + mean


def linear_morph(bits: np.ndarray, rank: int, pair: list[int], steps: int) -> np.ndarray:
    """The same path by conventional principal components: grey images, (steps, num_features)."""
    first, last = _projected(bits, rank)[pair]
    share = np.linspace(0.0, 1.0, steps)[:, None]
    return np.clip((1 - share) * first + share * last, 0.0, 1.0)


def between(clipped: np.ndarray, grey: np.ndarray, bits: np.ndarray) -> dict[str, float]:
    """How far the inner images of both paths are from being a two.

    The paper: by conventional principal components "the intermediate images would not look anything
    like the original binary distribution". A pixel is grey from 0.1 to 0.9, as none of the clipped
    is; the distance to the nearest two is Σ|difference|, of a two itself that to another one, the
    median. Principal components cut at one half are bits as well, and as near to the twos as the
    model's: what is gained is the clip, not the correlations behind it.
    """
    inner = slice(1, -1) if len(grey) > 2 else slice(None)
    paths = {"": clipped, "_pca": grey, "_pca_cut": (grey > 0.5).astype(float)}
    own = np.abs(bits[:, None, :] - bits[:200]).sum(axis=-1, dtype=float)
    own[own == 0] = np.inf  # itself
    away = {x: np.abs(path[inner, None] - bits).sum(axis=-1) for x, path in paths.items()}
    return {
        "morph_grey_pca": float(((grey > 0.1) & (grey < 0.9))[inner].mean()),
        **{f"morph_to_nearest_two{x}": float(far.min(axis=1).mean()) for x, far in away.items()},
        "nearest_of_a_two": float(np.median(own.min(axis=0))),
    }


def scaling(correlation: np.ndarray, rank: int, seed: int) -> dict[str, Any]:
    """The paper: scaling x gives "slightly different eigenvalues but with the same rank".

    So it is, as numbers of positive eigenvalues go. But the best approximation of low rank depends
    on the scale as soon as the rank is higher than that: how far its correlations move is beside
    how far they are from those that were to be approximated.
    """
    other = rescaled(correlation, seed)
    before, after = eigenvalues(correlation), eigenvalues(other)
    fits = [_of_rank(x, rank) for x in (correlation, other)]
    size = lambda x: float(np.sqrt(np.mean(x**2)))  # noqa: E731
    return {
        "positive_eigenvalues_scaled": [int((x > 1e-3).sum()) for x in (before, after)],
        f"share_of_first_{rank}_scaled": _share(after, rank),
        "fitted_correlations_moved_by_scaling": size(fits[1] - fits[0]),
        "fitted_correlations_wrong": size(fits[0] - correlation),
    }


def _of_rank(covariance: np.ndarray, rank: int) -> np.ndarray:
    """Correlations of its best approximation of low rank."""
    values, vectors = np.linalg.eigh(covariance)
    loadings = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0))
    loadings /= np.linalg.norm(loadings, axis=1, keepdims=True)
    return loadings @ loadings.T


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
    page: Page,
    state: MomentInfo,
    spectra: dict[str, np.ndarray],
    edge: float,
    paths: tuple[np.ndarray, ...],
    ends: np.ndarray,
    side: int,
) -> None:
    top, bottom = down(page, 2.2, 1)
    left, middle = across(top, 1.25, 1)
    draw_spectra(left.subplots(), spectra, edge)
    leading = np.linalg.eigh(np.asarray(state.correlation))[1][:, ::-1].T[: state.rank]
    grid = in_rows(leading, side, int(np.ceil(state.rank**0.5)))
    image_grid(middle, grid, scale="image", title=f"First {state.rank} eigenvectors")
    # The two images as they are come first and last; between them, what either model makes.
    stories = np.stack([np.concatenate([ends[:1], x, ends[1:]]) for x in paths])
    grid, names = stories.reshape(2, -1, side, side), ("clipped", "PCA")
    image_grid(bottom, grid, signed=False, title="From one two to another", row_labels=names)


def draw_spectra(axes: Axes, spectra: dict[str, np.ndarray], edge: float) -> None:
    """Eigenvalues by rank, and the edge above which they count as factors."""
    spectrum(axes, spectra)
    axes.axhline(edge, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        "independent columns stay below", (1.0, edge), xycoords=("axes fraction", "data"),
        xytext=(0, 4), textcoords="offset points", ha="right", fontsize=10,
    )  # fmt: skip
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_title("Spectra of the correlations")
