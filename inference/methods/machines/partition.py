r"""The normaliser of a combination machine: exact, truncated, annealed; and a program without it.

.. math:: Z = \sum_{h \in \{0,1\}^m} \exp\Big(\theta \cdot h + \sum_j A(\omega(h)_j)\Big)
          \qquad \text{(Freund \& Haussler 1994, 2.2 and 2.7)}

===========================  ======================  ==========================================
way                          cost                    what it gives
===========================  ======================  ==========================================
`log_normalizer` of a site   :math:`2^m`             :math:`\log Z` itself, to 23 units or so
`truncated`                  :math:`O(m^k)`          a lower bound, and a bound from above
`annealed`                   chains × steps          an estimate with its standard error
===========================  ======================  ==========================================

The handler `normalizer` puts any of them in the place of the sum that the program makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models.distributions import CombinationCauses, RealCombinationCauses
from latentbits.models.state_sums import log_partial_sum
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from ...numerics.annealed import LogMean, anneal, log_mean
from ...reading.distributions import map_base
from ...reading.states import AtMost
from ...reading.tracing import ProgramError, innermost, trace_of
from ...types import Params

Causes = CombinationCauses | RealCombinationCauses
MACHINES = {kind.__name__ for kind in get_args(Causes)}


# `normalizer` changes how the hidden units of a combination machine are normalised, and nothing
# else. Their log Z is the only part of the program that costs 2^m: with it replaced, the same
# program has hundreds of units, and its gradient is that of the estimate put there.
class normalizer(Messenger):  # noqa: N801
    """Replace the exact log Z of a program's `CombinationCauses` by another.

    :param fn: the program.
    :param log_normalizer: ``log_normalizer(causes) -> log Z`` from the site's distribution, whose
        ``weights`` and ``bias`` are the parameters.

    >>> from latentbits.models import combination_machine
    >>> pairs = normalizer(combination_machine, lambda causes: truncated(causes, 2).value)
    >>> sites = handlers.trace(handlers.seed(pairs, 0))
    >>> run = lambda: sites.get_trace(jnp.ones((2, 3)), num_causes=40)["causes"]["value"]
    >>> jax.eval_shape(run).shape  # forty units, whose 2^40 states are never summed
    (2, 40)
    """

    def __init__(self, fn: Callable, log_normalizer: Callable[[Causes], Array]):
        self.log_normalizer = log_normalizer
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and not msg["is_observed"]:
            msg["fn"] = map_base(msg["fn"], self._changed)

    def _changed(self, fn: Any) -> Any:
        if not isinstance(fn, Causes):
            return fn
        log_normalizer = self.log_normalizer(fn)
        return type(fn)(fn.weights, fn.bias, log_normalizer=log_normalizer, validate_args=False)


def causes_of(model: Callable, params: Params, *args: Any, **kwargs: Any) -> Causes:
    """The distribution of the hidden units of a program, given its parameters."""

    def hidden(site: dict[str, Any]) -> bool:
        return site["type"] == "sample" and isinstance(innermost(site["fn"]), Causes)

    def off(site: dict[str, Any]) -> Array | None:
        return jnp.zeros(site["fn"].shape()) if hidden(site) else None  # nothing is drawn

    program = handlers.substitute(model, substitute_fn=off)
    with validation_enabled(False):
        trace = trace_of(program, (args, kwargs), params)
    causes = next((innermost(x["fn"]) for x in trace.values() if hidden(x)), None)
    if causes is None:
        raise ProgramError(
            "the program has no site distributed as CombinationCauses or RealCombinationCauses: "
            "its latents are normalised by themselves"
        )
    return type(causes)(causes.weights, causes.bias, validate_args=False)


class Truncated(NamedTuple):
    """A sum over the states of at most k active units, and what it may have missed."""

    value: Array  # log Z_k ≤ log Z
    upper: Array  # log Z ≤ this, whatever the machine
    num_states: int

    @property
    def missed_at_most(self) -> Array:
        """Bound of P(more than k units active) = 1 − Z_k / Z; 1 says nothing."""
        return -jnp.expm1(self.value - self.upper)

    def report(self) -> str:
        """What the bound says of what was left out, in words.

        >>> small, large = Truncated(1.0, 1.001, 3), Truncated(1.0, 400.0, 3)
        >>> print(small.report())
        at most 0.001 of the mass is left out
        >>> print(large.report())
        the bound is vacuous: log Z <= 400 allows all of the mass to be left out
        """
        missed = float(self.missed_at_most)
        if missed < 0.99:
            return f"at most {missed:.2g} of the mass is left out"
        allowed = f"log Z <= {float(self.upper):.6g} allows all of the mass to be left out"
        return f"the bound is vacuous: {allowed}"


@lru_cache(maxsize=8)
def _table(num_causes: int, max_active: int) -> np.ndarray:
    return AtMost(max_active).table((2,) * num_causes)


def truncated(causes: Causes, max_active: int) -> Truncated:
    r"""log Z over the states of at most `max_active` active units (section 3), with its error.

    What is left out is bounded. Of the binary machine A has slopes within ±1, so
    :math:`A(\omega(h)_j) \le A(0) + \sum_i h_i |\omega^{(i)}_j|`, and the states of r active units
    weigh at most :math:`e^{n A(0)} e_r(a)`, the r-th elementary symmetric polynomial of
    :math:`a_i = \exp(\theta^{(i)} + \sum_j |\omega^{(i)}_j|)`. For the real machine
    :math:`\tfrac12 \|\omega(h)\|^2 \le \tfrac m2 \sum_i h_i \|\omega^{(i)}\|^2` does the same.

    >>> causes = CombinationCauses(0.1 * jnp.ones((12, 4)), jnp.full(12, -4.0))
    >>> estimate = truncated(causes, 3)
    >>> bool(estimate.value <= causes.log_normalizer <= estimate.upper)
    True
    """
    weights, bias = jnp.asarray(causes.weights), jnp.asarray(causes.bias)
    num_causes, num_features = weights.shape
    max_active = min(max_active, num_causes)
    table = _table(num_causes, max_active)
    value = log_partial_sum(type(causes).log_mass, weights, bias, table)
    if isinstance(causes, CombinationCauses):
        log_each = bias + jnp.abs(weights).sum(1)
    else:
        log_each = bias + 0.5 * num_causes * (weights**2).sum(1)
    log_empty = type(causes).log_mass(jnp.zeros(num_features))
    missed = _log_symmetric(jax.lax.stop_gradient(log_each))[max_active + 1 :]
    upper = jax.lax.stop_gradient(value)
    if len(missed):
        upper = jnp.logaddexp(upper, log_empty + jax.scipy.special.logsumexp(missed))
    return Truncated(value, upper, len(table))


def _log_symmetric(log_values: Array) -> Array:
    """Logs of the elementary symmetric polynomials e_0, …, e_m of positive numbers, (m + 1,)."""
    count = len(log_values)

    def step(logs: Array, log_value: Array) -> tuple[Array, None]:
        shifted = jnp.concatenate([jnp.full(1, -jnp.inf), logs[:-1] + log_value])
        return jnp.logaddexp(logs, shifted), None

    start = jnp.full(count + 1, -jnp.inf).at[0].set(0.0)
    return jax.lax.scan(step, start, log_values)[0]


def annealed(
    rng_key: Array,
    causes: Causes,
    *,
    num_chains: int = 100,
    num_steps: int = 1000,
    base: Array | None = None,
) -> LogMean:
    r"""log Z by annealed importance sampling, with its standard error.

    The path leads from independent units, the hidden ones at even odds and the observed ones in a
    field a, to the machine: field :math:`(1 - \beta) a + \beta\, \omega(h)`, bias
    :math:`\beta \theta` (Salakhutdinov & Murray 2008). The transition is one sweep of block Gibbs.

    :param base: a, (num_features,); for data of bits half the log odds of their means is good. By
        default zero.

    >>> causes = CombinationCauses(0.5 * jnp.ones((3, 4)), jnp.array([-1.0, 0.0, 1.0]))
    >>> estimate = annealed(random.key(0), causes, num_chains=50, num_steps=100)
    >>> bool(abs(estimate.value - causes.log_normalizer) < 4 * estimate.standard_error + 1e-3)
    True
    """
    weights, bias = jnp.asarray(causes.weights), jnp.asarray(causes.bias)
    num_causes, num_features = weights.shape
    field = jnp.zeros(num_features) if base is None else jnp.asarray(base, float)
    log_mass, draw_observed = type(causes).log_mass, type(causes).draw_observed

    def log_density(hidden: Array, beta: Array) -> Array:
        combined = (1 - beta) * field + beta * (hidden @ weights)
        return beta * (hidden @ bias) + log_mass(combined)

    def transition(key: Array, hidden: Array, beta: Array) -> Array:
        key_observed, key_hidden = random.split(key)
        observed = draw_observed(key_observed, (1 - beta) * field + beta * (hidden @ weights))
        probability = jax.nn.sigmoid(beta * (observed @ weights.T + bias))
        return random.bernoulli(key_hidden, probability).astype(weights.dtype)

    # By default a GPU multiplies single precision with ten bits.
    @jax.jit
    @jax.default_matmul_precision("highest")
    def run(key: Array) -> LogMean:
        key_start, key_path = random.split(key)
        start = random.bernoulli(key_start, 0.5, (num_chains, num_causes)).astype(weights.dtype)
        betas = jnp.linspace(0.0, 1.0, num_steps + 1)
        estimate = log_mean(anneal(key_path, start, log_density, transition, betas).log_weights)
        # The base: every hidden state weighs the same.
        return estimate._replace(value=estimate.value + num_causes * jnp.log(2.0) + log_mass(field))

    return run(rng_key)
