"""Finding the discrete latents of a program, and what they interact in: graph, chain or elements.

Which latents a site depends on follows from the operations of the program (provenance). That holds
for all parameters and data; where it says too much (two latents in one array, say) a program is
refused that might have been summed. Of a scan a few steps are followed one after the other: how far
back a site looks is its order. Elements of one array are told apart by the log joint f of a datum
instead: two of them interact if

    f(both changed) − f(one changed) − f(the other changed) + f(neither) ≠ 0

at some of a few random states, parameters and rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, lax, random
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ..numerics.elimination import CrossedError, Problem, find_order, find_rounds
from ..rows.chunks import Rows
from ..types import Arguments
from .anatomy import Anatomy
from .arguments import rows_of
from .elimination import (
    Cells,
    Chain,
    Component,
    Elements,
    Graph,
    Plate,
    Variable,
    first_step,
    instead_of_scan,
    traced,
)
from .gathers import find_reads
from .log_joint import anywhere, few_rows, log_joint
from .probe import OuterTraceError, at_once, probe
from .reader import examined
from .states import MAX_STATES
from .tracing import ProgramError, dependence, is_latent, run_abstractly, unknowns

MOST_RUNS = 1 << 16
"""Runs of the program that read its factors."""
MOST_ENTRIES = 1 << 24
"""Entries of a table that elimination makes, for one cell of the plates."""
NUM_POINTS = 12
"""Random states at which pairs are tested; an interaction that shows at half of them is missed once
in 4096 times, and then the expansion fails its own test."""
NUM_TESTS = 64
"""Random states at which the expansion is tested."""
SHORT = 12
"""Elements of a span that is not tested as a whole. Of two spans of six that all interact alike
the effects cancel at half of the points."""
BLOCK = 128
"""Pairs of spans that are tested at once."""
MOST_ELEMENTS = 2048

Depends = dict[str, frozenset[str]]


def plates_of(site: dict[str, Any]) -> tuple[Plate, ...]:
    """The plates that a site is in, from left to right."""
    frames = sorted(site["cond_indep_stack"], key=lambda f: f.dim)
    return tuple((f.name, f.dim, f.size) for f in frames)


def nesting_of(sites: Sequence[dict[str, Any]]) -> int:
    """The depth of the deepest plate."""
    return max([-dim for site in sites for _, dim, _ in plates_of(site)], default=0)


def same_ratio(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Whether two ratios of scales are known to be equal; None is 1."""
    if first[0] is second[0] and first[1] is second[1]:
        return True
    scales = [1.0 if x is None else x for x in (*first, *second)]
    known = all(isinstance(x, int | float) for x in scales)
    return known and scales[0] * scales[3] == scales[1] * scales[2]


