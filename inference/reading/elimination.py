"""Sums over discrete latents that interact sparsely: graphs, chains and elements of vectors.

A latent site is a variable in each cell of its plates. A factor is a table of log probabilities
over the variables that a site depends on. The three forms differ in how these tables are read off
the program; the sums, draws and gradients are those of `numerics.elimination`, and for a chain
those of `numerics.chain`.

    Graph      one factor per site. The tables of all sites follow from a few runs of the program,
               in which variables that share no site take their values in step.
    Chain      the latents of a `numpyro.contrib.control_flow.scan`. A chain of order d has factors
               φ_t(z_{t-d}, ..., z_t), which follow from runs of d + 1 consecutive steps on each
               combination of their states, for all t at once.
    Elements   the elements of vectors of one data plate. With C_v an element v and its neighbours
               when it is eliminated, the log joint f of a datum is

                   f(s) = f(0) + Σ_v [ f(s on C_v) − f(s on C_v without v) ],

               Hammersley and Clifford's expansion about 0, each of whose terms belongs to the
               element of it that is eliminated first. The program runs on each state of each C_v.

`inference.reading.survey` finds these forms in a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax, random
from numpyro import handlers
from numpyro.primitives import Messenger

from ..compiling import remembered
from ..numerics import chain as paths
from ..numerics import elimination
from ..numerics.elimination import Factor, Problem
from ..rows.chunks import Numbers, chunk_of, map_over_chunks
from ..types import Arguments, Params
from .anatomy import Anatomy, unlisted, values_of
from .arguments import rows_of
from .handlers import tempered
from .log_joint import log_joint
from .state_sums import log_prob_of, scale_ratio
from .tracing import ProgramError, improper, is_latent, leave, outside, trace_of

MOST_AT_ONCE = 1 << 24
"""Numbers that the steps of a chain may take side by side; beyond that they go in batches."""

Plate = tuple[str, int, int]  # name, dim, size


class Variable(NamedTuple):
    """A discrete latent site: one variable in each cell of its plates.

    Its states are the joint states of the elements of a cell.
    """

    name: str
    plates: tuple[Plate, ...]  # from left to right
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # of the plates, in `shape`
    num_values: int  # of an element
    dtype: Any
    lowest: int  # value

    @classmethod
    def of(cls, site: dict[str, Any], plates: tuple[Plate, ...]) -> Variable:
        fn, values = site["fn"], values_of(site["fn"])
        if values is None:
            raise ProgramError(
                f"the values of site {site['name']!r} cannot be listed: {unlisted(fn)}"
            )
        batch = tuple(fn.batch_shape)
        axes = tuple(len(batch) + dim for _, dim, _ in plates)
        shape, kind = batch + tuple(fn.event_shape), jnp.result_type(site["value"])
        return cls(site["name"], plates, shape, axes, len(values), kind, values.start)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for *_, size in self.plates)

    @property
    def cell(self) -> tuple[int, ...]:
        """The shape of the elements of one cell."""
        return tuple(n for i, n in enumerate(self.shape) if i not in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.cell)

    @property
    def num_states(self) -> int:
        return self.num_values**self.size

    def place(self, elements: Array) -> Array:
        """What each cell has, (..., cells or 1, size), in the site's shape, (..., *shape)."""
        lead, sizes = elements.shape[:-2], self.sizes
        if elements.shape[-2] != math.prod(sizes):
            sizes = (1,) * len(sizes)
        whole = elements.reshape(*lead, *sizes, *self.cell)
        where = range(len(lead), len(lead) + len(sizes))
        whole = jnp.moveaxis(whole, tuple(where), tuple(len(lead) + a for a in self.axes))
        return jnp.broadcast_to(whole, (*lead, *self.shape))

    def values(self, elements: Array) -> Array:
        """Elements counted from zero, (..., cells or 1, size), as the value of the site."""
        return self.place(elements).astype(self.dtype) + self.lowest

    def at(self, states: Array) -> Array:
        """States by number, (..., cells or 1), as the value of the site."""
        return self.values(self._elements(states))

    def by_value(self, probs: Array) -> Array:
        """Probabilities of states, (..., cells, S), as those of values, on one more axis."""
        values = self._elements(jnp.arange(self.num_states))[..., None]  # (S, size, 1)
        hot = (values == jnp.arange(self.num_values)).astype(probs.dtype)
        return self.with_values(jnp.einsum("...ns,sik->k...ni", probs, hot))

    def with_values(self, probs: Array) -> Array:
        """Of each value, (values, ..., cells, size), in the site's shape and one more axis."""
        return jnp.moveaxis(self.place(probs), 0, -1)

    def _elements(self, states: Array) -> Array:
        return jnp.stack(jnp.unravel_index(states, (self.num_values,) * self.size), -1)


