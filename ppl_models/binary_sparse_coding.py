"""Binary sparse coding: binary causes add up, Gaussian noise on top."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax

from .program import data_plate, num_columns, observe


def binary_sparse_coding(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    num_features: int | None = None,
    num_causes: int,
    shared_sparsity: bool = True,
    superposition: str = "sum",
    prior_weights: dist.Distribution = dist.Normal(0.0, 10.0),
    prior_noise: dist.Distribution = dist.HalfNormal(10.0),
    prior_sparsity: dist.Distribution = dist.Uniform(0.0, 1.0),
) -> Array:
    r"""Sparse coding with binary causes that add up, in Gaussian noise.

    Henniges, Puertas, Bornschein, Eggert & Lücke, *Binary sparse coding*, LVA/ICA 2010.

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
    :param superposition: ``"max"``: causes do not add up, a pixel shows the one whose weight there
        is of the largest magnitude (maximal causes: Lücke & Sahani, JMLR 9, 2008, for positive
        weights; Bornschein, Henniges & Lücke, PLoS Comput. Biol. 9, 2013, for any).

    >>> import jax
    >>> from numpyro.infer import Predictive
    >>> draw = Predictive(binary_sparse_coding, num_samples=1)
    >>> compiled = jax.jit(lambda key: draw(key, num_data=7, num_features=25, num_causes=10))
    >>> sites = compiled(jax.random.key(0))
    >>> sites["causes"].shape, sites["observed"].shape
    ((1, 7, 10), (1, 7, 25))
    """
    if superposition not in ("sum", "max"):
        raise ValueError(f"`superposition` is {superposition!r}: wanted 'sum' or 'max'")
    columns = num_columns(data, num_features)
    weights = numpyro.sample("weights", prior_weights.expand((num_causes, columns)).to_event(2))
    noise = numpyro.sample("noise", prior_noise)
    each = () if shared_sparsity else (num_causes,)
    sparsity = numpyro.sample("sparsity", prior_sparsity.expand(each).to_event(len(each)))
    with data_plate(data, num_data):
        active = dist.Bernoulli(probs=jnp.broadcast_to(sparsity, (num_causes,)))
        causes = numpyro.sample("causes", active.to_event(1))
        shown = causes @ weights if superposition == "sum" else strongest(causes, weights)
        return observe(dist.Normal(shown, noise), data, mask)


def strongest(causes: Array, weights: Array) -> Array:
    """Of the terms of causes (..., H) @ weights (H, D), the one of largest magnitude: (..., D).

    >>> strongest(jnp.array([1.0, 1.0, 0.0]), jnp.array([[1.0, 2.0], [-3.0, 1.0], [9.0, 9.0]]))
    Array([-3.,  2.], dtype=float32)
    """

    def compare(best: tuple[Array, Array], each: tuple[Array, Array, Array]) -> tuple[tuple, None]:
        value, place = best
        cause, row, here = each
        term = jnp.abs(cause[..., None] * row)
        larger = term > value
        return (jnp.where(larger, term, value), jnp.where(larger, here, place)), None

    # Cause by cause, as all terms at once would take H times the memory; which of them is the
    # largest has no gradient.
    terms = lax.stop_gradient((jnp.moveaxis(causes, -1, 0), weights))
    shape = (*causes.shape[:-1], weights.shape[-1])
    none = jnp.zeros(shape, jnp.result_type(causes, weights)), jnp.zeros(shape, int)
    (_, place), _ = lax.scan(compare, none, (*terms, jnp.arange(len(weights))))
    chosen = jnp.take_along_axis(causes, place, axis=-1)
    return chosen * weights[place, jnp.arange(weights.shape[-1])]
