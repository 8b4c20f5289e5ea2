"""Which latents a cell of a site reads: found by changing them.

An observation reads a latent through a gather, `z[item]`, and no shape says which. The program runs
at random states, and anew with some elements changed: a cell whose log probability differs reads
one of them. The elements of a long latent are changed by the digits of their numbers, so that cells
that read one element each are known after a few runs; those that read several are asked for each.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ..compiling import executable, known
from ..rows.disk import stored
from ..types import Arguments, Params
from .anatomy import Anatomy
from .log_joint import local_sites, log_joint
from .probe import OuterTraceError, at_once
from .tracing import ProgramError, at_place, trace_of

if TYPE_CHECKING:
    from .elimination import Graph

NUM_POINTS = 12
"""Random states, parameters and changes; a dependence that shows at half of them is missed once in
4096 times."""
MOST_CELLS = 1 << 22
"""Log probabilities at all points of one change: of more cells fewer points are looked at."""
FEW = 64
"""Elements that are changed one by one."""
MOST_ELEMENTS = 1 << 12
"""Of one latent that are changed one by one where cells read several."""


def rows_meet(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> bool:
    """Whether a row cannot be read by itself, on several states at once.

    What it is given depends on latents of other rows (`z[parent]`), or an index takes the axis of
    the states for that of the rows (`z[row]`, `z[:, 0]`). Of arguments that have no value yet it
    counts what was found for others of their kind.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    place = [i for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]
    kinds = [(x.shape[1:], jnp.result_type(x)) if hasattr(x, "dtype") else x for x in leaves]
    key = "rows meet", model, kinds, str(tree), anatomy.plate, anatomy.names
    latest: list[bool] = known(list, *key)

    def find() -> bool:
        arguments = _joined(leaves, tree, place, [_like(leaves[i], 0) for i in place])
        try:
            with validation_enabled(False):
                return _rows_meet(model, anatomy, arguments)
        except OuterTraceError:
            return False

    if not place:
        numbers = [x for x in leaves if hasattr(x, "dtype") and not stored(x)]
        index = [_key(x) for x in numbers if not jnp.issubdtype(x.dtype, jnp.inexact)]
        latest[:] = [known(find, *key, index)]
    return (latest or [find()])[0]


