"""EM by quadrature, on nodes that rows share or about each datum's mode: maximum likelihood."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax import Array

from ...reading.anatomy import Anatomy
from ...reading.recognition.papers import Form
from ...rows.chunks import Rows, chunk_of, compiled, map_over_chunks
from ...types import Arguments, Params
from .factor_em import FactorEM, Look
from .factors import FactorPosterior, FactorReader, not_continuous
from .guessing import Guessing
from .opening import Opened, Prior
from .regressions import Regressions, Responses, point_sums
from .rules import Peaks, about, by_quadrature, default_nodes, nodes_of, peaks, weigh
from .shared_nodes import BLOCK, node_sums, row_evidence, row_posterior, shared_nodes

MANY_COLUMNS, MOST_OWN_ROWS = 1000, 64
"""Columns from which, and rows up to which, each row has nodes of its own."""
STEPS_FROM_ZERO = 15
"""Newton steps to a mode that nothing is known of."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class QuadratureEM(FactorEM):
    """EM whose integrals are sums over nodes, exact in up to 3 dimensions.

    Bits and ordered levels, of programs of the form of `latent_trait` (with guessing or without)
    and `graded_trait`, have nodes that all rows share (`continuous.shared_nodes`). For any other
    program the grid is Gauss and Hermite's, moved to the mode of a datum's posterior and scaled by
    the curvature there (Liu & Pierce 1994), so that a few nodes serve however sharp the posterior
    is, and the E-step runs the program on the nodes. Programs of the form of `latent_trait` and
    `mixed_trait`, under whatever names, have both steps in closed form (`continuous.regressions`):
    the M-step is a weighted regression (the bound's curvature keeps it safe, the true one makes it
    fast). For any other program it is L-BFGS on the expected log joint.

    Discrete latents of a datum (the component of a mixture of factor analysers, the class of a
    trait) are summed over: the grid lies about the mode in each of their states.

    :param model: any program with continuous latents inside its data plate, at most 3 a datum.
    :param num_nodes: nodes a dimension about each datum's mode; by default 41, 21, 11 in 1, 2, 3
        dimensions, where rows do not share theirs.
    :param accelerate: Anderson steps with a safeguard: see `inference.numerics.acceleration`.
    :param prior: maximise the posterior of the parameters instead of the likelihood.
    :param start: ``start(key, *args, **kwargs) -> params``; by default principal components.
    :param mode_steps: Newton steps towards the modes in each update; they are kept between updates.
    :param remember: keep the modes between updates; by default unless the rows are on disk.
        Without, memory does not grow with the rows, and each update climbs there from zero.
    :param chunk_size: rows read at a time; by default as many as fit into a cache.

    >>> import jax, jax.numpy as jnp
    >>> from latentbits.models import latent_trait
    >>> from latentbits.models.data import prototypes
    >>> data = prototypes(jax.random.key(0), copies=20, num_features=6, flip=0.2).data
    >>> em = QuadratureEM(latent_trait, num_nodes=7)
    >>> result = em.run(jax.random.key(1), 10, data, num_factors=1)
    >>> result.params["weights"].shape, bool(jnp.diff(result.losses).max() < 1e-2)
    ((1, 6), True)
    """

    by_row = ("memory",)
    mixed = True

    num_nodes: int | None = None
    mode_steps: int = 2
    remember: bool | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        problem = not_continuous(anatomy, mixed=True)
        size = sum(x.size for x in anatomy.latents if x.num_values is None)
        if problem is None and size > 3:
            problem = f"{size} dimensions: quadrature is for up to 3"
        return problem

    def check(self, opened: Opened) -> None:
        # Refuses more than memory holds.
        nodes_of(opened.reader, self._nodes(opened.reader))

    def first_memory(self, opened: Opened, key: Array) -> Any:
        del key
        if not self._remembers(opened):
            return ()
        return opened.reader.start()

    def size(self, opened: Opened) -> int:
        reader = opened.reader
        if opened.columns is not None and self._shares(opened):
            floats = BLOCK[reader.num_factors] + 2 * len(opened.columns.kinds)
            return chunk_of(self.chunk_size, floats, opened.rows)
        points = reader.num_states * self._nodes(reader) ** reader.num_factors
        return chunk_of(self.chunk_size, points * opened.rows.width, opened.rows)

    def look(self, opened: Opened, params: Params, memory: Any) -> Look:
        reader, rows = opened.reader, opened.rows
        if self._shares(opened):
            return self._on_shared_nodes(opened, params)
        rule = nodes_of(reader, self._nodes(reader))
        keeps = self._remembers(opened)
        if keeps:
            size = chunk_of(self.chunk_size, reader.num_states * rows.width, rows)

            def up(arguments: Arguments, modes: Array) -> Peaks:
                local = reader.at(size).ready(arguments)
                return peaks(local, params, arguments, modes, self.mode_steps)

            found = map_over_chunks(up, rows, size, memory)
            memory = found.place

        def expect(arguments: Arguments, found: Any) -> Any:
            local = reader.at(self.size(opened)).ready(arguments)
            if not keeps:
                found = peaks(local, params, arguments, local.start(), STEPS_FROM_ZERO)
            moved = about(local, found, rule)
            evidence, probability = weigh(local, params, arguments, moved)
            return evidence, (moved.points, probability)

        return Look(memory, found if keeps else memory, expect)

    def sums(
        self, opened: Opened, values: Params, responses: Responses, posterior: Any, fresh: Array
    ) -> Any:
        columns: Any = opened.columns
        if self._shares(opened):
            evidence, nodes = posterior
            return node_sums(columns, values, responses, evidence, nodes, fresh)
        points, probability = posterior
        return point_sums(columns, values, responses, points, probability * fresh)

    def regress(
        self, opened: Opened, values: Params, sums: Any, memory: Any, prior: Prior | None
    ) -> tuple[Params, Params, Array | float]:
        del memory
        columns: Any = opened.columns
        return columns.advance_both(values, sums, prior)

    def posterior(
        self, params: Params, *args: Any, num_nodes: int | None = None, **kwargs: Any
    ) -> FactorPosterior:
        """Mean, covariance and evidence of each row; the gap is that to twice as many nodes."""
        wide = self.fill(args, kwargs)
        if wide is not None:
            return wide.asked(self.posterior, params, num_nodes=num_nodes)
        method = self if num_nodes is None else dataclasses.replace(self, num_nodes=num_nodes)
        opened = method._open(args, kwargs)
        rows, hollow = opened.rows, opened.hollow

        def compute(rows: Rows, params: Params) -> FactorPosterior:
            here = hollow._replace(rows=rows)
            posterior, finer = (method._posterior(here, params, x) for x in (1, 2))
            return posterior._replace(gap=finer.evidence - posterior.evidence)

        return compiled(compute, rows)(rows.leaves, params)

    def evidence(self, params: Params, *args: Any, **kwargs: Any) -> Array:
        """The marginal log likelihood of each row, (num_data,)."""
        opened = self._open(args, kwargs)
        rows, hollow = opened.rows, opened.hollow

        def compute(rows: Rows, params: Params) -> Array:
            return self._posterior(hollow._replace(rows=rows), params, 1).evidence

        return compiled(compute, rows)(rows.leaves, params)

    def _posterior(self, opened: Opened, params: Params, fineness: int) -> FactorPosterior:
        """The posterior of every row, on so many times as many nodes a dimension."""
        reader, rows, columns = opened.reader, opened.rows, opened.columns
        if columns is None or not self._shares(opened):
            number = fineness * self._nodes(reader)
            return by_quadrature(reader, rows, params, number, self.chunk_size)
        values = opened.values(params)
        nodes = shared_nodes(values["weights"], values["bias"], columns.share, fineness)

        def summarise(arguments: Arguments) -> FactorPosterior:
            return row_posterior(columns, values, opened.responses(arguments), nodes)

        return map_over_chunks(summarise, rows, self.size(opened))

    def _on_shared_nodes(self, opened: Opened, params: Params) -> Look:
        columns: Any = opened.columns
        values = opened.values(params)
        nodes = shared_nodes(values["weights"], values["bias"], columns.share)

        def expect(arguments: Arguments, by_row: Any) -> Any:
            del by_row
            evidence = row_evidence(columns, values, opened.responses(arguments), nodes)
            return evidence, (evidence, nodes)

        return Look((), None, expect)

    def _open(self, args: tuple, kwargs: dict[str, Any]) -> Opened:
        opened = super()._open(args, kwargs)
        known = opened.known
        if known is None or known.form is not Form.GUESSING:
            return opened
        guessing = opened._replace(columns=Guessing(known.kinds))
        return guessing if self._shares(guessing) and opened.separable(self.prior) else opened

    def _shares(self, opened: Opened) -> bool:
        """Whether all rows share their nodes: columns of bits or ordered levels, unless a number of
        nodes is set, or rows are so few and columns so many that each has a narrow posterior of its
        own."""
        if self.num_nodes is not None or opened.columns is None:
            return False
        return shared_columns(opened) is not None

    def _remembers(self, opened: Opened) -> bool:
        if self._shares(opened):
            return False
        return not opened.rows.on_disk if self.remember is None else self.remember

    def _nodes(self, reader: FactorReader) -> int:
        return self.num_nodes or default_nodes(reader.num_factors)


def shared_columns(opened: Opened) -> Regressions | None:
    """Columns of bits or ordered levels whose rows may share their nodes; None: they do not."""
    known, columns = opened.known, opened.columns
    if known is not None and known.form is Form.GUESSING:
        columns = Guessing(known.kinds)
    if columns is None or not columns.logistic or opened.reader.num_factors > 3:
        return None
    return None if few_rows((opened.rows.extent, len(columns.kinds))) else columns


def few_rows(shape: tuple[int, ...]) -> bool:
    """Whether rows are so few, and columns so many, that each row has nodes of its own.

    >>> few_rows((5, 2000)), few_rows((500, 2000))
    (True, False)
    """
    return shape[1] >= MANY_COLUMNS and shape[0] <= min(MOST_OWN_ROWS, shape[1] // 50)
