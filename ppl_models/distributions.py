r"""The distributions that the programs need and NumPyro lacks.

Two of one bit, :class:`NoisyOr` and :class:`ClippedNormal`, and two of a vector of hidden units,
:class:`CombinationCauses` and :class:`RealCombinationCauses`, which differ in nothing but what the
observed units do. All are NumPyro distributions as any other: ``expand``, ``to_event``, ``mask``,
``jit`` and ``vmap`` apply.

Their log probabilities are one formula for bits and for the reals between them (which validation,
where it is on, makes -inf), so that the derivative with respect to a bit is that of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.util import log1mexp, promote_shapes, validate_sample
from numpyro.util import is_prng_key

from .normal_tail import log_normal_cdf
from .state_sums import MAX_CAUSES, draw_states, gibbs_states, log_normalizer


class _Bit(dist.Distribution):
    """A bit, given by the log probabilities of its two values; either may be -inf."""

    support = constraints.boolean
    has_enumerate_support = True

    def _log_probs(self) -> tuple[Array, Array]:
        """Log probabilities of 1 and of 0."""
        raise NotImplementedError

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        assert is_prng_key(key)
        assert key is not None
        bits = random.bernoulli(key, self.mean, shape=sample_shape + self.batch_shape)
        return bits.astype(jnp.result_type(int))

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        log_one, log_zero = self._log_probs()
        never_one, never_zero = jnp.isneginf(log_one), jnp.isneginf(log_zero)
        # Zero times -inf is NaN. (A maximum would do as well, but its slope is ten operations.)
        finite_one = jnp.where(never_one, 0.0, log_one)
        finite_zero = jnp.where(never_zero, 0.0, log_zero)
        linear = value * finite_one + (1 - value) * finite_zero
        impossible = ((value != 0) & never_one) | ((value != 1) & never_zero)
        return jnp.where(impossible, -jnp.inf, linear)

    @property
    def mean(self) -> Array:
        return jnp.exp(self._log_probs()[0])

    @property
    def variance(self) -> Array:
        log_one, log_zero = self._log_probs()
        return jnp.exp(log_one + log_zero)

    def enumerate_support(self, expand: bool = True) -> Array:
        values = jnp.arange(2).reshape((-1,) + (1,) * len(self.batch_shape))
        return jnp.broadcast_to(values, (2, *self.batch_shape)) if expand else values


class NoisyOr(_Bit):
    r"""A bit that each of its causes may turn on, independently of the others.

    .. math:: P(1) = h(u) = 1 - e^{-u}, \qquad u = \sum_i S_i w_i \ge 0

    Lewicki & Sejnowski, *Bayesian unsupervised learning of higher order structure*, NIPS 1996,
    equation (2). A bit without causal input is never on: its log probability is -inf there, and its
    gradient is set to 0, since an infinite one would be NaN in all that ``u`` was computed from.

    :param causal_input: :math:`u`, not negative, of any shape.

    >>> print(NoisyOr(0.5).log_prob(0))
    -0.5
    """

    arg_constraints: ClassVar = {"causal_input": constraints.nonnegative}

    def __init__(self, causal_input: ArrayLike, *, validate_args: bool | None = None) -> None:
        self.causal_input = causal_input
        super().__init__(batch_shape=jnp.shape(causal_input), validate_args=validate_args)

    def _log_probs(self) -> tuple[Array, Array]:
        caused = jnp.asarray(self.causal_input, jnp.result_type(self.causal_input, float))
        log_one = log1mexp(-jnp.where(caused > 0, caused, 1.0))
        return jnp.where(caused > 0, log_one, -jnp.inf), -caused


class ClippedNormal(_Bit):
    r"""The sign of a Gaussian variable, as a bit.

    .. math::

        t = [\mu + \sigma \epsilon > 0], \quad \epsilon \sim \mathcal N(0, 1), \qquad
        P(1) = \Phi(\mu / \sigma)

    A scale of 0 is the hard clip :math:`t = [\mu > 0]` of Lee & Sompolinsky, *Learning a continuous
    hidden variable model for binary data*, NIPS 1998, equation (8): log probabilities 0 and -inf.

    :param loc: :math:`\mu`.
    :param scale: :math:`\sigma`, not negative.

    >>> print(ClippedNormal(jnp.array([-1.0, 1.0]), scale=0.0).mean)
    [0. 1.]
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.nonnegative}

    def __init__(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, *, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = promote_shapes(loc, scale)
        batch_shape = lax.broadcast_shapes(jnp.shape(loc), jnp.shape(scale))
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    def _log_probs(self) -> tuple[Array, Array]:
        soft = jnp.asarray(self.scale) > 0
        ratio = self.loc / jnp.where(soft, self.scale, 1.0)
        ratio = jnp.where(soft, ratio, jnp.where(jnp.asarray(self.loc) > 0, jnp.inf, -jnp.inf))
        # The log of the smaller one, and the other from it: a log of Φ is expensive. At 0 the
        # slope is that of either side: no absolute value has it.
        above = ratio > 0
        smaller = log_normal_cdf(jnp.where(above, -ratio, ratio))
        larger = jnp.log1p(-jnp.exp(smaller))
        return jnp.where(above, larger, smaller), jnp.where(above, smaller, larger)


class _Causes(dist.Distribution):
    r"""Hidden units of an influence combination machine, with the observed units summed out.

    :math:`P(h) = \exp(\theta \cdot h + \sum_j A(\omega(h)_j)) / Z`, where
    :math:`\omega(h) = \sum_i h_i \omega^{(i)}` and :math:`A(w)` is the log of the total mass of one
    observed unit, :math:`\log \int e^{xw} dx` over its own measure.
    """

    arg_constraints: ClassVar = {
        "weights": constraints.real_matrix,
        "bias": constraints.real_vector,
    }
    support = constraints.independent(constraints.boolean, 1)
    pytree_data_fields = ("weights", "bias", "given_log_normalizer")
    log_mass: Callable[[Array], Array]  # Σ_j A(ω(h)_j), over the last axis
    draw_observed: Callable[[Array, Array], Array]  # (key, ω(h)) -> x as the paper has it

    def __init__(
        self,
        weights: ArrayLike,
        bias: ArrayLike,
        *,
        log_normalizer: ArrayLike | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        if jnp.ndim(weights) < 2 or jnp.ndim(bias) < 1:
            raise ValueError(
                f"{name}: `weights` must be (num_causes, num_features) and `bias` (num_causes,), "
                f"found shapes {jnp.shape(weights)} and {jnp.shape(bias)}"
            )
        num_causes = jnp.shape(weights)[-2]
        if jnp.shape(bias)[-1] != num_causes:
            raise ValueError(
                f"{name}: `weights` has {num_causes} causes (its last axis but one), "
                f"but `bias` has {jnp.shape(bias)[-1]}"
            )
        self.weights, self.bias, self.given_log_normalizer = weights, bias, log_normalizer
        batch_shape = lax.broadcast_shapes(jnp.shape(weights)[:-2], jnp.shape(bias)[:-1])
        super().__init__(batch_shape, (num_causes,), validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        assert is_prng_key(key)
        assert key is not None
        if self.event_shape[0] <= MAX_CAUSES:
            draw = partial(draw_states, type(self).log_mass, math.prod(sample_shape))
        elif self.given_log_normalizer is not None:
            draw = partial(gibbs_states, type(self).draw_observed, math.prod(sample_shape))
        else:
            raise self._too_many()
        keys = random.split(key, self.batch_shape)
        key_axes = "()" if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) else "(k)"
        draw_each = jnp.vectorize(draw, signature=f"{key_axes},(m,n),(m)->(s,m)")
        # (*batch, draws, causes), whereas the draws are to come first.
        causes = draw_each(keys, self.weights, self.bias)
        return jnp.moveaxis(causes, -2, 0).reshape(self.shape(sample_shape))

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        combined = jnp.einsum("...i,...ij->...j", value, self.weights, precision="highest")
        log_mass = jnp.sum(value * self.bias, -1) + type(self).log_mass(combined)
        return log_mass - self.log_normalizer

    @property
    def log_normalizer(self) -> Array:
        r""":math:`\log Z`: the one given, else exact, every state of the hidden units summed."""
        if self.given_log_normalizer is not None:
            return jnp.asarray(self.given_log_normalizer)
        if self.event_shape[0] > MAX_CAUSES:
            raise self._too_many()
        log_sum = partial(log_normalizer, type(self).log_mass)
        return jnp.vectorize(log_sum, signature="(m,n),(m)->()")(self.weights, self.bias)

    def _too_many(self) -> ValueError:
        num_causes = self.event_shape[0]
        return ValueError(
            f"{type(self).__name__}: {num_causes} causes have 2^{num_causes} states, and all are "
            f"summed; at most {MAX_CAUSES} causes, or give `log_normalizer`"
        )

    @property
    def mean(self) -> Array:
        if self.event_shape[0] > MAX_CAUSES:
            raise self._too_many()
        # (3.5): the derivative of log Z with respect to a bias is the mean of its unit.
        mean = jax.grad(partial(log_normalizer, type(self).log_mass), argnums=1)
        return jnp.vectorize(mean, signature="(m,n),(m)->(m)")(self.weights, self.bias)

    @property
    def variance(self) -> Array:
        mean = self.mean
        return mean * (1 - mean)


@jax.custom_jvp
def _log_cosh_mass(x: Array) -> Array:
    """Σ_j log(2 cosh x_j) over the last axis."""
    size = jnp.abs(x)
    # Factors between ½ and 1: up to 64 can be multiplied before one logarithm serves them all.
    groups = max(1, -(-x.shape[-1] // 64))
    rest = -x.shape[-1] % groups
    padded = jnp.pad(size, [(0, 0)] * (x.ndim - 1) + [(0, rest)]) if rest else size
    factors = 0.5 + 0.5 * jnp.exp(-2.0 * padded.reshape(*x.shape[:-1], groups, -1))
    return size.sum(-1) + jnp.log(factors.prod(-1)).sum(-1) + x.shape[-1] * math.log(2.0)


# Autodiff would take the second derivative of |x| to be 0 at the origin, where that of the whole
# is 1.
@_log_cosh_mass.defjvp
def _log_cosh_mass_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _log_cosh_mass(x), jnp.sum(jnp.tanh(x) * dx, -1)


def _log_gaussian_mass(x: Array) -> Array:
    return jnp.sum(x**2, -1) / 2 + x.shape[-1] * math.log(2 * math.pi) / 2


def _draw_signs(key: Array, field: Array) -> Array:
    return jnp.where(random.bernoulli(key, jax.nn.sigmoid(2 * field)), 1.0, -1.0)


def _draw_normal(key: Array, field: Array) -> Array:
    return field + random.normal(key, field.shape, field.dtype)


class CombinationCauses(_Causes):
    r"""The hidden units :math:`h \in \{0,1\}^m` of the influence combination machine.

    .. math::

        P(h) = \frac{1}{Z_B} \exp\Big(\sum_i h_i \theta^{(i)}\Big) \prod_j 2\cosh(\omega(h)_j),
        \qquad \omega(h) = \sum_i h_i \omega^{(i)}

    Freund & Haussler, *Unsupervised learning of distributions on binary vectors using two layer
    networks*, UCSC-CRL-94-25, 1994, equation (3.4), and (2.2) for :math:`Z_B`. With observed units
    :math:`x_j = \pm 1`, :math:`P(x_j = 1 \mid h) = \mathrm{logistic}(2 \omega(h)_j)`, the joint is
    :math:`\exp(\sum_i h_i (\omega^{(i)} \cdot x + \theta^{(i)})) / Z_B`.

    :math:`Z_B` is summed over all :math:`2^m` states, a chunk at a time, forwards and backwards, so
    that time grows with :math:`2^m` but memory does not. Draws are exact.

    :param weights: :math:`\omega`, shape (num_causes, num_features); leading axes are a batch.
    :param bias: :math:`\theta`, shape (num_causes,).
    :param log_normalizer: :math:`\log Z_B` as found elsewhere, for machines of which the states are
        too many to sum. Those are drawn by Gibbs sampling, so not exactly.

    >>> causes = CombinationCauses(weights=jnp.zeros((2, 5)), bias=jnp.array([0.0, jnp.log(3.0)]))
    >>> print(causes.mean.round(2))
    [0.5  0.75]
    >>> print(f"{causes.log_prob(jnp.array([0, 1])):.4f}")  # log of 3/8
    -0.9808
    """

    log_mass = staticmethod(_log_cosh_mass)
    draw_observed = staticmethod(_draw_signs)


class RealCombinationCauses(_Causes):
    r"""The hidden units :math:`h \in \{0,1\}^m` of the combination machine on real vectors.

    .. math::

        P(h) = \frac{(2\pi)^{n/2}}{Z_R}
        \exp\Big(\sum_i h_i \theta^{(i)} + \tfrac12 \|\omega(h)\|^2\Big)

    Freund & Haussler 1994, equation (3.7), and (2.7) for :math:`Z_R`; the observed units are
    :math:`x \sim \mathcal N(\omega(h), I)`. Otherwise as :class:`CombinationCauses`.

    :param weights: :math:`\omega`, shape (num_causes, num_features); leading axes are a batch.
    :param bias: :math:`\theta`, shape (num_causes,).

    >>> causes = RealCombinationCauses(weights=jnp.array([[2.0]]), bias=jnp.array([-2.0]))
    >>> print(causes.mean.round(3))
    [0.5]
    """

    log_mass = staticmethod(_log_gaussian_mass)
    draw_observed = staticmethod(_draw_normal)
