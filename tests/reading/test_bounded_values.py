"""Discrete latents whose values lie between two bounds, against loops over exactly those values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import check, every
from jax import random
from numpyro.contrib.control_flow import scan
from numpyro.handlers import condition
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import optimize, special, stats
from tools import assert_rate, near, sample

from inference import (
    EM,
    Given,
    LatentGibbs,
    ProgramError,
    QuadratureEM,
    latent_posterior,
    log_likelihood,
    marginal,
    recover,
    up_to,
)
from inference.reading.elimination import Elements, Graph
from inference.reading.strategy import find_elimination

SEEN = np.array([-1.3, 0.4, 2.8, 40.0])


def steps(low, high):
    def program(seen):
        scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", len(seen)):
            step = numpyro.sample("step", dist.DiscreteUniform(low, high))
            numpyro.sample("seen", dist.Normal(step, scale), obs=seen)

    return program


def joint(low, high, scale=1.5, seen=SEEN):
    """The values of each row, and log p(value, seen) of each of these."""
    low, high = (np.broadcast_to(x, seen.shape) for x in (low, high))
    values = [np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]
    logs = [
        stats.norm.logpdf(y, k, scale) - np.log(len(k)) for y, k in zip(seen, values, strict=True)
    ]
    return values, logs


def evidence(*bounds, **more):
    return np.array([special.logsumexp(x) for x in joint(*bounds, **more)[1]])


PARAMS = {"scale": jnp.array(1.5)}
BOUNDS = {
    "negative": (-3, 3),
    "two": (1, 2),
    "far above the data": (1, 500),
    "far below the data": (-900, -850),
    "NumPy's": (np.full(4, -3), np.array(3)),
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_every_value_between_the_bounds_is_listed_and_no_other(bounds):
    program, seen = steps(*bounds), jnp.asarray(SEEN)
    density = lambda p: log_density(marginal(program), (seen,), {}, p)[0]  # noqa: E731
    near(jax.jit(density)(PARAMS), evidence(*bounds).sum() + stats.gamma.logpdf(1.5, 2.0))
    near(log_likelihood(program, PARAMS, seen).value, evidence(*bounds))
    values, logs = joint(*bounds)
    weight = np.array(list(map(special.softmax, logs)))
    best = [k[x.argmax()] for k, x in zip(values, logs, strict=True)]
    posterior = latent_posterior(random.key(0), program, PARAMS, seen, batch_ndims=0)
    near(posterior.probabilities["step"], weight)
    np.testing.assert_array_equal(posterior.best["step"], best)
    of_em = EM(program).posterior(PARAMS, seen)
    near(of_em.probabilities["step"], weight)
    mean = (weight * values).sum(1)
    near(of_em.mean[:, 0], mean)
    np.testing.assert_array_equal(of_em.best[:, 0], best)
    draw = Predictive(recover(program), {"scale": jnp.full(400, 1.5)}, parallel=True)
    draws = np.asarray(jax.jit(lambda key: draw(key, seen)["step"])(random.key(1)))
    error = np.sqrt((weight * (values - mean[:, None]) ** 2).sum(1) / 400)
    assert (np.abs(draws.mean(0) - mean) <= 5 * error).all()
    assert (draws >= np.min(values)).all() and (draws <= np.max(values)).all()


def test_rows_may_have_bounds_of_their_own():
    low, high = np.array([-3, 0, 2, 30]), np.array([3, 0, 9, 60])
    program, seen = steps(low, high), jnp.asarray(SEEN)
    density = lambda p: log_density(marginal(program), (seen,), {}, p)[0]  # noqa: E731
    value, slope = jax.jit(jax.value_and_grad(density))(PARAMS)
    near(value, evidence(low, high).sum() + stats.gamma.logpdf(1.5, 2.0))
    assert jnp.isfinite(slope["scale"])
    with pytest.raises(ProgramError, match=r"different bounds: up_to\(model, most\)"):
        EM(program).init(random.key(0), seen)
    near(EM(up_to(program, 60)).posterior(PARAMS, seen).evidence, evidence(low, high))


def test_trials_of_a_binomial_that_differ_between_rows():
    trials, success = np.array([3, 8, 1]), np.array([0.2, 5.1, 0.4])

    def program(seen):
        with numpyro.plate("rows", len(seen)):
            number = numpyro.sample("number", dist.Binomial(trials, 0.4))
            numpyro.sample("seen", dist.Normal(number, 1.0), obs=seen)

    wanted = 0.0
    for y, n in zip(success, trials, strict=True):
        k = np.arange(n + 1)
        wanted += np.log((stats.binom.pmf(k, n, 0.4) * stats.norm.pdf(y, k)).sum())
    near(jax.jit(lambda y: log_density(marginal(program), (y,), {}, {})[0])(success), wanted)


def test_bounds_that_the_program_computes_are_refused():
    program = steps(jnp.array(-3), 3)  # known: it is no step of the program

    def computed(seen):
        with numpyro.plate("rows", len(seen)):
            step = numpyro.sample("step", dist.DiscreteUniform(jnp.floor(seen.min()), 3))
            numpyro.sample("seen", dist.Normal(step, 1.0), obs=seen)

    near(log_likelihood(program, PARAMS, jnp.asarray(SEEN)).value, evidence(-3, 3))
    for read in (marginal(computed), recover(computed, best=True)):
        with pytest.raises(ProgramError, match=r"'step'.*least value is not known.*NumPy"):
            jax.jit(lambda y, read=read: log_density(read, (y,), {}, {})[0])(jnp.asarray(SEEN))


def test_em_learns_beside_values_between_bounds():
    seen = np.random.default_rng(3).integers(-3, 4, 60) + 0.4 * RNG.normal(size=60)
    result = EM(steps(-3, 3)).run(
        random.key(0), 60, jnp.asarray(seen), init_params={"scale": 1.0}, progress_bar=False
    )
    loss = lambda scale: -evidence(-3, 3, scale=scale, seen=seen).sum()  # noqa: E731
    best = optimize.minimize_scalar(loss, bounds=(0.1, 1.5), method="bounded")
    near(result.losses[-1], best.fun)
    near(result.params["scale"], best.x, 1e-3)


def test_a_table_of_states_holds_values():
    states = Given(np.array([[-2], [3]]))
    logs = stats.norm.logpdf(SEEN, np.array([[-2], [3]]), 1.5) - np.log(7)
    posterior = EM(steps(-3, 3), states=states).posterior(PARAMS, jnp.asarray(SEEN))
    near(posterior.evidence, special.logsumexp(logs, axis=0))
    assert set(np.asarray(posterior.best).ravel().tolist()) == {-2, 3}


YEARS = np.arange(1851, 1963)
RNG = np.random.default_rng(0)
DISASTERS = RNG.poisson(np.where(YEARS < 1891, 3.1, 0.9))
RATES = {"early": jnp.array(3.0), "late": jnp.array(1.0)}


def change_point(years, disasters):
    early = numpyro.sample("early", dist.Gamma(2.0, 1.0))
    late = numpyro.sample("late", dist.Gamma(2.0, 1.0))
    change = numpyro.sample("change", dist.DiscreteUniform(1852, 1961))
    with numpyro.plate("years", len(years)):
        rate = jnp.where(years < change, early, late)
        numpyro.sample("disasters", dist.Poisson(rate), obs=disasters)


def test_a_change_point_in_calendar_years():
    """It is shared by all rows, so that it is summed along a graph."""
    assert isinstance(find_elimination(change_point, (YEARS, DISASTERS), {}), Graph)
    latents = {"change": ((), range(1852, 1962))}
    check(change_point, (YEARS, DISASTERS), RATES, latents)
    values, logs = every(change_point, (YEARS, DISASTERS), RATES, latents)
    kernel = LatentGibbs(condition(change_point, data=RATES))
    draws, _ = sample(kernel, 1, 1000, YEARS, DISASTERS)
    # A single latent is drawn anew at each step, whatever it was.
    for change in (1888, 1890, 1892):
        below = special.softmax(logs)[values["change"] <= change].sum()
        assert_rate((draws["change"] <= change).mean(), below, 1000)


def test_a_chain_of_levels_that_begin_at_one():
    """y_t follows a level and the one before it: all 3^5 paths."""
    seen = np.array([0.3, 1.9, -1.2, 0.4, 2.2])

    def program(seen):
        noise = numpyro.sample("noise", dist.Gamma(2.0, 2.0))

        def step(before, y):
            level = numpyro.sample("level", dist.DiscreteUniform(1, 3))
            numpyro.sample("y", dist.Normal(level - 0.5 * before, noise), obs=y)
            return level, None

        scan(step, jnp.array(2), seen)

    def total(noise):
        return special.logsumexp(logs(noise))

    def logs(noise):
        means = np.array(paths) - 0.5 * np.array([(2, *path[:-1]) for path in paths])
        return stats.norm.logpdf(seen, means, noise).sum(1) - 5 * np.log(3)

    paths = list(itertools.product((1, 2, 3), repeat=5))
    params = {"noise": jnp.array(0.8)}
    density = lambda p: log_density(marginal(program), (jnp.asarray(seen),), {}, p)[0]  # noqa: E731
    near(jax.jit(density)(params), total(0.8) + stats.gamma.logpdf(0.8, 2.0, scale=0.5))
    em = EM(program)
    posterior = em.posterior(params, jnp.asarray(seen))
    np.testing.assert_array_equal(posterior.best["level"], paths[logs(0.8).argmax()])
    weight = special.softmax(logs(0.8))
    wanted = [[weight @ (np.array(paths)[:, t] == v) for v in (1, 2, 3)] for t in range(5)]
    near(posterior.probabilities["level"], wanted)
    result = em.run(
        random.key(0), 60, jnp.asarray(seen), init_params={"noise": 1.0}, progress_bar=False
    )
    best = optimize.minimize_scalar(lambda x: -total(x), bounds=(0.05, 3.0), method="bounded")
    near(result.losses[-1], best.fun, 1e-4)


def test_elements_of_a_vector_between_bounds(monkeypatch):
    monkeypatch.setattr("inference.reading.strategy.MANY_STATES", 8)
    seen = jnp.asarray(RNG.normal(size=(2, 4)))

    def program(seen):
        with numpyro.plate("rows", len(seen)):
            sign = numpyro.sample("sign", dist.DiscreteUniform(-1, 1).expand([4]).to_event(1))
            numpyro.factor("pairs", 0.7 * (sign[..., 1:] * sign[..., :-1]).sum(-1))
            numpyro.sample("seen", dist.Normal(sign, 0.9).to_event(1), obs=seen)

    assert isinstance(find_elimination(program, (seen,), {}), Elements)
    check(program, (seen,), {}, {"sign": ((2, 4), (-1, 0, 1))})


def test_beside_a_continuous_latent():
    seen = np.array([[1, 0, 1], [0, 0, 1]])

    def program(seen):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(seen)):
            group = numpyro.sample("group", dist.DiscreteUniform(2, 4))
            trait = numpyro.sample("trait", dist.Normal(0.0, 1.0))
            logits = (slope * trait + 0.3 * (group - 3))[..., None] * jnp.ones(3)
            numpyro.sample("seen", dist.Bernoulli(logits=logits).to_event(1), obs=seen)

    traits = np.linspace(-9, 9, 4001)
    table = np.zeros((2, 3))
    for n, k in itertools.product(range(2), range(3)):
        p = special.expit(0.8 * traits + 0.3 * (k - 1))
        rows = np.prod([p if y else 1 - p for y in seen[n]], 0)
        table[n, k] = np.sum(rows * stats.norm.pdf(traits)) * (traits[1] - traits[0]) / 3
    posterior = QuadratureEM(program).posterior({"slope": jnp.array(0.8)}, jnp.asarray(seen))
    near(posterior.evidence, np.log(table.sum(1)), 1e-4)
    weight = table / table.sum(1, keepdims=True)
    near(posterior.probabilities["group"], weight, 1e-4)
    near(posterior.mean[:, 0], weight @ [2, 3, 4], 1e-4)
