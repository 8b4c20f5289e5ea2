"""Which units are missed least, and which patterns a network lacks."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from inference.methods.gibbs.noisy_or import Network, Seen, Wiring
from inference.methods.gibbs.replacing import (
    cause_ratios,
    given_up,
    halve,
    missing_patterns,
    residuals,
    unit_gains,
)

WIRING = Wiring(("s",), ("y",), (("s", "y"),))


def log_joint(leak, weights, prior, bits, data):
    inputs = leak + bits @ weights
    cells = np.where(data == 1, np.log(-np.expm1(-inputs)), -inputs)
    return cells.sum(-1) + np.where(bits == 1, np.log(-np.expm1(-prior)), -prior).sum(-1)


def test_the_gain_of_a_unit_is_what_rows_lose_without_it():
    rng = np.random.default_rng(0)
    leak, weights = rng.uniform(0.1, 0.5, 5), rng.uniform(0.0, 1.5, (3, 5))
    prior, bits = rng.uniform(0.2, 0.9, 3), rng.integers(0, 2, (6, 3)).astype(float)
    data = rng.integers(0, 2, (6, 5)).astype(float)
    network = Network({"s": jnp.asarray(prior), "y": jnp.asarray(leak)},
                      {("s", "y"): jnp.asarray(weights)})  # fmt: skip
    run = jax.jit(lambda *x: unit_gains(WIRING, *x, "s"))
    gains = run(network, {"s": jnp.asarray(bits)}, {"y": Seen(data, None)})
    for unit in range(3):
        on, off = bits.copy(), bits.copy()
        on[:, unit], off[:, unit] = 1.0, 0.0
        both = [log_joint(leak, weights, prior, x, data) for x in (on, off)]
        without = both[1] + prior[unit]  # off for certain
        np.testing.assert_allclose(
            gains[unit], (np.logaddexp(*both) - without).mean(), rtol=2e-4, atol=1e-5
        )


def test_a_blend_of_two_causes_leaves_either_of_them_over_and_can_be_halved():
    """The network has one unit for both, and one that does nothing; neither is a cause."""
    rng = np.random.default_rng(1)
    causes = np.zeros((2, 8))
    causes[0, :5] = causes[1, 3:] = 2.0  # two columns are shared
    on = rng.uniform(size=(2000, 2)) < 0.3
    data = (rng.uniform(size=(2000, 8)) < -np.expm1(-(on @ causes + 0.05))).astype(float)
    blend = np.stack([np.full(8, 0.8), np.zeros(8)])
    states = np.stack([on.any(1), np.zeros(2000)], 1).astype(float)
    network = Network({"s": jnp.full(2, 0.3), "y": jnp.full(8, 0.05)},
                      {("s", "y"): jnp.asarray(blend)})  # fmt: skip
    parts = (WIRING, network, {"s": jnp.asarray(states)}, {"y": Seen(jnp.asarray(data), None)})
    works = -np.expm1(-blend)

    @jax.jit
    def plant(keys):
        left, ratio = residuals(*parts, "y"), cause_ratios(*parts, "y")
        gains = unit_gains(*parts, "s")

        def one(key):
            first, second, third = random.split(key, 3)
            pattern = missing_patterns(first, 2, left)[0]
            halves = halve(
                second, left, ratio, jnp.asarray(states), jnp.asarray(works), jnp.ones(2, bool)
            )
            return pattern, given_up(third, gains, 0.5)[0], halves

        return jax.vmap(one)(keys)

    patterns, which, halves = jax.device_get(plant(random.split(random.key(0), 40)))
    side = np.sort(patterns[:, [0, 1, 2, 5, 6, 7]].reshape(40, 2, 3).mean(2), axis=1)
    # Few turns leave a pattern random: it may be the columns that are shared.
    assert ((side[:, 0] < 0.1) & (side[:, 1] > 0.9)).mean() > 0.9, side
    assert (which.sum(1) == 1).all()  # half of the units, and the idle one sooner
    assert which[:, 1].mean() > 0.9
    assert (halves.unit == 0).all()
    own = halves.strengths[:, :, [0, 1, 2, 5, 6, 7]].reshape(40, 2, 2, 3).mean(-1)
    own = np.where(own[:, :1, :1] > own[:, :1, 1:], own, own[:, ::-1])
    # Rows that have both causes, three in ten of either's, may all be on one side.
    assert (own[:, [0, 1], [0, 1]] > 0.8).all(), own
    assert (own[:, [0, 1], [1, 0]] < 0.35).all(), own
