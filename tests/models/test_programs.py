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
from numpyro.infer import SVI, Predictive, TraceGraph_ELBO
from numpyro.infer.util import log_density

import ppl_models

FEATURES, ROWS = program_cases.NUM_FEATURES, 6
# The first row of each program that has one observed site.
CASES = {
    case.program: case
    for case in reversed(program_cases.CASES.values())
    if case.observed == ("observed",)
}
EACH = pytest.mark.parametrize("name", CASES)


def program(name):
    return getattr(ppl_models, name)


def sizes_of(name):
    """What a program is called with where it has no data."""
    return {**CASES[name].arguments, "num_features": FEATURES, "num_data": ROWS}


@functools.cache
def drawn(name):
    """Parameters, latents and rows, by NumPy: to draw them from the program would compile it."""
    case, rng = CASES[name], np.random.default_rng(0)
    return case.parameters(rng), case.latents(rng, (ROWS,)), case.data(rng, (ROWS,))


def trace_shapes(name, *args, **kwargs):
    """Its sites by abstract evaluation: shapes and plates, and nothing is compiled."""
    sites = {}

    def run(key):
        sites.update(handlers.trace(handlers.seed(program(name), key)).get_trace(*args, **kwargs))

    jax.eval_shape(run, random.key(0))
    return {site: message for site, message in sites.items() if message["type"] == "sample"}


def test_every_program_is_in_the_table():
    # The others have columns of several kinds, and tests of their own.
    others = {"mixed_trait", "graded_trait", "categorical_mixture"}
    assert {*CASES, *others} == set(ppl_models.__all__)


@EACH
def test_prior_draws_have_the_sites_and_shapes_of_the_table(name):
    """And every site but the parameters is in the data plate."""
    parameters, latents, data = drawn(name)
    expected = {x: np.shape(v) for x, v in {**parameters, **latents, "observed": data}.items()}
    sites = trace_shapes(name, **sizes_of(name))
    assert {x: site["value"].shape for x, site in sites.items()} == expected
    sites = trace_shapes(name, data, **CASES[name].arguments)
    plates = {x: tuple(f.name for f in site["cond_indep_stack"]) for x, site in sites.items()}
    inside = dict.fromkeys([*latents, "observed"], ("data",))
    assert plates == dict.fromkeys(parameters, ()) | inside
    assert sites["observed"]["is_observed"]


@EACH
def test_render(name):
    graph = numpyro.render_model(
        program(name), model_kwargs=sizes_of(name), render_distributions=True
    )
    parameters, latents, _ = drawn(name)
    for site in (*parameters, *latents, "observed"):
        assert site in graph.source


@EACH
def test_a_minibatch_counts_for_the_whole(name):
    parameters, latents, data = drawn(name)
    values = parameters | {site: value[:2] for site, value in latents.items()}
    sizes = CASES[name].arguments

    @jax.jit
    def joint(data, values):
        # No key is given: a minibatch that the caller chose leaves nothing to draw.
        plain, sites = log_density(program(name), (data,), sizes, values)
        scaled, _ = log_density(program(name), (data,), {**sizes, "num_data": ROWS}, values)
        in_plate = [sites[site] for site in (*latents, "observed")]
        local = sum(site["fn"].log_prob(site["value"]).sum() for site in in_plate)
        return plain, scaled, local

    plain, scaled, local = joint(data[:2], values)
    np.testing.assert_allclose(scaled - plain, (ROWS / 2 - 1) * local, rtol=1e-4, atol=1e-4)


# A category, bits of one site and bits of two; the machines' are tested as distributions. NUTS and
# automatic guides have their turn in the experiment `clipped-baselines` (test_papers).
@pytest.mark.parametrize("name", ["bernoulli_mixture", "binary_sparse_coding", "noisy_or_network"])
def test_svi_with_a_guide_that_draws_the_binary_latents(name):
    parameters, latents, data = drawn(name)
    start = {site: jnp.asarray(value, float) for site, value in parameters.items()}
    model = program(name)
    supports = {"noise": constraints.positive, "mixing": constraints.simplex}
    supports |= dict.fromkeys(("sparsity", "probs"), constraints.unit_interval)
    if name == "noisy_or_network":
        supports = dict.fromkeys(parameters, constraints.positive)

    def guide(data, **_):
        for site in parameters:
            support = supports.get(site, constraints.real)
            point = numpyro.param(f"{site}_point", start[site], constraint=support)
            numpyro.sample(site, dist.Delta(point, event_dim=jnp.ndim(point)))
        with numpyro.plate("data", len(data), dim=-1):
            for site, value in latents.items():
                if site == "component":
                    logits = numpyro.param("component_logits", jnp.zeros((len(data), 3)))
                    numpyro.sample(site, dist.Categorical(logits=logits))
                else:
                    logits = numpyro.param(f"{site}_logits", jnp.zeros(value.shape))
                    numpyro.sample(site, dist.Bernoulli(logits=logits).to_event(1))

    svi = SVI(model, guide, numpyro.optim.Adam(0.01), TraceGraph_ELBO())

    @jax.jit
    def run(key):
        result = svi.run(key, 3, data, progress_bar=False, **CASES[name].arguments)
        return result.losses, result.params

    losses, params = run(random.key(1))
    assert np.isfinite(losses).all()
    assert all(np.isfinite(value).all() for value in params.values())


def test_noise_may_be_absent_or_one_for_each_column():
    noise = np.array([0.0, 0.0, 1.0, 2.0, 0.5])
    sizes = {"num_data": 50, "num_features": FEATURES, "num_factors": 2}
    draw = Predictive(ppl_models.clipped_gaussian, num_samples=1)
    sites = jax.device_get(jax.jit(lambda key: draw(key, noise=noise, **sizes))(random.key(0)))
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
