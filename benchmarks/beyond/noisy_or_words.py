"""Noisy-OR networks on a table of words: causes that read as topics, and held-out likelihoods.

One layer of causes, learned from mixtures by exact sums (`quickscore`).
Where no document is without a word, those without were left out of the table, and all likelihoods
are those given at least one word. On 20 newsgroups, 16 242 documents of 100 words (seed 0, 84 s on
two server cores): −13.54 nats per held-out document for 180 causes, −13.60 for a smoothed mixture
of 100 components, chosen on a fifth of the training rows, −15.79 for independent words.
docs/results.md says why the condition matters.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import noisy_or_network
from latentbits.models.data import InputError, load_table
from scipy.special import logsumexp, softmax

from beyond.quickscore import Causes, Group, grouped, learn, log_empty, log_likelihood
from inference.files.figures import PALETTE
from inference.methods.gibbs.network_evidence import annealed_evidence
from inference.papers.experiment import Option, Outcome, Page, experiment

COMPONENTS, SMOOTHING = (25, 50, 100), (5.0, 10.0)
"""Of the mixtures, and pseudo-counts of their components, one of which is chosen."""
BEGUN = 8.0
"""Pseudo-counts of the components that networks begin with, at the rates of the words."""
LEARNED, SUMMED = (4, 7, 9, 16), (4, 8, 11, 14)
"""Most words of the groups of rows that are summed together: when learning, and for new rows."""
SHOWN = 24
"""Causes, of the first network."""


class Recipe(NamedTuple):
    """How a network is learned."""

    together: float  # how many causes are on in a document, and how often
    leak: float  # a word is on without one, of its rate, to begin with
    smoothing: float  # of a cause, at the rates of the words,
    counts: float  # of so many pseudo-counts


GIVEN, PLAIN = Recipe(0.7, 0.05, 3.0, 3.0), Recipe(2.0, 0.3, 0.0, 6.0)
"""Given at least one word, and where some documents have none: the leak then smooths causes."""


@experiment(
    "noisyor-words",
    "topics of a table of words (--data FILE), and its held-out likelihood",
    data=Option(str, "a table of 0/1 with names of columns", metavar="FILE"),
    key=Option(str, "which array of an .npz or .nc file", metavar="NAME"),
    causes=Option(60, "causes of each network", 2, 1),
    networks=Option(3, "networks that are put together", 1, 1),
    steps=Option(10, "steps of EM of each", 5, 1),
    plain=Option(False, "as if documents without a word could be in the table"),
)
def run_words(options: argparse.Namespace) -> Outcome:
    """`noisyor-words`: topics, and the likelihood of documents that were not learned from."""
    if options.data is None:
        raise InputError("--data FILE is needed: a table of 0/1, rows are documents, columns words")
    table = load_table(options.data, key=options.key, allow_missing=False)
    rows = np.asarray(random.permutation(random.key(options.seed), len(table.values)))
    num_test = max(1, int(0.3 * len(rows)))
    data = np.asarray(table.values, np.float32)
    train, test = data[rows[num_test:]], data[rows[:num_test]]
    # Where no document is without a word, such documents were left out of the table: all
    # likelihoods are those given at least one word.
    never_empty = bool(data.any(1).all()) and not options.plain

    began = time.perf_counter()
    causes, begun = fit_words(options, train, never_empty)
    seconds = time.perf_counter() - began
    each, error = network_log_likelihood(causes, test, never_empty)
    mixture, choice = chosen_mixture(train, never_empty, options.seed)
    other = mixture_log_likelihood(mixture, test, never_empty)
    rate = (train.sum(0) + 1.0) / (len(train) + 2.0)
    words = Mixture(rate[None], np.ones(1))
    first = Causes(causes.strength[: options.causes], causes.prior[: options.causes], causes.leak)
    topics = read_topics(first, table.columns)
    numbers = {
        "num_train": len(train),
        "num_test": len(test),
        "causes": len(causes.prior),
        "given_a_word": never_empty,
        "test_log_likelihood": float(each.mean()),
        "test_log_likelihood_error": error,
        "probability_without_a_word": float(jnp.exp(log_empty(causes))),
        "start_log_likelihood": float(mixture_log_likelihood(begun, test, never_empty).mean()),
        "mixture_log_likelihood": float(other.mean()),
        **choice,
        "gain_over_mixture": float((each - other).mean()),
        "gain_over_mixture_error": float((each - other).std() / np.sqrt(len(test))),
        "product_log_likelihood": float(mixture_log_likelihood(words, test, never_empty).mean()),
        "seconds": seconds,
        "topics": topics,
    }
    return Outcome(numbers, (9.6, 6.4), words_figure, (topics,))


def fit_words(
    options: argparse.Namespace, train: np.ndarray, never_empty: bool
) -> tuple[Causes, Mixture]:
    """EM from mixtures, a cause for each of their components, and what it began with.

    Given at least one word a network whose causes are rare is a mixture: that one of them is on is
    then certain, and that two are is not. So a network starts near one, and learns how often causes
    come together. Several are put together, each cause being so much rarer: among rare causes that
    is the mean of their distributions, which is smoother than each.
    """
    recipe, rate = GIVEN if never_empty else PLAIN, train.mean(0)
    groups = grouped(train, (*LEARNED, int(train.sum(1).max())))
    step = jax.jit(
        partial(learn, counts=recipe.counts, never_empty=never_empty),
    )
    starts, networks = [], []
    for number in range(options.networks):
        seed = options.seed + number
        mixture = smoothed_mixture(train, options.causes, BEGUN, seed, never_empty)
        priors = np.clip(recipe.together * mixture.mixing, 1e-6, 0.5)
        causes = Causes(*map(jnp.asarray, (mixture.probs, priors, recipe.leak * rate + 1e-5)))
        for _ in range(options.steps):
            causes, _ = step(causes, groups, recipe.smoothing * rate)
        starts.append(mixture)
        networks.append(causes)
    joined = Causes(
        jnp.concatenate([x.strength for x in networks]),
        jnp.concatenate([x.prior for x in networks]) / len(networks),
        jnp.stack([x.leak for x in networks]).mean(0),
    )
    probs, mixing = (np.concatenate(x) for x in zip(*starts, strict=True))
    return joined, Mixture(probs, mixing / len(networks))


def network_log_likelihood(
    causes: Causes, test: np.ndarray, never_empty: bool
) -> tuple[np.ndarray, float]:
    """Of each row, nats, and the standard error of the mean: zero where all sets are summed.

    Rows of many words are estimated by annealing, in expectation a lower bound.
    """
    value, error = np.empty(len(test)), 0.0
    groups = grouped(test, SUMMED)

    def score(causes: Causes, groups: list[Group]) -> list[Array]:
        return [jax.lax.map(partial(log_likelihood, causes), group) for group in groups]

    scores = jax.jit(score)(causes, groups)
    for group, each in zip(groups, scores, strict=True):
        value[np.asarray(group.row)] = each
    many = test.sum(1) > SUMMED[-1]
    if many.any():
        weights, prior, leak = (-jnp.log1p(-x) for x in causes)
        params = {"weights_1": weights, "leak_0": leak, "leak_1": prior}
        annealed = annealed_evidence(
            noisy_or_network, params, jnp.asarray(test[many]), num_chains=16, layers=prior.shape
        )
        value[many] = annealed.value
        error = float(jnp.sqrt((annealed.standard_error**2).sum()) / len(test))
    return value - never_empty * float(jnp.log(-jnp.expm1(log_empty(causes)))), error


class Mixture(NamedTuple):
    """Of documents whose words are independent."""

    probs: np.ndarray  # (components, words)
    mixing: np.ndarray  # (components,)

    def log_joint(self, rows: np.ndarray) -> np.ndarray:
        off = np.log1p(-self.probs)
        return rows @ (np.log(self.probs) - off).T + off.sum(1) + np.log(self.mixing)


def mixture_log_likelihood(mixture: Mixture, rows: np.ndarray, never_empty: bool) -> np.ndarray:
    """Of each row; given at least one word, if there is always one."""
    value = logsumexp(mixture.log_joint(rows), axis=1)
    empty = logsumexp(mixture.log_joint(np.zeros((1, rows.shape[1]), np.float32)))
    return value - never_empty * np.log(-np.expm1(empty))


def chosen_mixture(
    train: np.ndarray, never_empty: bool, seed: int
) -> tuple[Mixture, dict[str, float | int]]:
    """A smoothed mixture, whose size and smoothing are chosen on a fifth of the training rows."""
    few = max(1, len(train) // 5)
    sizes = [k for k in COMPONENTS if k < len(train) / 10] or [2]

    def worth(choice: tuple[int, float]) -> float:
        mixture = smoothed_mixture(train[few:], *choice, seed, never_empty)
        return float(mixture_log_likelihood(mixture, train[:few], never_empty).mean())

    best = max(((size, counts) for size in sizes for counts in SMOOTHING), key=worth)
    said = {"mixture_components": best[0], "mixture_pseudo_counts": best[1]}
    return smoothed_mixture(train, *best, seed, never_empty), said


def smoothed_mixture(
    rows: np.ndarray, components: int, counts: float, seed: int, never_empty: bool, steps: int = 60
) -> Mixture:
    """A mixture of independent words by EM, in NumPy: `EM` would be compiled for every size.

    :param counts: pseudo-counts of each component, at the rates of the words: the prior is
        Beta(1 + counts · rate, 1 + counts · (1 − rate)).
    :param never_empty: learn from the rows without a word as well, as many as are missing.
    """
    rate = (rows.sum(0) + 1.0) / (len(rows) + 2.0)
    start = np.random.default_rng(seed).uniform(0.5, 1.5, (components, rows.shape[1]))
    probs = np.clip(start * rate, 1e-4, 0.9).astype(np.float32)
    mixture = Mixture(probs, np.full(components, 1.0 / components, np.float32))
    empty, missing = np.zeros((1, rows.shape[1]), np.float32), 0.0
    for _ in range(steps):
        posterior = softmax(mixture.log_joint(rows), axis=1)
        members = posterior.sum(0)
        if never_empty:
            joint = mixture.log_joint(empty)[0]
            none = np.exp(logsumexp(joint))
            missing = len(rows) * none / (1.0 - none)
            members = members + missing * softmax(joint)
        total = len(rows) + missing
        smoothing = counts * rate * len(rows) / total
        probs = (posterior.T @ rows + smoothing) / (members[:, None] + counts)
        mixing = (members + 1.0) / (total + components)
        mixture = Mixture(probs.astype(np.float32), mixing.astype(np.float32))
    return mixture


def read_topics(causes: Causes, columns: tuple[str, ...], most: int = 6) -> dict[str, str]:
    """The causes by their strongest words, those that turn most words on first."""
    order = np.argsort(-np.asarray(causes.prior * causes.strength.sum(1)))[:SHOWN]
    strength, prior = np.asarray(causes.strength), np.asarray(causes.prior)
    share = prior / prior.sum()
    topics = {}
    for place, unit in enumerate(order):
        words = [columns[i] for i in np.argsort(-strength[unit])[:most] if strength[unit, i] > 0.05]
        topics[f"cause {place + 1}, {share[unit]:.1%}"] = " ".join(words)
    return topics


def words_figure(page: Page, topics: dict[str, str], across: int = 2, down: int = 12) -> None:
    """The causes that turn most words on, as lists of words."""
    axis = page.subplots()
    axis.set_axis_off()
    for place, (name, words) in enumerate(topics.items()):
        x, y = place // down / across, 1.0 - (place % down + 0.5) / down
        axis.text(x, y + 0.02, name, fontsize=8, color=PALETTE[place // down], va="center")
        axis.text(x, y - 0.02, words, fontsize=9, va="center")
