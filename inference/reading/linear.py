r"""Programs whose log joint is linear in their bits: evidence and posterior in closed form.

.. math::

    \log p(y_n, s) = c_n + b_n \cdot s \quad\Rightarrow\quad
    \log p(y_n) = c_n + \sum_i \log(1 + e^{b_{ni}}), \qquad
    P(s_i = 1 \mid y_n) = \mathrm{logistic}(b_{ni})

For the combination machine this is equation (2.4) of Freund & Haussler (1994), with
:math:`b = \omega x + \theta` and :math:`c = -\log Z`, found by reading the program: c is the log
joint of the state without any bit on, and b what each bit adds to it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..types import Arguments, Params
from .bits import BitsForm, Quadratic, sum_softplus
from .reader import Reader
from .recover import table_posterior
from .sums import over_states


class LinearForm(NamedTuple):
    """log p(y_n, s) = constant_n + linear_n·s."""

    constant: Array  # (num_data,)
    linear: Array  # (num_data, num_bits)

    @property
    def evidence(self) -> Array:
        """log p(y_n), (num_data,)."""
        return self.constant + sum_softplus(self.linear)

    @property
    def mean(self) -> Array:
        """P(s_i = 1 | y_n), (num_data, num_bits)."""
        return jax.nn.sigmoid(self.linear)

    @property
    def best(self) -> Array:
        """The most probable state of each datum, (num_data, num_bits)."""
        return (self.linear > 0).astype(jnp.int32)


def linear_form(reader: Reader, params: Params, arguments: Arguments) -> LinearForm:
    """The form of every row of a program that is known to be linear."""
    anatomy = reader.anatomy
    bits = BitsForm(anatomy.num_bits, None, linear=True, shared=True)
    table = jnp.asarray(bits.table, jnp.int32)[:, None]

    def read(form: Quadratic, _: None) -> LinearForm:
        return LinearForm(form.constant, form.linear.T)

    # By default a GPU multiplies single precision with ten bits.
    with jax.default_matmul_precision("highest"):
        few = table_posterior(reader.model, anatomy, params, table, arguments)
        return over_states(read, few.log_weights, few.parts, anatomy.num_data, bits=bits)
