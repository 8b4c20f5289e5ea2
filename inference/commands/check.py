"""`latentbits check`: what is wrong with a table or a program, said before any long run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models.data import Table
from numpyro import handlers
from numpyro.infer.util import log_density

from ..files.catalogue import blame, generics, methods
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import rows_of
from ..reading.elimination import Chain
from ..reading.log_joint import find_affine, find_structure, log_joint
from ..reading.marginal import marginal
from ..reading.states import AllStates
from ..reading.strategy import costs, find_elimination, make_plan
from ..reading.tracing import each_value, is_masked, trace_shapes
from ..rows.chunks import Rows
from ..running.memory import in_words
from .interactions import Way, form_of, kind_of, method_rows, site_rows
from .options import Given, add_options, open_given
from .progress import stage

NUM_DRAWS = 3
INDENT = "\n" + " " * 9
MAX_FLOATS = 1 << 22
"""Numbers that one evaluation may hold: a check is quick. Beyond, one state per row, not all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--plate", metavar="NAME", help="plate of the rows, if there are several")


def main(namespace: argparse.Namespace) -> int:
    given = open_given(namespace)
    name, program, table, kwargs = given
    with blame(name, "fails on this table"):
        way = find_elimination(program, (table.values,), kwargs, plate=namespace.plate)
        sites = trace_shapes(program, (table.values,), kwargs)
        try:
            anatomy = inspect(program, (table.values,), kwargs, plate=namespace.plate)
        except ProgramError:
            plates = any(site["type"] == "plate" for site in sites.values())
            if way is None or not (plates or isinstance(way, Chain)):
                raise
            return _check_way(given, way, sites)
        anatomy.check_observed()
        rows = rows_of(anatomy, (table.values,), kwargs)
    _print_table(table)
    print(f"plate    {anatomy.plate}, {anatomy.num_data} rows\n")
    _print_sites(sites, partial(_kind, anatomy))
    with stage("compiling and running the program on its prior"):
        draws = _draw(given)
        _check_support(given, draws[0], sites)
        facts = [f"density  {_density(given, anatomy, draws)}"]
        facts.append(f"rows     {_rows(given, anatomy, rows, draws[0])}")
        lines = [_form(given, anatomy, rows)] if way is None else form_of(way, anatomy.num_data)
        facts.append("form     " + INDENT.join(lines))
    print("\n".join(facts), end="\n\n")
    _print_aligned([("method", "applies"), *_method_rows(anatomy)])
    return 0


def _check_way(given: Given, way: Way, sites: dict[str, dict]) -> int:
    """A program whose latents belong to no row alone: a chain, or what rows share."""
    _print_table(given.table)
    print()
    _print_sites(sites, lambda name, _: kind_of(way, name))
    with stage("compiling and running the program on its prior"):
        draws = _draw(given)
        _check_support(given, draws[0], sites)
        density = _evaluate(
            given, marginal(given.program), set(way.names), " (latents summed)", draws
        )
    print(f"density  {density}\nform     {INDENT.join(form_of(way))}\n")
    _print_aligned([("method", "applies"), *method_rows(way)])
    return 0


def _print_table(table: Table) -> None:
    holes = int((~table.mask).sum())
    print(f"table    {table.path}: {len(table.values)} rows, {len(table.columns)} columns, "
          f"{holes or 'no'} cell{'s' if holes > 1 else ''} missing")  # fmt: skip


def _print_sites(sites: dict[str, dict], kind: Callable[[str, Any], str]) -> None:
    """Every site, and the latents that are masked: NumPyro's enumeration reads that otherwise."""
    _print_aligned(site_rows(sites, kind))
    print()
    sampled = {name: x["fn"] for name, x in sites.items() if x["type"] == "sample"}
    latents = [name for name, fn in sampled.items() if kind(name, fn).startswith("latent")]
    masked = [name for name in latents if is_masked(sampled[name])]
    if masked:
        print(
            f"mask     not applied to the latent {', '.join(masked)}: it keeps its distribution, "
            f"and its states sum to one;{INDENT}what is observed under the mask counts for nothing "
            f"(NumPyro's enumeration gives each{INDENT}state of a masked latent weight one)"
        )


