"""Mixtures of latent traits: the hierarchy of maps that Tipping (1998) announces."""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import bernoulli_mixture, latent_trait, trait_mixture

from beyond.noisy_or_words import Mixture
from inference.methods.continuous.quadrature import QuadratureEM
from inference.methods.discrete.em import EM
from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.running.contract import follow

COLUMNS = 16


@experiment(
    "trait-mixture",
    "a map of each group below one of all rows: mixtures of traits (Tipping 1998, conclusions)",
    num_data=Option(600, "rows to fit", 90, 30),
    starts=Option(8, "starts of the mixture", 2, 1),
    steps=Option(20, "steps of the mixture", 2, 1),
)
def hierarchy(namespace: argparse.Namespace) -> Outcome:
    """One map of all rows, and below it one of each group, as Bishop & Tipping (1998) draw numbers.

    "The algorithm is considerably faster …, which would permit incorporation of multiple models in
    a more complex hierarchical architecture". Rows of three groups, each with a position of its own
    that only bits of that group show. One map (`latent_trait`, two factors) mixes the groups, three
    classes (`bernoulli_mixture`) have no positions; the mixture (`trait_mixture`, one factor each,
    by quadrature about the mode in each component) has both, and its fit of new rows says so. It
    wants several starts: most end elsewhere.
    """
    rows = namespace.num_data
    rng = np.random.default_rng(namespace.seed)
    table, label, place, truth = draw_groups(rng, 2 * rows)
    train, new = table[:rows], table[rows:]
    keys = jax.random.split(jax.random.key(namespace.seed), 3)
    quietly: dict[str, Any] = {"tolerance": 1e-6, "progress_bar": False}
    mixture, one = EM(bernoulli_mixture), QuadratureEM(latent_trait)
    found = mixture.run(keys[0], 100, train, num_components=3, **quietly).params
    probs = np.clip(np.asarray(found["probs"], float), 1e-6, 1 - 1e-6)
    classes = Mixture(probs, np.asarray(found["mixing"], float))
    single = one.run(keys[1], 200, train, num_factors=2, **quietly).params
    method = QuadratureEM(trait_mixture, num_nodes=7, prior=True)
    sizes: dict[str, Any] = {"num_components": 3, "num_factors": 1}
    both, losses = _best_start(method, keys[2], train, namespace, sizes)
    label, place = label[rows:], place[rows:]
    joint, places = on_grid(both, new)
    group = joint.argmax(axis=0)
    positions = places[group, np.arange(len(new))]
    order = np.array([np.bincount(label[group == k], minlength=3).argmax() for k in range(3)])
    right = order[group] == label
    each = [label == k for k in range(3)]
    alike = [abs(np.corrcoef(positions[mine], place[mine])[0, 1]) for mine in each]
    whole = one.posterior(single, new, num_factors=2)
    map_of_all = np.asarray(whole.mean)
    numbers = {
        "rows": rows,
        "nats_per_new_row": {
            "three classes": _nats(classes.log_joint(new).T),
            "one map": float(np.mean(whole.evidence)),
            "a map of each of three": _nats(joint),
            "the true model": _nats(on_grid(truth, new)[0]),
        },
        "starts_within_0.05_nats_of_the_best": float(np.mean(losses < losses.min() + 0.05 * rows)),
        "new_rows_in_their_own_group": float(right.mean()),
        "correlation_of_positions": [float(x) for x in alike],
        "correlation_on_the_one_map": [_best(map_of_all[mine], place[mine]) for mine in each],
    }
    return Outcome(numbers, (10.5, 6.6), _draw, (map_of_all, positions, group, label, place))


