r"""Columns on an ordered scale as bits: the closed forms of `graded_trait`.

Of a column with cutpoints :math:`c_1 < … < c_{K-1}` and :math:`A_k = w^T x - c_k`,

.. math:: P(t = k \mid x) = \sigma(A_k) - \sigma(A_{k+1})
          = \sigma(A_k)\, \sigma(-A_{k+1})\, \left(1 - e^{-(c_{k+1} - c_k)}\right)

for levels between the lowest and the highest; the lowest lacks the first factor, the highest the
second, and both lack the third. So a cell of level k is two bits: that of cutpoint k, which is 1,
and that of k + 1, which is 0; bits of the other cutpoints are missing. All that `regressions` has
for bits holds, with weights that the cutpoints of a column share. What is left is the logarithm of
the third factor: it does not depend on x, is concave in the cutpoints, and keeps them in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models.program import by_levels

from ...numerics.gaussian import solve_each
from ...reading.recognition.sites import Seen
from ...rows.chunks import Rows, sum_over_chunks
from ...types import Arguments, Params
from .regressions import Regressions, Responses, Sums

LOGISTIC = 1.7
"""A logistic curve is about a normal one of this deviation."""
OVERLAP = 1.5
"""Cutpoints of a column whose information adds up, roughly."""
ROUNDS = 6
"""Newton steps of an M-step; near the optimum the first is enough."""
SHARES = np.array([0.0, 0.3, 1.0], np.float32)
"""Of a Newton step that are tried, and the best is taken."""


class Columns(NamedTuple):
    """Where the predictors of columns of these levels stand."""

    column_of: np.ndarray  # (C,)
    first: np.ndarray  # (P,) the first predictor of each column
    inner: np.ndarray  # (C,) whether another one of the same column follows
    level: np.ndarray  # (C,) from 1 to K − 1
    share: np.ndarray  # (C,) of its information: a cell tells of two cutpoints at most


@lru_cache(maxsize=64)
def columns_of(levels: tuple[int, ...]) -> Columns:
    """The predictors of columns with so many levels each.

    >>> columns = columns_of((2, 4))
    >>> columns.column_of.tolist(), columns.level.tolist(), columns.first.tolist()
    ([0, 1, 1, 1], [1, 1, 2, 3], [0, 1])
    """
    number = np.asarray(levels, np.int32) - 1
    # In the digits that JAX indexes with, whether it computes in double precision or not.
    column = np.repeat(np.arange(len(number), dtype=np.int32), number)
    first = (np.cumsum(number) - number).astype(np.int32)
    level = (1 + np.arange(len(column)) - first[column]).astype(np.int32)
    share = np.minimum(1.0, OVERLAP / number)[column]
    return Columns(column, first, np.append(column[1:] == column[:-1], False), level, share)


@dataclasses.dataclass(frozen=True)
class Graded(Regressions):
    """Columns of ordered levels, few levels first; a predictor for each cutpoint."""

    levels: tuple[int, ...]

    @classmethod
    def of(cls, levels: tuple[int, ...]) -> Graded:
        """
        >>> Graded.of((2, 4)).columns.column_of.tolist()
        [0, 1, 1, 1]
        """
        return cls(("binary",) * sum(k - 1 for k in levels), tuple(levels))

    @property
    def columns(self) -> Columns:
        """Where the predictors of each column stand."""
        return columns_of(self.levels)

    @property
    def share(self) -> np.ndarray:
        # A copy: JAX remembers the type that it gave to an array, in double precision or not.
        return np.array(self.columns.share, jnp.result_type(float))

    def by_levels(self, flat: Array) -> dict[int, Array]:
        """Numbers of the predictors (..., P) as K: (..., columns of K levels, K − 1)."""
        parts, start = {}, 0
        for k, columns in by_levels(self.levels).items():
            stop = start + len(columns) * (k - 1)
            parts[k] = flat[..., start:stop].reshape(*flat.shape[:-1], len(columns), k - 1)
            start = stop
        return parts

    def read(self, values: Params) -> Params:
        """Weights (Q, P) and biases (P,) of the bits, from those of the form."""
        cuts = [values[f"cutpoints_{k}"].ravel() for k in by_levels(self.levels)]
        xp: Any = np if isinstance(cuts[0], np.ndarray) else jnp  # JAX would round its numbers
        weights = values["weights"][:, self.columns.column_of]
        return {"weights": weights, "bias": -xp.concatenate(cuts)}

    def written(self, values: Params) -> Params:
        """The other way round."""
        cuts = self.by_levels(-values["bias"])
        return {"weights": values["weights"][:, self.columns.first]} | {
            f"cutpoints_{k}": part for k, part in cuts.items()
        }

    def responses(self, value: Array, mask: Array | None = None) -> Responses:
        kind, columns = jnp.result_type(float), self.columns
        cell = jnp.asarray(value)[:, columns.column_of].astype(jnp.int32) - columns.level
        target, observed = (cell == 0).astype(kind), ((cell == 0) | (cell == -1)).astype(kind)
        if mask is not None:
            shown = jnp.asarray(mask)[:, columns.column_of].astype(kind)
            target, observed = target * shown, observed * shown
        return Responses(target, observed)

    def base(self, params: Params, ones: Array) -> Array:
        # log(1 − e^{−gap}) from each cutpoint to the next of its column.
        inner, bias = self.columns.inner, params["bias"]
        gap = jnp.where(inner, bias - jnp.roll(bias, -1), 1.0)
        return jnp.sum(ones * jnp.where(inner, jnp.log(-jnp.expm1(-gap)), 0.0), -1)

    def advance(
        self, params: Params, sums: Sums, prior: Callable[[Params], Array] | None = None
    ) -> Params:
        """The quadratic of the bits plus the logarithms of the gaps, at its maximum."""
        assert prior is None
        size, cuts = len(params["weights"]), np.asarray(self.levels) - 1
        # All columns are filled up to the cutpoints of the longest, so that they are one batch.
        below = np.arange(cuts.max())
        valid = below < cuts[:, None]
        place = (np.cumsum(cuts) - cuts)[:, None] + np.minimum(below, cuts[:, None] - 1)
        slope, bend, *_ = sums
        bias = params["bias"][place]
        step = _climb(slope[place], bend[place], sums.ones[place], bias, valid)
        row, column = np.nonzero(valid)
        return {
            **params,
            "weights": params["weights"] + step[row, :size].T,
            "bias": params["bias"] + step[row, size + column],
        }


def _climb(slope: Array, bend: Array, ones: Array, bias: Array, valid: np.ndarray) -> Array:
    """The step of weights and biases of all columns, (C, Q + K − 1), K levels being the most.

    :param slope: (C, K − 1, Q + 1) and `bend` (C, K − 1, Q + 1, Q + 1), of the bits.
    :param ones: (C, K − 1), how many cells are of the level above each cutpoint.
    :param valid: (C, K − 1), which cutpoints there are; the others stay where they are.
    """
    size, cuts = slope.shape[-1] - 1, slope.shape[1]
    slope = jnp.where(valid[..., None], slope, 0.0)
    bend = jnp.where(valid[..., None, None], bend, 0.0)
    linear = jnp.concatenate([slope[..., :size].sum(1), slope[..., size]], -1)
    cross = bend[..., :size, size]  # (C, K − 1, Q)
    own = jnp.eye(cuts) * jnp.where(valid, bend[..., size, size], 1.0)[:, :, None]
    top = jnp.concatenate([bend[..., :size, :size].sum(1), jnp.swapaxes(cross, 1, 2)], -1)
    square = jnp.concatenate([top, jnp.concatenate([cross, own], -1)], -2)
    width = square.shape[-1]
    ridge = 10 * jnp.finfo(square.dtype).eps * jnp.trace(square, axis1=1, axis2=2) / width + 1e-30
    square = square + ridge[:, None, None] * jnp.eye(width)
    gaps = np.eye(cuts)[:-1] - np.eye(cuts)[1:]  # from biases to the gaps between them
    apart = jnp.concatenate([jnp.zeros((cuts - 1, size)), jnp.asarray(gaps)], -1)
    between = valid[:, 1:]  # gaps that there are
    count = jnp.where(between, ones[:, :-1], 0.0)

    def gaps_at(step: Array) -> Array:
        return jnp.where(between, bias[:, :-1] - bias[:, 1:] + step @ apart.T, 1.0)

    def value(step: Array) -> Array:
        """What is to be raised at steps (..., C, width); −inf where cutpoints change places."""
        new = gaps_at(step)
        logs = jnp.log(-jnp.expm1(-jnp.maximum(new, 1e-30)))
        quadratic = jnp.sum(step * linear, -1) - 0.5 * jnp.einsum(
            "...ci,cij,...cj->...c", step, square, step
        )
        return jnp.where((new > 0).all(-1), quadratic + jnp.sum(count * logs, -1), -jnp.inf)

    def once(_: Any, step: Array) -> Array:
        new = gaps_at(step)
        first = count / jnp.expm1(new)
        second = first * (1.0 + 1.0 / jnp.expm1(new))
        upward = linear - jnp.einsum("cij,cj->ci", square, step) + first @ apart
        whole = square + jnp.einsum("gi,cg,gj->cij", apart, second, apart)
        move = solve_each(whole, upward)
        # By which share each gap shrinks.
        closing = jnp.where(between, -(move @ apart.T) / new, 0.0)
        most = 0.9 / jnp.maximum(closing.max(-1, initial=0.0), 0.9)
        tried = step + SHARES[:, None, None] * (most[:, None] * move)
        best = jnp.argmax(value(tried), 0)
        return jnp.take_along_axis(tried, best[None, :, None], 0)[0]

    return jax.lax.fori_loop(0, ROUNDS if cuts > 1 else 1, once, jnp.zeros_like(linear))


def graded_start(
    columns: Graded,
    principal: Callable[[Regressions, Callable[[Arguments], Responses]], Params],
    seen: Callable[[Arguments], Seen],
    rows: Rows,
) -> Params:
    """Weights from the principal components of the levels as numbers, cutpoints from their shares.

    :param principal: the start of columns of numbers.
    :param seen: the cells of a chunk as they are observed.
    """
    numbers = Regressions(("real",) * len(columns.levels))
    start = principal(numbers, lambda arguments: numbers.responses(*seen(arguments)))
    loading = 0.7 * start["weights"] / start["noise"]  # the noise of that start is 0.7 deviations
    share = jnp.sum(loading**2, 0)
    loading = loading / jnp.sqrt(1.0 + jnp.maximum(share - 0.8, 0.0))
    size = min(rows.num_data, max(1, (1 << 20) // len(columns.kinds)))

    def count(arguments: Arguments, fresh: Array) -> Any:
        target, shown = columns.responses(*seen(arguments))
        assert shown is not None
        return fresh @ target, fresh @ (shown - target)

    ones, zeros = sum_over_chunks(count, rows, size)
    # A factor of deviation w flattens the logistic curve: the marginal logits are smaller.
    flat = jnp.sqrt(1.0 - jnp.minimum(share, 0.8))
    bias, low = [], columns.by_levels(zeros)
    for k, part in columns.by_levels(ones).items():
        number = jnp.concatenate([low[k][:, :1], part], 1) + 0.5
        above = jnp.cumsum(number[:, :0:-1], 1)[:, ::-1]
        bias.append(jnp.log(above / (number.sum(1, keepdims=True) - above)).ravel())
    of = columns.columns.column_of
    weights, bias_all = (LOGISTIC * loading / flat)[:, of], jnp.concatenate(bias) / flat[of]
    return columns.written({"weights": weights, "bias": bias_all})
