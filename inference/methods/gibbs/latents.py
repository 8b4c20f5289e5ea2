"""Gibbs sampling of latents that are not bits of a row alone: categories, shared bits, several
plates, bits beside continuous latents.

One element of a site is drawn given all else, in all cells of its plates at once, which are
independent given the others. That takes one run of the program for each of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from numpyro import handlers

from ...reading.anatomy import ProgramError, values_of
from ...reading.elimination import Graph
from ...reading.latent_counts import unbounded
from ...reading.state_sums import log_prob_of
from ...reading.strategy import latent_facts
from ...reading.survey import find_graph
from ...reading.tracing import run_abstractly, trace_of
from ...types import Arguments, Params


class LatentProgram(NamedTuple):
    """A program with discrete latents, opened. Static: it holds no arrays.

    The state of a chain is a list with the codes of each site, (cells, elements).
    """

    model: Callable
    graph: Graph

    @property
    def anatomy(self) -> Graph:
        """Names of the latents and of all other unobserved sites."""
        return self.graph

    def check_rows(self, why: str) -> None:
        raise ProgramError(
            f"{why}, but the latents {list(self.graph.names)} are not the bits of rows"
        )

    def read(self, params: Params, arguments: Arguments) -> tuple[Callable, Callable]:
        """How to sweep through the latents, and what states are worth."""
        graph = self.graph
        scopes = dict(graph.scopes)

        def factors(parts: list[Array], names: list[str], power: Array | float) -> list[Array]:
            trace = trace_of(self.model, arguments, {**params, **self.unpack(parts)})
            terms = []
            for name in names:
                site = trace[name]
                scale = 1.0 if site["scale"] is None else site["scale"]
                heat = power if site["is_observed"] else 1.0
                log_prob = heat * scale * log_prob_of(site, name in graph.names)
                terms.append(graph.on_grid(site, log_prob))
            return terms

        def draw(key: Array, parts: list[Array], power: Array | float) -> tuple[list[Array], Array]:
            largest = jnp.zeros(())
            for v, variable in enumerate(graph.variables):
                names = [name for name, scope in scopes.items() if v in scope]
                own = {graph.plates.index(plate) for plate in variable.plates}
                away = tuple(i for i in range(len(graph.plates)) if i not in own)
                count = variable.num_values

                def visit(
                    i: Array, carry: tuple[list[Array], Array], v: int = v, names: Any = names,
                    away: tuple[int, ...] = away, count: int = count,
                ) -> tuple[list[Array], Array]:  # fmt: skip
                    parts, largest = carry

                    def value(k: Array) -> Array:
                        tried = [*parts[:v], parts[v].at[:, i].set(k), *parts[v + 1 :]]
                        each = [x.sum(away).reshape(-1) for x in factors(tried, names, power)]
                        return sum(each, jnp.zeros(parts[v].shape[:1]))

                    logits = jax.vmap(value)(jnp.arange(count))  # (values, cells)
                    # Where all are impossible none is preferred.
                    logits = jnp.where(jnp.isneginf(logits.max(0)), 0.0, logits)
                    chosen = random.categorical(
                        random.fold_in(random.fold_in(key, v), i), logits, axis=0
                    )
                    probability = jax.nn.softmax(logits, axis=0)
                    stay = jnp.take_along_axis(probability, parts[v][None, :, i], axis=0)
                    new = parts[v].at[:, i].set(chosen.astype(parts[v].dtype))
                    largest = jnp.maximum(largest, 1.0 - stay.min())
                    return [*parts[:v], new, *parts[v + 1 :]], largest

                parts, largest = lax.fori_loop(0, variable.size, visit, (parts, largest))
            return parts, largest

        def score(parts: list[Array], power: Array | float) -> Array:
            every = factors(parts, list(scopes), power)
            return sum((x.sum() for x in every), jnp.zeros(()))

        return draw, score

    def pack(self, values: dict[str, Array]) -> Any:
        """Values of the sites as codes from 0."""
        parts = []
        for variable in self.graph.variables:
            value = jnp.broadcast_to(values[variable.name], variable.shape).astype(jnp.int32)
            axes = variable.axes
            codes = jnp.moveaxis(value - variable.lowest, axes, range(len(axes)))
            parts.append(codes.reshape(-1, variable.size))
        return parts

    def unpack(self, parts: Any) -> dict[str, Array]:
        """The codes as values of the sites, in the sites' own shapes."""
        pairs = zip(self.graph.variables, parts, strict=True)
        return {variable.name: variable.values(part) for variable, part in pairs}

    def prior_draw(self, key: Array, params: Params, arguments: Arguments) -> Any:
        """Latents drawn from the program itself, without a look at the data."""
        trace = trace_of(handlers.seed(self.model, key), arguments, params)
        return self.pack({name: trace[name]["value"] for name in self.graph.names})


def open_latents(
    model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None
) -> LatentProgram | None:
    """The program, opened, if its latents are not simply the bits of one data plate."""

    def read(trace: dict[str, dict]) -> tuple[tuple[str, ...], bool]:
        endless = [x["name"] for x in trace.values() if unbounded(x)]
        if endless:
            raise ProgramError(
                f"site {endless[0]!r} counts without bound: give all blocks up_to(model, most), "
                "which lists its values"
            )
        facts = latent_facts(trace)
        binary = all(values_of(trace[name]["fn"]) == range(2) for name in facts.names)
        alone = not (facts.continuous or facts.after)
        held = bool(facts.common) if plate is None else plate in facts.common
        return facts.names, binary and alone and held

    names, simple = run_abstractly(model, args, kwargs, read)
    if not names or simple:
        return None
    graph = find_graph(model, args, kwargs, names, summed=False)
    return None if graph is None else LatentProgram(model, graph)
