r"""Sums over many states of bits, from log joints of a few.

Where the log joint of a datum is quadratic in its bits (`inference.reading.local` tests it),

.. math:: \log p(y_n, s) = c_n + \sum_i b_{ni} s_i + \sum_{i<j} A_{nij} s_i s_j ,

it is known from the state without any bit on, those with one and those with two: the program runs
on these alone, and a state costs as many multiplications as it has bits, or pairs of them, instead
of as many as a datum has columns. Where it is linear, A is zero, and the sum over all states is a
product over the bits, of which none is listed:

.. math:: \log \sum_s p(y_n, s) = c_n + \sum_i \log(1 + e^{b_{ni}}) .
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics.log_sums import log_product, log_total
from .states import AtMost


class Quadratic(NamedTuple):
    """The log joint of a chunk of rows."""

    constant: Array  # c, (n,)
    linear: Array  # b, (bits, n)
    pairs: Array | None  # A, (pairs, n), or (pairs, 1) where all rows share it; None if it is zero

    def over(self, states: Array) -> tuple[Array, Array, Array | None]:
        """Log joints of states (S, bits), but for c, as `numerics.log_sums.scores` wants them.

        What two bits add is a number of each state where all rows share it, else it is one more
        feature.
        """
        if self.pairs is None:
            return states, self.linear, None
        if self.pairs.shape[1] == 1:
            return states, self.linear, _bent(states, self._matrix()[0])
        first, second = np.triu_indices(len(self.linear), 1)
        both = states[:, first] * states[:, second]
        features = jnp.concatenate([self.linear, self.pairs])
        return jnp.concatenate([states, both], 1), features, None

    def own(self, states: Array) -> Array:
        """Log joints of the states of each row, (n, S, bits), but for c: (n, S)."""
        logits = jnp.einsum("nsh,hn->ns", states, self.linear, precision="highest")
        return logits if self.pairs is None else logits + _bent(states, self._matrix())

    def _matrix(self) -> Array:
        """A as matrices with nothing on and below their diagonals, (n or 1, bits, bits)."""
        assert self.pairs is not None
        num_bits = len(self.linear)
        first, second = np.triu_indices(num_bits, 1)
        shape = (self.pairs.shape[1], num_bits, num_bits)
        return jnp.zeros(shape, self.pairs.dtype).at[:, first, second].set(self.pairs.T)


def _bent(states: Array, matrix: Array) -> Array:
    return (jnp.matmul(states, matrix, precision="highest") * states).sum(-1)


class BitsForm:
    """The states to sum over, and the few that the program is run on.

    Static: it is part of what is traced, and equal to nothing but itself.

    :param states: (S, bits) for all rows, or (S, num_data, bits); None for all states of linear
        programs, which are not listed.
    :param linear: whether A is zero.
    :param shared: whether all rows have the same A.
    """

    def __init__(
        self, num_bits: int, states: np.ndarray | Array | None, *, linear: bool, shared: bool
    ):
        self.num_bits, self.states, self.linear, self.shared = num_bits, states, linear, shared

    @property
    def by_row(self) -> bool:
        return self.states is not None and self.states.ndim == 3

    @property
    def table(self) -> np.ndarray:
        """The states that the program is run on: none, one or two bits on."""
        return AtMost(1 if self.linear else 2).table((2,) * self.num_bits)

    @property
    def floats(self) -> int:
        """Numbers of a row that the sum holds at once, besides those of `table`."""
        if self.states is None:
            return 0
        return len(self.states) * (self.num_bits if self.by_row else 1)

    def split(self, log_joint: Array) -> Quadratic:
        """c, b and A from log joints of `table`, (P, n)."""
        constant, one = log_joint[0], log_joint[1 : 1 + self.num_bits]
        return Quadratic(constant, one - constant, self.pairs(log_joint))

    def pairs(self, log_joint: Array) -> Array | None:
        """A, (pairs, n), from log joints of `table`, (P, n)."""
        if self.linear:
            return None
        first, second = np.triu_indices(self.num_bits, 1)
        one = log_joint[1 : 1 + self.num_bits]
        rest = log_joint[1 + self.num_bits :]
        return rest - one[first] - one[second] + log_joint[0]

    def total(self, form: Quadratic, states: Array | None, keep: bool = False) -> Array:
        """The log of the sum over the states, (n,).

        :param states: those of each row, (n, S, bits), if rows differ in them.
        :param keep: as for `log_total`.
        """
        if self.states is None:
            return form.constant + sum_softplus(form.linear.T)
        kind = form.linear.dtype
        if states is not None:
            return form.constant + log_total(form.own(states.astype(kind)), 1, keep)
        return form.constant + log_product(*form.over(jnp.asarray(self.states, kind)), keep)


@jax.custom_jvp
def sum_softplus(x: Array) -> Array:
    """Σ log(1 + exp x) over the last axis.

    Factors of at most 2 each are multiplied first: one logarithm serves 64 of them.

    >>> round(float(sum_softplus(jnp.array([0.0, 0.0, -50.0, 100.0]))), 4)  # 2 log 2 + 100
    101.3863
    """
    factors = 1.0 + jnp.exp(-jnp.abs(x))
    logs = [jnp.log(factors[..., i : i + 64].prod(-1)) for i in range(0, x.shape[-1], 64)]
    return sum(logs, jnp.maximum(x, 0.0).sum(-1))


@sum_softplus.defjvp
def _sum_softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return sum_softplus(x), jnp.sum(jax.nn.sigmoid(x) * dx, -1)
