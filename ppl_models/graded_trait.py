"""Graded trait: continuous factors behind answers on an ordered scale, such as 1 to 5."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions.transforms import OrderedTransform

from .program import by_levels, check_levels, data_plate, observe_levels, predictor


def graded_trait(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    levels: int | Sequence[int],
    num_features: int | None = None,
    num_factors: int = 1,
    covariates: Array | None = None,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_effects: dist.Distribution = dist.Normal(0.0, 1.0),
    prior_cutpoints: dist.Distribution = dist.Normal(0.0, 2.0),
) -> Array:
    r"""Graded response model of ordered levels, on one factor or several.

    Samejima (1969); the 2PL is the case of two levels.

    Factors :math:`x \sim \mathcal N(0, I)` as in `latent_trait`; a column of K levels 0, …, K − 1
    has one weight vector and K − 1 increasing cutpoints:

    .. math:: P(t_i \ge k \mid x) = \sigma(w_i^T x - c_{ik}), \qquad k = 1, …, K - 1

    Columns may have different numbers of levels: their cutpoints stand in one site for each number.
    In the 2PL's words the discrimination is :math:`w_i`, the difficulty of level k
    :math:`c_{ik} / w_i`. The factors are identified up to a rotation. A scale has no right answer
    that could be guessed: lower asymptotes are an option of `latent_trait`.

    ================  ===============  ====================================
    site              symbol           shape
    ================  ===============  ====================================
    ``weights``       :math:`w_i`      (num_factors, num_features)
    ``cutpoints_K``   :math:`c_{ik}`   (columns of K levels, K - 1)
    ``factors``       :math:`x`        (num_data, num_factors)
    ``observed_K``    :math:`t`        (num_data, columns of K levels)
    ================  ===============  ====================================

    :param levels: the number of levels of each column, or one number for all.
    :param covariates: numbers for each row, (num_data, num_covariates), with which the mean of its
        factors goes, ``covariates @ effects``: latent regression. About it, they have variance one.
    :param prior_effects: of each effect, for covariates of mean 0 and deviation 1.
    :param prior_cutpoints: of the first cutpoint, and of the logarithm of the gaps between
        neighbours (NumPyro's ``OrderedTransform``).

    >>> import jax
    >>> from numpyro.handlers import seed
    >>> draw = jax.jit(lambda key: seed(graded_trait, key)(num_data=7, levels=(2, 5, 5)))
    >>> draw(jax.random.key(0)).shape
    (7, 3)
    """
    groups = by_levels(numbers := check_levels(data, mask, levels, num_features))
    weights = prior_weights.expand((num_factors, len(numbers))).to_event(2)
    weights = jnp.asarray(numpyro.sample("weights", weights))
    cutpoints = {}
    for k, columns in groups.items():
        base = prior_cutpoints.expand((len(columns), k - 1)).to_event(1)
        ordered = dist.TransformedDistribution(base, OrderedTransform()).to_event(1)
        cutpoints[k] = numpyro.sample(f"cutpoints_{k}", ordered)
    mean = 0.0 if covariates is None else predictor(covariates, num_factors, prior_effects)
    with data_plate(data, num_data):
        normal = dist.Normal(mean, 1.0).expand((*jnp.shape(mean)[:-1], num_factors))
        factors = numpyro.sample("factors", normal.to_event(1))
        fns = {
            k: dist.OrderedLogistic(factors @ weights[:, columns], cutpoints[k])
            for k, columns in groups.items()
        }
        return observe_levels(fns, numbers, data, mask)
