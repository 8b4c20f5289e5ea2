"""Mixtures of Bernoulli products, and the product itself: what the other models must beat."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate, membership, num_columns, observe


def bernoulli_mixture(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_components: int,
    covariates: Array | None = None,
    prior_mixing: dist.Distribution | None = None,
    prior_effects: dist.Distribution = dist.Normal(0.0, 1.0),
    prior_probs: dist.Distribution = dist.Uniform(0.0, 1.0),
) -> Array:
    r"""Latent class model of bits: a mixture of Bernoulli products.

    Freund & Haussler, *Unsupervised learning of distributions on binary vectors using two layer
    networks*, UCSC-CRL-94-25, 1994, section 2.3.

    .. math::

        P(x) = \sum_i \frac{p_i}{Z_i} e^{\omega^{(i)} \cdot x} \quad (2.9), \qquad
        P(x_j = 1 \mid i) = \mathrm{logistic}(2 \omega^{(i)}_j)

    One hidden unit at a time is on, whereas the combination machine combines them. The paper's
    :math:`x = \pm 1` is :math:`2t - 1` for the observed :math:`t` in {0, 1}.

    =============  =====================================  ==============================
    site           paper's symbol                         shape
    =============  =====================================  ==============================
    ``mixing``     :math:`p`                              (num_components,)
    ``probs``      :math:`\mathrm{logistic}(2 \omega)`    (num_components, num_features)
    ``component``  :math:`i`                              (num_data,)
    ``observed``   :math:`(1 + x) / 2`                    (num_data, num_features)
    =============  =====================================  ==============================

    :param covariates: numbers for each row, (num_data, num_covariates), on which its class depends:
        latent class regression. Instead of ``mixing`` there are ``class_intercept``, (C - 1,), and
        ``effects``, (num_covariates, C - 1), of the log odds against the first class.
    :param prior_effects: of each of both, for covariates of mean 0 and deviation 1.
    :param prior_mixing: a distribution on the simplex; by default the uniform one.

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(bernoulli_mixture, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=16, num_components=3))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["component"].shape, sites["observed"].shape
    ((1, 7), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    classes = membership(num_components, prior_mixing, covariates, prior_effects)
    probs = numpyro.sample("probs", prior_probs.expand((num_components, columns)).to_event(2))
    with data_plate(data, num_data):
        component = numpyro.sample("component", classes)
        return observe(dist.Bernoulli(probs=jnp.asarray(probs)[component]), data, mask)


def bernoulli_product(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    prior_probs: dist.Distribution = dist.Uniform(0.0, 1.0),
) -> Array:
    r"""Independence model: each bit by itself, the mixture of one component.

    .. math:: P(t) = \prod_j p_j^{t_j} (1 - p_j)^{1 - t_j}

    ============  ==========  ========================
    site          symbol      shape
    ============  ==========  ========================
    ``probs``     :math:`p`   (num_features,)
    ``observed``  :math:`t`   (num_data, num_features)
    ============  ==========  ========================

    >>> from jax import random
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(bernoulli_product, num_samples=1)
    >>> draw(random.key(0), num_data=7, num_features=16)["observed"].shape
    (1, 7, 16)
    """
    columns = num_columns(data, num_features)
    probs = numpyro.sample("probs", prior_probs.expand((columns,)).to_event(1))
    with data_plate(data, num_data):
        return observe(dist.Bernoulli(probs=probs), data, mask)
