"""The steps of EM on hidden Markov chains: Baum and Welch's, whatever a step consists of.

Latents that meet beyond their rows, through an index say, are learned from by the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro import handlers

from ...reading.anatomy import ProgramError
from ...reading.arguments import check_data
from ...reading.elimination import Chain, Graph
from ...reading.log_joint import log_density_of
from ...reading.survey import find_chain, find_graph
from ...reading.tracing import improper, trace_of
from ...running.contract import Posterior
from ...types import Params
from ..m_step import minimise, transforms_of
from ..shared import check_shapes


class PathState(NamedTuple):
    """What the next step needs."""

    params: Params
    step: Array


class Paths(NamedTuple):
    r"""What `EM` does where the latents of a program form a chain, or a graph beyond rows.

    With the factors :math:`\phi_t(z_{t-1}, z_t; \theta)` of the chain, the E-step is the posterior
    of every pair of neighbours, which is the gradient of the log evidence with respect to the log
    factors; the M-step raises

    .. math:: Q(\theta) = \sum_t \sum_{ij} p(z_{t-1} = i, z_t = j \mid y) \log \phi_t(i, j; \theta)

    by L-BFGS. The log evidence cannot fall.
    """

    model: Callable
    prior: bool
    start: Callable[..., Params] | None
    gradient_steps: int

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> PathState:
        chain = open_chain(self.model, args, kwargs)

        def draw(key: Array) -> Params:
            filled = handlers.substitute(handlers.seed(self.model, key), substitute_fn=improper)
            trace = trace_of(filled, (args, kwargs))
            return {name: trace[name]["value"] for name in chain.parameters}

        drawn = jax.eval_shape(draw, rng_key)
        params = self.start(rng_key, *args, **kwargs) if self.start is not None else {}
        params = {**params, **(init_params or {})}
        if set(params) < set(drawn):  # operation by operation it would take seconds
            params = {**jax.jit(draw)(rng_key), **params}
        check_shapes({name: x.shape for name, x in drawn.items()}, params)
        params = {name: jnp.asarray(value, float) for name, value in params.items()}
        return PathState(params, jnp.zeros((), int))

    def update(self, state: PathState, *args: Any, **kwargs: Any) -> tuple[PathState, Array]:
        chain = open_chain(self.model, args, kwargs)
        arguments = args, kwargs
        factors: Any = chain.factors(self.model, state.params, arguments)
        evidence, joined = chain.statistics(factors)
        joined = lax.stop_gradient(joined)
        maps = transforms_of(self.model, chain.parameters, state.params, arguments)

        def loss(free: Params) -> Array:
            new = maps.constrain(free)
            factors: Any = chain.factors(self.model, new, arguments)
            value = sum(map(_expected, joined, chain.tables(factors)), jnp.zeros(()))
            return -(value + self._shared(chain, new, arguments)) / chain.num_latents

        total = -evidence.sum() - self._shared(chain, state.params, arguments)
        best = minimise(jax.value_and_grad(loss), maps.free(state.params), self.gradient_steps)
        return PathState(maps.constrain(best), state.step + 1), total

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        return self.init(rng_key, *args, **kwargs).params

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params:
        del params
        return self.propose(rng_key, *args, **kwargs)

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """Probabilities of the states at each step, and the most probable path: Viterbi's."""
        chain = open_chain(self.model, args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        held = {i: x for i, x in enumerate(leaves) if hasattr(x, "dtype")}

        def find(params: Params, held: dict[int, Array]) -> Posterior:
            arguments = jax.tree.unflatten(tree, [held.get(i, x) for i, x in enumerate(leaves)])
            factors: Any = chain.factors(self.model, params, arguments)
            return Posterior(
                evidence=chain.total(factors), probabilities=chain.probabilities(factors),
                best=chain.chosen(factors, None),
            )  # fmt: skip

        return jax.jit(find)(params, held)

    def _shared(self, chain: Chain | Graph, params: Params, arguments: Any) -> Array:
        """Log density of what depends on no path, with the priors of the parameters on request."""
        names = [*chain.other, *(chain.parameters if self.prior else ())]
        return log_density_of(self.model, names, params, arguments)


def open_chain(model: Callable, args: tuple, kwargs: dict) -> Chain | Graph:
    """The chain of a program on its data, or the graph of latents that meet beyond their rows.

    What EM cannot sum is refused.
    """
    check_data(args, kwargs)
    form: Chain | Graph | None = find_chain(model, args, kwargs)
    if form is None:
        form = find_graph(model, args, kwargs)
    assert form is not None
    if not form.observed:
        raise ProgramError("nothing that depends on the latents is observed: pass the data (obs=)")
    if form.effects:
        raise ProgramError(
            f"site {form.effects[0]!r} is continuous, unobserved and in a plate of the data: "
            "it is a random effect and no parameter, and EM sums over discrete latents alone; "
            "NUTS(marginal(model)) samples it"
        )
    if isinstance(form, Graph) and form.scaled:
        raise ProgramError(
            f"the latents {list(form.names)} meet beyond their rows and are scaled "
            "(handlers.scale, subsample_size), and EM counts each of them once; "
            "NUTS(marginal(model)) respects the scale"
        )
    return form


def _expected(probability: Array, log_factor: Array) -> Array:
    """Σ p log φ, where zero times minus infinity is zero, slopes included."""
    possible = probability > 0
    return jnp.sum(jnp.where(possible, probability * jnp.where(possible, log_factor, 0.0), 0.0))