def _kind(anatomy: Anatomy, name: str, fn: Any) -> str:
    if name in anatomy.parameters:
        return "parameter"
    if name not in anatomy.names:
        return "observed" if name in anatomy.observed else "observed, not per datum"
    number = next(x.num_values for x in anatomy.latents if x.name == name)
    if number is None:
        return f"latent, {'unbounded count' if fn.support.is_discrete else 'continuous'}"
    return "latent, binary" if number == 2 else f"latent, categorical, {number} values"


class _Draw(NamedTuple):
    """One draw from the prior, and whether the observed values are possible under it."""

    free: dict[str, Array]  # unobserved site -> value
    fits: dict[str, Array]  # observed site -> whether each value lies in its support
    observed: dict[str, Array]  # observed site -> its values


def _draw(given: Given) -> list[_Draw]:
    name, program, table, kwargs = given

    @jax.jit
    def draw(key: Array, values: Array) -> _Draw:
        trace = handlers.trace(handlers.seed(program, key)).get_trace(values, **kwargs)
        free, fits, observed = {}, {}, {}
        for site in trace.values():
            if site["type"] == "sample" and site["is_observed"]:
                observed[site["name"]] = site["value"]
                fits[site["name"]] = each_value(site["fn"].support)(site["value"])
            elif site["type"] in ("sample", "param"):
                free[site["name"]] = site["value"]
        return _Draw(free, fits, observed)

    with blame(name, "fails on this table"):
        return [draw(random.key(i), jnp.asarray(table.values)) for i in range(NUM_DRAWS)]


def _check_support(given: Given, draw: _Draw, sites: dict[str, dict]) -> None:
    """Every observed value is one that the program could have made."""
    for site, fits in draw.fits.items():
        possible = np.asarray(fits)
        if possible.shape == given.table.mask.shape:
            possible = possible | ~given.table.mask
        if not possible.all():
            place = tuple(int(i) for i in np.argwhere(~possible)[0])
            support = type(each_value(sites[site]["fn"].support)).__name__
            raise ProgramError(
                f"{given.name}: site {site!r} cannot be {np.asarray(draw.observed[site])[place]:g} "
                f"({_place(place, given.table)}): it must be {support.strip('_').replace('_', ' ')}"
            )


def _place(index: tuple[int, ...], table: Table) -> str:
    where = f"datum {index[-2] + 1 if len(index) > 1 else index[0] + 1}"
    if len(index) == 2 and index[1] < len(table.columns):
        where += f", column {table.columns[index[1]]}"
    return where


class _Point(NamedTuple):
    """The log density at one draw from the prior."""

    value: Array
    slopes: dict[str, Array]  # site -> whether the gradient is finite
    terms: dict[str, Array]  # site -> which log probabilities are not finite


def _density(given: Given, anatomy: Anatomy, draws: list[_Draw]) -> str:
    """Value and gradient at draws from the prior; latents summed out where that is cheap."""
    program, table = given.program, given.table
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    num_states = math.prod((x.num_values or 1) ** x.size for x in discrete)
    listed = bool(discrete) and num_states * table.values.size <= MAX_FLOATS
    how = f"all {num_states} states summed" if listed else "one drawn state per datum"
    how = f" ({how})" if discrete else ""
    doing = "fails when its latents carry a leading axis of states" if listed else "fails"
    target = program
    if listed:
        target = marginal(program, sites=[x.name for x in discrete], plate=anatomy.plate)
    out = {x.name for x in discrete} if listed else set()
    return _evaluate(given, target, out, how, draws, doing)


