"""Parameters at their bounds: errors beside them, limits and intervals from the profile."""

import itertools
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from scipy.optimize import brentq, minimize
from tools import in_double

from inference.evaluation.standard_errors import (
    BoundWarning,
    confidence_intervals,
    standard_errors,
)
from ppl_models import bernoulli_mixture, noisy_or_network

TINY = 1e-9
PATTERNS = np.array(list(itertools.product((0.0, 1.0), repeat=4)))


def highest(total, start, bounds, fixed=()):
    """The largest value of `total` in a box, and where; some coordinates stay at the start."""
    start = np.array(start, float)
    free = [i for i in range(len(start)) if i not in fixed]

    def loss(inner):
        x = start.copy()
        x[free] = inner
        return -total(x)

    options = {"maxiter": 3000, "maxfun": 60_000, "ftol": 1e-15, "gtol": 1e-8}
    box = [bounds[i] for i in free]
    found = minimize(loss, start[free], method="L-BFGS-B", bounds=box, options=options)
    start[free] = found.x
    return -found.fun, start


def profile_end(total, top, at, bounds, place, far, drop):
    """Where the profile of one coordinate has fallen by `drop`, between the maximum and `far`."""

    def above(value):
        start = at.copy()
        start[place] = value
        return highest(total, start, bounds, (place,))[0] - top + drop

    return brentq(above, at[place], far, xtol=1e-5)


def hessian(total, at, free, step=1e-4):
    """Minus the second differences of a function in some of its coordinates."""

    def moved(*steps):
        x = at.copy()
        for i, by in steps:
            x[i] += by
        return total(x)

    out = np.zeros((len(free), len(free)))
    for a, i in enumerate(free):
        for b, j in enumerate(free):
            signs = itertools.product((1, -1), repeat=2)
            out[a, b] = -sum(s * t * moved((i, s * step), (j, t * step)) for s, t in signs)
    return out / (4.0 * step**2)


# --- classes, one of which never shows the last column


CLASSES = np.array([[0.85, 0.75, 0.3, 0.4], [0.2, 0.15, 0.7, 0.0]])
COUNT = np.round(
    150
    * sum(
        share * np.where(PATTERNS > 0, p, 1 - p).prod(1)
        for share, p in zip((0.45, 0.55), CLASSES, strict=True)
    )
).astype(int)
TABLE = np.repeat(PATTERNS, COUNT, 0)


def classes_total(count, x):
    """x: the share of the first class, and the probabilities of both."""
    probs = x[1:].reshape(2, 4)
    each = [np.where(PATTERNS > 0, p, 1 - p).prod(1) for p in probs]
    return count @ np.log(x[0] * each[0] + (1 - x[0]) * each[1])


def as_classes(x):
    return {"mixing": np.array([x[0], 1 - x[0]]), "probs": x[1:].reshape(2, 4)}


@pytest.fixture(scope="module")
def classes():
    total, bounds = partial(classes_total, COUNT), [(TINY, 1 - TINY)] * 9
    start = np.concatenate([[0.45], CLASSES.ravel().clip(0.01)])
    return total, bounds, *highest(total, start, bounds)


def test_errors_beside_a_bound_and_its_limit_are_those_of_the_oracles_likelihood(classes):
    total, bounds, top, at = classes
    assert at[8] < 1e-8 and (at[:8] > 0.05).all() and (at[:8] < 0.95).all()
    with pytest.warns(BoundWarning, match=r"probs\[1, 3\] = 0 \(below 0\.\d+\)") as heard:
        errors = standard_errors(bernoulli_mixture, as_classes(at), TABLE, num_components=2)
    assert len(heard) == 1
    wanted = np.sqrt(np.diagonal(np.linalg.inv(hessian(total, at, range(8)))))
    np.testing.assert_allclose(errors["mixing"], wanted[[0, 0]], rtol=2e-3)
    found = np.ravel(errors["probs"])
    np.testing.assert_allclose(found[:7], wanted[1:], rtol=2e-3)
    assert np.isnan(found[7])
    (bound,) = heard[0].message.bounds
    wanted = profile_end(total, top, at, bounds, 8, 0.6, 1.3528)
    np.testing.assert_allclose(bound.limit, wanted, atol=2e-3)


