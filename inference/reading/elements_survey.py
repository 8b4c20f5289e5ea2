"""Which elements of the latents of a datum interact, from the log joint at random states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.distributions.distribution import validation_enabled

from ..numerics.elimination import find_order, find_rounds
from ..rows.chunks import Rows
from .abstract import ProgramError
from .anatomy import Anatomy
from .arguments import rows_of
from .elements import Elements
from .local import anywhere, few_rows, log_joint
from .probe import OuterTraceError, at_once, probe
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
        pairs = _meeting(model, few, rows, np.array(sizes), leaves)
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


def _meeting(
    model: Callable, anatomy: Anatomy, rows: Rows, sizes: np.ndarray, leaves: Any
) -> list[frozenset[int]]:
    """The pairs of elements that interact: spans of them are tested, and halved if they do."""
    place = np.arange(len(sizes))
    run = at_once(partial(_differences, model, anatomy, rows, sizes))

    def test(blocks: list[tuple[Span, Span]]) -> list[bool]:
        interact: list[bool] = []
        for start in range(0, len(blocks), BLOCK):
            some = np.array(blocks[start : start + BLOCK])  # (blocks, 2, 2)
            sets = (place >= some[..., :1]) & (place < some[..., 1:])
            sets = np.pad(sets, ((0, BLOCK - len(sets)), (0, 0), (0, 0)))
            each = run(sets[:, 0], sets[:, 1], leaves)[: len(some)]
            interact += (~(each <= 1e-9)).tolist()  # also where it is NaN
        return interact

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
        states = jnp.where(changed, other, state)[:, None] + anatomy.lowest
        log_joints = log_joint(model, anatomy, params, states, arguments)
        one, two, both = jnp.split(log_joints[1:] - log_joints[0], 3)
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
    wanted = joint(states[:, None] + elements.anatomy.lowest)
    return jnp.abs(read - wanted).max() / (1.0 + jnp.abs(wanted - base).max())
