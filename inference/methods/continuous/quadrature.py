"""EM by Gauss–Hermite quadrature about each datum's mode: maximum likelihood, the yardstick."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import Array

from ...reading.anatomy import Anatomy
from ...rows.chunks import Rows, compiled, map_over_chunks
from ...running.contract import RunResult
from ...running.loop import Drive
from ...types import Arguments, Params
from . import at_once
from .checks import check_columns
from .factor_em import JITTER, LEAST_APART, FactorEM, FactorState, Look, Prior
from .factors import FactorPosterior, FactorReader, chunk_of, not_continuous
from .opening import Opened
from .point_regressions import point_sums
from .regressions import Responses
from .rules import Peaks, about, by_quadrature, default_nodes, nodes_of, peaks, weigh

FEW_NODES = {2: 9, 3: 7}
"""A dimension, on which a large table is climbed first: two data sets of 600 rows of `mixed_trait`
end where they did on 21, within 2e-4 nats per row, in a fifth of the time."""
MANY_POINTS = 1 << 20
"""Nodes of all rows times their columns, from which on a second compilation is the lesser wait."""
STEPS_FROM_ZERO = 15
"""Newton steps to a mode that nothing is known of."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class QuadratureEM(FactorEM):
    """EM whose integrals are sums over a grid about each datum's mode, exact in up to 3 dimensions.

    The grid is Gauss and Hermite's, moved to the mode of a datum's posterior and scaled by the
    curvature there (Liu & Pierce 1994), so that a few nodes serve however sharp the posterior is.
    The E-step runs the program on the nodes. Programs of the form of `latent_trait` and
    `mixed_trait`, under whatever names, have both steps in closed form (`continuous.regressions`):
    the M-step is a weighted regression (the bound's curvature keeps it safe, the true one makes it
    fast). For any other program it is L-BFGS on the expected log joint.

    Discrete latents of a datum (the component of a mixture of factor analysers, the class of a
    trait) are summed over: the grid lies about the mode in each of their states.

    :param model: any program with continuous latents inside its data plate, at most 3 a datum.
    :param num_nodes: nodes a dimension; by default 41, 21, 11 in 1, 2, 3 dimensions, to which a run
        with a tolerance on a large table comes from fewer.
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
        if not self._remembers(opened.rows):
            return ()
        return opened.reader.start()

    def size(self, opened: Opened) -> int:
        reader = opened.reader
        points = reader.num_states * self._nodes(reader) ** reader.num_factors
        return chunk_of(self.chunk_size, points * opened.rows.width, opened.rows)

    def look(self, opened: Opened, params: Params, memory: Any) -> Look:
        reader, rows = opened.reader, opened.rows
        rule = nodes_of(reader, self._nodes(reader))
        keeps = self._remembers(rows)
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

    def at_once(
        self, rng_key: Array, how: Drive, args: tuple, kwargs: dict[str, Any]
    ) -> RunResult | None:
        """Levels on one to three factors: by NumPy, on nodes that all rows share (`grid`). Other
        large tables: on a few nodes first."""
        if not self._by_default():
            return None
        opened = self._open(args, kwargs)
        opened.reader.anatomy.check_rows_are_all()
        several = self.search is not None and how.num_steps >= self.search.least_steps
        literal = how.tolerance is None and not several  # these steps and no others
        if literal or not _on_shared_nodes(opened):
            few = None if how.tolerance is None or how.mesh is not None else self._few(opened)
            return None if few is None else self._few_first(few, opened, rng_key, how, args, kwargs)
        assert opened.known is not None
        check_columns(opened.known, opened.rows, self.prior)
        count = self.search.num_lineages if self.search is not None and several else 1
        spread = np.random.default_rng(count).random(count - 1)
        fitted = at_once.run(opened, rng_key, how, [JITTER, *LEAST_APART**spread], self.prior)
        if fitted is None:
            return None
        result, values, means = fitted
        params = {name: at_once.array(x) for name, x in values.items()}
        state = FactorState(params, at_once.array(means), None, opened.known)
        return result._replace(params=params, state=state)

    def stepping(self, args: tuple, kwargs: dict[str, Any]) -> QuadratureEM | None:
        if not self._by_default():
            return self
        opened = self._open(args, kwargs)
        if _on_shared_nodes(opened):
            return None
        few = self._few(opened)
        return self if few is None else dataclasses.replace(self, num_nodes=few)

    def _by_default(self) -> bool:
        """Whether nothing is set that says which steps a run takes."""
        return self.accelerate and self.start is None and self._plain()

    def _few(self, opened: Opened) -> int | None:
        """Nodes a dimension that a large table is climbed on first; None: all of them."""
        few = FEW_NODES.get(opened.reader.num_factors)
        points = self._nodes(opened.reader) ** opened.reader.num_factors
        small = opened.rows.total * opened.rows.width * points < MANY_POINTS
        return None if small else few

    def _few_first(
        self, few: int, opened: Opened, rng_key: Array, how: Drive, args: tuple,
        kwargs: dict[str, Any],
    ) -> RunResult:  # fmt: skip
        """All starts on a few nodes of each row; the best of them goes on, on all nodes, where the
        budget has room for a step. The first losses are sums over few nodes."""
        same = {
            "tolerance": how.tolerance, "record": how.record, "progress_bar": how.progress_bar,
            **kwargs,
        }  # fmt: skip
        rough = dataclasses.replace(self, num_nodes=few).run(
            rng_key, how.num_steps, *args, budget=how.budget, **same
        )
        left = None if how.budget is None else how.budget - rough.seconds
        steps = how.num_steps - len(rough.losses)
        # Of one start; the rough ones are several.
        longer = (self._nodes(opened.reader) / few) ** opened.reader.num_factors
        each = longer * rough.seconds / len(rough.losses)
        if not rough.stop.converged or steps == 0 or not how.has_room(rough.seconds, each):
            return rough._replace(reason=f"{rough.reason}, on {few} nodes a dimension alone")
        fine = self.run(rng_key, steps, *args, init_params=rough.params, budget=left, **same)
        join: Any = lambda *x: np.concatenate(x)  # noqa: E731
        return fine._replace(
            losses=join(rough.losses, fine.losses),
            history=jax.tree.map(join, rough.history, fine.history),
            seconds=rough.seconds + fine.seconds,
            compile_seconds=rough.compile_seconds + fine.compile_seconds,
            optima=rough.optima,
            search_seconds=rough.search_seconds,
        )

    def sums(
        self, opened: Opened, values: Params, responses: Responses, posterior: Any, fresh: Array
    ) -> Any:
        assert opened.columns is not None
        points, probability = posterior
        return point_sums(opened.columns, values, responses, points, probability * fresh)

    def regress(
        self, opened: Opened, values: Params, sums: Any, memory: Any, prior: Prior | None
    ) -> tuple[Params, Params]:
        del memory
        columns: Any = opened.columns
        both = columns.advance_both(values, sums, prior)
        safe, fast = ({name: x[i] for name, x in both.items()} for i in range(2))
        return safe, fast

    def posterior(
        self, params: Params, *args: Any, num_nodes: int | None = None, **kwargs: Any
    ) -> FactorPosterior:
        """Mean, covariance and evidence of each row; the gap is that to twice as many nodes."""
        opened = self._open(args, kwargs)
        quick = at_once.posterior(opened, params) if num_nodes is None and self._plain() else None
        if quick is not None:
            return quick[0]
        wide = self.fill(args, kwargs)
        if wide is not None:
            return wide.asked(self.posterior, params, num_nodes=num_nodes)
        reader, rows = opened[:2]
        nodes = num_nodes or self._nodes(reader)

        def compute(rows: Rows, params: Params) -> FactorPosterior:
            posterior = by_quadrature(reader, rows, params, nodes, self.chunk_size)
            finer = by_quadrature(reader, rows, params, 2 * nodes, self.chunk_size)
            return posterior._replace(gap=finer.evidence - posterior.evidence)

        return compiled(compute, rows)(rows.leaves, params)

    def evidence(self, params: Params, *args: Any, **kwargs: Any) -> Array:
        """The marginal log likelihood of each row, (num_data,)."""
        reader, rows = self._open(args, kwargs)[:2]
        nodes = self._nodes(reader)

        def compute(rows: Rows, params: Params) -> Array:
            return by_quadrature(reader, rows, params, nodes, self.chunk_size).evidence

        return compiled(compute, rows)(rows.leaves, params)

    def _plain(self) -> bool:
        """Whether nothing is set that only the compiled steps use."""
        return self.num_nodes is None and self.chunk_size is None and self.remember is None

    def _remembers(self, rows: Rows) -> bool:
        return not rows.on_disk if self.remember is None else self.remember

    def _nodes(self, reader: FactorReader) -> int:
        return self.num_nodes or default_nodes(reader.num_factors)


def _on_shared_nodes(opened: Opened) -> bool:
    """Whether all rows may share their nodes, so that NumPy fits them."""
    return opened.known is not None and at_once.applies(opened)
