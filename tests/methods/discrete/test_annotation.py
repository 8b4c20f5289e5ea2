"""NumPyro's own models of annotators, whose sizes are values of their arguments, under EM."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import nn, random
from numpyro.ops.indexing import Vindex
from tools import near

from inference import EM, ProgramError, Search, log_likelihood

POSITIONS = np.array([0, 0, 1, 2])  # the first annotator looks twice
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, (6, 4))
PI = RNG.dirichlet(np.ones(3))
BETA = RNG.dirichlet(np.ones(3), (3, 3))
EPSILON, THETA = RNG.dirichlet(np.ones(3), 3), np.array([0.2, 0.5, 0.9])


def dawid_skene(positions, labels, num_classes=None):
    """Each annotator has a table of confusions (NumPyro's `examples/annotation.py`)."""
    num_annotators = int(np.max(positions)) + 1
    num_classes = num_classes or int(np.max(labels)) + 1
    with numpyro.plate("annotator", num_annotators, dim=-2), numpyro.plate("class", num_classes):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(num_classes)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(num_classes)))
    with numpyro.plate("item", labels.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi))
        with numpyro.plate("position", labels.shape[1]):
            numpyro.sample("y", dist.Categorical(Vindex(beta)[positions, c, :]), obs=labels)


def mace(positions, labels, num_classes=None):
    """Each annotator says the truth or guesses, at every item anew (there too)."""
    num_annotators = int(np.max(positions)) + 1
    num_classes = num_classes or int(np.max(labels)) + 1
    with numpyro.plate("annotator", num_annotators):
        epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.full(num_classes, 10)))
        theta = numpyro.sample("theta", dist.Beta(0.5, 0.5))
    with numpyro.plate("item", labels.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(num_classes)))
        with numpyro.plate("position", labels.shape[1]):
            s = numpyro.sample("s", dist.Bernoulli(1 - theta[positions]))
            guess = epsilon[positions]
            probs = jnp.where(s[..., None] == 0, nn.one_hot(c, num_classes), guess)
            numpyro.sample("y", dist.Categorical(probs), obs=labels)


def by_confusions(row):
    """The probability of a row, over its three classes."""
    each = [np.prod([BETA[a, c, y] for a, y in zip(POSITIONS, row, strict=True)]) for c in range(3)]
    return PI @ each


def by_guesses(row):
    """The same over its class and who guesses."""
    total = 0.0
    for c, guesses in itertools.product(range(3), itertools.product((0, 1), repeat=4)):
        p = 1 / 3
        for a, y, guess in zip(POSITIONS, row, guesses, strict=True):
            p *= (1 - THETA[a]) * EPSILON[a, y] if guess else THETA[a] * (y == c)
        total += p
    return total


PROGRAMS = {
    "dawid_skene": (dawid_skene, {"beta": BETA, "pi": PI}, by_confusions),
    "mace": (mace, {"epsilon": EPSILON, "theta": THETA}, by_guesses),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_em_learns_what_numpyro_enumerates(name):
    """The loss is that of every state of every row; the steps go down; sizes follow the values."""
    program, params, probability = PROGRAMS[name]
    params = {site: jnp.asarray(value) for site, value in params.items()}
    arguments, wanted = (POSITIONS, LABELS), np.log([probability(row) for row in LABELS])
    em = EM(program, search=None)
    state = em.init(random.key(0), *arguments, num_classes=3, init_params=params)
    near(
        jax.jit(lambda state: em.update(state, *arguments, num_classes=3))(state)[1], -wanted.sum()
    )
    near(log_likelihood(program, params, *arguments, num_classes=3).value, wanted)
    losses = em.run(random.key(0), 5, *arguments, num_classes=3, init_params=params).losses
    assert (np.diff(losses) < 0).all() and np.isfinite(losses).all()
    # Another annotator in an array of the same shape.
    more = em.init(random.key(0), np.arange(4), LABELS, num_classes=3)
    first = next(iter(params))
    assert more.params[first].shape[0] == 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_may_be_a_value_of_numpy_rows(name):
    """As NumPyro has them: the number of classes is read off the rows."""
    program, params, probability = PROGRAMS[name]
    params = {site: jnp.asarray(value) for site, value in params.items()}
    em = EM(program, search=None)
    result = em.run(random.key(0), 1, POSITIONS, LABELS, init_params=params)
    near(result.losses[0], -np.log([probability(row) for row in LABELS]).sum())
    with pytest.raises(ProgramError, match=r"test_annotation.py, line \d+.*num_classes=4"):
        EM(program).run(random.key(0), 5, POSITIONS, jnp.asarray(LABELS))
    with pytest.raises(ProgramError, match="as one of NumPy's"):
        EM(program).run(random.key(0), 5, jnp.asarray(POSITIONS), LABELS, num_classes=3)


def hard_items(item, right):
    """A table with a row for each answer: which item it is of stands in a column."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("items", 4):
        hard = numpyro.sample("hard", dist.Bernoulli(share))
    with numpyro.plate("answers", len(right)):
        probs = jnp.where(hard[item] == 1, 0.3, 0.8)
        numpyro.sample("right", dist.Bernoulli(probs), obs=right)


def test_em_searches_over_starts_where_an_argument_is_an_index():
    item, right = np.arange(20) % 4, RNG.integers(0, 2, 20)
    em = EM(hard_items, search=Search(num_lineages=2, screening=2, rounds=1, steps=2))
    result = em.run(random.key(0), 40, item, right)
    share, wanted = float(result.params["share"]), 0.0
    for i in range(4):
        seen = right[item == i]
        easy, hard = (np.prod(np.where(seen, p, 1 - p)) for p in (0.8, 0.3))
        wanted -= np.log((1 - share) * easy + share * hard)
    there = em.run(random.key(0), 1, item, right, init_params=result.params)
    near(there.losses[0], wanted)
    assert len(result.optima.values) == 2
