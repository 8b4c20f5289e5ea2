"""Learning noisy-OR networks: against the paper's equation (9), the exact posterior and EM."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from network_examples import exact_evidence, line_data, typed
from oracle.examples import network
from tools import quick_run

from inference import EM, GibbsEM, ProgramError, Structure, TruncatedEM, inspect
from inference.methods.gibbs.network_evidence import annealed_evidence
from inference.methods.gibbs.noisy_or import Network, Seen, Wiring
from inference.methods.gibbs.noisy_or_steps import reestimate, sum_shares, sum_states
from ppl_models import binary_sparse_coding, noisy_or_network
from ppl_models.distributions import NoisyOr

RNG = np.random.default_rng(5)
NUM_DATA = 30
PARAMS = network()  # 4 inputs, layers of 3 and 2
BITS = {
    name: (RNG.random((NUM_DATA, n)) < 0.5).astype(float)
    for name, n in (("layer_1", 3), ("layer_2", 2))
}
DATA = (RNG.random((NUM_DATA, 4)) < 0.5).astype(float)
MASK = RNG.random((NUM_DATA, 4)) < 0.8
WIRING = Wiring(
    ("layer_2", "layer_1"), ("observed",), (("layer_2", "layer_1"), ("layer_1", "observed"))
)


def as_network(params):
    params = typed(params)
    return Network(
        {"observed": params["leak_0"], "layer_1": params["leak_1"], "layer_2": params["leak_2"]},
        {("layer_1", "observed"): params["weights_1"], ("layer_2", "layer_1"): params["weights_2"]},
    )


def test_new_weights_are_equation_nine():
    """Both priors, both layers, the leaks of all, and cells that were not seen."""
    net = as_network(PARAMS)
    bits, seen = typed(BITS), {"observed": Seen(jnp.asarray(DATA), jnp.asarray(MASK))}
    sums = jax.jit(lambda b: sum_shares(WIRING, net, b, seen, jnp.ones(NUM_DATA)))(bits)
    gamma, beta = (
        jax.jit(lambda *given, prior=prior: reestimate(*given, prior))
        for prior in (dist.Gamma(1.3, 1.5), dist.Beta(1.2, 2.0))
    )
    for parent, child, number in (("layer_1", "observed", 1), ("layer_2", "layer_1", 2)):
        below, mask = (DATA, MASK) if child == "observed" else (BITS[child], None)
        weights, leak = PARAMS[f"weights_{number}"], PARAMS[f"leak_{number - 1}"]
        edge = (parent, child)
        share, counts = sums.share.weights[edge], sums.counts.weights[edge]
        given = (BITS[parent], below, weights, leak)
        # Weights near zero come out of 1 - exp(-w) in float32.
        close = {"rtol": 2e-5, "atol": 1e-6}
        updated = gamma(net.weights[edge], share, counts)
        wanted = oracle.noisy_or_weight_update(*given, 1.3, 1.5, mask)
        np.testing.assert_allclose(updated, wanted, **close)
        updated = beta(net.weights[edge], share, counts)
        wanted = oracle.noisy_or_weight_update_beta(*given, 1.2, 2.0, mask)
        np.testing.assert_allclose(updated, wanted, **close)
        share, counts = sums.share.leak[child], sums.counts.leak[child]
        updated = gamma(net.leak[child], share, counts)
        np.testing.assert_allclose(
            updated, oracle.noisy_or_leak_update(*given, 1.3, 1.5, mask), **close
        )
    none = np.zeros((NUM_DATA, 0)), BITS["layer_2"], np.zeros((0, 2)), PARAMS["leak_2"]
    top = gamma(net.leak["layer_2"], sums.share.leak["layer_2"], sums.counts.leak["layer_2"])
    np.testing.assert_allclose(top, oracle.noisy_or_leak_update(*none, 1.3, 1.5), rtol=2e-5)


def test_where_the_update_rests_the_programs_slope_is_zero():
    """The fixed point of (9) is a stationary point of the program's own log joint and prior."""
    net = as_network(PARAMS)
    bits, seen = typed(BITS), {"observed": Seen(jnp.asarray(DATA), None)}
    priors = {"weights": dist.Gamma(1.0, 1.5), "leak": dist.Gamma(2.0, 2.0)}

    @jax.jit
    def rest(net):
        def step(_, net):
            sums = sum_shares(WIRING, net, bits, seen, jnp.ones(NUM_DATA))
            new = {
                kind: {
                    place: reestimate(value, getattr(sums.share, kind)[place],
                                      getattr(sums.counts, kind)[place], priors[kind])
                    for place, value in getattr(net, kind).items()
                }
                for kind in ("leak", "weights")
            }  # fmt: skip
            return Network(new["leak"], new["weights"])

        return jax.lax.fori_loop(0, 3000, step, net)

    net = rest(net)

    def log_density(net):
        params = {
            "leak_0": net.leak["observed"], "leak_1": net.leak["layer_1"],
            "leak_2": net.leak["layer_2"],
            "weights_1": net.weights["layer_1", "observed"],
            "weights_2": net.weights["layer_2", "layer_1"],
        }  # fmt: skip
        values = {**params, **{name: x.astype(int) for name, x in bits.items()}}
        total, _ = numpyro.infer.util.log_density(
            noisy_or_network, (jnp.asarray(DATA),), {"layers": (3, 2)}, values
        )
        return total

    net, slope = jax.device_get((net, jax.jit(jax.grad(log_density))(net)))
    for value, gradient in zip(jax.tree.leaves(net), jax.tree.leaves(slope), strict=True):
        inside = value > 1e-3
        # Slopes add up NUM_DATA terms of size one, in float32; the way there ends at 3000 steps.
        assert (np.abs(gradient)[inside] < 0.02).all()
        assert (gradient[~inside] < 0.02).all()  # at the edge only the way in may go up


