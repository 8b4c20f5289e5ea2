"""Sums over the states of a datum, for all rows, in memory that does not grow with them.

The log joint of a state is the log weight of the state and a log probability for each observed
site. Where the distribution of a site is the same in all rows (its parameters have one entry on the
data axis, which its shape shows) and affine in its cells, nothing of size rows × states × cells is
made: all sites become one matrix product. Of others the distribution is asked. What a chunk
makes is forgotten and made again for the gradient, which by Fisher's identity is a sum of
statistics under the posterior of the states. Where the log joint is quadratic in the bits of a
state, a few states stand for all (`inference.reading.forms`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax

from ..numerics.log_sums import kept, log_total
from .anatomy import Anatomy
from .distributions import with_finite_slopes
from .forms import (
    About,
    AffineForm,
    BitsForm,
    Layout,
    Quadratic,
    SiteForm,
    product_floats,
    site_form,
    unwrapped,
)

KEPT_FLOATS = 1 << 21
"""Posterior probabilities of states that are kept for the gradient: 8 MiB, and none of more."""


class Part(NamedTuple):
    """An observed site with its value: states on the leftmost batch axis, rows on the last."""

    component: dist.Distribution
    value: Array
    power: Any
    alike: bool  # whether its mask is the same for all states

    def log_prob(self, num_data: int) -> Array:
        """(S, rows), as the distribution itself computes it."""
        value = jnp.asarray(self.value)  # NumPyro checks NumPy's numbers by NumPy
        return self.power * self.component.log_prob(value).reshape(-1, num_data)

    @property
    def layout(self) -> Layout:
        event = tuple(self.component.event_shape)
        return Layout(len(self.component.batch_shape) + len(event), event)

    @property
    def by_cells(self) -> bool:
        """Whether all rows have the same distribution, and it is one of single cells."""
        base, mask = unwrapped(self.component)
        row = -1 - len(self.component.event_shape)
        shape = (1,) * (self.layout.ndim - len(base.batch_shape)) + tuple(base.batch_shape)
        single = not base.event_shape and shape[row] == 1 and set(shape[1:row]) <= {1}
        event = tuple(self.component.event_shape)
        one_value = jnp.ndim(self.value) <= 1 + len(event)
        # Cells that share one distribution by broadcasting have no place of their own.
        cells = jnp.shape(self.value)[-len(event) :] if event else ()
        one_value = one_value and all(n in (1, k) for n, k in zip(cells, event, strict=False))
        return single and one_value and jnp.ndim(self.power) == 0 and (mask is None or self.alike)

    def form(self, about: Array | None = None) -> SiteForm | None:
        """The form in its cells; None if it has none."""
        if not self.by_cells:
            return None
        return site_form(self.component, self.layout, self.value, about)


def log_sum(
    log_weights: Array, parts: tuple[Part, ...], num_data: int, bits: BitsForm | None = None
) -> Array:
    """log Σ_s exp(log weight + Σ log p(site | s)) of every row, (num_data,).

    :param log_weights: (S, num_data or 1).
    :param bits: which states these few stand for.
    """
    states = bits.states if bits is not None and bits.by_row else None
    by_row = None if states is None else jnp.swapaxes(jnp.asarray(states), 0, 1)
    count = len(log_weights) if bits is None or bits.states is None else len(bits.states)
    keep = num_data * count <= KEPT_FLOATS

    def read(joint: Any, states: Array | None) -> Array:
        return log_total(joint, 0, keep) if bits is None else bits.total(joint, states, keep)

    return over_states(read, log_weights, parts, num_data, by_row, bits, keep, whole=True)


def over_states(
    read: Callable[[Any, Any], Any],
    log_weights: Array,
    parts: tuple[Part, ...],
    num_data: int,
    extra: Any = None,
    bits: BitsForm | None = None,
    keep: bool = False,
    whole: bool = False,
) -> Any:
    """What `read` makes of the log joints of the states, for all rows.

    :param read: log joints (S, n) and the rows of `extra` -> arrays (n, ...).
    :param log_weights: (S, num_data or 1).
    :param extra: arrays (num_data, ...).
    :param bits: which states these few stand for; `read` then gets a `Quadratic`.
    :param keep: what the gradient needs, where that is no more than a few numbers for each state.
    :param whole: add what a row adds to all its states, which the log joints lack.
    """
    joint = joint_of(log_weights, parts, num_data, bits)

    def chunk(rows: tuple[Any, Any]) -> Any:
        logits, row = joint.at(rows[0])
        values = read(logits, rows[1])
        return values + row if whole and bits is None else values

    extra = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_data, *x.shape[1:])), extra)
    most = max(1, product_floats() // joint.floats)
    return in_chunks(chunk, (joint.rows, extra), num_data, most, keep)


class Joint(NamedTuple):
    """The log joints of some states, of any rows: sums, posteriors and E-steps are made of them."""

    form: AffineForm
    bits: BitsForm | None  # which states these few stand for
    shared: bool  # whether `form` is of no bit and of single ones, the rest in `pairs`
    pairs: Array | None  # what two bits add beyond each, where all rows share it
    rows: dict[str, Any]  # arrays (num_data, ...)
    floats: int  # numbers of a row that are held at once

    def at(self, rows: dict[str, Any]) -> tuple[Any, Array]:
        """Log joints (S, n) but for what a row adds to all its states; or a `Quadratic`."""
        affine, none = rows["affine"], jnp.zeros(())
        if self.shared:
            # Differences are taken before the product, which would hide them in their sum.
            scores, row = self.form.beyond_first().scores(affine)
            return Quadratic(scores[0] + row, scores[1:], self.pairs), none
        logits, row = self.form.scores(affine)
        if rows["dense"] is not None:
            logits = logits + rows["dense"].T
        return (logits, row) if self.bits is None else (self.bits.split(logits + row), none)


def joint_of(
    log_weights: Array,
    parts: tuple[Part, ...],
    num_data: int,
    bits: BitsForm | None = None,
    about: About | None = None,
) -> Joint:
    """The log joints of states with these weights, (S, num_data or 1), in these sites.

    :param about: what the statistics of each site are taken about, if it is not to be chosen.
    """
    points = about or (None,) * len(parts)
    forms = [part.form(point) for part, point in zip(parts, points, strict=True)]
    affine = [(f, p) for f, p in zip(forms, parts, strict=True) if f is not None]
    dense = log_weights if log_weights.shape[1] > 1 else None
    for form, part in zip(forms, parts, strict=True):
        if form is None:
            each = part.log_prob(num_data)
            dense = each if dense is None else dense + each
    constant = jnp.zeros(len(log_weights)) if log_weights.shape[1] > 1 else log_weights[:, 0]
    whole = AffineForm(
        constant, tuple(f for f, _ in affine), tuple(jnp.asarray(p.power) for _, p in affine)
    )
    rows = {
        "affine": tuple(f.cells(p.value, unwrapped(p.component)[1]) for f, p in affine),
        "dense": None if dense is None else dense.T,
    }
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_data, *x.shape[1:])), rows)
    shared, pairs = bits is not None and bits.shared and dense is None, None
    if bits is not None and shared:
        # One row says what two bits add beyond each: it is the same for all.
        pairs = bits.pairs(whole.log_joint(jax.tree.map(lambda x: x[:1], rows["affine"])))
        whole = whole.first(1 + bits.num_bits)
    floats = len(whole.constant) + (0 if bits is None else bits.floats)
    return Joint(whole, bits, shared, pairs, rows, floats)


def log_prob_of(site: dict[str, Any], latent: bool) -> Array:
    """The log probability of a site; of a latent without masks of rows."""
    if latent:
        return jnp.asarray(log_prior_of(site["fn"], site["value"]))
    return with_finite_slopes(site["fn"]).log_prob(jnp.asarray(site["value"]))


def log_prior_of(fn: dist.Distribution, value: Array) -> Array:
    """The log probability of a latent's states, no larger than rows that differ make it.

    A plate expands the distribution of its sites to all rows; the states have all their other axes,
    so that without the expansion rows are not distinguished. A mask on a whole row would give each
    of its states weight one; without the mask they still sum to one, and the row counts for
    nothing, as it should.
    """
    if isinstance(fn, dist.Independent):
        each = log_prior_of(fn.base_dist, value)
        return each.sum(tuple(range(-fn.reinterpreted_batch_ndims, 0)))
    if isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        return log_prior_of(fn.base_dist, value)
    return fn.log_prob(value)


def within_rows(fn: dist.Distribution, anatomy: Anatomy) -> dist.Distribution:
    """The distribution of a datum: plates inside that of the data, of columns say, are part of it
    and become event axes, so that one number per datum is left."""
    inner = -anatomy.plate_dim - 1
    return fn.to_event(inner) if inner else fn


def of_one_row(fn: dist.Distribution, axis: int = -1) -> dist.Distribution:
    """A distribution that a plate has expanded to rows which are alike, of one row and without the
    masks of rows, which then count for nothing.

    :param axis: that of the rows, among the batch axes.
    """
    if isinstance(fn, dist.Independent):
        inner = fn.reinterpreted_batch_ndims
        return of_one_row(fn.base_dist, axis - inner).to_event(inner)
    if isinstance(fn, dist.MaskedDistribution):
        return of_one_row(fn.base_dist, axis)
    if isinstance(fn, dist.ExpandedDistribution):
        base, shape = of_one_row(fn.base_dist, axis), list(fn.batch_shape)
        shape[axis] = base.batch_shape[axis] if len(base.batch_shape) >= -axis else 1
        return base.expand(shape)
    return fn


def scale_ratio(scale: Any, reference: Any) -> Any:
    """How much more a site is scaled than the first latent of its datum: a power of it."""
    if scale is reference:
        return 1.0
    scale, reference = (1.0 if x is None else x for x in (scale, reference))
    # A row that does not count has no ratio; whatever it is, it is multiplied by zero.
    return jnp.where(reference == 0, 1.0, scale / jnp.where(reference == 0, 1.0, reference))


def in_chunks(
    function: Callable[[Any], Any], rows: Any, num_data: int, most: int, keep: bool = False
) -> Any:
    """`function` of all rows, (num_data, ...), at most so many of them at a time.

    Unless it is to `keep` it, what it makes of a chunk is made again for the gradient, but for its
    sums.
    """
    count = -(-num_data // most)
    if not keep:
        function = jax.checkpoint(function, policy=kept)
    if count == 1:
        return function(rows)
    size = -(-num_data // count)

    def split(x: Array) -> Array:
        # The last row once more where some lack: another might be none that the program knows.
        lacking = ((0, count * size - num_data), *((0, 0),) * (x.ndim - 1))
        return jnp.pad(x, lacking, mode="edge").reshape(count, size, *x.shape[1:])

    chunks = lax.map(function, jax.tree.map(split, rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_data], chunks)
