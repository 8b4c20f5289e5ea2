"""Latents of a datum that are written as vectors, and interact sparsely: summed element by element.

Which elements interact is read off the log joint f of a datum: two of them do if

    f(both changed) − f(one changed) − f(the other changed) + f(neither) ≠ 0

at some of a few random states, parameters and rows. Spans of elements are changed together first,
and halved where they interact. Along an order of elimination every element v then meets few others,
C_v, and f is known from its values on states that are 0 outside of those:

    f(s) = f(0) + Σ_v [ f(s on C_v) − f(s on C_v without v) ]

(Hammersley and Clifford's expansion about 0, each of whose terms belongs to the element of it that
is eliminated first). That is tested on random states before it is used. The sum then takes a run of
the program for each state of each C_v instead of one for each state of all: 3998 for a chain of
1000 bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from ..numerics import elimination
from ..numerics.compiling import once
from ..numerics.elimination import Factor, Problem, find_order, find_rounds
from ..rows.chunks import Rows, map_over_chunks
from ..types import Arguments, Params
from .anatomy import Anatomy, ProgramError, inspect, unseen
from .arguments import rows_of
from .local import anywhere, log_joint, stand_in
from .outside import given_by, outside
from .reader import examined
from .states import MAX_STATES

NUM_POINTS = 12
"""Random states at which pairs are tested; an interaction that shows at half of them is missed once
in 4096 times, and then the expansion fails its own test."""
NUM_TESTS = 64
SHORT = 12
"""Elements of a span that is not tested as a whole. Of two spans of six that all interact alike
the effects cancel at half of the points."""
BLOCK = 128
"""Pairs of spans that are tested at once."""
MOST_ELEMENTS = 2048
MOST_RUNS = 1 << 16
"""Of the program, on the states of all C_v."""
CHUNK_FLOATS = 1 << 22


class Elements(NamedTuple):
    """The latents of a datum, element by element, and which meet. Static: it holds no arrays."""

    anatomy: Anatomy
    scopes: tuple[tuple[int, ...], ...]  # C_v, v first, in an order of elimination
    rounds: tuple[tuple[int, ...], ...] = ()  # of elimination
    hidden: tuple[str, ...] = ()  # deterministic sites of the plate

    @property
    def names(self) -> tuple[str, ...]:
        return self.anatomy.names

    @property
    def observed(self) -> tuple[str, ...]:
        return self.anatomy.observed

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.anatomy.parameters

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each element."""
        return tuple(x.num_values or 1 for x in self.anatomy.latents for _ in range(x.size))

    @property
    def treewidth(self) -> int:
        return max(map(len, self.scopes)) - 1

    @property
    def num_runs(self) -> int:
        return sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes)

    def problem(self, num_data: int) -> Problem:
        return Problem(self.sizes, (frozenset({0}),) * len(self.sizes), (num_data,), self.rounds)

    def states(self) -> np.ndarray:
        """The states of each C_v, one after the other, 0 elsewhere: (runs, elements)."""
        parts = []
        for scope in self.scopes:
            own = [self.sizes[v] for v in scope]
            part = np.zeros((math.prod(own), len(self.sizes)), np.int32)
            part[:, list(scope)] = np.indices(own).reshape(len(own), -1).T
            parts.append(part)
        return np.concatenate(parts)

    def factors(self, found: Array) -> tuple[Array, list[Factor]]:
        """f(0) of each row, (n,), and the factors, from f at `states`, (runs, n)."""
        kinds: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        begin = 0
        for scope in self.scopes:
            own = tuple(self.sizes[v] for v in scope)
            kinds.setdefault(own, []).append((begin, scope))
            begin += math.prod(own)
        factors = []
        for own, parts in kinds.items():
            rows = np.array([first for first, _ in parts])[:, None] + np.arange(math.prod(own))
            table = found[rows].reshape(len(parts), *own, -1)
            factors.append(Factor(np.array([scope for _, scope in parts]), table - table[:, :1]))
        return found[0], factors

    def by_chunk(
        self,
        read: Callable[[Problem, Array, list[Factor], Array], Any],
        model: Callable,
        given: Params,
        arguments: Arguments,
    ) -> Any:
        """What `read` makes of f(0) and the factors of a chunk of rows, for all rows."""
        rows = rows_of(self.anatomy, *arguments)
        given = {name: x for name, x in given.items() if name != self.anatomy.plate}
        width = sum(int(leaf.size) // rows.num_data for leaf in rows.leaves) + len(self.sizes)
        size = max(1, min(rows.num_data, CHUNK_FLOATS // (self.num_runs * width)))
        # Without the barrier XLA folds what the program makes of them, for seconds.
        states = lax.optimization_barrier(jnp.asarray(self.states())[:, None])

        # What is held of a chunk for the gradient would add up over all of them.
        @jax.checkpoint
        def one(arguments: Arguments, start: Array) -> Any:
            local = self.anatomy.with_rows(size)
            found = log_joint(model, local, given, states, arguments)
            found = jnp.broadcast_to(found, (len(states), size))
            return read(self.problem(size), *self.factors(found), start)

        return map_over_chunks(lambda arguments, _, start: one(arguments, start), rows, size, None)


def sum_elements(model: Callable, elements: Elements, args: tuple, kwargs: dict) -> Any:
    """Run the program with its latents summed out: one factor per row is left of its rows.

    It has the name of the first observed site of a row.
    """
    within = {*elements.names, *elements.observed, *elements.hidden}

    def hidden(site: dict[str, Any]) -> bool:
        return site.get("name") in within

    trace, returned = outside(model, hidden, args, kwargs)
    given = given_by(trace, hidden)

    def evidence(problem: Problem, base: Array, factors: list[Factor], start: Array) -> Array:
        del start
        return base + elimination.evidence(problem, factors)

    each = elements.by_chunk(evidence, model, given, (args, kwargs))
    unit = dist.Unit(each.reshape(-1, *(1,) * (-elements.anatomy.plate_dim - 1)))
    scale = trace[elements.names[0]]["scale"]
    with handlers.scale(scale=1.0 if scale is None else scale):
        numpyro.sample(elements.observed[0], unit, obs=unit.sample(None))
    return returned


class ElementsPosterior(NamedTuple):
    """The posterior of the latents of each row, given the parameters."""

    model: Callable
    elements: Elements
    given: Params
    arguments: Arguments

    def draw(self, rng_key: Array) -> dict[str, Array]:
        return self._chosen(rng_key)

    def best(self) -> dict[str, Array]:
        return self._chosen(None)

    def probabilities(self) -> dict[str, Array]:
        """Of each value of each latent, on one more axis at the end."""

        def read(problem: Problem, base: Array, factors: list[Factor], start: Array) -> list[Array]:
            del base, start
            tables = elimination.probabilities(problem, factors, groups)
            return [jnp.moveaxis(table, 2, 0) for table in tables]  # (rows, size, values)

        latents = self.elements.anatomy.latents
        ends = np.cumsum([latent.size for latent in latents]).tolist()
        groups = [range(end - x.size, end) for x, end in zip(latents, ends, strict=True)]
        tables = self.elements.by_chunk(read, self.model, self.given, self.arguments)
        found = {}
        for latent, each in zip(latents, tables, strict=True):
            each = each.reshape(len(each), *latent.datum_shape, -1)
            found[latent.name] = jnp.moveaxis(each, 0, latent.axis)
        return found

    def _chosen(self, rng_key: Array | None) -> dict[str, Array]:
        def read(problem: Problem, base: Array, factors: list[Factor], start: Array) -> Array:
            del base
            key = None if rng_key is None else random.fold_in(rng_key, start)
            return elimination.choose(problem, factors, key).T

        states = self.elements.by_chunk(read, self.model, self.given, self.arguments)
        anatomy = self.elements.anatomy
        values = anatomy.unpack(states[None])
        return {x.name: values[x.name].reshape(x.shape) for x in anatomy.latents}


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
    except ProgramError:
        return None
    if any(isinstance(x, jax.core.Tracer) for x in rows.rest):
        return None
    elements = examined(_examine, model, anatomy, rows, model, anatomy, rows)
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
        leaves = [stand_in(x, num_rows, i) for i, x in enumerate(rows.leaves)]
        kind = partial(inspect, model, sites=anatomy.names, plate=anatomy.plate)
        few = unseen(lambda leaves: kind(*rows.join(leaves)), leaves)
        if few.num_data != num_rows:
            return None  # its plate does not follow its data
        elements = Elements(few, ())
        sizes = elements.sizes
        pairs = _meeting(model, few, rows, np.array(sizes), leaves)
        if not pairs:
            return None
        plates = (frozenset({0}),) * len(sizes)
        scopes = find_order(pairs, sizes, plates)
        elements = elements._replace(scopes=scopes, rounds=find_rounds(scopes, sizes, plates))
        if elements.num_runs > MOST_RUNS:
            return elements
        test = once(partial(_error, model, elements, rows)).lower(np.int32(0), leaves).compile()
        errors = [float(test(np.int32(i), leaves)) for i in range(2)]
        return elements if all(error <= 1e-9 for error in errors) else None


Span = tuple[int, int]


def _meeting(
    model: Callable, anatomy: Anatomy, rows: Rows, sizes: np.ndarray, leaves: Any
) -> list[frozenset[int]]:
    """The pairs of elements that interact: spans of them are tested, and halved if they do."""
    place, empty = np.arange(len(sizes)), np.zeros((BLOCK, len(sizes)), bool)
    run = once(partial(_differences, model, anatomy, rows, sizes))
    run = run.lower(empty, empty, leaves).compile()

    def test(blocks: list[tuple[Span, Span]]) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(blocks), BLOCK):
            some = np.array(blocks[start : start + BLOCK])  # (blocks, 2, 2)
            sets = (place >= some[..., :1]) & (place < some[..., 1:])
            sets = np.pad(sets, ((0, BLOCK - len(sets)), (0, 0), (0, 0)))
            each = np.asarray(run(sets[:, 0], sets[:, 1], leaves))[: len(some)]
            found += (~(each <= 1e-9)).tolist()  # also where it is NaN
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
        blocks += [pair for some in parts for pair in itertools.combinations(some, 2)]
        whole = [span for some in parts for span in some]
        met = [block for block, meets in zip(blocks, test(blocks), strict=True) if meets]
        single = [all(last - first == 1 for first, last in block) for block in met]
        pairs += [frozenset((a[0], b[0])) for (a, b), one in zip(met, single, strict=True) if one]
        larger = [block for block, one in zip(met, single, strict=True) if not one]
        blocks = [(x, y) for a, b in larger for x in split(a) for y in split(b)]
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
    """How much pairs of sets of elements interact, (pairs,), beside the log joint itself.

    :param first: (pairs, elements), as is `second`.
    """
    arguments = rows.join(leaves)

    def at(seed: Array) -> Array:
        key_params, key_state, key_other = random.split(random.key(seed), 3)
        params = anywhere(model, anatomy, key_params, arguments)
        state = random.randint(key_state, sizes.shape, 0, sizes)
        other = (state + random.randint(key_other, sizes.shape, 1, jnp.maximum(sizes, 2))) % sizes
        changed = jnp.concatenate([jnp.zeros_like(first[:1]), first, second, first | second])
        states = jnp.where(changed, other, state)[:, None]
        found = log_joint(model, anatomy, params, states, arguments)
        one, two, both = jnp.split(found[1:] - found[0], 3)
        return (jnp.abs(both - one - two) / (1.0 + jnp.abs(both))).max(1)

    return lax.map(at, jnp.arange(NUM_POINTS)).max(0)


def _error(model: Callable, elements: Elements, rows: Rows, seed: Array, leaves: Any) -> Array:
    """How far the expansion is off on random states, beside the log joint itself."""
    arguments, sizes = rows.join(leaves), np.array(elements.sizes)
    key_params, key_state, key_rate = random.split(random.key(100 + seed), 3)
    params = anywhere(model, elements.anatomy, key_params, arguments)
    states = random.randint(key_state, (NUM_TESTS, len(sizes)), 0, sizes)
    rate = random.uniform(key_rate, (NUM_TESTS, 1))
    kept = random.uniform(random.fold_in(key_rate, 1), states.shape) < rate
    states = jnp.where(kept, states, sizes - 1).at[0].set(sizes - 1)
    joint = partial(log_joint, model, elements.anatomy, params, arguments=arguments)
    table = joint(lax.optimization_barrier(jnp.asarray(elements.states())[:, None]))
    base, factors = elements.factors(table)
    read = jnp.broadcast_to(base, (NUM_TESTS, len(base)))
    for scopes, tables in factors:
        each = np.arange(len(scopes)), *(states[:, scope] for scope in scopes.T)
        read = read + tables[each].sum(1)
    wanted = joint(states[:, None])
    return jnp.abs(read - wanted).max() / (1.0 + jnp.abs(wanted - base).max())
