"""EM for chains against Baum and Welch's sums, written as loops over every path."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.contrib.control_flow import scan
from numpyro.infer import NUTS
from tools import near, sample

from inference import EM, AtMost, ProgramError, StepwiseEM, marginal

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
    state = jax.jit(begin)(random.split(random.key(0), 2), both)
    step = jax.jit(jax.vmap(lambda state: em.update(state, seen)))
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


def improper(seen, inside=False):
    """A chain of two states beside a level without a prior, or with one in each step."""
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    level = 0.0 if inside else numpyro.sample("level", flat)

    def step(state, y):
        shift = numpyro.sample("shift", flat) if inside else level
        state = numpyro.sample("state", dist.Categorical(jnp.asarray(MOVE)[state]))
        numpyro.sample("seen", dist.Normal(shift + state, 1.0), obs=y)
        return state, None

    scan(step, jnp.array(0), seen)


def test_a_parameter_without_a_prior_stands_beside_a_chain():
    """`EM` and NUTS on the marginal program alike, against every path; refused in a step."""
    seen, level = np.array([0.3, 1.4, -0.2, 0.9]), 0.25
    total = 0.0
    for path in itertools.product((0, 1), repeat=len(seen)):
        moves = [MOVE[a, b] for a, b in itertools.pairwise((0, *path))]
        apart = seen - level - np.array(path)
        total += np.prod(moves) * np.exp(-0.5 * apart @ apart) / (2 * np.pi) ** 2
    params, em = {"level": jnp.array(level)}, EM(improper)
    state = em.init(random.key(0), jnp.asarray(seen), init_params=params)
    near(jax.jit(lambda state: em.update(state, jnp.asarray(seen)))(state)[1], -np.log(total))
    drawn = em.init(random.key(0), jnp.asarray(seen)).params["level"]
    draws, _ = sample(NUTS(marginal(improper)), 5, 5, jnp.asarray(seen))
    assert np.isfinite(drawn) and np.isfinite(draws["level"]).all()
    for read in (partial(em.init, random.key(0)), marginal(improper)):
        with pytest.raises(ProgramError, match="'shift' of the scan is continuous and unobserved"):
            read(jnp.asarray(seen), inside=True)


def with_effects(where):
    """A chain beside effects: of each sequence, or of each cell of a plate of the observations."""

    def program(seen):
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("cells", seen.shape[1]):
            wide = 1.0 if where in ("free", "sequences") else spread
            effect = numpyro.sample("effect", dist.Normal(0.0, wide))

        def step(state, y):
            cells = numpyro.plate("cells", seen.shape[1])
            if where == "sequences":
                with cells:
                    state = numpyro.sample("state", dist.Categorical(jnp.asarray(MOVE)[state]))
                    numpyro.sample("seen", dist.Normal(effect + state, spread), obs=y)
            else:
                state = numpyro.sample("state", dist.Categorical(jnp.asarray(MOVE)[state]))
                with cells:
                    numpyro.sample("seen", dist.Normal(effect + state, spread), obs=y)
            return state, None

        first = jnp.zeros(seen.shape[1], int) if where == "sequences" else jnp.array(0)
        scan(step, first, seen)

    return program


@pytest.mark.parametrize("where", ["sequences", "observations"])
def test_random_effects_beside_a_chain_are_refused(where):
    """As without a scan: they are latents of the rows. NUTS samples them."""
    seen = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    with pytest.raises(ProgramError, match="'effect' is continuous, unobserved and in a plate"):
        EM(with_effects(where)).init(random.key(0), seen)
    draws, _ = sample(NUTS(marginal(with_effects(where))), 5, 5, seen)
    assert np.isfinite(draws["effect"]).all()


def test_a_parameter_of_each_column_is_learned_beside_a_chain():
    """In the plate of the columns, with a prior that depends on no other parameter."""
    seen = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    state = EM(with_effects("free")).init(random.key(0), seen)
    assert state.params["effect"].shape == (3,)
