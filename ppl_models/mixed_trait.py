"""Mixed trait: one set of factors behind real, binary and categorical columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from .program import data_plate

Kind = str | int
"""'real', 'binary', or the number of levels of a categorical column"""


class Layout(NamedTuple):
    """Which columns are of which kind, and how their linear predictors follow each other.

    First those of the real columns, then of the binary ones, then the K − 1 of each column of K
    levels, small K first: so that every kind is a slice.

    >>> layout = Layout.of(("real", 3, "binary"))
    >>> layout.num_predictors, layout.column_of.tolist()
    (4, [0, 2, 1, 1])
    """

    kinds: tuple[Kind, ...]
    real: np.ndarray  # columns (R,)
    binary: np.ndarray  # columns (B,)
    categorical: dict[int, np.ndarray]  # K: columns (C,)

    @classmethod
    def of(cls, kinds: Sequence[Kind]) -> Layout:
        """The layout of columns of these kinds."""
        if not len(kinds):
            raise ValueError("`kinds` is empty: name the kind of each column")
        places: dict[Kind, list[int]] = {}
        for place, kind in enumerate(kinds):
            levels = isinstance(kind, int | np.integer) and not isinstance(kind, bool)
            if kind not in ("real", "binary") and not (levels and int(kind) >= 2):
                raise ValueError(
                    f"`kinds` has {kind!r} for column {place}: wanted 'real', 'binary' or a number "
                    "of levels, at least 2"
                )
            places.setdefault(kind if isinstance(kind, str) else int(kind), []).append(place)
        listed = lambda kind: np.array(places.get(kind, []), int)  # noqa: E731
        numbers = sorted(kind for kind in places if not isinstance(kind, str))
        return cls(tuple(kinds), listed("real"), listed("binary"), {k: listed(k) for k in numbers})

    @property
    def column_of(self) -> np.ndarray:
        """The column of each predictor, (num_predictors,)."""
        parts = [np.repeat(columns, k - 1) for k, columns in self.categorical.items()]
        return np.concatenate([self.real, self.binary, *parts])

    @property
    def num_predictors(self) -> int:
        return len(self.column_of)

    @property
    def bits(self) -> slice:
        """The predictors of the binary columns."""
        return slice(len(self.real), len(self.real) + len(self.binary))

    def split(self, values: Array) -> tuple[Array, Array, dict[int, Array]]:
        """Predictors (..., P) by kind: (..., R), (..., B), and K: (..., C, K − 1)."""
        start = self.bits.stop
        levels = {}
        for k, columns in self.categorical.items():
            stop = start + len(columns) * (k - 1)
            part = values[..., start:stop]
            levels[k] = part.reshape(*part.shape[:-1], len(columns), k - 1)
            start = stop
        return values[..., : len(self.real)], values[..., self.bits], levels

    def join(self, real: Array, bits: Array, levels: dict[int, Array]) -> Array:
        """The other way round."""
        flat = [part.reshape(*part.shape[:-2], -1) for part in levels.values()]
        return jnp.concatenate([real, bits, *flat], -1)


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
    shared_noise: bool = False,
) -> Array:
    r"""Factor analysis of mixed columns: bits, categories and real numbers.

    The extension that Tipping (1998) announces in his sections 1 and 6.

    Factors :math:`x \sim \mathcal N(0, I)` as in `latent_trait`; predictors
    :math:`A = x W + b`, one for a real or binary column, K − 1 for one of K levels:

    .. math::

        t_i \mid x &\sim \mathcal N(A_i, \sigma_i^2)             && \text{real} \\
        P(t_i = 1 \mid x) &= \sigma(A_i)                         && \text{binary} \\
        P(t_i = k \mid x) &= \frac{e^{A_{ik}}}{\sum_l e^{A_{il}}}, \quad A_{i0} = 0
                                                                 && \text{levels } 0, …, K-1

    Real columns alone make it factor analysis, and with `shared_noise`, one σ for all of them,
    probabilistic principal components (Tipping & Bishop 1999). ``data`` holds all columns in one
    table, levels as whole numbers from 0; ``kinds`` says what each column is: ``"real"``,
    ``"binary"`` or K.

    ====================  ==================  =============================
    site                  symbol              shape
    ====================  ==================  =============================
    ``weights``           :math:`W`           (num_factors, num_predictors)
    ``bias``              :math:`b`           (num_predictors,)
    ``noise``             :math:`\sigma`      (number of real columns,), or ()
    ``factors``           :math:`x`           (num_data, num_factors)
    ``observed_real``     :math:`t`, real     (num_data, real columns)
    ``observed_binary``   :math:`t`, 0/1      (num_data, binary columns)
    ``observed_K``        :math:`t`, levels   (num_data, columns of K levels)
    ====================  ==================  =============================

    Sites of a kind that no column has are absent. Predictors stand by kind: see :class:`Layout`.

    :param shared_noise: all real columns have the same noise, as columns of one unit may.

    >>> import jax
    >>> from numpyro.handlers import seed
    >>> draw = jax.jit(lambda key: seed(mixed_trait, key)(num_data=5, kinds=("real", "binary", 3)))
    >>> draw(jax.random.key(0)).shape
    (5, 3)
    """
    layout = Layout.of(kinds)
    _check(layout, data, mask)
    shape = (num_factors, layout.num_predictors)
    weights = numpyro.sample("weights", prior_weights.expand(shape).to_event(2))
    bias = numpyro.sample("bias", prior_bias.expand(shape[1:]).to_event(1))
    num_real = len(layout.real)
    noise = None
    if num_real:
        own = prior_noise.expand((num_real,)).to_event(1)
        noise = numpyro.sample("noise", prior_noise if shared_noise else own)
    with data_plate(data, num_data):
        independent = dist.Normal(0.0, 1.0).expand((num_factors,))
        factors = numpyro.sample("factors", independent.to_event(1))
        real, bits, levels = layout.split(factors @ weights + bias)
        parts = []
        if num_real:
            parts.append(_observe("real", dist.Normal(real, noise), data, mask, layout.real))
        if len(layout.binary):
            fn = dist.Bernoulli(logits=bits)
            parts.append(_observe("binary", fn, data, mask, layout.binary))
        for k, columns in layout.categorical.items():
            first = jnp.zeros_like(levels[k][..., :1])
            fn = dist.Categorical(logits=jnp.concatenate([first, levels[k]], axis=-1))
            parts.append(_observe(str(k), fn, data, mask, columns))
    order = np.argsort(np.concatenate([layout.real, layout.binary, *layout.categorical.values()]))
    return jnp.concatenate([jnp.asarray(part, float) for part in parts], axis=-1)[..., order]


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
