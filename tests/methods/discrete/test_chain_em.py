"""EM for chains against Baum and Welch's sums, written as loops over every path."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.contrib.control_flow import scan
from tools import fast_jit, near

from inference import EM, AtMost, ProgramError, StepwiseEM

SEEN = np.array([[0, 0, 1, 2, 2, 1], [2, 2, 2, 0, 1, 0]]).T  # six steps of two sequences
START = np.array([0.3, 0.7])
MOVE = np.array([[0.8, 0.2], [0.35, 0.65]])
SHOW = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
PARAMS = {"start": jnp.asarray(START), "move": jnp.asarray(MOVE), "show": jnp.asarray(SHOW)}


def program(seen):
    start = numpyro.sample("start", dist.Dirichlet(jnp.full(2, 1.5)))
    move = numpyro.sample("move", dist.Dirichlet(jnp.ones(2)).expand([2]).to_event(1))
    show = numpyro.sample("show", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))

    def step(carry, y):
        before, first = carry
        odds = jnp.where(first, start, move[before])
        with numpyro.plate("sequences", seen.shape[1]):
            state = numpyro.sample("state", dist.Categorical(odds))
            numpyro.sample("seen", dist.Categorical(show[state]), obs=y)
        return (state, jnp.array(False)), None

    scan(step, (jnp.zeros(seen.shape[1], int), jnp.array(True)), seen)


def expected_counts():
    """Evidence, and how often each start, move and symbol is expected, over all paths."""
    evidence, counts = 0.0, [np.zeros(2), np.zeros((2, 2)), np.zeros((2, 3))]
    for n in range(2):
        paths = list(itertools.product((0, 1), repeat=len(SEEN)))
        weight = []
        for path in paths:
            p = START[path[0]] * np.prod([MOVE[a, b] for a, b in itertools.pairwise(path)])
            weight.append(p * np.prod([SHOW[z, y] for z, y in zip(path, SEEN[:, n], strict=True)]))
        evidence += np.log(sum(weight))
        for path, w in zip(paths, np.array(weight) / sum(weight), strict=True):
            counts[0][path[0]] += w
            for a, b in itertools.pairwise(path):
                counts[1][a, b] += w
            for z, y in zip(path, SEEN[:, n], strict=True):
                counts[2][z, y] += w
    return evidence, counts


def test_an_m_step_is_baum_and_welchs():
    """With steps enough its parameters are the shares of the expected counts; then it goes on up.

    The priors count as well: those of the moves and symbols are flat. Beside it goes a second
    start, as in a search over starts, which draws them by `propose` and `vary`.
    """
    evidence, counts = expected_counts()
    seen = jnp.asarray(SEEN)
    em = EM(program, gradient_steps=40, prior=True)
    begin = jax.vmap(lambda key, params: em.init(key, seen, init_params=params))
    both = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), PARAMS)
    state = fast_jit(begin)(random.split(random.key(0), 2), both)
    step = fast_jit(jax.vmap(lambda state: em.update(state, seen)))
    state, loss = step(state)
    prior = dist.Dirichlet(jnp.full(2, 1.5)).log_prob(START) + 2 * np.log(2)  # of the symbols: 2!
    near(-loss[0], evidence + prior)
    counts[0] += 0.5
    for name, count in zip(("start", "move", "show"), counts, strict=True):
        near(state.params[name][0], count / count.sum(-1, keepdims=True), 1e-3)
    losses = [loss]
    for _ in range(5):
        state, loss = step(state)
        losses.append(loss)
    assert (np.diff(losses, axis=0) <= 1e-5).all()
    assert (losses[-1] < losses[0] - 0.5).all()
    drawn = jax.eval_shape(lambda key: em.propose(key, seen), random.key(0))
    varied = jax.eval_shape(lambda key: em.vary(key, PARAMS, seen), random.key(0))
    assert all(drawn[x].shape == varied[x].shape == PARAMS[x].shape for x in PARAMS)


def test_what_a_chain_does_not_take_is_refused():
    seen = jnp.asarray(SEEN)
    for method in (EM(program, AtMost(1)), StepwiseEM(program)):
        with pytest.raises(ProgramError, match="scan"):
            method.init(random.key(0), seen)
    with pytest.raises(ValueError, match="'move' has shape"):
        EM(program).init(random.key(0), seen, init_params={**PARAMS, "move": jnp.ones(2)})
