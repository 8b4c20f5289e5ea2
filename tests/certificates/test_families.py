"""Families that are log-concave: against scipy, by midpoints, their curvature by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from inference.certificates import families
from inference.certificates.families import FAMILIES

CUTS = np.array([-1.0, 0.2, 1.7])


def ordered(y, u):
    below = special.expit(np.concatenate([[-np.inf], CUTS, [np.inf]]) - u)
    return np.log(np.diff(below)[int(y)])


# family -> (log p(y | u) by scipy, values y, predictors, what else it has)
ORACLES = {
    "normal location": (lambda y, u: stats.norm.logpdf(y, u, 0.7), [-1.3, 2.0], (-3, 3), [0.7]),
    "Laplace location": (lambda y, u: stats.laplace.logpdf(y, u, 0.7), [0.4], (-3, 3), [0.7]),
    "logistic location": (lambda y, u: stats.logistic.logpdf(y, u, 0.7), [1.4], (-4, 4), [0.7]),
    "logit": (lambda y, u: stats.binom.logpmf(y, 5, special.expit(u)), [0, 2, 5], (-6, 6), [5.0]),
    "probit": (lambda y, u: stats.binom.logpmf(y, 5, special.ndtr(u)), [0, 2, 5], (-5, 5), [5.0]),
    "noisy-OR": (lambda y, u: stats.bernoulli.logpmf(y, -np.expm1(-u)), [0, 1], (0.01, 5), []),
    "Poisson log rate": (lambda y, u: stats.poisson.logpmf(y, np.exp(u)), [0, 3], (-3, 3), []),
    "Poisson rate": (lambda y, u: stats.poisson.logpmf(y, u), [0, 3], (0.01, 9), []),
    "negative binomial log mean": (
        lambda y, u: stats.nbinom.logpmf(y, 2.5, special.expit(-u)), [0, 4], (-5, 5), [2.5],
    ),
    "categorical logits": (
        lambda y, u: np.log(special.softmax(u))[int(y)], [0, 1, 2], (-4, 4), [],
    ),
    "ordered logits": (ordered, [0, 1, 3], (-6, 6), [CUTS]),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda x: x.name)
def test_family_is_that_of_scipy_and_concave(family):
    exact, values, (low, high), rest = ORACLES[family.name]
    rng, count = np.random.default_rng(0), 200
    width = 3 if family is families.CATEGORICAL else 1
    first, second = rng.uniform(low, high, (2, count, width))
    y = rng.choice(values, count).astype(float)
    site = {"value": y, "power": np.ones(count), "fixed": [np.tile(x, (count, 1)) if np.ndim(x)
            else np.full(count, x) for x in rest]}  # fmt: skip
    with jax.enable_x64(True):
        # Compiled once for all three: points between two are what concavity speaks of.
        site = jax.tree.map(jnp.asarray, site)
        at = jax.jit(lambda u: family.at(u, site))
        points = first, second, (first + second) / 2
        (one, slope, _), (other, *_), (middle, *_) = jax.device_get([at(x) for x in points])
        ends = jnp.minimum(first, second), jnp.maximum(first, second)
        places = (*ends, family.sharpest(*ends, site))
        bent = np.max([at(x)[2] for x in places], 0) if family.smooth else np.inf
    flat = [x[0] if width == 1 else x for x in first]
    np.testing.assert_allclose(one, list(map(exact, y, flat)), rtol=1e-9, atol=1e-9)
    assert (middle >= (one + other) / 2 - 1e-9).all()
    # Each tangent lies above, and no further than the largest curvature between allows.
    away = second - first
    over = one + (slope * away).sum(1) - other
    assert (over >= -1e-9).all()
    assert (over <= 0.5 * (bent * away**2).sum(1) * (1 + 1e-9) + 1e-9).all()
