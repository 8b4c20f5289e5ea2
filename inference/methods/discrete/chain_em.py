"""EM for hidden Markov chains: Baum and Welch's algorithm, whatever a step consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro import handlers

from ...numerics import chain as sums
from ...numerics.compiling import once
from ...reading.anatomy import Anatomy, ProgramError
from ...reading.arguments import check_data
from ...reading.chain import Chain
from ...reading.chain_sums import chain_posterior
from ...reading.chain_survey import find_chain
from ...running.algorithm import Algorithm
from ...types import Params
from ..m_step import inverse, minimise, transforms_of


class ChainEMState(NamedTuple):
    """What the next step needs."""

    params: Params
    step: Array


class PathPosterior(NamedTuple):
    """The posterior of the paths of each sequence."""

    probabilities: dict[str, Array]  # site -> (T, ..., num_values)
    best: dict[str, Array]  # site -> the most probable path, (T, ...)
    evidence: Array  # (num_sequences,)


class ChainEM(Algorithm):
    r"""Expectation–maximisation for a program whose discrete latents form a chain (a `scan`).

    With the factors :math:`\phi_t(z_{t-1}, z_t; \theta)` of the chain, the E-step is the posterior
    of every pair of neighbours, which is the gradient of the log evidence with respect to the log
    factors; the M-step raises

    .. math:: Q(\theta) = \sum_t \sum_{ij} p(z_{t-1} = i, z_t = j \mid y) \log \phi_t(i, j; \theta)

    by L-BFGS. The log evidence cannot fall.

    :param model: any program with one scan over discrete latents.
    :param prior: maximise the posterior of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``; by default a draw from the priors.
    :param gradient_steps: L-BFGS steps of an M-step.

    >>> import numpyro, numpyro.distributions as dist
    >>> from numpyro.contrib.control_flow import scan
    >>> def weather(seen):
    ...     stay = numpyro.sample("stay", dist.Beta(2, 2).expand([2]).to_event(1))
    ...     right = numpyro.sample("right", dist.Beta(4, 2))
    ...     def step(rainy, umbrella):
    ...         wet = jnp.where(rainy == 1, stay[1], 1 - stay[0])
    ...         rainy = numpyro.sample("rainy", dist.Bernoulli(wet))
    ...         carried = jnp.where(rainy == 1, right, 1 - right)
    ...         numpyro.sample("umbrella", dist.Bernoulli(carried), obs=umbrella)
    ...         return rainy, None
    ...     scan(step, jnp.array(0), seen)
    >>> params = {"stay": jnp.array([0.9, 0.8]), "right": jnp.array(0.9)}
    >>> em = ChainEM(weather, prior=True)  # em.run(random.key(0), 100, seen) learns params
    >>> seen = jnp.array([0, 0, 1, 1, 0, 1, 1])
    >>> em.posterior(params, seen).best["rainy"].tolist()
    [0, 0, 1, 1, 1, 1, 1]
    """

    why_not_compared = "it is EM for a program whose latents form a chain"
    why_no_mesh = "a sequence is read as a whole"

    def __init__(
        self,
        model: Callable,
        *,
        prior: bool = False,
        start: Callable[..., Params] | None = None,
        gradient_steps: int = 10,
    ):
        self.model, self.prior, self.start = model, prior, start
        self.gradient_steps = gradient_steps

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        del anatomy
        return "no chain: the latents of its data plate are not those of a scan"

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        """How many sequences there are."""
        return self._open(args, kwargs).num_sequences

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> ChainEMState:
        chain = self._open(args, kwargs)

        def draw(key: Array) -> Params:
            with handlers.block(), handlers.seed(rng_seed=key):
                trace = handlers.trace(self.model).get_trace(*args, **kwargs)
            return {name: trace[name]["value"] for name in chain.parameters}

        drawn = jax.eval_shape(draw, rng_key)
        params = self.start(rng_key, *args, **kwargs) if self.start is not None else {}
        params = {**params, **(init_params or {})}
        if set(params) < set(drawn):  # operation by operation it would take seconds
            params = {**once(draw)(rng_key), **params}
        for name, value in params.items():
            if name not in drawn:
                raise ValueError(
                    f"no parameter {name!r} in the program: it has {list(chain.parameters)}"
                )
            if jnp.shape(value) != drawn[name].shape:
                raise ValueError(
                    f"parameter {name!r} has shape {jnp.shape(value)}, but the program's has "
                    f"{drawn[name].shape}"
                )
        params = {name: jnp.asarray(value, float) for name, value in params.items()}
        return ChainEMState(params, jnp.zeros((), int))

    def update(self, state: ChainEMState, *args: Any, **kwargs: Any) -> tuple[ChainEMState, Array]:
        chain = self._open(args, kwargs)
        arguments = args, kwargs
        evidence, joined = sums.statistics(*chain.factors(self.model, state.params, arguments))
        joined = lax.stop_gradient(joined)
        maps = transforms_of(self.model, chain.parameters, state.params, arguments)
        count = chain.num_sequences * chain.length

        def constrain(free: Params) -> Params:
            return {name: maps[name](value) for name, value in free.items()}

        def loss(free: Params) -> Array:
            new = constrain(free)
            factors, start = chain.factors(self.model, new, arguments)
            value = _expected(joined[0], factors)
            if start is not None:
                value = value + _expected(joined[1], start)
            return -(value + self._log_prior(chain, new, arguments)) / count

        total = -evidence.sum() - self._log_prior(chain, state.params, arguments)
        free = {name: inverse(maps[name], value) for name, value in state.params.items()}
        best = minimise(lambda derive, free: derive(loss)(free), free, self.gradient_steps)
        return ChainEMState(constrain(best), state.step + 1), total

    def get_params(self, state: ChainEMState) -> Params:
        return state.params

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> PathPosterior:
        """Probabilities of the states at each step, and the most probable path: Viterbi's."""
        chain = self._open(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        held = {i: x for i, x in enumerate(leaves) if hasattr(x, "dtype")}

        def find(params: Params, held: dict[int, Array]) -> PathPosterior:
            arguments = jax.tree.unflatten(tree, [held.get(i, x) for i, x in enumerate(leaves)])
            found = chain_posterior(self.model, chain, params, arguments)
            evidence = sums.evidence(found.factors, found.start)
            return PathPosterior(found.probabilities(), found.best(), evidence)

        return jax.jit(find)(params, held)

    def _log_prior(self, chain: Chain, params: Params, arguments: Any) -> Array:
        if not self.prior:
            return jnp.zeros(())
        args, kwargs = arguments
        program = handlers.substitute(self.model, data=params)
        with handlers.block(), handlers.seed(rng_seed=0):
            trace = handlers.trace(program).get_trace(*args, **kwargs)
        sites = [trace[name] for name in chain.parameters if trace[name]["type"] == "sample"]
        return sum((jnp.sum(x["fn"].log_prob(x["value"])) for x in sites), jnp.zeros(()))

    def _open(self, args: tuple, kwargs: dict) -> Chain:
        check_data(args, kwargs)
        chain = find_chain(self.model, args, kwargs)
        if chain is None:
            raise ProgramError(
                "the program has no scan (numpyro.contrib.control_flow) over discrete latents: EM "
                "is for latents of a data plate"
            )
        if not chain.observed:
            raise ProgramError("nothing is observed in the scan: pass the data (obs=...)")
        if chain.other:
            raise ProgramError(
                f"site {chain.other[0]!r} is observed outside the scan and depends on none of its "
                "latents: it would be ignored; NUTS(marginal(model)) and SVI heed it"
            )
        return chain


def _expected(probability: Array, log_factor: Array) -> Array:
    """Σ p log φ, where zero times minus infinity is zero, slopes included."""
    seen = probability > 0
    return jnp.sum(jnp.where(seen, probability * jnp.where(seen, log_factor, 0.0), 0.0))
