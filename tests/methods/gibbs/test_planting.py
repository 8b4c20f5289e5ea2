"""Which units are missed least, and which patterns a network lacks."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from inference.methods.gibbs.noisy_or import Network, Seen, Wiring
from inference.methods.gibbs.planting import given_up, missing_patterns, residuals, unit_gains

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
    gains = unit_gains(WIRING, network, {"s": jnp.asarray(bits)}, {"y": Seen(data, None)}, "s")
    for unit in range(3):
        on, off = bits.copy(), bits.copy()
        on[:, unit], off[:, unit] = 1.0, 0.0
        both = [log_joint(leak, weights, prior, x, data) for x in (on, off)]
        without = both[1] + prior[unit]  # off for certain
        np.testing.assert_allclose(
            gains[unit], (np.logaddexp(*both) - without).mean(), rtol=2e-4, atol=1e-5
        )


def test_a_blend_of_two_causes_leaves_either_of_them_over():
    """The network has one unit for both, and one that does nothing; neither is a cause."""
    rng = np.random.default_rng(1)
    causes = np.kron(np.eye(2), np.full(4, 2.0))  # columns 0 to 3, and 4 to 7
    on = rng.uniform(size=(2000, 2)) < 0.3
    data = (rng.uniform(size=(2000, 8)) < -np.expm1(-(on @ causes + 0.05))).astype(float)
    blend = np.stack([np.full(8, 0.8), np.zeros(8)])
    states = np.stack([on.any(1), np.zeros(2000)], 1).astype(float)
    network = Network({"s": jnp.full(2, 0.3), "y": jnp.full(8, 0.05)},
                      {("s", "y"): jnp.asarray(blend)})  # fmt: skip
    seen = {"y": Seen(jnp.asarray(data), None)}
    left = residuals(WIRING, network, {"s": jnp.asarray(states)}, seen, "y")
    gains = unit_gains(WIRING, network, {"s": jnp.asarray(states)}, seen, "s")

    @jax.jit
    @jax.vmap
    def plant(key):
        patterns = missing_patterns(key, left, jnp.asarray(states))
        return patterns[0], given_up(key, gains, -jnp.expm1(-jnp.asarray(blend)), patterns, 0.5)[0]

    patterns, which = jax.device_get(plant(random.split(random.key(0), 40)))
    halves = np.sort(patterns.reshape(40, 2, 4).mean(2), axis=1)
    assert (halves[:, 0] < 0.1).all() and (halves[:, 1] > 1.0).all()
    assert (which.sum(1) == 1).all()  # half of the units, the idle one or the blend
    assert 0.4 < which[:, 1].mean() < 0.9
