"""M-steps: the papers' closed forms, one per program, each with its equation number.

A closed form is two pure functions: `statistics` of a chunk's posterior, which add up over chunks
and devices, and `maximise`, which turns their sums into parameters. Each is tested as a stationary
point of the program's own expected log joint. A program without one gets `inference.gradient`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, logsumexp

from inference.expectation import Expectation
from inference.local import Params
from inference.rows import Arguments
from ppl_models import bernoulli_mixture, binary_sparse_coding


class ClosedForm(Protocol):
    """An M-step that needs sums over the data only."""

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """Sums over a chunk, row n counted `weights[n]` times."""

    def maximise(self, params: Params, statistics: Any) -> Params:
        """The new parameters, from the sums over all chunks."""


@dataclasses.dataclass(frozen=True)
class SparseCodingUpdate:
    r"""Binary sparse coding, Henniges et al. (2010), eqs. (6)–(8).

    .. math::

        W &= \Big(\sum_n y_n \langle s\rangle_n^T\Big)\Big(\sum_n \langle s s^T\rangle_n\Big)^{-1}
        \qquad \sigma^2 = \frac{1}{ND}\sum_n \big\langle \|y_n - W s\|^2 \big\rangle_n \\
        \pi &= \frac{A(\pi)\,\pi}{B(\pi)}\,\frac1N \sum_n \langle |s| \rangle_n

    :param max_active: :math:`\gamma`, for the correction A/B of the truncation; None if exact, when
        :math:`A\pi/B = 1/H`.
    :param noise_at: whether :math:`\sigma` is taken at the new W, which maximises the expected log
        joint, or at the old one, as the authors' program does.
    """

    max_active: int | None = None
    noise_at: Literal["new", "old"] = "new"

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data = arguments[0][0] if arguments[0] else arguments[1]["data"]
        heavy = posterior.mean * weights[:, None]
        return {
            "count": weights.sum(),
            "active": heavy.sum(),
            "cross": heavy.T @ data,  # Σ ⟨s⟩ yᵀ, (H, D)
            "second": posterior.second(weights),
            "power": weights @ jnp.sum(data * data, axis=1),
        }

    def maximise(self, params: Params, statistics: Any) -> Params:
        cross, second, count = statistics["cross"], statistics["second"], statistics["count"]
        num_causes, num_features = cross.shape
        # A cause that no datum uses leaves a zero row; the ridge keeps its weights at zero instead
        # of making them infinite.
        ridge = 10 * jnp.finfo(second.dtype).eps * jnp.trace(second) / num_causes + 1e-30
        weights = jnp.linalg.solve(second + ridge * jnp.eye(num_causes), cross)
        at = weights if self.noise_at == "new" else params["weights"]
        residual = statistics["power"] - 2 * jnp.sum(at * cross) + jnp.sum((at @ at.T) * second)
        noise = jnp.sqrt(jnp.maximum(residual / (count * num_features), 1e-12))
        mean_active = statistics["active"] / count
        if self.max_active is None or self.max_active >= num_causes:
            sparsity = mean_active / num_causes
        else:
            a, b = truncation(params["sparsity"], num_causes, self.max_active)
            sparsity = params["sparsity"] * a / b * mean_active
        # The ends of the interval have no way back.
        return {
            "weights": weights,
            "noise": noise,
            "sparsity": jnp.clip(sparsity, 1e-6, 1.0 - 1e-6),
        }


def truncation(sparsity: Array, num_causes: int, max_active: int) -> tuple[Array, Array]:
    r"""A(π) and B(π) of eq. (8): the binomial's mass up to γ, and its first moment there.

    >>> a, b = truncation(jnp.array(0.2), 10, 10)
    >>> float(a.round(5)), float((0.2 * a / b).round(5))
    (1.0, 0.1)
    """
    k = np.arange(min(max_active, num_causes) + 1)
    log_choose = gammaln(num_causes + 1.0) - gammaln(k + 1.0) - gammaln(num_causes - k + 1.0)
    log_mass = log_choose + k * jnp.log(sparsity) + (num_causes - k) * jnp.log1p(-sparsity)
    return jnp.exp(logsumexp(log_mass)), jnp.sum(k * jnp.exp(log_mass))


@dataclasses.dataclass(frozen=True)
class MixtureUpdate:
    """Mixture of Bernoulli products: responsibilities weigh the rows (Freund & Haussler, §2.3).

    A mask is respected: a cell that was not seen does not count for its column.
    """

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data = arguments[0][0] if arguments[0] else arguments[1]["data"]
        mask = arguments[1].get("mask")
        seen = jnp.ones_like(data) if mask is None else mask.astype(data.dtype)
        _, probability = posterior.weighted()
        heavy = probability * weights
        return {"count": heavy.sum(1), "ones": heavy @ (data * seen), "seen": heavy @ seen}

    def maximise(self, params: Params, statistics: Any) -> Params:
        del params
        # A probability of 0 or 1 would give an unseen row no chance at all.
        probs = (statistics["ones"] + 1e-6) / (statistics["seen"] + 2e-6)
        count = statistics["count"] + 1e-12
        return {"mixing": count / count.sum(), "probs": probs}


def closed_form(model: Callable, kwargs: dict, max_active: int | None = None) -> ClosedForm | None:
    """The closed form that belongs to a program, or None."""
    given = dict(kwargs)
    while isinstance(model, partial):
        given, model = {**model.keywords, **given}, model.func
    if model is binary_sparse_coding and given.get("mask") is None:
        return SparseCodingUpdate(max_active)
    if model is bernoulli_mixture:
        return MixtureUpdate()
    return None