def _best_start(
    method: Any, key: Array, train: np.ndarray, namespace: argparse.Namespace, sizes: dict[str, Any]
) -> tuple[Any, np.ndarray]:
    """Fits from several starts at once, about three rows each: the best, and the losses of all."""
    rng, count = np.random.default_rng(namespace.seed), namespace.starts
    rows = train[rng.integers(0, len(train), (count, 3))]
    starts = {
        "mixing": np.full((count, 3), 1 / 3),
        "bias": 1.5 * (2.0 * rows - 1.0),
        "weights": 0.5 * rng.normal(size=(count, 3, 1, COLUMNS)),
    }

    def fit(start: Any) -> tuple[Any, Array]:
        first = method.init(key, train, init_params=start, **sizes)
        state, losses = follow(method, first, namespace.steps, train, **sizes)
        return method.get_params(state), losses[-1]

    every = jax.jit(jax.vmap(fit))
    params, losses = every({x: jnp.asarray(v, float) for x, v in starts.items()})
    best = int(np.argmin(losses))
    return {name: value[best] for name, value in params.items()}, np.asarray(losses)


def draw_groups(
    rng: np.random.Generator, num_data: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Bits, groups, positions and what made them: each group has weights on half of its bits."""
    bias = np.where(rng.random((3, COLUMNS)) < 0.5, 2.0, -2.0)
    weights = np.where(rng.random((3, COLUMNS)) < 0.5, 2.5 * rng.choice([-1, 1], (3, COLUMNS)), 0.0)
    label, place = rng.integers(0, 3, num_data), rng.normal(size=num_data)
    bias = np.where(weights != 0, 0.0, bias)
    logits = place[:, None] * weights[label] + bias[label]
    bits = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    truth = {"mixing": np.full(3, 1 / 3), "weights": weights[:, None], "bias": bias}
    return bits.astype(float), label, place, truth


def on_grid(params: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(row, component), and the mean position on the map of each component: (3, n) both."""
    side = np.linspace(-4.5, 4.5, 181)
    mixing, weights, bias = (np.asarray(params[x], float) for x in ("mixing", "weights", "bias"))
    logits = side[None, :, None] * weights[:, 0, None] + bias[:, None]  # (3, grid, D)
    prior = -0.5 * side**2
    level = prior - np.logaddexp.reduce(prior) - np.logaddexp(0, logits).sum(axis=-1)
    joint = np.einsum("nd,kgd->kng", rows, logits) + level[:, None]
    evidence = np.logaddexp.reduce(joint, axis=-1)
    mean = np.exp(joint - evidence[..., None]) @ side
    return evidence + np.log(mixing)[:, None], mean


def _nats(joint: np.ndarray) -> float:
    return float(np.mean(np.logaddexp.reduce(joint, axis=0)))


def _best(places: np.ndarray, wanted: np.ndarray) -> float:
    """The correlation of positions with the best direction of a map."""
    about, target = places - places.mean(axis=0), wanted - wanted.mean()
    fitted = about @ np.linalg.lstsq(about, target, rcond=None)[0]
    return float(np.corrcoef(fitted, target)[0, 1])


def _draw(
    page: Page,
    map_of_all: np.ndarray,
    positions: np.ndarray,
    chosen: np.ndarray,
    label: np.ndarray,
    place: np.ndarray,
) -> None:
    grid = page.add_gridspec(2, 3, height_ratios=(1.25, 1))
    top = page.add_subplot(grid[0, :])
    for k, mark in enumerate("osD"):
        top.plot(*map_of_all[label == k].T, mark, markersize=3.5, alpha=0.5, color=f"C{k}")
    top.set_title("One map of all rows; colour: the true group")
    top.set(xticks=[], yticks=[])
    for k in range(3):
        panel = page.add_subplot(grid[1, k])
        mine = chosen == k
        for other, mark in enumerate("osD"):
            both = mine & (label == other)
            panel.plot(place[both], positions[both], mark, markersize=3.5, alpha=0.5,
                       color=f"C{other}")  # fmt: skip
        panel.set_title(f"Component {k + 1}: {mine.sum()} rows")
        panel.set(xlabel="true position", ylabel="on its own map" if k == 0 else "")
