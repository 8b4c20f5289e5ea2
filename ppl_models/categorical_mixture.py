"""Latent classes of polytomous items: a mixture of products of categories."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import by_levels, check_levels, data_plate, membership, observe_levels


def categorical_mixture(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    levels: int | Sequence[int],
    num_features: int | None = None,
    num_components: int,
    covariates: Array | None = None,
    prior_mixing: dist.Distribution | None = None,
    prior_effects: dist.Distribution = dist.Normal(0.0, 1.0),
    prior_probs: float = 1.0,
) -> Array:
    r"""Latent class model of polytomous items.

    Lazarsfeld & Henry (1968), for columns of any number of levels.

    .. math:: P(t) = \sum_c \pi_c \prod_i p_{c i t_i}

    Of two levels each it is `bernoulli_mixture`.

    ==============  ===================  ===========================================
    site            symbol               shape
    ==============  ===================  ===========================================
    ``mixing``      :math:`\pi`          (num_components,)
    ``probs_K``     :math:`p_{c i k}`    (num_components, columns of K levels, K)
    ``component``   :math:`c`            (num_data,)
    ``observed_K``  :math:`t`            (num_data, columns of K levels)
    ==============  ===================  ===========================================

    :param levels: the number of levels of each column, or one number for all.
    :param covariates: numbers for each row, (num_data, num_covariates), on which its class depends:
        latent class regression. Instead of ``mixing`` there are ``class_intercept``, (C - 1,), and
        ``effects``, (num_covariates, C - 1), of the log odds against the first class.
    :param prior_effects: of each of both, for covariates of mean 0 and deviation 1.
    :param prior_mixing: a distribution on the simplex; by default the uniform one.
    :param prior_probs: the concentration of a symmetric Dirichlet prior; 1 is uniform.

    >>> import jax
    >>> from numpyro.handlers import seed
    >>> sizes = {"num_data": 7, "levels": (3, 3, 3), "num_components": 2}
    >>> jax.jit(lambda key: seed(categorical_mixture, key)(**sizes))(jax.random.key(0)).shape
    (7, 3)
    """
    groups = by_levels(numbers := check_levels(data, mask, levels, num_features))
    classes = membership(num_components, prior_mixing, covariates, prior_effects)
    probs = {}
    for k, columns in groups.items():
        prior = dist.Dirichlet(jnp.full(k, prior_probs)).expand((num_components, len(columns)))
        probs[k] = jnp.asarray(numpyro.sample(f"probs_{k}", prior.to_event(2)))
    with data_plate(data, num_data):
        component = numpyro.sample("component", classes)
        fns = {k: dist.Categorical(probs=probs[k][component]) for k in groups}
        return observe_levels(fns, numbers, data, mask)
