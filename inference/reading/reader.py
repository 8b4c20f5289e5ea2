"""One program, ready to be read: log joints of states by the cheapest way that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.distribution import validation_enabled

from ..compiling import known
from ..rows.chunks import Rows
from ..rows.disk import OnDisk, pieces
from ..types import Arguments, Params
from .anatomy import Anatomy, ProgramError, inspect
from .arguments import check_data, every_row, rows_of, without_missing
from .forms import About, AffineForm, Cells, Quadratic, sum_softplus
from .gathers import rows_meet
from .log_joint import (
    Structure,
    find_affine,
    find_structure,
    general_position,
    log_joint,
    parts_of,
    quadratic_of,
    quadratic_part,
    row_function,
    row_weights,
)
from .state_sums import joint_of
from .tracing import each_value, run_abstractly


class Reader(NamedTuple):
    """A program with what is known of its form. Static: it holds no arrays."""

    model: Callable
    anatomy: Anatomy
    structure: Structure
    by_row: tuple[bool, ...]  # which arguments have one entry per datum, in the order of their tree
    affine: bool = False  # whether the log joint is known to be affine in the datum

    def at(self, num_data: int) -> Reader:
        """The reader of a chunk of `num_data` rows."""
        return self._replace(anatomy=self.anatomy.with_rows(num_data))

    def log_joint(self, params: Params, bits: Array, arguments: Arguments) -> Array:
        """log p(y_n, s), (S, num_data): the program run on states (S, num_data or 1, num_bits)."""
        return log_joint(self.model, self.anatomy, params, bits.astype(jnp.int32), arguments)

    def weights(self, params: Params, arguments: Arguments) -> Array | None:
        """How many times each row counts, (num_data,), where the program says so."""
        return row_weights(self.model, self.anatomy, params, arguments)

    def times(self, params: Params, arguments: Arguments, fresh: Array) -> Array:
        """How often each row of a chunk counts, `fresh` being 1 for those that do."""
        weight = self.weights(params, arguments)
        return fresh if weight is None else fresh * weight

    def rows(self, arguments: Arguments) -> Rows:
        """The rows of a chunk: an argument does not become one by being as long as the chunk."""
        return rows_of(self.anatomy, *arguments, by_row=self.by_row)

    def quadratic(self, params: Params, arguments: Arguments, own_pairs: bool = True) -> Quadratic:
        """The form in the bits of a datum, where there is one.

        The program runs on the state without any bit on and on those with one. What pairs of bits
        add is the Hessian of the first row where all rows share it; where they do not, the program
        runs on states with two bits on as well.

        :param own_pairs: whether that is wanted of rows that do not share it.
        """
        linear = self.structure.shared or not own_pairs
        form = quadratic_of(self.model, self.anatomy, params, arguments, linear=linear)
        if self.structure is Structure.SHARED:
            hessian = shared_hessian(self, params, arguments)
            form = form._replace(pairs=hessian[np.triu_indices(len(hessian), 1)][:, None])
        return form

    def affine_form(
        self, params: Params, table: Array, arguments: Arguments, about: About | None = None
    ) -> AffineForm:
        """The form in the datum for states (S, bits) that all rows share, from the first row."""
        first = self.rows(arguments).slice(0, 1)
        parts = parts_of(self.model, [self.anatomy.with_rows(1)], params, [table[:, None]], first)
        return joint_of(parts.log_weights, parts.sites, 1, about=about).form

    def cells(self, params: Params, arguments: Arguments) -> Cells:
        """What is observed in each row, as the form in the datum wants it."""
        any_state = jnp.zeros((1, 1, self.anatomy.num_bits), jnp.int32)
        parts = parts_of(self.model, [self.anatomy], params, [any_state], arguments)
        return joint_of(parts.log_weights, parts.sites, self.anatomy.num_data).rows["affine"]

    def candidate_hessian(self, params: Params, arguments: Arguments, indices: Array) -> Array:
        """Each row's Hessian over its own candidates `indices` (num_data, C): (num_data, C, C)."""
        function = row_function(self.model, self.anatomy, params, arguments)
        each = jnp.arange(indices.shape[0])[:, None]
        zero = jnp.zeros((self.anatomy.num_data, self.anatomy.num_bits))
        point = general_position(*indices.shape)
        return quadratic_part(lambda z: function(zero.at[each, indices].set(z)), point)[2]


