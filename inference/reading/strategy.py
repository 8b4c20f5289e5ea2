"""How the discrete latents of a program are summed: the cheapest way that is right.

    table      the joint states of the latents of one data plate, each datum for itself
    elements   those of vectors, where few elements interact
    graph      latents that are shared by all rows or lie in several plates, continuous sites or
               observations of outer plates that depend on them, many latents that meet in few sites
    chain      latents of a scan

A table is the rule: the forms of a log joint are read off it. The others are for what it cannot do.
The states of a table are summed in one of these ways (`make_plan`):

    layers     latents that only other latents hang on are summed first, layer by layer: rows meet
               the states of the lowest layer alone (a noisy-OR network, or any other chain)
    bits       a log joint that is linear or quadratic in the bits: a few states stand for all
    listed     every state: one matrix product where rows enter by their cells alone
    by chunk   rows that have distributions or states of their own: the program runs on a chunk

Which sites hang on which, and whether rows differ, is seen in the shapes of abstract runs. Whether
the log joint is linear or quadratic is tested on random rows and states, once for each program
(`inference.reading.log_joint.find_structure`), where there is more to gain than the test costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from ..rows.chunks import Rows
from .anatomy import Anatomy, ProgramError, inspect, values_of
from .arguments import every_row, rows_of
from .elimination import Chain, Elements, Graph
from .forms import BitsForm, product_floats, unwrapped
from .gathers import rows_meet
from .handlers import states as at_states
from .handlers import table_of
from .log_joint import Structure, find_structure, masks_are_alike
from .probe import OuterTraceError
from .reader import examined, follows
from .state_sums import Part, of_one_row, scale_ratio, within_rows
from .states import AllStates, Given, StateSet
from .survey import find_chain, find_elements, find_graph
from .tracing import is_latent, run_abstractly

FEW_STATES = 1 << 12
"""Up to so many joint states a table is made without asking whether a graph has a smaller one."""
MANY_STATES = 1 << 16
"""From here on it is worth the seconds to ask which elements of vectors interact."""
WORTH_A_TEST = 1 << 22
"""Multiplications that a form must save in one evaluation: its test takes a second or so."""
MOST_PAIRS = 1 << 26
"""States of a layer times those of the next: a second."""
MOST_PRODUCTS = 1 << 24
"""Numbers of a table of states × pairs of bits."""


class LatentFacts(NamedTuple):
    """What shapes and plates say of the discrete latents."""

    scanned: bool
    names: tuple[str, ...]  # those with a finite number of values, outside of scans
    common: tuple[str, ...]  # plates that hold all of them
    around: bool  # whether something is in a plate around the latents', or discrete and elsewhere
    after: bool  # whether something observed outside of those plates comes after a latent
    later: bool  # whether a latent comes after something observed in those plates
    continuous: bool  # whether something continuous is unobserved where latents are, or after them
    num_states: float  # joint states of one cell of the common plates
    deterministic: tuple[str, ...] = ()  # sites in those plates


def find_elimination(
    model: Callable,
    args: tuple,
    kwargs: dict,
    states: StateSet = AllStates(),
    sites: Sequence[str] | None = None,
    plate: str | None = None,
) -> Chain | Graph | Elements | None:
    """The chain, graph or elements along which the latents are summed; None: by a table."""
    facts = run_abstractly(model, args, kwargs, lambda trace: latent_facts(trace, sites, plate))
    if facts.scanned:
        chain = find_chain(model, args, kwargs)
        if chain is not None:
            return chain
    if not facts.names:
        return None
    needed = len(facts.common) != 1 or facts.around
    if not (needed or facts.later):
        anatomy = inspect(model, args, kwargs, plate=facts.common[0])
        needed = rows_meet(model, anatomy, args, kwargs)
    if not isinstance(states, AllStates):
        if needed:
            raise ProgramError(
                f"the latents {list(facts.names)} do not lie in one data plate, or rows read those "
                "of other rows: a table of states is chosen for the latents of a datum; "
                "marginal(model) sums over all states"
            )
        return None
    if needed or facts.later:
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


def latent_facts(
    trace: dict[str, dict], sites: Sequence[str] | None = None, plate: str | None = None
) -> LatentFacts:
    """What shapes and plates say of the discrete latents, or of those named or in one plate."""
    every = [x for x in trace.values() if is_latent(x)]
    scanned = any(x.get("_control_flow_done") for x in every)
    latents = [
        x for x in every
        if not x.get("_control_flow_done") and values_of(x["fn"]) is not None
        and (sites is None or x["name"] in sites)
        and (plate is None or any(f.name == plate for f in x["cond_indep_stack"]))
    ]  # fmt: skip
    if not latents or not any(x["type"] == "sample" and x["is_observed"] for x in trace.values()):
        return LatentFacts(scanned, (), (), False, False, False, False, 1.0)
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
    last = max((i for i, x in enumerate(inside) if is_latent(x)), default=0)
    loop = any(x["is_observed"] for x in inside[:last])
    continuous = any(not (x["is_observed"] or x["fn"].support.is_discrete) for x in inside)
    logs = 0.0
    for x, own in zip(latents, frames, strict=True):
        cells = math.prod(own[name].size for name in common)
        size = math.prod(x["fn"].batch_shape) * math.prod(x["fn"].event_shape) // cells
        values = values_of(x["fn"])
        assert values is not None
        logs += size * math.log2(len(values))
    return LatentFacts(
        scanned, tuple(x["name"] for x in latents), tuple(common), around or elsewhere, after,
        loop, continuous, 2.0 ** min(logs, 1000.0),
        tuple(x["name"] for x in trace.values() if x["type"] == "deterministic" and within(x)),
    )  # fmt: skip


# --- tables of states


class Plan(NamedTuple):
    """What `marginal` runs the program on, and what it makes of that."""

    layers: tuple[Anatomy, ...]  # from the top; a single one where all latents are listed together
    tables: tuple[Array, ...]  # states of each, (S, num_data or 1, bits)
    bits: BitsForm | None  # which states the table stands for
    by_chunk: Rows | None  # the rows, if the program is run on chunks of them
    outline: Outline


class Outline(NamedTuple):
    """What the shapes of an abstract run on two states say."""

    columns: int  # multiplications of a row for a state
    alike: bool  # whether rows differ in nothing but the values of their cells
    affine: bool  # whether the log joint is also affine in these


def make_plan(
    model: Callable,
    anatomy: Anatomy,
    alone: bool,
    chosen: StateSet,
    structure: Structure | None,
    args: tuple,
    kwargs: dict,
) -> Plan:
    """The cheapest way to sum the latents of `anatomy` out.

    :param alone: whether nothing else in the plate is unobserved.
    :param structure: the form of the log joint in the bits, if it is known.
    """
    outline = outline_of(model, anatomy, args, kwargs)
    if isinstance(chosen, AllStates) and outline.alike:
        layers = find_layers(model, anatomy, args, kwargs)
        if layers is not None:
            tables = tuple(table_of(layer, chosen) for layer in layers)
            _check_pairs(layers, tables)
            return Plan(layers, tables, None, None, outline)
    read = _read_by_row(model, anatomy, args, kwargs) if alone and anatomy.observed else None
    bits = by_chunk = None
    if read is not None and anatomy.binary:
        bits = _bits(*read, chosen, structure, outline.columns)
    if bits is not None:
        table = jnp.asarray(bits.table, jnp.int32)[:, None]
    else:
        table = table_of(anatomy, chosen)
    if read is not None and read[0] is model:
        # Whatever all rows share is summed in chunks already.
        own = not outline.affine or table.shape[1] > 1
        floats = len(table) * anatomy.num_data * outline.columns
        if own and floats > product_floats() and follows(*read):
            by_chunk = read[2]
    return Plan((anatomy,), (table,), bits, by_chunk, outline)


def _check_pairs(layers: tuple[Anatomy, ...], tables: tuple[Array, ...]) -> None:
    for (above, below), (first, second) in zip(pairwise(layers), pairwise(tables), strict=True):
        if len(first) * len(second) > MOST_PAIRS:
            raise ProgramError(
                f"{above.names} and {below.names} have {len(first)} × {len(second)} states "
                f"together, at most {MOST_PAIRS} are summed: take fewer units"
            )


def _read_by_row(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict
) -> tuple[Callable, Anatomy, Rows] | None:
    """The program with its rows; if its plate draws them itself, with all of them."""
    for program in (model, every_row(model)) if anatomy.drawn else (model,):
        try:
            if program is not model:
                anatomy = inspect(program, args, kwargs, sites=anatomy.names, plate=anatomy.plate)
            return program, anatomy, rows_of(anatomy, args, kwargs)
        except ProgramError:
            continue
    return None


# --- forms in the bits


def _bits(
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    chosen: StateSet,
    structure: Structure | None,
    columns: int,
) -> BitsForm | None:
    """The form in the bits, if it holds and costs less than every state."""
    num_bits, every = anatomy.num_bits, isinstance(chosen, AllStates)
    count = 2.0**num_bits if every else len(chosen.table((2,) * num_bits))
    own = isinstance(chosen, Given) and chosen.states.ndim == 3

    def saved(structure: Structure) -> float:
        # Of states that only one row has, the program is run anew: a product for each.
        listed = count * columns * (num_bits if own else 1)
        return rows.num_data * (listed - cost(structure, num_bits, count, columns, own))

    if structure is None:
        known = not any(isinstance(x, jax.core.Tracer) for x in rows.rest)
        best = Structure.LINEAR if every else Structure.SHARED
        if not known or saved(best) < WORTH_A_TEST:
            return None
        structure = _tested(model, anatomy, rows)
    if structure is Structure.GENERAL or saved(structure) <= 0:
        return None
    pairs = num_bits * (num_bits - 1) // 2
    if structure is Structure.PER_DATUM and (own or count * pairs > MOST_PRODUCTS):
        return None
    linear = structure is Structure.LINEAR
    listed = None if linear and every else chosen.table((2,) * num_bits)
    return BitsForm(num_bits, listed, linear=linear, shared=structure.shared)


def _tested(model: Callable, anatomy: Anatomy, rows: Rows) -> Structure:
    try:
        return examined(find_structure, model, anatomy, rows)
    except (ProgramError, OuterTraceError):  # its plate does not follow its data, or no test runs
        return Structure.GENERAL


def cost(
    structure: Structure, num_bits: int, num_states: float, columns: int, own: bool = False
) -> float:
    """Multiplications of a row by a form in the bits.

    :param own: whether rows have states of their own.
    """
    few = 1 + num_bits
    if structure is Structure.PER_DATUM:
        few += num_bits * (num_bits - 1) // 2
    if structure is Structure.LINEAR and num_states == 2.0**num_bits:
        return few * columns + num_bits  # a product over the bits
    each = num_bits * num_bits if own and structure is not Structure.LINEAR else few
    return few * columns + each * num_states


class Cost(NamedTuple):
    """What one sum over the states of all rows takes."""

    how: str
    multiplications: float
    num_bytes: float  # held at once


def every_state(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> float:
    """Multiplications of a sum over every state of every row: nothing is listed to find them."""
    return anatomy.num_states * outline_of(model, anatomy, args, kwargs).columns * anatomy.num_data


def costs(plan: Plan, structure: Structure) -> tuple[Cost, Cost]:
    """Of a plan, and of every state of every row with all its columns at once."""
    outline = plan.outline
    anatomy, columns, num_data = plan.layers[-1], outline.columns, plan.layers[-1].num_data
    sizes = [len(table) for table in plan.tables]
    listed = math.prod(layer.num_states for layer in plan.layers)
    once, each, floats = 0.0, float(sizes[-1] * columns), float(sizes[-1])
    if plan.bits is not None:
        each = cost(structure, anatomy.num_bits, listed, columns)
        how = f"{listed:.0f} states from {sizes[-1]} of them"
        floats += plan.bits.floats
        if plan.bits.states is None:
            how = f"a product over {anatomy.num_bits} bits, no state listed"
    elif len(sizes) > 1:
        how = f"{' and '.join(map(str, reversed(sizes)))} states, layer by layer"
        below = zip(pairwise(sizes), plan.layers[1:], strict=True)
        once = sum(a * b * layer.num_bits for (a, b), layer in below)
    elif outline.affine:
        how = f"{sizes[-1]} states of all rows in one product"
    else:
        how, floats = f"the program on {sizes[-1]} states of each row", each
    chunk = floats * num_data
    if plan.by_chunk is not None or outline.affine:
        chunk = min(chunk, product_floats())
    plain = listed * columns * num_data
    return Cost(how, each * num_data + once, 4.0 * chunk), Cost("plain", plain, 4.0 * plain)


# --- what shapes say


def outline_of(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> Outline:
    """Run the program on two states, abstractly."""

    def read(trace: dict[str, dict]) -> tuple[int, bool, bool, bool]:
        columns, alike, affine, masked = 0, True, True, False
        reference = trace[anatomy.names[0]]["scale"]
        for site in _sites(anatomy, trace):
            fn = site["fn"]
            if site["name"] in anatomy.names:
                alike = alike and _one_row(fn, anatomy)
            elif len(fn.batch_shape) > anatomy.nesting:
                own = within_rows(fn, anatomy)
                power = scale_ratio(site["scale"], reference)
                mask = unwrapped(fn)[1] is not None
                columns += math.prod(own.event_shape) * (2 if mask else 1)
                part = Part(own, site["value"], power, True)
                alike, affine = alike and part.by_cells, affine and part.form() is not None
                masked = masked or mask
        return max(1, columns), alike, affine, masked

    twice = jnp.zeros((2, 1, anatomy.num_bits), jnp.int32)
    program = at_states(model, anatomy.unpack(twice))
    columns, alike, affine, masked = run_abstractly(program, args, kwargs, read)
    alike = alike and (not masked or masks_are_alike(model, anatomy, args, kwargs))
    return Outline(columns, alike, alike and affine)


def find_layers(
    model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict
) -> tuple[Anatomy, ...] | None:
    """The latents from the top down, if each layer hangs on the one above it and on no other."""
    if len(anatomy.latents) < 2 or anatomy.nesting != -anatomy.plate_dim:
        return None
    parents: dict[str, list[str]] = {}
    simple: dict[str, bool] = {}

    def read(trace: dict[str, dict]) -> None:
        for site in _sites(anatomy, trace):
            fn = site["fn"]
            batch = tuple(fn.batch_shape)
            if len(batch) > anatomy.nesting and batch[0] == 2:
                parents.setdefault(site["name"], []).append(latent.name)
                if site["name"] in anatomy.names:
                    own = of_one_row(within_rows(fn, anatomy))
                    simple[site["name"]] = Part(own, site["value"][0], 1.0, True).by_cells

    for latent in anatomy.latents:
        values = anatomy.unpack(jnp.zeros((1, 1, anatomy.num_bits), jnp.int32))
        values[latent.name] = jnp.repeat(values[latent.name], 2, axis=0)
        run_abstractly(at_states(model, values), args, kwargs, read)
    depth: dict[str, int] = {}
    for name in anatomy.names:
        above = {depth[parent] for parent in parents.get(name, ())}
        if len(above) > 1 or not simple.get(name, True):
            return None
        depth[name] = 1 + above.pop() if above else 0
    lowest = max(depth.values())
    ordered = list(depth.values()) == sorted(depth.values())
    below = {x for name, names in parents.items() if name not in depth for x in names}
    if not lowest or not ordered or any(depth[x] < lowest for x in below):
        return None
    layers = [tuple(x for x in anatomy.latents if depth[x.name] == d) for d in range(lowest + 1)]
    return tuple(anatomy._replace(latents=layer) for layer in layers)


def _sites(anatomy: Anatomy, trace: dict[str, dict]) -> list[dict]:
    local = (x for x in trace.values() if x["type"] == "sample")
    return [x for x in local if any(f.name == anatomy.plate for f in x["cond_indep_stack"])]


def _one_row(fn: dist.Distribution, anatomy: Anatomy) -> bool:
    """Whether the parameters of a distribution have one entry on the data axis."""
    base, _ = unwrapped(fn)
    batch = tuple(base.batch_shape)
    place = -anatomy.plate_dim + fn.event_dim - base.event_dim
    return len(batch) < place or batch[-place] == 1
