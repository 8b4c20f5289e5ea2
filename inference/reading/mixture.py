"""The distribution that an observed site has when the latents above it are summed out."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from numpyro.distributions.util import validate_sample

from .anatomy import Anatomy
from .settled import settled
from .sums import Part, log_sum


class StateMixture(dist.Distribution):
    r"""A mixture over candidate states, one per datum.

    .. math:: \log p(y_n \mid \text{sites before}) =
              \log \sum_s \exp\{\log w_{sn} + \alpha \log p(y_n \mid s)\}
              - \log \sum_s \exp\{\log w_{sn}\}

    :param component: p(y | s), its leftmost batch axis the S candidates.
    :param log_weights: log p(s), (S, rows or 1); over a truncated set they sum to less than one,
        and the mixture is a lower bound.
    :param before: the sites of the datum observed before this one, whose log probabilities belong
        to :math:`\log w` as well, each with its value.
    :param power: :math:`\alpha`, where the site is scaled differently from the latents.
    :param alike: whether the mask of the site, if it has one, is the same for all states.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("component", "log_weights", "before", "power")
    pytree_aux_fields = ("anatomy", "alike")

    def __init__(
        self,
        component: dist.Distribution,
        log_weights: Array,
        before: tuple[Part, ...],
        power: Any,
        anatomy: Anatomy,
        alike: bool = True,
    ):
        # Plates inside the data plate (a plate of columns, say) belong to the datum: they become
        # event axes, so that one number per datum is left.
        inner = -anatomy.plate_dim - 1
        self.component = component.to_event(inner) if inner else component
        self.log_weights, self.before, self.power = log_weights, before, power
        self.anatomy, self.alike = anatomy, alike
        super().__init__(
            batch_shape=self.component.batch_shape[-1:], event_shape=self.component.event_shape
        )

    @property
    def support(self) -> Any:
        return self.component.support

    def part(self, value: Array) -> Part:
        """What this site adds to the log weights of the states once its value is known."""
        return Part(settled(self.component), value, self.power, self.alike)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        total = log_sum(self.log_weights, (*self.before, self.part(value)), *self.batch_shape)
        if not self.before:  # unless the set of states is truncated, their prior sums to one
            return total
        return total - log_sum(self.log_weights, self.before, *self.batch_shape)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        key_state, key_value = random.split(key)
        weights = self.log_weights
        for part in self.before:
            weights = weights + part.log_prob(*self.batch_shape)
        weights = jnp.broadcast_to(weights, weights.shape[:1] + self.batch_shape)
        chosen = random.categorical(
            key_state, weights, axis=0, shape=sample_shape + self.batch_shape
        )
        draws = self.component.sample(key_value, sample_shape)
        axis = len(sample_shape)
        draws = draws.reshape((*sample_shape, -1, *self.batch_shape, *self.event_shape))
        index = chosen.reshape((*sample_shape, 1, *self.batch_shape) + (1,) * self.event_dim)
        return jnp.take_along_axis(draws, index, axis=axis).squeeze(axis)
