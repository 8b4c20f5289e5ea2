"""`latentbits check`: what is wrong with a table or a program, said before any long run."""

from __future__ import annotations

import argparse
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models.data import Table
from numpyro import handlers
from numpyro.infer.util import log_density

from ..files.catalogue import blame, generics, methods
from ..numerics.elimination import find_order
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import rows_of, without_missing
from ..reading.elimination import Chain, Component, Elements, Graph
from ..reading.log_joint import find_affine, find_structure, log_joint
from ..reading.marginal import marginal
from ..reading.reader import inspect_all
from ..reading.states import AllStates
from ..reading.strategy import costs, find_elimination, make_plan
from ..reading.tracing import each_value, innermost, is_masked, trace_shapes
from ..rows.chunks import Rows
from ..running.memory import in_words
from .options import Given, add_options, open_given
from .progress import stage

NUM_DRAWS = 3
INDENT = "\n" + " " * 9
MAX_FLOATS = 1 << 22
"""Numbers that one evaluation may hold: a check is quick. Beyond, one state per row, not all."""

Way = Chain | Graph | Elements


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--plate", metavar="NAME", help="plate of the rows, if there are several")


def main(namespace: argparse.Namespace) -> int:
    given = open_given(namespace)
    name, program, table, kwargs = given
    anatomy: Anatomy | None = None
    arguments = (table.values,), kwargs
    with blame(name, "fails on this table"):
        program = without_missing(program, *arguments)
        way = find_elimination(program, *arguments, plate=namespace.plate)
        sites = trace_shapes(program, *arguments)
        try:
            program, anatomy = inspect_all(program, *arguments, namespace.plate)
            anatomy.check_rows_are_apart()
            anatomy.check_observed()
            rows = rows_of(anatomy, *arguments)
        except ProgramError:  # latents that belong to no row alone: a chain, or what rows share
            plates = any(site["type"] == "plate" for site in sites.values())
            if not isinstance(way, (Chain, Graph) if plates else Chain) or not way.observed:
                raise
            anatomy = None
    given = given._replace(program=program)
    holes = int((~table.mask).sum())
    print(f"table    {table.path}: {len(table.values)} rows, {len(table.columns)} columns, "
          f"{holes or 'no'} cell{'s' if holes > 1 else ''} missing")  # fmt: skip
    print(f"plate    {anatomy.plate}, {anatomy.num_data} rows\n" if anatomy else "")
    _print_sites(sites, anatomy, way)
    with stage("compiling and running the program on its prior"):
        summed = _summed(given, anatomy, way)
        points = _evaluate(given, summed)
        _check_support(given, points[0], sites)
        facts = [f"density  {_density(given, points)}{summed.words}"]
        form = [] if way is None else _eliminated(way, anatomy.num_data if anatomy else 1)
        if anatomy is not None:
            facts.append(f"rows     {_rows(given, anatomy, rows, points[0])}")
            form = form or _form(given, anatomy, rows)
        facts.append("form     " + INDENT.join(form))
    print("\n".join(facts), end="\n\n")
    _print_aligned([("method", "applies"), *_method_rows(anatomy, way)])
    return 0


def _print_sites(sites: dict[str, dict], anatomy: Anatomy | None, way: Way | None) -> None:
    """Every site, and the latents that are masked: NumPyro's enumeration reads that otherwise."""
    lines: list[tuple[str, ...]] = [("site", "kind", "shape", "distribution")]
    masked = []
    for name, site in sites.items():
        if site["type"] not in ("sample", "param"):
            continue
        fn: Any = site["fn"] if site["type"] == "sample" else None
        kind = _shared_kind(way, name) if anatomy is None else _kind(anatomy, name, fn)
        words = type(innermost(fn)).__name__ if fn else "-"
        lines.append((name, kind, str(jnp.shape(site["value"])), words))
        masked += [name] if fn and kind.startswith("latent") and is_masked(fn) else []
    _print_aligned(lines)
    print()
    if masked:
        print(
            f"mask     not applied to the latent {', '.join(masked)}: it keeps its distribution, "
            f"and its states sum to one;{INDENT}what is observed under the mask counts for nothing "
            f"(NumPyro's enumeration gives each{INDENT}state of a masked latent weight one)"
        )


