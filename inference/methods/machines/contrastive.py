"""Contrastive divergence: the sleep phase by a few sweeps of Gibbs sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from numpyro.optim import Momentum

from ...reading.anatomy import Anatomy, ProgramError
from ...reading.forms import sum_softplus
from ...reading.log_joint import Structure
from ...reading.reader import linear_form
from ...rows.chunks import Numbers
from ...running.algorithm import Algorithm
from ...types import Arguments, Params
from ..discrete.em import EM
from ..shared import Posterior
from .ascent import (
    Climb,
    Optimizer,
    linear_posterior,
    near_origin,
    open_climb,
    optimizer_of,
    without_normalizer,
)
from .partition import MACHINES, Causes, causes_of, normalizer


class ContrastiveState(NamedTuple):
    """What the next step needs."""

    params: Params
    optim_state: Any
    rng_key: Array
    hidden: Array | None  # (num_chains, num_bits): where the chains are, if they persist


@dataclasses.dataclass(frozen=True, eq=False)
class ContrastiveDivergence(Algorithm):
    r"""Contrastive divergence, plain or persistent: gradient ascent with a sampled sleep phase.

    The gradient of :math:`\log Z` is the mean over the machine's own draws of that of
    :math:`\sum_i \log(1 + e^{\omega^{(i)} \cdot x + \theta^{(i)}})`. The draws are `num_sweeps` of
    block Gibbs sampling away from the data (Hinton 2002), or from where the chains were left by the
    last step (Tieleman 2008), so that machines of any number of units can be trained. Everything
    else is as in `ExactGradient`. What it reports as loss is the difference in free energy between
    data and draws, not a likelihood.

    :param model: `combination_machine`, `real_combination_machine`, or any program whose hidden
        units are so distributed and whose log joint is linear in them.
    :param persistent: keep the chains between steps.
    :param num_sweeps: of Gibbs sampling, a step.
    :param num_chains: of the persistent form; the plain one has one for each datum, which is begun
        anew in each step and not kept.
    :param optimizer: of NumPyro or optax; by default momentum, as in `ExactGradient`.
    :param prior: add the prior of the parameters to what is climbed.
    :param chunk_size: rows read at a time; by default as many as fit into 32 MiB.

    >>> from latentbits.models import combination_machine
    >>> from latentbits.models.data import combination_target
    >>> data = combination_target(random.key(0), 200).data[:, :6]
    >>> method = ContrastiveDivergence(combination_machine, persistent=True)
    >>> state = jax.eval_shape(lambda: method.init(random.key(1), data, num_causes=40))
    >>> state.params["weights"].shape, state.hidden.shape
    ((40, 6), (500, 40))
    """

    by_row = ()

    model: Callable
    _: dataclasses.KW_ONLY
    persistent: bool = False
    num_sweeps: int = 1
    num_chains: int = 500
    optimizer: Optimizer | None = None
    learning_rate: float = 0.1
    momentum: float = 0.9
    prior: bool = False
    start: Callable[..., Params] | None = None
    spread: float = 0.1
    chunk_size: int | None = None
    plate: str | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        reason = EM.admits(anatomy)
        if reason is None and not anatomy.binary:
            reason = "Gibbs sampling in two blocks needs bits"
        if reason is None and not {x.kind for x in anatomy.latents} <= MACHINES:
            reason = "its latents are normalised by themselves: there is no sleep phase"
        return reason or anatomy.why_not_once

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> ContrastiveState:
        climb = self._open(args, kwargs)
        if problem := self.admits(climb.reader.anatomy):
            raise ProgramError(f"contrastive divergence is not for this program: {problem}")
        key_start, key_chains, key = random.split(rng_key, 3)
        params, optim_state = near_origin(
            climb, key_start, self.spread, init_params, self.start, (args, kwargs),
            self._optimizer(),
        )  # fmt: skip
        hidden = None
        if self.persistent:
            shape = (self.num_chains, climb.reader.anatomy.num_bits)
            hidden = random.bernoulli(key_chains, 0.5, shape).astype(float)
        return ContrastiveState(params, optim_state, key, hidden)

    def update(
        self, state: ContrastiveState, *args: Any, **kwargs: Any
    ) -> tuple[ContrastiveState, Array]:
        climb = self._open(args, kwargs)
        key, key_clamp, key_sleep = random.split(state.rng_key, 3)
        few, named = climb.rows.slice(0, 1)
        hidden = state.hidden
        causes = causes_of(without_normalizer(self.model), state.params, *few, **named)
        if hidden is not None:
            hidden, observed = sweeps(key_sleep, causes, hidden, self.num_sweeps)
            program = normalizer(self.model, _surrogate(observed))
            total, gradient = climb.value_and_grad(state.params, program)
        else:
            size = min(climb.chunk_size, climb.rows.num_data)
            local = climb.reader.at(size)._replace(model=without_normalizer(self.model))

            def program_of(arguments: Arguments, numbers: Array, fresh: Array) -> Callable:
                probability = linear_form(local, state.params, arguments).mean

                def draw(number: Array, probability: Array) -> Array:
                    clamped = random.bernoulli(random.fold_in(key_clamp, number), probability)
                    key_row = random.fold_in(key_sleep, number)
                    start = clamped[None].astype(probability.dtype)
                    return sweeps(key_row, causes, start, self.num_sweeps)[1][0]

                observed = jax.vmap(draw)(numbers, probability)
                share = fresh / jnp.maximum(fresh.sum(), 1.0)
                return normalizer(self.model, _surrogate(observed, share))

            total, gradient = climb.summed(state.params, program_of, Numbers())
        if self.prior:
            extra, slope = jax.value_and_grad(climb.prior)(state.params)
            total, gradient = total + extra, jax.tree.map(jnp.add, gradient, slope)
        optimizer = self._optimizer()
        downhill = jax.tree.map(lambda g: -g / climb.rows.total, gradient)
        optim_state = optimizer.update(downhill, state.optim_state, value=-total)
        params = optimizer.get_params(optim_state)
        return ContrastiveState(params, optim_state, key, hidden), -total

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row given parameters, exact; the evidence lacks its log Z."""
        climb = self._open(args, kwargs)
        return linear_posterior(climb, params, without_normalizer(self.model))

    def _open(self, args: tuple, kwargs: dict) -> Climb:
        climb = open_climb(
            without_normalizer(self.model), args, kwargs, self.plate, self.chunk_size
        )
        if climb.reader.structure is not Structure.LINEAR:
            raise ProgramError(
                "contrastive divergence is for hidden units that are independent given the data; "
                f"the log joint of this program is {climb.reader.structure.value}"
            )
        return climb

    def _optimizer(self) -> Any:
        optim = self.optimizer
        return Momentum(self.learning_rate, self.momentum) if optim is None else optimizer_of(optim)


def _surrogate(observed: Array, weights: Array | None = None) -> Callable[[Causes], Array]:
    """A function of the parameters with the value and the slope that log Z would have, were the
    draws the machine's own."""

    def value(causes: Causes) -> Array:
        each = sum_softplus(observed @ jnp.asarray(causes.weights).T + causes.bias)
        return each.mean() if weights is None else weights @ each

    return value


@jax.default_matmul_precision("highest")
def sweeps(key: Array, causes: Causes, hidden: Array, count: int) -> tuple[Array, Array]:
    """Block Gibbs sampling from hidden states: those at the end, and the observed ones they met."""

    def sweep(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        hidden, _ = carry
        key_observed, key_hidden = random.split(key)
        observed = type(causes).draw_observed(key_observed, hidden @ causes.weights)
        probability = jax.nn.sigmoid(observed @ jnp.asarray(causes.weights).T + causes.bias)
        return (random.bernoulli(key_hidden, probability).astype(hidden.dtype), observed), None

    start = (hidden, hidden @ causes.weights)
    (hidden, observed), _ = lax.scan(sweep, start, random.split(key, count))
    return hidden, observed
