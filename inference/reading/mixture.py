"""The distribution that an observed site has when the latents above it are summed out."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from .anatomy import Anatomy


class StateMixture(dist.Distribution):
    r"""A mixture over candidate states, one per datum.

    .. math:: \log p(y_n \mid \text{sites before}) =
              \log \sum_s \exp\{\log w_{sn} + \alpha \log p(y_n \mid s)\} - e_n

    :param component: p(y | s), its leftmost batch axis the S candidates.
    :param log_weights: :math:`\log w`, (S, rows); over a truncated set they sum to less than one,
        and the mixture is a lower bound.
    :param evidence: :math:`e`, what the sites before this one already contributed, (rows,) or 0.
    :param power: :math:`\alpha`, where the site is scaled differently from the latents.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("component", "log_weights", "evidence", "power")
    pytree_aux_fields = ("anatomy",)

    def __init__(
        self,
        component: dist.Distribution,
        log_weights: Array,
        evidence: Array | float,
        power: Any,
        anatomy: Anatomy,
    ):
        # Plates inside the data plate (a plate of columns, say) belong to the datum: they become
        # event axes, so that one number per datum is left.
        inner = -anatomy.plate_dim - 1
        self.component = component.to_event(inner) if inner else component
        self.log_weights, self.evidence, self.power = log_weights, evidence, power
        self.anatomy = anatomy
        super().__init__(
            batch_shape=self.component.batch_shape[-1:], event_shape=self.component.event_shape
        )

    @property
    def support(self) -> Any:
        return self.component.support

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        bits = _alike_in_all_rows(self.component) if jnp.ndim(value) == 2 else None
        if bits is None:
            log_prob = self.component.log_prob(value).reshape((-1, *self.batch_shape))
        else:
            log_prob = _all_pairs(bits, jnp.asarray(value))
        return logsumexp(self.log_weights + self.power * log_prob, axis=0) - self.evidence

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        key_state, key_value = random.split(key)
        weights = jnp.broadcast_to(self.log_weights, self.log_weights.shape[:1] + self.batch_shape)
        chosen = random.categorical(
            key_state, weights, axis=0, shape=sample_shape + self.batch_shape
        )
        draws = self.component.sample(key_value, sample_shape)
        axis = len(sample_shape)
        draws = draws.reshape((*sample_shape, -1, *self.batch_shape, *self.event_shape))
        index = chosen.reshape((*sample_shape, 1, *self.batch_shape) + (1,) * self.event_dim)
        return jnp.take_along_axis(draws, index, axis=axis).squeeze(axis)


def _alike_in_all_rows(fn: dist.Distribution) -> dist.Distribution | None:
    """Independent bits to which a state gives the same chances in every row, (S, 1, D), or None."""
    if not isinstance(fn, dist.Independent) or fn.reinterpreted_batch_ndims != 1:
        return None
    bits: dist.Distribution = fn.base_dist
    if isinstance(bits, dist.ExpandedDistribution):  # by the plate
        bits = bits.base_dist
    alike = len(bits.batch_shape) == 3 and bits.batch_shape[1] == 1 and not bits.event_shape
    masked = isinstance(bits, dist.MaskedDistribution)
    return bits if alike and not masked and bits.support is constraints.boolean else None


def _all_pairs(bits: dist.Distribution, value: Array) -> Array:
    """Log p(y_n | s), (S, rows), in two products of matrices: it is linear in the bits of y."""
    log_one, log_zero = (jnp.squeeze(bits.log_prob(x), 1) for x in (1.0, 0.0))
    lowest = jnp.finfo(log_one.dtype).min  # nought times minus infinity would be no number
    value = value.astype(log_one.dtype)
    total = jnp.matmul(jnp.maximum(log_one, lowest), value.T, precision="highest")
    total += jnp.matmul(jnp.maximum(log_zero, lowest), 1.0 - value.T, precision="highest")
    return jnp.where(total <= lowest, -jnp.inf, total)
