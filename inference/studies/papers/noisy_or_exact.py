"""Noisy-OR networks of ten hidden units, exactly: what limited Gibbs sampling ends in, and priors.

Ten units have 1024 states. The state that the stopping rule of Lewicki & Sejnowski (1996) ends in
has a distribution over them, which is computed here and not sampled; so has the prior that a layer
above makes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.nn import sigmoid, softmax
from jax.scipy.special import entr, logsumexp
from latentbits.models.distributions import NoisyOr

from ...reading.states import AllStates
from ...types import Params

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
