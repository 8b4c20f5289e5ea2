r"""Noisy-OR networks, read off a program: who causes whom, and how strongly.

A program whose sites are all `NoisyOr` is a network, whatever its sites are called. The causal
input of each site is affine in the bits above it,

    u_j = leak_j + Σ_i S_i w_ij,

so that the value at S = 0 is the leak and the derivative is the weight: both are read here, by one
run of the program on one row, and tested on random states before anybody relies on them. What
Gibbs sampling (Lewicki & Sejnowski 1996, eqs. 6 and 7) and learning (eq. 9) need is then arithmetic
on arrays, in `inference.methods.gibbs.noisy_or_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.core import Tracer
from latentbits.models.distributions import NoisyOr
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ...reading.anatomy import Anatomy, ProgramError
from ...reading.forms import unwrapped
from ...reading.handlers import states
from ...reading.log_joint import anywhere, log_joint, stand_in
from ...reading.probe import probe
from ...reading.recognition.sites import Seen, run_program
from ...rows.chunks import Rows
from ...types import Arguments, Params

# A cause of an impossible effect is certain: large enough a log odds, and still a number.
SMALLEST = 1e-37

Edge = tuple[str, str]
"""From a hidden site to a site that it may turn on."""


class Names(NamedTuple):
    """Which parameter of the program holds which numbers of the network."""

    leak: dict[str, str]  # site -> parameter; what the program holds constant is left out
    weights: dict[Edge, str]
    lost: tuple[str, ...]  # parameters that are not, each by itself, one of these

    def update(self, params: Params, network: Network) -> Params:
        """The parameters with what the network holds."""
        leak = {name: network.leak[site] for site, name in self.leak.items()}
        weights = {name: network.weights[edge] for edge, name in self.weights.items()}
        return {**params, **leak, **weights}


class Wiring(NamedTuple):
    """Which sites there are and which turn on which: what stays when the numbers change."""

    hidden: tuple[str, ...]  # in the order of the program, so that parents come first
    observed: tuple[str, ...]
    edges: tuple[Edge, ...]
    names: Names | None = None

    def children(self, site: str) -> tuple[str, ...]:
        return tuple(child for parent, child in self.edges if parent == site)

    def parents(self, site: str) -> tuple[str, ...]:
        return tuple(parent for parent, child in self.edges if child == site)


class Network(NamedTuple):
    """The numbers of a network. A pytree."""

    leak: dict[str, Array]  # site -> (units,)
    weights: dict[Edge, Array]  # (parent, child) -> (units of the parent, units of the child)


def causal_inputs(wiring: Wiring, network: Network, bits: Mapping[str, Array], site: str) -> Array:
    """u of a site's units, (num_data, units), from the states of its parents."""
    total: Array = network.leak[site]
    for parent in wiring.parents(site):
        states = bits[parent].astype(total.dtype)
        total = total + exact_product(states, network.weights[parent, site])
    return total


def exact_product(left: Array, right: Array) -> Array:
    """A matrix product in full precision: some devices round its factors to ten bits."""
    return jnp.matmul(left, right, precision="highest")


def network_log_joint(
    wiring: Wiring,
    network: Network,
    bits: Mapping[str, Array],
    seen: Mapping[str, Seen],
    power: Array | float = 1.0,
    open_sites: Mapping[str, Array] | None = None,
) -> Array:
    """Equation (1): the sum of log h(u; S) over all units, (..., num_data).

    :param power: of the likelihood. Below 1 a bit that nothing turns on has the probability that
        sweeps give it, which is not zero: a path through impossible states would end there.
    :param open_sites: site -> whether its units count; the others are off and cost nothing.
    """
    total: Array | float = 0.0
    for site in (*wiring.hidden, *wiring.observed):
        inputs = causal_inputs(wiring, network, bits, site)
        value = bits[site] if site in bits else seen[site].value
        cells = NoisyOr(inputs, validate_args=False).log_prob(value)
        mask = seen[site].mask if site in seen else None
        if site in seen and not (isinstance(power, float) and power == 1.0):
            cells = jnp.where(power < 1.0, jnp.maximum(cells, math.log(SMALLEST)), cells)
        part = (cells if mask is None else jnp.where(mask, cells, 0.0)).sum(-1)
        if site in seen:
            part = part * power
        elif open_sites is not None:
            part = jnp.where(open_sites[site], part, 0.0)
        total = total + part
    return jnp.asarray(total)


