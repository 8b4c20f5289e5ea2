"""Factors and observations outside the data plate: counted, or refused by name."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density
from scipy import stats
from tools import near

from inference import (
    EM,
    AtMost,
    BoundEM,
    ContrastiveDivergence,
    ExactGradient,
    GibbsEM,
    ProgramError,
    QuadratureEM,
    StepwiseEM,
    TruncatedEM,
    log_likelihood,
    marginal,
    recover,
    standard_errors,
)
from inference.methods.discrete.updates import MixtureUpdate
from ppl_models import (
    bernoulli_mixture,
    combination_machine,
    latent_trait,
    noisy_or_network,
)

REAL = np.random.default_rng(0).normal(size=40) * 1.5
BITS = (np.random.default_rng(1).random((30, 4)) < np.array([0.9, 0.2, 0.6, 0.4])).astype(float)
CALIBRATION = np.array([1.2, 0.9, 1.4])


def log_normal(x, mean, scale=1.0):
    return -0.5 * ((x - mean) / scale) ** 2 - np.log(scale * np.sqrt(2 * np.pi))


def two_means(data, extra, normal=True, before=True):
    """The sign of a row's mean is hidden; its size is also observed by itself, and penalised."""
    size = numpyro.sample("size", dist.Normal(0.0, 10.0))

    def outside():
        numpyro.factor("penalty", -0.5 * len(data) * (size - 1.0) ** 2)
        calibration = dist.Normal(size, 0.5).expand((3,)).to_event(1)
        numpyro.sample("calibration", calibration, obs=extra)

    if before:
        outside()
    with numpyro.plate("data", len(data)):
        sign = numpyro.sample("sign", dist.Bernoulli(0.4))
        mean = size * (2 * sign - 1)
        noise = dist.Normal(mean, 1.0) if normal else dist.StudentT(3.0, mean, 1.0)
        numpyro.sample("observed", noise, obs=data)
    if not before:
        outside()


def objective(size, prior, normal):
    """What EM maximises, by hand: all of the program's density but, if so, the prior."""
    noise = stats.norm if normal else stats.t(3.0)
    rows = 0.4 * noise.pdf(REAL - size) + 0.6 * noise.pdf(REAL + size)
    total = np.log(rows).sum() - 0.5 * len(REAL) * (size - 1.0) ** 2
    total += log_normal(CALIBRATION, size, 0.5).sum()
    return total + prior * log_normal(size, 0.0, 10.0)


@pytest.mark.parametrize(
    ("method", "prior", "normal", "before"),
    [
        (EM, False, True, True),
        (EM, True, True, False),
        (EM, False, False, False),
        (TruncatedEM, True, False, True),
    ],
)
def test_what_belongs_to_no_row_is_counted(method, prior, normal, before):
    """In the loss and in the M-step, by sums over the rows (of normals) and from each row."""
    em = method(two_means, prior=prior, search=None, chunk_size=7)
    arguments, start = (REAL, CALIBRATION, normal, before), {"size": jnp.array(0.3)}
    result = em.run(random.key(0), 30, *arguments, init_params=start)
    near(-result.losses[0], objective(0.3, prior, normal))
    grid = np.linspace(-3.0, 3.0, 6001)
    best = grid[np.argmax([objective(x, prior, normal) for x in grid])]
    near(result.params["size"], best, 2e-3)


def test_what_belongs_to_no_row_needs_all_rows_at_hand(tmp_path):
    """A factor may look at any of them; those of a file are read some at a time."""
    np.save(tmp_path / "rows.npy", REAL)
    stored = np.load(tmp_path / "rows.npy", mmap_mode="r")
    with pytest.raises(ProgramError, match="'penalty' outside the plate 'data' may depend on all"):
        EM(two_means).run(random.key(0), 5, stored, CALIBRATION)


def pulled(data, num_components, by=None):
    """A mixture with a closed M-step for its rows, which is no maximum with the factor."""
    mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.ones(num_components)))
    shape = (num_components, data.shape[1])
    probs = numpyro.sample("probs", dist.Beta(1.0, 1.0).expand(shape).to_event(2))
    if by is not None:
        numpyro.factor("pull", -by * ((probs - 0.5) ** 2).sum())
    with numpyro.plate("data", len(data)):
        component = numpyro.sample("component", dist.Categorical(mixing))
        numpyro.sample("observed", dist.Bernoulli(probs[component]).to_event(1), obs=data)


def test_a_closed_m_step_gives_way_to_a_factor():
    """With a strong one the probabilities end where it puts them, and no step goes up."""
    free = EM(pulled, search=None).run(random.key(0), 20, BITS, num_components=2)
    held = EM(pulled, search=None).run(random.key(0), 20, BITS, num_components=2, by=1e4)
    assert np.abs(free.params["probs"] - 0.5).max() > 0.3
    assert np.abs(held.params["probs"] - 0.5).max() < 0.01
    assert (np.diff(held.losses) <= 1e-2).all()
    with pytest.raises(ProgramError, match="'pull' is observed or a factor outside the plate"):
        EM(pulled, m_step=MixtureUpdate()).init(random.key(0), BITS, num_components=2, by=1.0)


