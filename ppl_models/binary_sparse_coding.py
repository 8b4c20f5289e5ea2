"""Binary sparse coding: binary causes add up, Gaussian noise on top."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate, num_columns, observe


def binary_sparse_coding(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_causes: int,
    shared_sparsity: bool = True,
    prior_weights: dist.Distribution = dist.Normal(0.0, 10.0),
    prior_noise: dist.Distribution = dist.HalfNormal(10.0),
    prior_sparsity: dist.Distribution = dist.Uniform(0.0, 1.0),
) -> Array:
    r"""Henniges, Puertas, Bornschein, Eggert & Lücke, *Binary sparse coding*, LVA/ICA 2010.

    .. math::

        p(s \mid \pi) = \prod_h \pi^{s_h} (1 - \pi)^{1 - s_h}, \qquad
        p(y \mid s) = \mathcal N(y; W s, \sigma^2 I) \qquad (1)

    ============  ==============  ==========================
    site          paper's symbol  shape
    ============  ==============  ==========================
    ``weights``   :math:`W^T`     (num_causes, num_features)
    ``noise``     :math:`\sigma`  ()
    ``sparsity``  :math:`\pi`     ()
    ``causes``    :math:`s`       (num_data, num_causes)
    ``observed``  :math:`y`       (num_data, num_features)
    ============  ==============  ==========================

    :param shared_sparsity: False: each cause has a prior probability of its own, :math:`\pi_h`;
        ``sparsity`` is then (num_causes,).

    >>> from jax import random
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(binary_sparse_coding, num_samples=1)
    >>> sites = draw(random.key(0), num_data=7, num_features=25, num_causes=10)
    >>> sites["causes"].shape, sites["observed"].shape
    ((1, 7, 10), (1, 7, 25))
    """
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_causes, columns)).to_event(2))
    noise = numpyro.sample("noise", prior_noise)
    each = () if shared_sparsity else (num_causes,)
    sparsity = numpyro.sample("sparsity", prior_sparsity.expand(each).to_event(len(each)))
    with data_plate(data, num_data):
        active = dist.Bernoulli(probs=jnp.broadcast_to(sparsity, (num_causes,)))
        causes = numpyro.sample("causes", active.to_event(1))
        return observe(dist.Normal(causes @ weights, noise), data, mask)
