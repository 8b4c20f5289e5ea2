"""Gradient ascent on the exact log likelihood: Freund & Haussler (1994), section 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.flatten_util import ravel_pytree
from numpyro.optim import Momentum

from ...numerics.quasi_newton import Descent
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.log_joint import Structure
from ...reading.recognition.papers import Form
from ...rows.chunks import Rows, compiled, over_rows
from ...running.algorithm import Algorithm
from ...running.search import Narrow, Search
from ...types import Params
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
from .partition import normalizer, truncated
from .units import LARGEST_STEP, Machine, find_machine
from .variants import pursued, varied

LEARNING_RATE, MOMENTUM = 0.1, 0.9
SEARCH = Search(effort=0.5)
"""A variant of a machine, by pursuit, costs as much as many steps. With 8 rounds before 1000 steps
nine of ten keys end at the best optimum known of a data set of the paper's targets."""
MORE = 2, 3
"""Times as many rounds, and steps of each, on a real machine: its units are on together, and what
tells them apart shows late."""
LARGEST = 2.0
"""No element of (3.5), the difference of two means of ±1, is larger, so that the paper's machine
never meets this bound. In other programs gradients have any size, and a noise that begins far too
small is thrown so far that the climb is lost."""


class _LBFGS:
    """What `near_origin` asks of an optimiser."""

    @staticmethod
    def init(free: Params) -> Descent:
        return Descent.at(ravel_pytree(free)[0])


class GradientState(NamedTuple):
    """What the next step needs."""

    params: Params
    optim_state: Any