def penalised(program):
    """A program of ours with a factor of its first parameter."""

    def model(data, **sizes):
        with handlers.trace() as sites:
            program(data, **sizes)
        first = next(x for x in sites.values() if x["type"] == "sample")
        numpyro.factor("penalty", -jnp.sum(first["value"] ** 2))

    return model


REFUSING = {
    "StepwiseEM": (StepwiseEM, bernoulli_mixture, {"num_components": 2}),
    "QuadratureEM": (QuadratureEM, latent_trait, {"num_factors": 1}),
    "BoundEM": (BoundEM, latent_trait, {"num_factors": 1}),
    "ExactGradient": (ExactGradient, combination_machine, {"num_causes": 2}),
    "ContrastiveDivergence": (ContrastiveDivergence, combination_machine, {"num_causes": 2}),
    "GibbsEM": (GibbsEM, noisy_or_network, {"layers": (3,)}),
}


@pytest.mark.parametrize("name", REFUSING)
def test_methods_that_learn_from_rows_alone_refuse_a_factor(name):
    method, program, sizes = REFUSING[name]
    with pytest.raises(ProgramError, match="'penalty' is observed or a factor outside the plate"):
        method(penalised(program)).run(random.key(0), 30, BITS, tolerance=1e-3, **sizes)


def test_standard_errors_refuse_a_factor():
    params = {"mixing": jnp.array([0.4, 0.6]), "probs": jnp.full((2, 4), 0.3)}
    with pytest.raises(ProgramError, match="'penalty' is observed or a factor outside the plate"):
        standard_errors(penalised(bernoulli_mixture), params, BITS, num_components=2)


def ising(data):
    """Neighbours among the rows meet in a factor outside of their plate."""
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        spin = numpyro.sample("spin", dist.Bernoulli(0.3))
        numpyro.sample("observed", dist.Normal(spin, 1.0), obs=data)
    numpyro.factor("pairs", coupling * (spin[1:] * spin[:-1]).sum())


def gaussian_field(data):
    """The same of continuous latents."""
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        field = numpyro.sample("field", dist.Normal(0.0, 1.0))
        numpyro.sample("observed", dist.Normal(field, 1.0), obs=data)
    numpyro.factor("pairs", coupling * (field[1:] * field[:-1]).sum())


COUPLING = {"coupling": jnp.array(0.8)}
READINGS = {
    "TruncatedEM": lambda data: TruncatedEM(ising).init(random.key(0), data),
    "marginal of some states": lambda data: marginal(ising, AtMost(1))(data),
    "recover of some states": lambda data: handlers.seed(recover(ising, AtMost(1)), 0)(data),
    "log_likelihood": lambda data: log_likelihood(ising, COUPLING, data),
    "standard_errors": lambda data: standard_errors(ising, COUPLING, data),
    "QuadratureEM": lambda data: QuadratureEM(gaussian_field).init(random.key(0), data),
    "log_likelihood of fields": lambda data: log_likelihood(gaussian_field, COUPLING, data),
}


@pytest.mark.parametrize("name", READINGS)
def test_latents_that_meet_outside_the_plate_are_refused_row_by_row(name):
    with pytest.raises(ProgramError, match=r"'pairs'.*outside the plate 'data'"):
        READINGS[name](jnp.asarray(REAL[:5]))


def test_marginal_sums_latents_that_meet_outside_the_plate():
    data, total = REAL[:5], 0.0
    for spins in itertools.product((0, 1), repeat=5):
        each = np.where(spins, 0.3, 0.7) * np.exp(log_normal(data, np.array(spins)))
        total += np.prod(each) * np.exp(0.8 * sum(a * b for a, b in itertools.pairwise(spins)))
    density = partial(log_density, marginal(ising), (jnp.asarray(data),), {})
    near(jax.jit(lambda p: density(p)[0])(COUPLING), np.log(total) + log_normal(0.8, 0.0))


def chained(seen):
    """A chain, beside sites of a step and of no step that depend on no state of it."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -3.0 * level**2)

    def step(state, y):
        state = numpyro.sample("state", dist.Bernoulli(0.2 + 0.6 * state))
        numpyro.sample("level_seen", dist.Normal(level, 1.0), obs=y)
        numpyro.factor("each", -(level**2))
        numpyro.sample("seen", dist.Normal(state, 1.0), obs=y)
        return state, None

    scan(step, jnp.array(0), seen)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_what_depends_on_no_state_of_a_chain_is_counted(length):
    """By `marginal` and by `EM`, which ends where the slope of all of it is zero."""
    seen, level, total = REAL[:length], 0.7, 0.0
    for path in itertools.product((0, 1), repeat=length):
        up = np.array([0.2 + 0.6 * before for before in (0, *path[:-1])])
        moves = np.where(path, up, 1.0 - up)
        total += np.prod(moves * np.exp(log_normal(seen, np.array(path))))
    wanted = np.log(total) + (log_normal(seen, level) - level**2).sum() - 3.0 * level**2
    params = {"level": jnp.array(level)}
    density = partial(log_density, marginal(chained), (jnp.asarray(seen),), {})
    found = jax.jit(lambda p: density(p)[0])(params)
    near(found, wanted + log_normal(level, 0.0))
    result = EM(chained, search=None).run(random.key(0), 10, jnp.asarray(seen), init_params=params)
    near(-result.losses[0], wanted)
    near(result.params["level"], seen.sum() / (length + 2 * length + 6), 1e-4)
