"""Latent counts: sums against far longer ones, and what is said where a list is too short."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.util import log_density
from scipy import special, stats
from tools import close, in_double, near, sample

from inference import (
    EM,
    LatentGibbs,
    ProgramError,
    Structure,
    latent_posterior,
    left_out,
    log_likelihood,
    marginal,
    recover,
    up_to,
)
from inference.evaluation.diagnostics import mcse
from inference.reading.latent_counts import with_counts

RNG = np.random.default_rng(0)
VALUES = RNG.normal(RNG.poisson(150, 20), 20.0)
NUMBER = RNG.poisson(300, 40)
SEEN = RNG.binomial(NUMBER[:, None], 0.1, (40, 3))
REACHED = r"'number' reaches its last count, \d+.*up_to\(model, most\) with a larger most"
FEW = np.array([[2, 0, 3], [1, 1, 0], [0, 0, 0], [5, 7, 4]])
PARAMS = {"rate": jnp.array(6.0), "detected": jnp.array(0.4)}


def n_mixture(seen):
    """Animals at each site, counted on three visits (Royle 2004)."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.3))
    detected = numpyro.sample("detected", dist.Beta(1.0, 1.0))
    with numpyro.plate("sites", len(seen)):
        number = numpyro.sample("number", dist.Poisson(rate))
        visits = dist.Binomial(number[..., None], detected).to_event(1)
        numpyro.sample("seen", visits, obs=seen)


def noisy(values):
    """Counts in real noise: none of the data is whole."""
    rate = numpyro.sample("rate", dist.Gamma(1.0, 0.01))
    with numpyro.plate("rows", len(values)):
        number = numpyro.sample("number", dist.Poisson(rate))
        numpyro.sample("value", dist.Normal(number, 20.0), obs=values)


def detected(chance):
    def program(seen):
        """Animals of which few are seen, on three visits."""
        rate = numpyro.sample("rate", dist.Gamma(1.0, 0.003))
        share = numpyro.sample("share", dist.Beta(1.0, 1.0)) if chance is None else chance
        with numpyro.plate("sites", len(seen)):
            number = numpyro.sample("number", dist.Poisson(rate))
            visits = dist.Binomial(number[..., None], share).to_event(1)
            numpyro.sample("seen", visits, obs=seen)

    return program


def noisy_evidence(rate, most=2000):
    """log p(values) at a rate."""
    counts = np.arange(most + 1)
    logs = stats.poisson.logpmf(counts, rate)[:, None] + stats.norm.logpdf(
        VALUES, counts[:, None], 20.0
    )
    return special.logsumexp(logs, axis=0).sum()


def detected_logs(rate, most=10_000, seen=SEEN, chance=0.1):
    """log p(n, seen) of every site for n = 0, ..., most, as SciPy has them: (most + 1, sites)."""
    counts = np.arange(most + 1)
    logs = stats.poisson.logpmf(counts, rate)[:, None] * np.ones(len(seen))
    for visit in range(seen.shape[1]):
        logs = logs + stats.binom.logpmf(seen[:, visit], counts[:, None], chance)
    return logs


def few_evidence(most):
    return special.logsumexp(detected_logs(6.0, most, FEW, 0.4), axis=0)


def density(program, *args):
    return lambda params: log_density(program, args, {}, params)[0]


def test_an_n_mixture_is_summed_beyond_its_data():
    """Value, gradient by differences, and the posterior of the counts."""
    total, slopes = jax.jit(jax.value_and_grad(density(marginal(n_mixture), FEW)))(PARAMS)
    prior = dist.Gamma(2.0, 0.3).log_prob(6.0)
    near(total, few_evidence(600).sum() + prior)
    # By Fisher's identity: Σ E[n | y] / rate − 1, and the prior's own slope.
    weight = special.softmax(detected_logs(6.0, 600, FEW, 0.4), axis=0)
    mean = np.arange(601) @ weight
    near(slopes["rate"], (mean / 6.0 - 1.0).sum() + 1.0 / 6.0 - 0.3)
    seen = mean.sum()
    slope = FEW.sum() / 0.4 - (3 * seen - FEW.sum()) / 0.6
    near(slopes["detected"], slope, 1e-4)
    posterior = latent_posterior(random.key(0), n_mixture, PARAMS, jnp.asarray(FEW), batch_ndims=0)
    near(posterior.probabilities["number"][:, :50], weight[:50].T, 1e-4)
    np.testing.assert_array_equal(posterior.best["number"], weight.argmax(0))


