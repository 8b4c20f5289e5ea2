"""Refusals that send one on: each piece of advice is run."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import density, every, somewhere
from jax import random
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, DiscreteHMCGibbs
from tools import near
from zoo_programs import ZOO

from inference import EM, ProgramError, QuadratureEM, marginal, up_to

Y = np.array([-0.4, 1.2, 0.3, 2.1])


def sampled(kernel, *args):
    """A few draws."""
    mcmc = MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    mcmc.run(random.key(0), *args)
    return mcmc.get_samples()


def test_a_change_point():
    entry = ZOO["change_point"]
    with pytest.raises(ProgramError) as refusal:
        EM(entry.program).run(random.key(0), 2, *entry.args)
    for words in ("NUTS(marginal(model))", "DiscreteHMCGibbs(NUTS(model))",
                  "condition(model, {'change': value})"):  # fmt: skip
        assert words in str(refusal.value)
    assert set(sampled(NUTS(marginal(entry.program)), *entry.args)) == {"early", "late"}
    assert "change" in sampled(DiscreteHMCGibbs(NUTS(entry.program)), *entry.args)
    fixed = handlers.condition(entry.program, {"change": jnp.array(2)})
    assert set(sampled(NUTS(fixed), *entry.args)) == {"early", "late"}


def test_spike_and_slab():
    entry = ZOO["spike_and_slab"]
    with pytest.raises(ProgramError, match=r"NUTS\(marginal\(model\)\) samples the others"):
        EM(entry.program).run(random.key(0), 2, *entry.args)
    assert set(sampled(NUTS(marginal(entry.program)), *entry.args)) == {"noise", "size"}


def test_a_program_without_parameters():
    """The advice gives the posterior that BUGS prints for Asia, from draws."""
    entry = ZOO["asia"]
    with pytest.raises(ProgramError, match=r"EM\(model\).posterior\(\{\}, data\)"):
        EM(entry.program).run(random.key(0), 2, *entry.args)
    found = EM(entry.program).posterior({}, *entry.args)
    near(found.evidence, density(entry.program, entry.args, {}))
    printed = {"bronchitis": 0.811, "cancer": 0.101, "smoking": 0.628, "tuberculosis": 0.089,
               "xray": 0.223}  # fmt: skip
    for name, probability in printed.items():
        near(found.probabilities[name][1], probability, 5e-3)

    def program(y):
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ProgramError, match="no parameters to learn"):
        EM(program).run(random.key(0), 2, Y)


def test_continuous_latents_of_rows():
    def program(y):
        share = numpyro.sample("share", dist.Beta(2.0, 2.0))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(share))
            x = numpyro.sample("x", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(x + z, 0.5), obs=y)

    with pytest.raises(ProgramError, match=r"QuadratureEM\(model\) integrates"):
        EM(program).run(random.key(0), 2, Y)
    result = QuadratureEM(program).run(random.key(0), 3, Y)
    assert np.isfinite(result.losses).all()


def test_a_python_if():
    def program(y, choose):
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(choose(z), 1.0), obs=y)

    args = Y[:1], lambda z: 2.0 if z == 1 else -1.0
    with pytest.raises(ProgramError, match=r"jnp.where\(z == 1, a, b\)"):
        jax.jit(lambda: marginal(program)(*args))()
    args = Y, lambda z: jnp.where(z == 1, 2.0, -1.0)
    near(density(program, args, {}), logsumexp(every(program, args, {}, {"z": ((4,), 2)})[1]))


def test_more_combinations_than_the_limit(monkeypatch):
    def program(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        a, b = (numpyro.sample(x, dist.Poisson(rate)) for x in "ab")
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(a + 0.5 * b, 1.0), obs=y)

    params = {"rate": jnp.array(1.3)}
    monkeypatch.setattr("inference.reading.survey.MOST_RUNS", 150)
    with pytest.raises(ProgramError) as refusal:
        density(up_to(program, 14), (Y,), params)
    assert "up_to(model, 11)" in str(refusal.value)
    assert "latentbits.inference.reading.survey.MOST_RUNS = 225" in str(refusal.value)
    wanted = every(program, (Y,), params, {"a": ((), 15), "b": ((), 15)})[1]
    near(density(up_to(program, 11), (Y,), params), logsumexp(wanted), 1e-3)
    monkeypatch.setattr("inference.reading.survey.MOST_RUNS", 225)
    near(density(up_to(program, 14), (Y,), params), logsumexp(wanted))


def test_a_map_over_rows():
    """`jax.vmap` in the body takes no axis of states: it is summed as it is written."""

    def program(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            mean = jax.vmap(lambda z, y: loc[z] + 0.1 * y)(z, jnp.arange(len(y)))
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    params = {"loc": jnp.array([-0.5, 1.5])}
    wanted = logsumexp(every(program, (Y,), params, {"z": ((4,), 2)})[1])
    near(density(program, (Y,), params), wanted)
    em = EM(program, prior=True, search=None)
    near(-em.run(random.key(0), 1, Y, init_params=params).losses[0], wanted)


ONCE_REFUSED = (
    "occupancy_covariates", "block_model", "ragged_groups", "dina_long", "semi_supervised_hmm",
)  # fmt: skip


@pytest.mark.parametrize("name", ONCE_REFUSED)
def test_em_on_programs_that_it_once_refused(name):
    """Visits × sites, latents of several plates, of none: the loss is that of all states."""
    entry = ZOO[name]
    params, states = somewhere(entry.program, entry.args)
    em = EM(entry.program, prior=True, search=None)
    result = em.run(random.key(0), 3, *entry.args, init_params=params)
    wanted = logsumexp(every(entry.program, entry.args, params, states)[1])
    near(-result.losses[0], wanted)
    assert (np.diff(result.losses) < 1e-4).all()