def read_network(
    model: Callable, anatomy: Anatomy, wiring: Wiring, params: Params, arguments: Arguments
) -> Network:
    """Leaks and weights as the program has them: value and derivative of its causal inputs."""
    sizes = {latent.name: latent.size for latent in anatomy.latents}

    def inputs(flat: Array) -> dict[str, Array]:
        return _inputs(model, anatomy, params, flat, arguments)

    zero = jnp.zeros(anatomy.num_bits)
    leak = inputs(zero)
    slopes = jax.jacfwd(inputs)(zero)  # site -> (units, bits)
    weights, start = {}, 0
    for latent in anatomy.latents:
        for child in wiring.children(latent.name):
            weights[latent.name, child] = slopes[child][:, start : start + sizes[latent.name]].T
        start += sizes[latent.name]
    return Network(leak, weights)


def read_seen(
    model: Callable, anatomy: Anatomy, arguments: Arguments, params: Params | None = None
) -> dict[str, Seen]:
    """The observed sites' bits and masks.

    :param params: any, so that none must be drawn.
    """
    observed = {}
    for name, site in trace_off(model, anatomy, arguments, params).items():
        if name in anatomy.observed:
            _, mask = _unwrap(site["fn"])
            observed[name] = Seen(jnp.asarray(site["value"], float), mask)
    return observed


def trace_off(
    model: Callable, anatomy: Anatomy, arguments: Arguments, params: Params | None
) -> dict[str, dict]:
    """The trace of a run in which all hidden units are off: a generator is much to compile."""

    def off(site: dict[str, Any]) -> Array | None:
        return jnp.zeros(site["fn"].shape(), int) if site["name"] in anatomy.names else None

    return run_program(handlers.substitute(model, substitute_fn=off), arguments, params)


FEW_ROWS = 3
"""Rows that the form of a program is read off."""


def find_wiring(model: Callable, anatomy: Anatomy, rows: Rows) -> Wiring | None:
    """The wiring of a program that is a noisy-OR network, None if it is none.

    The program is run on random parameters and states: all sites of the data plate must be noisy-OR
    units in a vector, their causal inputs affine in the states and the same for all rows, and the
    log joint of the network that was read must be the program's own.
    """
    flat = all(x.binary and x.batch_ndim == 1 and len(x.shape) == 2 for x in anatomy.latents)
    if not (anatomy.latents and anatomy.observed and flat and anatomy.nesting == 1):
        return None
    if set(anatomy.likelihoods) != {NoisyOr.__name__}:
        return None
    few = min(rows.num_data, FEW_ROWS) if rows.leaves else rows.num_data
    leaves = [stand_in(x, few, 0) for x in rows.leaves]
    # Of what is not known yet the shape is enough.
    known = lambda x: np.full(x.shape, 0.5, x.dtype) if isinstance(x, Tracer) else x  # noqa: E731
    rows = rows._replace(rest=tuple(map(known, rows.rest)))
    try:
        with validation_enabled(False), jax.default_matmul_precision("highest"):
            return _examine(model, anatomy.with_rows(few), rows, leaves)
    except (_NotANetworkError, ProgramError, TypeError):
        return None


class _NotANetworkError(Exception):
    pass


