"""The tables of `keys.py`, with the methods that are run on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import Array, random
from latentbits.models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    combination_machine,
    latent_trait,
    noisy_or_network,
)
from latentbits.models.data import bars, combination_target, lines, load_table, prototypes
from latentbits.models.data.strokes import stroke_masks


class Case(NamedTuple):
    """A table, the program for it, and where it comes from if that is known."""

    model: Callable
    data: Array
    sizes: dict[str, Any]
    methods: tuple[str, ...]  # those that climb; the default of `latentbits fit` first
    steps: int
    truth: dict[str, Any] | None = None
    held_out: Array | None = None


MIXED = "EM", "ExactGradient", "SplittingEM"
TRAITS = "QuadratureEM", "BoundEM"


def mixture(even: bool) -> Case:
    """Ten components on 4000 × 64, of even and of uneven weight."""
    rng = np.random.default_rng(0)
    probs = rng.uniform(size=(10, 64))
    mixing = np.full(10, 0.1) if even else rng.dirichlet(2 * np.ones(10))
    member = rng.choice(10, 4000, p=mixing)
    data = rng.uniform(size=(4000, 64)) < probs[member]
    truth = {"mixing": mixing, "probs": probs}
    return Case(bernoulli_mixture, data, {"num_components": 10}, MIXED, 100, truth)


def ten_bars() -> Case:
    """Henniges et al. (2010): 1000 × 25, ten causes."""
    drawn = bars(random.key(1), 1000)
    truth = {"weights": drawn.weights, "noise": drawn.noise, "sparsity": drawn.sparsity}
    methods = ("TruncatedEM", "EM", "ExactGradient")
    return Case(binary_sparse_coding, drawn.data, {"num_causes": 10}, methods, 100, truth)


def targets() -> Case:
    """Freund & Haussler (1994): ten units, 4000 × 64, and as many rows that are held out."""
    key_train, key_test = random.split(random.key(0))
    drawn, test = combination_target(key_train, 4000), combination_target(key_test, 4000)
    truth = {"weights": drawn.weights, "bias": drawn.bias}
    sizes, methods = {"num_causes": 10}, ("ExactGradient", "EM")
    return Case(combination_machine, drawn.data, sizes, methods, 500, truth, test.data)


def items(model: Callable, count: int) -> Case:
    """Two factors, 2000 rows."""
    rng = np.random.default_rng(0)
    truth = {"weights": rng.normal(0.0, 1.2, (2, count)), "bias": rng.normal(0.0, 0.7, count)}
    inner = rng.normal(size=(2000, 2)) @ truth["weights"] + truth["bias"]
    noise = (
        rng.logistic(size=inner.shape) if model is latent_trait else rng.normal(size=inner.shape)
    )
    methods = TRAITS if model is latent_trait else ("QuadratureEM",)
    return Case(model, inner + noise > 0, {"num_factors": 2}, methods, 100, truth)


def clusters() -> Case:
    """Tipping (1998): three prototypes of 16 bits, 200 copies of each."""
    data = prototypes(random.key(0)).data
    return Case(latent_trait, data, {"num_factors": 2}, TRAITS, 200)


def ten_lines() -> Case:
    """Lewicki & Sejnowski (1996): 1000 × 25, ten causes, whose states can all be summed."""
    data = lines(random.key(1), 1000).data
    truth = {"weights_1": 6.0 * stroke_masks(5), "leak_0": np.full(25, 0.005)}
    truth["leak_1"] = np.full(10, 0.4)
    methods = ("EM", "ExactGradient", "TruncatedEM")
    return Case(noisy_or_network, data, {"layers": (10,)}, methods, 500, truth)


LEAK = -np.log(0.999)
"""Of every column of a network."""


def network(path: str | None = None) -> Case:
    """A noisy-OR network's rows from a file: nine tenths to learn from, the others held out."""
    if path is None:
        raise SystemExit("the set `network` wants --table FILE.npz: packed bits of its rows")
    stem = path.removesuffix(".npz")
    priors = np.array(Path(f"{stem}.priors.txt").read_text().split()[1:], float)
    fails = np.array(Path(f"{stem}.weights.txt").read_text().split(), float)
    weights = -np.log(fails.reshape(len(priors), -1))
    bits = np.unpackbits(np.load(path)["bits"], axis=1)[:, : weights.shape[1]]
    return from_network(bits, weights, priors)


def drawn_network(kind: str, seed: int = 1) -> Case:
    """10 000 × 64 of eight causes of a fifth of the columns each: or of half of them (dense), of
    causes that come in pairs (correlated), of 24 causes (many)."""
    rng = np.random.default_rng(seed)
    count = 24 if "many" in kind else 8
    touched = rng.uniform(size=(count, 64)) < (0.5 if "dense" in kind else 0.2)
    weights = np.where(touched, rng.uniform(1.0, 2.5, touched.shape), 0.0)
    priors = rng.uniform(0.05 if "many" in kind else 0.1, 0.2, count)
    on = rng.uniform(size=(10_000, count)) < priors
    if "correlated" in kind:  # two of a pair are on together in half of the cases
        both = rng.uniform(size=(10_000, count // 2)) < 0.5
        on[:, 1::2] = np.where(both, on[:, ::2], on[:, 1::2])
    bits = rng.uniform(size=(10_000, 64)) < -np.expm1(-(on @ weights + LEAK))
    return from_network(bits, weights, on.mean(0))


def from_network(bits: np.ndarray, weights: np.ndarray, priors: np.ndarray) -> Case:
    truth = {"weights_1": weights, "leak_0": np.full(weights.shape[1], LEAK)}
    truth["leak_1"] = -np.log1p(-priors)
    kept = len(bits) * 9 // 10
    sizes, methods = {"layers": (len(priors),)}, ("GibbsSearch",)
    return Case(noisy_or_network, bits[:kept], sizes, methods, 500, truth, bits[kept:])


def carcinoma(classes: int, path: str | None = None) -> Case:
    """Landis & Koch (1977): 118 slides, seven pathologists; the table is not part of this."""
    if path is None:
        raise SystemExit("the carcinoma sets want --table FILE: 118 rows, seven columns of 0 and 1")
    data = load_table(path).values
    return Case(bernoulli_mixture, data, {"num_components": classes}, MIXED, 2000)


KINDS = "dense", "correlated", "many", "many-correlated"
CASES: dict[str, Callable[..., Case]] = {
    "bars": ten_bars,
    "even-mixture": lambda: mixture(True),
    "uneven-mixture": lambda: mixture(False),
    "combination": targets,
    "prototypes": clusters,
    "lines": ten_lines,
    "items": lambda: items(latent_trait, 20),
    "clipped": lambda: items(clipped_gaussian, 12),
    "network": network,
    **{f"{kind}-network": partial(drawn_network, kind) for kind in KINDS},
    **{f"carcinoma-{k}": partial(carcinoma, k) for k in (2, 3, 4)},
}
