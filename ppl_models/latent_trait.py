"""Latent trait: continuous factors, a logistic regression for each observed bit."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate, num_columns, observe, predictor


def latent_trait(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_factors: int = 2,
    covariates: Array | None = None,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 5.0),
    prior_effects: dist.Distribution = dist.Normal(0.0, 1.0),
    slope: Literal["free", "equal"] = "free",
    guessing: bool = False,
    prior_guessing: dist.Distribution | None = None,
) -> Array:
    r"""2PL item response model of bits, on one factor or several.

    Tipping, *Probabilistic visualisation of high-dimensional binary data*, NIPS 1998.

    .. math::

        p(x) = \mathcal N(x; 0, I), \qquad
        P(t_i = 1 \mid x) = \sigma(w_i^T x + b_i) \qquad (2)

    The factors are identified up to a rotation. With `guessing` a bit is 1 with probability
    :math:`g_i` at least (Birnbaum's 3PL),

    .. math:: P(t_i = 1 \mid x) = g_i + (1 - g_i)\, \sigma(w_i^T x + b_i).

    ============  ==============  ===============================
    site          paper's symbol  shape
    ============  ==============  ===============================
    ``weights``   :math:`w_i`     (num_factors, num_features)
    ``bias``      :math:`b`       (num_features,)
    ``guessing``  :math:`g_i`     (num_features,), with `guessing`
    ``factors``   :math:`x`       (num_data, num_factors)
    ``observed``  :math:`t`       (num_data, num_features)
    ============  ==============  ===============================

    :param covariates: numbers for each row, (num_data, num_covariates), with which the mean of its
        factors goes, ``covariates @ effects``: latent regression. About it, they have variance one.
    :param prior_effects: of each effect, for covariates of mean 0 and deviation 1.
    :param slope: "equal": all columns have the same weights, (num_factors, 1): with one factor this
        is the 1PL, or Rasch model with the variance of the factor free.
    :param guessing: whether each column has a lower asymptote.
    :param prior_guessing: of each of them; by default Beta(5, 17), whose mode is 0.2.

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(latent_trait, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=16))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["factors"].shape, sites["observed"].shape
    ((1, 7, 2), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    shape = (num_factors, columns if slope == "free" else 1)
    weights = numpyro.sample("weights", prior_weights.expand(shape).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand((columns,)).to_event(1))
    low = None
    if guessing:
        prior = dist.Beta(5.0, 17.0) if prior_guessing is None else prior_guessing
        low = numpyro.sample("guessing", prior.expand((columns,)).to_event(1))
    mean = 0.0 if covariates is None else predictor(covariates, num_factors, prior_effects)
    with data_plate(data, num_data):
        normal = dist.Normal(mean, 1.0).expand((*jnp.shape(mean)[:-1], num_factors))
        factors = numpyro.sample("factors", normal.to_event(1))
        logits = factors @ weights + bias
        if low is not None:
            # log[p / (1 − p)], p = g + (1 − g) σ, without a difference that loses digits.
            odds = jnp.log(low) - jnp.log1p(-low)
            logits = jnp.logaddexp(odds, logits - jnp.log1p(-low))
        return observe(dist.Bernoulli(logits=logits), data, mask)