def shared_hessian(reader: Reader, params: Params, arguments: Arguments) -> Array:
    """The Hessian that all rows share, from the first row alone."""
    first = reader.rows(arguments).slice(0, 1)
    function = row_function(reader.model, reader.anatomy.with_rows(1), params, first)
    return quadratic_part(function, general_position(1, reader.anatomy.num_bits))[2][0]


def follows(model: Callable, anatomy: Anatomy, rows: Rows) -> bool:
    """Whether the program runs on fewer rows, as chunks are."""
    few = max(1, anatomy.num_data // 2)
    try:
        fewer = inspect(model, *rows.slice(0, few), plate=anatomy.plate)
    except ProgramError:
        return False
    return fewer.num_data == few < anatomy.num_data


def inspect_all(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None = None
) -> tuple[Callable, Anatomy]:
    """The program on all its rows, what it consists of, and whether its rows meet."""
    what = model, args, kwargs, plate
    return known(lambda: _inspected(*what), "parts", what)


def _inspected(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None
) -> tuple[Callable, Anatomy]:
    model = without_missing(model, args, kwargs)
    anatomy = inspect(model, args, kwargs, plate=plate)
    if anatomy.drawn:
        model = every_row(model)
        anatomy = inspect(model, args, kwargs, plate=plate)
    if anatomy.latents and anatomy.observed and not anatomy.meeting:
        rows = rows_of(anatomy, args, kwargs)  # refuses data that are not the plate's
        apart = anatomy.nesting == -anatomy.plate_dim or follows(model, anatomy, rows)
        crossed = not apart or rows_meet(model, anatomy, args, kwargs)
        anatomy = anatomy._replace(crossed=crossed)
    return model, anatomy


def open_program(
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    *,
    structure: Structure | None = None,
    plate: str | None = None,
) -> tuple[Reader, Rows]:
    """Inspect a program on its data and find the form of its log joint.

    :param structure: the form where it is known already; `Structure.GENERAL` always holds.
    """
    check_data(args, kwargs)
    model, anatomy = inspect_all(model, args, kwargs, plate)  # a method draws rows itself
    continuous = [x.name for x in anatomy.latents if x.num_values is None]
    if continuous:
        odd = next((x.odd for x in anatomy.latents if x.num_values is None), None)
        raise ProgramError(
            f"the latents {continuous} have no table of states ({odd or 'they are continuous'}): "
            "this method sums over the states of discrete latents; NUTS(marginal(model)) samples "
            "the others, and QuadratureEM(model) integrates those of a row that are on the real "
            "line"
        )
    if not anatomy.latents:
        raise ProgramError(
            f"the program has no unobserved site inside its plate {anatomy.plate!r}: "
            "there is nothing to infer for a datum"
        )
    anatomy.check_rows_are_apart()
    anatomy.check_observed()
    rows = rows_of(anatomy, args, kwargs)
    if not any(isinstance(x, OnDisk) for x in jax.tree.leaves((args, kwargs))):
        check_support(model, anatomy, rows)  # what was opened before has been checked
    if structure is None:
        structure = examined(find_structure, model, anatomy, rows)
    return Reader(model, anatomy, structure, tuple(x is None for x in rows.rest)), rows


def affine_too(reader: Reader, rows: Rows) -> Reader:
    """The reader, with whether its program has a form in the datum."""
    return reader._replace(affine=find_affine(reader.model, reader.anatomy, rows))


# What was found by testing a program, by kind of arguments.
_findings: WeakKeyDictionary[Callable, dict[str, Any]] = WeakKeyDictionary()


def examined(test: Callable, model: Callable, anatomy: Anatomy, rows: Rows, name: str = "") -> Any:
    """`test(model, anatomy, rows)`, run once for each program and kind of arguments.

    A form is a property of the program: what one method has tested the next need not, nor is an
    equal program (a `partial` that was built anew) tested again.
    """
    kinds = [(x.shape[1:], str(x.dtype)) for x in rows.leaves]
    rest = [(x.shape, str(x.dtype)) if hasattr(x, "shape") else x for x in rows.rest]
    few = anatomy.with_rows(min(rows.num_data, 5))
    what = name or test.__name__
    key = f"{what} {kinds} {rest} {rows.tree} {few}"
    try:
        cache = _findings.setdefault(model, {})
    except TypeError:  # a callable that nothing can be tied to
        cache = {}
    if key not in cache:
        find = partial(test, model, anatomy, rows)
        cache[key] = known(find, what, model, kinds, rest, rows.tree, few)
    return cache[key]


def findings(model: Callable) -> list[Any]:
    """All that was found of a program so far."""
    try:
        return list(_findings.get(model, {}).values())
    except TypeError:
        return []


def check_support(model: Callable, anatomy: Anatomy, rows: Rows) -> None:
    """Refuse observations that the program gives no probability, before any work."""
    if all(isinstance(x, jax.core.Tracer) for x in rows.leaves):
        return
    for start, chunk in _pieces(rows):
        with validation_enabled(False):  # of tracers it finds nothing, and takes half of the run
            run_abstractly(model, *chunk, partial(_check_sites, anatomy, start))


def _pieces(rows: Rows) -> Iterator[tuple[int, Arguments]]:
    """All rows; those on disk some at a time, each with the number of its first row."""
    if not rows.on_disk:
        yield 0, rows.whole()
        return
    arrays = [np.asarray(x) for x in rows.leaves]
    for cut in pieces(max(arrays, key=np.size)):
        yield cut.start, rows.join([np.array(x[cut]) for x in arrays])


def _check_sites(anatomy: Anatomy, first: int, trace: dict[str, dict]) -> None:
    for name in anatomy.observed:
        support, value = each_value(trace[name]["fn"].support), trace[name]["value"]
        if isinstance(value, jax.core.Tracer):
            continue
        try:
            # By NumPy where it can: JAX would compile each comparison.
            with jax.ensure_compile_time_eval():
                inside = np.asarray(support(np.asarray(value)))
        except Exception:  # bounds that are not known yet
            continue
        if not inside.all():
            where = tuple(int(i) for i in np.argwhere(~inside)[0])
            words = "0 and 1" if support is constraints.boolean else str(support)
            raise ValueError(
                f"site {name!r} is given {np.asarray(value)[where]} at index "
                f"{(where[0] + first, *where[1:])}, outside its support: {words}"
            )


class LinearForm(NamedTuple):
    r"""log p(y_n, s) = constant_n + linear_n·s: evidence and posterior are in closed form.

    For the combination machine this is equation (2.4) of Freund & Haussler (1994), with
    :math:`b = \omega x + \theta` and :math:`c = -\log Z`, found by reading the program: c is the
    log joint of the state without any bit on, and b what each bit adds to it.
    """

    constant: Array  # (num_data,)
    linear: Array  # (num_data, num_bits)

    @property
    def evidence(self) -> Array:
        """log p(y_n), (num_data,)."""
        return self.constant + sum_softplus(self.linear)

    @property
    def mean(self) -> Array:
        """P(s_i = 1 | y_n), (num_data, num_bits)."""
        return jax.nn.sigmoid(self.linear)

    @property
    def best(self) -> Array:
        """The most probable state of each datum, (num_data, num_bits)."""
        return (self.linear > 0).astype(jnp.int32)


def linear_form(reader: Reader, params: Params, arguments: Arguments) -> LinearForm:
    """The form of every row of a program that is known to be linear."""
    form = quadratic_of(reader.model, reader.anatomy, params, arguments, linear=True)
    return LinearForm(form.constant, form.linear.T)