def test_intervals_are_those_of_the_oracles_profile(classes):
    total, bounds, top, at = classes
    given = {"num_components": 2, "level": 0.9}
    found = confidence_intervals(bernoulli_mixture, as_classes(at), TABLE, **given)
    probs = np.asarray(found["probs"]).reshape(2, 8)
    assert probs[0, 7] == 0.0
    for place, end, far in ((0, 1, 0.95), (3, 0, 0.05), (8, 1, 0.6)):
        wanted = profile_end(total, top, at, bounds, place, far, 1.3528)
        own = found["mixing"][:, 0] if place == 0 else probs[:, place - 1]
        np.testing.assert_allclose(own[end], wanted, atol=2e-3)
    # The last share is one minus the others.
    np.testing.assert_allclose(found["mixing"][::-1, 1], 1 - found["mixing"][:, 0], atol=2e-3)
    with pytest.raises(ValueError, match="'size' is no parameter: there are mixing, probs"):
        confidence_intervals(bernoulli_mixture, as_classes(at), TABLE, **given, sites=["size"])


def test_a_class_without_members_leaves_the_others_their_errors(classes):
    """A share of exactly zero, in float32; the data say nothing of its probabilities."""
    at = classes[3]
    two = as_classes(at)
    unlikely = np.array([[0.01, 0.99, 0.01, 0.99]])
    three = {
        "mixing": np.append(two["mixing"], 0.0).astype(np.float32),
        "probs": np.concatenate([two["probs"], unlikely]).astype(np.float32),
    }
    words = r"mixing\[2\] = 0 .*, probs\[1, 3\] = 0 .* say nothing of 4 others"
    with pytest.warns(BoundWarning, match=words):
        errors = standard_errors(bernoulli_mixture, three, TABLE, num_components=3)
    with pytest.warns(BoundWarning):
        wanted = standard_errors(bernoulli_mixture, two, TABLE, num_components=2)
    np.testing.assert_allclose(errors["mixing"][:2], wanted["mixing"], rtol=2e-3)
    np.testing.assert_allclose(errors["probs"][:2], wanted["probs"], rtol=2e-3)
    assert np.isnan(errors["mixing"][2]) and np.isnan(errors["probs"][2]).all()


# --- a small weight of a noisy-OR


WEIGHTS, LEAKS, CAUSE = np.array([1.5, 1.2, 1.0, 0.04]), np.array([0.2, 0.1, 0.15, 0.2]), 0.7


def noisy_or_total(count, x):
    """x: the leak of the cause, those of the columns, the weights."""
    off, on = (
        np.where(PATTERNS > 0, -np.expm1(-u), np.exp(-u)).prod(1) for u in (x[1:5], x[1:5] + x[5:])
    )
    return count @ np.log(np.exp(-x[0]) * off - np.expm1(-x[0]) * on)


def test_intervals_of_a_small_weight_hold_it():
    """Of 40 tables: at 95 % less than 35 have a probability of 0.014, at Wald's 74 % of 0.96."""
    rng = np.random.default_rng(1)
    held, at_bound = 0, 0
    truth = np.concatenate([[CAUSE], LEAKS, WEIGHTS])
    for _ in range(40):
        on = rng.random((400, 1)) < -np.expm1(-CAUSE)
        table = (rng.random((400, 4)) < -np.expm1(-(LEAKS + on * WEIGHTS))).astype(float)
        count = np.array([(table == x).all(1).sum() for x in PATTERNS])
        total = partial(noisy_or_total, count)
        _, at = highest(total, truth, [(TINY, None)] * 9)
        params = {"leak_1": at[:1], "leak_0": at[1:5], "weights_1": at[None, 5:]}
        given = {"layers": (1,), "sites": ["weights_1"]}
        lower, upper = confidence_intervals(noisy_or_network, params, table, **given)["weights_1"]
        held += bool(lower[0, 3] <= 0.04 <= upper[0, 3])
        at_bound += bool(lower[0, 3] == 0.0 and at[8] < 1e-6)
    assert held >= 35 and 4 <= at_bound <= 20


# --- chains, posterior modes, weights