@in_double
def test_double_precision_reaches_the_densities_of_counts():
    """Under x64 every digit is SciPy's: `gammaln` has the precision of its argument's type."""
    rate = 300.0
    seen = np.array([[2, 0, 3], [31, 28, 40]])
    logs = detected_logs(rate, 1000, seen)
    params = {"rate": jnp.array(rate), "detected": jnp.array(0.1)}
    wanted = special.logsumexp(logs, axis=0)
    program, data = up_to(n_mixture, 1000), jnp.asarray(seen)
    prior = stats.gamma.logpdf(rate, 2.0, scale=1 / 0.3)
    close(jax.jit(density(marginal(program), data))(params) - prior, wanted.sum(), 1e-12)
    close(log_likelihood(program, params, data).value, wanted, 1e-12)
    close(EM(program).posterior(params, data).evidence, wanted, 1e-12)
    posterior = latent_posterior(random.key(0), program, params, data, batch_ndims=0)
    close(posterior.probabilities["number"], special.softmax(logs, axis=0).T, 1e-12)
    assert posterior.draws["number"].dtype == dist.Poisson(1.0).sample(random.key(0)).dtype


def test_a_short_list_is_a_lower_bound_that_says_what_it_misses():
    program = up_to(n_mixture, 12)
    with pytest.warns(UserWarning, match="'number' reaches its last count, 12"):
        evidence = log_likelihood(program, PARAMS, jnp.asarray(FEW)).value
        near(evidence, few_evidence(12))
        jax.effects_barrier()
    missed = left_out(program, PARAMS, jnp.asarray(FEW))["number"]
    near(missed, np.full(4, stats.poisson.sf(12, 6.0)))
    # What is left out of the evidence is no more than that.
    assert (np.exp(few_evidence(600)) - np.exp(few_evidence(12)) <= missed).all()
    with pytest.warns(UserWarning, match="reaches its last count, 12"):
        latent_posterior(random.key(0), program, PARAMS, jnp.asarray(FEW), batch_ndims=0)


def test_em_wants_to_be_told_how_far_to_count():
    with pytest.raises(ProgramError, match=r"'number'.*up_to\(model, most\)"):
        EM(n_mixture).init(random.key(0), jnp.asarray(FEW))
    em = EM(up_to(n_mixture, 40), structure=Structure.GENERAL)
    state = em.init(random.key(0), jnp.asarray(FEW), init_params=PARAMS)
    assert set(em.get_params(state)) == {"rate", "detected"}


def test_a_count_that_depends_on_a_count():
    """Survivors of a second year: at most as many as there were."""

    def program(first, second):
        with numpyro.plate("sites", len(first)):
            number = numpyro.sample("number", dist.Poisson(3.0))
            alive = numpyro.sample("alive", dist.Binomial(number, 0.7))
            numpyro.sample("first", dist.Binomial(number, 0.5), obs=first)
            numpyro.sample("second", dist.Binomial(alive, 0.5), obs=second)

    first, second = np.array([1, 3]), np.array([2, 0])
    wanted = []
    for y1, y2 in zip(first, second, strict=True):
        total = 0.0
        for n in range(40):
            for m in range(n + 1):
                each = stats.poisson.pmf(n, 3.0) * stats.binom.pmf(m, n, 0.7)
                total += each * stats.binom.pmf(y1, n, 0.5) * stats.binom.pmf(y2, m, 0.5)
        wanted.append(np.log(total))
    short = up_to(program, 20)
    value = jax.jit(lambda y: log_density(marginal(short), (y, jnp.asarray(second)), {}, {})[0])
    near(value(jnp.asarray(first)), sum(wanted))
    missed = left_out(short, {}, jnp.asarray(first), jnp.asarray(second))
    assert float(missed["alive"].max()) < 1e-6


def test_gibbs_names_what_lists_a_count():
    with pytest.raises(ProgramError, match=r"'number' counts without bound: .* up_to"):
        LatentGibbs(n_mixture).init(random.key(0), 0, None, (FEW,), {})


