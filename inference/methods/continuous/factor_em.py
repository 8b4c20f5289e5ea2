"""One EM for continuous latents: a method is a rule of integration, and all else is here.

A step finds the posteriors of the rows by the rule, sums what the M-step wants over chunks, and
goes to new parameters: by weighted regressions where the program is of the form of `latent_trait`,
`mixed_trait` or `graded_trait`, whatever its names, else by L-BFGS on the expected log joint.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from ...compiling import remembered
from ...numerics.acceleration import Maps, Trail, Visit, begin, chart, plain, step
from ...reading.anatomy import Anatomy
from ...reading.log_joint import log_shared
from ...reading.recognition.papers import Known
from ...rows.chunks import Rows, compiled, map_over_chunks, sum_over_chunks
from ...running.algorithm import Algorithm
from ...running.contract import Starts
from ...running.search import Search
from ...types import Arguments, Params
from ..m_step import gradient_step, transforms
from ..shared import Expectation, check_params
from .factors import FactorReader, not_continuous
from .opening import FORMS, Opened, Prior, check_columns, open_columns
from .regressions import Responses
from .starts import JITTER, start_params

HISTORY = 8  # past steps that the acceleration looks at
LEAST_GAIN = 1e-9
"""Of the loss: what a step of EM may still promise where a run ends. A flat likelihood moves a
parameter by a hundredth of its error at a loss of ten times as much."""

SIDE_BY_SIDE = Search(num_lineages=2, screening=0, rounds=0)
"""Starts that differ end at one optimum as a rule; two show that they did."""


class FactorState(NamedTuple):
    """What the next step needs."""

    params: Params
    memory: Any  # of each datum: its posterior or its mode; or the points all data share
    trail: Trail | None
    known: Known | None = None  # which site holds what turns with the factors; None: nothing does


class Look(NamedTuple):
    """The posteriors of all rows at some parameters, found chunk by chunk."""

    memory: Any  # where the next step begins
    by_row: Any  # what goes along with the rows of a chunk
    expect: Callable[[Arguments, Any], tuple[Array, Any]]
    """(chunk, its `by_row`) -> log evidence (n,), and the posteriors"""


@dataclasses.dataclass(frozen=True, eq=False)
class FactorEM(Algorithm, abc.ABC):
    """EM by a rule of integration over each datum's factors.

    :param accelerate: Anderson steps with a safeguard: see `inference.numerics.acceleration`.
    :param prior: maximise the posterior of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``; by default principal components.
    :param search: how several starts are run side by side; None: one, close to principal
        components, as with few steps. With `start` given there is one.
    :param gradient_steps: L-BFGS steps of an M-step that has no closed form.
    :param chunk_size: rows read at a time; by default as many as fit into a cache.
    """

    starts = Starts.DATA
    pads = True
    mixed: ClassVar[bool] = False
    """Whether a datum may have discrete latents too."""

    model: Callable
    _: dataclasses.KW_ONLY
    accelerate: bool = True
    prior: bool = False
    start: Callable[..., Params] | None = None
    search: Search | None = SIDE_BY_SIDE
    gradient_steps: int = 5
    chunk_size: int | None = None
    plate: str | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        return not_continuous(anatomy)

    # --- the rule

    @abc.abstractmethod
    def first_memory(self, opened: Opened, key: Array) -> Any:
        """What is remembered before the first step."""

    @abc.abstractmethod
    def size(self, opened: Opened) -> int:
        """How many rows to read at a time."""

    @abc.abstractmethod
    def look(self, opened: Opened, params: Params, memory: Any) -> Look:
        """The posteriors at these parameters, from what is remembered."""

    @abc.abstractmethod
    def sums(
        self, opened: Opened, values: Params, responses: Responses, posterior: Any, fresh: Array
    ) -> Any:
        """What the regressions want of a chunk's posteriors, row n counted `fresh[n]` times."""

    @abc.abstractmethod
    def regress(
        self, opened: Opened, values: Params, sums: Any, memory: Any, prior: Prior | None
    ) -> tuple[Params, Params, Array | float]:
        """New parameters by regression: a step that is safe, one that is fast, and what the latter
        promises to gain."""

    def weighted(self, posterior: Any) -> tuple[Array, Array]:
        """Posteriors as points (S, n or 1, Q) with probabilities (S, n)."""
        return posterior

    def reading(self, opened: Opened, params: Params) -> Any:
        """What the gradient M-step climbs: the program itself."""
        del params
        return opened.reader

    # --- the method

    # As `update`: what is traced here is not traced again there.
    @jax.default_matmul_precision("highest")
    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> FactorState:
        opened = self._open(args, kwargs)
        self.check(opened)
        if opened.columns is not None and opened.known is not None:
            check_columns(opened.known, opened.rows, self.prior)
        given, hollow = dict(init_params or {}), opened.hollow
        turns = opened.known if not self.prior or opened.turns else None
        if self.start is not None:
            given = {**self.start(random.split(rng_key)[0], *args, **kwargs), **given}
        opened.reader.anatomy.check_rows_are_all()
        check_params(opened.reader.anatomy, given)

        def first(rows: Rows, key: Array, given: Params) -> FactorState:
            here = hollow._replace(rows=rows)
            key_start, key_memory = random.split(key)
            prior = _log_prior(here) if self.prior else None
            params = start_params(here, given, key_start, JITTER, prior)
            memory = self.first_memory(here, key_memory)
            trail = None
            if self.accelerate:
                trail = begin(_space(here, params).flatten(params), HISTORY)
            return FactorState(params, memory, trail, turns)

        # Compiled as one: a run of the program, operation by operation, takes seconds.
        return compiled(first, opened.rows)(opened.rows.leaves, rng_key, given)

    def check(self, opened: Opened) -> None:
        """Refuse a program that the rule is not for, before any work."""

    # By default a GPU multiplies single precision with ten bits: a loss of thousands of
    # nats is then off by one, and a run ends wherever that noise lets it.
    @jax.default_matmul_precision("highest")
    def update(self, state: FactorState, *args: Any, **kwargs: Any) -> tuple[FactorState, Array]:
        opened = self._open(args, kwargs)

        def visit(params: Params, memory: Any) -> Visit:
            return self._visit(opened, params, memory)

        if state.trail is None:
            params, memory, loss = plain(visit, state.params, state.memory)
            trail = None
        else:
            space = _space(opened, state.params)
            trail, params, memory, loss = step(
                visit, space, state.trail, state.params, state.memory
            )
        return state._replace(params=params, memory=memory, trail=trail), loss

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        """A start far from principal components, so that agreement says something."""
        opened = self._open(args, kwargs)
        prior = _log_prior(opened) if self.prior else None
        return start_params(opened, {}, rng_key, None, prior)

    def may_stop(self, state: FactorState) -> bool | Array:
        if state.trail is None:
            return True
        return state.trail.gain <= LEAST_GAIN * jnp.abs(state.trail.loss)

    def get_params(self, state: FactorState) -> Params:
        return turned(state.known, state.params)

    def _open(self, args: tuple, kwargs: dict[str, Any]) -> Opened:
        return open_columns(self.model, args, kwargs, self.plate, self.prior, self.mixed)

    def _visit(self, opened: Opened, params: Params, memory: Any) -> Visit:
        _, rows, known, columns = opened
        look, size = self.look(opened, params, memory), self.size(opened)
        if size >= rows.num_data and not rows.on_disk:  # found once, for the loss and the M-step
            every = map_over_chunks(look.expect, rows, size, look.by_row)
            look = look._replace(expect=lambda *_: every)
        prior = _log_prior(opened) if self.prior else None
        values = {} if columns is None else opened.values(params)

        def summarise(arguments: Arguments, by_row: Any, fresh: Array) -> Any:
            evidence, posterior = look.expect(arguments, by_row)
            fresh = opened.reader.times(params, arguments, fresh)
            total = jnp.sum(fresh * evidence)
            if columns is None:
                return total, ()
            responses = opened.responses(arguments)
            return total, self.sums(opened, values, responses, posterior, fresh)

        evidence, sums = sum_over_chunks(summarise, rows, size, look.by_row)
        loss = -evidence if prior is None else -evidence - prior(params)
        if columns is None or known is None:
            safe = fast = self._climb(opened, params, look, size)
            return Visit(loss, safe, fast, look.memory)
        named = None if prior is None else lambda values: prior(opened.write(values))
        *steps, gain = self.regress(opened, values, sums, look.memory, named)
        safe, fast = map(opened.write, steps)
        return Visit(loss, safe, fast, look.memory, gain)

    def _climb(self, opened: Opened, params: Params, look: Look, size: int) -> Params:
        """L-BFGS on the expected log joint."""

        def expect(arguments: Arguments, by_row: Any) -> Expectation:
            evidence, posterior = look.expect(arguments, by_row)
            nothing: Any = None
            times = opened.reader.times(params, arguments, jnp.ones_like(evidence))
            return Expectation(
                evidence, nothing, nothing, lambda: self.weighted(posterior), nothing, weight=times
            )

        return gradient_step(
            self.reading(opened, params), params, opened.rows, size, look.by_row, expect,
            prior=self.prior, num_steps=self.gradient_steps,
        )  # fmt: skip