def on_grid(site: dict[str, Any], log_prob: Array, plates: tuple[Plate, ...], depth: int) -> Array:
    """The log probability of a site with an axis for each of some plates, of size 1 for those
    around it that it is not in; all other axes are summed.

    :param depth: of the deepest plate of the program.
    """
    return cells_of(site, log_prob, plates, depth).sum(0)


def cells_of(
    site: dict[str, Any],
    log_prob: Array,
    plates: tuple[Plate, ...],
    depth: int,
    num_events: int = 0,
) -> Array:
    """The same with all other axes in one, (cells, *grid).

    :param num_events: axes to the right of the plates.
    """
    lead = depth + num_events - log_prob.ndim
    whole = log_prob.reshape((1,) * lead + log_prob.shape)
    own = {(f.name, f.dim, f.size) for f in site["cond_indep_stack"]}
    mine = [plate for plate in plates if plate in own]
    dims = [whole.ndim - num_events + dim for _, dim, _ in mine]
    rest = [i for i in range(whole.ndim) if i not in dims]
    count = math.prod(whole.shape[i] for i in rest)
    whole = jnp.transpose(whole, rest + dims).reshape(count, *(whole.shape[i] for i in dims))
    cells = jnp.broadcast_to(whole, (count, *(size for *_, size in mine)))
    return cells.reshape(count, *(plate[2] if plate in own else 1 for plate in plates))


Evidence = Iterator[tuple[str, str, Array]]
"""What sums leave: the name of a site, that of a latent whose scale it has, and a log factor."""


def sum_out(model: Callable, form: Graph | Chain | Elements, args: tuple, kwargs: dict) -> Any:
    """Run the program with its discrete latents summed out.

    Of each set of latents that interact, one factor is left, under the name of its first observed
    site, with one entry for each cell of the plates that hold all of them. Where nothing that
    depends on them is observed the program runs as it is, and simulates.
    """
    if form.simulates:
        return model(*args, **kwargs)
    # A continuous site that depends on latents is sampled outside; its density is part of the sum.
    apart = tempered(model, form.silent, 0.0) if form.silent else model
    within = {*form.names, *form.observed, *form.hidden}
    trace, given, returned = outside(apart, within, args, kwargs)

    def summed(given: Params) -> dict[tuple[str, str], Array]:
        factors: Any = form.factors(model, given, (args, kwargs))
        return {(name, latent): each for name, latent, each in form.evidence(factors)}

    # Operation by operation it would compile hundreds of little programs.
    for (name, latent), log_factor in remembered(summed)(given).items():
        shown = name in form.observed
        scale = trace[latent]["scale"]
        leave(name if shown else f"_{name}_summed", log_factor, scale, shown)
    return returned


# --- graphs


class Cells(NamedTuple):
    """The cells of a site, in groups that read the same elements."""

    name: str
    scopes: tuple[tuple[int, ...], ...]  # elements by number, in the order of their colours
    groups: tuple[int, ...]  # the scope of each cell; empty: all have the only one


class Component(NamedTuple):
    """Latents that interact, directly or through others."""

    variables: tuple[int, ...]
    elements: tuple[int, ...]  # of these variables, one after the other
    problem: Problem  # of the elements
    factors: tuple[Cells, ...]
    name: str | None  # of what is left: its first observed site; None: all sums to one
    plates: tuple[Plate, ...]  # that hold all of its latents


