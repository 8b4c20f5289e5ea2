"""The experiments of binary sparse coding, at small size."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from oracle import selection_scores
from tools import fast_jit

from inference.studies.papers.sparse_coding import (
    all_bars_found,
    bars_trial,
    paper_recipe,
    selection,
)
from ppl_models.data import bars


def test_recovery_is_blind_to_order_and_scale_but_not_to_a_bar_found_twice():
    true = np.asarray(jax.jit(lambda key: bars(key, 1).weights)(random.key(0)))
    order = np.random.default_rng(1).permutation(10)
    shuffled = true[order] * np.linspace(0.5, 2.0, 10, dtype=np.float32)[:, None]
    found = fast_jit(all_bars_found)
    assert found(true, shuffled)
    twice = shuffled.copy()
    twice[3] = twice[4]
    assert not found(true, twice)
    assert not found(true, -shuffled)


def test_selection_function_is_that_of_the_paper():
    generator = np.random.default_rng(0)
    weights, data = generator.normal(size=(4, 6)), generator.normal(size=(5, 6))
    ours = selection({"weights": jnp.asarray(weights)}, jnp.asarray(data))
    theirs = [selection_scores(weights, datum) for datum in data]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_improved_recipe_chooses_among_its_starts_by_free_energy():
    method, key = paper_recipe(1.0), random.key(3)
    trial = fast_jit(partial(bars_trial, method, 300, 3, num_steps=12))(key)
    key_data, key_fit = random.split(key)

    @fast_jit
    def last_loss(key_start):
        data = bars(key_data, 300).data
        state = method.init(key_start, data, num_causes=10)
        step = lambda state, _: method.update(state, data, num_causes=10)  # noqa: E731
        return jax.lax.scan(step, state, None, length=13)[1][-1]

    last = [float(last_loss(key_start)) for key_start in random.split(key_fit, 3)]
    assert int(trial.chosen) == int(np.argmin(last))
    assert trial.noise.shape == (3, 12)
