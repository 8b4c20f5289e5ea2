"""Clipped Gaussian: continuous factors add up, and only the sign of the sum is seen."""

from __future__ import annotations

import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from .distributions import ClippedNormal
from .program import data_plate, num_columns, observe


def clipped_gaussian(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_factors: int,
    noise: ArrayLike = 1.0,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 5.0),
) -> Array:
    r"""Tetrachoric factor model: bits are the signs of a Gaussian with few factors.

    Lee & Sompolinsky, *Learning a continuous hidden variable model for binary data*, NIPS 1998.

    .. math::

        p(y) = \mathcal N(y; 0, I) \quad (1), \qquad
        x = W y \quad (2), \qquad
        s_i = \mathrm{sgn}(\xi_i + x_i + \sqrt{\psi_i} \, \epsilon_i) \quad (8)

    The paper's clip is hard, :math:`\psi = 0`. Noise before the clip, :math:`\epsilon \sim \mathcal
    N(0, I)`, makes a probit model, :math:`P(s_i = 1 \mid y) = \Phi((\xi_i + w_i^T y) /
    \sqrt{\psi_i})`, which methods that need a gradient can use. A sign does not know the scale:
    only :math:`W` and :math:`\xi` over the standard deviation of the clipped variable are
    identified. The paper's :math:`s = \pm 1` is :math:`2t - 1` for the observed :math:`t` in
    {0, 1}.

    ============  ===================  ===========================
    site          paper's symbol       shape
    ============  ===================  ===========================
    ``weights``   :math:`W^T`          (num_factors, num_features)
    ``bias``      :math:`\xi`          (num_features,)
    ``factors``   :math:`y`            (num_data, num_factors)
    ``observed``  :math:`(1 + s) / 2`  (num_data, num_features)
    ============  ===================  ===========================

    :param noise: the standard deviation :math:`\sqrt{\psi}` before the clip, a scalar or one for
        each column; 0 is the hard clip. It is a setting, not a site: data cannot tell it from the
        scale of ``weights`` and ``bias``.

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(clipped_gaussian, num_samples=1)
    >>> sizes = {"num_data": 7, "num_features": 16, "num_factors": 2, "noise": 0.0}
    >>> compiled = jax.jit(lambda key: draw(key, **sizes))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["factors"].shape, sites["observed"].shape
    ((1, 7, 2), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_factors, columns)).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand((columns,)).to_event(1))
    with data_plate(data, num_data):
        independent = dist.Normal(0.0, 1.0).expand((num_factors,))
        factors = numpyro.sample("factors", independent.to_event(1))
        return observe(ClippedNormal(factors @ weights + bias, noise), data, mask)
