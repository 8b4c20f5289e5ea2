"""Projection pursuit: hidden units one at a time, Freund & Haussler (1994), sections 3.2 to 3.5."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models.distributions import CombinationCauses, RealCombinationCauses

from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.arguments import rows_of
from ...reading.reader import check_data, check_support
from ...rows.chunks import Numbers, Rows, chunk_limit, over_rows, sum_over_chunks, take_rows
from ...rows.draws import row_uniforms
from ...running.algorithm import Algorithm
from ...types import Arguments, Params
from ..discrete.updates import OneUnitUpdate
from ..shared import CHUNK_FLOATS, Posterior
from .ascent import linear_posterior, open_climb, without_normalizer
from .partition import MACHINES
from .units import MOST_UNITS, log_likelihood, solve_biases


class PursuitState(NamedTuple):
    """What the next step needs."""

    params: Params  # as pursuit finds them; units not found yet have weights 0: they do nothing
    bias: Array  # (num_causes,): the biases of most likelihood for those weights
    residual: Array | None  # (num_data, num_features): the data without the structure found so far
    gains: Array  # (num_causes,): log likelihood that each unit added, 0 if not found
    finished: Array  # whether no unit improves the likelihood significantly any more
    step: Array
    rng_key: Array
    first_key: Array  # where `rng_key` began: all coins follow from it


class Sample(NamedTuple):
    """The examples without the structure found so far, a chunk at a time."""

    rows: Rows
    chunk_size: int
    state: PursuitState
    bits: bool  # whether the data are 0/1 and stand for −1/+1

    def examples(self, arguments: Arguments) -> Array:
        """The rows as the machine has them; 0 where a cell is missing."""
        args, kwargs = arguments
        data = jnp.asarray(args[0] if args else kwargs["data"], float)
        values = 2.0 * data - 1.0 if self.bits else data
        seen = self.seen(arguments)
        return values if seen is None else jnp.where(seen > 0, values, 0.0)

    def seen(self, arguments: Arguments) -> Array | None:
        """1 for a cell that is observed, 0 for a missing one; None: all are."""
        mask = arguments[1].get("mask")
        return None if mask is None else mask.astype(float)

    def sum(self, function: Callable[[Array, Array | None, Array], Any]) -> Any:
        """The sum of `function(examples, seen, fresh)` over chunks of what is left of the data."""

        def part(arguments: Arguments, extra: tuple, fresh: Array) -> Any:
            residual, numbers = extra
            left = residual if residual is not None else self._remove(arguments, numbers)
            return function(left, self.seen(arguments), fresh)

        extra = (self.state.residual, Numbers())
        return sum_over_chunks(part, self.rows, self.chunk_size, extra)

    def whole(self, function: Callable[[Array, Array], Any]) -> Any:
        """The sum of `function(examples, fresh)` over chunks of the data as they are."""

        def part(arguments: Arguments, extra: None, fresh: Array) -> Any:
            del extra
            return function(self.examples(arguments), fresh)

        return sum_over_chunks(part, self.rows, self.chunk_size, None)

    def take(self, numbers: Array) -> Array:
        """What is left of some examples."""
        if self.state.residual is not None:
            return take_rows(self.state.residual, numbers)
        return self._remove(self.rows.take(numbers), numbers)

    def _remove(self, arguments: Arguments, numbers: Array) -> Array:
        """The coins of all units found so far, tossed again."""
        state = self.state

        def once(unit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            left, key = carry
            key, _, key_coin = random.split(key, 3)
            weights, bias = state.params["weights"][unit], state.params["bias"][unit]
            return remove(key_coin, numbers, left, seen, weights, bias), key

        start, seen = (self.examples(arguments), state.first_key), self.seen(arguments)
        return lax.fori_loop(0, jnp.minimum(state.step, len(state.gains)), once, start)[0]


def inputs(left: Array, seen: Array | None, weights: Array, bias: Array) -> Array:
    """Log odds that units are on, (n, units): a missing cell, of which nothing is known, is
    integrated out of the real machine, where it has the mean h ω and unit variance."""
    total = left @ weights.T + bias
    return total if seen is None else total + 0.5 * (1.0 - seen) @ (weights**2).T


def remove(
    key: Array, numbers: Array, left: Array, seen: Array | None, weights: Array, bias: Array
) -> Array:
    """What is left without a unit that was on, by a coin for each example, (n, num_features)."""
    odds = inputs(left, seen, weights[None], bias)[:, 0]
    taken = (row_uniforms(key, numbers) < jax.nn.sigmoid(odds))[:, None] * weights
    return left - (taken if seen is None else taken * seen)


@dataclasses.dataclass(frozen=True, eq=False)
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

    Units that are found one after the other are together no machine of much likelihood: each was
    on as often as if the others were not there. So the biases are solved for at the end of every
    step, the weights as they are; `PursuitState.params` has those of the paper. The loss is minus
    the log likelihood of the machine with the solved biases. Of more than 14 units, whose states
    are too many to sum again and again, the biases stay and the loss is that of the real machine as
    pursuit builds it. So it is with missing cells (``mask=``), which the real machine integrates
    out: a unit's weight in a column is then the mean of the cells that are observed.

    :param model: `combination_machine`, whose bits t are taken as x = 2t − 1, or
        `real_combination_machine`.
    :param em_steps: of EM for each unit; the paper's 4 are enough.
    :param num_starts: EM starts from so many examples, and the most likely unit is taken.
    :param significant: keep only significant units; False: every one, as the paper does with 45.
    :param chunk_size: rows read at a time; by default as many as fit into 32 MiB. What is left of
        the data is kept, D floats a row; from disk it is not, and memory holds a chunk: each of the
        `em_steps` passes tosses the coins of the units found so far again, to the same result.

    >>> from latentbits.models import combination_machine
    >>> from latentbits.models.data import combination_target
    >>> data = combination_target(random.key(0), 500).data
    >>> pursuit = ProjectionPursuit(combination_machine)
    >>> state = pursuit.init(random.key(1), data, num_causes=10)
    >>> state.params["weights"].shape, state.residual.shape
    ((10, 64), (500, 64))
    """

    by_row = ("residual",)

    model: Callable
    _: dataclasses.KW_ONLY
    em_steps: int = 20
    num_starts: int = 10
    significant: bool = True
    chunk_size: int | None = None
    plate: str | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if not anatomy.binary or set(anatomy.parameters) != {"weights", "bias"}:
            return "pursuit finds the weights and biases of hidden bits"
        if not {latent.kind for latent in anatomy.latents} <= MACHINES:
            return "its latents are normalised by themselves: it is no combination machine"
        return None

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> PursuitState:
        if init_params is not None:
            raise ValueError("projection pursuit starts from no units: it takes no init_params")
        check_data(args, kwargs)
        anatomy = inspect(without_normalizer(self.model), args, kwargs, plate=self.plate)
        problem = self.admits(anatomy)
        if problem is not None:
            raise ProgramError(f"projection pursuit does not apply: {problem}")
        anatomy.check_rows_are_all()
        anatomy.check_unweighted()
        rows = rows_of(anatomy, args, kwargs)
        check_support(without_normalizer(self.model), anatomy, rows)
        data, num_causes = args[0] if args else kwargs["data"], anatomy.num_bits
        params = {
            "weights": jnp.zeros((num_causes, data.shape[1])),
            "bias": jnp.zeros(num_causes),
        }
        state = PursuitState(
            params, params["bias"], None, jnp.zeros(num_causes), jnp.zeros((), bool),
            jnp.zeros((), int), rng_key, rng_key,
        )  # fmt: skip
        if rows.on_disk:
            return state
        return state._replace(residual=self._sample(state, args, kwargs).examples((args, kwargs)))

    def update(self, state: PursuitState, *args: Any, **kwargs: Any) -> tuple[PursuitState, Array]:
        sample = self._sample(state, args, kwargs)
        seen = None if state.residual is None else sample.seen((args, kwargs))
        new = self.one_more(state, sample, seen)
        weights, count = state.params["weights"], sample.rows.total
        if len(state.gains) > MOST_UNITS or kwargs.get("mask") is not None:
            loss = -state.gains.sum() - _gaussian(sample)
            return new._replace(bias=new.params["bias"]), loss
        kind = CombinationCauses if sample.bits else RealCombinationCauses
        loss = -log_likelihood(kind, sample.whole, count, weights, state.bias)
        at = jnp.minimum(state.step, len(state.bias) - 1)
        first = state.bias.at[at].set(new.params["bias"][at])
        bias = solve_biases(kind, sample.whole, count, new.params["weights"], first)
        return new._replace(bias=jnp.where(new.finished, state.bias, bias)), loss

    def one_more(self, state: PursuitState, sample: Sample, seen: Array | None) -> PursuitState:
        """Find a unit in what is left of the data, and take its structure from them."""
        key, key_unit, key_coin = random.split(state.rng_key, 3)
        num_causes, num_data = len(state.gains), sample.rows.total
        width = state.params["weights"].shape[1]
        weights, bias, gain = self.one_unit(key_unit, sample)
        worth = jnp.where(self.significant, 0.5 * (width + 1) * math.log(num_data), -jnp.inf)
        good = (gain > worth) & ~state.finished & (state.step < num_causes)
        at = jnp.minimum(state.step, num_causes - 1)
        params = {
            "weights": state.params["weights"].at[at].set(weights),
            "bias": state.params["bias"].at[at].set(bias),
        }
        residual = state.residual
        if residual is not None:
            numbers = Numbers().rows(0, len(residual))
            residual = remove(key_coin, numbers, residual, seen, weights, bias)
        gains = state.gains.at[at].set(gain)
        found = PursuitState(
            params, state.bias, residual, gains, state.finished, state.step + 1, key,
            state.first_key,
        )  # fmt: skip
        idle = state._replace(finished=jnp.ones((), bool), rng_key=key)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), found, idle)

    def get_params(self, state: PursuitState) -> Params:
        return {**state.params, "bias": state.bias}

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row under the units found, exact; the evidence lacks its log Z."""
        if kwargs.get("mask") is not None:
            raise ProgramError(
                "with missing cells (mask) the units are not independent given a row: use "
                "latent_posterior(model, params, ...), which sums their states"
            )
        climb = open_climb(without_normalizer(self.model), args, kwargs, self.plate)
        return linear_posterior(climb, params, without_normalizer(self.model))

    def _sample(self, state: PursuitState, args: tuple, kwargs: dict) -> Sample:
        anatomy = inspect(without_normalizer(self.model), args, kwargs, plate=self.plate)
        rows = rows_of(anatomy, args, kwargs)
        fitting = CHUNK_FLOATS // (4 * (state.params["weights"].shape[1] + self.num_starts))
        size = chunk_limit(max(1, fitting) if self.chunk_size is None else self.chunk_size, rows)
        return Sample(rows, size, state, anatomy.likelihoods == ("BernoulliLogits",))

    @jax.default_matmul_precision("highest")
    def one_unit(self, key: Array, sample: Sample) -> tuple[Array, Array, Array]:
        """The most likely unit of a sample from several starts, and the log likelihood it adds."""
        keys = random.split(key, self.num_starts)
        chosen = jax.vmap(lambda key: random.randint(key, (), 0, sample.rows.total))(keys)
        # Half way to an example at random: at even odds for those at its own distance.
        weights = 0.5 * sample.take(chosen)
        bias = -0.5 * (weights**2).sum(-1)

        def step(_: Array, units: tuple[Array, Array]) -> tuple[Array, Array]:
            weights, bias = units

            def sums(left: Array, seen: Array | None, fresh: Array) -> tuple[dict, Array | None]:
                on = jax.nn.sigmoid(inputs(left, seen, weights, bias)) * fresh[:, None]
                count = jnp.broadcast_to(fresh.sum(), bias.shape)
                found = {"count": count, "active": on.sum(0), "cross": over_rows(on, left)}
                return found, None if seen is None else over_rows(on, seen)

            found, known = sample.sum(sums)
            if known is not None:
                # As if the missing cells were as the others are; without any the weight stays.
                mean = jnp.where(known > 0, found["cross"] / jnp.maximum(known, 1e-30), weights)
                found = {**found, "cross": mean * found["active"][:, None]}
            new = jax.vmap(lambda sums: OneUnitUpdate().maximise({}, sums))(found)
            return new["weights"][:, 0], new["bias"][:, 0]

        weights, bias = lax.fori_loop(0, self.em_steps, step, (weights, bias))
        level = jax.nn.softplus(bias + 0.5 * (weights**2).sum(-1))

        def added(left: Array, seen: Array | None, fresh: Array) -> Array:
            return fresh @ (jax.nn.softplus(inputs(left, seen, weights, bias)) - level)

        gains = sample.sum(added)
        best = jnp.argmax(jnp.where(jnp.isfinite(gains), gains, -jnp.inf))
        return weights[best], bias[best], gains[best]


def _gaussian(sample: Sample) -> Array:
    """The log likelihood of the data under N(0, I), where pursuit begins."""

    def part(arguments: Arguments, extra: None, fresh: Array) -> Array:
        del extra
        x, seen = sample.examples(arguments), sample.seen(arguments)
        cells = x.shape[1] if seen is None else seen.sum(-1)
        return fresh @ (-0.5 * (x**2).sum(-1) - 0.5 * cells * math.log(2.0 * math.pi))

    return sum_over_chunks(part, sample.rows, sample.chunk_size, None)


def found(params: Params) -> Params:
    """The units that pursuit found, without the idle ones: outside of `jit`.

    >>> params = {"weights": jnp.array([[1.0, -2.0], [0.0, 0.0]]), "bias": jnp.zeros(2)}
    >>> found(params)["weights"].tolist()
    [[1.0, -2.0]]
    """
    busy = np.asarray(params["weights"]).any(axis=1)
    return {name: value[busy] for name, value in params.items()}
