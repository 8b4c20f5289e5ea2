"""Every program as it is, under NumPyro's own machinery: nothing here is adapted to a method."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import program_cases
import pytest
from jax import random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import NUTS, SVI, Predictive, Trace_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density
from tools import fast_jit, sample

import ppl_models

FEATURES, ROWS = program_cases.NUM_FEATURES, 6
REAL = {"binary_sparse_coding", "real_combination_machine", "sparse_coding"}


def first_rows():
    """name: sizes, parameter sites with their shapes, latent sites with the shape of one datum."""
    rows, rng = {}, np.random.default_rng(0)
    for case in program_cases.CASES.values():
        parameters = {site: np.shape(x) for site, x in case.parameters(rng).items()}
        latents = {site: x.shape[1:] for site, x in case.latents(rng, (1,)).items()}
        if case.observed == ("observed",):
            rows.setdefault(case.program, (case.arguments, parameters, latents))
    return rows


CASES = first_rows()
EACH = pytest.mark.parametrize("name", CASES)


def program(name):
    return getattr(ppl_models, name)


@functools.cache
def simulate(name):
    """Every site of four draws from the program, under its priors."""
    sizes = {**CASES[name][0], "num_features": FEATURES, "num_data": ROWS}
    draw = Predictive(program(name), num_samples=4, parallel=True)
    sites = jax.device_get(fast_jit(lambda key: draw(key, **sizes))(random.key(0)))
    return [{site: value[i] for site, value in sites.items()} for i in range(4)]


def trace(name, data, values, mask=None, num_data=None):
    model = handlers.substitute(handlers.seed(program(name), random.key(9)), values)
    kwargs = {**CASES[name][0], "mask": mask, "num_data": num_data}
    return handlers.trace(model).get_trace(data, **kwargs)


def test_every_program_is_in_the_table():
    # The others have columns of several kinds, and tests of their own.
    others = {"mixed_trait", "graded_trait", "categorical_mixture"}
    assert {*CASES, *others} == set(ppl_models.__all__)


@EACH
def test_prior_draws_have_the_sites_and_shapes_of_the_table(name):
    """And every site but the parameters is in the data plate."""
    draw = simulate(name)[0]
    _, parameters, latents = CASES[name]
    expected = {**parameters, "observed": (ROWS, FEATURES)}
    expected |= {site: (ROWS, *shape) for site, shape in latents.items()}
    assert {site: value.shape for site, value in draw.items()} == expected
    assert all(np.isfinite(value).all() for value in draw.values())
    if name not in REAL:
        assert set(np.unique(draw["observed"])) <= {0, 1}
    sites = {}
    # Abstract evaluation: the structure is all that is asked for.
    jax.eval_shape(lambda data: sites.update(trace(name, data, {})), draw["observed"])
    stacks = {x: m["cond_indep_stack"] for x, m in sites.items() if m["type"] == "sample"}
    plates = {x: tuple(frame.name for frame in stack) for x, stack in stacks.items() if stack}
    assert plates == dict.fromkeys([*latents, "observed"], ("data",))
    assert sites["observed"]["is_observed"]


@EACH
def test_render(name):
    sizes = {**CASES[name][0], "num_features": FEATURES, "num_data": ROWS}
    graph = numpyro.render_model(program(name), model_kwargs=sizes, render_distributions=True)
    for site in (*CASES[name][1], *CASES[name][2], "observed"):
        assert site in graph.source


@EACH
def test_a_minibatch_counts_for_the_whole(name):
    draw = simulate(name)[0]
    values = {site: v for site, v in draw.items() if site != "observed"}
    values |= {site: values[site][:2] for site in CASES[name][2]}
    data = draw["observed"][:2]

    @jax.jit
    def joint(data, values):
        sizes = CASES[name][0]
        # No key is given: a minibatch that the caller chose leaves nothing to draw.
        plain, sites = log_density(program(name), (data,), sizes, values)
        scaled, _ = log_density(program(name), (data,), {**sizes, "num_data": ROWS}, values)
        in_plate = [sites[site] for site in (*CASES[name][2], "observed")]
        local = sum(site["fn"].log_prob(site["value"]).sum() for site in in_plate)
        return plain, scaled, local

    plain, scaled, local = joint(data, values)
    np.testing.assert_allclose(scaled - plain, (ROWS / 2 - 1) * local, rtol=1e-4, atol=1e-4)


def test_nuts_takes_the_program_as_it_is():
    """The other two: `clipped-baselines` in test_papers, and test_budget."""
    name = "latent_trait"
    data = simulate(name)[0]["observed"]
    samples, _ = sample(NUTS(program(name)), 5, 5, data, **CASES[name][0])
    assert set(samples) == {*CASES[name][1], *CASES[name][2]}
    assert all(np.isfinite(value).all() for value in samples.values())


def losses_and_params(svi, key, num_steps, data, sizes):
    """What `SVI.run` gives, in one compiled piece."""

    @fast_jit
    def run(key):
        result = svi.run(key, num_steps, data, progress_bar=False, **sizes)
        return result.losses, result.params

    return jax.device_get(run(random.key(key)))


def test_svi_with_an_automatic_guide():
    name, model = "latent_trait", ppl_models.latent_trait
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
    data = simulate(name)[0]["observed"]
    losses, _ = losses_and_params(svi, 0, 30, data, CASES[name][0])
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < losses[:10].mean()


# A category, bits of one site and bits of two; the machines' are tested as distributions.
@pytest.mark.parametrize("name", ["bernoulli_mixture", "binary_sparse_coding", "noisy_or_network"])
def test_svi_with_a_guide_that_draws_the_binary_latents(name):
    start = {site: jnp.asarray(value) for site, value in simulate(name)[0].items()}
    data = start["observed"]
    model = program(name)
    supports = {"noise": constraints.positive, "mixing": constraints.simplex}
    supports |= dict.fromkeys(("sparsity", "probs"), constraints.unit_interval)
    if name == "noisy_or_network":
        supports = dict.fromkeys(CASES[name][1], constraints.positive)

    def guide(data, **_):
        for site in CASES[name][1]:
            support = supports.get(site, constraints.real)
            point = numpyro.param(f"{site}_point", start[site], constraint=support)
            numpyro.sample(site, dist.Delta(point, event_dim=jnp.ndim(point)))
        with numpyro.plate("data", len(data), dim=-1):
            for site, shape in CASES[name][2].items():
                if site == "component":
                    logits = numpyro.param("component_logits", jnp.zeros((len(data), 3)))
                    numpyro.sample(site, dist.Categorical(logits=logits))
                else:
                    logits = numpyro.param(f"{site}_logits", jnp.zeros((len(data), *shape)))
                    numpyro.sample(site, dist.Bernoulli(logits=logits).to_event(1))

    svi = SVI(model, guide, numpyro.optim.Adam(0.01), TraceGraph_ELBO())
    losses, params = losses_and_params(svi, 1, 3, data, CASES[name][0])
    assert np.isfinite(losses).all()
    assert all(np.isfinite(value).all() for value in params.values())


def test_noise_may_be_absent_or_one_for_each_column():
    noise = np.array([0.0, 0.0, 1.0, 2.0, 0.5])
    sizes = {"num_data": 50, "num_features": FEATURES, "num_factors": 2}
    draw = Predictive(ppl_models.clipped_gaussian, num_samples=1)
    sites = jax.device_get(fast_jit(lambda key: draw(key, noise=noise, **sizes))(random.key(0)))
    sites = {site: value[0] for site, value in sites.items()}
    sign = sites["factors"] @ sites["weights"] + sites["bias"] > 0
    hard = np.broadcast_to(noise, (FEATURES,)) == 0
    np.testing.assert_array_equal(sites["observed"][:, hard], sign[:, hard])
    values = {site: sites[site] for site in ("weights", "bias", "factors")}
    kwargs = {"num_factors": 2, "noise": noise}

    def log_joint(values):
        return log_density(ppl_models.clipped_gaussian, (sites["observed"],), kwargs, values)[0]

    value, gradient = jax.jit(jax.value_and_grad(log_joint))(values)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(slope).all() for slope in gradient.values())


def test_priors_are_replaceable():
    kwargs = {"num_data": 2, "num_features": 3, "num_components": 2}
    kwargs |= {"prior_mixing": dist.Delta(jnp.array([0.0, 1.0]), event_dim=1)}
    kwargs |= {"prior_probs": dist.Uniform(0.9, 1.0)}
    sites = Predictive(ppl_models.bernoulli_mixture, num_samples=1)(random.key(0), **kwargs)
    np.testing.assert_array_equal(sites["component"], 1)
    assert (sites["probs"] >= 0.9).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "give `data`, or `num_features`"),
        ({"num_features": 3}, "give `data`, or `num_data`"),
        ({"data": jnp.zeros((4, 3)), "num_features": 2}, "`data` has 3 columns"),
        ({"data": jnp.zeros((4, 3)), "num_data": 2}, "`data` has 4 rows"),
        ({"data": jnp.zeros(3)}, r"found shape \(3,\)"),
        ({"data": jnp.zeros((4, 3)), "mask": jnp.ones((4, 2), bool)}, "`mask` has shape"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        handlers.seed(ppl_models.bernoulli_product, random.key(0))(**kwargs)


def test_a_network_needs_a_layer():
    with pytest.raises(ValueError, match="`layers` is empty"):
        ppl_models.noisy_or_network(num_data=1, num_features=2, layers=())
