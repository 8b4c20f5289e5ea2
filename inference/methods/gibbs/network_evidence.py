"""The log likelihood of rows under a network of bits, where its states are too many to sum.

Annealed importance sampling from the prior to the posterior of the bits, by Gibbs sampling in
between (`inference.numerics.annealed`), for any program with binary latents; it comes with a
standard error. Where its layers are small `inference.evaluation.evidence` sums them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from ...numerics.annealed import LogMean, anneal, log_mean
from ...reading.arguments import rows_of
from ...rows.chunks import Numbers, Rows, chunk_of, compiled, map_over_chunks
from ...types import Arguments, Params
from .flips import open_bits


def annealed_evidence(
    model: Callable,
    params: Params,
    *args: Any,
    rng_key: Array | None = None,
    num_chains: int = 32,
    num_densities: int = 200,
    chunk_size: int | None = None,
    **kwargs: Any,
) -> LogMean:
    """Log p(y_n) of each row by annealed importance sampling, with its standard error.

    Chains start as draws of the latents from the program and are led to the posterior through
    p(s) p(y | s)^β, a sweep of Gibbs sampling at each β. Any program with binary latents.

    :param num_chains: a row.
    :param num_densities: values of β from 0 to 1, closer together near 0.
    :param chunk_size: rows at a time.
    """
    program = open_bits(model, args, kwargs)
    rows = rows_of(program.anatomy, args, kwargs)
    floats = num_chains * (rows.width + program.anatomy.num_bits)
    size = chunk_of(chunk_size, floats, rows)
    local = program._replace(anatomy=program.anatomy.with_rows(size))
    key = random.key(0) if rng_key is None else rng_key

    def chunk(key: Array, arguments: Arguments, params: Params, start: Array) -> LogMean:
        key_start, key_chains = random.split(random.fold_in(key, start))
        draw, score = local.read(params, arguments)
        keys = random.split(key_start, num_chains)
        states = jax.vmap(lambda k: local.prior_draw(k, params, arguments))(keys)

        def density(states: Array, beta: Array) -> Array:
            return jax.vmap(lambda s: score(s, beta))(states)

        def transition(key: Array, states: Array, beta: Array) -> Array:
            each = random.split(key, num_chains)
            return jax.vmap(lambda k, s: draw(k, s, beta)[0])(each, states)

        betas = jnp.linspace(0.0, 1.0, num_densities) ** 2
        return log_mean(anneal(key_chains, states, density, transition, betas).log_weights)

    def compute(rows: Rows, params: Params, key: Array) -> LogMean:
        each = lambda arguments, numbers: chunk(key, arguments, params, numbers[0])  # noqa: E731
        return map_over_chunks(each, rows, size, Numbers())

    return compiled(compute, rows)(rows.leaves, params, key)
