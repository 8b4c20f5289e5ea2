"""The distribution that an observed site has when the latents above it are summed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from ..numerics.log_sums import log_total
from ..rows.chunks import Rows
from ..types import Params
from .abstract import each_value
from .anatomy import Anatomy, ProgramError
from .distributions import settled
from .forms import BitsForm, product_floats
from .log_joint import log_joint
from .sums import Part, in_chunks, log_sum, within_rows


def support_of(fn: dist.Distribution) -> Any:
    """Where the values of a distribution over states lie, as whole events.

    NumPyro says of the value of a `factor` that each of its (no) numbers is real. Bounds that
    differ between states bound none of the values.
    """
    support, base = fn.support, each_value(fn.support)
    bounds = [getattr(base, name, 0) for name in ("lower_bound", "upper_bound")]
    if support.is_discrete and any(jnp.ndim(x) for x in bounds):
        support = constraints.nonnegative_integer
    lacking = len(fn.event_shape) - support.event_dim
    return constraints.independent(support, lacking) if lacking else support


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
    :param bits: the states that the few of `component` stand for, if they do.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("component", "log_weights", "before", "power")
    pytree_aux_fields = ("anatomy", "alike", "bits")

    def __init__(
        self,
        component: dist.Distribution,
        log_weights: Array,
        before: tuple[Part, ...],
        power: Any,
        anatomy: Anatomy,
        alike: bool = True,
        bits: BitsForm | None = None,
    ):
        self.component = within_rows(component, anatomy)
        self.log_weights, self.before, self.power = log_weights, before, power
        self.anatomy, self.alike, self.bits = anatomy, alike, bits
        super().__init__(
            batch_shape=self.component.batch_shape[-1:], event_shape=self.component.event_shape
        )

    @property
    def support(self) -> Any:
        return support_of(self.component)

    def part(self, value: Array) -> Part:
        """What this site adds to the log weights of the states once its value is known."""
        return Part(settled(self.component), value, self.power, self.alike)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        def total(parts: tuple[Part, ...]) -> Array:
            return log_sum(self.log_weights, parts, self.batch_shape[0], self.bits)

        both = total((*self.before, self.part(value)))
        # Unless the set of states is truncated, their prior sums to one.
        return both - total(self.before) if self.before else both

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        if self.bits is not None:
            raise ProgramError(
                "where data are given nothing is drawn in their place: call the program without"
            )
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


class ProgramMixture(dist.Distribution):
    """The same mixture where rows have distributions, or states, of their own.

    Nothing that the states of all rows make at once is held: the program is run anew, on the states
    of a chunk of rows.

    :param model: the program, the sites in `params` being all that its rows depend on.
    :param component: p(y | s), of which only the shapes are used.
    :param table: states (S, num_data or 1, bits).
    :param before: the sites of the datum observed before this one, each with its value.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("params", "rows", "table", "before")
    pytree_aux_fields = ("model", "anatomy", "site", "own_support", "bits")
    _found: tuple[Array, Array] | None = None

    def __init__(
        self,
        model: Callable,
        anatomy: Anatomy,
        site: str,
        component: dist.Distribution,
        params: Params,
        rows: Rows,
        table: Array,
        before: dict[str, Array],
        bits: BitsForm | None,
    ):
        component = within_rows(component, anatomy)
        self.model, self.anatomy, self.site = model, anatomy, site
        self.params, self.rows, self.table, self.before = params, rows, table, before
        self.own_support, self.bits = support_of(component), bits
        super().__init__(component.batch_shape[-1:], component.event_shape)

    @property
    def support(self) -> Any:
        return self.own_support

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        # Asked twice, by `marginal.watch` and by whoever uses the program, it would run twice.
        if self._found is None or self._found[0] is not value:
            both = self._total({**self.before, self.site: self._whole(value)})
            self._found = value, both - self._total(self.before) if self.before else both
        return self._found[1]

    def _whole(self, value: Array) -> Array:
        # A distribution may have one column for several that are observed.
        shape = jnp.broadcast_shapes(jnp.shape(value), self.batch_shape + self.event_shape)
        return jnp.broadcast_to(value, shape)

    def _total(self, values: dict[str, Array]) -> Array:
        """log Σ_s p(s, values) of every row, (num_data,)."""
        by_row = self.table.shape[1] > 1
        states = self.bits.states if self.bits is not None and self.bits.by_row else None
        chunked = {
            "leaves": tuple(self.rows.leaves),
            "values": values,
            "table": jnp.swapaxes(self.table, 0, 1) if by_row else None,
            "states": None if states is None else jnp.swapaxes(jnp.asarray(states), 0, 1),
        }

        def evidence(chunk: dict[str, Any]) -> Array:
            size = len(chunk["leaves"][0])
            table = jnp.swapaxes(chunk["table"], 0, 1) if by_row else self.table
            program = handlers.seed(handlers.substitute(self.model, data=chunk["values"]), 0)
            logits = log_joint(
                program, self.anatomy.with_rows(size), self.params, table.astype(jnp.int32),
                self.rows.join(chunk["leaves"]), set(values),
            )  # fmt: skip
            if self.bits is None:
                return log_total(logits, 0, False)
            return self.bits.total(self.bits.split(logits), chunk["states"])

        width = self.rows.width + self.anatomy.num_bits
        floats = len(self.table) * width + (0 if self.bits is None else self.bits.floats)
        return in_chunks(evidence, chunked, self.rows.num_data, max(1, product_floats() // floats))