def _shared_kind(way: Any, name: str) -> str:
    """What a site of a program is whose latents belong to no row alone."""
    if name in way.parameters:
        return "parameter"
    return "latent, discrete" if name in way.names else "observed"


def _kind(anatomy: Anatomy, name: str, fn: Any) -> str:
    if name in anatomy.parameters:
        return "parameter"
    if name not in anatomy.names:
        return "observed" if name in anatomy.observed else "observed, not per datum"
    number = next(x.num_values for x in anatomy.latents if x.name == name)
    if number is None:
        return f"latent, {'unbounded count' if fn.support.is_discrete else 'continuous'}"
    return "latent, binary" if number == 2 else f"latent, categorical, {number} values"


class Summed(NamedTuple):
    """A program whose discrete latents are summed out where that is cheap."""

    target: Any
    latents: set[str]  # summed out
    words: str
    doing: str  # what the program fails at, if it does


def _summed(given: Given, anatomy: Anatomy | None, way: Way | None) -> Summed:
    program = given.program
    if anatomy is None:
        assert way is not None
        return Summed(marginal(program), set(way.names), " (latents summed)", "fails")
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    num_states = math.prod((x.num_values or 1) ** x.size for x in discrete)
    if not discrete:
        return Summed(program, set(), "", "fails")
    if num_states * given.table.values.size > MAX_FLOATS:
        return Summed(program, set(), " (one drawn state per datum)", "fails")
    names = [x.name for x in discrete]
    target = marginal(program, sites=names, plate=anatomy.plate)
    doing = "fails when its latents carry a leading axis of states"
    return Summed(target, set(names), f" (all {num_states} states summed)", doing)


class Point(NamedTuple):
    """One draw from the prior, whether the data are possible under it, and the log density."""

    free: dict[str, Array]  # unobserved site -> value
    observed: dict[str, Array]
    fits: dict[str, Array]  # observed site -> whether each value lies in its support
    value: Array  # of the log density
    slopes: dict[str, Array]  # site -> whether the gradient is finite
    terms: dict[str, Array]  # site -> which log probabilities are not finite


