"""Noisy-OR networks on a table of words: causes that read as topics, and held-out likelihoods.

On 20 newsgroups, 16 242 documents of 100 words (``--population 8 --rounds 10``, seed 0, one H200):
−14.03 nats per held-out document for 16 and 4 units, −15.67 for independent words, −13.84 for a
mixture with as many parameters, and −13.59 for a smoothed mixture of 100 components, chosen on a
fifth of the training rows, which is what is printed. One top cause reads as computing, one as
politics, religion and health; space, cars and sports stand by themselves, and two top causes stay
unused.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random
from latentbits.models import noisy_or_network
from latentbits.models.data import InputError, load_table
from scipy.special import logsumexp, softmax

from ...evaluation.evidence import likelihood
from ...methods.gibbs.gibbs_em import GibbsEM
from ...methods.gibbs.gibbs_search import GibbsSearch
from ...methods.gibbs.network_evidence import annealed_evidence
from ...methods.gibbs.noisy_or import strengths
from ...types import Params
from ..figures import PALETTE
from .experiment import Option, Outcome, Page, experiment

BLOCK_SIZE = 2000
"""Rows between two estimates. Words are rare: in 200 documents most causes would hardly be seen."""

BY_DRAWS: dict[str, Any] = {
    "learn_from": "block", "max_states": 1, "prior": dist.Gamma(1.0, 1.5),
}  # fmt: skip
"""Each block by itself, with the paper's prior, and its states drawn, however few there are."""

TUNING = 20

COMPONENTS, SMOOTHING = (25, 50, 100), (5.0, 10.0)
"""Of the mixtures, and pseudo-counts of their components, one of which is chosen."""

MAX_UNITS = 20
"""A layer of more units has more than a million states."""


@experiment(
    "noisyor-words",
    "topics of a table of words (--data FILE), and its held-out likelihood",
    data=Option(str, "a table of 0/1 with names of columns", metavar="FILE"),
    key=Option(str, "which array of an .npz or .nc file", metavar="NAME"),
    layers=Option([16, 4], "units, lower layer first", [3, 2]),
    population=Option(6, "networks at once", 3),
    rounds=Option(8, "for each layer", 2),
)
def run_words(options: argparse.Namespace) -> Outcome:
    """`noisyor-words`: topics, and the likelihood of documents that were not learned from."""
    if options.data is None:
        raise InputError("--data FILE is needed: a table of 0/1, a row a document, a column a word")
    if len(options.layers) != 2 or min(options.layers) < 1:
        raise InputError("--layers wants two numbers of units, the lower layer first")
    table = load_table(options.data, key=options.key, allow_missing=False)
    rows = random.permutation(random.key(options.seed), len(table.values))
    num_test = max(1, int(0.2 * len(rows)))
    data = jnp.asarray(table.values)
    train, test = data[rows[num_test:]], data[rows[:num_test]]

    began = time.perf_counter()
    params = fit_words(options, train)
    seconds = time.perf_counter() - began
    value, error = network_log_likelihood(params, test, options.layers)
    size = sum(int(x.size) for x in params.values())
    topics = read_topics(params, table.columns)
    numbers = {
        "num_train": len(train),
        "num_test": len(test),
        "layers": list(options.layers),
        "parameters": size,
        "test_log_likelihood": value,
        "test_log_likelihood_error": error,
        "estimated_by": "annealing, in expectation a lower bound" if error else "all states",
        "product_log_likelihood": product_log_likelihood(train, test),
        **mixture_log_likelihood(train, test, options.seed),
        "seconds": seconds,
        "topics": {f"cause {i + 1}": " | ".join(topic) for i, topic in enumerate(topics)},
    }
    return Outcome(numbers, (6.4, 4.8), words_figure, (params, table.columns))


def fit_words(options: argparse.Namespace, train: Array) -> Params:
    """A search layer by layer, then all layers together."""
    key_search, key_tune = random.split(random.key(options.seed + 1))
    layers, block = tuple(options.layers), min(BLOCK_SIZE, len(train))
    search = GibbsSearch(
        GibbsEM(noisy_or_network, block_size=block, max_sweeps=5, **BY_DRAWS),
        population=options.population,
        rounds=options.rounds,
        epochs=3,
    )
    searched = search.run(key_search, len(layers) * options.rounds, train, layers=layers)
    em = GibbsEM(
        noisy_or_network, schedule="joint", block_size=len(train), max_sweeps=5, **BY_DRAWS
    )
    state = em.init(key_tune, train, layers=layers, init_params=searched.params)
    state = state._replace(bits=searched.state.bits[0])
    return em.run(key_tune, TUNING, train, layers=layers, init_state=state).params


def network_log_likelihood(params: Params, test: Array, layers: list[int]) -> tuple[float, float]:
    """Mean over rows, nats, and its standard error: zero where all states are summed."""
    if max(layers) <= MAX_UNITS:
        of = likelihood(noisy_or_network, test, layers=tuple(layers), max_states=1 << MAX_UNITS)
        return float(of(params).value.mean()), 0.0
    evidence = annealed_evidence(
        noisy_or_network, params, test, num_chains=16, num_densities=100, layers=tuple(layers)
    )
    error = float(jnp.sqrt(jnp.sum(evidence.standard_error**2)) / len(test))
    return float(evidence.value.mean()), error


