r"""Programs whose log joint is linear in their bits: evidence and posterior in closed form.

.. math::

    \log p(y_n, s) = c_n + b_n \cdot s \quad\Rightarrow\quad
    \log p(y_n) = c_n + \sum_i \log(1 + e^{b_{ni}}), \qquad
    P(s_i = 1 \mid y_n) = \mathrm{logistic}(b_{ni})

For the combination machine this is equation (2.4) of Freund & Haussler (1994), with
:math:`b = \omega x + \theta` and :math:`c = -\log Z`, found by reading the program. Where c and b
are affine in the datum too, they are read once for all data, from the datum zero and the
derivatives there; what is left to do for N data is one matrix product. That they are is tested on
random rows and parameters, and never assumed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions.distribution import validation_enabled

from ..numerics.compiling import once
from ..rows.chunks import Rows
from ..types import Arguments, Params
from .bits import sum_softplus
from .local import (
    Structure,
    anywhere,
    general_position,
    linear_part,
    row_function,
    stand_in,
)
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


def linear_form(
    reader: Reader, params: Params, arguments: Arguments, affine: bool = False
) -> LinearForm:
    """The form of every row.

    :param affine: whether c and b are affine in the datum, as `find_affine` says.
    """
    rows, one = reader.rows(arguments), reader.at(1)
    point = general_position(1, reader.anatomy.num_bits)

    def read(leaves: tuple) -> tuple[Array, Array]:
        row = rows.join([leaf[None] for leaf in leaves])
        # A GPU multiplies single precision with ten bits unless told otherwise.
        with jax.default_matmul_precision("highest"):
            value, slope = linear_part(row_function(one.model, one.anatomy, params, row), point)
        # There is no curvature: the slope at the point is that at zero.
        return (value - (slope * point).sum(-1))[0], slope[0]

    if not affine:
        return LinearForm(*jax.vmap(read)(rows.leaves))
    (data,) = rows.leaves
    zero = jnp.zeros(data.shape[1:], jnp.result_type(float))
    (constant, linear), (by_constant, by_linear) = read((zero,)), jax.jacfwd(read)((zero,))
    flat = data.reshape(len(data), -1).astype(zero.dtype)
    slopes = jnp.concatenate([by_linear[0].reshape(len(linear), -1), by_constant[0].reshape(1, -1)])
    both = jnp.matmul(flat, slopes.T, precision="highest")
    return LinearForm(constant + both[:, -1], linear + both[:, :-1])


def find_affine(reader: Reader, rows: Rows) -> bool:
    """Test in float64 whether a linear program's c and b are affine in the datum."""
    real = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in rows.leaves]
    if reader.structure is not Structure.LINEAR or real != [True]:
        return False
    num_rows = min(rows.num_data, 5)
    few = reader.at(num_rows)

    @once
    def error(seed: Array, leaves: list[Array]) -> Array:
        arguments = rows.join(leaves)
        params = anywhere(few.model, few.anatomy, random.key(seed), arguments)
        with validation_enabled(False):  # the rows are stand-ins
            each = linear_form(few, params, arguments)
            at_once = linear_form(few, params, arguments, affine=True)
        off = [jnp.abs(a - b).max() for a, b in zip(each, at_once, strict=True)]
        return jnp.maximum(*off) / (1.0 + jnp.abs(each.linear).max())

    with jax.enable_x64(True):
        leaves = [stand_in(leaf, num_rows, 0) for leaf in rows.leaves]
        # An executable runs at once, also inside a trace.
        run = error.lower(np.int32(0), leaves).compile()
        return all(bool(np.asarray(run(np.int32(seed), leaves)) <= 1e-9) for seed in range(2))
