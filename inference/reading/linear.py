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
from .bits import sum_softplus
from .joint import quadratic_of
from .reader import Reader


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
    form = quadratic_of(reader.model, reader.anatomy, params, arguments, linear=True)
    return LinearForm(form.constant, form.linear.T)
