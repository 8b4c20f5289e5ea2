"""A graph of latents read outward and back: what is left of their sum, and their posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, random
from numpyro.primitives import Messenger

from ..numerics import elimination
from ..numerics.elimination import Factor
from .graph import Graph
from .outside import leave, outside


# A continuous site that depends on latents is sampled outside, and its density belongs to the sum.
class _Silenced(Messenger):
    """Sites keep their values and lose their densities."""

    def __init__(self, fn: Callable, names: tuple[str, ...]):
        self.names = names
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["fn"] = msg["fn"].mask(False)


def sum_graph(model: Callable, graph: Graph, args: tuple, kwargs: dict) -> Any:
    """Run the program with its discrete latents summed out.

    Of each set of latents that meet, one factor is left, under the name of its first observed site,
    with one entry for each cell of the plates that hold all of them. Where nothing that depends on
    them is observed the program runs as it is, and simulates.
    """
    if not graph.observed and not graph.silent:
        return model(*args, **kwargs)
    within = {*graph.names, *graph.observed, *graph.hidden}
    trace, given, returned = outside(_Silenced(model, graph.silent), within, args, kwargs)
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

    def draw(self, rng_key: Array) -> dict[str, Array]:
        return self._chosen(rng_key)

    def best(self) -> dict[str, Array]:
        return self._chosen(None)

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
        hot = (labels[..., None] == jnp.arange(link.num_values)).astype(table.dtype)
        each = jnp.einsum("sn,sik->kni", table.reshape(count, -1), hot)
        sizes = tuple(size for *_, size in variable.plates)
        return jnp.moveaxis(link.place(each, sizes), 0, -1)

    def _chosen(self, rng_key: Array | None) -> dict[str, Array]:
        values = {}
        for i, (component, factors) in enumerate(
            zip(self.graph.components, self.factors, strict=True)
        ):
            key = None if rng_key is None else random.fold_in(rng_key, i)
            codes = elimination.choose(component.problem, factors, key)
            for place, v in enumerate(component.variables):
                variable = self.graph.variables[v]
                own = tuple(slice(n) for n in component.problem.cells(place))
                values[variable.link.name] = variable.values(codes[place, *own].reshape(-1))
        return values