def test_nuts_on_counts_in_real_noise():
    """The posterior mean of the rate is that of a fine grid."""
    rates = np.linspace(100.0, 220.0, 481)
    logs = np.array([noisy_evidence(x) for x in rates]) + stats.gamma.logpdf(rates, 1.0, scale=100)
    wanted = special.softmax(logs) @ rates
    draws, _ = sample(NUTS(marginal(noisy)), 100, 150, VALUES, num_chains=4)
    assert abs(draws["rate"].mean() - wanted) < 5 * mcse(draws["rate"])


@in_double
@pytest.mark.parametrize("chance", [0.1, None], ids=["known", "a parameter"])
def test_animals_of_which_a_tenth_is_seen(chance):
    params = {"rate": jnp.array(300.0), "share": jnp.array(0.1)}
    prior = stats.gamma.logpdf(300.0, 1.0, scale=1 / 0.003)  # that of the share is one
    value = jax.jit(density(marginal(detected(chance)), SEEN))(params)
    close(value, special.logsumexp(detected_logs(300.0), axis=0).sum() + prior, 1e-9)


FAR = {"rate": jnp.array(2000.0)}
WAYS = {
    "one by one": lambda function: function(FAR),
    "jit": lambda function: jax.jit(function)(FAR),
    "gradient": lambda function: jax.jit(jax.grad(function))(FAR)["rate"],
    "vmap": lambda function: jax.jit(jax.vmap(function))({"rate": jnp.array([2000.0, 2001.0])}),
    "map": lambda function: jax.lax.map(function, {"rate": jnp.array([2000.0, 2001.0])}),
}


@pytest.mark.filterwarnings("ignore:Out-of-support")  # NumPyro's own, one by one
@pytest.mark.parametrize("way", WAYS)
def test_a_density_says_that_its_list_is_too_short(way):
    program = marginal(detected(0.1))
    with pytest.warns(UserWarning, match=REACHED) as caught:
        jax.block_until_ready(WAYS[way](density(program, SEEN)))
        jax.effects_barrier()
    assert sum("last count" in str(x.message) for x in caught) == 1


def test_a_likelihood_says_so_each_time():
    for _ in range(2):
        with pytest.warns(UserWarning, match=REACHED):
            log_likelihood(up_to(detected(0.1), 500), FAR, jnp.asarray(SEEN))
            jax.effects_barrier()


def test_samplers_and_guides_say_so_too():
    short = marginal(up_to(noisy, 100))
    values = jnp.asarray(VALUES)
    with pytest.warns(UserWarning, match=REACHED):
        draws, _ = sample(NUTS(short), 100, 20, VALUES, num_chains=2)
        jax.effects_barrier()
    assert draws["rate"].mean() < 100.0  # as wrong as it says
    svi = SVI(short, AutoDelta(short), optax.adam(0.1), Trace_ELBO())
    with pytest.warns(UserWarning, match=REACHED):
        svi.run(random.key(0), 100, values, progress_bar=False)
        jax.effects_barrier()


def test_what_samplers_try_far_from_the_data_is_not_reported():
    """But parameters that are better than all before are."""
    program = jax.jit(density(marginal(detected(0.1)), SEEN))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate in (300.0, 310.0, 2000.0):
            program({"rate": rate}).block_until_ready()
    short = jax.jit(density(marginal(up_to(detected(0.1), 250)), SEEN))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short({"rate": 20.0}).block_until_ready()
    with pytest.warns(UserWarning, match=REACHED):
        short({"rate": 250.0}).block_until_ready()
        jax.effects_barrier()


@in_double
def test_the_posterior_of_counts_lengthens_its_list():
    rate = {"rate": jnp.array(2000.0)}
    posterior = latent_posterior(random.key(0), detected(0.1), rate, SEEN, batch_ndims=0)
    found = np.asarray(posterior.probabilities["number"])
    wanted = special.softmax(detected_logs(2000.0), axis=0)[: found.shape[1]].T
    close(found, wanted)
    np.testing.assert_array_equal(posterior.best["number"], wanted.argmax(1))


def test_draws_of_counts_say_that_their_list_is_too_short():
    draw = Predictive(recover(detected(0.1)), {"rate": jnp.full(3, 2000.0)})
    with pytest.warns(UserWarning, match=REACHED):
        jax.block_until_ready(jax.jit(lambda key: draw(key, SEEN))(random.key(0)))
        jax.effects_barrier()