# --- graphs


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
    """

    def read(trace: dict[str, dict]) -> Graph | None:
        latents = [x for x in trace.values() if is_latent(x) and not x.get("_control_flow_done")]
        latents = [x for x in latents if sites is None or x["name"] in sites]
        return _graph(model, (args, kwargs), trace, latents, summed) if latents else None

    return run_abstractly(model, args, kwargs, read)


def _graph(
    model: Callable,
    arguments: Arguments,
    trace: dict[str, dict],
    latents: list[dict],
    summed: bool,
) -> Graph:
    names = [site["name"] for site in latents]
    depends = {x: on for x, on in dependence(model, arguments, trace, names).items() if on}
    sampled = {x: on for x, on in depends.items() if trace[x]["type"] == "sample"}
    scopes = {x: frozenset(map(names.index, on)) for x, on in sampled.items()}
    others = [name for name in scopes if name not in names]
    seen = [x["name"] for x in trace.values() if x["type"] == "sample" and x["is_observed"]]

    def with_joined(joined: set[str]) -> Graph:
        kept = [tuple(p for p in plates_of(site) if p[0] not in joined) for site in latents]
        return Graph(
            variables=tuple(map(Variable.of, latents, kept)),
            plates=tuple(sorted({p for own in kept for p in own}, key=lambda p: (p[1], p[0]))),
            nesting=nesting_of([x for x in trace.values() if "cond_indep_stack" in x]),
            observed=tuple(name for name in others if trace[name]["is_observed"]),
            silent=tuple(name for name in others if not trace[name]["is_observed"]),
            hidden=tuple(x for x in depends if x not in scopes),
            parameters=unknowns(trace.values(), names),
            other=tuple(name for name in seen if name not in scopes),
            scaled=any(site["scale"] is not None for site in latents),
            scopes=tuple(scopes.items()),
        )

    joined = _joined_plates(trace, scopes, latents)
    graph = with_joined(joined)
    if not summed:
        return graph
    reads = find_reads(model, graph, arguments)
    if reads.crossed:
        met = (v for name in reads.crossed for v in scopes[name])
        joined |= {plate for v in met for plate, *_ in graph.variables[v].plates}
        graph = with_joined(joined)
        reads = find_reads(model, graph, arguments)
    free = [trace[name] for name in graph.parameters if trace[name]["type"] == "sample"]
    above = dependence(model, arguments, trace, [x["name"] for x in free])
    held = {plate for site in latents for plate, *_ in plates_of(site)}
    graph = graph._replace(effects=(*graph.silent, *(
        x["name"] for x in free
        if x["name"] not in graph.silent and plates_of(x)
        and (held & {plate for plate, *_ in plates_of(x)} or above[x["name"]] - {x["name"]})
    )))  # fmt: skip
    return _with_components(graph, trace, reads.elements)


def _with_components(
    graph: Graph, trace: dict[str, dict], reads: dict[str, list[frozenset[int]]]
) -> Graph:
    """The graph, with the elements that meet and how they are eliminated."""
    starts = graph.starts
    cells: dict[str, tuple[list[frozenset[int]], tuple[int, ...]]] = {}
    for name, scope in graph.scopes:
        each = reads.get(name, [frozenset(starts[v] for v in scope)])
        number = {own: i for i, own in enumerate(dict.fromkeys(each))}
        cells[name] = list(number), tuple(number[own] for own in each) if name in reads else ()
        _check_states(graph, name, max(number, key=len))
    graph = graph._replace(
        colours=_colours(len(graph.sizes), [own for each, _ in cells.values() for own in each])
    )
    _check_runs(math.prod(graph.counts), len(graph.counts), list(graph.names))
    label = list(range(len(graph.variables)))
    for _, scope in graph.scopes:
        met = {label[v] for v in scope}
        label = [min(met) if x in met else x for x in label]
    # The elements of a group stand in the order of their colours.
    ordered = {
        name: Cells(name, tuple(tuple(sorted(x, key=graph.colours.__getitem__)) for x in own), of)
        for name, (own, of) in cells.items()
    }
    components = []
    for one in sorted(set(label)):
        members = tuple(v for v, x in enumerate(label) if x == one)
        mine = tuple(ordered[name] for name, scope in graph.scopes if scope <= set(members))
        components.append(_component(graph, members, mine, trace))
    return graph._replace(components=tuple(components))


def _check_runs(runs: int, power: int, names: list[str]) -> None:
    """Refuse a program that would run on too many combinations of values.

    :param power: of how many values at once.
    """
    if runs > MOST_RUNS:
        fitting = int(MOST_RUNS ** (1 / power) + 1e-9)
        raise ProgramError(
            f"the latents {names[:8]}{' ...' if len(names) > 8 else ''} meet in {runs} "
            f"combinations of values ({power} at a time), and {MOST_RUNS} are the most: "
            f"{fitting} values each fit, for counts up_to(model, {fitting - 1}); or lift the cap, "
            f"latentbits.inference.reading.survey.MOST_RUNS = {runs}, if there is memory for it"
        )


def _joined_plates(
    trace: dict[str, dict], scopes: dict[str, frozenset[int]], latents: list[dict]
) -> set[str]:
    """Plates whose cells are not independent given the other latents, but meet in some site.

    The site lies outside of the plate (the indicators of a regression's columns, the classes of
    items in a plate of answers), or the plates of two latents cross in it: then those of the latent
    with fewer cells. Their cells are elements of one variable.
    """
    joined: set[str] = set()
    plates = [{name for name, *_ in plates_of(site)} for site in latents]
    sizes = [math.prod(site["fn"].shape()) for site in latents]
    for name, scope in scopes.items():
        own = {plate for plate, *_ in plates_of(trace[name])}
        joined |= set().union(*(plates[v] for v in scope)) - own
        for first, second in itertools.combinations(scope, 2):
            apart = plates[first] - plates[second], plates[second] - plates[first]
            if all(apart):
                joined |= apart[0] if sizes[first] <= sizes[second] else apart[1]
    return joined


def _check_states(graph: Graph, site: str, scope: frozenset[int]) -> None:
    """Refuse a site that reads so many elements at once that their states cannot be listed."""
    states = math.prod(graph.sizes[e] for e in scope)
    if states > MOST_ENTRIES:
        whose = [x for x, i in zip(graph.variables, graph.starts, strict=True)
                 if scope & set(range(i, i + x.size))]  # fmt: skip
        raise ProgramError(
            f"a cell of {site!r} reads {len(scope)} elements of {[x.name for x in whose]} at "
            f"once, which have {states} states together (treewidth {len(scope) - 1}), at most "
            f"{MOST_ENTRIES} are summed: LatentGibbs samples them, with NUTS for the rest; where "
            "few interact, make them the vector of a row of a plate, if need be of size 1: then "
            "they are summed element by element"
        )


def _colours(count: int, scopes: list[frozenset[int]]) -> tuple[int, ...]:
    """Colours such that no two elements of a scope have the same."""
    met: list[set[int]] = [set() for _ in range(count)]
    for scope in scopes:
        for e in scope:
            met[e] |= scope
    colours: list[int] = []
    for e in range(count):
        taken = {colours[w] for w in met[e] if w < e}
        colours.append(next(c for c in range(count) if c not in taken))
    return tuple(colours)


def _component(
    graph: Graph, members: tuple[int, ...], factors: tuple[Cells, ...], trace: dict[str, dict]
) -> Component:
    variables = [graph.variables[v] for v in members]
    names = [x.name for x in variables]
    starts = [graph.starts[v] for v in members]
    elements = [i + e for i, x in zip(starts, variables, strict=True) for e in range(x.size)]
    owner = [x for x in variables for _ in range(x.size)]
    place = {e: i for i, e in enumerate(elements)}
    sizes = tuple(graph.sizes[e] for e in elements)
    plates = tuple(frozenset(map(graph.plates.index, x.plates)) for x in owner)
    scopes = [frozenset(place[e] for e in own) for cells in factors for own in cells.scopes]
    try:
        order = find_order(scopes, sizes, plates)
    except CrossedError as error:
        first, second = owner[error.variable].name, owner[error.other].name
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
            f"{largest} entries, at most {MOST_ENTRIES} are held; LatentGibbs samples them, with "
            "NUTS for the rest"
        )
    held = [plate for i, plate in enumerate(graph.plates) if i in frozenset.intersection(*plates)]
    for name in names:
        if not same_ratio((trace[name]["scale"], None), (trace[names[0]]["scale"], None)):
            raise ProgramError(
                f"the latents {names[0]!r} and {name!r} meet and are scaled differently (a plate "
                "with subsample_size, handlers.scale): the sum over both has no scale"
            )
        if np.ndim(trace[name]["scale"]) and set(plates_of(trace[name])) - set(held):
            raise ProgramError(
                f"each row of {name!r} has a weight of its own, and rows meet: their sum has no "
                "weight; leave the weights out, or weigh what is observed"
            )
    others = [cells.name for cells in factors if cells.name not in names]
    shown = [name for name in others if trace[name]["is_observed"]]
    grid, rounds = tuple(n for *_, n in graph.plates), find_rounds(order, sizes, plates)
    return Component(
        members,
        tuple(elements),
        Problem(sizes, plates, grid, rounds),
        factors,
        next(iter((*shown, *others)), None),
        tuple(held),
    )


# --- chains


def find_chain(model: Callable, args: tuple, kwargs: dict) -> Chain | None:
    """The chain of a program; None if no scan of it has discrete latents."""
    scans: list[tuple] = []

    def read(trace: dict[str, dict]) -> Chain | None:
        if len(scans) > 1:
            raise ProgramError(
                f"the program has {len(scans)} scans over discrete latents: one can be summed"
            )
        return _chain(model, (args, kwargs), trace, scans[0]) if scans else None

    watched = instead_of_scan(model, lambda *scan: scans.append(scan))
    return run_abstractly(watched, args, kwargs, read)


def _chain(
    model: Callable,
    arguments: Arguments,
    trace: dict[str, dict],
    scan: tuple,
) -> Chain:
    _, init, xs, length, reverse = scan
    step = traced(*first_step(scan))[0]
    sites = {name: site for name, site in step.items() if site["type"] == "sample"}
    latents = [site for site in sites.values() if is_latent(site)]
    outer = {x: site for x, site in trace.items() if not site.get("_control_flow_done")}
    start = [site for site in outer.values() if is_latent(site)]
    # The plates that hold all latents: a sequence for each of their cells.
    held = [set(plates_of(site)) for site in (*latents, *start)]
    plates = tuple(x for x in plates_of(latents[0]) if all(x in own for own in held))
    chain = Chain(
        steps=(),
        start=(),
        plates=plates,
        nesting=nesting_of([*sites.values(), *start]),
        parameters=unknowns(outer.values(), [x["name"] for x in start]),
        hidden=tuple(set(step) - set(sites)),
        length=jax.tree.leaves(xs)[0].shape[0] if length is None else length,
        reverse=reverse,
    )
    if not any(site["is_observed"] for site in sites.values()):
        return chain  # a simulation: what is not observed may be more than the latents
    for name, site in sites.items():
        if not site["is_observed"] and not is_latent(site):
            raise ProgramError(
                f"site {name!r} of the scan is continuous and unobserved beside the "
                f"discrete {latents[0]['name']!r}: a chain has discrete latents only"
            )
    chain = chain._replace(
        steps=tuple(Variable.of(site, plates) for site in latents),
        start=tuple(Variable.of(site, plates) for site in start),
    )
    num_leaves = len(jax.tree.leaves(init))
    steps, depends = _step_dependence(chain, model, arguments, num_leaves + 2)
    chain = chain._replace(
        orders=tuple(_orders(steps[-1], num_leaves).items()),
        steady=tuple(name for name, on in steps[-1].items() if "input" not in on),
    )
    _check_size(chain)
    _check_scales(chain, sites, trace)
    returned = [name for name, on in depends.items() if any(x.startswith("step ") for x in on)]
    for name in returned:
        if outer[name]["type"] == "sample":
            raise ProgramError(
                f"site {name!r} depends on what the scan returns, and so on its latents "
                f"{[x.name for x in chain.steps]}: observe it inside the scan"
            )
    first = {x.name for x in chain.start}
    if any(on & first for later in steps[1:] for on in later.values()):
        raise ProgramError(
            f"the latents {[x.name for x in chain.start]} before the scan act on more than its "
            "first step (a mixture of chains): only the state before the first step can be "
            "summed with a chain; make them part of the state of each step"
        )
    begun = [name for name, on in depends.items() if on & first and name not in first]
    starters = tuple(name for name in begun if outer[name]["type"] == "sample")
    orders = dict(chain.orders)
    for site in (*(sites[name] for name in orders), *(outer[name] for name in starters)):
        _check_plates(site, plates)
    seen = [x["name"] for x in trace.values() if x["type"] == "sample" and x["is_observed"]]
    inside = tuple(name for name in sites if name in orders and sites[name]["is_observed"])
    return chain._replace(
        hidden=(*chain.hidden, *(x for x in (*begun, *returned) if x not in starters)),
        observed=(*inside, *starters),
        starters=starters,
        other=tuple(name for name in seen if name not in (*inside, *starters)),
        effects=_effects(chain, sites, outer, depends),
    )


def _step_dependence(
    chain: Chain, model: Callable, arguments: Arguments, num_steps: int
) -> tuple[list[Depends], Depends]:
    """What the sites of the first steps of a scan, and those outside of it, depend on.

    That is "step T", the latents of a step; "input", all else that the first step is called with;
    and the unobserved sites outside by their names.
    """
    steps: list[list[str]] = []

    def follow(*scan: Any) -> tuple[Any, Any]:
        f, carry, x = first_step(scan)
        called = numpyro.param("input", jnp.array(True))
        # A choice between two equal values depends on what it is made by.
        carry, x = jax.tree.map(lambda leaf: jnp.where(called, leaf, leaf), (carry, x))
        steps.clear()
        y = None
        for t in range(num_steps):
            state = numpyro.param(f"step {t}", jnp.zeros(1, int))
            own = handlers.substitute(f, data=chain.values(chain.steps, state))
            sites, (carry, y) = traced(own, carry, x)
            steps.append([name for name, site in sites.items() if site["type"] == "sample"])
            for name in steps[-1]:
                log_prob = chain.log_prob(sites[name], sites[name]["scale"])
                numpyro.deterministic(f"step {t} {name}", log_prob)
        long = lambda leaf: jnp.broadcast_to(leaf, (chain.length, *jnp.shape(leaf)))  # noqa: E731
        return carry, jax.tree.map(long, y)

    def read(trace: dict[str, dict]) -> Depends:
        return dependence(program, arguments, trace, unknowns(trace.values(), ()))

    program = instead_of_scan(model, follow)
    depends = run_abstractly(program, *arguments, read)
    inside = [{name: depends.pop(f"step {t} {name}") for name in x} for t, x in enumerate(steps)]
    return inside, depends


def _orders(depends: Depends, num_leaves: int) -> dict[str, int]:
    """How many steps back each site of a late step looks; those that depend on no latent are left
    out.

    :param num_leaves: of what a step carries. What looks further back goes round in them.
    """
    orders = {}
    for name, on in depends.items():
        steps = [int(x.split()[1]) for x in on if x.startswith("step ")]
        if steps:
            orders[name] = num_leaves + 1 - min(steps)
            if orders[name] > num_leaves:
                raise ProgramError(
                    f"site {name!r} of the scan depends on the latents of all steps before it: "
                    "carry the latents themselves, each as a leaf of its own, and nothing that "
                    "adds up over them"
                )
    return orders


def _effects(
    chain: Chain, sites: dict[str, dict], outer: dict[str, dict], depends: Depends
) -> tuple[str, ...]:
    """The sites outside the scan that are no parameters: random effects.

    Each has a value for every sequence; or for every cell of another plate of a step, and a
    distribution that depends on other unobserved sites.
    """
    sequences = {name for name, *_ in chain.plates}
    every = {name for site in sites.values() for name, *_ in plates_of(site)}
    effects = []
    for name in chain.parameters:
        if outer[name]["type"] == "sample":
            plates = {plate for plate, *_ in plates_of(outer[name])}
            others = (depends[name] & set(chain.parameters)) - {name}
            if plates & sequences or (plates & every and others):
                effects.append(name)
    return tuple(effects)


def _check_size(chain: Chain) -> None:
    power = chain.order + 1
    _check_runs(chain.num_states**power, power, [x.name for x in chain.steps])
    first = math.prod(x.num_states for x in chain.start)
    if chain.start and (first != chain.num_states or chain.order > 1):
        raise ProgramError(
            f"the latents {[x.name for x in chain.start]} before the scan have {first} states and "
            f"those of a step {chain.num_states}, in a chain of order {chain.order}: a start is "
            "the state before the first step, with as many states, in a chain of order 1"
        )


def _check_plates(site: dict[str, Any], plates: tuple[Plate, ...]) -> None:
    missing = [plate[0] for plate in plates if plate not in plates_of(site)]
    if missing:
        raise ProgramError(
            f"site {site['name']!r} depends on the latents of all of the plate {missing[0]!r} at "
            "once: put it inside that plate, as they are"
        )


def _check_scales(chain: Chain, sites: dict[str, dict], trace: dict[str, dict]) -> None:
    """What scales the scan from outside must scale all of it alike."""
    ratios = {name: (trace[name]["scale"], sites[name]["scale"]) for name, _ in chain.orders}
    for name, ratio in ratios.items():
        if not same_ratio(ratio, ratios[chain.orders[0][0]]):
            raise ProgramError(
                f"site {name!r} of the scan is scaled from outside the scan, and others are not: "
                "scale it inside (numpyro.handlers.scale in the step)"
            )


# --- elements of vectors


def find_elements(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict, hidden: tuple[str, ...] = ()
) -> Elements | None:
    """The elements of the latents of a datum, if they interact, sparsely; None: a table is as good.

    A program whose states are too many for a table is refused, with the treewidth named.
    """
    num_elements = sum(x.size for x in anatomy.latents)
    if anatomy.drawn or not anatomy.observed or num_elements > MOST_ELEMENTS:
        return None
    try:
        rows = rows_of(anatomy, args, kwargs)
        if any(isinstance(x, jax.core.Tracer) for x in rows.rest):
            return None
    except ProgramError:
        return None
    try:
        elements = examined(_examine, model, anatomy, rows)
    except OuterTraceError:  # its form cannot be tested, and all states are summed
        return None
    if elements is None:
        return None
    elements = elements._replace(anatomy=anatomy, hidden=hidden)
    if elements.num_runs <= MOST_RUNS:
        return elements
    if math.prod(elements.sizes) > MAX_STATES:
        raise ProgramError(
            f"the {num_elements} latents of a datum, {list(anatomy.names)}, interact too widely to "
            f"be summed: elimination joins {elements.treewidth + 1} of them (treewidth "
            f"{elements.treewidth}); TruncatedEM, marginal(model, AtMost(k)) and LatentGibbs do "
            "without the sum over all"
        )
    return None


def _examine(model: Callable, anatomy: Anatomy, rows: Rows) -> Elements | None:
    num_rows = min(rows.num_data, 2)
    with jax.enable_x64(True), validation_enabled(False):  # the rows are stand-ins
        leaves, few = few_rows(model, anatomy, rows, num_rows)
        if few.num_data != num_rows:
            return None  # its plate does not follow its data
        elements = Elements(few, ())
        sizes = elements.sizes
        pairs = _interacting(model, few, rows, np.array(sizes), leaves)
        if not pairs:
            return None
        plates = (frozenset({0}),) * len(sizes)
        scopes = find_order(pairs, sizes, plates)
        elements = elements._replace(scopes=scopes, rounds=find_rounds(scopes, sizes, plates))
        if elements.num_runs > MOST_RUNS:
            return elements
        draws = [(np.int32(i), leaves) for i in range(2)]
        errors = probe(partial(_error, model, elements, rows), draws)
        return elements if all(error <= 1e-9 for error in errors) else None


Span = tuple[int, int]


def _interacting(
    model: Callable, anatomy: Anatomy, rows: Rows, sizes: np.ndarray, leaves: Any
) -> list[frozenset[int]]:
    """The pairs of elements that interact: spans of them are tested, and split if they do."""
    place = np.arange(len(sizes))
    run = at_once(partial(_differences, model, anatomy, rows, sizes))

    def test(blocks: list[tuple[Span, Span]]) -> list[tuple[Span, Span]]:
        """Those pairs of spans that interact."""
        found = []
        for start in range(0, len(blocks), BLOCK):
            some = blocks[start : start + BLOCK]
            ends = np.array(some)  # (blocks, 2, 2)
            sets = (place >= ends[..., :1]) & (place < ends[..., 1:])
            sets = np.pad(sets, ((0, BLOCK - len(some)), (0, 0), (0, 0)))
            each = run(sets[:, 0], sets[:, 1], leaves)[: len(some)]
            found += [x for x, change in zip(some, each, strict=True) if not change <= 1e-9]  # NaN
        return found

    def split(span: Span) -> list[Span]:
        """In halves; a short one in single elements, since what its elements do may cancel."""
        first, last = span
        if last - first < SHORT:
            return [(i, i + 1) for i in range(first, last)]
        middle = (first + last) // 2
        return [(first, middle), (middle, last)]

    pairs: list[frozenset[int]] = []
    whole: list[Span] = [(0, len(sizes))]
    blocks: list[tuple[Span, Span]] = []
    while whole or blocks:
        parts = [split(span) for span in whole if span[1] - span[0] > 1]
        whole = [span for some in parts for span in some]
        blocks += [pair for some in parts for pair in itertools.combinations(some, 2)]
        found, blocks = test(blocks), []
        for first, second in found:
            if first[1] - first[0] == second[1] - second[0] == 1:
                pairs.append(frozenset((first[0], second[0])))
            else:
                blocks += itertools.product(split(first), split(second))
    return pairs


def _differences(
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    sizes: np.ndarray,
    first: Array,
    second: Array,
    leaves: Any,
) -> Array:
    """How much pairs of sets of elements interact, (pairs,), relative to the log joint.

    :param first: (pairs, elements), as is `second`.
    """
    arguments = rows.join(leaves)

    def at(seed: Array) -> Array:
        key_params, key_state, key_other = random.split(random.key(seed), 3)
        params = anywhere(model, anatomy, key_params, arguments)
        state = random.randint(key_state, sizes.shape, 0, sizes)
        other = (state + random.randint(key_other, sizes.shape, 1, jnp.maximum(sizes, 2))) % sizes
        changed = jnp.concatenate([jnp.zeros_like(first[:1]), first, second, first | second])
        states = jnp.where(changed, other, state)[:, None] + anatomy.lowest
        log_joints = log_joint(model, anatomy, params, states, arguments)
        one, two, both = jnp.split(log_joints[1:] - log_joints[0], 3)
        return (jnp.abs(both - one - two) / (1.0 + jnp.abs(both))).max(1)

    return lax.map(at, jnp.arange(NUM_POINTS)).max(0)


def _error(model: Callable, elements: Elements, rows: Rows, seed: Array, leaves: Any) -> Array:
    """The error of the expansion on random states, relative to the log joint."""
    arguments, sizes = rows.join(leaves), np.array(elements.sizes)
    key_params, key_state, key_rate = random.split(random.key(100 + seed), 3)
    params = anywhere(model, elements.anatomy, key_params, arguments)
    states = random.randint(key_state, (NUM_TESTS, len(sizes)), 0, sizes)
    rate = random.uniform(key_rate, (NUM_TESTS, 1))
    kept = random.uniform(random.fold_in(key_rate, 1), states.shape) < rate
    states = jnp.where(kept, states, sizes - 1).at[0].set(sizes - 1)
    joint = partial(log_joint, model, elements.anatomy, params, arguments=arguments)
    table = joint(lax.optimization_barrier(jnp.asarray(elements.states())[:, None]))
    base, factors = elements.expansion(table)
    read = jnp.broadcast_to(base, (NUM_TESTS, len(base)))
    for scopes, tables in factors:
        each = np.arange(len(scopes)), *(states[:, scope] for scope in scopes.T)
        read = read + tables[each].sum(1)
    direct = joint(states[:, None] + elements.anatomy.lowest)
    return jnp.abs(read - direct).max() / (1.0 + jnp.abs(direct - base).max())