def maps_of(reader: FactorReader, rows: Rows, params: Params) -> Maps:
    """Of each parameter of the program."""
    one: Any = reader.at(1)
    return transforms(one, params, rows.slice(0, 1))


def _space(opened: Opened, params: Params) -> Any:
    return chart(params, maps_of(opened.reader, opened.rows, params))


def _log_prior(opened: Opened) -> Prior:
    reader, rows = opened.reader, opened.rows
    return lambda params: log_shared(reader.model, reader.anatomy, params, rows)


def turned(known: Known | None, params: Params) -> Params:
    """The parameters of a program whose factors rotate, in canonical form; others as they are."""
    if known is None or known.form not in FORMS:
        return params
    # In one piece: where parameters have other shapes than the form's, to take them apart one by
    # one is to compile twenty programs.
    return remembered(lambda params: known.write(_canonical(known.read(params))))(params)


def canonical(params: Params) -> Params:
    r"""The same model with its factors turned to principal axes.

    Any rotation R of the factors, :math:`W \to R W`, leaves p(t) as it is. Canonical are orthogonal
    rows of W, longest first, the entry of largest size in each positive.

    >>> turned = canonical({"weights": jnp.array([[0.0, 1.0], [-3.0, 0.0]]), "bias": jnp.zeros(2)})
    >>> bool(jnp.allclose(turned["weights"], jnp.array([[3.0, 0.0], [0.0, 1.0]])))
    True
    """
    return remembered(_canonical)(params)


def _canonical(params: Params) -> Params:
    weights = params["weights"]
    _, vectors = jnp.linalg.eigh(weights @ weights.T)
    turned = vectors[:, ::-1].T @ weights
    largest = jnp.take_along_axis(turned, jnp.abs(turned).argmax(1)[:, None], 1)
    return {**params, "weights": turned * jnp.where(largest < 0, -1.0, 1.0)}
