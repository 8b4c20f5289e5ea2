"""The log likelihood of rows under a network of bits, exact where its layers are small.

Exact: in a noisy-OR network of layers, p(s) of the lowest layer is a sum over the layer above it,
whose p(s) is one over the layer above that. With a table of it, the log joints of all data and all
states of the lowest layer are one matrix product, since log p(y | s) is linear in the bits of y.

Annealed: importance sampling from the prior to the posterior of the bits, by Gibbs sampling in
between (`inference.numerics.annealed`), for any program with binary latents; it comes with a
standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from latentbits.models.distributions import NoisyOr

from ...numerics.annealed import LogMean, anneal, log_mean
from ...reading.anatomy import ProgramError
from ...reading.arguments import rows_of
from ...rows.chunks import Rows, compiled, map_over_chunks
from ...types import Arguments, Params
from .flips import open_bits
from .noisy_or import (
    Network,
    Seen,
    Wiring,
    exact_product,
    read_network,
    read_seen,
)

MAX_UNITS = 20
"""A layer of more units has more than a million states."""

CHUNK_FLOATS = 1 << 25


def layered_evidence(
    wiring: Wiring, network: Network, seen: Mapping[str, Seen], chunk_size: int | None = None
) -> Array:
    """Log p(y_n) of each row, exactly, for layers that each hang on the next above: (num_data,)."""
    chain = [*wiring.hidden, *wiring.observed]
    if wiring.edges != tuple(pairwise(chain)):
        raise ProgramError(f"the sites {chain} are not a chain of layers: list all states instead")
    for site in wiring.hidden:
        units = network.leak[site].shape[0]
        if units > MAX_UNITS:
            raise ProgramError(
                f"layer {site!r} has {units} units: at most {MAX_UNITS} are summed exactly; use "
                "annealed_evidence"
            )
    log_prior = _layer_prior(chain[:-1], network)
    lowest, observed = chain[-2], chain[-1]
    inputs = _inputs_of_states(network, lowest, observed)
    fn = NoisyOr(inputs, validate_args=False)
    # A state that rules a bit out makes -inf · 0 = NaN in a product: its log odds stay finite.
    log_on = jnp.maximum(fn.log_prob(jnp.ones_like(inputs)), -1e30)

    def chunk(rows: tuple[Array, Array]) -> Array:
        on, off = rows
        table = exact_product(on, log_on.T) - exact_product(off, inputs.T)
        return logsumexp(table + log_prior, axis=1)

    value, mask = seen[observed]
    counted = jnp.ones_like(value) if mask is None else jnp.broadcast_to(mask, value.shape)
    on, off = value * counted, (1.0 - value) * counted
    size = chunk_size or max(1, CHUNK_FLOATS // log_prior.shape[0])
    if size >= value.shape[0]:
        return chunk((on, off))
    return lax.map(lambda row: chunk((row[0][None], row[1][None]))[0], (on, off), batch_size=size)


def _layer_prior(hidden: list[str], network: Network) -> Array:
    """Log p(s) of every state of the lowest of these layers, from the top down."""
    log_prior = jnp.zeros(1)
    inputs = network.leak[hidden[0]][None]
    for above, site in zip([None, *hidden], hidden, strict=False):
        if above is not None:
            inputs = _inputs_of_states(network, above, site)
        states = _states(network.leak[site].shape[0])
        log_on = jnp.maximum(NoisyOr(inputs, validate_args=False).log_prob(1.0), -1e30)
        given = exact_product(states, log_on.T) - exact_product(1.0 - states, inputs.T)
        log_prior = logsumexp(given + log_prior, axis=1)
    return log_prior


def _inputs_of_states(network: Network, parent: str, child: str) -> Array:
    states = _states(network.leak[parent].shape[0])
    return network.leak[child] + exact_product(states, network.weights[parent, child])


def _states(num_units: int) -> Array:
    """All states of a layer, (2^units, units), made on the device."""
    number = jnp.arange(1 << num_units, dtype=jnp.uint32)[:, None]
    return ((number >> np.arange(num_units, dtype=np.uint32)) & 1).astype(float)


def sums_by_layer(wiring: Wiring | None, sizes: Mapping[str, int], max_states: int) -> bool:
    """Whether `layered_evidence` applies, no table being larger than so many states of a layer."""
    if wiring is None or wiring.edges != tuple(pairwise([*wiring.hidden, *wiring.observed])):
        return False
    units = [sizes[site] for site in wiring.hidden]
    return 1 << max(units) <= max_states and all(
        1 << (a + b) <= CHUNK_FLOATS for a, b in pairwise(units)
    )


def exact_evidence(model: Callable, params: Params, *args: Any, **kwargs: Any) -> Array:
    """Log p(y_n) of each row under a noisy-OR network of layers, (num_data,).

    >>> from latentbits.models import noisy_or_network
    >>> params = {"leak_0": jnp.array([0.1]), "leak_1": jnp.array([0.5]),
    ...           "weights_1": jnp.array([[2.0]])}
    >>> value = exact_evidence(noisy_or_network, params, jnp.array([[1.0]]), layers=(1,))
    >>> wanted = jnp.exp(-0.5) * (1 - jnp.exp(-0.1)) + (1 - jnp.exp(-0.5)) * (1 - jnp.exp(-2.1))
    >>> bool(jnp.isclose(jnp.exp(value[0]), wanted))
    True
    """
    program = open_bits(model, args, kwargs)
    if program.wiring is None:
        raise ProgramError("the program is not a noisy-OR network: list all states instead (EM)")
    wiring, anatomy = program.wiring, program.anatomy

    def compute(rows: Rows, params: Params) -> Array:
        arguments = rows.whole()
        network = read_network(model, anatomy, wiring, params, arguments)
        return layered_evidence(wiring, network, read_seen(model, anatomy, arguments))

    rows = rows_of(anatomy, args, kwargs)
    return compiled(compute, rows)(rows.leaves, params)


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
    width = sum(int(leaf.size) // rows.num_data for leaf in rows.leaves)
    size = chunk_size or max(1, CHUNK_FLOATS // (num_chains * (width + program.anatomy.num_bits)))
    size = min(size, rows.num_data)
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
        each = lambda arguments, _, start: chunk(key, arguments, params, start)  # noqa: E731
        return map_over_chunks(each, rows, size, None)

    return compiled(compute, rows)(rows.leaves, params, key)
