"""The M-step of a program without a closed form: quasi-Newton steps on the same expectation.

The posterior of the old parameters is held fixed while the expected log joint

    Q(θ) = Σ_n Σ_s q_n(s) log p(y_n, s | θ)   [+ log p(θ)]

is raised by L-BFGS with a line search, in the unconstrained space of the parameters, so that the
free energy cannot fall. The data go through in chunks, and q is computed anew in each, so that
nothing of size data × states is kept. Where the log joint is quadratic with one Hessian A, the
moments of q are all that is needed, and the program runs once a row instead of once a state:

    Q(θ) = Σ_n log p(y_n, ⟨s⟩_n | θ) + ½ tr(A Σ_n (⟨s sᵀ⟩_n − ⟨s⟩_n ⟨s⟩_nᵀ))

Where it is affine in the datum and all rows share their states, Q follows from sums over the rows
(`AffineUpdate`), and its cost does not grow with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro import handlers
from numpyro.distributions.transforms import biject_to

from ..numerics.acceleration import Maps
from ..numerics.quasi_newton import minimise
from ..reading.forms import About
from ..reading.log_joint import log_shared, row_function
from ..reading.reader import Reader, shared_hessian
from ..reading.tracing import trace_of, undrawn
from ..rows.chunks import Rows, map_over_chunks, over_rows, sum_over_chunks
from ..types import Arguments, Params
from .shared import Expectation

FIRST_ROWS = 64
"""Whose mean is near enough to all others for sums of squares about it to lose no digits."""


def transforms(reader: Reader, params: Params, arguments: Arguments) -> Maps:
    """Of each parameter of the program."""
    return transforms_of(reader.model, reader.anatomy.parameters, params, arguments)


def transforms_of(
    model: Callable, names: Sequence[str], params: Params, arguments: Arguments
) -> Maps:
    """The same for sites that are named."""
    supports = supports_of(model, names, params, arguments)
    nothing = lambda x: x  # noqa: E731
    return Maps({x: nothing if of is None else biject_to(of) for x, of in supports.items()})


def supports_of(
    model: Callable, names: Sequence[str], params: Params, arguments: Arguments
) -> dict[str, Any]:
    """Where each of these sites lives; None: anywhere."""
    trace = trace_of(handlers.substitute(model, substitute_fn=undrawn), arguments, params)
    sites = {name: trace[name] for name in names}
    return {
        name: site["fn"].support if site["type"] == "sample" else site["kwargs"].get("constraint")
        for name, site in sites.items()
    }


def gradient_runs(reader: Reader, num_states: int) -> int:
    """On how many states of a row `gradient_step` runs the program: none where moments do."""
    return 0 if reader.structure.shared else num_states


def gradient_step(
    reader: Reader,
    params: Params,
    rows: Rows,
    chunk_size: int,
    memory: Any,
    expect: Callable[[Arguments, Any], Any],
    *,
    prior: bool,
    num_steps: int,
) -> Params:
    """New parameters after `num_steps` of L-BFGS on the expected log joint."""
    few, one = rows.slice(0, 1), reader.at(1)
    maps = transforms(one, params, few)
    local = reader.at(min(chunk_size, rows.num_data))
    every = None
    if not rows.on_disk and rows.num_data <= chunk_size:
        # One chunk: the posterior is found once, not whenever Q is.
        every = map_over_chunks(expect, rows, chunk_size, memory)
    posterior = expect if every is None else lambda *_: every
    build = _by_moments if reader.structure.shared else _by_states
    by_chunk, at_once, extra = build(local, posterior, rows, chunk_size, memory)

    def rest(free: Params) -> Array:
        new = maps.constrain(free)
        return at_once(new) + log_shared(reader.model, reader.anatomy, new, rows, prior)

    def total(free: Params) -> Any:
        """The mean of −Q a datum and its slope, summed over the chunks."""

        def part(arguments: Arguments, extra: Any, fresh: Array) -> Any:
            return jax.value_and_grad(
                lambda free: by_chunk(maps.constrain(free), arguments, extra, fresh)
            )(free)

        parts = sum_over_chunks(part, rows, chunk_size, extra)
        return jax.tree.map(
            lambda a, b: -(a + b) / rows.total, parts, jax.value_and_grad(rest)(free)
        )

    return maps.constrain(minimise(total, maps.free(params), num_steps))


@dataclasses.dataclass(frozen=True)
class AffineUpdate:
    """A gradient M-step from Σ_n r_ns and Σ_n r_ns T(y_n) alone, for states that all rows share.

    Like the closed forms it is two functions, so that whatever adds up their statistics (chunks,
    devices, batches) can add up these.
    """

    reader: Reader
    table: Array  # (S, bits)
    row: Arguments  # with one row
    params: Params  # those of the posterior
    shared: Callable[[Params], Array]  # log density of what belongs to no row
    num_steps: int
    about: About | None = None  # what the statistics are taken about; by default near the means

    def remembering(self, rows: Rows) -> AffineUpdate:
        """The same with statistics that can be added to those of other parameters.

        They are taken about the mean of the first rows, whatever the parameters are.
        """
        count = min(rows.num_data, FIRST_ROWS)
        local, few = self.reader.at(count), rows.slice(0, count)
        form = local.affine_form(self.params, self.table, few)
        values = [values for values, _ in local.cells(self.params, few)]
        about = tuple(
            None if about is None else own.mean(0, keepdims=True)
            for about, own in zip(form.about, values, strict=True)
        )
        return dataclasses.replace(self, about=about)

    def point(self) -> About:
        """What the statistics are taken about, the same for all chunks."""
        if self.about is not None:
            return self.about
        return self.reader.at(1).affine_form(self.params, self.table, self.row).about

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """Sums over a chunk, row n counted `weights[n]` times."""
        reader = self.reader.at(len(weights))
        form = reader.affine_form(self.params, self.table, arguments, self.point())
        cells = reader.cells(self.params, arguments)
        _, probability = posterior.weighted()
        return form.moments(cells, probability * weights)

    def maximise(self, params: Params, statistics: Any) -> Params:
        """Parameters after `num_steps` of L-BFGS on what the statistics say of Q."""
        one = self.reader.at(1)
        maps = transforms(one, params, self.row)
        about = self.point()

        def loss(free: Params) -> Array:
            new = maps.constrain(free)
            value = one.affine_form(new, self.table, self.row, about).expected(statistics)
            return -(value + self.shared(new)) / statistics[0].sum()

        slope = jax.value_and_grad(loss)
        return maps.constrain(minimise(slope, maps.free(params), self.num_steps))


def _by_states(
    local: Reader, posterior: Callable[..., Expectation], rows: Rows, chunk_size: int, memory: Any
) -> tuple[Callable, Callable, Any]:
    """Q of a chunk by running the program on its states; nothing that all chunks share.

    :param posterior: of the arguments and the memory of a chunk.
    """
    del rows, chunk_size

    def by_chunk(new: Params, arguments: Arguments, memory: Any, fresh: Array) -> Array:
        expected = posterior(arguments, memory)
        states, probability = lax.stop_gradient(expected.weighted())
        log_joint = local.log_joint(new, states, arguments)
        # A state of probability zero may have a log joint of minus infinity: 0 · ∞ is 0 here.
        possible = probability > 0
        terms = jnp.where(possible, probability * jnp.where(possible, log_joint, 0.0), 0.0)
        return jnp.sum(terms.sum(0) * expected.heavy(fresh))

    return by_chunk, lambda _: jnp.zeros(()), memory


def _by_moments(
    local: Reader, posterior: Callable[..., Expectation], rows: Rows, chunk_size: int, memory: Any
) -> tuple[Callable, Callable, Any]:
    """Q of a chunk from the means of its latents; the Hessian and their covariances, once.

    The log joint at the mean is that of the program, which squares residuals: the parts of the form
    at zero would be of the size of the data's squares, and cost the digits of a small noise.
    """

    def means(arguments: Arguments, memory: Any) -> tuple[Array, Array | None]:
        expected = posterior(arguments, memory)
        return expected.mean, expected.weight

    def scatter(arguments: Arguments, memory: Any, fresh: Array) -> Array:
        expected = posterior(arguments, memory)
        heavy = expected.heavy(fresh)
        return expected.second(heavy) - over_rows(expected.mean * heavy[:, None], expected.mean)

    # Of rows on disk nothing is kept: their means are found again whenever they are wanted.
    kept = memory if rows.on_disk else map_over_chunks(means, rows, chunk_size, memory)
    apart = sum_over_chunks(scatter, rows, chunk_size, memory)

    def by_chunk(new: Params, arguments: Arguments, kept: Any, fresh: Array) -> Array:
        moments = means(arguments, kept) if rows.on_disk else kept
        mean, weight = lax.stop_gradient(moments)
        heavy = fresh if weight is None else weight * fresh
        return heavy @ row_function(local.model, local.anatomy, new, arguments)(mean)

    def at_once(new: Params) -> Array:
        hessian = shared_hessian(local.at(1), new, rows.slice(0, 1))
        return 0.5 * jnp.sum(hessian * apart)

    return by_chunk, at_once, kept