class Graph(NamedTuple):
    """The discrete latents of a program and the sites they meet in. Static: it holds no arrays.

    The elements of all latents are numbered one after the other: those of a vector, and the cells
    of plates that other plates look into.
    """

    variables: tuple[Variable, ...]
    plates: tuple[Plate, ...]  # that hold a latent: the axes of the grid
    nesting: int
    observed: tuple[str, ...]  # observed sites that depend on latents
    silent: tuple[str, ...]  # continuous unobserved ones
    hidden: tuple[str, ...]  # deterministic ones
    parameters: tuple[str, ...]  # all unobserved sites but the discrete latents
    other: tuple[str, ...] = ()  # observed sites that depend on no latent
    effects: tuple[str, ...] = ()  # of the parameters, those that are random effects
    scaled: bool = False  # whether a latent is
    scopes: tuple[tuple[str, frozenset[int]], ...] = ()  # site -> the variables it depends on
    colours: tuple[int, ...] = ()  # of each element: those of one colour meet in no cell
    components: tuple[Component, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variable.name for variable in self.variables)

    @property
    def starts(self) -> tuple[int, ...]:
        """The number of the first element of each variable."""
        return tuple(accumulate((x.size for x in self.variables), initial=0))[:-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each element."""
        return tuple(x.num_values for x in self.variables for _ in range(x.size))

    @property
    def simulates(self) -> bool:
        """Whether nothing is observed, so that there is nothing to sum."""
        return not (self.observed or self.silent)

    @property
    def counts(self) -> tuple[int, ...]:
        """Values that the elements of each colour go through."""
        most = [1] * (1 + max(self.colours))
        for colour, size in zip(self.colours, self.sizes, strict=True):
            most[colour] = max(most[colour], size)
        return tuple(most)

    def on_grid(self, site: dict[str, Any], log_prob: Array) -> Array:
        return on_grid(site, log_prob, self.plates, self.nesting)

    def cells(self, site: dict[str, Any], power: Any = 1.0) -> Array:
        """The log probability of each cell of a site, (cells, *grid).

        :param power: of the site, a number for each entry of its plates, or for all.
        """
        fn, num_events = site["fn"], 0
        while isinstance(fn, dist.Independent):
            fn, num_events = fn.base_dist, num_events + fn.reinterpreted_batch_ndims
        log_prob = log_prob_of({**site, "fn": fn}, site["name"] in self.names)
        log_prob = log_prob * jnp.reshape(power, jnp.shape(power) + (1,) * num_events)
        return cells_of(site, log_prob, self.plates, self.nesting, num_events)

    def factors(self, model: Callable, given: Params, arguments: Arguments) -> list[list[Factor]]:
        """The log factors of each component, where every other unobserved site is `given`."""
        counts = self.counts
        states = np.indices(counts).reshape(len(counts), -1).T
        run = partial(self._run, model, given, arguments)
        read = jax.vmap(run)(jnp.asarray(states))
        log_probs = {name: x.reshape(*counts, *x.shape[1:]) for name, x in read.items()}
        return [
            [factor for cells in part.factors
             for factor in self._tables(part, cells, log_probs[cells.name])]
            for part in self.components
        ]  # fmt: skip

    def _tables(self, component: Component, cells: Cells, log_probs: Array) -> Iterator[Factor]:
        """The factors of a site, its cells summed by what they read.

        :param log_probs: (values of each colour..., cells, *grid).
        """
        kinds: dict[tuple, list[int]] = {}
        for group, scope in enumerate(cells.scopes):
            kind = tuple((self.colours[e], self.sizes[e]) for e in scope)
            kinds.setdefault(kind, []).append(group)
        place = {e: i for i, e in enumerate(component.elements)}
        of_cell = np.array(cells.groups, int)
        for kind, groups in kinds.items():
            index: list[Any] = [0] * len(self.counts)  # of other colours any value will do
            for colour, size in kind:
                index[colour] = slice(size)
            table = jnp.moveaxis(log_probs[tuple(index)], len(kind), 0)
            if cells.groups:
                mine = np.flatnonzero(np.isin(of_cell, groups))
                where = np.searchsorted(groups, of_cell[mine])
                table = jax.ops.segment_sum(table[mine], where, len(groups))
            scopes = [[place[e] for e in cells.scopes[group]] for group in groups]
            yield Factor(np.array(scopes, int).reshape(len(groups), len(kind)), table)

    def _run(
        self, model: Callable, given: Params, arguments: Arguments, states: Array
    ) -> dict[str, Array]:
        """Log probabilities of cells, (cells, *grid), where elements of one colour have one value.

        Where all cells of a site read the same they are summed.
        """
        values = {}
        for variable, start in zip(self.variables, self.starts, strict=True):
            colours = np.array(self.colours[start : start + variable.size])
            elements = jnp.minimum(states[colours], variable.num_values - 1)
            values[variable.name] = variable.values(elements[None])
        trace = trace_of(model, arguments, {**given, **values})
        log_probs = {}
        for component in self.components:
            first = self.variables[component.variables[0]].name
            for cells in component.factors:
                site = trace[cells.name]
                power = scale_ratio(site["scale"], trace[first]["scale"])
                each = self.cells(site, power)
                log_probs[cells.name] = each if cells.groups else each.sum(0, keepdims=True)
        return log_probs

    @property
    def num_latents(self) -> int:
        """Of all latents, in all cells."""
        return sum(math.prod(x.shape) for x in self.variables)

    def tables(self, factors: list[list[Factor]]) -> list[Array]:
        return [factor.table for part in factors for factor in part]

    def total(self, factors: list[list[Factor]]) -> Array:
        """The log evidence."""
        return sum((x.sum() for *_, x in self.evidence(factors)), jnp.zeros(()))

    def statistics(self, factors: list[list[Factor]]) -> tuple[Array, list[Array]]:
        """The log evidence, and the posterior probability of each entry of each table."""

        def total(tables: list[Array]) -> Array:
            each = iter(tables)
            return self.total([[x._replace(table=next(each)) for x in part] for part in factors])

        return jax.value_and_grad(total)(self.tables(factors))

    def evidence(self, factors: list[list[Factor]]) -> Evidence:
        for component, part in zip(self.components, factors, strict=True):
            if component.name is not None:
                evidence = elimination.evidence(component.problem, part)
                evidence = evidence.reshape([size for *_, size in component.plates])
                yield component.name, self.variables[component.variables[0]].name, evidence

    def _by_variable(self, component: Component) -> Iterator[tuple[Variable, int]]:
        """The latents of a component, and the place of the first element of each."""
        variables = [self.variables[v] for v in component.variables]
        return zip(variables, accumulate((x.size for x in variables), initial=0), strict=False)

    def probabilities(self, factors: list[list[Factor]]) -> dict[str, Array]:
        probs = {}
        for component, part in zip(self.components, factors, strict=True):
            groups = [range(i, i + x.size) for x, i in self._by_variable(component)]
            tables = elimination.probabilities(component.problem, part, groups)
            for (variable, _), table in zip(self._by_variable(component), tables, strict=True):
                flat = table.reshape(*table.shape[:2], -1)  # (size, values, cells)
                probs[variable.name] = variable.with_values(jnp.transpose(flat, (1, 2, 0)))
        return probs

    def chosen(self, factors: list[list[Factor]], rng_key: Array | None) -> dict[str, Array]:
        values = {}
        for i, (component, part) in enumerate(zip(self.components, factors, strict=True)):
            key = None if rng_key is None else random.fold_in(rng_key, i)
            states = elimination.choose(component.problem, part, key)
            for variable, place in self._by_variable(component):
                own = tuple(slice(n) for n in component.problem.cells(place))
                elements = states[place : place + variable.size, *own]
                values[variable.name] = variable.values(elements.reshape(variable.size, -1).T)
        return values


# --- chains


class Chain(NamedTuple):
    """What a program with a scan over discrete latents consists of. Static: it holds no arrays."""

    steps: tuple[Variable, ...]  # the discrete latents of a step
    start: tuple[Variable, ...]  # those before the first step
    plates: tuple[Plate, ...]  # that hold the sequences
    nesting: int
    parameters: tuple[str, ...]  # all unobserved sites but the discrete latents
    hidden: tuple[str, ...]  # deterministic sites of a step, or that depend on latents
    length: int
    reverse: bool
    orders: tuple[tuple[str, int], ...] = ()  # site of a step -> how many steps back it looks
    steady: tuple[str, ...] = ()  # sites of a step that depend on latents and on nothing else
    observed: tuple[str, ...] = ()  # observed sites that depend on latents, those of a step first
    starters: tuple[str, ...] = ()  # of them those outside the scan
    other: tuple[str, ...] = ()  # observed sites, of a step or not, that depend on no latent
    effects: tuple[str, ...] = ()  # of the parameters, those that are random effects
    silent: tuple[str, ...] = ()  # as of a graph: there are none

    @property
    def order(self) -> int:
        return max(1, *(order for _, order in self.orders))

    @property
    def num_sequences(self) -> int:
        return math.prod(size for *_, size in self.plates)

    @property
    def num_states(self) -> int:
        return math.prod(x.num_states for x in self.steps)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(x.name for x in (*self.start, *self.steps))

    @property
    def simulates(self) -> bool:
        return not (self.observed or self.other)

    def log_prob(self, site: dict[str, Any], reference: Any) -> Array:
        """The log probability of a site, relative to a scale, (N,)."""
        power = scale_ratio(site["scale"], reference)
        log_prob = power * log_prob_of(site, site["name"] in self.names)
        cells = on_grid(site, log_prob, self.plates, self.nesting)
        return jnp.broadcast_to(cells, [size for *_, size in self.plates]).reshape(-1)

    def factors(self, model: Callable, given: Params, arguments: Arguments) -> tuple[Array, Array]:
        """The log factors, (T, N, S, S^order), and log p(start, its observations), (N, S^order)."""
        count, length, order = self.num_states, self.length, self.order
        total, begin = jnp.zeros(()), jnp.zeros(())
        for own, steady in sorted({(order, name in self.steady) for name, order in self.orders}):
            names = [x for x, o in self.orders if o == own and (x in self.steady) == steady]
            num_read = min(own + 1, length) if steady else length
            window = np.indices((count,) * (own + 1)).reshape(own + 1, -1).T  # z_{t-own}, ..., z_t
            run = partial(self._run, model, given, arguments, names, num_read)
            # Over windows, on the last axis: (steps, N, S^(own + 1)) and (N, S^(own + 1)).
            read, begin = jax.vmap(run, out_axes=-1)(jnp.asarray(window))
            if num_read < length:  # later steps are like the last that is read
                later = jnp.broadcast_to(read[-1:], (length - num_read, *read.shape[1:]))
                read = jnp.concatenate([read, later])
            total = total + read.reshape(
                *read.shape[:2], *(1,) * (order - own), *(count,) * (own + 1)
            )
        shape = length, self.num_sequences
        total = jnp.broadcast_to(total, (*shape, *(count,) * (order + 1)))
        total = total.reshape(*shape, count, count**order)
        if not self.start:
            return total, paths.no_start(total)
        # The state before the first step is the oldest of a window.
        return total, begin.reshape(self.num_sequences, count, -1)[..., 0]

    def _run(
        self,
        model: Callable,
        given: Params,
        arguments: Arguments,
        names: list[str],
        num_read: int,
        window: Array,
    ) -> tuple[Array, Array]:
        """Log probabilities of some sites at the first steps, (T, N), and of the start, (N,).

        :param window: the states of the last steps up to any one, the oldest first.
        """
        found: list[Array] = []

        def scan(f: Callable, init: Any, xs: Any, _: Any, reverse: bool) -> Any:
            xs = jax.tree.map(lambda x: jnp.asarray(x[::-1] if reverse else x)[:num_read], xs)

            def step(carry: Any, x: Any, state: Array) -> tuple[Any, Any, Array]:
                values = self.values(self.steps, state[None])
                trace, (carry, y) = traced(handlers.substitute(f, data=values), carry, x)
                reference = trace[self.steps[0].name]["scale"]
                parts = (self.log_prob(trace[name], reference) for name in names)
                return carry, y, sum(parts, jnp.zeros(self.num_sequences))

            def enter(carry: Any, x: Any) -> tuple[Any, Any]:
                new, y, _ = step(carry, x, jnp.zeros((), int))
                return new, (carry, y)

            # What is carried into each step. As far as latents get into it, it is right for the
            # first step only; a window begins so far back that no other value matters.
            last, (entered, ys) = lax.scan(enter, init, xs, num_read)

            def log_prob(t: Array) -> Array:
                back = len(window) - 1
                carry = jax.tree.map(lambda x: x[jnp.maximum(t - back, 0)], entered)
                log_prob = jnp.zeros(self.num_sequences)
                for i in range(back + 1):
                    place = t - back + i
                    x = jax.tree.map(lambda x: x[jnp.maximum(place, 0)], xs)  # noqa: B023
                    new, _, log_prob = step(carry, x, window[i])
                    carry = jax.tree.map(partial(jnp.where, place >= 0), new, carry)
                return log_prob

            cells = max(self.num_sequences, sum(x[0].size for x in jax.tree.leaves(xs)))
            size = MOST_AT_ONCE // (self.num_states ** len(window) * cells)
            found.append(
                lax.map(log_prob, jnp.arange(num_read), batch_size=max(1, min(size, num_read)))
            )
            # What the scan returns matters by its shape alone.
            return last, jax.tree.map(lambda x: jnp.resize(x, (self.length, *x.shape[1:])), ys)

        start = self.values(self.start, window[:1])
        trace = trace_of(instead_of_scan(model, scan), arguments, {**given, **start})
        first = [trace[x] for x in (*start, *self.starters)]
        parts = (self.log_prob(site, first[0]["scale"]) for site in first)
        return found[0], sum(parts, jnp.zeros(self.num_sequences))

    def values(self, variables: tuple[Variable, ...], states: Array) -> dict[str, Array]:
        """Joint states by number, (..., N or 1), as the values of some latents."""
        each = jnp.unravel_index(states, tuple(x.num_states for x in variables))
        return {x.name: x.at(state) for x, state in zip(variables, each, strict=True)}

    @property
    def num_latents(self) -> int:
        """Of all steps of all sequences."""
        return self.num_sequences * self.length

    def tables(self, factors: tuple[Array, Array]) -> tuple[Array, Array]:
        return factors

    def total(self, factors: tuple[Array, Array]) -> Array:
        """The log evidence of each sequence."""
        return paths.evidence(*factors)

    def statistics(self, factors: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        """The log evidence, and the posterior probability of each entry of each table."""
        return paths.statistics(*factors)

    def evidence(self, factors: tuple[Array, Array]) -> Evidence:
        if self.observed:
            evidence = paths.evidence(*factors)
            yield self.observed[0], self.steps[0].name, evidence if self.plates else evidence[0]

    def probabilities(self, factors: tuple[Array, Array]) -> dict[str, Array]:
        """Of each value of each latent at each step: (T, ..., num_values)."""
        _, (joined, begin) = paths.statistics(*factors)
        steps = joined.reshape(*joined.shape[:2], -1, self.num_states).sum(2)
        probs = {}
        for variables, each in ((self.start, begin), (self.steps, self._in_order(steps))):
            before = 1
            for x in variables:
                whole = each.reshape(*each.shape[:-1], before, x.num_states, -1)
                probs[x.name] = x.by_value(whole.sum((-3, -1)))
                before *= x.num_states
        return probs

    def chosen(self, factors: tuple[Array, Array], rng_key: Array | None) -> dict[str, Array]:
        """A path of each sequence: a draw, or without a key the most probable one, Viterbi's."""
        steps, begin = paths.paths(*factors, rng_key)
        steps = self._in_order(steps)
        return {**self.values(self.start, begin), **self.values(self.steps, steps)}

    def _in_order(self, steps: Array) -> Array:
        return steps[::-1] if self.reverse else steps


class instead_of_scan(Messenger):  # noqa: N801
    """Calls `run(f, init, xs, length, reverse)` in place of a scan over discrete latents.

    It gives what the scan returns; if it gives None the scan runs.
    """

    def __init__(self, fn: Callable, run: Callable):
        self.run = run
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "control_flow":
            return
        f, init, x = first_step(msg["args"])
        if any(map(is_latent, traced(f, init, x)[0].values())):
            returned = self.run(*msg["args"])
            if returned is not None:
                last, ys = returned
                no_sites = SimpleNamespace(trace={})  # what NumPyro's scan would record
                msg["value"], msg["stop"] = ((None, None, last), (no_sites, ys)), True


def first_step(scan: tuple) -> tuple[Callable, Any, Any]:
    """The function of a step of a scan, and what it is called with first."""
    f, init, xs, _, reverse = scan
    first = jax.tree.map(lambda x: x[-1 if reverse else 0], xs)
    return f, jax.tree.map(jnp.asarray, init), first


def traced(f: Callable, *args: Any) -> tuple[dict[str, dict], Any]:
    """The sites of a step, and what it returns."""
    filled, at_zero = handlers.substitute(substitute_fn=improper), handlers.seed(rng_seed=0)
    with handlers.block(), handlers.trace() as trace, filled, at_zero:
        returned = f(*args)
    return {name: site for name, site in trace.items() if site["type"] != "plate"}, returned


# --- elements of vectors


class Elements(NamedTuple):
    """The latents of a datum, element by element, and which meet. Static: it holds no arrays."""

    anatomy: Anatomy
    scopes: tuple[tuple[int, ...], ...]  # C_v, v first, in an order of elimination
    rounds: tuple[tuple[int, ...], ...] = ()  # of elimination
    hidden: tuple[str, ...] = ()  # deterministic sites of the plate
    silent: tuple[str, ...] = ()  # as of a graph: there are none
    simulates: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.anatomy.names

    @property
    def observed(self) -> tuple[str, ...]:
        return self.anatomy.observed

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.anatomy.parameters

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each element."""
        return tuple(x.num_values or 1 for x in self.anatomy.latents for _ in range(x.size))

    @property
    def treewidth(self) -> int:
        return max(map(len, self.scopes)) - 1

    @property
    def num_runs(self) -> int:
        return sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes)

    def states(self) -> np.ndarray:
        """The states of each C_v, one after the other, the least elsewhere: (runs, elements)."""
        parts = []
        for scope in self.scopes:
            own = [self.sizes[v] for v in scope]
            part = np.zeros((math.prod(own), len(self.sizes)), np.int32)
            part[:, list(scope)] = np.indices(own).reshape(len(own), -1).T
            parts.append(part)
        return np.concatenate(parts) + self.anatomy.lowest

    def expansion(self, log_joints: Array) -> tuple[Array, list[Factor]]:
        """f(0) of each row, (n,), and the factors, from f at `states`, (runs, n)."""
        kinds: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        begin = 0
        for scope in self.scopes:
            own = tuple(self.sizes[v] for v in scope)
            kinds.setdefault(own, []).append((begin, scope))
            begin += math.prod(own)
        factors = []
        for own, parts in kinds.items():
            rows = np.array([first for first, _ in parts])[:, None] + np.arange(math.prod(own))
            table = log_joints[rows].reshape(len(parts), *own, -1)
            factors.append(Factor(np.array([scope for _, scope in parts]), table - table[:, :1]))
        return log_joints[0], factors

    def factors(self, model: Callable, given: Params, arguments: Arguments) -> Callable:
        """A function that reads the factors chunk by chunk, since those of all rows are many.

        It takes `read(problem, f(0), factors, number of the first row)` of a chunk of rows, and
        gives what that makes of all rows.
        """
        rows = rows_of(self.anatomy, *arguments)
        given = {name: x for name, x in given.items() if name != self.anatomy.plate}
        width = rows.width + len(self.sizes)
        size = chunk_of(None, self.num_runs * width, rows)
        plates = (frozenset({0}),) * len(self.sizes)
        problem = Problem(self.sizes, plates, (size,), self.rounds)
        # Without the barrier XLA folds what the program makes of them, for seconds.
        states = lax.optimization_barrier(jnp.asarray(self.states())[:, None])

        # What is held of a chunk for the gradient would add up over all of them.
        @partial(jax.checkpoint, static_argnums=0)
        def one(read: Callable, arguments: Arguments, numbers: Array) -> Any:
            local = self.anatomy.with_rows(size)
            log_joints = log_joint(model, local, given, states, arguments)
            log_joints = jnp.broadcast_to(log_joints, (len(states), size))
            return read(problem, *self.expansion(log_joints), numbers[0])

        return lambda read: map_over_chunks(partial(one, read), rows, size, Numbers())

    def evidence(self, factors: Callable) -> Evidence:
        def read(problem: Problem, base: Array, factors: list[Factor], _: Array) -> Array:
            return base + elimination.evidence(problem, factors)

        each = factors(read).reshape(-1, *(1,) * (-self.anatomy.plate_dim - 1))
        yield self.observed[0], self.names[0], each

    def probabilities(self, factors: Callable) -> dict[str, Array]:
        latents = self.anatomy.latents
        ends = np.cumsum([latent.size for latent in latents]).tolist()
        groups = [range(end - x.size, end) for x, end in zip(latents, ends, strict=True)]

        def read(problem: Problem, _base: Array, factors: list[Factor], _: Array) -> list[Array]:
            tables = elimination.probabilities(problem, factors, groups)
            return [jnp.moveaxis(table, 2, 0) for table in tables]  # (rows, size, values)

        return {x.name: x.by_value(each) for x, each in zip(latents, factors(read), strict=True)}

    def chosen(self, factors: Callable, rng_key: Array | None) -> dict[str, Array]:
        def read(problem: Problem, _base: Array, factors: list[Factor], start: Array) -> Array:
            key = None if rng_key is None else random.fold_in(rng_key, start)
            return elimination.choose(problem, factors, key).T

        return self.anatomy.by_site(factors(read) + self.anatomy.lowest)
