"""Stepwise EM: a few rows per step, for tables of which one pass takes long."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ...reading.anatomy import ProgramError
from ...reading.reader import Reader
from ...rows.chunks import Rows, compiled
from ...running.settings import Range
from ...types import Params
from ..m_step import AffineUpdate
from ..shared import chunk_rows, start_params
from .em import EM
from .step import Pass
from .updates import ClosedForm, SparseCodingUpdate


class StepwiseState(NamedTuple):
    """What the next step needs."""

    params: Params
    statistics: Any  # of a row on average, by the M-step's own names
    step: Array
    rng_key: Array


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StepwiseEM(EM):
    r"""EM on a few rows per step, which remembers the statistics of the others as they were.

    Each step draws `batch_size` rows with replacement, finds their posteriors, and moves the mean
    statistics a row, s, towards theirs (Cappé & Moulines 2009):

    .. math:: s \leftarrow (1 - \eta_t)\, s + \eta_t\, \bar s(\text{batch}), \qquad
              \eta_t = (t + \text{delay})^{-\text{power}}, \quad t = 0, 1, \dots

    then maximises at N s, by the closed M-step of the program or, where it has none but is affine
    in the datum, by gradient steps on what s says. With ½ < power ≤ 1 the steps sum to infinity and
    their squares do not, so that s comes to rest where full EM does. The larger the power, the less
    noise in the end and the slower the start (Liang & Klein 2009 find 0.6 to 0.7 good). With power
    0 nothing is remembered; with all rows in each step that is full EM.

    The first batch, t = 0, must not weigh everything: `delay` is at least 1, where it does, and 2
    by default. The loss is minus the log evidence of the batch times N over its size: noisy.

    :param model: any program with discrete latents that has a closed M-step or is affine in the
        datum. A plate that draws its rows (`subsample_size`) is read on all of them: the rows of a
        step are drawn here.
    :param batch_size: rows per step; as many as there are, or more: all of them, each once.
    :param states: the states to sum over.

    >>> from latentbits.models import bernoulli_mixture
    >>> from latentbits.models.data import prototypes
    >>> data = prototypes(random.key(0), copies=300, num_features=8).data
    >>> em = StepwiseEM(bernoulli_mixture, batch_size=50)
    >>> result = em.run(random.key(1), 200, data, num_components=3)
    >>> result.params["probs"].shape
    (3, 8)
    """

    by_row = None
    monotone = False
    pads = False
    why_not_compared = "it is EM for tables of which one pass takes long"
    why_no_mesh = "a step reads a few rows only: there is nothing to deal out"

    batch_size: int = 1000
    power: float = 0.6
    delay: Annotated[float, Range(1)] = 2.0
    # Its loss is noisy: starts cannot be compared by it, and it leaves out the prior.
    prior: bool = dataclasses.field(default=False, init=False)
    search: None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        if not (self.power == 0 or 0.5 < self.power <= 1):
            raise ValueError(f"power must be above 0.5 and at most 1, or 0; found {self.power}")

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> StepwiseState:
        reader, rows = self.open(args, kwargs)
        reader.anatomy.check_rows_are_all()
        key_start, key_batch, key = random.split(rng_key, 3)
        params = start_params(reader, rows, self.start, init_params, key_start, args, kwargs)

        def find(rows: Rows, params: Params, key: Array) -> Any:
            update = self.update_of(reader, rows, params)
            return self._average(reader, rows, params, update, key)[1]

        statistics = compiled(find, rows)
        average = statistics(rows.leaves, params, key_batch)
        return StepwiseState(params, average, jnp.asarray(np.zeros((), int)), key)

    def update(
        self, state: StepwiseState, *args: Any, **kwargs: Any
    ) -> tuple[StepwiseState, Array]:
        reader, rows = self.open(args, kwargs)
        update = self.update_of(reader, rows, state.params)
        key, key_batch = random.split(state.rng_key)
        evidence, statistics = self._average(reader, rows, state.params, update, key_batch)
        rate = (state.step + self.delay) ** -self.power
        average = jax.tree.map(
            lambda s, new: (1 - rate) * s + rate * new, state.statistics, statistics
        )
        whole = jax.tree.map(lambda s: rows.num_data * s, average)
        params = update.maximise(state.params, whole)
        return StepwiseState(params, average, state.step + 1, key), -rows.num_data * evidence

    def _average(
        self, reader: Reader, rows: Rows, params: Params, update: ClosedForm, key: Array
    ) -> tuple[Array, Any]:
        """Log evidence and statistics of a row, averaged over a batch."""
        size = min(self.batch_size, rows.num_data)
        if size < rows.num_data:
            reader = reader.at(size)
            rows = reader.rows(rows.take(random.randint(key, (size,), 0, rows.num_data)))
        sets = self.sets(reader, rows)
        chunk = chunk_rows(self.chunk_size, reader, sets.num_states(reader.anatomy), rows)
        evidence, _, sums = Pass(reader, rows, sets, params, chunk, key, None).accumulate(update)
        return jax.tree.map(lambda x: x / size, (evidence, sums))

    def update_of(self, reader: Reader, rows: Rows, params: Params) -> ClosedForm:
        update = super().update_of(reader, rows, params)
        if update is None:
            raise ProgramError(
                "stepwise EM averages statistics of the rows, and this program has none: no closed "
                "M-step is known, and its log joint is not affine in the datum; use EM"
            )
        if isinstance(update, AffineUpdate | SparseCodingUpdate):
            return update.remembering(rows)
        return update
