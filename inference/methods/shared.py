"""What methods share: an expectation over states, a posterior, the start, one rule for chunks, and
random numbers that are the same for a row, however the rows are cut into chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.extend.random import threefry_2x32

from ..reading.affine import FEW_ROWS, product_floats
from ..reading.anatomy import Anatomy
from ..reading.local import Structure, prior_draw
from ..reading.reader import Reader
from ..rows.chunks import Rows, chunk_limit, compiled, counting
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


# Floats of one chunk's largest array: 128 MiB in float32, whatever the number of rows.
CHUNK_FLOATS = 1 << 25


class Posterior(NamedTuple):
    """The posterior of each datum, and how far it can be trusted.

    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9], [0.1]])}
    >>> posterior = EM(bernoulli_mixture).posterior(params, jnp.array([[1]]), num_components=2)
    >>> posterior.best.tolist(), round(float(jnp.exp(posterior.evidence[0])), 4)
    ([[0]], 0.5)
    >>> [round(float(x), 4) for x in posterior.probabilities["component"][0]]
    [0.9, 0.1]
    """

    mean: Array  # (num_data, num_bits) ⟨s⟩; sites in the order of the program
    best: Array  # (num_data, num_bits) the most probable state
    evidence: Array  # (num_data,) log of the sum over the states summed
    missed: Array  # (num_data,) share of the posterior mass that lies elsewhere, at least
    missed_error: Array  # (num_data,) standard error of that estimate
    probabilities: dict[str, Array] = {}  # noqa: RUF012
    """site -> (num_data, ..., num_values), of each of its values: the mean of a category is none"""


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
    if wanted is not None:
        return chunk_limit(wanted, rows)
    width = rows.width + reader.anatomy.num_bits
    # A quadratic form costs a number per state; a run of the program also one per observed value.
    # A Hessian of each datum's own takes a run for each bit.
    if reader.affine and not reader.structure.shared:
        # One product: in pieces that a processor's cache holds it is faster than as a whole.
        size = max(1, product_floats() // (num_states + 2 * width))
        size = chunk_limit(min(size, FEW_ROWS) if num_states > 64 else size, rows)
        # All of one size, so that no row is read twice.
        return -(-rows.num_data // -(-rows.num_data // size))
    if reader.structure is Structure.GENERAL:
        num_runs = max(num_runs, num_states)
    elif reader.structure is Structure.PER_DATUM:
        num_runs = max(num_runs, reader.anatomy.num_bits)
    floats = num_states + width * (1 + num_runs)
    return chunk_limit(max(1, CHUNK_FLOATS // floats), rows)


def row_keys(key: Array, numbers: Array) -> Array:
    """A key for each of the rows of these numbers."""
    return jax.vmap(lambda number: random.fold_in(key, number))(numbers)


def row_uniforms(key: Array, numbers: Array) -> Array:
    """What ``random.uniform(key, (num_data,))`` holds for the rows of these numbers, (n,).

    JAX's generator turns the place of a draw into its bits, so that none before it must be made.

    >>> key = random.key(0)
    >>> drawn = row_uniforms(key, jnp.array([500, 7]))
    >>> bool((drawn == random.uniform(key, (1000,))[jnp.array([500, 7])]).all())
    True
    """
    kind = jnp.result_type(float)
    if str(random.key_impl(key)) != "threefry2x32" or kind != jnp.float32:
        # Other generators, and other widths: a key for each row.
        return jax.vmap(lambda own: random.uniform(own, dtype=kind))(row_keys(key, numbers))
    place = numbers.astype(jnp.uint32)
    both = threefry_2x32(random.key_data(key), jnp.concatenate([jnp.zeros_like(place), place]))
    high, low = jnp.split(both, 2)
    mantissa = ((high ^ low) >> 9) | jnp.uint32(0x3F800000)  # a float from 1 up to 2
    return lax.bitcast_convert_type(mantissa, kind) - 1.0
