"""Distributions at the edge of their parameters, against exact fractions of exponentials."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints
from tools import near

from inference import QuadratureEM
from inference.reading.distributions import with_finite_slopes

CUTS = np.array([[-2.0, 0.5, 0.9], [30.0, 31.0, 95.0]])


def log_levels(predictor, cuts):
    """By logarithms of sums alone: log(σ(b) − σ(a)) = a + log(e^(b−a) − 1) − log(1+e^a)(1+e^b)."""
    log_one_plus = lambda x: np.logaddexp(0.0, x)  # noqa: E731
    away = cuts - predictor
    first, last = -log_one_plus(-away[0]), -log_one_plus(away[-1])
    middle = [
        a + np.log(np.expm1(b - a)) - log_one_plus(a) - log_one_plus(b)
        for a, b in itertools.pairwise(away)
    ]
    return np.array([first, *middle, last])


@pytest.mark.parametrize("bit", [0.0, 1.0, 0.3])
def test_slopes_of_a_bit(bit):
    """t − σ(a) and −σ(a) σ(−a), also at zero, where NumPyro's has |a|; of infinite logits none."""
    logits = np.array([-40.0, -3.0, 0.0, 1e-3, 2.0, 50.0, np.inf, -np.inf])
    finite, share = np.isfinite(logits), 1.0 / (1.0 + np.exp(-logits))

    def log_prob(logits, bit):
        return with_finite_slopes(dist.Bernoulli(logits=logits, validate_args=False)).log_prob(bit)

    slopes = (
        jax.grad(log_prob), jax.grad(jax.grad(log_prob)), jax.grad(log_prob, argnums=1)
    )  # fmt: skip
    with jax.enable_x64(True):
        place, bits = jnp.asarray(logits), jnp.full(len(logits), bit)
        own = dist.Bernoulli(logits=place, validate_args=False).log_prob(bits)
        np.testing.assert_array_equal(log_prob(place, bits), own)
        once, twice, by_bit = (jax.jit(jax.vmap(slope))(place, bits) for slope in slopes)
    near(once, np.where(finite, bit - share, 0.0))
    near(twice, np.where(finite, -share * (1.0 - share), 0.0))
    near(by_bit, np.where(finite, logits, 0.0))


def test_levels_far_from_the_predictor():
    """NumPyro's log probability of a level forty units off is minus infinity in all but name."""
    predictor = jnp.array([[0.3, 0.0], [40.0, -60.0]])
    fn = dist.OrderedLogistic(predictor, jnp.asarray(CUTS)).to_event(1)
    levels = np.array([[[0, 0]], [[1, 1]], [[2, 2]], [[3, 3]]])
    assert not np.isfinite(np.asarray(fn.log_prob(levels))[:, 1].sum())
    wanted = [
        [sum(log_levels(float(row[d]), CUTS[d])[k] for d in range(2)) for row in predictor]
        for k in range(4)
    ]

    def total(predictor, cuts):
        fn = with_finite_slopes(dist.OrderedLogistic(predictor, cuts).mask(True).to_event(1))
        return fn.log_prob(levels)

    near(jax.jit(total)(predictor, jnp.asarray(CUTS)), wanted)
    slopes = jax.jit(jax.grad(lambda *x: total(*x).sum(), argnums=(0, 1)))
    for slope in slopes(predictor, jnp.asarray(CUTS)):
        assert np.isfinite(slope).all() and (np.abs(slope) > 1e-3).any()


def test_cuts_without_a_prior_are_started():
    """Nothing can be drawn from `ImproperUniform`: NumPyro starts it near 0, and so do methods."""

    def graded(answers):
        flat = dist.ImproperUniform(constraints.ordered_vector, (2,), (3,)).to_event(1)
        cuts = numpyro.sample("cuts", flat)
        with numpyro.plate("data", len(answers)):
            trait = numpyro.sample("trait", dist.Normal(0.0, 1.0))
            levels = dist.OrderedLogistic(jnp.stack([trait, trait], -1), cuts)
            numpyro.sample("answers", levels.to_event(1), obs=answers)

    answers = jnp.array([[0, 3], [1, 2], [2, 0]])
    em = QuadratureEM(graded, num_nodes=5)
    params = em.init(random.key(0), answers).params
    assert params["cuts"].shape == (2, 3) and (jnp.diff(params["cuts"]) > 0).all()
    assert jnp.isfinite(em.evidence(params, answers)).all()
