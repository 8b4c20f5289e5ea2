"""Gibbs sampling of bits: against the paper's equations and the enumerated posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from numpyro.diagnostics import effective_sample_size
from numpyro.handlers import condition
from numpyro.infer import NUTS, HMCGibbs
from oracle.examples import network
from small_programs import CASES
from tools import sample

from inference import GradientFlips, LatentGibbs, ProgramError, inspect
from inference.methods.gibbs.flips import open_bits
from inference.methods.gibbs.informed import curvature
from inference.methods.gibbs.noisy_or import find_wiring, read_network, read_seen
from inference.methods.gibbs.noisy_or_steps import flip_probabilities
from inference.reading.arguments import rows_of
from ppl_models import bernoulli_mixture, binary_sparse_coding, latent_trait, noisy_or_network
from ppl_models.distributions import NoisyOr

# Monte Carlo: a mean of draws is within four of its standard errors, for a few dozen means.
STANDARD_ERRORS = 4.0

RNG = np.random.default_rng(11)
DATA = (RNG.random((3, 4)) < 0.5).astype(float)
MASK = RNG.random((3, 4)) < 0.8
PARAMS = network()  # 4 inputs, layers of 3 and 2
KWARGS = {"layers": (3, 2), "mask": jnp.asarray(MASK)}


def typed(params):
    return {name: jnp.asarray(value, float) for name, value in params.items()}


def renamed(table, *, width):
    """A network under other names, with causes that reach past the middle layer."""
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0).expand((2,)).to_event(1))
    down = numpyro.sample("down", dist.Gamma(1.0, 1.0).expand((2, width)).to_event(2))
    skip = numpyro.sample("skip", dist.Gamma(1.0, 1.0).expand((2, table.shape[1])).to_event(2))
    low = numpyro.sample("low", dist.Gamma(1.0, 1.0).expand((width, table.shape[1])).to_event(2))
    with numpyro.plate("people", len(table)):
        top = numpyro.sample("top", NoisyOr(rate).to_event(1))
        middle = numpyro.sample("middle", NoisyOr(0.2 + top @ down).to_event(1))
        numpyro.sample("seen", NoisyOr(0.1 + middle @ low + top @ skip).to_event(1), obs=table)


def crossed(table, *, width):
    """Noisy-OR units whose causes multiply: not a network."""
    low = numpyro.sample("low", dist.Gamma(1.0, 1.0).expand((width, table.shape[1])).to_event(2))
    with numpyro.plate("people", len(table)):
        top = numpyro.sample("top", NoisyOr(jnp.full(width, 0.5)).to_event(1))
        both = top * jnp.roll(top, 1, axis=-1)
        numpyro.sample("seen", NoisyOr(0.1 + both @ low).to_event(1), obs=table)


def by_row(table, leak, *, width):
    """Noisy-OR units whose leak differs from row to row."""
    low = numpyro.sample("low", dist.Gamma(1.0, 1.0).expand((width, table.shape[1])).to_event(2))
    with numpyro.plate("people", len(table)):
        top = numpyro.sample("top", NoisyOr(jnp.full(width, 0.5)).to_event(1))
        numpyro.sample("seen", NoisyOr(leak[:, None] + top @ low).to_event(1), obs=table)


def wiring_of(model, *args, **kwargs):
    anatomy = inspect(model, args, kwargs)
    return find_wiring(model, anatomy, rows_of(anatomy, args, kwargs))


def test_a_network_is_known_by_its_form_and_not_by_its_name():
    data = jnp.asarray(DATA)
    wiring = wiring_of(noisy_or_network, data, **KWARGS)
    assert wiring.hidden == ("layer_2", "layer_1")
    assert wiring.edges == (("layer_2", "layer_1"), ("layer_1", "observed"))
    assert set(wiring_of(renamed, data, width=3).edges) == {
        ("top", "middle"),
        ("top", "seen"),
        ("middle", "seen"),
    }
    assert wiring_of(crossed, data, width=3) is None
    assert wiring_of(by_row, data, jnp.array([0.1, 0.5, 0.9]), width=3) is None
    assert wiring_of(binary_sparse_coding, data, num_causes=3) is None


def test_what_is_read_are_the_parameters_and_flips_are_equations_six_and_seven():
    rng = np.random.default_rng(0)
    bits = {f"layer_{i}": (rng.random((3, n)) < 0.5).astype(float) for i, n in ((1, 3), (2, 2))}
    arguments = ((jnp.asarray(DATA),), KWARGS)
    anatomy = inspect(noisy_or_network, *arguments)
    wiring = wiring_of(noisy_or_network, *arguments[0], **arguments[1])

    @jax.jit
    def compute(params, bits):
        read = read_network(noisy_or_network, anatomy, wiring, params, arguments)
        seen = read_seen(noisy_or_network, anatomy, arguments)
        return read, seen["observed"].mask, flip_probabilities(wiring, read, bits, seen)

    read, mask, probs = compute(typed(PARAMS), bits)
    np.testing.assert_allclose(read.weights["layer_2", "layer_1"], PARAMS["weights_2"], rtol=1e-6)
    np.testing.assert_allclose(read.weights["layer_1", "observed"], PARAMS["weights_1"], rtol=1e-6)
    np.testing.assert_allclose(read.leak["layer_2"], PARAMS["leak_2"], rtol=1e-6)
    np.testing.assert_allclose(read.leak["observed"], PARAMS["leak_0"], rtol=1e-6)
    np.testing.assert_array_equal(mask, MASK)
    for layer, units in ((1, 3), (2, 2)):
        for unit in range(units):
            wanted = oracle.gibbs_flip_probability({**PARAMS, **bits}, DATA, layer, unit, MASK)
            # Log densities in float32.
            np.testing.assert_allclose(probs[f"layer_{layer}"][:, unit], wanted, atol=2e-6)


def posterior_moments(log_joint, params, sizes, data, mask=None):
    states = oracle.joint_states(**sizes)
    table = oracle.posterior_table(oracle.log_joint_table(log_joint, params, states, data, mask))
    joined = np.concatenate([states[name] for name in sizes], axis=1)
    mean = oracle.posterior_mean(table, joined)
    return mean, oracle.posterior_second_moments(table, joined)


def assert_draws_agree(draws, mean, second):
    """Means of bits and of pairs of bits (chains, draws, rows, bits), by their standard errors."""
    pairs = np.einsum("cdnh,cdnk->cdnhk", draws, draws)
    for drawn, wanted in ((draws, mean), (pairs, second)):
        flat = drawn.reshape(*drawn.shape[:2], -1).astype(float)
        deviation = flat.std((0, 1))
        moved = deviation > 0
        count = effective_sample_size(flat[:, :, moved])
        error = deviation[moved] / np.sqrt(count)
        gap = np.abs(flat.mean((0, 1)) - wanted.ravel())
        assert (gap[moved] < STANDARD_ERRORS * error + 1e-3).all()
        # A bit that was never seen to change is one that hardly ever does.
        assert (gap[~moved] < 0.01).all()


def test_draws_are_from_the_enumerated_posterior():
    """By the network; by readings of the program: `test_two_readings_per_bit_serve_any_program`."""
    kernel = LatentGibbs(condition(noisy_or_network, data=typed(PARAMS)), by_network=True)
    assert open_bits(kernel.model, (jnp.asarray(DATA),), KWARGS).wiring is not None
    samples, fields = sample(
        kernel, 50, 1000, jnp.asarray(DATA), num_chains=4, extra_fields=("log_joint",), **KWARGS
    )
    draws = np.concatenate([samples["layer_2"], samples["layer_1"]], axis=-1)
    sizes = {"layer_2": 2, "layer_1": 3}
    log_joint = oracle.log_joint_noisy_or_network
    assert_draws_agree(draws, *posterior_moments(log_joint, PARAMS, sizes, DATA, MASK))
    last = {name: value[0, -1] for name, value in samples.items()}
    wanted = log_joint({**PARAMS, **{k: np.asarray(v) for k, v in last.items()}}, DATA, MASK).sum()
    np.testing.assert_allclose(fields["log_joint"][0, -1], wanted, rtol=1e-5)


def test_two_readings_per_bit_serve_any_program():
    case = CASES["two_sites"]
    (data,), kwargs = case.arguments
    kernel = LatentGibbs(condition(case.model, data=case.typed()))
    samples, _ = sample(kernel, 50, 800, data, **kwargs)
    draws = np.concatenate([samples[site] for site in case.latents], axis=-1)
    params, mask = case.params, case.mask
    assert_draws_agree(
        draws, *posterior_moments(case.log_joint, params, case.latents, case.data, mask)
    )


@pytest.mark.parametrize(("name", "step_size"), [("noisy_or", None), ("sparse_coding", 2.0)])
def test_flips_by_the_gradient_are_from_the_enumerated_posterior(name, step_size):
    """One at a time where the log joint is not quadratic, any where it is: gains that are exact."""
    case = CASES[name]
    (data,), kwargs = case.arguments
    kernel = GradientFlips(condition(case.model, data=case.typed()), step_size=step_size)
    samples, fields = sample(
        kernel, 50, 1500, data, num_chains=2, extra_fields=("largest_flip",), **kwargs
    )
    (site,) = case.latents
    assert_draws_agree(
        samples[site], *posterior_moments(case.log_joint, case.params, case.latents, case.data)
    )
    assert fields["largest_flip"].max() <= 1.0
    program = kernel._open((data,), kwargs)
    bend = jax.jit(lambda: curvature(program, {}, (case.arguments), 1.0))()
    weights, noise = case.params.get("weights"), case.params.get("noise")
    wanted = 0.0 if name == "noisy_or" else -(np.asarray(weights) ** 2).sum(1) / noise**2
    np.testing.assert_allclose(bend, np.broadcast_to(wanted, 4), rtol=1e-5)


def rates(data):
    """One unknown parameter, three causes of which each pixel has one or two."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
    weights = jnp.array([[1.5, 0.4, 0.0], [0.0, 1.2, 0.8], [0.5, 0.0, 2.0]])
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", NoisyOr(jnp.broadcast_to(rate, (3,))).to_event(1))
        numpyro.sample("observed", NoisyOr(0.1 + on @ weights).to_event(1), obs=data)