def _evaluate(
    given: Given,
    target: Callable,
    out: set[str],
    how: str,
    draws: list[_Draw],
    doing: str = "fails",
) -> str:
    """Value and gradient of a program at the draws, without the latents in `out`."""
    name, _, table, kwargs = given

    @jax.jit
    def evaluate(free: dict[str, Array], values: Array) -> _Point:
        real = {k: v for k, v in free.items() if jnp.issubdtype(v.dtype, jnp.floating)}

        def total(real: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            value, trace = log_density(target, (values,), kwargs, {**free, **real})
            terms = (x for x in trace.values() if x["type"] == "sample")
            return value, {x["name"]: ~jnp.isfinite(x["fn"].log_prob(x["value"])) for x in terms}

        (value, terms), slopes = jax.value_and_grad(total, has_aux=True)(real)
        return _Point(value, {k: jnp.isfinite(x).all() for k, x in slopes.items()}, terms)

    with blame(name, doing):
        each = ({k: v for k, v in x.free.items() if k not in out} for x in draws)
        points = [evaluate(free, jnp.asarray(table.values)) for free in each]
    finite = [bool(jnp.isfinite(x.value)) for x in points]
    if not any(finite):
        raise ProgramError(
            f"{name}: the log density is {float(points[0].value)} at each of {NUM_DRAWS} draws "
            f"from the prior: {_culprit(points[0], table)}"
        )
    flat = [p for p, ok in zip(points, finite, strict=True) if ok and all(p.slopes.values())]
    if not flat:
        broken = [k for p in points for k, ok in p.slopes.items() if not ok]
        raise ProgramError(
            f"{name}: the log density is finite, but not its gradient with respect to {broken[0]!r}"
        )
    often = f"at {len(flat)} of {NUM_DRAWS} draws from the prior"
    return f"{float(flat[0].value):.6g}, value and gradient finite {often}{how}"


def _culprit(point: _Point, table: Table) -> str:
    for name, bad in point.terms.items():
        where = np.argwhere(np.asarray(bad))
        if len(where):
            rows = np.ndim(bad) and f", {_place(tuple(where[0]), table)}"
            return f"site {name!r}{rows or ''}"
    return "every site is finite, their sum is not"


def _rows(given: Given, anatomy: Anatomy, rows: Rows, draw: _Draw) -> str:
    """Rows and states do not look at each other: read together or one by one, all is the same."""
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
    generator = np.random.default_rng(0)
    most = np.concatenate([np.full(x.size, x.num_values) for x in anatomy.latents])
    codes = generator.integers(0, most, (3, few, anatomy.num_bits))
    states = jnp.asarray(anatomy.lowest + codes)

    def read_some(params: Any, states: Array, size: int, start: Array) -> Array:
        arguments = rows.slice(start, size)
        return log_joint(program, anatomy.with_rows(size), params, states, arguments)

    with blame(name, "fails when its latents carry a leading axis of states"):
        params = {site: draw.free[site] for site in anatomy.parameters}
        read = jax.jit(read_some, static_argnums=2)
        together = np.asarray(read(params, states, few, 0))
        single = [
            [float(read(params, states[s : s + 1, n : n + 1], 1, n)[0, 0]) for n in range(few)]
            for s in range(3)
        ]
    if not np.allclose(together, single, rtol=1e-3, atol=1e-3):
        raise ProgramError(
            f"{name}: the log joint of a datum changes when other rows or states are read with it: "
            "use only its own row, and let leading axes broadcast (no sum or reshape over them)"
        )
    return "each datum stands for itself, with many states at once or one"


def _form(given: Given, anatomy: Anatomy, rows: Rows) -> str:
    if not anatomy.latents:
        return "no latent: every datum follows from the parameters alone"
    if any(x.num_values is None for x in anatomy.latents):
        return "not looked for: only discrete latents have one here"
    with blame(given.name, "fails while its form is looked for"):
        known = find_structure(given.program, anatomy, rows)
        affine = find_affine(given.program, anatomy, rows)
    if affine:
        cost = "affine in the datum: rows × states are one product"
    elif known.shared:
        cost = "not affine in the datum: a state costs a product of its bits"
    else:
        cost = "not affine in the datum: a step runs the program on every state"
    lines = [f"log joint {known.value}"] if anatomy.binary else []
    arguments = (given.table.values,), given.kwargs
    try:
        plan = make_plan(given.program, anatomy, True, AllStates(), known, *arguments)
    except ProgramError as error:
        return INDENT.join([*lines, f"log joint {cost}", f"marginal: {error}"])
    ours, plain = costs(plan, known)
    lines += [
        f"log joint {cost}",
        f"marginal  {ours.how}: {ours.multiplications:.2g} multiplications, "
        f"{in_words(ours.num_bytes)} at once",
        f"          (every state of every row: {plain.multiplications:.2g}, "
        f"{in_words(plain.num_bytes)})",
    ]
    return INDENT.join(lines)


def _method_rows(anatomy: Anatomy) -> list[tuple[str, str]]:
    reasons = []
    for name, method in methods().items():
        admits = getattr(method, "admits", None)
        reasons.append((name, admits(anatomy) if admits is not None else None))
    reasons += [(name, generic.problem(anatomy)) for name, generic in generics().items()]
    return [(name, "yes" if reason is None else f"no: {reason}") for name, reason in reasons]


def _print_aligned(rows: list[tuple[str, ...]]) -> None:
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(x.ljust(size) for x, size in zip(row, sizes, strict=True)).rstrip())
