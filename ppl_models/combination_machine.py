"""Influence combination machine: each hidden unit, when on, pushes the observed ones its way."""

from __future__ import annotations

import numpyro
import numpyro.distributions as dist
from jax import Array

from .distributions import CombinationCauses, RealCombinationCauses
from .program import data_plate, num_columns, observe


def combination_machine(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_causes: int,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 100.0),
) -> Array:
    r"""Restricted Boltzmann machine: hidden bits whose log odds add up.

    Freund & Haussler, *Unsupervised learning of distributions on binary vectors using two layer
    networks*, UCSC-CRL-94-25, 1994.

    .. math::

        P(x, h) = \frac{1}{Z_B} \exp \sum_i h_i (\omega^{(i)} \cdot x + \theta^{(i)}),
        \quad x \in \{-1, 1\}^n, \quad h \in \{0, 1\}^m

    stated from the causes to the data: first :math:`h`, whose distribution (3.4) is summed over all
    :math:`2^m` states, then :math:`P(x_j = 1 \mid h) = \mathrm{logistic}(2 \omega(h)_j)` with
    :math:`\omega(h) = \sum_i h_i \omega^{(i)}` (2.3). The paper's :math:`x = \pm 1` is
    :math:`2t - 1` for the observed :math:`t` in {0, 1}.

    A unit of large weights is on about half the time when its bias is about minus their absolute
    sum, so the prior of the bias is wide.

    ============  =====================  ==========================
    site          paper's symbol         shape
    ============  =====================  ==========================
    ``weights``   :math:`\omega^{(i)}`   (num_causes, num_features)
    ``bias``      :math:`\theta^{(i)}`   (num_causes,)
    ``causes``    :math:`h`              (num_data, num_causes)
    ``observed``  :math:`(1 + x) / 2`    (num_data, num_features)
    ============  =====================  ==========================

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(combination_machine, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=16, num_causes=4))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["causes"].shape, sites["observed"].shape
    ((1, 7, 4), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_causes, columns)).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand((num_causes,)).to_event(1))
    with data_plate(data, num_data):
        causes = numpyro.sample("causes", CombinationCauses(weights, bias))
        return observe(dist.Bernoulli(logits=2 * causes @ weights), data, mask)


def real_combination_machine(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_causes: int,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 100.0),
) -> Array:
    r"""Gaussian–Bernoulli restricted Boltzmann machine: real data, hidden bits.

    Freund & Haussler (1994), equations (2.5) to (2.7) and (3.7).

    .. math::

        p(x, h) = \frac{1}{Z_R}
        \exp\Big(\sum_i h_i (\omega^{(i)} \cdot x + \theta^{(i)}) - \tfrac12 \|x\|^2\Big),
        \quad x \in \mathbb R^n, \quad h \in \{0, 1\}^m

    that is, :math:`h` from (3.7), then :math:`x \sim \mathcal N(\omega(h), I)`: a mixture of
    :math:`2^m` Gaussians at the sums of weight vectors. For small weights it approximates
    :func:`combination_machine` (section 2.6).

    ============  =====================  ==========================
    site          paper's symbol         shape
    ============  =====================  ==========================
    ``weights``   :math:`\omega^{(i)}`   (num_causes, num_features)
    ``bias``      :math:`\theta^{(i)}`   (num_causes,)
    ``causes``    :math:`h`              (num_data, num_causes)
    ``observed``  :math:`x`              (num_data, num_features)
    ============  =====================  ==========================

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(real_combination_machine, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=16, num_causes=4))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["causes"].shape, sites["observed"].shape
    ((1, 7, 4), (1, 7, 16))
    """
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_causes, columns)).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand((num_causes,)).to_event(1))
    with data_plate(data, num_data):
        causes = numpyro.sample("causes", RealCombinationCauses(weights, bias))
        return observe(dist.Normal(causes @ weights, 1.0), data, mask)