def _evaluate(given: Given, summed: Summed) -> list[Point]:
    """Value and gradient of the log density at draws from the prior."""
    name, program, table, kwargs = given

    @jax.jit
    def evaluate(key: Array, values: Array) -> Point:
        trace = handlers.trace(handlers.seed(program, key)).get_trace(values, **kwargs)
        sites = {x: site for x, site in trace.items() if site["type"] in ("sample", "param")}
        seen = {x: site for x, site in sites.items() if site.get("is_observed")}
        free = {x: site["value"] for x, site in sites.items() if x not in seen}
        kept = {x: value for x, value in free.items() if x not in summed.latents}
        real = {x: v for x, v in kept.items() if jnp.issubdtype(v.dtype, jnp.floating)}

        def total(real: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            value, trace = log_density(summed.target, (values,), kwargs, {**kept, **real})
            terms = (x for x in trace.values() if x["type"] == "sample")
            return value, {x["name"]: ~jnp.isfinite(x["fn"].log_prob(x["value"])) for x in terms}

        (value, terms), slopes = jax.value_and_grad(total, has_aux=True)(real)
        return Point(
            free,
            {x: site["value"] for x, site in seen.items()},
            {x: each_value(site["fn"].support)(site["value"]) for x, site in seen.items()},
            value,
            {x: jnp.isfinite(slope).all() for x, slope in slopes.items()},
            terms,
        )

    with blame(name, summed.doing):
        return [evaluate(random.key(i), jnp.asarray(table.values)) for i in range(NUM_DRAWS)]


def _check_support(given: Given, point: Point, sites: dict[str, dict]) -> None:
    """Every observed value is one that the program could have made."""
    for site, fits in point.fits.items():
        possible = np.asarray(fits)
        if possible.shape == given.table.mask.shape:
            possible = possible | ~given.table.mask
        if not possible.all():
            place = tuple(int(i) for i in np.argwhere(~possible)[0])
            support = type(each_value(sites[site]["fn"].support)).__name__
            found = np.asarray(point.observed[site])[place]
            raise ProgramError(
                f"{given.name}: site {site!r} cannot be {found:g} ({_place(place, given.table)}): "
                f"it must be {support.strip('_').replace('_', ' ')}"
            )


def _place(index: tuple[int, ...], table: Table) -> str:
    where = f"datum {index[-2] + 1 if len(index) > 1 else index[0] + 1}"
    if len(index) == 2 and index[1] < len(table.columns):
        where += f", column {table.columns[index[1]]}"
    return where


def _density(given: Given, points: list[Point]) -> str:
    """The log density, if it and its gradient are finite at one of the draws."""
    finite = [x for x in points if jnp.isfinite(x.value)]
    if not finite:
        raise ProgramError(
            f"{given.name}: the log density is {float(points[0].value)} at each of {NUM_DRAWS} "
            f"draws from the prior: {_culprit(points[0], given.table)}"
        )
    smooth = [x for x in finite if all(x.slopes.values())]
    if not smooth:
        broken = next(site for x in points for site, ok in x.slopes.items() if not ok)
        raise ProgramError(
            f"{given.name}: the log density is finite, but not its gradient with respect to "
            f"{broken!r}"
        )
    often = f"at {len(smooth)} of {NUM_DRAWS} draws from the prior"
    return f"{float(smooth[0].value):.6g}, value and gradient finite {often}"


def _culprit(point: Point, table: Table) -> str:
    for name, bad in point.terms.items():
        where = np.argwhere(np.asarray(bad))
        if len(where):
            rows = np.ndim(bad) and f", {_place(tuple(where[0]), table)}"
            return f"site {name!r}{rows or ''}"
    return "every site is finite, their sum is not"


def _rows(given: Given, anatomy: Anatomy, rows: Rows, point: Point) -> str:
    """The log joint of a row does not depend on other rows or states."""
    name, program, _, _ = given
    few = min(4, anatomy.num_data)
    with blame(name, f"fails on {few} rows"):
        smaller = inspect(program, *rows.slice(0, few), plate=anatomy.plate)
    if smaller.num_data != few:
        raise ProgramError(
            f"{name}: the plate {anatomy.plate!r} has {smaller.num_data} rows when {few} are "
            "given: take its size from the data (len(data)), so that a chunk is a smaller plate"
        )
    if any(x.num_values is None for x in anatomy.latents) or not anatomy.latents:
        return "the plate follows the data"
    most = np.concatenate([np.full(x.size, x.num_values) for x in anatomy.latents])
    codes = np.random.default_rng(0).integers(0, most, (3, few, anatomy.num_bits))
    states = jnp.asarray(anatomy.lowest + codes)
    params: Any = {site: point.free[site] for site in anatomy.parameters}

    def read(states: Array, size: int, start: Any) -> Array:
        arguments = rows.slice(start, size)
        return log_joint(program, anatomy.with_rows(size), params, states, arguments)

    with blame(name, "fails when its latents carry a leading axis of states"):
        together = jax.jit(read, static_argnums=1)(states, few, 0)
        alone = jax.jit(lambda states, n: read(states, 1, n)[0, 0])
        single = [[float(alone(x[None, n : n + 1], n)) for n in range(few)] for x in states]
    if not np.allclose(together, single, rtol=1e-3, atol=1e-3):
        raise ProgramError(
            f"{name}: the log joint of a datum changes when other rows or states are read with it: "
            "use only its own row, and let leading axes broadcast (no sum or reshape over them)"
        )
    return "each datum stands for itself, with many states at once or one"


def _form(given: Given, anatomy: Anatomy, rows: Rows) -> list[str]:
    """The form of the log joint, and what `marginal` takes."""
    if not anatomy.latents:
        return ["no latent: every datum follows from the parameters alone"]
    if any(x.num_values is None for x in anatomy.latents):
        return ["not looked for: only discrete latents have one here"]
    with blame(given.name, "fails while its form is looked for"):
        known = find_structure(given.program, anatomy, rows)
        affine = find_affine(given.program, anatomy, rows)
    cost = "not affine in the datum: a step runs the program on every state"
    if affine:
        cost = "affine in the datum: rows × states are one product"
    elif known.shared:
        cost = "not affine in the datum: a state costs a product of its bits"
    lines = [f"log joint {known.value}"] if anatomy.binary else []
    lines.append(f"log joint {cost}")
    arguments = (given.table.values,), given.kwargs
    try:
        plan = make_plan(given.program, anatomy, True, AllStates(), known, *arguments)
    except ProgramError as error:
        return [*lines, f"marginal: {error}"]
    ours, plain = costs(plan, known)
    return [
        *lines,
        f"marginal  {ours.how}: {ours.multiplications:.2g} multiplications, "
        f"{in_words(ours.num_bytes)} at once",
        f"          (every state of every row: {plain.multiplications:.2g}, "
        f"{in_words(plain.num_bytes)})",
    ]


def _eliminated(way: Way, num_data: int) -> list[str]:
    """How `marginal` eliminates the latents, and what that takes."""
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
        tables = [entries for component in way.components for entries in _tables(component)]
        terms = sum(size * cells for size, cells, _ in tables)
        widest = max(width for *_, width in tables) - 1
        several = "s" if len(way.variables) > 1 else ""
        first = f"{len(way.variables)} discrete latent site{several} along a graph, "
        first += f"treewidth {widest}"
        how = f"elimination from {math.prod(way.counts)} runs of the program"
    return [first, f"marginal  {how}: {terms:.2g} terms, {in_words(4.0 * terms)} at once"]


def _tables(component: Component) -> list[tuple[int, int, int]]:
    """Of each table that elimination makes: entries of a cell, cells, and how many latents."""
    problem = component.problem
    place = {e: i for i, e in enumerate(component.elements)}
    scopes = [frozenset(place[e] for e in x) for cells in component.factors for x in cells.scopes]
    order = find_order(scopes, problem.sizes, problem.plates)
    return [
        (
            math.prod(problem.sizes[v] for v in scope),
            math.prod(problem.grid[axis] for axis in problem.plates[scope[0]]),
            len(scope),
        )
        for scope in order
    ]


def _method_rows(anatomy: Anatomy | None, way: Way | None) -> list[tuple[str, str]]:
    """Each method, and whether it applies."""
    if anatomy is not None:
        every = {x: getattr(method, "admits", lambda _: None) for x, method in methods().items()}
        every |= {x: generic.problem for x, generic in generics().items()}
        reasons = {x: problem(anatomy) for x, problem in every.items()}
        return [(x, "yes" if why is None else f"no: {why}") for x, why in reasons.items()]
    em, gibbs = "yes: over the graph", "yes: with NUTS for the rest, in HMCGibbs"
    if isinstance(way, Chain):
        gibbs = "no: latents of a scan are summed, not sampled one by one"
        em = "yes: Baum and Welch's algorithm"
    if effects := getattr(way, "effects", ()):
        em = f"no: {effects[0]} is a random effect"
    if getattr(way, "scaled", False):
        em = "no: its latents are scaled, and it counts each of them once"
    return [
        ("EM", em),
        ("LatentGibbs", gibbs),
        ("NUTS(marginal(model))", "yes"),
        ("SVI(marginal(model), ...)", "yes"),
        ("all others", "no: they are for latents of a row"),
    ]


def _print_aligned(rows: list[tuple[str, ...]]) -> None:
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(x.ljust(size) for x, size in zip(row, sizes, strict=True)).rstrip())
