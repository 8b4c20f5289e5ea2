"""How much posterior mass lies outside the states that were looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, random
from jax.scipy.special import logsumexp

from ...reading.reader import Reader
from ...types import Arguments, Params
from ..shared import Expectation


def missed_mass(
    reader: Reader,
    contains: Callable[[Reader, Any, Array], Array],
    params: Params,
    arguments: Arguments,
    memory: Any,
    posterior: Expectation,
    key: Array,
    num_draws: int,
) -> tuple[Array, Array]:
    r"""Share of each datum's posterior outside the set K, and its standard error, both (num_data,).

    Importance sampling: states are drawn bit by bit with the truncated posterior's own means, drawn
    towards ½ so that no bit is certain, and

    .. math:: Z_{out} = \mathbb E_r\Big[\mathbf 1\{s \notin K\}\, \frac{p(y, s)}{r(s)}\Big], \qquad
              \text{missed} = \frac{Z_{out}}{Z_K + Z_{out}} .

    An estimate far from its error is to be believed; one draw that carries it all shows as an error
    as large as the estimate.
    """
    num_bits = reader.anatomy.num_bits
    # One or two bits of a draw differ from the posterior's: far enough to leave K, near enough to
    # land where mass may be.
    loose = jnp.minimum(0.5, 2.0 / num_bits)
    rate = (1.0 - loose) * posterior.mean + loose * jnp.minimum(0.5, posterior.mean.mean() + 0.1)
    rate = jnp.clip(rate, 1e-4, 1.0 - 1e-4)
    bits = random.bernoulli(key, rate, (num_draws, *rate.shape))
    log_draw = jnp.where(bits, jnp.log(rate), jnp.log1p(-rate)).sum(-1)
    log_ratio = reader.log_joint(params, bits.astype(jnp.int32), arguments) - log_draw
    log_ratio = jnp.where(contains(reader, memory, bits), -jnp.inf, log_ratio) - posterior.evidence
    # Everything is relative to Z_K, so that no exponential overflows before the quotient.
    outside = jnp.exp(logsumexp(log_ratio, axis=0) - jnp.log(num_draws))
    square = jnp.exp(logsumexp(2.0 * log_ratio, axis=0) - jnp.log(num_draws))
    error = jnp.sqrt(jnp.maximum(square - outside**2, 0.0) / num_draws)
    missed = jnp.where(jnp.isinf(outside), 1.0, outside / (1.0 + outside))
    return missed, jnp.where(jnp.isfinite(error), error / (1.0 + outside) ** 2, 1.0)
