"""What methods share: an expectation over states, the start, one rule for chunks, and random
numbers that are the same for a row, however the rows are cut into chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from ..reading.anatomy import Anatomy, ProgramError
from ..reading.forms import FEW_ROWS
from ..reading.log_joint import Structure, prior_draw
from ..reading.reader import Reader
from ..rows.chunks import Rows, chunk_floats, chunk_of, compiled, counting
from ..running.contract import Posterior as Posterior
from ..types import Arguments, Params


class Chunk(NamedTuple):
    """Rows of a program, under parameters."""

    reader: Reader
    params: Params
    arguments: Arguments

    def log_joint(self, states: Array) -> Array:
        """Of states (S, n or 1, bits): (S, n)."""
        return self.reader.log_joint(self.params, states, self.arguments)


class Expectation(NamedTuple):
    """The posterior of a chunk, as an M-step wants it."""

    evidence: Array  # (num_data,) log of the sum of p(y, s) over the states summed
    mean: Array  # (num_data, num_bits), ⟨s⟩
    second: Callable[..., Array]  # weights (num_data,) -> Σ_n w_n ⟨s sᵀ⟩, (num_bits, num_bits)
    weighted: Callable[[], tuple[Array, Array]]  # -> states (S, n or 1, bits), probabilities (S, n)
    best: Callable[[], Array]  # -> the most probable state of each datum, (num_data, num_bits)
    share: Array | None = None  # (num_data,) probability of the best state, where it is known
    weight: Array | None = None  # (num_data,) how much is learned from each datum, if not all of it

    def anchored(self, here: Chunk) -> Expectation:
        """With the evidence from the program itself where one state has most of the posterior.

        A form adds up numbers of the size of the data's squares, and loses the digits of a noise
        that is small beside them. The program squares residuals.
        """
        if self.share is None or "Normal" not in here.reader.anatomy.likelihoods:
            return self
        # A bit that is on in most of the posterior is on there.
        best = jnp.round(self.mean) if here.reader.anatomy.binary else self.best()
        exact = here.log_joint(best[None])[0] - jnp.log(self.share)
        return self._replace(evidence=jnp.where(self.share > 0.5, exact, self.evidence))

    def heavy(self, fresh: Array) -> Array:
        """The weight of each row that is to be counted, `fresh` being 1 for those."""
        return fresh if self.weight is None else self.weight * fresh

    def members(self, weights: Array | float, num_components: int) -> Array:
        """By how much each row of a mixture counts for each component, (components, n)."""
        states, probability = self.weighted()
        member = jax.nn.one_hot(states[..., 0], num_components)  # (S, n or 1, components)
        if member.shape[1] == 1:
            return jnp.matmul(member[:, 0].T, probability * weights, precision="highest")
        return ((probability * weights)[..., None] * member).sum(0).T


def missed_least(weights: Array, use: Array) -> Array:
    """By how little each unit (units, columns) would be missed: another is like it, or it explains
    little, which `use` says of each."""
    unit = weights / jnp.maximum(jnp.linalg.norm(weights, axis=1, keepdims=True), 1e-9)
    alike = (jnp.abs(unit @ unit.T) * (1.0 - jnp.eye(len(unit)))).max(1)
    return 2.0 * alike - jnp.log(use / (use.mean() + 1e-30) + 1e-3)


def start_params(
    reader: Reader,
    rows: Rows,
    start: Callable[..., Params] | None,
    given: Params | None,
    key: Array,
    args: tuple,
    kwargs: dict,
) -> Params:
    """Starting values: those given, else those of `start`, else a draw from the priors."""
    model, anatomy = reader.model, reader.anatomy

    def draw(rows: Rows, key: Array) -> Params:
        return prior_draw(model, anatomy, key, rows.slice(0, 1))

    params = start(key, *args, **kwargs) if start is not None else {}
    if set(params) | set(given or {}) < set(anatomy.parameters):
        params = {**of_first_row(draw, rows, key), **params}
    params = {**params, **(given or {})}
    check_params(anatomy, params)
    return {name: jnp.asarray(value, float) for name, value in params.items()}


def of_first_row(function: Callable[..., Any], rows: Rows, *inputs: Any) -> Any:
    """`function(rows, *inputs)`, where only the first row matters: a draw from the priors, say."""
    head = rows.head()
    with counting(None):
        return compiled(function, head)(head.leaves, *inputs)


def check_params(anatomy: Anatomy, params: Params) -> None:
    """Refuse parameters that the program does not have, or has in another shape."""
    check_shapes(dict(zip(anatomy.parameters, anatomy.shapes, strict=True)), params)


def check_shapes(wanted: dict[str, tuple[int, ...]], params: Params) -> None:
    """The same, by the shapes of the program's parameters."""
    if not wanted:
        raise ProgramError(
            "the program has no parameters to learn; EM(model).posterior({}, data) gives the "
            "probabilities of its latents, and the evidence"
        )
    unknown = set(params) - set(wanted)
    if unknown:
        raise ValueError(f"no parameter {sorted(unknown)} in the program: it has {list(wanted)}")
    for name, value in params.items():
        if (shape := jnp.shape(value)) != wanted[name]:
            raise ValueError(
                f"parameter {name!r} has shape {shape}, but the program's has {wanted[name]}"
            )


def chunk_rows(
    wanted: int | None, reader: Reader, num_states: int, rows: Rows, num_runs: int = 0
) -> int:
    """How many rows to read at a time, if the program is run on `num_runs` states of each."""
    width = rows.width + reader.anatomy.num_bits
    # A quadratic form costs a number per state; a run of the program also one per observed value.
    # A Hessian of each datum's own takes a run for each bit.
    if reader.affine and not reader.structure.shared:
        floats = num_states + 2 * width
        # Sums over the rows of a chunk are one product, whose digits few rows keep.
        floats = max(floats, chunk_floats() // FEW_ROWS) if num_states > 64 else floats
        return chunk_of(wanted, floats, rows)
    if reader.structure is Structure.GENERAL:
        num_runs = max(num_runs, num_states)
    elif reader.structure is Structure.PER_DATUM:
        num_runs = max(num_runs, reader.anatomy.num_bits)
    return chunk_of(wanted, num_states + width * (1 + num_runs), rows)


def row_keys(key: Array, numbers: Array) -> Array:
    """A key for each of the rows of these numbers."""
    return jax.vmap(lambda number: random.fold_in(key, number))(numbers)


def row_uniforms(key: Array, numbers: Array) -> Array:
    """A uniform number for each of the rows of these numbers, (n,)."""
    return jax.vmap(random.uniform)(row_keys(key, numbers))
