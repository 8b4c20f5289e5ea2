"""Sparse coding: causes that are on by degrees, or off."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate, num_columns, observe


def sparse_coding(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_causes: int,
    spike: bool = True,
    slab: dist.Distribution = dist.Normal(0.0, 1.0),
    prior_weights: dist.Distribution = dist.Normal(0.0, 10.0),
    prior_noise: dist.Distribution = dist.HalfNormal(10.0),
    prior_sparsity: dist.Distribution = dist.Uniform(0.0, 1.0),
) -> Array:
    r"""Sparse coding with causes that have a strength: spike and slab, or Laplacian.

    The discussion of Henniges et al. (2010) announces it.

    .. math::

        z_h \sim \mathrm{slab}, \qquad s_h \sim \mathrm{Bernoulli}(\pi), \qquad
        y \sim \mathcal N(W (s \circ z), \sigma^2 I)

    With a Gaussian slab this is spike-and-slab sparse coding (Goodfellow, Courville & Bengio, ICML
    2012; Sheikh, Shelton & Lücke, JMLR 15, 2014); without the spike and with a Laplace or Student-t
    slab it is that of Olshausen & Field (1996).

    =============  ==============  ==========================
    site           symbol          shape
    =============  ==============  ==========================
    ``weights``    :math:`W^T`     (num_causes, num_features)
    ``noise``      :math:`\sigma`  ()
    ``sparsity``   :math:`\pi`     (), with a spike
    ``causes``     :math:`s`       (num_data, num_causes), with a spike
    ``strengths``  :math:`z`       (num_data, num_causes)
    ``observed``   :math:`y`       (num_data, num_features)
    =============  ==============  ==========================

    :param spike: False: every cause is on, to a degree.
    :param slab: the distribution of a strength. Its scale is that of ``weights``.

    >>> from jax import random
    >>> from numpyro.handlers import seed
    >>> laplace = {"spike": False, "slab": dist.Laplace(0.0, 1.0)}
    >>> seed(sparse_coding, random.key(0))(num_data=7, num_features=9, num_causes=3).shape
    (7, 9)
    >>> seed(sparse_coding, random.key(0))(jnp.zeros((7, 9)), num_causes=3, **laplace).shape
    (7, 9)
    """
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_causes, columns)).to_event(2))
    noise = numpyro.sample("noise", prior_noise)
    sparsity = numpyro.sample("sparsity", prior_sparsity) if spike else None
    with data_plate(data, num_data):
        strengths = numpyro.sample("strengths", slab.expand((num_causes,)).to_event(1))
        if sparsity is not None:
            active = dist.Bernoulli(probs=jnp.broadcast_to(sparsity, (num_causes,)))
            strengths = strengths * numpyro.sample("causes", active.to_event(1))
        return observe(dist.Normal(strengths @ weights, noise), data, mask)