def hidden_chain(seen):
    move = numpyro.sample("move", dist.Dirichlet(jnp.full(2, 2.0)).expand([2]).to_event(1))
    show = numpyro.sample("show", dist.Beta(2.0, 3.0).expand([2]).to_event(1))

    def step(before, y):
        with numpyro.plate("sequences", seen.shape[1]):
            state = numpyro.sample("state", dist.Categorical(move[before]))
            numpyro.sample("seen", dist.Bernoulli(show[state]), obs=y)
        return state, None

    scan(step, jnp.zeros(seen.shape[1], int), seen)


def chain_total(seen, prior, x):
    """The forward pass of each sequence; x: the chance to stay in each state, then to show."""
    move = np.array([[x[0], 1 - x[0]], [1 - x[1], x[1]]])
    value = prior * np.sum(np.log(x[:2]) + np.log1p(-x[:2]))  # Dirichlet(2, 2)
    value += prior * np.sum(np.log(x[2:]) + 2.0 * np.log1p(-x[2:]))
    for n in range(seen.shape[1]):
        forward = np.array([1.0, 0.0])
        for y in seen[:, n]:
            forward = (forward @ move) * (x[2:] if y else 1 - x[2:])
            value += np.log(forward.sum())
            forward /= forward.sum()
    return value


@pytest.mark.parametrize("prior", [False, True])
@in_double
def test_errors_of_chains_are_those_of_the_oracles_forward_pass(prior):
    rng = np.random.default_rng(3)
    seen = np.zeros((40, 4))
    for n in range(4):
        state = 0
        for t in range(40):
            state = state if rng.random() < (0.85, 0.8)[state] else 1 - state
            seen[t, n] = rng.random() < (0.15, 0.8)[state]
    total = partial(chain_total, seen, prior)
    at = highest(total, [0.85, 0.8, 0.15, 0.8], [(0.01, 0.99)] * 4)[1]
    move = np.array([[at[0], 1 - at[0]], [1 - at[1], at[1]]])
    errors = standard_errors(hidden_chain, {"move": move, "show": at[2:]}, seen, prior=prior)
    wanted = np.sqrt(np.diagonal(np.linalg.inv(hessian(total, at, range(4)))))
    np.testing.assert_allclose(errors["move"], wanted[[[0, 0], [1, 1]]], rtol=2e-3)
    np.testing.assert_allclose(errors["show"], wanted[2:], rtol=2e-3)


@in_double
def test_errors_of_weighted_rows_are_the_sandwich():
    """A⁻¹BA⁻¹, with B from the scores of the rows as they are weighted."""
    rng = np.random.default_rng(4)
    probs = np.where(rng.random((80, 1)) < 0.5, [0.8, 0.7, 0.3, 0.6], [0.2, 0.3, 0.7, 0.3])
    table, weight = (rng.random((80, 4)) < probs).astype(float), rng.gamma(2.0, 0.5, 80)

    def weighted(data, weight):
        mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.ones(2)))
        probs = numpyro.sample("probs", dist.Uniform(0.0, 1.0).expand((2, 4)).to_event(2))
        with numpyro.plate("rows", len(data)), handlers.scale(scale=weight):
            kind = numpyro.sample("kind", dist.Categorical(mixing))
            numpyro.sample("seen", dist.Bernoulli(probs[kind]).to_event(1), obs=data)

    code = (table @ [8, 4, 2, 1]).astype(int)
    total = partial(classes_total, np.bincount(code, weight, 16))
    at = highest(total, [0.5, 0.8, 0.7, 0.3, 0.6, 0.2, 0.3, 0.7, 0.3], [(TINY, 1 - TINY)] * 9)[1]
    scores = np.zeros((80, 9))
    for n in range(80):
        one = partial(classes_total, np.eye(16)[code[n]])
        for i in range(9):
            move = 1e-5 * np.eye(9)[i]
            scores[n, i] = weight[n] * (one(at + move) - one(at - move)) / 2e-5
    inverse = np.linalg.inv(hessian(total, at, range(9)))
    wanted = np.sqrt(np.diagonal(inverse @ scores.T @ scores @ inverse))
    errors = standard_errors(weighted, as_classes(at), table, weight, sandwich=True)
    found = np.append(errors["mixing"][0], np.ravel(errors["probs"]))
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
