"""Latent trait (Tipping 1998) beside principal components, of numbers and of bits."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import latent_trait, mixed_trait
from latentbits.models.data import prototypes
from scipy.linalg import subspace_angles

from ...methods.continuous.bound import BoundEM
from .experiment import Option, Outcome, Page, experiment

FLIPS = (0.05, 0.15, 0.25)
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
    tables=Option(20, "of each flip", 2, 2),
    steps=Option(60, "of each fit", 40),
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
    keys = jax.random.split(key, (len(FLIPS), namespace.tables, 2))
    method = BoundEM(latent_trait)
    each = jax.vmap(jax.vmap(partial(_maps, method, namespace.steps), (0, None)))
    maps: Maps = jax.tree.map(np.asarray, jax.jit(each)(keys, jnp.array(FLIPS)))
    numbers["bits"] = {
        f"flip {flip:g}": {
            "tables": namespace.tables,
            "rows_nearest_to_their_own_prototype": _mean(maps.trait_right[i]),
            "rows_nearest_by_pca": _mean(maps.pca_right[i]),
            "difference": _mean(maps.trait_right[i] - maps.pca_right[i]),
            "least_canonical_correlation": _mean(maps.alike[i]),
        }
        for i, flip in enumerate(FLIPS)
    }
    return Outcome(numbers, (3.6 * len(FLIPS), 7), _draw, (maps,))


def _mean(values: np.ndarray) -> list[float]:
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
    step = lambda _, state: method.update(state, data)[0]  # noqa: E731
    state = jax.lax.fori_loop(0, steps, step, method.init(keys[1], data))
    trait = method.posterior(method.get_params(state), data, gap=False).mean
    about = data - data.mean(axis=0)
    pca = about @ jnp.linalg.eigh(about.T @ about)[1][:, -2:]
    bases = [jnp.linalg.qr(x - x.mean(axis=0))[0] for x in (trait, pca)]
    alike = jnp.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1]
    label = truth.label
    return Maps(trait, pca, label, _right(trait, label), _right(pca, label), alike)


def _right(places: Array, label: Array) -> Array:
    mark = jax.nn.one_hot(label, 3)
    centres = mark.T @ places / mark.sum(axis=0)[:, None]
    away = jnp.sum((places[:, None] - centres) ** 2, axis=-1)
    return jnp.mean(away.argmin(axis=1) == label)


def _draw(page: Page, maps: Maps) -> None:
    axes = page.subplots(2, len(FLIPS))
    for column, flip in enumerate(FLIPS):
        one = Maps(*(np.asarray(x)[column, 0] for x in maps))
        for row, (places, share) in enumerate(
            ((one.trait, one.trait_right), (one.pca, one.pca_right))
        ):
            panel = axes[row, column]
            for cluster, mark in enumerate("osD"):
                mine = places[one.label == cluster]
                panel.plot(*mine.T, mark, markersize=3, alpha=0.5)
            name = ("latent trait", "principal components")[row]
            words = f"{name}, flips {flip:g}\n{share:.1%} nearest to their own"
            panel.set_title(words, fontsize=11)
            panel.set_xticks([])
            panel.set_yticks([])
