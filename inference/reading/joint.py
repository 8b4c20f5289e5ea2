"""The log joint of a datum in the sites of one run of the program on a table of states.

From these parts come the sums of `marginal`, the posteriors of `recover`, the closed forms of
`ExactGradient` and the E-steps of `EM` (`sums.joint_of`, `sums.over_states`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..rows.chunks import Rows
from ..types import Arguments, Params
from .abstract import explained, run_abstractly, trace_of
from .affine import unwrapped
from .anatomy import Anatomy, ProgramError
from .bits import BitsForm, Quadratic
from .handlers import states
from .local import local_sites
from .sums import Part, joint_of, over_states, within_rows


class Parts(NamedTuple):
    """What the log joint of each state consists of."""

    log_weights: Array  # of the latents, (S, num_data or 1)
    sites: tuple[Part, ...]
    rest: Array | None  # log p of other sites that the latents do not bear on, (num_data or 1,)

    def whole(self, row: Array) -> Array:
        """With what all states of a row have in common."""
        return row if self.rest is None else row + self.rest


def parts_of(
    model: Callable, anatomy: Anatomy, given: Params, table: Array, arguments: Arguments
) -> Parts:
    """The parts, from one run of the program on a table of states.

    :param given: a value of every other unobserved site.
    :param table: (S, num_data or 1, bits).
    """
    log_weights, rest = jnp.zeros((len(table), 1)), None
    parts: list[Part] = []
    for site in local_sites(model, anatomy, given, table.astype(jnp.int32), arguments):
        own = within_rows(site.fn, anatomy)
        if site.latent or any(size > 1 for size in own.batch_shape[1:-1]):
            log_weights = log_weights + site.power * anatomy.per_datum(site.log_prob())
            continue
        alike = unwrapped(own)[1] is None or masks_are_alike(model, anatomy, *arguments)
        part = Part(own, site.value, site.power, alike)
        if len(site.fn.batch_shape) > anatomy.nesting or part.form() is not None:
            parts.append(part)
        else:
            each = (site.power * anatomy.per_datum(site.log_prob()))[0]
            rest = each if rest is None else rest + each
    return Parts(log_weights, tuple(parts), rest)


def find_affine(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Whether the log joint is affine in the datum, by the shapes of a few rows."""
    few = min(rows.num_data, 5)
    anatomy, arguments = anatomy.with_rows(few), rows.slice(0, few)

    def read(trace: dict[str, dict]) -> bool:
        params = {name: trace[name]["value"] for name in anatomy.parameters}
        twice = jnp.zeros((2, 1, anatomy.num_bits), jnp.int32) + anatomy.lowest
        parts = parts_of(model, anatomy, params, twice, arguments)
        joint = joint_of(parts.log_weights, parts.sites, few)
        return parts.rest is None and not joint.slow and joint.rows["dense"] is None

    try:
        return run_abstractly(model, *arguments, read)
    except ProgramError:
        return False  # the program runs on states all the same, or says why it does not


def quadratic_of(
    model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments, linear: bool
) -> Quadratic:
    """The form in the bits of each row, where it is known to hold, from log joints of a few states.

    :param linear: leave out what two bits add beyond each: it is zero, or one row says it.
    """
    bits = BitsForm(anatomy.num_bits, None, linear=linear, shared=linear)
    table = jnp.asarray(bits.table, jnp.int32)[:, None]
    parts = parts_of(model, anatomy, params, table, arguments)

    def read(form: Quadratic, _: None) -> tuple[Array, Array, Array | None]:
        return form.constant, form.linear.T, None if form.pairs is None else form.pairs.T

    # By default a GPU multiplies single precision with ten bits.
    with jax.default_matmul_precision("highest"):
        constant, slopes, pairs = over_states(
            read, parts.log_weights, parts.sites, anatomy.num_data, bits=bits
        )
    return Quadratic(parts.whole(constant), slopes.T, None if pairs is None else pairs.T)


def listed_of(
    model: Callable, anatomy: Anatomy, params: Params, table: Array, arguments: Arguments
) -> tuple[Array, Array]:
    """Log joints of the states of a table, (S, n): but for the second, (n,)."""
    parts = parts_of(model, anatomy, params, table, arguments)
    joint = joint_of(parts.log_weights, parts.sites, anatomy.num_data)
    logits, row = joint.at(joint.rows)
    shape = (len(table), anatomy.num_data)
    return jnp.broadcast_to(logits, shape), jnp.broadcast_to(parts.whole(row), shape[1:])


def masks_are_alike(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> bool:
    """Whether the masks of the observed sites depend on no latent: `vmap` refuses if they do."""

    def masks(bits: Array) -> list[Array | None]:
        with explained():
            trace = trace_of(states(model, anatomy.unpack(bits)), (args, kwargs))
        sites = (trace[name] for name in anatomy.observed)
        return [unwrapped(site["fn"])[1] for site in sites]

    some = jax.ShapeDtypeStruct((2, 1, 1, anatomy.num_bits), jnp.int32)
    try:
        jax.eval_shape(jax.vmap(masks, out_axes=None), some)
    except ValueError:
        return False
    return True
