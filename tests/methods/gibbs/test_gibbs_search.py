"""A search over networks: rare causes are kept, the best member is, and it learns to the end."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax import random
from network_examples import exact_evidence, line_data, typed
from tools import quick_run

from inference import GibbsEM, GibbsSearch
from inference.running.contract import RunResult
from ppl_models import noisy_or_network


def rare_cause():
    """4000 rows and their network, the third of whose causes is on in one row of a hundred."""
    rng, active = np.random.default_rng(0), np.array([0.3, 0.2, 0.01])
    weights = np.full((3, 6), 1e-3)
    weights[0, :3] = weights[1, 2:4] = weights[2, 3:] = 2.5
    params = {"weights_1": weights, "leak_0": np.full(6, 0.02), "leak_1": -np.log1p(-active)}
    causes = rng.random((4000, 3)) < active
    inputs = params["leak_0"] + causes @ weights
    return (rng.random(inputs.shape) < -np.expm1(-inputs)).astype(np.float32), params


def exact_em(data, params, num_steps):
    """EM by (9) without a prior over a table of all states: the log likelihood per row."""
    states = oracle.joint_states(layer_1=3)["layer_1"].astype(float)
    off = {name: np.exp(-value) for name, value in params.items()}  # what fails to happen
    for _ in range(num_steps):
        silent = off["leak_0"] * np.prod(off["weights_1"] ** states[:, :, None], axis=1)
        prior = np.prod(np.where(states > 0, 1 - off["leak_1"], off["leak_1"]), axis=1)
        table = np.log(prior) + data @ np.log(1 - silent).T + (1 - data) @ np.log(silent).T
        evidence = np.logaddexp.reduce(table, axis=1, keepdims=True)
        share = np.exp(table - evidence)
        ratio = (share.T @ data) / (1 - silent)  # (states, columns)
        count = states.T @ share.sum(0)
        off = {
            "weights_1": 1 - (1 - off["weights_1"]) * (states.T @ ratio) / count[:, None],
            "leak_0": 1 - (1 - off["leak_0"]) * ratio.sum(0) / len(data),
            "leak_1": 1 - count / len(data),
        }
    return evidence.mean()


def test_a_cause_that_is_rare_in_a_block_is_kept():
    """In a block of 200 rows it is on twice, or never: all rows must count, and the prior once."""
    data, truth = rare_cause()
    member, given = GibbsEM(noisy_or_network, max_sweeps=5, max_states=1), {"layers": (3,)}
    engine = GibbsSearch(member, population=2, rounds=3, epochs=5)

    @jax.jit
    def run(params, data):
        state = engine.init(random.key(0), data, init_params=params, **given)
        state = state._replace(step=jnp.ones((), int))  # a search seeds all units in its first
        step = lambda state, _: engine.update(state, data, **given)  # noqa: E731
        state, _ = jax.lax.scan(step, state, None, length=2)
        params = engine.get_params(state)
        return params, exact_evidence(params, data, **given).mean()

    learned, evidence = run(typed(truth), data)
    assert abs(float(learned["leak_1"][2]) - truth["leak_1"][2]) < 0.005
    assert evidence > exact_em(data, truth, 30) - 0.01


def test_search_keeps_the_best_and_improves():
    search = GibbsSearch(GibbsEM(noisy_or_network, max_sweeps=3), population=4, rounds=4, epochs=2)
    result = jax.device_get(quick_run(search, 1, 4, line_data(), layers=(10,)))
    assert (np.diff(result.losses) <= 1e-3).all()  # the survivors of a layer only get better
    assert (np.diff(result.state.scores) <= 0).all()
    np.testing.assert_array_equal(
        result.state.members.weights["layer_1", "observed"][0], result.params["weights_1"]
    )


def test_a_search_ends_with_the_best_member_learning_by_itself():
    """Where its rounds ended it stood 0.1 nats per row behind the optimum."""
    data, truth = rare_cause()
    rough = typed({name: 1.3 * value for name, value in truth.items()})
    short = {"population": 2, "rounds": 1, "search": None}
    search = GibbsSearch(GibbsEM(noisy_or_network, prior=None), polish=40, **short)
    begin = lambda key: search.init(key, data, init_params=rough, layers=(3,))  # noqa: E731
    state = jax.jit(begin)(random.key(1))
    ended = RunResult(rough, state._replace(step=jnp.ones((), int)), jnp.zeros(1), "", 1.0, 0.0)
    finished = search.finish(ended, random.key(2), None, (data,), {"layers": (3,)})
    best = exact_em(data, {name: 1.3 * value for name, value in truth.items()}, 60)
    worth = jax.jit(lambda params: exact_evidence(params, data, layers=(3,)).mean())
    assert worth(ended.params) < best - 0.02 and worth(finished.params) > best - 0.002
    # Nor without the time for it, nor before the last round.
    early = ended._replace(state=state)
    assert search.finish(ended, random.key(2), 0.5, (data,), {"layers": (3,)}) is ended
    assert search.finish(early, random.key(2), None, (data,), {"layers": (3,)}) is early
