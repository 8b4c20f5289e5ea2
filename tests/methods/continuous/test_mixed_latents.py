"""Discrete and continuous latents in one datum: against sums and integrals written as loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from tools import near

from inference import BoundEM, LatentGibbs, ProgramError, QuadratureEM

RNG = np.random.default_rng(5)


def analysers(y):
    """A mixture of two factor analysers (Ghahramani & Hinton 1996)."""
    num_data, num_features = y.shape
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    prior = dist.Normal(0.0, 3.0)
    centre = numpyro.sample("centre", prior.expand([2, num_features]).to_event(2))
    loading = numpyro.sample("loading", prior.expand([2, num_features]).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0).expand([num_features]).to_event(1))
    with numpyro.plate("data", num_data):
        part = numpyro.sample("part", dist.Categorical(share))
        factor = numpyro.sample("factor", dist.Normal(0.0, 1.0))
        mean = centre[part] + factor[..., None] * loading[part]
        numpyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)


CENTRE, LOADING = np.array([[-2.0, 0.0, 1.0], [1.5, 1.0, -1.0]]), RNG.normal(size=(2, 3))
NOISE = np.array([0.5, 0.7, 0.4])
TRUTH = {"share": jnp.array([0.3, 0.7]), "centre": jnp.asarray(CENTRE),
         "loading": jnp.asarray(LOADING), "noise": jnp.asarray(NOISE)}  # fmt: skip


def rows(num_data=40):
    part = RNG.random(num_data) < 0.7
    factor = RNG.normal(size=(num_data, 1))
    return CENTRE[part * 1] + factor * LOADING[part * 1] + NOISE * RNG.normal(size=(num_data, 3))


def analysed(params, y):
    """log p(y_n) and p(part | y_n) of each row: a component is N(μ, ΛΛᵀ + Ψ)."""
    table = np.zeros((len(y), 2))
    for k in range(2):
        loading = np.asarray(params["loading"], float)[k]
        cover = np.outer(loading, loading) + np.diag(np.asarray(params["noise"], float) ** 2)
        for n, row in enumerate(y):
            away = row - np.asarray(params["centre"], float)[k]
            quadratic = away @ np.linalg.solve(cover, away)
            log_det = np.linalg.slogdet(2 * np.pi * cover)[1]
            table[n, k] = np.log(float(params["share"][k])) - 0.5 * (quadratic + log_det)
    evidence = np.logaddexp(*table.T)
    return evidence, np.exp(table - evidence[:, None])


def slopes(params, y):
    """Of the log evidence in centres and loadings, by differences."""
    slopes = []
    for name, index in itertools.product(("centre", "loading"), np.ndindex(2, 3)):
        moved = []
        for size in (-1e-2, 1e-2):
            new = np.array(params[name], float)
            new[index] += size
            moved.append(analysed({**params, name: new}, y)[0].sum())
        slopes.append((moved[1] - moved[0]) / 2e-2)
    return np.array(slopes)


def test_a_mixture_of_factor_analysers():
    """Evidence and posterior are those of Gaussians; EM climbs to where the evidence is flat."""
    y = rows()
    em = QuadratureEM(analysers, num_nodes=5)
    posterior = em.posterior(TRUTH, jnp.asarray(y))
    evidence, part = analysed(TRUTH, y)
    near(posterior.evidence, evidence, 1e-4)
    near(posterior.probabilities["part"], part, 1e-4)

    step = jax.jit(lambda state: em.update(state, jnp.asarray(y)))
    state, losses = em.init(random.key(0), jnp.asarray(y), init_params=TRUTH), []
    for _ in range(300):  # after 60 to 100, by rounding, it leaves a saddle
        state, loss = step(state)
        losses.append(float(loss))
    assert (np.diff(losses) <= 1e-3).all()
    params = em.get_params(state)
    near(-analysed(params, y)[0].sum(), losses[-1], 1e-2)
    assert np.abs(slopes(TRUTH, y)).max() > 5.0
    assert np.abs(slopes(params, y)).max() < 0.2


def between(y):
    """The component of a row is sampled between its two factors."""
    share, (centre, loading, other) = jnp.asarray(TRUTH["share"]), jnp.asarray(BETWEEN)
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(y)):
        first = numpyro.sample("first", dist.Normal(0.0, 1.0))
        part = numpyro.sample("part", dist.Categorical(share))
        second = numpyro.sample("second", dist.Normal(0.0, 1.0))
        mean = centre[part] + first[..., None] * loading[part] + second[..., None] * other[part]
        numpyro.sample("y", dist.Normal(mean, scale * NOISE).to_event(1), obs=y)


BETWEEN = np.stack([CENTRE, LOADING, np.array([[0.2, -1.0, 0.5], [1.0, 0.3, -0.7]])])


def test_a_component_between_two_factors():
    """Which latents are continuous is told by site, wherever they stand among the others."""
    y = rows(12)
    table = np.zeros((len(y), 2))
    for k, (centre, loading, other) in enumerate(zip(*BETWEEN, strict=True)):
        cover = np.outer(loading, loading) + np.outer(other, other) + np.diag((0.8 * NOISE) ** 2)
        for n, row in enumerate(y):
            away = row - centre
            log_det = np.linalg.slogdet(2 * np.pi * cover)[1]
            quadratic = away @ np.linalg.solve(cover, away)
            table[n, k] = np.log((0.3, 0.7)[k]) - 0.5 * (quadratic + log_det)
    evidence = np.logaddexp(*table.T)
    em = QuadratureEM(between, num_nodes=3)
    posterior = em.posterior({"scale": jnp.array(0.8)}, jnp.asarray(y))
    near(posterior.evidence, evidence, 1e-4)
    near(posterior.probabilities["part"], np.exp(table - evidence[:, None]), 1e-4)


def trait(answers):
    """A trait whose distribution and items depend on a class, sampled before it."""
    gap = numpyro.sample("gap", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", len(answers)):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3))
        ability = numpyro.sample("ability", dist.Normal(gap * kind, 1.0))
        logits = 2.0 * ability[..., None] + jnp.array([0.5, -0.5, 0.0]) * (1 + kind[..., None])
        numpyro.sample("answers", dist.Bernoulli(logits=logits).to_event(1), obs=answers)


def test_a_trait_with_latent_classes():
    """Where no integral is Gaussian: a fine grid over the trait, in each class."""
    answers, gap = RNG.integers(0, 2, (6, 3)), 1.7
    grid = np.linspace(-9, 11, 4001)
    wanted = np.zeros(6)
    for kind in (0, 1):
        density = np.exp(-0.5 * (grid - gap * kind) ** 2) / np.sqrt(2 * np.pi)
        logits = 2 * grid[:, None] + np.array([0.5, -0.5, 0.0]) * (1 + kind)
        for n, row in enumerate(answers):
            probability = np.prod(1 / (1 + np.exp(np.where(row, -logits, logits))), 1)
            wanted[n] += (
                (0.3 if kind else 0.7) * np.sum(density * probability) * (grid[1] - grid[0])
            )
    em = QuadratureEM(trait)
    near(em.evidence({"gap": jnp.array(gap)}, jnp.asarray(answers)), np.log(wanted), 1e-4)

    # `LatentGibbs` draws the class given the trait.
    ability = RNG.normal(1.0, 1.0, 6)
    both = []
    for kind in (0, 1):
        logits = 2 * ability[:, None] + np.array([0.5, -0.5, 0.0]) * (1 + kind)
        probability = np.prod(1 / (1 + np.exp(np.where(answers, -logits, logits))), 1)
        density = np.exp(-0.5 * (ability - gap * kind) ** 2)
        both.append((0.3 if kind else 0.7) * density * probability)
    update = LatentGibbs(trait).gibbs_fn(jnp.asarray(answers))
    others = {"gap": jnp.array(gap), "ability": jnp.asarray(ability)}
    start = {"kind": jnp.zeros(6, jnp.int32)}
    keys = random.split(random.key(0), 4000)
    draws = jax.jit(jax.vmap(lambda key: update(key, start, others)["kind"]))(keys)
    assert np.abs(draws.mean(0) - both[1] / (both[0] + both[1])).max() < 5 * 0.5 / np.sqrt(4000)

    with pytest.raises(ProgramError, match="kind is discrete"):
        BoundEM(trait).init(random.key(0), jnp.asarray(answers))
