"""The log joint of one datum as a function of its latents, and its quadratic form by autodiff.

What the papers derive by hand is read off here. For latents s of datum n,

    log p(y_n, s) = c_n + b_n·s + ½ sᵀ A_n s

holds for many programs (linear superposition with Gaussian noise, a bounded logistic, the
combination machine, where A = 0). Then c and b are the value and gradient at s = 0, A is the
Hessian, and a state costs a few multiplications instead of a run of the program. Whether it holds
is tested on random states, in float64, and never assumed; where it does not hold the program runs.

From the sites of one run on a table of states (`parts_of`) come the posteriors of `recover` and the
E-steps of `EM`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled
from numpyro.infer import init_to_uniform

from ..rows.chunks import Rows
from ..types import Arguments, Params
from .anatomy import Anatomy, Latent, ProgramError, inspect
from .distributions import with_finite_slopes
from .forms import BitsForm, Quadratic, unwrapped
from .handlers import states
from .probe import probe
from .state_sums import (
    Part,
    joint_of,
    log_prior_of,
    log_sum,
    of_one_row,
    over_states,
    scale_ratio,
    within_rows,
)
from .tracing import explained, improper, run_abstractly, trace_of, unseen


def log_joint(
    model: Callable,
    anatomy: Anatomy,
    params: Params,
    bits: Array,
    arguments: Arguments,
    observed: Collection[str] | None = None,
) -> Array:
    """log p(y_n, s) of every candidate state for every datum.

    :param bits: states (S, num_data or 1, num_bits).
    :param observed: the observed sites that count; by default all.
    :return: (S, num_data). Priors of parameters are not part of it.

    >>> from latentbits import inspect
    >>> from latentbits.models import binary_sparse_coding
    >>> arguments = ((jnp.ones((5, 3)),), {"num_causes": 2})
    >>> params = {"weights": jnp.eye(2, 3), "noise": 1.0, "sparsity": 0.5}
    >>> table = jnp.array([[0, 0], [1, 0], [1, 1]])[:, None]  # three states, the same for all data
    >>> parts = inspect(binary_sparse_coding, *arguments)
    >>> joint = jax.jit(lambda p: log_joint(binary_sparse_coding, parts, p, table, arguments))
    >>> joint(params).shape
    (3, 5)
    """
    total: Array | float = 0.0
    for site in local_sites(model, anatomy, params, anatomy.unpack(bits), arguments):
        if not (site.latent or observed is None or site.name in observed):
            continue
        with explained("when its latents carry a leading axis of states"):
            part = anatomy.per_datum(site.log_prob())
        wanted = (bits.shape[0], anatomy.num_data)
        if part.shape[0] not in (1, wanted[0]) or part.shape[1] not in (1, wanted[1]):
            raise ProgramError(
                f"site {site.name!r} gives log probabilities of shape {part.shape} where "
                f"{wanted} are wanted, states by data: let leading axes broadcast (index from the "
                "right, as in latents[..., 0])"
            )
        total = total + part * site.power
    return jnp.asarray(total)


class LocalSite(NamedTuple):
    """A site of the data plate whose latents carry a leading axis of states."""

    name: str
    fn: dist.Distribution
    value: Array
    power: Any  # how much more it is scaled than the datum as a whole
    latent: bool

    def log_prob(self) -> Array:
        return log_prior_of(self.fn, self.value) if self.latent else self.fn.log_prob(self.value)

    def weigh(self, anatomy: Anatomy) -> Array:
        """What it adds to the log joint of each state, (S or 1, num_data or 1)."""
        return self.power * anatomy.per_datum(self.log_prob())

    def given_above(self, layer: Anatomy, latent: Latent) -> Part:
        """A latent of a layer as a site observed in as many rows as the layer has states."""
        datum = self.value.reshape(len(self.value), *latent.datum_shape)
        return Part(of_one_row(within_rows(self.fn, layer)), datum, self.power, True)


def local_sites(
    model: Callable,
    anatomy: Anatomy,
    params: Params,
    values: dict[str, Array],
    arguments: Arguments,
) -> list[LocalSite]:
    """The sites that the log joint of a datum consists of, in a run of the program on states.

    :param values: the states of each latent site, on a leading axis.
    """
    args, kwargs = arguments
    params = {name: jnp.asarray(value) for name, value in params.items()}  # as a file has them
    program = handlers.substitute(states(model, values), data=params)
    with handlers.block(), explained("when its latents carry a leading axis of states"):
        trace = handlers.trace(program).get_trace(*args, **kwargs)
    scale = trace[anatomy.latents[0].name]["scale"] if anatomy.latents else None
    sites = []
    for site in trace.values():
        if site["type"] != "sample":
            continue
        if all(frame.name != anatomy.plate for frame in site["cond_indep_stack"]):
            continue
        latent = site["name"] in values
        fn = site["fn"] if latent else with_finite_slopes(site["fn"])
        # What the whole datum is scaled by (a subsampled plate) is outside the exponent.
        power = scale_ratio(site["scale"], scale)
        sites.append(LocalSite(site["name"], fn, site["value"], power, latent))
    return sites


def row_weights(
    model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments
) -> Array | None:
    """How many times each row counts, (num_data,): the scale of its first latent; None: once."""
    if not anatomy.weighted:
        return None
    first = anatomy.latents[0]
    values = anatomy.unpack(jnp.zeros((1, anatomy.num_data, anatomy.num_bits), jnp.int32))
    with explained():
        scale = trace_of(states(model, values), arguments, params)[first.name]["scale"]
    each = jnp.broadcast_to(1.0 if scale is None else scale, first.shape[: first.batch_ndim])
    return jnp.moveaxis(each, first.axis, 0).reshape(anatomy.num_data, -1)[:, 0]


def log_shared(
    model: Callable, anatomy: Anatomy, params: Params, rows: Rows, prior: bool = True
) -> Array:
    """Log density of what belongs to no row: observed sites and factors outside the plate.

    :param prior: with the priors of the parameters.
    """
    if anatomy.outside and (rows.on_disk or rows.extent != rows.num_data):
        raise ProgramError(
            f"site {anatomy.outside[0]!r} outside the plate {anatomy.plate!r} may depend on all "
            "rows, and of these only some are at hand: pass them in memory, and without mesh="
        )
    names = [*anatomy.outside, *(anatomy.parameters if prior else ())]
    # Of a prior the first row says all; a site outside the plate may look at any.
    arguments = rows.whole() if anatomy.outside else rows.slice(0, 1)
    return log_density_of(model, names, params, arguments)


def log_density_of(
    model: Callable, names: Sequence[str], params: Params, arguments: Arguments
) -> Array:
    """Sum of the log densities of some sites, scaled as the program has them."""
    if not names:
        return jnp.zeros(())
    trace = trace_of(model, arguments, params)
    sites = [trace[name] for name in names if trace[name]["type"] == "sample"]
    return sum((jnp.sum(_scaled(site)) for site in sites), jnp.zeros(()))


def _scaled(site: dict[str, Any]) -> Array:
    value = site["fn"].log_prob(site["value"])
    return value if site["scale"] is None else site["scale"] * value


class Structure(Enum):
    """How the log joint of a datum depends on its latents.

    >>> Structure.SHARED.value, Structure.GENERAL.shared
    ('quadratic, one Hessian for all data', False)
    """

    LINEAR = "linear: latents are independent given the data"
    SHARED = "quadratic, one Hessian for all data"
    PER_DATUM = "quadratic, a Hessian for each datum"
    GENERAL = "not quadratic"

    @property
    def shared(self) -> bool:
        """Whether all data have the same Hessian, zero included."""
        return self in (Structure.LINEAR, Structure.SHARED)


def linear_part(function: Callable[[Array], Array], point: Array) -> tuple[Array, Array]:
    """Value (num_data,) and gradient (num_data, num_bits) at a point of a function of rows."""
    value, pullback = jax.vjp(function, point)
    return value, pullback(jnp.ones_like(value))[0]


def quadratic_part(function: Callable[[Array], Array], point: Array) -> tuple[Array, Array, Array]:
    """Value (num_data,), gradient (num_data, num_bits) and Hessian (num_data, num_bits, num_bits).

    One forward pass over the gradient for each bit; rows do not interact, so one pass serves all.
    """

    def total(x: Array) -> tuple[Array, Array]:
        each = function(x)
        return each.sum(), each

    slope, push, value = jax.linearize(jax.grad(total, has_aux=True), point, has_aux=True)
    directions = jnp.eye(point.shape[-1], dtype=point.dtype)
    column = lambda e: push(jnp.broadcast_to(e, point.shape))  # noqa: E731
    return value, slope, jax.vmap(column, out_axes=-1)(directions)


def general_position(num_data: int, num_bits: int) -> Array:
    """Where a quadratic form is read off: (num_data, num_bits), close to zero but not there.

    At zero logits may be zero as well, where the derivatives of NumPyro's Bernoulli, written in
    terms of |logits|, are not those of its log probability. No two bits are alike, so that nothing
    cancels; and all are small, so that the way back to zero costs no digits.
    """
    place = (0.25 + np.modf(0.618034 * np.arange(1, num_bits + 1))[0]) / 256
    return jnp.broadcast_to(jnp.asarray(place, float), (num_data, num_bits))


def row_function(
    model: Callable, anatomy: Anatomy, params: Params, arguments: Arguments
) -> Callable[[Array], Array]:
    """log p(y_n, s_n) as a function of real-valued latents (num_data, num_bits).

    Between the bits the formula counts: validation, which says minus infinity there, is off.
    """

    def function(bits: Array) -> Array:
        with validation_enabled(False):
            return log_joint(model, anatomy, params, bits[None], arguments)[0]

    return function


def find_structure(model: Callable, anatomy: Anatomy, rows: Rows) -> Structure:
    """Test on random parameters, rows and states whether the log joint is quadratic.

    The rows are stand-ins like the data but never equal to each other, masks among them at random:
    the form is a property of the program, not of the values that happen to be passed.
    """
    if not anatomy.binary:
        return Structure.GENERAL
    num_rows = min(rows.num_data, 5)
    with jax.enable_x64(True):
        leaves, few = few_rows(model, anatomy, rows, num_rows)
        if few.num_data != num_rows:
            raise ProgramError(
                f"the plate {anatomy.plate!r} has {few.num_data} rows when {num_rows} are given: "
                "take its size from the data (len(data)), so that a chunk is a smaller plate"
            )
        return _examine(model, few, rows, leaves)


def _examine(model: Callable, anatomy: Anatomy, rows: Rows, leaves: list[np.ndarray]) -> Structure:
    shape = (32, anatomy.num_data, anatomy.num_bits)

    def errors(seed: Array, leaves: list[Array]) -> tuple[Array, Array, Array, Array]:
        arguments = rows.join(leaves)
        key_params, key_bits, key_rate = random.split(random.key(seed), 3)
        bits = random.uniform(key_bits, shape) < random.uniform(key_rate, (32, 1, 1))
        params = anywhere(model, anatomy, key_params, arguments)
        with validation_enabled(False):  # the rows are stand-ins
            direct = log_joint(model, anatomy, params, bits.astype(jnp.int32), arguments)
        function = row_function(model, anatomy, params, arguments)
        point = general_position(*shape[1:])
        value, slope, quadratic = quadratic_part(function, point)
        bend = jnp.einsum("nhk,nk->nh", quadratic, point)
        linear = slope - bend
        constant = value - ((slope - 0.5 * bend) * point).sum(-1)
        s = bits.astype(point.dtype)
        read = constant + jnp.einsum("snh,nh->sn", s, linear)
        read = read + 0.5 * jnp.einsum("snh,nhk,snk->sn", s, quadratic, s)
        spread = 1.0 + jnp.abs(direct - constant).max()
        size = jnp.abs(quadratic).max()
        uneven = jnp.abs(quadratic - quadratic[:1]).max()
        error = jnp.abs(read - direct).max() / spread
        # One state of one row, read alone: the others must not show.
        with validation_enabled(False):
            first, single = rows.join([leaf[:1] for leaf in leaves]), anatomy.with_rows(1)
            alone = log_joint(model, single, params, bits[:1, :1].astype(jnp.int32), first)
        crowd = jnp.abs(alone[0, 0] - direct[0, 0]) / spread
        return error, uneven / jnp.where(size > 0, size, 1.0), size / spread, crowd

    try:
        trials = probe(errors, [(np.int32(seed), leaves) for seed in range(3)])
    except ProgramError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        return Structure.GENERAL  # the program needs whole numbers (it indexes with its latents)
    if any(crowd > 1e-6 for *_, crowd in trials):
        raise ProgramError(
            "the log joint of a datum changes when other rows or states are read with it: use only "
            "its own row, and let leading axes broadcast (no sum or reshape over them)"
        )
    if not all(error <= 1e-6 for error, *_ in trials):  # also when NaN
        return Structure.GENERAL
    if all(size <= 1e-12 for _, _, size, _ in trials):
        return Structure.LINEAR
    same = all(uneven <= 1e-9 for _, uneven, *_ in trials)
    return Structure.SHARED if same else Structure.PER_DATUM


def anywhere(model: Callable, anatomy: Any, key: Array, arguments: Arguments) -> Params:
    """Parameters far apart, uniform on the real line that each is mapped to.

    :param anatomy: an anatomy or a graph, which names them.

    A narrow prior would draw them where any smooth function looks quadratic.
    """
    spread = handlers.substitute(handlers.seed(model, key), substitute_fn=init_to_uniform(radius=2))
    trace = trace_of(spread, arguments)
    return {name: jnp.asarray(trace[name]["value"], float) for name in anatomy.parameters}


def prior_draw(model: Callable, anatomy: Anatomy, key: Array, arguments: Arguments) -> Params:
    """One draw of the parameters from their priors."""
    filled = handlers.substitute(handlers.seed(model, key), substitute_fn=improper)
    trace = trace_of(filled, arguments)
    return {name: trace[name]["value"] for name in anatomy.parameters}


def few_rows(
    model: Callable, anatomy: Anatomy, rows: Rows, count: int
) -> tuple[list[np.ndarray], Anatomy]:
    """Stand-ins for a few rows, and the program on them, of other rows if it counts its own."""
    leaves = [stand_in(x, count, i) for i, x in enumerate(rows.leaves)]
    kind = partial(inspect, model, sites=anatomy.names, plate=anatomy.plate)
    return leaves, unseen(lambda leaves: kind(*rows.join(leaves)), leaves)


def stand_in(leaf: Any, num_rows: int, seed: int) -> np.ndarray:
    """A few rows like those of `leaf`, but no two alike: the form must not hang on their values.

    The first holds the least value of each column and the last the largest, so that an index or a
    mask that changes only once in all the data is still seen to change.
    """
    generator = np.random.default_rng(seed)
    shape = (num_rows, *leaf.shape[1:])
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    if jnp.issubdtype(leaf.dtype, jnp.bool_):
        whole = np.array([[False], [True]])
    elif not isinstance(leaf, jax.core.Tracer):
        whole = np.asarray(leaf)
    else:
        whole = generator.normal(size=(20, 1)) if floating else np.array([[0], [1]])
    whole = np.broadcast_to(whole.reshape(len(whole), -1), (len(whole), math.prod(shape[1:])))
    picked = generator.integers(0, len(whole), (num_rows, whole.shape[1]))
    values = np.take_along_axis(whole, picked, axis=0)
    values[0], values[-1] = whole.min(0), whole.max(0)
    values = values.reshape(shape)
    if floating:
        return np.asarray(values * generator.uniform(0.5, 1.5, shape), jnp.result_type(float))
    return values.astype(leaf.dtype)


class Parts(NamedTuple):
    """What the log joint of each state consists of."""

    log_weights: Array  # of the latents, (S, num_data or 1)
    sites: tuple[Part, ...]
    rest: Array | None  # log p of other sites that the latents do not bear on, (num_data or 1,)

    def whole(self, row: Array) -> Array:
        """With what all states of a row have in common."""
        return row if self.rest is None else row + self.rest


def parts_of(
    model: Callable,
    layers: Sequence[Anatomy],
    given: Params,
    tables: Sequence[Array],
    arguments: Arguments,
    observed: Collection[str] | None = None,
) -> Parts:
    """The parts, from one run of the program on tables of states.

    :param layers: the latents from the top down, where each layer depends on the one above it
        alone; the states of the lowest are left, those above are summed out.
    :param given: a value of every other unobserved site.
    :param tables: the states of each layer, (S, num_data or 1, bits).
    :param observed: the observed sites that count; by default all.
    """
    values: dict[str, Array] = {}
    for layer, table in zip(layers, tables, strict=True):
        values |= layer.unpack(table.astype(jnp.int32))
    sites = local_sites(model, layers[0], given, values, arguments)
    prior = {site.name: site for site in sites if site.latent}
    log_weights, rest = jnp.zeros((len(tables[0]), 1)), None
    for name in layers[0].names:
        log_weights = log_weights + prior[name].weigh(layers[0])
    for layer, table in zip(layers[1:], tables[1:], strict=True):
        # The states of this layer stand where rows do otherwise.
        below = tuple(prior[x.name].given_above(layer, x) for x in layer.latents)
        log_weights = log_sum(log_weights, below, len(table))[:, None]
    anatomy, parts = layers[-1], []
    whole = anatomy._replace(latents=tuple(x for layer in layers for x in layer.latents))
    for site in sites:
        if site.latent or not (observed is None or site.name in observed):
            continue
        own = within_rows(site.fn, anatomy)
        if any(size > 1 for size in own.batch_shape[1:-1]):
            log_weights = log_weights + site.weigh(anatomy)
            continue
        alike = unwrapped(own)[1] is None or masks_are_alike(model, whole, *arguments)
        part = Part(own, site.value, site.power, alike)
        if len(site.fn.batch_shape) > anatomy.nesting or part.form() is not None:
            parts.append(part)
        else:
            each = site.weigh(anatomy)[0]
            rest = each if rest is None else rest + each
    return Parts(log_weights, tuple(parts), rest)


def find_affine(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Whether the log joint is affine in the datum, by the shapes of a few rows."""
    few = min(rows.num_data, 5)
    anatomy, arguments = anatomy.with_rows(few), rows.slice(0, few)

    def read(trace: dict[str, dict]) -> bool:
        params = {name: trace[name]["value"] for name in anatomy.parameters}
        twice = jnp.zeros((2, 1, anatomy.num_bits), jnp.int32) + anatomy.lowest
        parts = parts_of(model, [anatomy], params, [twice], arguments)
        joint = joint_of(parts.log_weights, parts.sites, few)
        return parts.rest is None and joint.rows["dense"] is None

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
    parts = parts_of(model, [anatomy], params, [table], arguments)

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
    parts = parts_of(model, [anatomy], params, [table], arguments)
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
