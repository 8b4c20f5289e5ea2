"""Three claims of Lewicki & Sejnowski (1996) on how a network learns, measured exactly.

§3: 'As learning proceeds, the internal representations obtained with limited Gibbs sampling become
increasingly accurate.' §4, of all weights at the same time: 'This does not produce good results,
however, because there is nothing to prevent the model from learning overly strong priors.' §5:
'Gibbs sampling was stopped if the maximum state change probability was less than 0.05', so that a
row stops because its state is sure of itself. What comes out stands in docs/papers.md.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from latentbits.models.data import lines

from ...methods.gibbs.noisy_or import strengths
from ...types import Params
from .batches import in_batches
from .experiment import Option, Outcome, Page, experiment
from .noisy_or_exact import (
    MAX_SWEEPS,
    RULE,
    Accuracy,
    accuracy,
    independent,
    log_joints,
    second_layer,
)
from .noisy_or_lines import LAYERS, line_probabilities, line_units, patterns_recovered
from .noisy_or_trials import BLOCK, PAPER

VARIANTS = {
    "layers": "lower layer first",
    "joint": "all at once",
    "no rule": "lower layer first, no stopping rule",
}


class Learned(NamedTuple):
    """One network, and how strong its prior is."""

    lines: Array  # (10,) which have a unit of their own
    patterns: Array  # (4,)
    test: Array  # mean log likelihood of new patterns, nats
    correlation: Array  # total correlation of the second layer under the prior, nats
    reach: Array  # units that a top unit turns on, the mean over top units as often as they are on
    overruled: Array  # share of new patterns whose most probable state the correlations change
    gain: Array  # log likelihood that the correlations add on new patterns, nats


class Trial(NamedTuple):
    """One set of patterns."""

    by_epoch: Accuracy  # (epochs + 1,): the E-step while the second layer learns
    learned: Learned  # (variants,), at the end


def judge(params: Params, data: Array) -> Learned:
    """What a network has found, and what its third layer does to the second."""
    owner = line_units(params)
    prior = second_layer(params)
    alone = independent(prior)
    # What the rows say of each state: the log joint of a network whose states are all as probable.
    even = jnp.full(LAYERS[0], jnp.log(2.0))
    likelihood = log_joints({**params, "leak_1": even}, data) + LAYERS[0] * jnp.log(2.0)
    evidence = logsumexp(likelihood + prior, axis=1).mean()
    rates = strengths(params["leak_2"])
    return Learned(
        owner.any(0),
        patterns_recovered(params, owner),
        evidence,
        (jnp.exp(prior) * (prior - alone)).sum(),
        rates @ strengths(params["weights_2"]).sum(1) / jnp.maximum(rates.sum(), 1e-12),
        ((likelihood + prior).argmax(1) != (likelihood + alone).argmax(1)).mean(),
        evidence - logsumexp(likelihood + alone, axis=1).mean(),
    )


def trial(num_data: int, num_test: int, epochs: int, key: Array) -> Trial:
    """Learn from the same patterns and start in three ways, for as many epochs."""
    key_data, key_test, key_fit = random.split(key, 3)
    data, test = lines(key_data, num_data).data, lines(key_test, num_test).data
    depth = len(LAYERS)

    def learn(stop_below: Array, first: Array) -> Params:
        """Parameters after each epoch; from epoch depth · epochs on, all layers learn at once."""
        em = PAPER.em(stop_below=stop_below, epochs_per_layer=epochs, keep_states=False)
        begun = em.init(key_fit, data, layers=LAYERS)._replace(step=first)

        def epoch(state: Any, _: None) -> tuple[Any, Params]:
            state = em.update(state, data, layers=LAYERS)[0]
            return state, state.params

        passed = lax.scan(epoch, begun, None, length=depth * epochs)[1]
        return {k: jnp.concatenate([begun.params[k][None], passed[k]]) for k in passed}

    rules = jnp.array([RULE, RULE, 0.0])
    passed = jax.vmap(learn)(rules, jnp.array([0, depth * epochs, 0]))
    below = {k: v[0, : epochs + 1] for k, v in passed.items()}
    ended = {k: v[:, -1] for k, v in passed.items()}
    return Trial(
        lax.map(partial(accuracy, data=test), below), jax.vmap(partial(judge, data=test))(ended)
    )


@experiment(
    "noisyor-learning",
    "limited Gibbs sampling against the exact posterior by epoch, and layers learned at once",
    trials=Option(4, "sets of patterns", 1, 1, full=100),
    num_data=Option(1000, "patterns", 200, BLOCK),
    num_test=Option(100, "patterns that posteriors are compared on", 10, 1),
    epochs=Option(10, "for each layer", 2, 1),
    batch=Option(4, "trials at once", least=1),
)
def run(options: argparse.Namespace) -> Outcome:
    """`noisyor-learning`: the E-step by epoch, and what three ways of learning end with."""
    one = partial(trial, options.num_data, options.num_test, options.epochs)
    runs, seconds = in_batches(one, options.seed, options.trials, options.batch)
    table = {
        name: {
            "lines": float(runs.learned.lines[:, i].sum(-1).mean()),
            "patterns": float(runs.learned.patterns[:, i].sum(-1).mean()),
            **{k: float(getattr(runs.learned, k)[:, i].mean()) for k in Learned._fields[2:]},
        }
        for i, name in enumerate(VARIANTS)
    }
    stronger, worse = runs.learned.correlation.T, runs.learned.test.T
    true = jnp.log(jnp.asarray(line_probabilities()))
    strength = float((jnp.exp(true) * (true - independent(true))).sum())
    numbers = {
        "trials": options.trials,
        "num_data": options.num_data,
        "epochs_per_layer": options.epochs,
        "by_epoch": {k: [float(v) for v in x.mean(0)] for k, x in runs.by_epoch._asdict().items()},
        "learned": table,
        "total_correlation_of_the_lines": strength,
        "joint_prior_stronger": float((stronger[1] > stronger[0]).mean()),
        "joint_less_likely": float((worse[1] < worse[0]).mean()),
        **seconds,
    }
    return Outcome(numbers, (13, 7), figure, (runs, strength))


def figure(page: Page, trials: Trial, strength: float) -> None:
    """The E-step by epoch, and the networks that three ways of learning end with."""
    axes = page.subplots(2, 3).ravel()
    means = Accuracy(*(x.mean(0) for x in trials.by_epoch))
    epochs = np.arange(len(means.kl))
    axes[0].plot(epochs, means.sweeps / MAX_SWEEPS, "o-", label=f"sweeps, of {MAX_SWEEPS}")
    axes[0].plot(epochs, means.best, "s-", label="ends in the most\nprobable state")
    axes[0].set(title="A  where sweeps end", ylim=(0, 1.02), ylabel="share")
    axes[1].plot(epochs, means.entropy, "--", color="0.5", label="exact posterior's entropy")
    axes[1].plot(epochs, means.kl, "o-", color="C0", label="divergence, stopping rule")
    axes[1].plot(epochs, means.kl_without, "s-", color="C1", label="the same, no rule")
    axes[1].set(title="B  divergence from the posterior", ylabel="nats")
    axes[1].set_yscale("log")
    axes[1].set_ylim(1e-4, None)
    axes[2].plot(epochs, means.distance, "s-", label="rows begin with all off")
    axes[2].plot(epochs, means.bias, "o-", label="at the exact posterior")
    axes[2].set(title="C  distance, stopping rule", ylabel="total variation", ylim=(0, None))
    for axis in axes[:3]:
        axis.set_xlabel("epoch")
        axis.legend(fontsize=10)
    panels = {
        "correlation": "D  correlations of the prior, nats",
        "test": "E  new patterns, nats",
        "overruled": "F  most probable state changed by it",
    }
    rng = np.random.default_rng(0)
    for axis, (name, title) in zip(axes[3:], panels.items(), strict=True):
        values = getattr(trials.learned, name)
        for place in range(len(VARIANTS)):
            across = place + rng.uniform(-0.12, 0.12, len(values))
            axis.plot(across, values[:, place], "o", color=f"C{place}", alpha=0.6)
            axis.plot([place - 0.25, place + 0.25], [values[:, place].mean()] * 2, color="k")
        axis.set_xticks(range(3), ["lower layer\nfirst", "all at\nonce", "first, no\nrule"])
        axis.set(xlim=(-0.5, 2.5), title=title)
    axes[3].axhline(strength, color="0.5", linestyle="--", label="the lines themselves")
    axes[3].legend(fontsize=10, loc="upper right", bbox_to_anchor=(1.0, 0.92))
