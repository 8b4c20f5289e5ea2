r"""A combination machine for any distribution of bits: Freund & Haussler (1994), section 2.5."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ...types import Params


def universal_machine(probabilities: ArrayLike, accuracy: float = 1e-6) -> Params:
    r"""Parameters of a `combination_machine` that has the given distribution.

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
