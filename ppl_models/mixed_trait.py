"""Mixed trait: one set of factors behind real, binary and categorical columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from ppl_models.program import data_plate

Kind = str | int
"""'real', 'binary', or the number of levels of a categorical column"""


class Layout(NamedTuple):
    """Where the columns of each kind stand, and their linear predictors among all of them.

    >>> layout = Layout.of(("real", 3, "binary"))
    >>> layout.num_predictors, layout.categorical[3][1].tolist()
    (4, [[1, 2]])
    """

    kinds: tuple[Kind, ...]
    real: tuple[np.ndarray, np.ndarray]  # columns (R,), predictors (R,)
    binary: tuple[np.ndarray, np.ndarray]  # columns (B,), predictors (B,)
    categorical: dict[int, tuple[np.ndarray, np.ndarray]]  # K: columns (C,), predictors (C, K - 1)
    column_of: np.ndarray  # (num_predictors,)

    @property
    def num_predictors(self) -> int:
        return len(self.column_of)

    @classmethod
    def of(cls, kinds: Sequence[Kind]) -> Layout:
        """The layout of columns of these kinds; a column of K levels has K − 1 predictors."""
        if not len(kinds):
            raise ValueError("`kinds` is empty: name the kind of each column")
        for place, kind in enumerate(kinds):
            levels = isinstance(kind, int | np.integer) and not isinstance(kind, bool)
            if kind not in ("real", "binary") and not (levels and kind >= 2):
                raise ValueError(
                    f"`kinds` has {kind!r} for column {place}: wanted 'real', 'binary' or a number "
                    "of levels, at least 2"
                )
        widths = [1 if isinstance(kind, str) else int(kind) - 1 for kind in kinds]
        first = np.concatenate([[0], np.cumsum(widths)])[:-1]
        places = {kind: [] for kind in dict.fromkeys(kinds)}
        for column, kind in enumerate(kinds):
            places[kind].append(column)

        def plain(kind: str) -> tuple[np.ndarray, np.ndarray]:
            columns = np.array(places.get(kind, []), int)
            return columns, first[columns]

        categorical = {}
        for kind in sorted(int(k) for k in places if not isinstance(k, str)):
            columns = np.array(places[kind], int)
            categorical[kind] = (columns, first[columns][:, None] + np.arange(kind - 1))
        return cls(
            tuple(kinds), plain("real"), plain("binary"), categorical,
            np.repeat(np.arange(len(kinds)), widths),
        )  # fmt: skip


def mixed_trait(
    data: Array | None = None,
    *,
    mask: Array | None = None,
    num_data: int | None = None,
    kinds: Sequence[Kind],
    num_factors: int = 2,
    prior_weights: dist.Distribution = dist.Normal(0.0, 3.0),
    prior_bias: dist.Distribution = dist.Normal(0.0, 5.0),
    prior_noise: dist.Distribution = dist.HalfNormal(5.0),
) -> Array:
    r"""The extension to mixed columns that Tipping (1998) announces in his sections 1 and 6.

    Factors :math:`x \sim \mathcal N(0, I)` as in `latent_trait`; predictors
    :math:`A = x W + b`, one for a real or binary column, K − 1 for one of K levels:

    .. math::

        t_i \mid x &\sim \mathcal N(A_i, \sigma_i^2)             && \text{real} \\
        P(t_i = 1 \mid x) &= \sigma(A_i)                         && \text{binary} \\
        P(t_i = k \mid x) &= \frac{e^{A_{ik}}}{\sum_l e^{A_{il}}}, \quad A_{i0} = 0
                                                                 && \text{levels } 0, …, K-1

    Real columns alone make it factor analysis. ``data`` holds all columns in one table, levels as
    whole numbers from 0; ``kinds`` says what each column is: ``"real"``, ``"binary"`` or K.

    ====================  ==================  =============================
    site                  symbol              shape
    ====================  ==================  =============================
    ``weights``           :math:`W`           (num_factors, num_predictors)
    ``bias``              :math:`b`           (num_predictors,)
    ``noise``             :math:`\sigma`      (number of real columns,)
    ``factors``           :math:`x`           (num_data, num_factors)
    ``observed_real``     :math:`t`, real     (num_data, real columns)
    ``observed_binary``   :math:`t`, 0/1      (num_data, binary columns)
    ``observed_K``        :math:`t`, levels   (num_data, columns of K levels)
    ====================  ==================  =============================

    Sites of a kind that no column has are absent. Predictors follow the order of the columns.

    >>> from jax import random
    >>> from numpyro.handlers import seed
    >>> seed(mixed_trait, random.key(0))(num_data=5, kinds=("real", "binary", 3)).shape
    (5, 3)
    """
    layout = Layout.of(kinds)
    _check(layout, data, mask)
    shape = (num_factors, layout.num_predictors)
    weights = numpyro.sample("weights", prior_weights.expand(shape).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand(shape[1:]).to_event(1))
    num_real = len(layout.real[0])
    noise = None
    if num_real:
        noise = numpyro.sample("noise", prior_noise.expand((num_real,)).to_event(1))
    with data_plate(data, num_data):
        independent = dist.Normal(0.0, 1.0).expand((num_factors,))
        factors = numpyro.sample("factors", independent.to_event(1))
        predictors = factors @ weights + bias
        parts = {}
        if num_real:
            fn = dist.Normal(predictors[..., layout.real[1]], noise)
            parts["real"] = _observe("real", fn, data, mask, layout.real[0])
        if len(layout.binary[0]):
            fn = dist.Bernoulli(logits=predictors[..., layout.binary[1]])
            parts["binary"] = _observe("binary", fn, data, mask, layout.binary[0])
        for levels, (columns, places) in layout.categorical.items():
            logits = predictors[..., places]
            logits = jnp.concatenate([jnp.zeros_like(logits[..., :1]), logits], axis=-1)
            parts[levels] = _observe(
                str(levels), dist.Categorical(logits=logits), data, mask, columns
            )
    order = np.argsort(
        np.concatenate(
            [layout.real[0]] * bool(num_real)
            + [layout.binary[0]] * bool(len(layout.binary[0]))
            + [columns for columns, _ in layout.categorical.values()]
        )
    )
    whole = jnp.concatenate([jnp.asarray(part, float) for part in parts.values()], axis=-1)
    return whole[..., order]


def _observe(
    name: str, fn: dist.Distribution, data: Array | None, mask: Array | None, columns: np.ndarray
) -> Array:
    if mask is not None:
        fn = fn.mask(mask[:, columns])
    value = None
    if data is not None:
        value = data[:, columns]
        if name not in ("real", "binary"):
            value = value.astype(jnp.int32)
    return numpyro.sample(f"observed_{name}", fn.to_event(1), obs=value)


def _check(layout: Layout, data: Array | None, mask: Array | None) -> None:
    if data is None:
        return
    shape = jnp.shape(data)
    if len(shape) != 2 or shape[1] != len(layout.kinds):
        raise ValueError(
            f"`data` has shape {shape}, but `kinds` names {len(layout.kinds)} columns: wanted "
            f"(num_data, {len(layout.kinds)})"
        )
    if mask is not None and jnp.shape(mask) != shape:
        raise ValueError(f"`mask` has shape {jnp.shape(mask)}, but `data` has shape {shape}")
