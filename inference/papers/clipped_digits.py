"""Lee & Sompolinsky (1998): handwritten twos, figure 4, and principal components beside them."""

from __future__ import annotations

import argparse
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian
from latentbits.models.data import InputError, digits, small_digits

from ..files.figures import Axes, image_grid, spectrum
from ..methods.moments.hidden import hidden_values
from ..methods.moments.inversion import MomentInfo, MomentInversion
from ..methods.moments.pairs import Pairs, count_pairs
from ..methods.moments.probit import modes, morph, reconstruct
from ..methods.moments.spectrum import principal_components
from .clipped_gaussian import eigenvalues, rescaled
from .experiment import IMAGES, Option, Outcome, Page, experiment, load_images

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
    key, rank, shape = random.key(namespace.seed), namespace.rank, (side, side)
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
    gaussian = eigenvalues(np.asarray(raw.correlation)[np.ix_(varies, varies)])
    repaired = eigenvalues(np.asarray(state.correlation)[np.ix_(varies, varies)])
    binary = eigenvalues(_bit_correlation(count_pairs(data))[np.ix_(varies, varies)])
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
        **scaling(np.asarray(state.correlation)[np.ix_(varies, varies)], rank, namespace.seed),
    }
    spectra = {"bits": binary, "Gaussian": gaussian, "Gaussian, smoothed, nearest": repaired}
    paths = (np.asarray(path.images), grey)
    drawn = (state, spectra, edge, paths, bits[pair], shape)
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
    shape: tuple[int, int],
) -> None:
    halves: Any = page.subfigures(2, 1, height_ratios=(2.2, 1))
    parts: Any = halves[0].subfigures(1, 2, width_ratios=(1.25, 1))
    left, middle = parts
    draw_spectra(left.subplots(), spectra, edge)
    columns = int(np.ceil(state.rank**0.5))
    vectors = np.full((columns * columns, *shape), np.nan)
    leading = np.linalg.eigh(np.asarray(state.correlation))[1][:, ::-1].T[: state.rank]
    vectors[: state.rank] = leading.reshape(-1, *shape)
    vectors = vectors[: -(-state.rank // columns) * columns]
    grid, title = vectors.reshape(-1, columns, *shape), f"First {state.rank} eigenvectors"
    image_grid(middle, grid, scale="image", title=title)
    # The two images as they are come first and last; between them, what either model makes.
    stories = np.stack([np.concatenate([ends[:1], x, ends[1:]]) for x in paths])
    grid, names = stories.reshape(2, -1, *shape), ("clipped", "PCA")
    image_grid(halves[1], grid, signed=False, title="From one two to another", row_labels=names)


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
