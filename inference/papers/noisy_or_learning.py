"""Three claims of Lewicki & Sejnowski (1996) on how a network learns, measured exactly.

§3: 'As learning proceeds, the internal representations obtained with limited Gibbs sampling become
increasingly accurate.' §4, of all weights at the same time: 'This does not produce good results,
however, because there is nothing to prevent the model from learning overly strong priors.' §5:
'Gibbs sampling was stopped if the maximum state change probability was less than 0.05', so that a
row stops because its state is sure of itself. What comes out stands in docs/papers.md.

Ten units have 1024 states. The state that the stopping rule ends in has a distribution over them,
which is computed here and not sampled; so has the prior that a layer above makes.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.nn import sigmoid, softmax
from jax.scipy.special import entr, logsumexp
from latentbits.models.data import lines
from latentbits.models.distributions import NoisyOr

from ..files.truths import line_probabilities
from ..methods.gibbs.noisy_or import strengths
from ..reading.states import AllStates
from ..types import Params
from .experiment import Option, Outcome, Page, experiment, in_batches
from .noisy_or_lines import BLOCK, LAYERS, PAPER, line_units, patterns_recovered

RULE, MAX_SWEEPS = 0.05, 15
"""The paper's: a row stops after a sweep in which no unit had a larger probability to change."""


def all_states(units: int) -> Array:
    """(2^units, units), the first unit slowest."""
    return jnp.asarray(AllStates().table((2,) * units), float)


class Ended(NamedTuple):
    """Where Gibbs sampling with a stopping rule ends, in distribution."""

    probs: Array  # (num_data, num_states)
    sweeps: Array  # (num_data,) expected number
    stopped: Array  # (num_data,) probability that the rule ended it, and not `max_sweeps`


def log_joints(params: Params, data: Array) -> Array:
    """log p(y, s) of every row and state of a network of one hidden layer, (num_data, states)."""
    units, width = params["weights_1"].shape
    states = all_states(units)
    inputs = states @ params["weights_1"] + params["leak_0"]
    log_on = NoisyOr(inputs).log_prob(jnp.ones(width))
    prior = NoisyOr(params["leak_1"]).log_prob(states).sum(-1)
    return data @ (log_on + inputs).T - inputs.sum(-1) + prior