@dataclasses.dataclass(frozen=True, eq=False)
class ExactGradient(Algorithm):
    """Gradient ascent on the log likelihood with the latents summed out exactly.

    For the combination machine the gradient is that of equations (3.5) and (3.6), the clamped phase
    less the sleep phase, both exact; for the real one (3.8) and (3.9). It is found by autodiff of
    the program, and so for any program of discrete latents.

    A run with default arguments looks for the best of several starts (`search`). Those of a machine
    of at most 14 units are by projection pursuit, and variants have one unit turned, or planted
    anew in what the others leave over (`machines.variants`). Its steps are those of L-BFGS, scaled
    by what each unit knows (`machines.units`).

    :param model: any program with discrete latents inside its data plate.
    :param optimizer: of NumPyro or optax; by default gradient ascent with momentum: each step is
        `learning_rate` times the gradient of the mean log likelihood, of which no element counts as
        larger than `LARGEST`, plus `momentum` times the last step.
    :param learning_rate: with it or `momentum` given a machine is climbed by its plain gradient, as
        in the paper; 0.1 by default.
    :param momentum: 0.9 by default.
    :param max_active: of a combination machine, sum the sleep phase over the hidden states with at
        most so many active units only (section 3): for machines of more units than can be summed.
    :param prior: climb the posterior density of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``, or ``"base_rates"`` for
        `from_base_rates`; by default near the origin.
    :param search: how the best of several starts is looked for; None: one start, near the origin as
        in the paper. With `start` given there is one.
    :param chunk_size: rows read at a time; by default as many as fit into memory.

    >>> from latentbits.models import combination_machine
    >>> from latentbits.models.data import combination_target
    >>> data = combination_target(random.key(0), 200).data[:, :6]
    >>> method = ExactGradient(combination_machine)
    >>> state = jax.eval_shape(lambda: method.init(random.key(1), data, num_causes=2))
    >>> state.params["weights"].shape, state.params["bias"].shape
    ((2, 6), (2,))
    """

    by_row = ()
    window = 10

    model: Callable
    _: dataclasses.KW_ONLY
    optimizer: Optimizer | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    max_active: int | None = None
    prior: bool = False
    start: Callable[..., Params] | Literal["base_rates"] | None = None
    search: Search | None = SEARCH
    spread: float = 0.1
    chunk_size: int | None = None
    plate: str | None = None

    @cached_property
    def _asleep(self) -> Callable:
        """The program with the sleep phase that is asked for."""
        if self.max_active is None:
            return self.model
        most = self.max_active
        return normalizer(self.model, lambda causes: truncated(causes, most).value)

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        return EM.admits(anatomy)

    def default_steps(self, anatomy: Anatomy) -> int:
        del anatomy
        return 1000  # a gradient does less in a step than a closed form

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> GradientState:
        climb = self._open(args, kwargs)
        key_start, _ = random.split(rng_key)
        start = from_base_rates if self.start == "base_rates" else self.start
        optimizer = self._optimizer(self._scaled(climb))
        about = self.spread, init_params, start, (args, kwargs), optimizer
        return GradientState(*near_origin(climb, key_start, *about))

    def update(
        self, state: GradientState, *args: Any, **kwargs: Any
    ) -> tuple[GradientState, Array]:
        climb = self._open(args, kwargs)
        machine, count = self._scaled(climb), climb.total_weight(state.params)
        if machine is not None:
            return self._quasi_newton(machine, state)
        optimizer = self._optimizer(None)
        free = optimizer.get_params(state.optim_state)

        def along(gradient: Params) -> Params:
            """The gradient with respect to the unconstrained parameters, a datum, downhill."""
            _, pullback = jax.vjp(lambda f: climb.constrain(f, state.params), free)
            down = jax.tree.map(lambda g: -g / count, pullback(gradient)[0])
            if self.optimizer is not None:
                return down
            return jax.tree.map(lambda g: jnp.clip(g, -LARGEST, LARGEST), down)

        total, gradient = climb.value_and_grad(state.params, self._asleep)
        if self.prior:
            extra, slope = jax.value_and_grad(climb.prior)(state.params)
            total, gradient = total + extra, jax.tree.map(jnp.add, gradient, slope)
        optim_state = optimizer.update(along(gradient), state.optim_state, value=-total)
        params = climb.constrain(optimizer.get_params(optim_state), state.params)
        return GradientState(params, optim_state), -total

    def _quasi_newton(self, machine: Machine, state: GradientState) -> tuple[GradientState, Array]:
        """An evaluation of L-BFGS: of the lowest point so far both the parameters and the loss."""
        climb, descent, count = machine.climb, state.optim_state, machine.climb.rows.total
        build = ravel_pytree(climb.free(state.params))[1]
        params, pullback = jax.vjp(
            lambda vector: climb.constrain(build(vector), state.params), descent.trial
        )
        total, gradient, moments = machine.evaluate(params)
        if self.prior:
            extra, slope = jax.value_and_grad(climb.prior)(params)
            total, gradient = total + extra, jax.tree.map(jnp.add, gradient, slope)
        down = -pullback(gradient)[0] / count

        def scaled(vector: Array) -> Array:
            return ravel_pytree(machine.scaled(moments, build(vector)))[0]

        descent = descent.after(-total / count, down, scaled, LARGEST_STEP)
        params = climb.constrain(build(descent.point), state.params)
        return GradientState(params, descent), descent.value * count

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        """Parameters of a start: of a machine by pursuit, else near the origin."""
        machine = self._machine(self._open(args, kwargs))
        if machine is None:
            return super().propose(rng_key, *args, **kwargs)
        return pursued(machine, rng_key)

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params:
        """A machine with one unit planted anew or turned; of other programs a start."""
        machine = self._machine(self._open(args, kwargs))
        if machine is None:
            return self.propose(rng_key, *args, **kwargs)
        return varied(machine, rng_key, params)

    def narrowed(self, rows: Rows) -> Narrow:
        """Of a real machine of few units, the directions in which its rows vary most.

        Its weights lie there, and all other directions are noise: on these alone there are fewer
        optima, and a step takes half of the time.
        """
        as_they_are = super().narrowed(rows)
        if len(rows.leaves) != 1 or jnp.ndim(rows.leaves[0]) != 2:
            return as_they_are
        machine = self._scaled(self._open(*rows.whole()))
        if machine is None or machine.known.form is not Form.REAL_MACHINE:
            return as_they_are
        units = machine.climb.reader.anatomy.num_bits
        if 2 * units > rows.leaves[0].shape[1]:
            return as_they_are
        axes, leaf = compiled(partial(_leading, self, units), rows)(rows.leaves)
        few = rows._replace(leaves=(leaf,))
        try:
            narrow = self._machine(self._open(*few.whole()))
        except ValueError:  # it is told how many columns there are
            return as_they_are
        if narrow is None:
            return as_they_are
        read, write = narrow.known.read, machine.known.write

        def widened(params: Params) -> Params:
            values = read(params)
            weights = jnp.matmul(values["weights"], axes.T, precision="highest")
            return write({**values, "weights": weights})

        return Narrow(few, jax.vmap(widened), MORE)

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row given parameters, exact."""
        climb = self._open(args, kwargs)
        if climb.reader.structure is Structure.LINEAR:
            return linear_posterior(climb, params, self._asleep)
        em = EM(self._asleep, structure=climb.reader.structure, plate=self.plate)
        return em.posterior(params, *args, **kwargs)

    def log_likelihood(self, params: Params, *args: Any, **kwargs: Any) -> Array:
        """The log likelihood of each row, (num_data,); pure."""
        return self._open(args, kwargs).log_likelihood(params, self._asleep)

    def _open(self, args: tuple, kwargs: dict) -> Climb:
        climb = open_climb(
            without_normalizer(self.model), args, kwargs, self.plate, self.chunk_size
        )
        if self.max_active is not None and climb.reader.structure is not Structure.LINEAR:
            raise ProgramError(
                "max_active cuts the sleep phase of a combination machine without holes in its "
                f"data; the log joint of this program is {climb.reader.structure.value}"
            )
        return climb

    def _machine(self, climb: Climb) -> Machine | None:
        """The program as a combination machine, if it is one whose states are all summed."""
        return find_machine(self.model, climb) if self.max_active is None else None

    def _scaled(self, climb: Climb) -> Machine | None:
        """The machine whose steps are scaled, where no setting says that they are not."""
        plain = self.learning_rate is None and self.momentum is None and self.optimizer is None
        return self._machine(climb) if plain else None

    def _optimizer(self, machine: Machine | None) -> Any:
        if self.optimizer is not None:
            return optimizer_of(self.optimizer)
        if machine is not None:
            return _LBFGS
        rate = LEARNING_RATE if self.learning_rate is None else self.learning_rate
        return Momentum(rate, MOMENTUM if self.momentum is None else self.momentum)


def _leading(method: ExactGradient, count: int, rows: Rows) -> tuple[Array, Array]:
    """The directions in which the rows vary most, (num_features, count), and the rows in them."""
    machine = method._machine(method._open(*rows.whole()))
    assert machine is not None
    second = machine.examples.sum(lambda x, fresh: over_rows(x * fresh[:, None], x))
    axes = jnp.linalg.eigh(second)[1][:, -count:]
    return axes, jnp.matmul(jnp.asarray(rows.leaves[0], float), axes, precision="highest")


def from_base_rates(
    key: Array,
    data: Array,
    *,
    num_causes: int,
    mask: Array | None = None,
    spread: float = 0.1,
    **sizes: Any,
) -> Params:
    """A start for a combination machine: the product of the bits' own rates, all but one unit idle.

    The first unit is always on and has half the log odds of the bits for weights: it does what the
    visible biases of a restricted Boltzmann machine do. The others are near zero. For data whose
    bits are mostly 0 or mostly 1 this is far ahead of a start near the origin.

    >>> rows = jnp.array([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    >>> first = from_base_rates(random.key(0), rows, num_causes=2)["weights"][0]
    >>> [round(float(x), 2) for x in first]  # half the log odds of 0.5, 2.5 and 1.5 of 3
    [-0.8, 0.8, 0.0]
    """
    del sizes
    data = jnp.asarray(data, float)
    observed = jnp.ones_like(data) if mask is None else jnp.asarray(mask, float)
    rate = ((data * observed).sum(0) + 0.5) / (observed.sum(0) + 1.0)
    weights = spread * random.normal(key, (num_causes, data.shape[1]))
    bias = jnp.zeros(num_causes).at[0].set(8.0)
    return {"weights": weights.at[0].set(0.5 * jnp.log(rate / (1.0 - rate))), "bias": bias}
