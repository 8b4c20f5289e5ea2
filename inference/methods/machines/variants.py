"""Starts of a combination machine, and variants of one: units found in what others leave over."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from ...reading.recognition.papers import Form
from ...types import Params
from ..shared import missed_least
from .pursuit import ProjectionPursuit, PursuitState, Sample
from .units import Machine

SHARPNESS = 3.0
"""How much sooner the unit that is missed least is given up than others, or the one turned that
asks most for it."""
ROUNDS = 8
"""Newton steps to the biases: the climb does the rest."""


def pursued(machine: Machine, key: Array) -> Params:
    """A unit after the other by projection pursuit, and the biases that suit them all."""
    pursuit = _pursuit(machine)
    state = _left_over(machine, key, machine.examples.whole())

    def once(_: Array, state: PursuitState) -> PursuitState:
        return pursuit.one_more(state, Sample(machine.examples, state), None)

    state = lax.fori_loop(0, len(state.gains), once, state)
    return _solved(machine, machine.known.read(state.params)["weights"], state.bias)


def replanted(machine: Machine, key: Array, params: Params) -> Params:
    r"""The machine with the unit that is missed least planted where the others leave most over.

    Optima that are not the best mostly have one unit for two shapes that overlap, and a unit that
    is hardly ever on.

    Since log(1 + e^z) = log(1 + e^{−z}) + z, a unit may stand with the opposite sign if a unit that
    is always on adds what is missing. Before such a unit is given up, all that need it are turned.
    """
    key_unit, key_plant = random.split(key)
    values = machine.known.read(params)
    weights, bias = values["weights"], values["bias"]
    x = machine.examples.whole()
    on = jax.nn.sigmoid(jnp.matmul(x, weights.T, precision="highest") + bias)
    rate, link = on.mean(0), _link(machine)
    least = missed_least(weights, rate * (1.0 - rate) * (link(weights) ** 2).sum(1))
    chosen = random.categorical(key_unit, SHARPNESS * least)
    square, inner = (weights**2).sum(1), weights @ weights[chosen]
    turned = (2.0 * inner + square < 0.0) & (rate[chosen] > 0.5)
    sign = jnp.where(turned, -1.0, 1.0)
    weights, bias = sign[:, None] * weights, sign * bias
    on = jnp.where(turned, 1.0 - on, on).at[:, chosen].set(0.0)
    left = x - link(jnp.matmul(on, weights, precision="highest"))
    state = _left_over(machine, key_plant, left)
    new, first, _ = _pursuit(machine).one_unit(key_plant, Sample(machine.examples, state))
    return _solved(machine, weights.at[chosen].set(new), bias.at[chosen].set(first))


def varied(machine: Machine, key: Array, params: Params) -> Params:
    """The machine with one unit planted anew or turned, either as often."""
    key_coin, key = random.split(key)
    ways = replanted, turned
    return lax.cond(
        random.bernoulli(key_coin), *(lambda key, p, way=way: way(machine, key, p) for way in ways),
        key, params,
    )  # fmt: skip


def turned(machine: Machine, key: Array, params: Params) -> Params:
    r"""The machine with the opposite sign of one unit.

    What is then missing in every row, :math:`\omega` and :math:`\theta` of the unit, others add
    that are always on, alone or together, as two of which one is on when the other is not: those
    whose sum, by least squares, is nearest to one. Such a sum asks for a unit to be turned if it is
    smaller afterwards.
    """
    values = machine.known.read(params)
    weights, bias = values["weights"], values["bias"]
    x = machine.examples.whole()
    on = jax.nn.sigmoid(jnp.matmul(x, weights.T, precision="highest") + bias)
    both, rate = jnp.matmul(on.T, on, precision="highest") / len(x), on.mean(0)
    square = (weights**2).sum(1)
    always = _always(both, rate) @ weights
    chosen = random.categorical(key, -SHARPNESS * (1.0 + 2.0 * (weights @ always) / square))
    # Of the unit turned, 1 − h.
    other = jnp.where(jnp.arange(len(rate)) == chosen, 0.0, 1.0)
    carry = other * _always(both * other * other[:, None], rate * other)
    weights, bias = (
        (x + carry.reshape(-1, *(1,) * (x.ndim - 1)) * x[chosen]).at[chosen].set(-x[chosen])
        for x in (weights, bias)
    )
    return _solved(machine, weights, bias)


def _always(both: Array, rate: Array) -> Array:
    """Weights with which the units add up to one in all rows, by least squares, (num_causes,)."""
    return jnp.linalg.solve(both + 1e-3 * jnp.eye(len(rate)), rate)


def _link(machine: Machine) -> Callable[[Array], Array]:
    """From the sum of active weights to the mean of the observed units."""
    return jnp.tanh if machine.known.form is Form.MACHINE else lambda field: field


def _pursuit(machine: Machine) -> ProjectionPursuit:
    # The paper finds 4 steps of EM enough; what they leave undone the climb does.
    return ProjectionPursuit(
        machine.climb.reader.model, significant=False, em_steps=8, num_starts=5
    )


def _left_over(machine: Machine, key: Array, left: Array) -> PursuitState:
    """Pursuit before its first unit, on what is left of the data."""
    count = machine.climb.reader.anatomy.num_bits
    bias, no, zero = jnp.zeros(count), jnp.zeros((), bool), jnp.zeros((), int)
    params = machine.known.write({"weights": jnp.zeros((count, left.shape[1])), "bias": bias})
    return PursuitState(params, bias, left, bias, no, zero, key, key)


def _solved(machine: Machine, weights: Array, bias: Array) -> Params:
    bias = machine.examples.solve_biases(weights, bias, ROUNDS)
    return machine.known.write({"weights": weights, "bias": bias})