RATES_DATA = jnp.asarray(np.random.default_rng(3).random((20, 3)) < 0.4, float)


def exact_rate():
    """The posterior mean of the rate, causes summed out: a loop over a fine grid."""
    grid = np.linspace(0.005, 6.0, 1200)
    weights = np.array([[1.5, 0.4, 0.0], [0.0, 1.2, 0.8], [0.5, 0.0, 2.0]])
    states = oracle.all_states(3)
    inputs = 0.1 + states @ weights
    data = np.asarray(RATES_DATA)
    likelihood = np.prod(np.where(data[:, None] == 1, -np.expm1(-inputs), np.exp(-inputs)), axis=-1)
    on = states.sum(1)
    log_posterior = [
        np.log(r) - 2.0 * r
        + np.log(likelihood @ ((-np.expm1(-r)) ** on * np.exp(-r) ** (3 - on))).sum()
        for r in grid
    ]  # fmt: skip
    share = np.exp(log_posterior - np.max(log_posterior))
    return (grid * share).sum() / share.sum()


def mean_and_error(draws):
    draws = np.asarray(draws)
    return draws.mean(), draws.std() / np.sqrt(effective_sample_size(draws))


def test_composes_with_nuts_in_hmc_gibbs():
    kernel = HMCGibbs(NUTS(rates), LatentGibbs(rates).gibbs_fn(RATES_DATA), gibbs_sites=["on"])
    samples, _ = sample(kernel, 300, 2000, RATES_DATA, key=2)
    mean, error = mean_and_error(samples["rate"])
    assert abs(mean - exact_rate()) < STANDARD_ERRORS * error