def _rows_meet(model: Callable, anatomy: Anatomy, arguments: Arguments) -> bool:
    leaves, tree = jax.tree.flatten(arguments)
    mine = [i for i, x in enumerate(leaves) if np.shape(x)[:1] == (anatomy.num_data,)]
    width = sum(np.size(leaves[i]) for i in mine) // anatomy.num_data
    few = min(anatomy.num_data, max(1, MOST_CELLS // max(1, width)))
    anatomy = anatomy.with_rows(few)
    rows = [np.asarray(leaves[i][:few], jax.dtypes.canonicalize_dtype(leaves[i].dtype))
            for i in mine]  # fmt: skip
    leaves = [None if i in mine else x for i, x in enumerate(leaves)]  # the claim holds no rows
    counts = np.array(anatomy.num_values)

    # By NumPy: random numbers of JAX would be most of what is compiled.
    generator = np.random.default_rng(0)
    points = max(2, min(NUM_POINTS, MOST_CELLS // (few * len(counts))))
    states = generator.integers(0, np.maximum(counts, 1), (points, 2, few, len(counts)))
    states = np.where(counts > 0, states + anatomy.lowest, generator.normal(size=states.shape))
    states = states.astype(int if counts.all() else float)
    same = generator.random((points, few)) < 0.5
    states[:, 1] = np.where(same[..., None], states[:, 0], states[:, 1])
    drawn = rows, states, same, np.arange(points)

    def at(rows: list[Array], point: tuple[Array, Array, Array]) -> Array:
        states, same, number = point
        program = handlers.seed(model, 0)  # here: a key made outside would be of an outer trace
        arguments = _joined(leaves, tree, mine, rows)
        params = _scattered(program, anatomy.parameters, number, arguments)

        def alone(state: Array) -> Array:
            """Without an axis of states."""
            values = anatomy.by_site(state)
            parts = (x.weigh(anatomy)[0] for x in
                     local_sites(program, anatomy, params, values, arguments))  # fmt: skip
            return jnp.broadcast_to(sum(parts, jnp.zeros(())), (few,))

        old, new = each = lax.map(alone, states)
        together = log_joint(program, anatomy, params, states, arguments)
        misread = ~jnp.isclose(together, each, 1e-3, 1e-3, equal_nan=True)
        return (same & (old != new) & ~jnp.isnan(old)).any() | misread.any()

    def claim(rows: list[Array], *drawn: Array) -> Array:
        return lax.map(partial(at, rows), drawn).any()

    try:
        return bool(executable(lambda: at_once(claim), drawn, claim)(*drawn))
    except ProgramError:
        return True  # it runs, but not on an axis of states


class Reads(NamedTuple):
    """What the cells of the sites read."""

    elements: dict[str, list[frozenset[int]]]  # site -> of each cell; none: nothing was asked
    crossed: frozenset[str]  # sites that read a latent in other cells of its plates than their own


def find_reads(model: Callable, graph: Graph, arguments: Arguments) -> Reads:
    """Which elements each cell of each site reads, and whether plates keep to themselves.

    :param graph: the latents, their plates and the sites that depend on them.
    """
    leaves, tree = jax.tree.flatten(arguments)
    place = [i for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]

    def find(seed: int) -> Reads:
        given = [_like(leaves[i], seed) for i in place]

        join = partial(_joined, leaves, tree, place)
        with validation_enabled(False):
            return _find(model, graph, join, given)

    if not place:
        key = [_key(x) for x in leaves]
        return known(partial(find, 0), "reads", model, key, str(tree), str(graph))
    first, second = find(0), find(1)
    if first != second:
        raise ProgramError(
            "which latents an observation reads hangs on an array that has no value yet (an index "
            "as an argument of jit or vmap): pass indices as NumPy arrays that are not traced, "
            "jax.jit(lambda params: log_density(marginal(model), (data, index), {}, params)[0])"
        )
    return first


def _scattered(
    program: Callable, names: Sequence[str], number: Array, arguments: Arguments
) -> Params:
    """Parameters far apart, no two alike: numbers between -2 and 2 on the line of each."""

    def spread(site: dict[str, Any]) -> Array | None:
        def place(shape: tuple[int, ...]) -> Array:
            first = 1.0 + number + zlib.crc32(site["name"].encode()) % 1000
            return 2.0 * jnp.sin(first + 2.4 * jnp.arange(math.prod(shape))).reshape(shape)

        return at_place(site, place)

    trace = trace_of(handlers.substitute(program, substitute_fn=spread), arguments)
    return {name: trace[name]["value"] for name in names}


def _joined(leaves: list, tree: Any, place: list[int], given: Sequence[Any]) -> Arguments:
    """Arguments, some leaves of which are replaced."""
    whole = list(leaves)
    for i, x in zip(place, given, strict=True):
        whole[i] = x
    return jax.tree.unflatten(tree, whole)


def _like(leaf: Any, seed: int) -> np.ndarray:
    """A value for an argument without one. Masks are open, so that all that they may show does.

    Integers are zeros and ones, then zeros: where one is an index, fewer elements are read.
    """
    if leaf.dtype == bool:
        return np.ones(leaf.shape, bool)
    generator = np.random.default_rng(seed)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return generator.integers(0, 1 if seed else 2, leaf.shape).astype(leaf.dtype)
    return generator.normal(size=leaf.shape).astype(leaf.dtype)


def _key(leaf: Any) -> Any:
    """What tells arguments apart: the content of arrays, of any size."""
    if isinstance(leaf, np.ndarray | Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        content = np.ascontiguousarray(leaf)
        return content.shape, str(content.dtype), hashlib.sha256(content).digest()
    return leaf


def _find(model: Callable, graph: Graph, join: Callable, given: list[np.ndarray]) -> Reads:
    sizes = [variable.size for variable in graph.variables]
    starts = np.cumsum([0, *sizes])
    moving = [v for v, x in enumerate(graph.variables) if any(n > 1 for n in x.sizes)]
    wanted = [v for v, n in enumerate(sizes) if n > 1]
    codes = [(v, code) for v in wanted for code in _codes(sizes[v])]
    if not (moving or codes):
        return Reads({}, frozenset())
    try:
        changed, crossed = _changes(model, graph, join, given, codes, moving)
    except OuterTraceError:
        if codes:
            raise
        return Reads({}, frozenset())
    elements: dict[str, list[frozenset[int]]] = {}
    unclear: set[int] = set()
    for name, scope in graph.scopes:
        wide = [v for v in scope if v in wanted]
        if not wide:
            continue
        cells = [frozenset(int(starts[v]) for v in scope if sizes[v] == 1)] * changed[name].shape[1]
        for v in wide:
            mine = changed[name][[i for i, (w, _) in enumerate(codes) if w == v]]
            each = _decoded(mine, sizes[v])
            if each is None:
                unclear.add(v)
                continue
            cells = [a | {int(starts[v]) + i for i in b} for a, b in zip(cells, each, strict=True)]
        elements[name] = cells
    if unclear:
        for v in unclear:
            if sizes[v] > MOST_ELEMENTS:
                raise ProgramError(
                    f"what is observed reads several of the {sizes[v]} elements of "
                    f"{graph.names[v]!r} at once, and which is looked for among at most "
                    f"{MOST_ELEMENTS}: LatentGibbs samples them"
                )
        singles = [(v, code) for v in sorted(unclear) for code in np.eye(sizes[v], dtype=bool)]
        changed, _ = _changes(model, graph, join, given, singles, [])
        for name, scope in graph.scopes:
            for v in unclear & scope:
                mine = changed[name][[i for i, (w, _) in enumerate(singles) if w == v]]
                for m, column in enumerate(mine.T):
                    ids = starts[v] + np.flatnonzero(column)
                    elements[name][m] = elements[name][m] | frozenset(ids.tolist())
    return Reads(elements, frozenset(crossed))


def _codes(size: int) -> np.ndarray:
    """Sets of elements that are changed together, (sets, size)."""
    if size <= FEW:
        return np.eye(size, dtype=bool)
    digits = np.arange(size) >> np.arange((size - 1).bit_length())[:, None] & 1
    return np.concatenate([digits == 1, digits == 0])


def _decoded(changed: np.ndarray, size: int) -> list[list[int]] | None:
    """The elements that each cell reads, from whether it changed with each code, (sets, cells).

    None: some cells read several, which their digits do not tell.
    """
    if size <= FEW:
        return [np.flatnonzero(column).tolist() for column in changed.T]
    one, zero = np.split(changed, 2)
    single = np.all(one ^ zero, axis=0)
    if (changed.any(0) & ~single).any():
        return None
    number = (one << np.arange(len(one))[:, None]).sum(0)
    return [[int(i)] if read else [] for i, read in zip(number, single, strict=True)]


def _changes(
    model: Callable,
    graph: Graph,
    join: Callable,
    given: list[np.ndarray],
    codes: list[tuple[int, np.ndarray]],
    moving: list[int],
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Whether cells change with each set of elements, site -> (sets, cells), and sites that change
    with other cells of a plate than their own.

    :param codes: latents, each with the elements that are changed, in all cells of its plates.
    :param moving: latents of which about half of the cells of each plate are changed.
    """
    sizes = [variable.size for variable in graph.variables]
    sets = np.zeros((len(codes) + len(moving), sum(sizes)), bool)
    starts = np.cumsum([0, *sizes])
    for row, (v, code) in enumerate(codes):
        sets[row, starts[v] : starts[v + 1]] = code
    for row, v in enumerate(moving, len(codes)):
        sets[row, starts[v] : starts[v + 1]] = True
    half = np.arange(len(sets)) >= len(codes)
    owner = np.array([v for v, _ in codes] + moving)

    # By NumPy: random numbers of JAX would be most of what is compiled.
    generator = np.random.default_rng(0)
    shapes = [(int(np.prod(x.sizes)), x.size) for x in graph.variables]
    points = max(2, min(NUM_POINTS, MOST_CELLS // max(1, sum(map(math.prod, shapes)))))
    states, others = [], []
    for variable, shape in zip(graph.variables, shapes, strict=True):
        count = variable.num_values
        states.append(generator.integers(0, count, (points, *shape)))
        others.append((states[-1] + generator.integers(1, max(count, 2), (points, *shape))) % count)
    picked = [generator.random((points, n)) < 0.5 for *_, n in graph.plates]
    drawn = np.arange(points), states, others, picked

    def at(given: list[Array], point: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        arguments = join(given)
        number, states, others, plates = point
        program = handlers.seed(model, 0)  # here: a key made outside would be of an outer trace
        params = _scattered(program, graph.parameters, number, arguments)
        chosen = []
        for variable in graph.variables:
            mask = jnp.ones((1,) * len(graph.plates), bool)
            for i, plate in enumerate(graph.plates):
                shape = [-1 if j == i else 1 for j in range(len(plates))]
                mask = mask & plates[i].reshape(shape) if plate in variable.plates else mask
            chosen.append(mask)

        def run(changed: Array, half: Array) -> dict[str, Array]:
            values = {}
            for v, variable in enumerate(graph.variables):
                cells = chosen[v].reshape(-1) | ~half
                moved = changed[starts[v] : starts[v + 1]] & cells[:, None]
                values[variable.name] = variable.values(jnp.where(moved, others[v], states[v]))
            trace = trace_of(model, arguments, {**params, **values})
            return {name: graph.cells(trace[name]) for name, _ in graph.scopes}

        def change(row: tuple[Array, Array, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
            found, elsewhere = {}, {}
            away = sum(jnp.where(row[2] == v, ~mask, False) for v, mask in enumerate(chosen))
            # One compiled run gives both: what is not changed is then equal to the last bit.
            pair = lax.map(lambda code: run(*code), (jnp.stack([row[0] & False, row[0]]), row[1]))
            for name, (old, new) in pair.items():
                moved = (old != new) & ~(jnp.isnan(old) & jnp.isnan(new))
                found[name] = moved.any(tuple(range(1, moved.ndim)))
                elsewhere[name] = (moved & (away > 0)).any() & row[1][0]
            return found, elsewhere

        both = jnp.stack([jnp.asarray(half)] * 2, 1)
        return lax.map(change, (jnp.asarray(sets), both, jnp.asarray(owner)))

    def claim(given: list[Array], drawn: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        shapes = jax.eval_shape(at, given, jax.tree.map(lambda x: x[0], drawn))

        def more(so_far: Any, point: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.logical_or, so_far, at(given, point)), None

        first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        work = sum(x.size for x in shapes[0].values()) * math.prod(n for *_, n in graph.plates)
        few = max(2, min(points, MOST_CELLS * len(sets) // max(1, work)))
        return lax.scan(more, first, jax.tree.map(lambda x: x[:few], drawn))[0]

    found, elsewhere = at_once(claim)(given, drawn)
    return found, [name for name, x in elsewhere.items() if x.any()]
