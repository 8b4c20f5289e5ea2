"""Latent counts against sums far beyond the list: N-mixtures, survivors, and what is left out."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer.util import log_density
from scipy import special, stats
from tools import close, fast_jit, in_double, near

from inference import (
    EM,
    LatentGibbs,
    ProgramError,
    Structure,
    latent_posterior,
    left_out,
    log_likelihood,
    marginal,
    up_to,
)

SEEN = np.array([[2, 0, 3], [1, 1, 0], [0, 0, 0], [5, 7, 4]])
PARAMS = {"rate": jnp.array(6.0), "detected": jnp.array(0.4)}


def n_mixture(seen):
    """Animals at each site, counted on three visits (Royle 2004)."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.3))
    detected = numpyro.sample("detected", dist.Beta(1.0, 1.0))
    with numpyro.plate("sites", len(seen)):
        number = numpyro.sample("number", dist.Poisson(rate))
        visits = dist.Binomial(number[..., None], detected).to_event(1)
        numpyro.sample("seen", visits, obs=seen)


def joint(most):
    """log p(n, y) of every site for n = 0, ..., most, as SciPy has them: (most + 1, sites)."""
    counts = np.arange(most + 1)
    table = stats.poisson.logpmf(counts, 6.0)[:, None] * np.ones(len(SEEN))
    for visit in range(SEEN.shape[1]):
        table = table + stats.binom.logpmf(SEEN[:, visit], counts[:, None], 0.4)
    return table


def log_sum(table):
    return np.log(np.exp(table).sum(0))


def test_an_n_mixture_is_summed_beyond_its_data():
    """Value, gradient by differences, and the posterior of the counts."""
    value = lambda p: log_density(marginal(n_mixture), (SEEN,), {}, p)[0]  # noqa: E731
    total, slopes = fast_jit(jax.value_and_grad(value))(PARAMS)
    prior = dist.Gamma(2.0, 0.3).log_prob(6.0)
    near(total, log_sum(joint(600)).sum() + prior)
    # By Fisher's identity: Σ E[n | y] / rate − 1, and the prior's own slope.
    weight = np.exp(joint(600) - log_sum(joint(600)))
    mean = np.arange(601) @ weight
    near(slopes["rate"], (mean / 6.0 - 1.0).sum() + 1.0 / 6.0 - 0.3)
    seen = mean.sum()
    slope = SEEN.sum() / 0.4 - (3 * seen - SEEN.sum()) / 0.6
    near(slopes["detected"], slope, 1e-4)
    posterior = latent_posterior(random.key(0), n_mixture, PARAMS, jnp.asarray(SEEN), batch_ndims=0)
    near(posterior.probabilities["number"][:, :50], weight[:50].T, 1e-4)
    np.testing.assert_array_equal(posterior.best["number"], weight.argmax(0))


@in_double
def test_double_precision_reaches_the_densities_of_counts():
    """Under x64 every digit is SciPy's: `gammaln` has the precision of its argument's type."""
    rate = 300.0
    seen = np.array([[2, 0, 3], [31, 28, 40]])
    counts = np.arange(1001)
    logs = stats.poisson.logpmf(counts, rate)[:, None] * np.ones(2)
    for visit in range(3):
        logs = logs + stats.binom.logpmf(seen[:, visit], counts[:, None], 0.1)
    params = {"rate": jnp.array(rate), "detected": jnp.array(0.1)}
    wanted = special.logsumexp(logs, axis=0)
    program, data = up_to(n_mixture, 1000), jnp.asarray(seen)
    density = lambda p: log_density(marginal(program), (data,), {}, p)[0]  # noqa: E731
    prior = stats.gamma.logpdf(rate, 2.0, scale=1 / 0.3)
    close(fast_jit(density)(params) - prior, wanted.sum(), 1e-12)
    close(log_likelihood(program, params, data).value, wanted, 1e-12)
    close(EM(program).posterior(params, data).evidence, wanted, 1e-12)
    posterior = latent_posterior(random.key(0), program, params, data, batch_ndims=0)
    close(posterior.probabilities["number"], special.softmax(logs, axis=0).T, 1e-12)
    assert posterior.draws["number"].dtype == dist.Poisson(1.0).sample(random.key(0)).dtype


def test_a_short_list_is_a_lower_bound_that_says_what_it_misses():
    program = up_to(n_mixture, 12)
    with pytest.warns(UserWarning, match="'number' reaches its last count, 12"):
        evidence = log_likelihood(program, PARAMS, jnp.asarray(SEEN)).value
        near(evidence, log_sum(joint(12)))
        jax.effects_barrier()
    missed = left_out(program, PARAMS, jnp.asarray(SEEN))["number"]
    near(missed, np.full(4, stats.poisson.sf(12, 6.0)))
    # What is left out of the evidence is no more than that.
    assert (np.exp(log_sum(joint(600))) - np.exp(log_sum(joint(12))) <= missed).all()
    with pytest.warns(UserWarning, match="reaches its last count, 12"):
        latent_posterior(random.key(0), program, PARAMS, jnp.asarray(SEEN), batch_ndims=0)


def test_em_wants_to_be_told_how_far_to_count():
    with pytest.raises(ProgramError, match=r"'number'.*up_to\(model, most\)"):
        EM(n_mixture).init(random.key(0), jnp.asarray(SEEN))
    em = EM(up_to(n_mixture, 40), structure=Structure.GENERAL)
    state = em.init(random.key(0), jnp.asarray(SEEN), init_params=PARAMS)
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
    value = fast_jit(lambda y: log_density(marginal(short), (y, jnp.asarray(second)), {}, {})[0])
    near(value(jnp.asarray(first)), sum(wanted))
    missed = left_out(short, {}, jnp.asarray(first), jnp.asarray(second))
    assert float(missed["alive"].max()) < 1e-6


def test_gibbs_names_what_lists_a_count():
    with pytest.raises(ProgramError, match=r"'number' counts without bound: .* up_to"):
        LatentGibbs(n_mixture).init(random.key(0), 0, None, (SEEN,), {})