def test_em_ends_with_a_word_about_its_list():
    em = EM(up_to(noisy, 100))
    with pytest.warns(UserWarning, match=REACHED):
        em.run(
            random.key(0), 3, jnp.asarray(VALUES), init_params={"rate": 90.0}, progress_bar=False
        )


def test_a_population_that_all_visits_share():
    """It is summed along a graph."""
    seen = np.array([31, 28, 40])

    def program(seen):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 0.003))
        number = numpyro.sample("number", dist.Poisson(rate))
        with numpyro.plate("visits", len(seen)):
            numpyro.sample("seen", dist.Binomial(number, 0.1), obs=seen)

    run = jax.jit(density(marginal(program), seen))
    wanted = special.logsumexp(detected_logs(300.0, seen=seen[None]))
    near(run({"rate": 300.0}), wanted + stats.gamma.logpdf(300.0, 1.0, scale=1 / 0.003))
    with pytest.warns(UserWarning, match=REACHED):
        jax.jit(density(marginal(program), seen))(FAR).block_until_ready()
        jax.effects_barrier()


@in_double
def test_lists_that_are_too_long_for_all_rows_at_once(monkeypatch):
    """The program then runs on a chunk of rows; a distribution of one column serves three."""
    for module in ("strategy", "marginal", "state_sums"):
        monkeypatch.setattr(f"inference.reading.{module}.product_floats", lambda: 10_000)
    run = jax.jit(density(marginal(detected(0.1)), jnp.asarray(SEEN)))
    wanted = special.logsumexp(detected_logs(300.0), axis=0).sum()
    close(run({"rate": 300.0}), wanted + stats.gamma.logpdf(300.0, 1.0, scale=1 / 0.003))
    with pytest.warns(UserWarning, match=REACHED):
        run = jax.jit(density(marginal(detected(0.1)), jnp.asarray(SEEN)))
        run({"rate": 2000.0}).block_until_ready()
        jax.effects_barrier()


def test_one_element_at_the_end_of_its_list_is_enough():
    def program(seen):
        with numpyro.plate("rows", len(seen)):
            number = numpyro.sample("number", dist.Poisson(jnp.array([2.0, 30.0])).to_event(1))
            numpyro.sample("seen", dist.Normal(number, 3.0).to_event(1), obs=seen)

    seen = jnp.array([[1.3, 31.0], [2.2, 25.0]])
    with pytest.warns(UserWarning, match=REACHED):
        jax.jit(lambda: density(marginal(up_to(program, 32)), seen)({}))().block_until_ready()
        jax.effects_barrier()


def length(program, *args):
    return with_counts(program, args, {}).most


def test_the_length_of_a_list_follows_the_data_and_what_is_seen_of_a_count():
    assert length(noisy, VALUES) == int(VALUES.max()) + 100
    for chance in (0.1, 0.5):
        assert length(detected(chance), SEEN) == pytest.approx(SEEN.max() / chance + 100, abs=1)
    # Where the share is a parameter, that of the corner where a sampler may start.
    corner = special.expit(-2.0)
    assert length(detected(None), SEEN) == pytest.approx(SEEN.max() / corner + 100, abs=1)

    def beside(seen, area):
        numpyro.sample("area", dist.Normal(0.0, 1e5), obs=area)
        detected(0.1)(seen)

    assert length(beside, SEEN, 12_345.6) == length(detected(0.1), SEEN)
    with pytest.raises(ProgramError, match=r"'number'.*as large as 20000.*up_to\(model, most\)"):
        length(noisy, jnp.array([2e4]))


def test_two_counts_together_are_not_more_than_can_be_summed():
    def program(seen):
        with numpyro.plate("rows", len(seen)):
            first = numpyro.sample("first", dist.Poisson(20.0))
            second = numpyro.sample("second", dist.Poisson(30.0))
            numpyro.sample("seen", dist.Binomial(first + second, 0.1), obs=seen)

    seen = np.array([4, 60])
    assert (1 + length(program, seen)) ** 2 <= 1 << 16
    # The sum of two Poisson counts is one, and so is what is seen of it.
    value = jax.jit(lambda y: density(marginal(program), y)({}))
    with pytest.raises(ProgramError, match="not known yet"):
        value(seen)
    value = jax.jit(lambda: density(marginal(program), seen)({}))
    near(value(), stats.poisson.logpmf(seen, 5.0).sum(), 1e-4)