def _examine(
    model: Callable, anatomy: Anatomy, rows: Rows, leaves: list[np.ndarray]
) -> Wiring | None:
    hidden = anatomy.names
    below = {parent: (*hidden[i + 1 :], *anatomy.observed) for i, parent in enumerate(hidden)}
    everything = tuple((parent, child) for parent in hidden for child in below[parent])
    wiring = Wiring(hidden, anatomy.observed, everything)

    def trial(seed: Array, leaves: list[Array]) -> tuple[Params, Network, Array]:
        arguments = rows.join(leaves)
        key_params, key_bits, key_real = random.split(random.key(seed), 3)
        params = anywhere(model, anatomy, key_params, arguments)
        network = read_network(model, anatomy, wiring, params, arguments)
        # Between the bits too: what is affine there is affine at the bits.
        real = random.uniform(key_real, (anatomy.num_bits,))
        inputs = _inputs(model, anatomy, params, real, arguments)
        bits = {name: x[0] for name, x in anatomy.unpack(real[None, None]).items()}
        sites = (*hidden, *anatomy.observed)
        wanted = {s: causal_inputs(wiring, network, bits, s).reshape(-1) for s in sites}
        errors = [_distance(inputs[site], wanted[site]) for site in wanted]
        random_bits = random.bernoulli(key_bits, 0.5, (3, anatomy.num_data, anatomy.num_bits))
        direct = log_joint(model, anatomy, params, random_bits.astype(jnp.int32), arguments)
        observed = read_seen(model, anatomy, arguments, params)
        read = network_log_joint(wiring, network, anatomy.unpack(random_bits), observed)
        errors.append(_distance(read, direct))
        return params, network, jnp.stack(errors).max()

    trials = probe(trial, [(np.int32(seed), leaves) for seed in range(2)])
    if not all(error <= 1e-4 for _, _, error in trials):  # also when NaN
        return None
    edges = tuple(e for e in everything if any(net.weights[e].any() for _, net, _ in trials))
    params, network, _ = trials[0]
    return wiring._replace(edges=edges, names=_names(params, network, edges))


def _names(params: Params, network: Network, edges: tuple[Edge, ...]) -> Names:
    """Tell, from random parameters, which array of them is which of the network."""

    def name_of(value: Array) -> str | None:
        for name, other in params.items():
            if other.shape == value.shape and np.allclose(other, value, rtol=1e-5):
                return name
        return None

    leak = {site: name_of(value) for site, value in network.leak.items()}
    weights = {edge: name_of(network.weights[edge]) for edge in edges}
    names = [*leak.values(), *weights.values()]
    return Names(
        {site: name for site, name in leak.items() if name is not None},
        {edge: name for edge, name in weights.items() if name is not None},
        tuple(name for name in params if names.count(name) != 1),
    )


def _distance(a: Array, b: Array) -> Array:
    # Equal infinities are equal.
    gap = jnp.where(a == b, 0.0, jnp.abs(a - b))
    return gap.max() / (1.0 + jnp.where(jnp.isfinite(b), jnp.abs(b), 0.0).max())


def _inputs(
    model: Callable, anatomy: Anatomy, params: Params, flat: Array, arguments: Arguments
) -> dict[str, Array]:
    """The causal inputs (units,) of all sites, for one row with latents `flat` (bits,)."""
    program = states(model, anatomy.unpack(flat[None, None]))
    inputs, scales = {}, set()
    for name, site in run_program(program, arguments, params).items():
        if site["type"] != "sample":
            continue
        if all(frame.name != anatomy.plate for frame in site["cond_indep_stack"]):
            continue
        base, _ = _unwrap(site["fn"])
        units = site["fn"].event_shape[-1]
        causal_input = jnp.asarray(base.causal_input)
        # One row was given: more come out only if the rows differ in something else.
        if causal_input.size != units:
            raise _NotANetworkError
        inputs[name] = causal_input.reshape(-1)
        scales.add(id(site["scale"]))
    if len(scales) != 1:
        raise _NotANetworkError
    return inputs


def _unwrap(fn: Any) -> tuple[NoisyOr, Array | None]:
    """The units of a site, and which of its cells count."""
    base, mask = unwrapped(fn)
    if fn.event_dim != 1 or not isinstance(base, NoisyOr):
        raise _NotANetworkError
    return base, mask


def strengths(weights: Array) -> Array:
    """f = 1 − exp(−w): how often a cause alone turns its effect on; what is negligible is 0."""
    strength = -jnp.expm1(-jnp.asarray(weights))
    return jnp.where(strength > 1e-3, strength, 0.0)
