"""What a closed M-step is, and how one serves every program of its form.

A closed form is two pure functions: `statistics` of a chunk's posterior, which add up over chunks
and devices, and `maximise`, which turns their sums into parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

from jax import Array

from ...reading.anatomy import ProgramError
from ...reading.reader import Reader
from ...reading.recognition.papers import Form, Known, Seen, recognise
from ...rows.chunks import Rows
from ...types import Arguments, Params
from ..shared import Expectation


class ClosedForm(Protocol):
    """An M-step that needs sums over the data only."""

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """Sums over a chunk, row n counted `weights[n]` times."""

    def maximise(self, params: Params, statistics: Any) -> Params:
        """The new parameters, from the sums over all chunks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """A closed form by the names of our program, for any program of the same form.

    :param known: where the program at hand has what; `of` finds it.
    """

    form: ClassVar[Form]
    known: Known | None = None
    model: Callable | None = None

    def of(self, reader: Reader, rows: Rows) -> Self:
        """The same for the program at hand; refused if that is of another form."""
        known = recognise(reader.model, reader.anatomy, rows, [self.form])
        if known is None:
            raise ProgramError(
                f"{type(self).__name__} is for programs of the form of {self.form.value}, and this "
                "one is not: leave m_step= out, or pass one of your own"
            )
        return dataclasses.replace(self, known=known, model=reader.model)

    def seen(self, arguments: Arguments) -> Seen:
        """What was observed in a chunk."""
        assert self.known is not None and self.model is not None
        return self.known.seen(self.model, arguments)

    def read(self, params: Params) -> Params:
        """The parameters by the names of our program."""
        return params if self.known is None else self.known.read(params)

    def write(self, values: Params) -> Params:
        """The parameters of the program at hand."""
        return values if self.known is None else self.known.write(values)
