"""What `latentbits check` says of latents that belong to no row alone: chains, what rows share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..numerics.elimination import find_order
from ..reading.elimination import Chain, Elements, Graph
from ..reading.tracing import innermost
from ..running.memory import in_words

Way = Chain | Graph | Elements


def form_of(way: Way, num_data: int = 1) -> list[str]:
    """How `marginal` sums the latents, and what that takes."""
    if isinstance(way, Chain):
        count, several = way.num_sequences, "s" if way.num_sequences > 1 else ""
        terms = way.length * count * way.num_states ** (way.order + 1)
        first = (
            f"hidden Markov chain of order {way.order}: {way.num_states} states per step, "
            f"{way.length} steps, {count} sequence{several}"
        )
        how = "forward sums"
    elif isinstance(way, Elements):
        terms = num_data * way.num_runs
        first = f"{len(way.sizes)} elements of a row's latents, treewidth {way.treewidth}"
        how = f"elimination from {way.num_runs} runs of the program per row"
    else:
        tables = [entries for component in way.components for entries in _tables(way, component)]
        terms = sum(size * cells for size, cells, _ in tables)
        widest = max(width for *_, width in tables) - 1
        first = (
            f"{len(way.variables)} discrete latent site{'s' if len(way.variables) > 1 else ''} "
            f"along a graph, treewidth {widest}"
        )
        how = f"elimination from {math.prod(way.counts)} runs of the program"
    size = 4.0 * terms
    return [first, f"marginal  {how}: {terms:.2g} terms, {in_words(size)} at once"]


def _tables(graph: Graph, component: Any) -> list[tuple[int, int, int]]:
    """Of each table that elimination makes: entries of a cell, cells, and how many latents.

    All elements of a vector count: they meet.
    """
    elements = [graph.variables[v].size for v in component.variables]
    problem, scopes = component.problem, [frozenset(scope) for _, scope in component.factors]
    order = find_order(scopes, problem.sizes, problem.plates)
    return [
        (
            math.prod(problem.sizes[v] for v in scope),
            math.prod(problem.grid[axis] for axis in problem.plates[scope[0]]),
            sum(elements[v] for v in scope),
        )
        for scope in order
    ]


def site_rows(sites: dict[str, dict], kind: Callable[[str, Any], str]) -> list[tuple[str, ...]]:
    """Name, kind, shape and distribution of each site, with a heading."""
    rows: list[tuple[str, ...]] = [("site", "kind", "shape", "distribution")]
    for name, site in sites.items():
        if site["type"] in ("sample", "param"):
            fn: Any = site["fn"] if site["type"] == "sample" else None
            words = type(innermost(fn)).__name__ if fn else "-"
            rows.append((name, kind(name, fn), str(jnp.shape(site["value"])), words))
    return rows


def kind_of(way: Way, name: str) -> str:
    """What a site of such a program is."""
    if name in way.parameters:
        return "parameter"
    return "latent, discrete" if name in way.names else "observed"


def method_rows(way: Way) -> list[tuple[str, str]]:
    """What applies to a program whose latents belong to no row alone."""
    chain = isinstance(way, Chain)
    words = "no: its latents are shared, or lie in several plates"
    gibbs = "no: latents of a scan are summed, not sampled one by one"
    if isinstance(way, Chain):
        words = "yes: Baum and Welch's algorithm"
        words = f"no: {way.effects[0]} is a random effect" if way.effects else words
    return [
        ("EM", words),
        ("LatentGibbs", gibbs if chain else "yes: with NUTS for the rest, in HMCGibbs"),
        ("NUTS(marginal(model))", "yes"),
        ("SVI(marginal(model), ...)", "yes"),
        ("all others", "no: they are for latents of a row"),
    ]
