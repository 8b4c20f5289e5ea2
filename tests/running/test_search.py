"""The search over starts: what a run with default arguments ends at, and what it says of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference import EM, Algorithm, Optima, Search, TruncatedEM
from inference.methods.discrete import moves
from inference.methods.discrete.step import StatesEM
from inference.methods.discrete.updates import closed_form
from inference.running import algorithm
from inference.running.contract import DivergedError, Stop
from inference.running.search import PATIENCE, Lineages, LineageState, optima_of, remaining
from ppl_models import bernoulli_mixture, binary_sparse_coding
from ppl_models.data import bars


def uneven_mixture():
    """Six components of unequal weight: from single starts EM mostly ends elsewhere."""
    rng = np.random.default_rng(5)
    probs = rng.beta(0.5, 0.5, size=(6, 24))
    mixing = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    member = rng.choice(6, 600, p=mixing)
    data = (rng.uniform(size=(600, 24)) < probs[member]).astype(np.float32)
    return jnp.asarray(data), {"mixing": jnp.asarray(mixing), "probs": jnp.asarray(probs)}


def test_a_mixture_is_found_from_any_key(monkeypatch):
    data, truth = uneven_mixture()
    traced, update = [], StatesEM._update
    monkeypatch.setattr(StatesEM, "_update", lambda *x: traced.append(x) or update(*x))
    em = EM(bernoulli_mixture)
    best = em.run(random.key(0), 60, data, num_components=6, init_params=truth)
    for seed in range(3):
        fitted = em.run(random.key(seed), 60, data, num_components=6)
        assert fitted.losses[-1] <= best.losses[-1] + 0.5
        assert fitted.optima.agree >= 2
    assert len(traced) <= 2  # that of one start, and one for all searches and the runs after them
    assert best.optima is None  # one start was given, and one is never said to agree with others


def test_bars_are_found_by_both_methods_with_their_own_defaults():
    truth = bars(random.key(3), 300, size=3)
    given = {"weights": truth.weights, "noise": truth.noise, "sparsity": truth.sparsity}
    best = EM(binary_sparse_coding).run(
        random.key(0), 60, truth.data, num_causes=6, init_params=given
    )
    for method in (EM, TruncatedEM):
        fitted = method(binary_sparse_coding).run(random.key(1), 60, truth.data, num_causes=6)
        assert fitted.losses[-1] <= best.losses[-1] + 0.5
        assert fitted.optima.agree >= 2


def test_a_search_is_switched_off_by_one_argument_or_a_start():
    data, truth = uneven_mixture()
    short = Search(num_lineages=2, screening=2, rounds=1, steps=2)
    assert EM(bernoulli_mixture, search=None).search is None
    assert EM(bernoulli_mixture, start=lambda *_, **__: truth, search=short).search is None
    few = EM(bernoulli_mixture, search=short).run(random.key(0), 5, data, num_components=6)
    assert few.optima is None  # no room for a search
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 0"):
        Search(rounds=-1)


def test_starts_that_end_apart_are_searched_for_once_more():
    """Five classes of pure noise have many optima: two starts do not meet."""
    data = (np.random.default_rng(0).random((60, 8)) < 0.5).astype(np.float32)
    em = EM(bernoulli_mixture, search=Search(2, screening=0, rounds=0))
    once = em.run(random.key(0), 400, data, num_components=5)
    twice = em.run(random.key(0), 400, data, num_components=5, tolerance=1e-6)
    assert once.optima.agree == 1 and len(once.optima.values) == 2
    values = twice.optima.values
    assert len(values) == 4 and len(twice.losses) < 400 and (np.diff(values) >= 0).all()
    assert np.isclose(values, once.optima.values[0], atol=0.05).any()  # those of the first search
    there = EM(bernoulli_mixture).run(
        random.key(0), 1, data, num_components=5, init_params=twice.params
    )
    assert np.isclose(there.losses[0], values[0], atol=0.01)
    limited = em.run(random.key(0), 400, data, num_components=5, tolerance=1e-6, budget=60.0)
    assert len(limited.optima.values) == 2


@pytest.mark.parametrize(
    ("error", "stop"),
    [(DivergedError("no number", None), Stop.TOLERANCE), (KeyboardInterrupt(), Stop.INTERRUPTED)],
)
def test_a_second_search_that_breaks_leaves_what_the_first_found(monkeypatch, error, stop):
    data = (np.random.default_rng(0).random((60, 8)) < 0.5).astype(np.float32)
    em = EM(bernoulli_mixture, search=Search(2, screening=0, rounds=0))
    drive, ends = algorithm.drive, iter([None, error])

    def breaking(*args):
        if (why := next(ends)) is not None:
            raise why
        return drive(*args)

    monkeypatch.setattr(algorithm, "drive", breaking)
    found = em.run(random.key(0), 400, data, num_components=5, tolerance=1e-6)
    assert next(ends, None) is None and found.stop is stop
    assert len(found.optima.values) == 2 and np.isfinite(found.losses[-1])


def test_a_variant_changes_one_unit_and_keeps_the_others():
    data, truth = uneven_mixture()
    method = EM(bernoulli_mixture)
    vary = jax.jit(lambda key: method.vary(key, truth, data, num_components=6))
    changed = jax.device_get(vary(random.key(2)))
    moved = (np.abs(changed["probs"] - truth["probs"]).max(1) > 1e-6).sum()
    assert moved == 2  # one is given up for half of another
    np.testing.assert_allclose(changed["mixing"].sum(), 1.0, rtol=1e-6)
    reader, rows = method.open((data,), {"num_components": 6})
    assert moves.varies(closed_form(reader, rows))


def test_what_remains_is_estimated_and_agreement_counts_it():
    losses = np.array([[4.0, 8.0], [2.0, 7.9], [1.0, 7.85]])
    np.testing.assert_allclose(remaining(losses), [1.0, 0.05])
    assert Optima(np.array([1.0, 2.0, 3.0]), 1, 3).better == 0.8
    assert "1 of 3" in str(Optima(np.array([1.0, 2.0, 3.0]), 1, 3))


class Towards(Algorithm):
    """Halves the way to where a lineage goes, in every step."""

    def __init__(self):
        self.model = None

    def init(self, rng_key, init_params=None):
        del rng_key
        return init_params

    def update(self, state):
        goal, now = state
        return (goal, 0.5 * (goal + now)), now

    def get_params(self, state):
        return {"x": state[1]}


def test_lineages_that_agree_or_are_far_behind_stand_still():
    """The best goes on alone: the rest of a run costs as much as one start."""
    goals = jnp.array([100.0, 100.0, 150.0])
    start = LineageState(
        (goals, goals + jnp.array([8.0, 6.0, 3.0])), jnp.zeros((3, 3)), jnp.zeros(3, int)
    )
    step = jax.jit(Lineages(Towards(), Search()).update)
    state = start
    for _ in range(40):
        state, _ = step(state)
    assert np.asarray(state.idle >= PATIENCE).tolist() == [True, False, True]
    np.testing.assert_allclose(np.asarray(state.losses[-1, :2]), 100.0, atol=2e-3)
    again, _ = step(state)
    moved = np.asarray(again.states[1] != state.states[1]) | np.asarray(state.idle < PATIENCE)
    assert moved.tolist() == [False, True, False]
    assert optima_of(np.asarray(state.losses)).agree == 2