def where_it_ends(log_joint: Array, start: Array, stop_below: Array, max_sweeps: int) -> Ended:
    """The exact distribution of the state in which sweeps end, by propagating all of it.

    A sweep visits the units in turn; whether any had a probability of at least `stop_below` to
    change is one bit more, so that the mass of a row lies on 2 × states. Mass that ends a sweep
    without that bit has stopped.

    :param log_joint: (num_data, 2^units).
    :param start: (num_data, 2^units), the distribution of the state before the first sweep.
    :param stop_below: (num_data,); 0: nothing stops before `max_sweeps`.
    """
    num_data, count = log_joint.shape
    # (num_data, 2, count / 2): the unit to visit is in front, and goes to the back afterwards.
    first = lambda x: x.reshape(num_data, 2, count // 2)  # noqa: E731
    turned = lambda x: x.swapaxes(1, 2).reshape(x.shape)  # noqa: E731
    odds, table = [], first(log_joint)
    for _ in range(count.bit_length() - 1):
        odds.append(table[:, 1] - table[:, 0])
        table = turned(table)

    def visit(mass: tuple[Array, Array], odds: Array) -> tuple[tuple[Array, Array], None]:
        calm, busy = mass
        both = sigmoid(jnp.stack([-odds, odds], axis=1))
        likely = both[:, ::-1] >= stop_below[:, None, None]  # the probability to change
        busy = busy + jnp.where(likely, calm, 0.0)
        calm = jnp.where(likely, 0.0, calm)
        move = lambda x: turned(x.sum(1, keepdims=True) * both)  # noqa: E731
        return (move(calm), move(busy)), None

    def sweep(carry: tuple, _: None) -> tuple[tuple, None]:
        going, done, sweeps = carry
        sweeps = sweeps + going.sum(-1)
        begin = (first(going), jnp.zeros_like(first(going)))
        (calm, busy), _ = lax.scan(visit, begin, jnp.stack(odds))
        return (busy.reshape(going.shape), done + calm.reshape(going.shape), sweeps), None

    begun = (start, jnp.zeros_like(start), jnp.zeros(len(start)))
    (going, done, sweeps), _ = lax.scan(sweep, begun, None, length=max_sweeps)
    return Ended(going + done, sweeps, done.sum(-1))


class Accuracy(NamedTuple):
    """What the E-step is worth under one network; means over rows, nats."""

    sweeps: Array  # that the rule takes, from all units off
    stopped: Array  # share of rows that the rule ends
    kl: Array  # from the exact posterior, of where the rule ends
    kl_without: Array  # of where 15 sweeps end, without the rule
    distance: Array  # total variation, likewise
    distance_without: Array
    best: Array  # probability that the state the rule ends in is the most probable one
    bias: Array  # total variation that the rule adds to rows which begin at the exact posterior
    entropy: Array  # of the exact posterior: how ambiguous a pattern is
    entropy_bias: Array  # of where the rule ends from the exact posterior, minus that
    active: Array  # expected number of active units, exactly
    active_ended: Array  # and where the rule ends, from all units off
    evidence: Array  # log p(y)


def accuracy(params: Params, data: Array) -> Accuracy:
    """The E-step against the posterior by enumeration."""
    joint = log_joints(params, data)
    posterior = softmax(joint, axis=1)
    off = jnp.zeros_like(posterior).at[:, 0].set(1.0)
    # By the rule, without it, and by the rule from the exact posterior, end to end.
    rows = jnp.concatenate([joint] * 3), jnp.concatenate([off, off, posterior])
    rules = jnp.repeat(jnp.array([RULE, 0.0, RULE]), len(data))
    every = where_it_ends(*rows, rules, MAX_SWEEPS)
    ended, without, settled = jnp.split(every.probs, 3)
    size = all_states(params["weights_1"].shape[0]).sum(-1)
    # The posterior of a state may be below the smallest float, but its log is not.
    log_posterior = joint - logsumexp(joint, axis=1, keepdims=True)
    kl = lambda q: (-entr(q) - q * log_posterior).sum(-1)  # noqa: E731
    distance = lambda q: 0.5 * jnp.abs(q - posterior).sum(-1)  # noqa: E731
    entropy = entr(posterior).sum(-1)
    by_row = Accuracy(
        every.sweeps[: len(data)], every.stopped[: len(data)], kl(ended), kl(without),
        distance(ended), distance(without),
        jnp.take_along_axis(ended, joint.argmax(1)[:, None], 1)[:, 0], distance(settled),
        entropy, entr(settled).sum(-1) - entropy,
        posterior @ size, ended @ size, logsumexp(joint, axis=1),
    )  # fmt: skip
    return Accuracy(*(x.mean() for x in by_row))


def second_layer(params: Params) -> Array:
    """log p(s) of every state of the second layer, the third summed out, (2^units,)."""
    top, units = params["weights_2"].shape
    states = all_states(units), all_states(top)
    inputs = states[1] @ params["weights_2"] + params["leak_1"]
    conditional = states[0] @ (NoisyOr(inputs).log_prob(1.0) + inputs).T - inputs.sum(-1)
    return logsumexp(conditional + NoisyOr(params["leak_2"]).log_prob(states[1]).sum(-1), axis=1)


def independent(log_prior: Array) -> Array:
    """The log prior of units that are on as often, and independent of each other."""
    states = all_states(len(log_prior).bit_length() - 1)
    rates = jnp.clip(jnp.exp(log_prior) @ states, 1e-7, 1.0 - 1e-7)
    return states @ jnp.log(rates) + (1.0 - states) @ jnp.log1p(-rates)


VARIANTS = ("layers", "joint", "no rule")
"""Lower layer first, all at once, and lower layer first without the stopping rule."""


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
    epochs=Option(10, "epochs for each layer", 2, 1),
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
