"""Which way the discrete latents of a program are summed: as a table, along a graph, as a chain.

    table      the joint states of the latents of one data plate, each datum for itself
    elements   those of vectors, where few elements interact
    graph      latents that are shared by all rows or lie in several plates, continuous sites or
               observations of outer plates that depend on them, many latents that meet in few sites
    chain      latents of a scan

A table is the rule: the forms of a log joint are read off it. The others are for what it cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .anatomy import Anatomy, ProgramError, inspect, values_of
from .elimination import Chain, Elements, Graph
from .handlers import states as at_states
from .plan import find_layers
from .states import AllStates, StateSet
from .survey import find_chain, find_elements, find_graph
from .tracing import is_latent, run_abstractly

FEW_STATES = 1 << 12
"""Up to so many joint states a table is made without asking whether a graph has a smaller one."""
MANY_STATES = 1 << 16
"""From here on it is worth the seconds to ask which elements of vectors interact."""


class _Facts(NamedTuple):
    """What shapes and plates say of the discrete latents."""

    scanned: bool
    names: tuple[str, ...]  # those with a finite number of values, outside of scans
    common: tuple[str, ...]  # plates that hold all of them
    around: bool  # whether something is in a plate around the latents', or discrete and elsewhere
    after: bool  # whether something observed outside of those plates comes after a latent
    continuous: bool  # whether something continuous is unobserved where latents are, or after them
    num_states: float  # joint states of one cell of the common plates
    deterministic: tuple[str, ...] = ()  # sites in those plates


def find_way(
    model: Callable,
    args: tuple,
    kwargs: dict,
    states: StateSet = AllStates(),
    sites: Sequence[str] | None = None,
    plate: str | None = None,
) -> Chain | Graph | Elements | None:
    """The chain, graph or elements along which the latents are summed; None: by a table.

    >>> from latentbits.models import bernoulli_mixture
    >>> import jax.numpy as jnp
    >>> find_way(bernoulli_mixture, (jnp.zeros((5, 2)),), {"num_components": 3}) is None
    True
    """
    facts = run_abstractly(model, args, kwargs, lambda trace: _facts(trace, sites, plate))
    if facts.scanned:
        chain = find_chain(model, args, kwargs)
        if chain is not None:
            return chain
    if not facts.names:
        return None
    needed = len(facts.common) != 1 or facts.around
    if not isinstance(states, AllStates):
        if needed:
            raise ProgramError(
                f"the latents {list(facts.names)} do not lie in one data plate: a table of states "
                "is chosen for the latents of a datum"
            )
        return None
    if needed:
        return find_graph(model, args, kwargs, facts.names)
    if facts.continuous or facts.after:
        graph = find_graph(model, args, kwargs, facts.names, summed=False)
        if graph is not None and _needed(model, args, kwargs, graph, facts.common[0]):
            return find_graph(model, args, kwargs, facts.names)
    if len(facts.names) > 1 and facts.num_states > FEW_STATES:
        anatomy = inspect(model, args, kwargs, plate=plate, sites=sites).discrete
        if find_layers(model, anatomy, args, kwargs) is not None:
            return None  # each layer is summed given the one above it, in chunks of rows
        try:
            return find_graph(model, args, kwargs, facts.names)
        except ProgramError:  # it may have a form, and a table says what it lacks
            pass
    if facts.num_states > MANY_STATES and not facts.continuous:
        anatomy = inspect(model, args, kwargs, plate=plate, sites=sites).discrete
        return find_elements(model, anatomy, args, kwargs, facts.deterministic)
    return None


def find_table(
    model: Callable, args: tuple, kwargs: dict, sites: Sequence[str] | None, plate: str | None
) -> tuple[Anatomy, Anatomy]:
    """The program with the latents of a table alone, and with all latents of its data plate."""
    whole = inspect(model, args, kwargs, plate=plate, sites=sites)
    if sites is None:
        return whole.discrete, whole
    return whole, inspect(model, args, kwargs, plate=plate)


def _needed(model: Callable, args: tuple, kwargs: dict, graph: Graph, plate: str) -> bool:
    """Whether a table of states would not do for the latents of this plate.

    They meet outside of it, a continuous site depends on them, or one gets the axis of the states
    though it depends on none: what `LocScaleReparam` makes of a site whose location does.
    """
    if graph.silent or all(name != plate for name, *_ in graph.plates):
        return True
    anatomy = inspect(model, args, kwargs, sites=graph.names, plate=plate)
    twice = anatomy.unpack(jnp.zeros((2, 1, anatomy.num_bits), jnp.int32))

    def read(trace: dict[str, dict]) -> bool:
        free = (x for x in trace.values() if x["type"] == "sample" and not x["is_observed"])
        batches = [x["fn"].batch_shape for x in free if x["name"] not in graph.names]
        return any(len(batch) > anatomy.nesting for batch in batches)

    return run_abstractly(at_states(model, twice), args, kwargs, read)


def _facts(trace: dict[str, dict], sites: Sequence[str] | None, plate: str | None) -> _Facts:
    every = [x for x in trace.values() if is_latent(x)]
    scanned = any(x.get("_control_flow_done") for x in every)
    latents = [
        x for x in every
        if not x.get("_control_flow_done") and values_of(x["fn"]) is not None
        and (sites is None or x["name"] in sites)
        and (plate is None or any(f.name == plate for f in x["cond_indep_stack"]))
    ]  # fmt: skip
    if not latents or not any(x["type"] == "sample" and x["is_observed"] for x in trace.values()):
        return _Facts(scanned, (), (), False, False, False, 1.0)
    frames = [{f.name: f for f in x["cond_indep_stack"]} for x in latents]
    common = set(frames[0]).intersection(*frames)
    edge = min((frames[0][name].dim for name in common), default=0)

    def within(x: dict) -> bool:
        return any(f.name in common for f in x["cond_indep_stack"])

    sampled = [x for x in trace.values() if x["type"] == "sample"]
    inside = [x for x in sampled if within(x)]
    elsewhere = not all(map(within, every))
    around = any(f.dim < edge for x in inside for f in x["cond_indep_stack"])
    later = sampled[sampled.index(latents[0]) :]
    after = any(x["is_observed"] and not within(x) for x in later)
    continuous = any(not (x["is_observed"] or x["fn"].support.is_discrete) for x in inside)
    logs = 0.0
    for x, own in zip(latents, frames, strict=True):
        cells = math.prod(own[name].size for name in common)
        size = math.prod(x["fn"].batch_shape) * math.prod(x["fn"].event_shape) // cells
        values = values_of(x["fn"])
        assert values is not None
        logs += size * math.log2(len(values))
    return _Facts(
        scanned, tuple(x["name"] for x in latents), tuple(common), around or elsewhere, after,
        continuous, 2.0 ** min(logs, 1000.0),
        tuple(x["name"] for x in trace.values() if x["type"] == "deterministic" and within(x)),
    )  # fmt: skip
