"""Which discrete latents of a program meet in which sites, from the operations of the program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..numerics.elimination import CrossedError, Problem, find_order, find_rounds
from .abstract import ProgramError, dependence, run_abstractly, unknowns
from .chain import Link, is_latent
from .graph import Component, Graph, Variable

MOST_RUNS = 1 << 16
"""Of the program, to read its factors."""
MOST_ENTRIES = 1 << 24
"""Of a table that elimination makes, for one cell of the plates."""


def find_graph(
    model: Callable,
    args: tuple,
    kwargs: dict,
    sites: Sequence[str] | None = None,
    *,
    summed: bool = True,
) -> Graph | None:
    """The graph of the discrete latents, or of those named; None if there are none.

    :param summed: False where they are to be sampled: it has no components then, and none of the
        limits of a sum.

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def family(height):
    ...     parent = numpyro.sample("parent", dist.Bernoulli(0.3))
    ...     with numpyro.plate("children", len(height)):
    ...         child = numpyro.sample("child", dist.Bernoulli(0.2 + 0.5 * parent))
    ...         numpyro.sample("height", dist.Normal(child, 1.0), obs=height)
    >>> graph = find_graph(family, (jnp.zeros(5),), {})
    >>> graph.names, graph.components[0].factors
    (('parent', 'child'), (('parent', (0,)), ('child', (0, 1)), ('height', (1,))))
    """

    def read(trace: dict[str, dict]) -> Graph | None:
        latents = [x for x in trace.values() if is_latent(x) and not x.get("_control_flow_done")]
        latents = [x for x in latents if sites is None or x["name"] in sites]
        return _graph(model, args, kwargs, trace, latents, summed) if latents else None

    return run_abstractly(model, args, kwargs, read)


def _graph(
    model: Callable,
    args: tuple,
    kwargs: dict,
    trace: dict[str, dict],
    latents: list[dict],
    summed: bool,
) -> Graph:
    names = [site["name"] for site in latents]
    depends = dependence(model, (args, kwargs), trace, names)
    bearing = {x: on for x, on in depends.items() if on and trace[x]["type"] == "sample"}
    scopes = {x: frozenset(names.index(name) for name in on) for x, on in bearing.items()}
    joined = _joined(trace, scopes, [_variable(site) for site in latents])
    variables = tuple(_variable(site, joined) for site in latents)
    plates = sorted({p for v in variables for p in v.plates}, key=lambda p: (p[1], p[0]))
    frames = [f for x in trace.values() for f in x.get("cond_indep_stack", ())]
    others = [name for name in scopes if name not in names]
    graph = Graph(
        variables=variables,
        plates=tuple(plates),
        nesting=max([-f.dim for f in frames], default=0),
        colours=_colours(len(variables), list(scopes.values())),
        components=(),
        observed=tuple(name for name in others if trace[name]["is_observed"]),
        silent=tuple(name for name in others if not trace[name]["is_observed"]),
        hidden=tuple(x for x, on in depends.items() if on and x not in scopes),
        parameters=unknowns(trace.values(), names),
    )
    graph = graph._replace(scopes=tuple(scopes.items()))
    if not summed:
        return graph
    for v, variable in enumerate(variables):
        _check_states(variable, [name for name, scope in scopes.items() if v in scope])
    runs = math.prod(graph.counts)
    if runs > MOST_RUNS:
        raise ProgramError(
            f"{runs} combinations of values of the latents that meet are more than {MOST_RUNS}: "
            f"the latents are {names[:8]}{' ...' if len(names) > 8 else ''}"
        )
    return graph._replace(components=_components(graph, scopes, trace))


def _variable(site: dict[str, Any], joined: frozenset[str] = frozenset()) -> Variable:
    """The site as a variable: the cells of plates in `joined` are elements of its vector."""
    frames = sorted(site["cond_indep_stack"], key=lambda f: f.dim)
    plates = tuple((f.name, f.dim, f.size) for f in frames if f.name not in joined)
    return Variable(Link.of(site, plates), plates)


def _joined(
    trace: dict[str, dict], scopes: dict[str, frozenset[int]], variables: list[Variable]
) -> frozenset[str]:
    """Plates whose cells are not independent given the other latents, but meet in some site.

    The site lies outside of the plate (the indicators of a regression's columns), or the plates of
    two latents cross in it: then those of the latent with fewer cells.
    """
    joined: set[str] = set()
    for name, scope in scopes.items():
        own = {f.name for f in trace[name]["cond_indep_stack"]}
        each = {v: {plate for plate, *_ in variables[v].plates} for v in scope}
        joined |= set().union(*each.values()) - own
        for first, second in itertools.combinations(scope, 2):
            apart = each[first] - each[second], each[second] - each[first]
            if all(apart):
                fewer = min((first, second), key=lambda v: math.prod(variables[v].link.shape))
                joined |= apart[0] if fewer == first else apart[1]
    return frozenset(joined)


def _check_states(variable: Variable, sites: list[str]) -> None:
    """Refuse a vector, or latents of a plate that meet, whose joint states cannot be listed."""
    link = variable.link
    if link.num_values ** min(link.size, 64) > MOST_ENTRIES:
        raise ProgramError(
            f"the {link.size} elements of {link.name!r} meet in {sites[-1]!r} and have "
            f"{link.num_values}^{link.size} states together (treewidth {link.size - 1} if each "
            f"interacts with all others), at most {MOST_ENTRIES} are summed: LatentGibbs samples "
            "them, with NUTS for the rest; where few interact, make them the vector of a row of "
            "a plate, if need be of size 1: then they are summed element by element"
        )


def _colours(count: int, scopes: list[frozenset[int]]) -> tuple[int, ...]:
    """Colours such that no two variables of a site have the same."""
    meets: list[set[int]] = [set() for _ in range(count)]
    for scope in scopes:
        for v in scope:
            meets[v] |= scope - {v}
    colours: list[int] = []
    for v in range(count):
        taken = {colours[w] for w in meets[v] if w < v}
        colours.append(next(c for c in range(count) if c not in taken))
    return tuple(colours)


def _components(
    graph: Graph, scopes: dict[str, frozenset[int]], trace: dict[str, dict]
) -> tuple[Component, ...]:
    label = list(range(len(graph.variables)))
    for scope in scopes.values():
        joined = {label[v] for v in scope}
        label = [min(joined) if x in joined else x for x in label]
    components = []
    for one in sorted(set(label)):
        members = tuple(v for v, x in enumerate(label) if x == one)
        mine = {name: scope for name, scope in scopes.items() if scope <= set(members)}
        components.append(_component(graph, members, mine, trace))
    return tuple(components)


def _component(
    graph: Graph,
    members: tuple[int, ...],
    scopes: dict[str, frozenset[int]],
    trace: dict[str, dict],
) -> Component:
    sizes = tuple(graph.variables[v].num_states for v in members)
    plates = tuple(
        frozenset(graph.plates.index(p) for p in graph.variables[v].plates) for v in members
    )
    factors = tuple(
        (name, tuple(sorted(members.index(v) for v in scope))) for name, scope in scopes.items()
    )
    names = [graph.variables[v].link.name for v in members]
    try:
        order = find_order([frozenset(s) for _, s in factors], sizes, plates)
    except CrossedError as error:
        first, second = names[error.variable], names[error.other]
        raise ProgramError(
            f"the latents {first!r} and {second!r} are in plates of which neither holds the other, "
            "and every one of the one meets every one of the other: their sum has no short form; "
            "LatentGibbs or DiscreteHMCGibbs sample them"
        ) from error
    largest = max(math.prod(sizes[v] for v in scope) for scope in order)
    if largest > MOST_ENTRIES:
        widest = max(map(len, order))
        raise ProgramError(
            f"the latents {names[:8]}{' ...' if len(names) > 8 else ''} interact too widely to be "
            f"summed: elimination joins {widest} of them (treewidth {widest - 1}) in a table of "
            f"{largest} entries, at most {MOST_ENTRIES} are held"
        )
    rounds = find_rounds(order, sizes, plates)
    scales = [trace[name]["scale"] for name in names]
    for name, scale in zip(names, scales, strict=True):
        known = all(isinstance(x, int | float | None) for x in (scale, scales[0]))
        if scale is not scales[0] and not (known and (scale or 1.0) == (scales[0] or 1.0)):
            raise ProgramError(
                f"the latents {names[0]!r} and {name!r} meet and are scaled differently (a plate "
                "with subsample_size, handlers.scale): the sum over both has no scale"
            )
    others = [name for name in scopes if name not in names]
    shown = [name for name in others if trace[name]["is_observed"]]
    kept = frozenset.intersection(*plates)
    return Component(
        members,
        Problem(sizes, plates, tuple(n for *_, n in graph.plates), rounds),
        factors,
        next(iter((*shown, *others)), None),
        tuple(plate for i, plate in enumerate(graph.plates) if i in kept),
    )
