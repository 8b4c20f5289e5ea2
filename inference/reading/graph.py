"""Which discrete latents of a program meet in which sites, and the sums along that graph.

`marginal` lists the joint states of the latents of one data plate. This is for all else: latents
that all rows share, latents of several plates, nested or unrelated, observations in a plate around
that of the latents, latents that form a chain or a tree written as a loop, continuous sites that
depend on discrete ones. Which latents a site depends on follows from the operations of the program
(provenance); the log probability of every site for all values of its latents follows from a few
runs of the program, in which latents that never meet take their values in step; the sum over all of
them from elimination (`numerics.elimination`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ..numerics import elimination
from ..numerics.elimination import Factor, Problem, factor_of
from ..types import Arguments, Params
from .abstract import leave, outside, trace_of
from .chain import Link
from .handlers import tempered
from .states import AllStates
from .sums import log_prob_of, scale_ratio

Plate = tuple[str, int, int]  # name, dim, size


class Variable(NamedTuple):
    """A discrete latent site: one variable in each cell of its plates."""

    link: Link
    plates: tuple[Plate, ...]

    @property
    def num_states(self) -> int:
        return self.link.num_values**self.link.size

    def values(self, codes: Array) -> Array:
        """Numbers of states, (cells or 1,), as the value of the site."""
        table = AllStates().table([self.link.num_values] * self.link.size)
        sizes = tuple(size for _, _, size in self.plates)
        return self.link.values(jnp.asarray(table)[codes], sizes)


class Component(NamedTuple):
    """Latents that meet, directly or through others."""

    variables: tuple[int, ...]
    problem: Problem
    factors: tuple[tuple[str, tuple[int, ...]], ...]  # site -> its variables, by place above
    name: str | None  # of what is left: its first observed site; None: all sums to one
    plates: tuple[Plate, ...]  # that hold all of its latents


class Graph(NamedTuple):
    """The discrete latents of a program and the sites they meet in. Static: it holds no arrays."""

    variables: tuple[Variable, ...]
    plates: tuple[Plate, ...]  # that hold a latent: the axes of the grid
    nesting: int
    colours: tuple[int, ...]  # of each variable: those of one colour never meet
    components: tuple[Component, ...]
    observed: tuple[str, ...]  # observed sites that depend on latents
    silent: tuple[str, ...]  # continuous unobserved ones
    hidden: tuple[str, ...]  # deterministic ones
    parameters: tuple[str, ...]  # all unobserved sites but the discrete latents
    scopes: tuple[tuple[str, frozenset[int]], ...] = ()  # site -> the variables it depends on

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variable.link.name for variable in self.variables)

    @property
    def counts(self) -> tuple[int, ...]:
        """Values that the variables of each colour go through."""
        most = [0] * (1 + max(self.colours))
        for colour, variable in zip(self.colours, self.variables, strict=True):
            most[colour] = max(most[colour], variable.num_states)
        return tuple(most)

    def on_grid(self, site: dict[str, Any], log_prob: Array) -> Array:
        """The log probability of a site on the grid; all other axes are summed."""
        whole = log_prob.reshape((1,) * (self.nesting - log_prob.ndim) + log_prob.shape)
        own = {(f.name, f.dim, f.size) for f in site["cond_indep_stack"]}
        mine = [plate for plate in self.plates if plate in own]
        dims = tuple(whole.ndim + dim for _, dim, _ in mine)
        rest = tuple(i for i in range(whole.ndim) if i not in dims)
        cells = jnp.broadcast_to(whole.sum(rest), tuple(size for *_, size in mine))
        return cells.reshape([plate[2] if plate in own else 1 for plate in self.plates])

    def factors(self, model: Callable, given: Params, arguments: Arguments) -> list[list[Factor]]:
        """The log factors of each component, where every other unobserved site is `given`."""
        counts, grid = self.counts, len(self.plates)
        codes = np.indices(counts).reshape(len(counts), -1).T
        log_probs = jax.vmap(lambda codes: self._run(model, given, arguments, codes))(
            jnp.asarray(codes)
        )
        components = []
        for component in self.components:
            factors = []
            for name, scope in component.factors:
                whole = log_probs[name].reshape(*counts, *log_probs[name].shape[1:])
                variables = [component.variables[place] for place in scope]
                colours = [self.colours[v] for v in variables]
                # Of the colours that do not occur, any value will do.
                index = [slice(None) if c in colours else 0 for c in range(len(counts))]
                table = whole[tuple(index)]
                place = [sorted(colours).index(c) for c in colours]
                table = table.transpose(*place, *range(len(place), len(place) + grid))
                sizes = [slice(self.variables[v].num_states) for v in variables]
                factors.append(factor_of(scope, table[tuple(sizes)]))
            components.append(factors)
        return components

    def _run(
        self, model: Callable, given: Params, arguments: Arguments, codes: Array
    ) -> dict[str, Array]:
        """Log probabilities on the grid, where variables of one colour are in the same state."""
        values = {}
        for colour, variable in zip(self.colours, self.variables, strict=True):
            code = jnp.minimum(codes[colour], variable.num_states - 1)
            values[variable.link.name] = variable.values(code[None])
        trace = trace_of(model, arguments, {**given, **values})
        log_probs = {}
        for component in self.components:
            first = self.variables[component.variables[0]].link.name
            for name, _ in component.factors:
                site = trace[name]
                power = scale_ratio(site["scale"], trace[first]["scale"])
                log_probs[name] = self.on_grid(site, power * log_prob_of(site, name in values))
        return log_probs


def sum_graph(model: Callable, graph: Graph, args: tuple, kwargs: dict) -> Any:
    """Run the program with its discrete latents summed out.

    Of each set of latents that meet, one factor is left, under the name of its first observed site,
    with one entry for each cell of the plates that hold all of them. Where nothing that depends on
    them is observed the program runs as it is, and simulates.
    """
    if not graph.observed and not graph.silent:
        return model(*args, **kwargs)
    within = {*graph.names, *graph.observed, *graph.hidden}
    # A continuous site that depends on latents is sampled outside; its density is part of the sum.
    silent = tempered(model, graph.silent, 0.0)
    trace, given, returned = outside(silent, within, args, kwargs)
    parts = graph.factors(model, given, (args, kwargs))
    for component, factors in zip(graph.components, parts, strict=True):
        if component.name is None:
            continue
        left = elimination.evidence(component.problem, factors)
        left = left.reshape([size for *_, size in component.plates])
        scale = trace[graph.variables[component.variables[0]].link.name]["scale"]
        shown = component.name in graph.observed
        leave(component.name if shown else f"_{component.name}_summed", left, scale, shown)
    return returned


class GraphPosterior(NamedTuple):
    """The posterior of the latents of a graph, given all other unobserved sites."""

    graph: Graph
    factors: list[list[Factor]]

    def probabilities(self) -> dict[str, Array]:
        """Of each value of each latent, on one more axis at the end."""
        probs = {}
        for component, factors in zip(self.graph.components, self.factors, strict=True):
            each = [[place] for place in range(len(component.variables))]
            tables = elimination.probabilities(component.problem, factors, each)
            for v, table in zip(component.variables, tables, strict=True):
                probs[self.graph.variables[v].link.name] = self._by_value(v, table[0])
        return probs

    def _by_value(self, v: int, table: Array) -> Array:
        """Probabilities of states, (S, *grid), as those of the site's values."""
        variable = self.graph.variables[v]
        link, count = variable.link, variable.num_states
        digits = link.num_values ** jnp.arange(link.size)[::-1]
        labels = jnp.arange(count)[:, None] // digits % link.num_values  # (S, size)
        sizes = tuple(size for *_, size in variable.plates)
        return link.by_value(table.reshape(count, -1).T, labels, sizes)

    def chosen(self, rng_key: Array | None) -> dict[str, Array]:
        """A draw of each latent; without a key the most probable ones together."""
        values = {}
        parts = zip(self.graph.components, self.factors, strict=True)
        for i, (component, factors) in enumerate(parts):
            key = None if rng_key is None else random.fold_in(rng_key, i)
            codes = elimination.choose(component.problem, factors, key)
            for place, v in enumerate(component.variables):
                variable = self.graph.variables[v]
                own = tuple(slice(n) for n in component.problem.cells(place))
                values[variable.link.name] = variable.values(codes[place, *own].reshape(-1))
        return values