def product_log_likelihood(train: Array, test: Array) -> float:
    """Independent words, each as often as in the training rows (one pseudo-count each way)."""
    rate = (train.sum(0) + 1.0) / (len(train) + 2.0)
    return float((test @ jnp.log(rate) + (1.0 - test) @ jnp.log1p(-rate)).mean())


def mixture_log_likelihood(train: Array, test: Array, seed: int) -> dict[str, float | int]:
    """A smoothed mixture, whose size and smoothing are chosen on a fifth of the training rows."""
    rows = np.random.default_rng(seed).permutation(np.asarray(train, np.float32))
    few = max(1, len(rows) // 5)
    sizes = [k for k in COMPONENTS if k < len(rows) / 10] or [2]
    tried = {
        (components, counts): smoothed_mixture(rows[few:], rows[:few], components, counts, seed)
        for components in sizes
        for counts in SMOOTHING
    }
    components, counts = max(tried, key=lambda which: tried[which])
    held = np.asarray(test, np.float32)
    return {
        "mixture_log_likelihood": smoothed_mixture(rows, held, components, counts, seed),
        "mixture_components": components,
        "mixture_pseudo_counts": counts,
    }


def smoothed_mixture(
    rows: np.ndarray, held: np.ndarray, components: int, counts: float, seed: int, steps: int = 60
) -> float:
    """Mean log likelihood of new rows under a mixture of independent words, by EM.

    In NumPy: `EM` with the same prior, Beta(1 + counts · rate, 1 + counts · (1 − rate)) of every
    probability, would be compiled for every number of components.

    :param counts: pseudo-counts of each component, at the rates of the words.
    """
    rate = (rows.sum(0) + 1.0) / (len(rows) + 2.0)
    start = np.random.default_rng(seed).uniform(0.5, 1.5, (components, rows.shape[1]))
    probs = np.clip(start * rate, 1e-4, 0.9).astype(np.float32)
    mixing = np.full(components, 1.0 / components)

    def log_joint(rows: np.ndarray) -> np.ndarray:
        off = np.log1p(-probs)
        return rows @ (np.log(probs) - off).T + off.sum(1) + np.log(mixing)

    for _ in range(steps):
        posterior = softmax(log_joint(rows), axis=1).astype(np.float32)
        members = posterior.sum(0)
        probs = (posterior.T @ rows + counts * rate) / (members[:, None] + counts)
        probs = probs.astype(np.float32)
        mixing = (members + 1.0) / (len(rows) + components)
    return float(logsumexp(log_joint(held), axis=1).mean())


def read_topics(params: Params, columns: tuple[str, ...], most: int = 6) -> list[list[str]]:
    """For each top cause the lower causes it turns on, each by its strongest words."""
    below, above = np.asarray(strengths(params["weights_1"])), strengths(params["weights_2"])
    names = [" ".join(_strongest(row, columns, most)) for row in below]
    topics = []
    for row in np.asarray(above):
        order = [unit for unit in np.argsort(-row) if row[unit] > 0.1 and below[unit].max() > 0.05]
        topics.append([names[unit] for unit in order] or ["(none)"])
    return topics


def _strongest(row: np.ndarray, columns: tuple[str, ...], most: int) -> list[str]:
    return [columns[i] for i in np.argsort(-row)[:most] if row[i] > 0.05]


def words_figure(page: Page, params: Params, columns: tuple[str, ...]) -> None:
    """Lower causes as lists of words, under the top cause that turns them on and how often."""
    below = np.asarray(strengths(params["weights_1"]))
    above = np.asarray(strengths(params["weights_2"]))
    rate = strengths(params["leak_2"])
    used = below.max(1) > 0.05
    columns_shown = []
    for i, row in enumerate(above):
        units = [u for u in np.argsort(-row) if used[u] and above[:, u].argmax() == i]
        units = [u for u in units if row[u] > 0.05]
        if units:
            columns_shown.append((f"cause {i + 1}, on in {float(rate[i]):.0%}", units, row))
    free = [u for u in range(len(below)) if used[u] and above[:, u].max() <= 0.05]
    if free:
        columns_shown.append(("by themselves", free, strengths(params["leak_1"])))
    count, tallest = len(columns_shown), max(len(units) for _, units, _ in columns_shown)
    page.set_size_inches(3.2 * count, 0.75 * tallest + 0.8)
    axes = page.subplots(1, count, squeeze=False)
    for i, (axis, (title, units, row)) in enumerate(zip(axes[0], columns_shown, strict=True)):
        axis.set_axis_off()
        axis.set_title(title, color=PALETTE[i % len(PALETTE)])
        for place, unit in enumerate(units):
            y = 1.0 - (place + 0.5) / tallest
            words = _wrapped(_strongest(below[unit], columns, 6))
            axis.text(0.0, y, f"{float(row[unit]):.2f}", fontsize=10, color="grey", va="center")
            axis.text(0.16, y, words, fontsize=11, va="center")


def _wrapped(words: list[str]) -> str:
    half = (len(words) + 1) // 2
    return " ".join(words[:half]) + ("\n" + " ".join(words[half:]) if words[half:] else "")
