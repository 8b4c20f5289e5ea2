"""Projection pursuit: hidden units one at a time, Freund & Haussler (1994), sections 3.2 to 3.5."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.arguments import rows_of
from ...reading.reader import check_data, check_support
from ...reading.recognition.papers import Known, recognise
from ...rows.chunks import (
    Numbers,
    Rows,
    chunk_of,
    compiled,
    over_rows,
    sum_over_chunks,
    take_rows,
)
from ...running.algorithm import Algorithm
from ...types import Arguments, Params
from ..discrete.updates import OneUnitUpdate
from ..shared import Posterior, row_uniforms
from .ascent import linear_posterior, open_climb, without_normalizer
from .partition import MACHINES
from .units import KINDS, MOST_UNITS, Examples


class PursuitState(NamedTuple):
    """What the next step needs."""

    params: Params  # with the biases of most likelihood; units not found yet have weights 0
    bias: Array  # (num_causes,): the biases as pursuit finds them
    residual: Array | None  # (num_data, num_features): the data without the structure found so far
    gains: Array  # (num_causes,): log likelihood that each unit added, 0 if not found
    finished: Array  # whether no unit improves the likelihood significantly any more
    step: Array
    rng_key: Array
    first_key: Array  # where `rng_key` began: all coins follow from it


class Sample(NamedTuple):
    """The examples without the structure found so far, a chunk at a time."""

    examples: Examples
    state: PursuitState

    @property
    def known(self) -> Known:
        return self.examples.known

    @property
    def weights(self) -> Array:
        """Of the units found so far, (num_causes, num_features)."""
        return self.known.read(self.state.params)["weights"]

    def sum(self, function: Callable[[Array, Array | None, Array], Any]) -> Any:
        """The sum of `function(examples, mask, fresh)` over chunks of what is left of the data."""
        rows, size, residual = self.examples.rows, self.examples.chunk_size, self.state.residual

        def part(arguments: Arguments, residual: Any, numbers: Array, fresh: Array) -> Any:
            if residual is not None and not self.known.masked:
                return function(residual, None, fresh)
            left, mask = self.examples.read(arguments)
            left = residual if residual is not None else self._remove(left, mask, numbers)
            return function(left, mask, fresh)

        return sum_over_chunks(part, rows, size, residual, Numbers())

    def take(self, numbers: Array) -> Array:
        """What is left of some examples."""
        if self.state.residual is not None:
            return take_rows(self.state.residual, numbers)
        examples = self.examples
        return self._remove(*examples.read(examples.rows.take(numbers)), numbers)

    def _remove(self, examples: Array, mask: Array | None, numbers: Array) -> Array:
        """The coins of all units found so far, tossed again."""
        state, weights = self.state, self.weights

        def once(unit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            left, key = carry
            key, _, key_coin = random.split(key, 3)
            return remove(key_coin, numbers, left, mask, weights[unit], state.bias[unit]), key

        start = (examples, state.first_key)
        return lax.fori_loop(0, jnp.minimum(state.step, len(state.gains)), once, start)[0]


def inputs(left: Array, mask: Array | None, weights: Array, bias: Array) -> Array:
    """Log odds that units are on, (n, units): a missing cell, of which nothing is known, is
    integrated out of the real machine, where it has the mean h ω and unit variance."""
    total = left @ weights.T + bias
    return total if mask is None else total + 0.5 * (1.0 - mask) @ (weights**2).T


def remove(
    key: Array, numbers: Array, left: Array, mask: Array | None, weights: Array, bias: Array
) -> Array:
    """What is left without a unit that was on, by a coin for each example, (n, num_features)."""
    odds = inputs(left, mask, weights[None], bias)[:, 0]
    taken = (row_uniforms(key, numbers) < jax.nn.sigmoid(odds))[:, None] * weights
    return left - (taken if mask is None else taken * mask)


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
    nothing, and ``run(..., tolerance=0)`` stops. The units that are idle then have weights of zero.

    Units that are found one after the other are together no machine of much likelihood: each was
    on as often as if the others were not there. So the biases are solved for at the end of every
    step, the weights as they are; `PursuitState.bias` has those of the paper. The loss is minus
    the log likelihood of the machine with the solved biases. Of more than 14 units, whose states
    are too many to sum again and again, the biases stay and the loss is that of the real machine as
    pursuit builds it. So it is with missing cells (``mask=``), which the real machine integrates
    out: a unit's weight in a column is then the mean of the cells that are observed.

    :param model: `combination_machine`, whose bits t are taken as x = 2t − 1, or
        `real_combination_machine`, under whatever names.
    :param em_steps: of EM for each unit; the paper's 4 are enough.
    :param num_starts: EM starts from so many examples, and the most likely unit is taken.
    :param significant: keep only significant units; False: every one, as the paper does with 45.
    :param chunk_size: rows read at a time; by default as many as fit into 32 MiB. What is left of
        the data is kept, D floats per row; from disk it is not, and memory holds a chunk: each of
        the `em_steps` passes tosses the coins of the units found so far again, to the same result.

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
        if not anatomy.binary:
            return "pursuit finds the weights and biases of hidden bits"
        if not {latent.kind for latent in anatomy.latents} <= MACHINES:
            return "its latents are normalised by themselves: it is no combination machine"
        return anatomy.why_not_once

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> PursuitState:
        if init_params is not None:
            raise ValueError("projection pursuit starts from no units: it takes no init_params")
        check_data(args, kwargs)
        model, anatomy, rows, known = self._open(args, kwargs)
        anatomy.check_rows_are_all()
        check_support(model, anatomy, rows)
        num_causes = anatomy.num_bits
        bias = jnp.zeros(num_causes)
        params = known.write({"weights": jnp.zeros((num_causes, len(known.kinds))), "bias": bias})
        state = PursuitState(
            params, bias, None, bias, jnp.zeros((), bool), jnp.zeros((), int), rng_key, rng_key
        )
        if rows.on_disk:
            return state
        nothing: Any = None
        hollow = self._sample(state, args, kwargs).examples._replace(rows=nothing)
        find = compiled(lambda rows: hollow._replace(rows=rows).whole(), rows)
        return state._replace(residual=find(rows.leaves))

    def update(self, state: PursuitState, *args: Any, **kwargs: Any) -> tuple[PursuitState, Array]:
        sample = self._sample(state, args, kwargs)
        known, examples = sample.known, sample.examples
        masked = known.masked and state.residual is not None
        mask = examples.read((args, kwargs))[1] if masked else None
        new = self.one_more(state, sample, mask)
        weights = known.read(new.params)["weights"]
        if len(state.gains) > MOST_UNITS or known.masked:
            loss = -state.gains.sum() - _gaussian(examples)
            return new._replace(params=known.write({"weights": weights, "bias": new.bias})), loss
        bias = known.read(state.params)["bias"]
        loss = -examples.log_likelihood(sample.weights, bias)
        at = jnp.minimum(state.step, len(bias) - 1)
        first = bias.at[at].set(new.bias[at])
        solved = examples.solve_biases(weights, first)
        solved = jnp.where(new.finished, bias, solved)
        return new._replace(params=known.write({"weights": weights, "bias": solved})), loss

    def one_more(self, state: PursuitState, sample: Sample, mask: Array | None) -> PursuitState:
        """Find a unit in what is left of the data, and take its structure from them."""
        key, key_unit, key_coin = random.split(state.rng_key, 3)
        num_causes, num_data = len(state.gains), sample.examples.rows.total
        values = sample.known.read(state.params)
        weights, bias, gain = self.one_unit(key_unit, sample)
        worth = jnp.where(self.significant, 0.5 * (len(weights) + 1) * math.log(num_data), -jnp.inf)
        good = (gain > worth) & ~state.finished & (state.step < num_causes)
        at = jnp.minimum(state.step, num_causes - 1)
        values["weights"] = values["weights"].at[at].set(weights)
        residual = state.residual
        if residual is not None:
            numbers = Numbers().rows(0, len(residual))
            residual = remove(key_coin, numbers, residual, mask, weights, bias)
        grown = state._replace(
            params=sample.known.write(values),
            bias=state.bias.at[at].set(bias),
            residual=residual,
            gains=state.gains.at[at].set(gain),
            step=state.step + 1,
            rng_key=key,
        )
        idle = state._replace(finished=jnp.ones((), bool), rng_key=key)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), grown, idle)

    def posterior(self, params: Params, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior of each row under the units found, exact; the evidence lacks its log Z."""
        model, _, _, known = self._open(args, kwargs)
        if known.masked:
            raise ProgramError(
                "with missing cells (mask) the units are not independent given a row: use "
                "latent_posterior(model, params, ...), which sums their states"
            )
        return linear_posterior(open_climb(model, args, kwargs, self.plate), params, model)

    def _open(self, args: tuple, kwargs: dict) -> tuple[Callable, Anatomy, Rows, Known]:
        """The program without its normaliser, which may be a sum over 2^45 states, by its form."""
        model = without_normalizer(self.model)
        anatomy = inspect(model, args, kwargs, plate=self.plate)
        problem, rows = self.admits(anatomy), rows_of(anatomy, args, kwargs)
        known = None
        if problem is None:
            known = recognise(model, anatomy, rows, tuple(KINDS), under=without_normalizer)
            problem = "its log joint is not that of a combination machine"
        if known is None:
            raise ProgramError(f"projection pursuit does not apply: {problem}")
        return model, anatomy, rows, known

    def _sample(self, state: PursuitState, args: tuple, kwargs: dict) -> Sample:
        model, _, rows, known = self._open(args, kwargs)
        size = chunk_of(self.chunk_size, 4 * (len(known.kinds) + self.num_starts), rows)
        return Sample(Examples(model, known, rows, size), state)

    @jax.default_matmul_precision("highest")
    def one_unit(self, key: Array, sample: Sample) -> tuple[Array, Array, Array]:
        """The most likely unit of a sample from several starts, and the log likelihood it adds."""
        keys = random.split(key, self.num_starts)
        chosen = jax.vmap(lambda key: random.randint(key, (), 0, sample.examples.rows.total))(keys)
        # Half way to an example at random: at even odds for those at its own distance.
        weights = 0.5 * sample.take(chosen)
        bias = -0.5 * (weights**2).sum(-1)

        def step(_: Array, units: tuple[Array, Array]) -> tuple[Array, Array]:
            weights, bias = units

            def sums(left: Array, mask: Array | None, fresh: Array) -> tuple[dict, Array | None]:
                on = jax.nn.sigmoid(inputs(left, mask, weights, bias)) * fresh[:, None]
                count = jnp.broadcast_to(fresh.sum(), bias.shape)
                moments = {"count": count, "active": on.sum(0), "cross": over_rows(on, left)}
                return moments, None if mask is None else over_rows(on, mask)

            moments, known = sample.sum(sums)
            if known is not None:
                # As if the missing cells were as the others are; without any the weight stays.
                mean = jnp.where(known > 0, moments["cross"] / jnp.maximum(known, 1e-30), weights)
                moments = {**moments, "cross": mean * moments["active"][:, None]}
            new = jax.vmap(lambda sums: OneUnitUpdate().maximise({}, sums))(moments)
            return new["weights"][:, 0], new["bias"][:, 0]

        weights, bias = lax.fori_loop(0, self.em_steps, step, (weights, bias))
        level = jax.nn.softplus(bias + 0.5 * (weights**2).sum(-1))

        def added(left: Array, mask: Array | None, fresh: Array) -> Array:
            return fresh @ (jax.nn.softplus(inputs(left, mask, weights, bias)) - level)

        gains = sample.sum(added)
        best = jnp.argmax(jnp.where(jnp.isfinite(gains), gains, -jnp.inf))
        return weights[best], bias[best], gains[best]


def _gaussian(examples: Examples) -> Array:
    """The log likelihood of the data under N(0, I), where pursuit begins."""

    def part(arguments: Arguments, fresh: Array) -> Array:
        x, mask = examples.read(arguments)
        cells = x.shape[1] if mask is None else mask.sum(-1)
        return fresh @ (-0.5 * (x**2).sum(-1) - 0.5 * cells * math.log(2.0 * math.pi))

    return sum_over_chunks(part, examples.rows, examples.chunk_size)
