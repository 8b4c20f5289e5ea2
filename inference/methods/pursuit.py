"""Projection pursuit: hidden units one at a time, Freund & Haussler (1994), sections 3.2 to 3.5."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from inference.algorithm import Algorithm
from inference.anatomy import Anatomy, ProgramError, inspect
from inference.ascent import linear_posterior, open_climb, without_normalizer
from inference.local import Params, Structure
from inference.methods.em import EM, Posterior
from inference.reader import check_data, check_support
from inference.rows import rows_of
from ppl_models import real_combination_machine


class PursuitState(NamedTuple):
    """What the next step needs."""

    params: Params  # units not found yet have weights 0: they do nothing
    residual: Array  # (num_data, num_features): the data with the structure found so far removed
    gains: Array  # (num_causes,): log likelihood that each unit added, 0 if not found
    finished: Array  # whether no unit improves the likelihood significantly any more
    step: Array
    rng_key: Array


class ProjectionPursuit(Algorithm):
    r"""Projection pursuit: each step finds one more hidden unit, until none is significant.

    1. EM on a real machine of a single unit, with the closed forms

       .. math:: \omega = \frac{\hat E(h x)}{\hat E(h)} \quad (3.14), \qquad
                 \theta = -\ln\frac{1 - \hat E(h)}{\hat E(h)} - \tfrac12 \|\omega\|^2 \quad (3.15).

    2. The unit's structure is removed: of each example a coin of probability
       :math:`P(h = 1 \mid x)` decides whether :math:`\omega` is subtracted from it.

    The unit found is kept if it is significant: if the log likelihood of the sample rises above
    that of the Gaussian by more than :math:`\tfrac12 (n + 1) \ln N` (Schwarz 1978), what its
    :math:`n + 1` parameters cost. The first that is not ends the search: further steps change
    nothing, and ``run(..., tolerance=0)`` stops. `found` then has the units without the idle ones.

    The loss is minus the log likelihood of the real machine as pursuit builds it.

    :param model: `combination_machine`, whose bits t are taken as x = 2t − 1, or
        `real_combination_machine`.
    :param em_steps: of EM for each unit; the paper's 4 are enough.
    :param num_starts: EM starts from so many examples, and the most likely unit is taken.
    :param significant: keep only significant units; False: every one, as the paper does with 45.

    >>> from ppl_models import combination_machine
    >>> from ppl_models.data import combination_target
    >>> data = combination_target(random.key(0), 500).data
    >>> pursuit = ProjectionPursuit(combination_machine)
    >>> state = pursuit.init(random.key(1), data, num_causes=10)
    >>> state.params["weights"].shape, state.residual.shape
    ((10, 64), (500, 64))
    """

    in_memory = True

    def __init__(
        self,
        model: Callable,
        *,
        em_steps: int = 20,
        num_starts: int = 10,
        significant: bool = True,
        plate: str | None = None,
    ):
        if em_steps < 1 or num_starts < 1:
            raise ValueError("em_steps and num_starts must be at least 1")
        self.model, self.em_steps, self.num_starts = model, em_steps, num_starts
        self.significant, self.plate = significant, plate
        self._unit = EM(real_combination_machine, structure=Structure.LINEAR)
        self._opened = without_normalizer(model)

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if not anatomy.binary or set(anatomy.parameters) != {"weights", "bias"}:
            return "pursuit finds the weights and biases of hidden bits"
        if anatomy.likelihoods not in (("BernoulliLogits",), ("Normal",)):
            return "the observed units of a combination machine are Bernoulli or Normal"
        return None

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> PursuitState:
        if init_params is not None:
            raise ValueError("projection pursuit starts from no units: it takes no init_params")
        check_data(args, kwargs)
        anatomy = inspect(self._opened, args, kwargs, plate=self.plate)
        problem = self.admits(anatomy)
        if problem is not None:
            raise ProgramError(f"projection pursuit does not apply: {problem}")
        check_support(self._opened, anatomy, rows_of(anatomy, args, kwargs))
        if kwargs.get("mask") is not None:
            raise ProgramError("projection pursuit has no place for missing cells (mask)")
        residual = self._examples(anatomy, args, kwargs)
        num_causes = anatomy.num_bits
        params = {
            "weights": jnp.zeros((num_causes, residual.shape[1])),
            "bias": jnp.zeros(num_causes),
        }
        zero = jnp.zeros((), int)
        return PursuitState(
            params, residual, jnp.zeros(num_causes), jnp.zeros((), bool), zero, rng_key
        )

    def update(self, state: PursuitState, *args: Any, **kwargs: Any) -> tuple[PursuitState, Array]:
        key, key_unit, key_coin = random.split(state.rng_key, 3)
        num_causes, (num_data, width) = len(state.gains), state.residual.shape
        weights, bias, gain = self._one_unit(key_unit, state.residual)
        worth = jnp.where(self.significant, 0.5 * (width + 1) * math.log(num_data), -jnp.inf)
        good = (gain > worth) & ~state.finished & (state.step < num_causes)
        active = random.bernoulli(key_coin, jax.nn.sigmoid(state.residual @ weights + bias))
        at = jnp.minimum(state.step, num_causes - 1)
        params = {
            "weights": state.params["weights"].at[at].set(weights),
            "bias": state.params["bias"].at[at].set(bias),
        }
        found = PursuitState(
            params,
            state.residual - active[:, None] * weights,
            state.gains.at[at].set(gain),
            state.finished,
            state.step + 1,
            key,
        )
        idle = state._replace(finished=jnp.ones((), bool), rng_key=key)
        loss = -state.gains.sum() - self._gaussian(*args, **kwargs)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), found, idle), loss

    def get_params(self, state: PursuitState) -> Params:
        return state.params

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row under the units found, exact; the evidence lacks its log Z."""
        climb = open_climb(self._opened, args, kwargs, self.plate)
        return linear_posterior(climb, params, self._opened)

    def _examples(self, anatomy: Anatomy, args: tuple, kwargs: dict) -> Array:
        data = jnp.asarray(args[0] if args else kwargs["data"], float)
        return 2.0 * data - 1.0 if anatomy.likelihoods == ("BernoulliLogits",) else data

    def _gaussian(self, *args: Any, **kwargs: Any) -> Array:
        """The log likelihood of the data under N(0, I), where pursuit begins."""
        anatomy = inspect(self._opened, args, kwargs, plate=self.plate)
        data = self._examples(anatomy, args, kwargs)
        return -0.5 * (data**2).sum() - 0.5 * data.size * math.log(2.0 * math.pi)

    @jax.default_matmul_precision("highest")
    def _one_unit(self, key: Array, sample: Array) -> tuple[Array, Array, Array]:
        """The most likely unit of a sample from several starts, and the log likelihood it adds."""

        def fit(key: Array) -> tuple[Array, Array, Array]:
            # Half way to an example at random: at even odds for those at its own distance.
            weights = 0.5 * sample[random.randint(key, (), 0, len(sample))]
            start = {"weights": weights[None], "bias": -0.5 * (weights @ weights)[None]}
            state = self._unit.init(key, sample, num_causes=1, init_params=start)
            step = lambda state, _: self._unit.update(state, sample, num_causes=1)  # noqa: E731
            state, _ = lax.scan(step, state, None, length=self.em_steps)
            weights, bias = state.params["weights"][0], state.params["bias"][0]
            added = jax.nn.softplus(sample @ weights + bias)
            gain = (added - jax.nn.softplus(bias + 0.5 * weights @ weights)).sum()
            return weights, bias, gain

        weights, bias, gains = jax.vmap(fit)(random.split(key, self.num_starts))
        best = jnp.argmax(jnp.where(jnp.isfinite(gains), gains, -jnp.inf))
        return weights[best], bias[best], gains[best]


def found(params: Params) -> Params:
    """The units that pursuit found, without the idle ones: outside of `jit`.

    >>> params = {"weights": jnp.array([[1.0, -2.0], [0.0, 0.0]]), "bias": jnp.zeros(2)}
    >>> found(params)["weights"].tolist()
    [[1.0, -2.0]]
    """
    busy = np.asarray(params["weights"]).any(axis=1)
    return {name: value[busy] for name, value in params.items()}
