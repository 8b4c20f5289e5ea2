"""`recover` and `latent_posterior` against a loop over every state of every datum."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import Predictive
from small_programs import CASES, NUM_DATA, mixture_case
from tools import near

from inference import Given, ProgramError, latent_posterior, marginal, recover
from inference.reading import state_sums

MANY = 3000
# A frequency of many draws lies within five standard errors of its probability, all cells at once.
CLOSE = 5.0 * 0.5 / np.sqrt(MANY)


def posterior_table(case):
    """p(s | y_n) of every state, (S, N), and the states, (S, bits)."""
    if case.latents:
        table, bits = case.table()
    else:  # a category: the oracle takes labels
        labels = np.arange(3)
        rows = [
            case.log_joint({**case.params, "component": np.full(NUM_DATA, k)}, case.data)
            for k in labels
        ]
        table, bits = np.array(rows), labels[:, None]
    weight = np.exp(table - table.max(0))
    return weight / weight.sum(0), bits.astype(int)


def repeated(params, count):
    return {name: jnp.repeat(jnp.asarray(x)[None], count, 0) for name, x in params.items()}


def values_of(program, *args, **kwargs):
    trace = handlers.trace(program).get_trace(*args, **kwargs)
    return {name: site["value"] for name, site in trace.items()}


@pytest.mark.parametrize("name", ["sparse_coding_masked", "two_sites"])
def test_latents_follow_their_posterior(name, monkeypatch):
    """Probabilities, draws and the best state, in chunks of two rows."""
    case = CASES[name]
    args, kwargs = case.arguments
    weight, bits = posterior_table(case)
    monkeypatch.setattr(state_sums, "product_floats", lambda: 2 * len(bits))
    samples = repeated(case.typed(), MANY)
    posterior = latent_posterior(random.key(0), case.model, samples, *args, **kwargs)
    start, draws, best = 0, [], []
    for site, probability in posterior.probabilities.items():
        size = int(np.prod(posterior.draws[site].shape[2:], dtype=int))
        count = probability.shape[-1]
        wanted = np.zeros((NUM_DATA, size, count))
        for s, state in enumerate(bits):
            for i in range(size):
                wanted[:, i, state[start + i]] += weight[s]
        near(probability[7].reshape(wanted.shape), wanted, 1e-4)
        draws.append(np.asarray(posterior.draws[site]).reshape(MANY, NUM_DATA, size))
        best.append(np.asarray(posterior.best[site][3]).reshape(NUM_DATA, size))
        start += size
    np.testing.assert_array_equal(np.concatenate(best, -1), bits[weight.argmax(0)])
    # Whole states, not only their single values: latents of a datum are drawn together.
    same = (np.concatenate(draws, -1)[:, None] == bits[None, :, None]).all(-1)  # (draws, S, N)
    assert np.abs(same.mean(0) - weight).max() < CLOSE


def test_predictive_draws_what_marginal_had_summed_out():
    """The handler inside `Predictive`: parameters come from outside, and are met once."""
    case = mixture_case()
    args, kwargs = case.arguments
    weight, _ = posterior_table(case)
    draw = Predictive(recover(marginal(case.model)), repeated(case.typed(), MANY), parallel=True)
    drawn = jax.jit(lambda key: draw(key, *args, **kwargs))(random.key(1))
    assert set(drawn) == {"component", "observed"}
    often = (np.asarray(drawn["component"])[:, None] == np.arange(3)[:, None]).mean(0)
    assert np.abs(often - weight).max() < CLOSE
    best = handlers.substitute(recover(case.model, best=True), data=case.typed())
    sites = jax.jit(lambda: values_of(best, *args, **kwargs))()
    np.testing.assert_array_equal(sites["component"], weight.argmax(0))
    assert {"mixing", "probs", "component", "observed", "data"} <= set(sites)


def test_a_minibatch_and_a_table_of_ones_own():
    """Rows that the plate draws are the rows that are read; of two states per row, only those."""

    def draws_rows(data):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(data), subsample_size=3) as chosen:
            on = numpyro.sample("on", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
            numpyro.sample("observed", dist.Normal(on * level, 0.1), obs=data[chosen])

    data = jnp.array([0.0, 1.0, 2.0, 1.0, 0.0, 2.0])
    program = handlers.substitute(recover(draws_rows), data={"level": jnp.array(1.0)})
    run = jax.jit(lambda key: values_of(handlers.seed(program, key), data))
    for seed in range(3):
        sites = run(random.key(seed))
        np.testing.assert_array_equal(sites["on"], data[sites["data"]])
    # Without 2 among the states of the last row, 1 is the most probable.
    table = np.array([[[0], [1], [0]], [[1], [2], [1]]])
    own = recover(draws_rows, Given(table), best=True)
    fixed = {"level": jnp.array(1.0), "data": jnp.array([0, 2, 5])}
    sites = jax.jit(lambda: values_of(handlers.substitute(own, data=fixed), data))()
    np.testing.assert_array_equal(sites["on"], [0, 2, 1])


def test_what_is_lacking_is_named():
    case = mixture_case()
    args, kwargs = case.arguments
    with pytest.raises(ProgramError, match="hold no 'probs'"):
        latent_posterior(
            random.key(0), case.model, {"mixing": jnp.ones((5, 3)) / 3}, *args, **kwargs
        )
    with pytest.raises(ProgramError, match="needs a key"):
        handlers.substitute(recover(case.model), data=case.typed())(*args, **kwargs)
    with pytest.raises(ProgramError, match="would be their prior"), handlers.seed(rng_seed=0):
        recover(case.model)(None, num_data=4, num_features=5, num_components=2)
    shapes = jax.eval_shape(
        lambda key: latent_posterior(
            key, case.model, {k: v[None, None] for k, v in case.typed().items()}, *args,
            batch_ndims=2, **kwargs,
        ),
        random.key(0),
    )  # fmt: skip
    assert shapes.probabilities["component"].shape == (1, 1, NUM_DATA, 3)
