"""Noisy-OR network: layers of binary causes, each of which may turn on units below."""

from __future__ import annotations

from collections.abc import Sequence

import numpyro
import numpyro.distributions as dist
from jax import Array

from .distributions import NoisyOr
from .program import data_plate, num_columns, observe


def noisy_or_network(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    layers: Sequence[int] = (10, 5),
    prior_weights: dist.Distribution = dist.Gamma(1.0, 1.5),
    prior_leak: dist.Distribution = dist.Gamma(2.0, 2.0),
) -> Array:
    r"""Noisy-OR network: layers of bits, each of which may turn on bits below.

    Lewicki & Sejnowski, *Bayesian unsupervised learning of higher order structure*, NIPS 1996.

    .. math::

        P(S_j = 1 \mid \text{parents}) = h\Big(\sum_i S_i w_{ij}\Big) \quad (2), \qquad
        h(u) = 1 - e^{-u}, \quad w \ge 0

    A unit without an active parent would never be on; the leak of each unit is the weight from a
    parent that is always on. The default prior of the weights is the paper's, :math:`\alpha = 1`,
    :math:`\beta = 1.5`. That of a leak, :math:`\alpha = \beta = 2`, has the density zero at zero,
    as if the unit had been on without a cause in one more row. A leak of zero, which is often the
    most likely one, makes every further such row impossible: held-out rows of IMG, a network of
    Buhai et al. (2020), are 0.13 nats less likely than under the true network at the maximum of
    the likelihood, 0.03 at the mode of the posterior.

    With hidden layers l = 1, 2, ..., the lowest first, and the inputs as layer 0:

    =============  ====================================  =============================
    site           paper's symbol                        shape
    =============  ====================================  =============================
    ``weights_l``  :math:`w` from layer l to layer l-1   (layers[l-1], units of l-1)
    ``leak_l``     :math:`w` from a unit always on       (units of l,), l = 0, 1, ...
    ``layer_l``    :math:`S` of layer l                  (num_data, layers[l-1])
    ``observed``   :math:`S` of the inputs               (num_data, num_features)
    =============  ====================================  =============================

    :param layers: the number of units of each hidden layer, from the lowest to the top.

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(noisy_or_network, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=25, layers=(10, 5)))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["layer_2"].shape, sites["layer_1"].shape, sites["observed"].shape
    ((1, 7, 5), (1, 7, 10), (1, 7, 25))
    """
    if len(layers) == 0:
        raise ValueError("`layers` is empty: give the size of at least one hidden layer")
    units = (num_columns(data, num_features), *layers)
    top = len(layers)
    leak = [
        numpyro.sample(f"leak_{level}", prior_leak.expand((units[level],)).to_event(1))
        for level in range(top + 1)
    ]
    weights = [
        numpyro.sample(
            f"weights_{level + 1}",
            prior_weights.expand((units[level + 1], units[level])).to_event(2),
        )
        for level in range(top)
    ]
    with data_plate(data, num_data):
        causal_input = leak[top]
        for level in reversed(range(top)):
            layer = numpyro.sample(f"layer_{level + 1}", NoisyOr(causal_input).to_event(1))
            causal_input = layer @ weights[level] + leak[level]
        return observe(NoisyOr(causal_input), data, mask)
