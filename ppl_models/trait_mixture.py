"""Mixture of latent traits: a component and a position for each row, a map for each component."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate, num_columns, observe


def trait_mixture(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_components: int,
    num_factors: int = 2,
    prior_mixing: dist.Distribution | None = None,
    prior_weights: dist.Distribution = dist.Normal(0.0, 1.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 2.0),
) -> Array:
    r"""Mixture of latent traits, or mixture IRT: a map for each component.

    The "multiple models in a more complex hierarchical architecture" of Tipping (1998), § 6.

    A row belongs to one of K components and has a position on that component's own map, as Bishop &
    Tipping (1998) do it for numbers:

    .. math::

        P(z = k) = \pi_k, \qquad p(x) = \mathcal N(x; 0, I), \qquad
        P(t_i = 1 \mid x, z = k) = \sigma(w_{ki}^T x + b_{ki})

    Without factors it is `bernoulli_mixture`, with one component `latent_trait`. A component fits
    few rows, so its priors are narrower than those of `latent_trait`: fit it with ``prior=True``.

    =============  ================  ===========================================
    site           symbol            shape
    =============  ================  ===========================================
    ``mixing``     :math:`\pi`       (num_components,)
    ``weights``    :math:`w_{ki}`    (num_components, num_factors, num_features)
    ``bias``       :math:`b_{ki}`    (num_components, num_features)
    ``component``  :math:`z`         (num_data,)
    ``factors``    :math:`x`         (num_data, num_factors)
    ``observed``   :math:`t`         (num_data, num_features)
    =============  ================  ===========================================

    :param prior_mixing: a distribution on the simplex; by default the uniform one.

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(trait_mixture, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=16, num_components=3))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["component"].shape, sites["factors"].shape, sites["observed"].shape
    ((1, 7), (1, 7, 2), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    if prior_mixing is None:
        prior_mixing = dist.Dirichlet(jnp.ones(num_components))
    mixing = numpyro.sample("mixing", prior_mixing)
    shape = (num_components, num_factors, columns)
    weights = numpyro.sample("weights", prior_weights.expand(shape).to_event(3))
    bias = numpyro.sample("bias", prior_bias.expand((num_components, columns)).to_event(2))
    with data_plate(data, num_data):
        component = numpyro.sample("component", dist.Categorical(probs=mixing))
        independent = dist.Normal(0.0, 1.0).expand((num_factors,))
        factors = numpyro.sample("factors", independent.to_event(1))
        # All components' logits, of which one is taken: a gather of weights would be D·Q a row.
        every = jnp.einsum("...q,kqd->...kd", factors, weights) + bias
        # Either may have an axis of states in front that the other lacks.
        index = jnp.asarray(component)[..., None, None]
        ndim = max(index.ndim, every.ndim)
        index, every = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (index, every))
        logits = jnp.take_along_axis(every, index, axis=-2)[..., 0, :]
        return observe(dist.Bernoulli(logits=logits), data, mask)