def test_is_a_block_of_numpyros_gibbs():
    kernel = numpyro.infer.Gibbs([(GradientFlips(rates), ["on"]), (NUTS(rates), None)])
    samples, _ = sample(kernel, 300, 2000, RATES_DATA, key=2)
    assert samples["on"].shape == (1, 2000, 20, 3)
    mean, error = mean_and_error(samples["rate"])
    assert abs(mean - exact_rate()) < STANDARD_ERRORS * error


LINES = {
    "weights_1": np.array([[4.0, 4.0, 0.0, 0.0], [0.0, 0.0, 4.0, 4.0], [4.0, 4.0, 4.0, 4.0]]),
    "leak_0": np.full(4, 0.01),
    "leak_1": np.array([0.3, 0.3, 0.05]),
}


def test_each_row_stops_by_the_papers_rule():
    kernel = LatentGibbs(noisy_or_network)
    data = jnp.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])

    def settle(**rule):
        run = lambda key: kernel.settle(key, LINES, data, layers=(3,), **rule)  # noqa: E731
        return jax.jit(run)(random.key(0))

    settled = settle(max_sweeps=50, stop_below=0.05)
    # Two rows have one explanation each; two lines or the square explain the third.
    assert (settled.largest_flip[:2] < 0.05).all()
    assert (settled.sweeps[:2] <= 5).all()
    np.testing.assert_array_equal(settled.bits[:2], [[1, 0, 0], [0, 0, 0]])
    once = settle(max_sweeps=1)
    assert (once.sweeps == 1).all()


def test_annealing_and_restarts_free_what_sticks():
    """From two lines the square, which is likelier than both, is reached only if it comes first."""
    data = jnp.ones((64, 4))
    params = {**LINES, "leak_1": jnp.array([0.02, 0.02, 0.05])}
    stuck = {"layer_1": jnp.tile(jnp.array([1, 1, 0]), (64, 1))}

    def share(**options):
        kernel = LatentGibbs(noisy_or_network, **options)
        run = lambda key: kernel.settle(  # noqa: E731
            key, params, data, init_params=stuck, layers=(3,), max_sweeps=3
        )
        bits = np.asarray(jax.jit(run)(random.key(0)).bits)
        return float((bits == [0, 0, 1]).all(1).mean())

    # The square comes on in one of twenty sweeps.
    assert share() < 0.5
    assert share(restarts=8, annealing=5) > 0.9


def test_refuses_what_it_cannot_sample():
    data = jnp.asarray(DATA)
    with pytest.raises(ProgramError, match=r"weights_1.*condition"):
        LatentGibbs(noisy_or_network).init(random.key(0), 0, None, (data,), {"layers": (2,)})
    with pytest.raises(ProgramError, match=r"factors.*not binary"):
        open_bits(latent_trait, (data,), {})
    with pytest.raises(ProgramError, match=r"component.*not binary"):
        open_bits(bernoulli_mixture, (data,), {"num_components": 3})
    with pytest.raises(ProgramError, match="use LatentGibbs"):
        kwargs = {"num_components": 3}
        GradientFlips(bernoulli_mixture).init(random.key(0), 0, None, (data,), kwargs)
    with pytest.raises(ValueError, match="step_size"):
        GradientFlips(noisy_or_network, step_size=0.0)
    with pytest.raises(ValueError, match="restarts"):
        LatentGibbs(noisy_or_network, restarts=0)
