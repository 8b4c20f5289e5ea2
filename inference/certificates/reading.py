"""The concave form of a program, read at bit states and tested on random ones.

The program is never run at a fractional state: it may be affine on the bits and anything between
them. The form of the whole row is tested first (linear, quadratic), its sites only if it is
neither. A few rows say which form it is, and then every row of every chunk is read and tested.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions.distribution import validation_enabled

from ..reading.anatomy import Anatomy, ProgramError
from ..reading.forms import Layout, unwrapped
from ..reading.handlers import states
from ..reading.log_joint import local_sites, log_joint, quadratic_of
from ..reading.reader import Reader
from ..reading.state_sums import within_rows
from ..reading.states import AtMost
from ..reading.tracing import dependence, explained, run_abstractly, trace_of
from ..rows.chunks import Rows as Data
from ..rows.chunks import compiled
from ..types import Arguments, Params
from .concave import Kind, QuadraticKind, Row, SitesKind, moved_diagonal, rounding, settings
from .families import FAMILIES, ORDERED, Family, readings

NUM_TESTS = 64
"""Random states that a form is tested on, for every row."""
FEW = 5
"""Rows that say which form a program has."""
SAME = 1e-10
"""Relative difference of two log joints up to which rounding may explain it."""
INVERTED = 1e-6
"""The same of a predictor, and of log joints made of such: a probability near one, from which it
may have to be found, has lost digits of its own. What is left of it is part of the margin."""
MOST_UPPER = 6
"""Bits on which other latents' distributions depend: the boxes of a row begin with all their
states."""


class Plan(NamedTuple):
    """Which form a program has. Static."""

    kind: Kind
    pairs: str = "none"  # of a quadratic form: none, shared by all rows, or own
    sites: tuple[str, ...] = ()  # of the families of `kind`, in their order


def test_states(num_bits: int) -> np.ndarray:
    """Random states of every density, (tests, bits)."""
    rng = np.random.default_rng(0)
    return (rng.random((NUM_TESTS, num_bits)) < rng.random((NUM_TESTS, 1))).astype(np.int32)


class Form(NamedTuple):
    """The rows of a chunk in their form."""

    own: Row
    shared: Row
    shift: Array  # (rows, bits)
    error: Array  # (rows,) largest difference from the program on the random states
    size: Array  # (rows,) largest log joint there


def parted(form: Any, num_data: int) -> tuple[Row, Row]:
    """What each row has of its own, and what all share: arrays with a leading axis of one."""
    own = jax.tree.map(lambda x: x if len(x) == num_data else None, form)
    return own, jax.tree.map(lambda x: None if len(x) == num_data else x[0], form)


def check_alone(reader: Reader, params: Params, data: Data, num_data: int) -> None:
    """Refuse a program in which a row depends on the rows that it is read with."""
    table = jnp.asarray(test_states(reader.anatomy.num_bits)[:, None] + reader.anatomy.lowest)

    def first(data: Data) -> np.ndarray:
        of = lambda rows, params: reader.at(rows.num_data).log_joint(params, table, rows.whole())  # noqa: E731
        return np.asarray(compiled(of, data)(data.leaves, params))[:, 0]

    if not np.allclose(first(data), first(data.head()), INVERTED, INVERTED, equal_nan=True):
        raise ProgramError(
            "no bound is proved: the log joint of a row depends on the rows that it is read with "
            "(through a mean over rows, say); compute that outside of the program, or read all "
            f"rows at once: chunk_size={num_data}"
        )


# --- quadratic


def read_quadratic(
    pairs: str, reader: Reader, params: Params, arguments: Arguments, data: Data
) -> Form:
    """The form in the bits of each row, its coefficients from states with up to two bits on."""
    model, anatomy = reader.model, reader.anatomy
    num_bits = anatomy.num_bits
    read = partial(quadratic_of, model)
    form = read(anatomy, params, arguments, linear=pairs != "own")
    matrix = jnp.zeros((1, num_bits, num_bits))
    if pairs != "none":
        first = form if pairs == "own" else read(
            anatomy.with_rows(1), params, data.slice(0, 1), linear=False
        )  # fmt: skip
        assert first.pairs is not None
        upper = np.triu_indices(num_bits, 1)
        matrix = jnp.zeros((first.pairs.shape[1], *matrix.shape[1:]))
        matrix = matrix.at[:, upper[0], upper[1]].set(first.pairs.T)
        matrix = matrix + jnp.swapaxes(matrix, 1, 2)
    sums = jnp.abs(matrix).sum(-1)
    table = jnp.asarray(test_states(num_bits))
    direct = log_joint(model, anatomy, params, table[:, None], arguments)
    s = table.astype(matrix.dtype)
    pull = s @ form.linear + form.constant + 0.5 * jnp.einsum("ti,nij,tj->tn", s, matrix, s)
    error, size = jnp.abs(pull - direct).max(0), jnp.abs(direct).max(0)
    each = jnp.maximum(size, jnp.abs(form.constant)) + jnp.abs(form.linear).max(0)
    whole = jnp.abs(form.constant) + jnp.abs(form.linear).sum(0) + 0.5 * sums.sum(-1)
    # A pair is a difference of four log joints, of which each is a sum over the columns.
    own = rounding((1 + num_bits) ** 2 * (4 + data.width)) * each
    margin = 4.0 * error + rounding(2 * num_bits) * whole + own
    rounds = 1000 if len(matrix) == 1 else 100
    shift = jax.vmap(lambda x: moved_diagonal(x, jnp.ones(num_bits), rounds))(matrix)
    shift = jnp.broadcast_to(shift, (anatomy.num_data, num_bits))
    rows = {"constant": form.constant, "linear": form.linear.T, "margin": margin,
            "pairs": matrix, "sums": sums}  # fmt: skip
    return Form(*parted(rows, anatomy.num_data), shift, error, size)


# --- by sites


class Shown(NamedTuple):
    """A site on a table of states, as its distribution has it."""

    name: str
    latent: bool
    kind: str  # class of its distribution
    readings: dict[int, tuple[Array, tuple[Array, ...]]]  # family -> predictors, what else it has
    value: Array  # (rows or 1, cells)
    mask: Array  # (states or 1, rows or 1, cells)
    power: Array  # (rows or 1, cells)
    log_prob: Array  # (states, rows)


def cells(x: Any, layout: Layout) -> Array:
    """A parameter of single cells, (states or 1, rows or 1, cells)."""
    x = jnp.asarray(x)
    x = x.reshape((1,) * (layout.ndim - x.ndim) + x.shape)
    row = layout.ndim - len(layout.cells)
    x = jnp.broadcast_to(x, x.shape[:row] + layout.cells)
    return x.reshape(x.shape[0], x.shape[row - 1], -1)


def show(
    model: Any, anatomy: Anatomy, params: Params, arguments: Arguments, table: np.ndarray
) -> list[Shown]:
    """Every site of the rows on states (S, bits) that all of them share."""
    values = anatomy.unpack(jnp.asarray(table, jnp.int32)[:, None])
    with explained("when its latents carry a leading axis of states"):
        trace = trace_of(states(model, values), arguments, params)
    shown = []
    for site in local_sites(model, anatomy, params, values, arguments):
        log_prob = jnp.broadcast_to(site.weigh(anatomy), (len(table), anatomy.num_data))
        fn = within_rows(trace[site.name]["fn"], anatomy)
        base, own = unwrapped(fn)
        layout = Layout(len(fn.batch_shape) + len(fn.event_shape), tuple(fn.event_shape))
        each = partial(cells, layout=layout)
        last = jax.vmap(each, -1, -1)
        found = {}
        value = power = jnp.zeros((1, 1))
        mask = jnp.ones((1, 1, 1), bool)
        if not site.latent and not base.event_shape:
            for family, predictor, rest in readings(base):
                rest = tuple(last(x) if family is ORDERED else each(x) for x in rest)
                found[FAMILIES.index(family)] = last(predictor), rest
            value, power = each(site.value)[0], each(jnp.asarray(site.power, float))[0]
            mask = mask if own is None else each(own)
        kind = type(base).__name__
        shown.append(Shown(site.name, site.latent, kind, found, value, mask, power, log_prob))
    return shown


class Table(NamedTuple):
    """The states that a program is run on, and how to read what it says there."""

    num_bits: int
    upper: int  # bits that are set in every way, the first

    @property
    def states(self) -> np.ndarray:
        """Single ones, and the same for each setting of the upper bits."""
        single = lambda count: AtMost(1).table((2,) * count)  # noqa: E731
        parts, lower = [single(self.num_bits)], single(self.num_bits - self.upper)
        for bits in settings(self.upper):
            parts.append(np.concatenate([np.tile(bits, (len(lower), 1)), lower], 1))
        return np.concatenate(parts).astype(np.int32)

    def affine(self, x: Array) -> tuple[Array, Array, Array]:
        """Bias (...), weights (bits, ...), and values at the random states, of x (states, ...)."""
        if len(x) == 1:  # free of the state
            x = jnp.broadcast_to(x, (1 + self.num_bits, *x.shape[1:]))
        bias, weights = x[0], x[1 : 1 + self.num_bits] - x[0]
        table = jnp.asarray(test_states(self.num_bits), x.dtype)
        return bias, weights, bias + jnp.tensordot(table, weights, 1)

    def linear(self, x: Array) -> tuple[Array, Array, Array]:
        """Constants (settings, rows), slopes (settings, bits, rows) and the values at the random
        states of x (states, rows)."""
        parts = x[1 + self.num_bits :].reshape(2**self.upper, -1, x.shape[1])
        constant, slopes = parts[:, 0], parts[:, 1:] - parts[:, :1]
        slopes = jnp.pad(slopes, ((0, 0), (self.upper, 0), (0, 0)))
        tests = test_states(self.num_bits)
        which = tests[:, : self.upper] @ 2 ** np.arange(self.upper)[::-1]
        table = jnp.asarray(tests, x.dtype)
        return constant, slopes, constant[which] + jnp.einsum("th,thn->tn", table, slopes[which])


def apart(first: Array, second: Array) -> Array:
    """Absolute differences, zero where both are the same infinity."""
    return jnp.where(first == second, 0.0, jnp.abs(first - second))


def upper_bits(model: Any, anatomy: Anatomy, data: Data) -> int:
    """How many of the first bits of a datum cover all on which another latent depends."""
    arguments = data.slice(0, 1)

    def read(trace: dict[str, dict]) -> dict[str, frozenset[str]]:
        return dependence(model, arguments, trace, anatomy.names)

    on = run_abstractly(model, *arguments, read)
    above = {x for name in anatomy.names for x in on[name] if x != name}
    ends = np.cumsum([x.size for x in anatomy.latents])
    return max((int(e) for x, e in zip(anatomy.names, ends, strict=True) if x in above), default=0)


def examine(table: Table, site: Shown, tests: Shown) -> dict[str, Any]:
    """How far a site is from each form that it may have: small numbers, to be judged outside.

    :param tests: the site on random states.
    """
    free = lambda x: apart(x, x[:1]).max()  # noqa: E731
    size = 1.0 + jnp.where(jnp.isfinite(tests.log_prob), jnp.abs(tests.log_prob), 0.0).max()
    found = {"linear": apart(table.linear(site.log_prob)[2], tests.log_prob).max() / size}
    for family, (predictor, rest) in site.readings.items():
        bias, weights, values = table.affine(predictor)
        scale = 1.0 + jnp.abs(values).max()
        found[f"affine {family}"] = apart(values, tests.readings[family][0]).max() / scale
        more = [apart(x[:1], y).max() for x, y in zip(rest, tests.readings[family][1], strict=True)]
        found[f"rest {family}"] = jnp.stack([jnp.zeros(()), *map(free, rest), *more]).max()
        found[f"least {family}"] = jnp.minimum(bias.min(), weights.min())
    found["mask"] = jnp.maximum(free(site.mask + 0.0), free(tests.mask + 0.0))
    return found


def choose_sites(reader: Reader, params: Params, data: Data, few: np.ndarray) -> Plan:
    """The form of each site of a program; refuses by name what has none."""
    model, count = reader.model, len(few)
    anatomy = reader.anatomy.with_rows(count)
    upper = upper_bits(model, anatomy, data)
    if upper > MOST_UPPER:
        raise ProgramError(
            f"the distributions of latents depend on {upper} bits of others, and the boxes of a "
            f"row fix {MOST_UPPER} of such at most: nothing is proved of programs with as many"
        )
    table = Table(anatomy.num_bits, upper)
    known: list[Any] = []

    def run(leaves: Any, params: Params) -> list[dict[str, Any]]:
        on = partial(show, model, anatomy, params, data.join(leaves))
        shown = on(table.states)
        known[:] = [(x.name, x.latent, x.kind, tuple(x.readings)) for x in shown]
        both = zip(shown, on(test_states(anatomy.num_bits)), strict=True)
        return [examine(table, x, y) for x, y in both]

    leaves = [np.asarray(x)[few] for x in data.leaves]
    with validation_enabled(False):
        facts = jax.jit(run)(leaves, params)
    names, families = [], []
    for (name, latent, kind, found), fact in zip(known, facts, strict=True):
        family, reason = _family_of(found, {k: float(v) for k, v in fact.items()})
        if family is not None:
            names.append(name)
            families.append(FAMILIES[family])
        elif not fact["linear"] <= SAME:  # also where it is not a number
            what = "the log prior of the latent" if latent else f"the {kind} at"
            reason = "it is not linear in the bits" if latent else reason
            machine = " (a combination machine whose cells are masked is convex)" if latent else ""
            raise ProgramError(
                f"no bound is proved: {what} {name!r} is not a concave function of the bits that "
                f"is known here; {reason}{machine}"
            )
    return Plan(SitesKind(tuple(families), upper), sites=tuple(names))


def _family_of(found: tuple[int, ...], fact: dict[str, float]) -> tuple[int | None, str]:
    """The first family that a site is of; else why it is of none."""
    reason = "its distribution is none of the families that are log-concave in a predictor"
    for i in found:
        if not fact[f"affine {i}"] <= INVERTED:
            reason = "its predictor is not affine in them (a maximum, a product, an asymptote)"
        elif fact[f"rest {i}"] > 0 or fact["mask"] > 0:
            return None, "its scale, size, cuts or mask depend on them"
        elif FAMILIES[i].nonnegative and not fact[f"least {i}"] >= 0:
            reason = "its weights or its leak are below zero"
        else:
            return i, ""
    return None, reason


def read_sites(
    plan: Plan, reader: Reader, params: Params, arguments: Arguments, room: int | None
) -> Form | Array:
    """The linear part, and predictors of each site with a family.

    A noisy-OR of a zero is linear in the bits. Where few cells of a row are anything else, as
    in wide tables of few ones, these alone are kept.

    :param room: cells of a row that are kept; None: say how many that would have to be.
    """
    kind, anatomy = plan.kind, reader.anatomy
    assert isinstance(kind, SitesKind)
    num_data, table = anatomy.num_data, Table(anatomy.num_bits, kind.upper)
    on = partial(show, reader.model, anatomy, params, arguments)
    shown = on(table.states)
    direct = sum((x.log_prob for x in on(test_states(anatomy.num_bits))), jnp.zeros(()))
    rest = [x.log_prob for x in shown if x.name not in plan.sites]
    constant, slopes, whole = table.linear(sum(rest, jnp.zeros((len(table.states), num_data))))
    constant, slopes = constant.T, jnp.moveaxis(slopes, 2, 0)
    sites: list[dict[str, Any]] = []
    counts, lawful = [jnp.zeros((), int)], jnp.ones(num_data, bool)
    for family, site in zip(kind.families, (x for x in shown if x.name in plan.sites), strict=True):
        predictor, others = site.readings[FAMILIES.index(family)]
        bias, weights, values = table.affine(predictor)
        power, count = jnp.where(site.mask[0], site.power, 0.0), bias.shape[1]
        if family.nonnegative:  # the few rows that chose the form may be unlike this one
            least = jnp.minimum(bias, weights.min(0))[..., 0]
            lawful &= ((power == 0) | (least >= 0)).all(1)

        def by_row(x: Array, count: int = count) -> Array:
            return jnp.broadcast_to(x, (num_data, count, *x.shape[2:]))

        value, power = by_row(site.value + 0.0), by_row(power)
        fixed = [by_row(x[0]) for x in others]
        parts = {"value": value, "power": power, "fixed": fixed}

        def one(row: dict[str, Any], u: Array, family: Family = family) -> Array:
            return jax.vmap(lambda u: family.at(u, row)[0].sum())(u)

        u = jnp.broadcast_to(values, (NUM_TESTS, num_data, *values.shape[2:]))
        whole = whole + jax.vmap(one, (0, 1), 1)(parts, u)
        weights = jnp.moveaxis(weights, 1, 0)  # (rows or 1, bits, cells, predictors)
        bent = power > 0 if family.linear is None else (power > 0) & (value != family.linear)
        counts.append(bent.sum(1).max())
        if room is not None and room < count:
            flat = jnp.where(bent, 0.0, power)  # there the log probability is −u
            constant = constant - (flat * bias[..., 0]).sum(1)[:, None]
            slopes = slopes - jnp.einsum(
                "nd,nhd->nh" if len(weights) > 1 else "nd,xhd->nh", flat, weights[..., 0]
            )[:, None]  # fmt: skip
            parts["power"] = jnp.where(bent, power, 0.0)
            _, kept = jax.lax.top_k(bent + 0, room)
            pick = lambda x, kept=kept: jnp.take_along_axis(  # noqa: E731
                x, kept.reshape(*kept.shape, *(1,) * (x.ndim - 2)), 1
            )
            parts = jax.tree.map(pick, parts)
            bias = pick(jnp.broadcast_to(bias, (num_data, *bias.shape[1:])))
            turned = jnp.moveaxis(weights, 1, 2)  # cells before bits
            weights = turned[0][kept] if len(turned) == 1 else pick(turned)
            weights = jnp.moveaxis(weights, 2, 1)
        sites.append(parts | {"weights": weights, "bias": bias})
    if room is None:
        return jnp.stack(counts).max()
    error = jnp.where(lawful, apart(whole, direct).max(0), jnp.inf)
    lost = jnp.full(1, rounding(anatomy.num_bits + sum(x["value"].shape[1] for x in sites)))
    form = {"constant": constant, "linear": slopes, "sites": sites}
    form |= {"margin": 4.0 * error, "lost": lost}
    size = jnp.where(jnp.isfinite(direct), jnp.abs(direct), 0.0).max(0)
    shift = jnp.zeros((num_data, anatomy.num_bits))
    return Form(*parted(form, num_data), shift, error, size)


# --- which of them


def groups(num_bits: int) -> np.ndarray:
    """Random states, (tests, 2, 2, 2, bits): three groups of bits without a common one, each group
    off or on."""
    group = np.random.default_rng(0).integers(0, 4, (NUM_TESTS, num_bits))
    on = settings(3).reshape(2, 2, 2, 3)
    return np.insert(on, 3, 0, -1)[:, :, :, group].transpose(3, 0, 1, 2, 4).astype(np.int32)


def choose(reader: Reader, params: Params, data: Data) -> Plan:
    """The form that a few rows show a program to have.

    A function of bits is quadratic where its third differences vanish, by any three groups of
    bits; its second differences are those of the pairs of bits in two groups.
    """
    few = np.unique(np.linspace(0, data.num_data - 1, min(FEW, data.num_data)).astype(int))
    anatomy, leaves = reader.anatomy.with_rows(len(few)), [np.asarray(x)[few] for x in data.leaves]
    table = groups(anatomy.num_bits)

    def run(leaves: Any, params: Params) -> Any:
        each = jnp.asarray(table).reshape(-1, 1, anatomy.num_bits)
        joint = log_joint(reader.model, anatomy, params, each, data.join(leaves))
        size = 1.0 + jnp.where(jnp.isfinite(joint), jnp.abs(joint), 0.0).max()
        second = jnp.diff(jnp.diff(joint.reshape(*table.shape[:-1], -1), axis=1), axis=2)[:, 0, 0]
        uneven = jnp.abs(second - second[..., :1]).max()
        third = jnp.abs(jnp.diff(second, axis=1)).max()
        return jnp.stack([third, jnp.abs(second).max(), uneven]) / size

    with validation_enabled(False):
        error, most, uneven = jax.jit(run)(leaves, params)
    if not error <= SAME:  # also if it is not a number
        return choose_sites(reader, params, data, few)
    pairs = "none" if most <= SAME else "shared" if uneven <= SAME else "own"
    return Plan(QuadraticKind(), pairs)


def read(plan: Plan, room: int | None, reader: Reader, params: Params, data: Data) -> Any:
    """The form of a chunk of rows, to be called in a compiled function: see `read_sites`."""
    with validation_enabled(False), jax.default_matmul_precision("highest"):
        if isinstance(plan.kind, QuadraticKind):
            return read_quadratic(plan.pairs, reader, params, data.whole(), data)
        return read_sites(plan, reader, params, data.whole(), room)
