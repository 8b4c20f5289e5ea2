r"""Equation (9) of Lewicki & Sejnowski (1996) as an M-step over any posterior of the states.

A unit that is on was turned on by at least one of its active causes. Which of them succeeded is a
further hidden variable: an active cause i of unit j succeeds with probability
:math:`f_{ij} = 1 - e^{-w_{ij}}`, and with :math:`f_{ij} / h(u_j)` given that the unit is on. So
(9),

.. math:: f_{ij} \leftarrow \frac{\langle \sum_n S_i S_j f_{ij} / h(u_j) \rangle
                                        + (\alpha - 1) f_{ij} / w_{ij}}
                                 {\langle \sum_n S_i \rangle + \beta} ,

is EM in that larger space: exact there for a Gamma(1, β) prior of the weights, or without one
(α = 1, β = 0), and nearly so for α > 1, since f/w hardly changes in a step. It raises the expected
log joint of the program at every step, though it does not go to its maximum at once, and it rests
where the slope of the expected log joint is zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax

from ...reading.recognition.papers import Form, Known
from ...reading.tracing import innermost, run_abstractly
from ...rows.chunks import Rows
from ...types import Arguments, Params
from ..shared import Expectation
from .closed import Update

SMALLEST = 1e-37
LEAST, MOST = 1e-9, 1.0 - 1e-6
"""Of a cause's strength f: neither end has a way back."""


@dataclasses.dataclass(frozen=True)
class NoisyOrUpdate(Update):
    """(9) for all weights and leaks of a network of layers.

    :param params: those of the posterior.
    :param priors: α and β of each weight and leak by the names of our program; None: no prior.
    """

    params: Params | None = None
    priors: tuple[Params, Params] | None = None
    form: ClassVar[Form] = Form.NOISY_OR

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """How often each cause turned each unit on, as far as one can tell, and could have."""
        assert self.params is not None
        values = self.read(self.params)
        data, mask = self.seen(arguments)
        data = data.astype(weights.dtype)
        observed = None if mask is None else mask.astype(data.dtype)
        ones = data if observed is None else data * observed
        states, probability = posterior.weighted()
        heavy = probability * weights
        if states.shape[1] == 1:  # of all rows: their data add up first
            total = lambda x: jnp.matmul(heavy, x, precision="highest")  # noqa: E731
            met = heavy.sum(1)
            every = met[:, None] if observed is None else total(observed)
            return _shares(values, states[:, 0], met, total(ones), every)
        observed = jnp.ones_like(data) if observed is None else observed

        # One state of every row at a time: nothing of size states × rows × columns is held.
        def step(sums: Any, one: tuple[Array, Array]) -> tuple[Any, None]:
            bits, count = one
            each = count[:, None]
            more = _shares(values, bits, count, each * ones, each * observed)
            return jax.tree.map(jnp.add, sums, more), None

        shapes = jax.eval_shape(_shares, values, states[0], heavy[0], data, observed)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return lax.scan(step, nothing, (states, heavy))[0]

    def maximise(self, params: Params, statistics: Any) -> Params:
        values, new = self.read(params), {}
        share, counts = statistics
        for role, old in values.items():
            strength, total, count = -jnp.expm1(-old), share[role], counts[role]
            if self.priors is not None:
                shape, rate = (prior[role] for prior in self.priors)
                total = total + (shape - 1.0) * strength / jnp.maximum(old, SMALLEST)
                count = count + rate
            strength = jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), strength)
            new[role] = -jnp.log1p(-jnp.clip(strength, LEAST, MOST))
        return self.write(new)


def _shares(
    values: Params, bits: Array, weight: Array, ones: Array, every: Array
) -> tuple[Params, Params]:
    """The sums of (9) over m states, each counted `weight` times.

    :param bits: (m, bits), the top layer first; weight: (m,).
    :param ones: (m, columns), how often an input was observed to be on; every: how often at all,
        or what broadcasts to it.
    """
    share, counts = {}, {}
    bits, end, level = bits.astype(weight.dtype), bits.shape[-1], 0
    while f"leak_{level}" in values:
        leak = values[f"leak_{level}"]
        above = values.get(f"weights_{level + 1}")
        inputs = leak
        if above is not None:
            cause = bits[:, end - len(above) : end]
            inputs = leak + jnp.matmul(cause, above, precision="highest")
        # Where the input is zero there is nothing to share.
        ratio = ones / -jnp.expm1(-jnp.maximum(inputs, SMALLEST))
        share[f"leak_{level}"] = -jnp.expm1(-leak) * ratio.sum(0)
        every = jnp.broadcast_to(every, ones.shape)
        counts[f"leak_{level}"] = every.sum(0)
        level += 1
        if above is None:
            break
        over = lambda x: jnp.matmul(cause.T, x, precision="highest")  # noqa: B023, E731
        share[f"weights_{level}"] = -jnp.expm1(-above) * over(ratio)
        counts[f"weights_{level}"] = over(every)
        end -= len(above)
        ones = weight[:, None] * cause
        every = jnp.broadcast_to(weight[:, None], cause.shape)
    return share, counts


def gamma_priors(model: Callable, rows: Rows, known: Known) -> tuple[Params, Params] | None:
    """α and β of each weight and leak, where all have priors Gamma(α, β), α ≥ 1; else None."""

    def read(trace: dict[str, dict]) -> tuple[dict, dict] | None:
        shapes: dict[str, np.ndarray] = {}
        rates: dict[str, np.ndarray] = {}
        for name, shape in known.shapes.items():
            fn = innermost(trace[name]["fn"]) if trace[name]["type"] == "sample" else None
            values = (getattr(fn, "rate", None), getattr(fn, "concentration", 1.0))
            if any(isinstance(x, jax.core.Tracer) for x in values):
                return None
            gamma = isinstance(fn, dist.Gamma | dist.Exponential)
            if not gamma or (np.asarray(values[1]) < 1.0).any():
                return None
            for table, value in zip((rates, shapes), values, strict=True):
                table[name] = np.broadcast_to(np.asarray(value, np.float32), shape)
        return shapes, rates

    priors = run_abstractly(model, *rows.slice(0, 1), read)
    return None if priors is None else (known.read(priors[0]), known.read(priors[1]))
