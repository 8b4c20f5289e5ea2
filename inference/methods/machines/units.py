r"""A combination machine by its form: moments of its units, their biases, a well-scaled gradient.

With the mean :math:`c_i = \hat E(x \mid h_i = 1)` of the data that unit i is on for, the statistics
:math:`h_i (x - c_i)` and :math:`h_i` are uncorrelated. In those coordinates a step along

.. math:: \Delta\omega^{(i)}_j = \frac{g^\omega_{ij} - c_{ij} g^\theta_i}{\mathrm{Var}(h_i x_j)},
          \qquad \Delta\theta^{(i)} + c_i \cdot \Delta\omega^{(i)} = \frac{g^\theta_i}
          {\hat E(h_i) (1 - \hat E(h_i))}

is a Newton step on what one unit knows, its diagonal at least. The plain gradient takes a thousand
steps where this takes a hundred: a unit of large weights has a bias of minus their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from latentbits.models.distributions import CombinationCauses, RealCombinationCauses
from latentbits.models.state_sums import log_normalizer
from numpy.typing import ArrayLike

from ...reading.log_joint import Structure
from ...reading.reader import sum_softplus
from ...reading.recognition.papers import Form, Known, recognise
from ...reading.states import AllStates
from ...rows.chunks import Rows, over_rows, sum_over_chunks
from ...types import Arguments, Params
from .ascent import Climb
from .partition import Causes

KINDS: dict[Form, type[Causes]] = {
    Form.MACHINE: CombinationCauses,
    Form.REAL_MACHINE: RealCombinationCauses,
}
MOST_UNITS = 14
"""Of a machine whose biases are solved for: each round sums the 2^m states several times."""
LEAST_VARIANCE, LARGEST_STEP = 0.02, 2.0
ROUNDS = 25
"""Newton steps to the biases."""


class Examples(NamedTuple):
    """The rows of a combination machine."""

    model: Callable  # without its normaliser
    known: Known
    rows: Rows
    chunk_size: int

    @property
    def kind(self) -> type[Causes]:
        return KINDS[self.known.form]

    def read(self, arguments: Arguments) -> tuple[Array, Array | None]:
        """Rows as the machine has them, (n, num_features), bits as −1 and +1, 0 where a cell is
        missing; and 1 where it is not."""
        value, mask = self.known.seen(self.model, arguments)
        values = value.astype(float)
        if self.known.form is Form.MACHINE:
            values = 2.0 * values - 1.0
        return (values, None) if mask is None else (jnp.where(mask, values, 0.0), mask * 1.0)

    def whole(self) -> Array:
        """All rows at once."""
        return self.read(self.rows.whole())[0]

    def sum(self, function: Callable[[Array, Array], Any]) -> Any:
        """The sum of `function(rows, fresh)` over chunks."""

        part = lambda arguments, fresh: function(self.read(arguments)[0], fresh)  # noqa: E731
        return sum_over_chunks(part, self.rows, self.chunk_size)

    def log_likelihood(self, weights: Array, bias: Array) -> Array:
        """That of all rows under the machine, equations (2.4) and (2.6)."""

        def part(x: Array, fresh: Array) -> Array:
            return fresh @ _row(self.kind, x, _inputs(x, weights, bias))

        log_z = log_normalizer(self.kind.log_mass, weights, bias)
        return self.sum(part) - self.rows.total * log_z

    def solve_biases(self, weights: Array, bias: Array, rounds: int = ROUNDS) -> Array:
        r"""The biases of most likelihood for given weights, by Newton steps of EM.

        The mean of the units under the machine is the slope of :math:`\log Z` in the biases, their
        covariance its curvature; the M-step makes the mean that of the data.
        """
        states = jnp.asarray(AllStates().table((2,) * len(bias)), weights.dtype)
        log_mass = self.kind.log_mass(jnp.matmul(states, weights, precision="highest"))

        def once(_: Array, bias: Array) -> Array:
            wanted = self.sum(lambda x, fresh: fresh @ jax.nn.sigmoid(_inputs(x, weights, bias)))
            share = jax.nn.softmax(states @ bias + log_mass)
            mean = share @ states
            apart = states - mean
            curvature = (apart * share[:, None]).T @ apart + 1e-3 * jnp.eye(len(bias))
            step = jnp.linalg.solve(curvature, wanted / self.rows.total - mean)
            return bias + step * jnp.minimum(1.0, LARGEST_STEP / (jnp.abs(step).max() + 1e-30))

        return lax.fori_loop(0, rounds, once, bias)


class Machine(NamedTuple):
    """A program that is a combination machine, opened on its rows."""

    examples: Examples
    climb: Climb

    @property
    def known(self) -> Known:
        return self.examples.known

    def evaluate(self, params: Params) -> tuple[Array, Params, Params]:
        """The log likelihood, its gradient, (3.5) and (3.6) or (3.8) and (3.9), and the moments.

        The clamped phase is the moments of the units; the sleep phase the slope of log Z.
        """
        values, count, kind = self.known.read(params), self.climb.rows.total, self.examples.kind
        weights, bias = values["weights"], values["bias"]
        real = self.known.form is Form.REAL_MACHINE

        def part(x: Array, fresh: Array) -> Any:
            inputs = _inputs(x, weights, bias)
            on = fresh[:, None] * jax.nn.sigmoid(inputs)
            sums = over_rows(on, jnp.concatenate([x, x**2], 1) if real else x)
            cross, *square = jnp.split(sums, 1 + real, axis=1)
            total = fresh @ _row(kind, x, inputs)
            return total, on.sum(0), cross, square[0] if real else ()

        log_z = lambda w, b: log_normalizer(kind.log_mass, w, b)  # noqa: E731
        normalizer, (by_weights, by_bias) = jax.value_and_grad(log_z, (0, 1))(weights, bias)
        total, on, cross, square = self.examples.sum(part)
        gradient = {"weights": cross - count * by_weights, "bias": on - count * by_bias}
        square = square if real else jnp.broadcast_to(on[:, None], cross.shape)
        moments = {"on": on / count, "cross": cross / count, "square": square / count}
        return total - count * normalizer, self.known.write(gradient), moments

    def scaled(self, moments: Params, gradient: Params) -> Params:
        """A gradient of the mean log likelihood as a step of Newton's size; see above."""
        slope, on, cross = self.known.read(gradient), moments["on"], moments["cross"]
        centre = cross / (on[:, None] + 1e-6)
        spread = moments["square"] - centre * cross
        slope_weights = slope["weights"] - centre * slope["bias"][:, None]
        step = slope_weights / jnp.maximum(spread, LEAST_VARIANCE)
        shift = slope["bias"] / jnp.maximum(on * (1.0 - on), LEAST_VARIANCE)
        return self.known.write({"weights": step, "bias": shift - (centre * step).sum(1)})