def test_evidence_is_exact_for_small_networks_and_annealed_within_its_error():
    """Also through states that cannot be: with leaks of zero nearly every draw of the prior leaves
    some bit without a cause."""
    states = oracle.joint_states(layer_2=2, layer_1=3)
    log_joint = oracle.log_joint_noisy_or_network

    @jax.jit
    def compute(params, rows, mask):
        given = {"layers": (3, 2), "mask": mask}
        options = {"num_chains": 64, "num_densities": 50}
        annealed = annealed_evidence(noisy_or_network, params, rows, **options, **given)
        return exact_evidence(params, rows, **given), annealed

    rows = np.array([[1.0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    for params, few, seen, most in (
        (PARAMS, DATA[:6], MASK[:6], 0.2),
        ({**PARAMS, "leak_0": np.zeros(4)}, np.repeat(rows, 2, 0), np.ones((6, 4), bool), 0.5),
    ):
        wanted = oracle.log_evidence(oracle.log_joint_table(log_joint, params, states, few, seen))
        exact, annealed = compute(typed(params), few, seen)
        np.testing.assert_allclose(exact, wanted, rtol=1e-5)
        # Monte Carlo: four standard errors, for six rows.
        assert (np.abs(annealed.value - wanted) < 4.0 * annealed.standard_error).all()
        assert (annealed.standard_error < most).all()


@pytest.mark.parametrize("closed", [False, True])
def test_sums_over_all_states_are_those_of_the_posterior(closed):
    """Row by row and state by state, with cells that were not seen; the top may be closed."""
    net, seen = as_network(PARAMS), {"observed": Seen(jnp.asarray(DATA), jnp.asarray(MASK))}
    weights = np.linspace(0.5, 1.0, NUM_DATA)
    flags = {"layer_1": jnp.asarray(True), "layer_2": jnp.asarray(not closed)}
    summed = jax.jit(lambda net: sum_states(WIRING, net, seen, jnp.asarray(weights), flags))(net)
    states = oracle.joint_states(layer_2=2, layer_1=3)
    table = oracle.log_joint_table(oracle.log_joint_noisy_or_network, PARAMS, states, DATA, MASK)
    if closed:
        below = {"weights_1": PARAMS["weights_1"], "leak_0": PARAMS["leak_0"],
                 "leak_1": PARAMS["leak_1"]}  # fmt: skip
        lower = {"layer_1": states["layer_1"]}
        table = oracle.log_joint_table(oracle.log_joint_noisy_or_network, below, lower, DATA, MASK)
        table = np.where(states["layer_2"].any(1)[:, None], -np.inf, table)
    np.testing.assert_allclose(summed.evidence, np.logaddexp.reduce(table), rtol=1e-5)
    posterior = np.exp(table - np.logaddexp.reduce(table))
    np.testing.assert_allclose(
        summed.mean, posterior.T @ np.hstack([states["layer_2"], states["layer_1"]]), atol=1e-5
    )
    share, count = np.zeros((3, 4)), np.zeros((3, 4))
    for s, on in enumerate(states["layer_1"]):
        turned_on = -np.expm1(-(PARAMS["leak_0"] + on @ PARAMS["weights_1"]))
        cells = (posterior[s] * weights)[:, None] * MASK
        count += np.outer(on, cells.sum(0))
        share += np.outer(on, (cells * DATA).sum(0) / turned_on) * -np.expm1(-PARAMS["weights_1"])
    edge = ("layer_1", "observed")
    np.testing.assert_allclose(summed.sums.share.weights[edge], share, rtol=1e-4)
    np.testing.assert_allclose(summed.sums.counts.weights[edge], count, rtol=1e-4)


ONE_LAYER = {"layers": (3,)}
THREE = np.asarray(
    (np.random.default_rng(8).random((60, 5)) < 0.5) | (np.arange(60) % 3 == 0)[:, None], np.float32
)


def test_one_layer_networks_agree_under_em_truncation_enumeration_and_gibbs():
    """From one start, to one maximum; Gibbs EM to within the noise of its states."""
    start = {
        "weights_1": jnp.asarray(RNG.uniform(0.3, 1.5, (3, 5))),
        "leak_0": jnp.asarray([0.2] * 5),
        "leak_1": jnp.asarray([0.5] * 3),
    }
    run = {"init_params": start, **ONE_LAYER}
    general = {"structure": Structure.GENERAL}  # as test_structure finds
    exact = quick_run(EM(noisy_or_network, **general), 0, 40, THREE, **run)
    truncated = TruncatedEM(noisy_or_network, max_active=3, num_candidates=3, **general)
    same = quick_run(truncated, 0, 40, THREE, **run)
    np.testing.assert_allclose(same.losses[-1], exact.losses[-1], rtol=1e-5)
    assert (np.diff(exact.losses) < 1e-2).all()
    evidence = jax.jit(lambda p: exact_evidence(p, THREE, **ONE_LAYER).sum())
    value = float(evidence(exact.params))
    below = float(exact.losses[-1])
    assert -1e-3 * below < -value - below < 1e-3 * below  # the loss is that of the step before
    gibbs = GibbsEM(
        noisy_or_network, prior=None, block_size=60, max_sweeps=20, stop_below=0.0, max_states=1
    )
    sampled = float(evidence(quick_run(gibbs, 1, 150, THREE, **run).params))
    # EM on draws goes to and fro about the maximum, of a likelihood with 23 parameters: half a nat
    # each is what parameters drawn from their own posterior would lose.
    assert -value - 1.0 < -sampled < -value + 23 / 2


def test_layers_open_one_after_another_and_lower_ones_then_rest():
    data = line_data()
    em = GibbsEM(noisy_or_network, epochs_per_layer=1, max_sweeps=2, max_states=1)
    start = jax.device_get(jax.jit(lambda: em.init(random.key(1), data, layers=(4, 3)))())
    update = jax.jit(lambda state: em.update(state, data, layers=(4, 3))[0])
    first = jax.device_get(update(start))
    second = jax.device_get(update(first))
    third = jax.device_get(update(second))
    changed = lambda a, b, name: bool((a.params[name] != b.params[name]).any())  # noqa: E731
    assert changed(start, first, "weights_1")
    assert changed(start, first, "leak_1")
    assert not changed(start, first, "weights_2")
    assert not first.bits[:, :3].any()  # the top comes first in the program: it is closed
    assert changed(first, second, "weights_2")
    assert not changed(first, second, "weights_1")
    assert changed(second, third, "weights_1")  # fine-tuning
    assert changed(second, third, "weights_2")


def test_stability_opens_the_next_layer_and_frees_units_one_by_one():
    data = line_data()
    em = GibbsEM(noisy_or_network, schedule="stability", stable_below=0.05, max_sweeps=2)
    state = jax.jit(lambda: em.init(random.key(1), data, layers=(4, 3)))()
    assert int(state.level) == 1
    layered = em.open((data,), {"layers": (4, 3)})
    phase_after = jax.jit(lambda x: em._phase(layered, state._replace(changed=x)))
    level, phase = phase_after(np.full(7, 0.2, np.float32))
    assert int(level) == 1
    assert not phase.open_sites["layer_2"]
    # The four units of the lower layer come last; one of them still changes, but their mean is low.
    level, phase = phase_after(np.array([0.2, 0.2, 0.2, 0.0, 0.0, 0.0, 0.1], np.float32))
    assert int(level) == 2
    assert phase.open_sites["layer_2"]
    np.testing.assert_array_equal(
        phase.learn.weights["layer_2", "layer_1"], [True, True, True, False]
    )


def test_a_block_that_overlaps_counts_its_rows_once():
    """Blocks of 40 on 60 rows are blocks of 40 and of 20: the last one must not count 40."""
    em = GibbsEM(noisy_or_network, block_size=40, max_sweeps=1, learn_from="block", max_states=1)
    whole = GibbsEM(noisy_or_network, block_size=60, max_sweeps=1)
    sizes = {**ONE_LAYER, "prior_leak": dist.Gamma(1.0, 1e-6)}
    state = jax.device_get(jax.jit(lambda: em.init(random.key(0), THREE, **sizes))())
    # All units are on, whatever is drawn, and no prior says otherwise after the first block.
    sure = {**state.params, "leak_1": np.full(3, 30.0, np.float32)}
    state = state._replace(params=sure)
    for method, blocks in ((em, (slice(0, 40), slice(40, 60))), (whole, (slice(0, 60),))):
        new, _ = jax.jit(lambda x, method=method: method.update(x, THREE, **sizes))(state)
        weights, leak = (np.asarray(sure[name], float) for name in ("weights_1", "leak_0"))
        for rows in blocks:
            part = np.asarray(THREE)[rows]
            on = np.ones((len(part), 3))
            weights, leak = (
                oracle.noisy_or_weight_update(on, part, weights, leak, 1.0, 1.5),
                oracle.noisy_or_leak_update(on, part, weights, leak, 1.0, 1e-6),
            )
        np.testing.assert_allclose(new.params["weights_1"], weights, rtol=2e-5, atol=1e-6)


def test_posterior_means_lie_within_their_errors():
    em = GibbsEM(noisy_or_network)

    @jax.jit
    def compute(params):
        few = jnp.asarray(DATA[:5])
        return em.posterior(params, few, num_chains=16, num_sweeps=200, layers=(3, 2))

    posterior = compute(typed(PARAMS))
    states = oracle.joint_states(layer_2=2, layer_1=3)
    log_joint = oracle.log_joint_noisy_or_network
    table = oracle.log_joint_table(log_joint, PARAMS, states, DATA[:5])
    joined = np.concatenate([states["layer_2"], states["layer_1"]], axis=1)
    mean = oracle.posterior_mean(oracle.posterior_table(table), joined)
    # 25 means, 15 degrees
    assert (np.abs(posterior.mean - mean) < 4.5 * posterior.error + 1e-3).all()
    np.testing.assert_array_equal(posterior.best, joined[table.argmax(0)])
    np.testing.assert_allclose(posterior.log_joint, table.max(0), rtol=1e-5)


def tied(data):
    """The same weights twice: (9) is for weights that are each by themselves."""
    weights = numpyro.sample("weights", dist.Gamma(1.0, 1.0).expand((3, data.shape[1])).to_event(2))
    with numpyro.plate("data", len(data)):
        a = numpyro.sample("a", NoisyOr(jnp.full(3, 0.5)).to_event(1))
        b = numpyro.sample("b", NoisyOr(jnp.full(3, 0.5)).to_event(1))
        numpyro.sample("observed", NoisyOr(0.1 + (a + b) @ weights).to_event(1), obs=data)


def test_refusals_say_what_to_use_instead():
    data = jnp.asarray(DATA)
    with pytest.raises(ProgramError, match=r"weights.*use EM"):
        GibbsEM(tied).init(random.key(0), data)
    with pytest.raises(ProgramError, match="not a noisy-OR network"):
        GibbsEM(binary_sparse_coding).init(random.key(0), data, num_causes=2)
    with pytest.raises(ValueError, match="schedule"):
        GibbsEM(noisy_or_network, schedule="all")
    with pytest.raises(ValueError, match=r"weights_1.*shape"):
        GibbsEM(noisy_or_network).init(
            random.key(0), data, layers=(2,), init_params={"weights_1": jnp.ones((3, 3))}
        )
    anatomy = inspect(binary_sparse_coding, (data,), {"num_causes": 2})
    assert "noisy-OR" in GibbsEM.admits(anatomy)
