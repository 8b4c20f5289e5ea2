"""Latent trait and its mixed columns: closed forms against the oracle and against the program.

Tolerances: in float64 two ways to one number agree to 1e-9; in float32 a sum over the data keeps
1e-5 of itself. What is only approximate says so where it stands.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from numpyro import handlers
from scipy.special import logsumexp
from tools import in_double
from trait_examples import (
    KEY,
    KINDS,
    NUM_DATA,
    NUM_FACTORS,
    NUM_FEATURES,
    as_jax,
    bits_example,
    mixed_example,
)

import inference
from inference.methods.continuous.bound import (
    BoundEM,
    bound_posterior,
    bound_sites,
    bounded_program,
    gaussian_sums,
)
from inference.methods.continuous.factors import open_factors
from inference.methods.continuous.opening import recognised
from inference.methods.continuous.quadrature import QuadratureEM
from inference.methods.continuous.regressions import (
    Regressions,
    bit_information,
    point_log_likelihood,
    point_sums,
    shared_log_likelihood,
)
from inference.methods.continuous.rules import gauss_hermite, weigh
from inference.reading.distributions import BoundedCategorical
from inference.reading.log_joint import log_joint
from ppl_models import latent_trait, mixed_trait

# --- bounds


@in_double
def test_categorical_bound_lies_below_and_touches():
    rng = np.random.default_rng(0)
    logits, psi = rng.normal(0, 3, (2, 50, 4))
    level = rng.integers(0, 4, 50)
    truth = (logits - logsumexp(logits, axis=-1, keepdims=True))[np.arange(50), level]
    bound = jax.jit(lambda psi: BoundedCategorical(logits, psi).log_prob(level))
    assert (bound(psi) <= truth + 1e-12).all()
    shifted = bound(logits + 2.5)
    np.testing.assert_allclose(shifted, truth, atol=1e-12)


def test_bound_refuses_other_sites():
    with pytest.raises(inference.ProgramError, match="observed_real"):
        program = inference.quadratic_bound(mixed_trait, "observed_real", 1.0)
        handlers.seed(program, KEY)(num_data=3, kinds=("real",))


# --- the closed forms against the oracle


@in_double
def test_posterior_and_bound_are_the_oracles():
    params, data, mask = bits_example()
    rng = np.random.default_rng(3)
    mean = rng.normal(size=(NUM_DATA, NUM_FACTORS))
    half = rng.normal(size=(NUM_DATA, NUM_FACTORS, NUM_FACTORS))
    spread = np.einsum("nij,nkj->nik", half, half) + 0.1 * np.eye(NUM_FACTORS)
    xi = oracle.bound_update_variational(params["weights"], params["bias"], mean, spread)
    given = (params["weights"], params["bias"], xi, data, mask)
    columns = Regressions(("binary",) * NUM_FEATURES)

    @jax.jit
    def compute(params, data, mask):
        responses = columns.responses(data, mask)
        posterior = bound_posterior(columns, params, responses, mean, spread)
        sums = gaussian_sums(columns, params, responses, mean, spread, jnp.ones(NUM_DATA))
        return posterior, columns.advance(params, sums)

    posterior, new = compute(as_jax(params), data, mask)
    wanted = (*oracle.bound_posterior(*given), oracle.bound_log_evidence(*given))
    for one, other in zip(posterior, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    np.testing.assert_allclose(posterior[1][2], np.eye(NUM_FACTORS), atol=1e-12)  # nothing observed

    wanted = oracle.bound_m_step(mean, spread, xi, data, mask)
    for name, value in wanted.items():
        np.testing.assert_allclose(new[name], value, atol=1e-8)


@in_double
def test_quadrature_is_the_oracles():
    params, data, mask = bits_example()
    nodes, log_weights = oracle.gauss_hermite(NUM_FACTORS, 32)
    table = oracle.quadrature_table(
        oracle.log_joint_latent_trait, params, nodes, log_weights, data, mask
    )
    quadrature = QuadratureEM(latent_trait, num_nodes=20).posterior(as_jax(params), data, mask=mask)
    # Two rules of their own error each: 1e-5 nats.
    np.testing.assert_allclose(quadrature.evidence, oracle.log_evidence(table), atol=1e-5)
    posterior = oracle.posterior_table(table)
    np.testing.assert_allclose(quadrature.mean, oracle.posterior_mean(posterior, nodes), atol=1e-4)
    np.testing.assert_allclose(quadrature.evidence[2], 0.0, atol=1e-10)
    np.testing.assert_allclose(quadrature.mean[2], 0.0, atol=1e-10)
    assert jnp.abs(quadrature.gap).max() < 1e-5


@in_double
def test_bound_is_below_the_evidence():
    params, data, mask = bits_example()
    posterior = BoundEM(latent_trait).posterior(as_jax(params), data, mask=mask)
    assert (posterior.gap >= -1e-7).all() and posterior.gap.max() > 1e-3


# --- the closed forms against the program's own reading


def standard_normal(points):
    return -0.5 * jnp.sum(points**2, -1) - 0.5 * points.shape[-1] * jnp.log(2.0 * jnp.pi)


@in_double
def test_closed_form_is_the_programs_reading():
    """Columns of every kind, bits among them."""
    model, columns, num_data = mixed_trait, Regressions(KINDS), 9
    params, *arrays = mixed_example(num_data)
    wrap = lambda data, mask: ((data,), {"mask": mask, "kinds": KINDS})  # noqa: E731
    reader, rows = open_factors(model, *wrap(*arrays), None)
    closed = recognised(reader, rows).reader
    program = bounded_program(reader, rows, check=True)
    rule = gauss_hermite(NUM_FACTORS, 6)
    rng = np.random.default_rng(5)
    mean = jnp.asarray(rng.normal(size=(num_data, NUM_FACTORS)))
    spread = jnp.broadcast_to(jnp.array([[0.7, 0.2], [0.2, 0.5]]), (num_data, 2, 2))
    arms = np.sqrt(2.0) * jnp.moveaxis(jnp.linalg.cholesky(spread), -1, 0)
    sigma = jnp.concatenate([mean + arms, mean - arms])  # exact for the mean of a quadratic
    points = jnp.asarray(rng.normal(size=(3, num_data, NUM_FACTORS)))

    # All in one piece: run operation by operation it takes minutes, and fusion goes untested.
    @jax.jit
    def compute(params, data, mask):
        arguments = wrap(data, mask)
        responses = columns.responses(data, mask)
        joint = lambda model, p, x: log_joint(model, reader.anatomy, p, x, arguments)  # noqa: E731
        posterior = (
            bound_posterior(columns, params, responses, mean, spread),
            program.posterior(reader, params, arguments, mean, spread),
        )
        sums = gaussian_sums(columns, params, responses, mean, spread, jnp.ones(num_data))
        new = columns.advance(params, sums)
        xi = program.variational(reader, params, arguments, sigma)
        bounded = bound_sites(model, xi)
        slope = jax.grad(lambda p: joint(bounded, p, sigma).mean(0).sum())(new)
        own = (
            point_log_likelihood(columns, params, responses, points),
            joint(model, params, points) - standard_normal(points),
        )
        shared = (
            shared_log_likelihood(columns, params, responses, points[:, 0]),
            joint(model, params, points[:, :1]) - standard_normal(points[:, :1]),
        )
        bends = [
            (*x.bend(params, mean, arguments), x.log_joint(params, mean[None], arguments))
            for x in (closed, reader)
        ]
        uphill = jax.grad(lambda p: weigh(reader, p, arguments, rule)[0].sum())(params)
        _, probability = weigh(reader, params, arguments, rule)
        nodes = jnp.broadcast_to(rule.points[:, None], (*probability.shape, NUM_FACTORS))
        safe, _ = point_sums(columns, params, responses, nodes, probability)
        return posterior, slope, own, shared, bends, uphill, columns.metric(params, safe.slope.T)

    posterior, slope, own, shared, bends, uphill, metric = compute(as_jax(params), *arrays)
    for one, other in zip(*posterior, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    # The M-step is a stationary point of the program's own expected bounded log joint.
    for name, value in slope.items():
        np.testing.assert_allclose(value, 0.0, atol=1e-7, err_msg=name)
    # The likelihood at points, each row's own or shared by all, is the program's.
    np.testing.assert_allclose(*own, atol=1e-9)
    np.testing.assert_allclose(*shared, atol=1e-9)
    # So are slope and curvature in the factors.
    assert closed.closed is not None
    for value, wanted in zip(*bends, strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-9)
    # Fisher's identity: the M-step's slope is the gradient of the marginal likelihood.
    np.testing.assert_allclose(metric[:-1], uphill["weights"], atol=1e-8)
    np.testing.assert_allclose(metric[-1], uphill["bias"], atol=1e-8)


@in_double
def test_information_is_minus_the_programs_hessian():
    """Louis' identity, two factors, cells and a whole row missing, one row not counted."""
    params, data, mask = bits_example()
    program, rows = open_factors(latent_trait, (data,), {"mask": mask}, None)
    opened = recognised(program, rows)
    rule, count = gauss_hermite(NUM_FACTORS, 5), np.ones(NUM_DATA)
    count[0] = 0.0

    @jax.jit
    def both(params, data, mask):
        arguments = ((data,), {"mask": mask})
        total = lambda p: jnp.sum(count * weigh(program, p, arguments, rule)[0])  # noqa: E731
        weight = weigh(program, params, arguments, rule)[1] * count
        points = jnp.broadcast_to(rule.points[:, None], (*weight.shape, NUM_FACTORS))
        given = opened.values(params), opened.responses(arguments)
        closed_form = bit_information(opened.columns, *given, points, weight)
        return closed_form, jax.hessian(total)(params)

    closed_form, wanted = both(as_jax(params), data, mask)
    for one, i in (("weights", slice(NUM_FACTORS)), ("bias", NUM_FACTORS)):
        for other, j in (("weights", slice(NUM_FACTORS)), ("bias", NUM_FACTORS)):
            there = np.moveaxis(wanted[one][other], *([0, 1] if one == "weights" else [0, 0]))
            if other == "weights":
                there = np.moveaxis(there, -1, -2)
            np.testing.assert_allclose(closed_form[:, i][..., j], -there, atol=1e-9)


def test_optimised_code_is_right():
    """Two columns of three levels: XLA's optimiser once got the sum over them wrong by 16 nats."""
    kinds = ("real", "binary", 3, 3)
    columns = Regressions(kinds)
    rng = np.random.default_rng(0)
    data = np.column_stack([rng.normal(size=50), rng.integers(0, [2, 3, 3], (50, 3))])
    mask = rng.random(data.shape) < 0.8
    params = {
        "weights": rng.normal(size=(2, 6)), "bias": rng.normal(size=6), "noise": np.array([0.7])
    }  # fmt: skip
    points = jnp.asarray(rng.normal(size=(49, 50, 2)), float)
    responses = jax.jit(lambda data, mask: columns.responses(data, mask))(data, mask)
    inputs = (as_jax(params), responses, points)
    fast = jax.jit(functools.partial(point_log_likelihood, columns))
    plain = point_log_likelihood(columns, *inputs)  # operation by operation
    np.testing.assert_allclose(fast(*inputs), plain, atol=1e-4)