def find_machine(model: Callable, climb: Climb) -> Machine | None:
    """The program as a machine, if it is one of few units, without holes or weights of rows."""
    anatomy = climb.reader.anatomy
    linear = climb.reader.structure is Structure.LINEAR and not anatomy.weighted
    if not linear or not anatomy.binary or anatomy.num_bits > MOST_UNITS:
        return None
    known = recognise(model, anatomy, climb.rows, tuple(KINDS))
    if known is None:
        return None
    return Machine(Examples(climb.reader.model, known, climb.rows, climb.chunk_size), climb)


def _inputs(x: Array, weights: Array, bias: Array) -> Array:
    return jnp.matmul(x, weights.T, precision="highest") + bias


def _row(kind: type[Causes], x: Array, inputs: Array) -> Array:
    """The log likelihood of each row but for log Z, (n,)."""
    each = sum_softplus(inputs)
    return each if kind is CombinationCauses else each - 0.5 * (x**2).sum(-1)


def universal_machine(probabilities: ArrayLike, accuracy: float = 1e-6) -> Params:
    r"""Parameters of a `combination_machine` that has the given distribution of bits (section 2.5).

    Of each vector v a hidden unit of its own raises the odds over the least probable one to
    :math:`q_v = p_v / p_{min}`, and leaves all others as they are to within a factor of
    :math:`1 + \epsilon`:

    .. math:: \omega = a\, v, \quad \theta = -n a + \ln(q_v - 1), \quad
              a = \tfrac12 \ln \frac{\max(q_v - 1, 1)}{\epsilon} .

    The least probable vectors need no unit: theirs have weights 0, and do nothing. A probability of
    0 is taken to be `accuracy` times the least of the others.

    :param probabilities: (2,) * n: entry (t_1, …, t_n) is that of the bits t; they sum to 1.
    :param accuracy: :math:`\epsilon`: how far a unit may disturb the others.
    :return: ``weights`` (2^n, n) and ``bias`` (2^n,).

    >>> params = universal_machine([[0.1, 0.2], [0.3, 0.4]])
    >>> params["weights"].shape
    (4, 2)
    """
    table = np.asarray(probabilities, float)
    if table.ndim < 1 or set(table.shape) != {2}:
        raise ValueError(
            f"probabilities must have shape (2, …, 2), one axis per bit; found {table.shape}"
        )
    if not (table >= 0).all() or not np.isclose(table.sum(), 1.0):
        raise ValueError(f"probabilities must be positive and sum to 1, found {table.sum()}")
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy must be between 0 and 1, found {accuracy}")
    flat = table.ravel()
    least = flat[flat > 0].min()
    flat = np.where(flat > 0, flat, accuracy * least)
    vectors = 2.0 * np.stack(np.unravel_index(np.arange(flat.size), table.shape), axis=1) - 1.0
    more = flat / flat.min() - 1.0
    needed = more > 0
    log_more = np.log(np.where(needed, more, 1.0))
    size = 0.5 * (np.maximum(log_more, 0.0) - np.log(accuracy))
    weights = np.where(needed[:, None], size[:, None] * vectors, 0.0)
    bias = np.where(needed, log_more - table.ndim * size, 0.0)
    return {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
