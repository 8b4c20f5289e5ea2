"""Sums over the states of chosen bits of each row, and the bits that are chosen.

On a GPU these are kernels: XLA would write and read rows × states or rows × bits several times.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import kernels
from .kernels import dot, in_kernels, power_below, run_kernel, split, standing_for
from .products import product

ROWS, STATES = 64, 128
"""That are multiplied at once."""
MOST_BITS = 4096
"""Of a row, that the registers of a warp hold."""
FEW = 16
"""So many bits of a row are compared one by one, which costs less than to sort or to scatter."""


def sums_over_states(
    features: Array, design: np.ndarray, moments: bool = True
) -> tuple[Array, Array]:
    """The largest log joint of a row, and Σ exp(log joint − largest) over its states s times
    (design_s, 1): (n, 1), (n, F + 1); without moments times 1 alone, (n, 1).

    Log joints are features (n, F) times the design (S, F), zeros and ones, transposed. On a GPU
    they are not stored: some states at a time are multiplied, made terms, and multiplied back.

    >>> features = jnp.log(jnp.array([[2.0, 3.0]]))
    >>> level, sums = sums_over_states(features, np.array([[0, 0], [1, 0], [1, 1]]))
    >>> [round(float(x), 3) for x in (jnp.exp(level) * sums)[0]]
    [8.0, 6.0, 9.0]
    """
    plain = lambda x: sums_of_terms(log_joints(x, design), design, moments)  # noqa: E731
    small = len(design) < STATES or design.shape[1] >= 128
    if small or not in_kernels(features):
        return plain(features)
    some = slice(0 if moments else -1, None)

    def by_kernel(x: Array) -> tuple[Array, Array]:
        largest, sums = _sums_over_states(x[:, : design.shape[1]], design)
        return largest, sums[:, some]

    return standing_for(plain, by_kernel, features)


def spare_features(design: np.ndarray) -> int:
    """How many features of zeros make the log joints a product that is a tenth faster.

    >>> spare_features(np.zeros((1013, 55))) if jax.default_backend() == "cpu" else 1
    1
    """
    # On a CPU four numbers at a time are multiplied: of few states that is no time.
    wide = jax.default_backend() == "cpu" and len(design) >= STATES
    return -design.shape[1] % 4 if wide else 0


def log_joints(features: Array, design: np.ndarray) -> Array:
    """Features (n, F) times the design (S, F), transposed: (n, S); spare features count nothing."""
    spare = features.shape[1] - design.shape[1]
    return product(features, jnp.asarray(np.pad(design, ((0, 0), (0, spare)))))


def sums_of_terms(logits: Array, design: np.ndarray, moments: bool = True) -> tuple[Array, Array]:
    """The same of log joints (n, S)."""
    largest = logits.max(1, keepdims=True)
    level = jnp.where(jnp.isfinite(largest), largest, 0.0)  # if no state is possible
    if not moments:  # a sum that XLA makes of the exponentials at once, and does not store them
        return largest, jnp.exp(logits - level).sum(1, keepdims=True)
    # Counted and scaled by and after the product: before it, both are passes over the states.
    counted = np.pad(design, ((0, 0), (0, 1)), constant_values=1)
    return largest, product(jnp.exp(logits - level), jnp.asarray(counted.T), 1.0)


def _sums_over_states(features: Array, design: np.ndarray) -> tuple[Array, Array]:
    from jax.experimental import pallas as pl

    (num_rows, width), num_states = features.shape, len(design)
    wide = max(16, 1 << width.bit_length())
    blocks = -(-num_states // STATES)
    table = np.zeros((blocks * STATES, wide), np.float16)
    table[:num_states, :width], table[:num_states, width] = design, 1

    def sum_states(x_ref: Any, design_ref: Any, sums_ref: Any, level_ref: Any) -> None:
        # The last rows may overlap those before: all blocks have one size.
        rows = pl.ds(jnp.minimum(pl.program_id(0) * ROWS, num_rows - ROWS), ROWS)
        x = x_ref[rows, :]
        power = power_below(jnp.max(jnp.abs(x), axis=1))
        high, low = split(x * (2.0**14 / power)[:, None])

        def add(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            level, sums = carry
            design = design_ref[pl.ds(i * STATES, STATES), :]
            logits = dot(low, design, 1) + dot(high, design, 1)
            state = i * STATES + lax.broadcasted_iota(jnp.int32, logits.shape, 1)
            logits = jnp.where(state < num_states, logits * (power * 2.0**-14)[:, None], -jnp.inf)
            higher = jnp.maximum(level, jnp.max(logits, axis=1))
            more, rest = split(jnp.exp(logits - higher[:, None]) * 2.0**14)
            part = (dot(rest, design, 0) + dot(more, design, 0)) * 2.0**-14
            return higher, sums * jnp.exp(level - higher)[:, None] + part

        first = jnp.full(ROWS, -1e38, jnp.float32), jnp.zeros((ROWS, wide), jnp.float32)
        level_ref[rows], sums_ref[rows, :] = lax.fori_loop(0, blocks, add, first)

    out = [((num_rows, wide), jnp.float32), ((num_rows,), jnp.float32)]
    grid, padded = (-(-num_rows // ROWS),), jnp.pad(features, ((0, 0), (0, wide - width)))
    sums, level = run_kernel(sum_states, grid, out, (4, 2), padded, jnp.asarray(table))
    return level[:, None], sums[:, : width + 1]


def _in_kernels(table: Array) -> bool:
    return table.shape[1] <= MOST_BITS and in_kernels(table)


def means_of_bits(
    single: Array, chosen: Array, level: Array, inner: Array, inside: Array
) -> tuple[Array, Array]:
    """Means of all bits of a row, (n, bits), and the sum over its states, (n, 1), over exp(level).

    :param single: log joint of each bit alone; states of the bits `chosen` (n, C), and among them
        those of one bit, are summed up in `inside` (n, 1), those with a bit on in `inner` (n, C).

    >>> single, chosen = jnp.log(jnp.array([[1.0, 2.0, 5.0]])), jnp.array([[2]])
    >>> level, inner, inside = jnp.zeros((1, 1)), jnp.array([[4.0]]), jnp.array([[5.0]])
    >>> [x.round(4).tolist() for x in means_of_bits(single, chosen, level, inner, inside)]
    [[[0.125, 0.25, 0.5]], [[8.0]]]
    """
    args = single, chosen, level, inner, inside
    if chosen.shape[1] > FEW or not _in_kernels(single):
        return _plain_means(*args)
    return standing_for(_plain_means, _means_of_bits, *args)


def _plain_means(single: Array, chosen: Array, level: Array, inner: Array, inside: Array) -> Any:
    alone = jnp.exp(at_bits(single, chosen, jnp.full(chosen.shape, -jnp.inf)) - level)
    count = inside + alone.sum(1, keepdims=True)
    scale = 1.0 / jnp.where(count > 0, count, 1.0)
    return at_bits(scale * alone, chosen, scale * inner), count


def _means_of_bits(single: Array, chosen: Array, *others: Array) -> Any:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (num_rows, num_bits), count = single.shape, chosen.shape[1]
    parts, slots = _powers_of_two(num_bits), 1 << (count - 1).bit_length()

    def fill(s_ref: Any, i_ref: Any, l_ref: Any, v_ref: Any, c_ref: Any, *out: Any) -> None:
        row, slot = pl.program_id(0), lax.iota(jnp.int32, slots)
        level, one = l_ref[row, 0], jnp.minimum(slot, count - 1)  # the last one several times
        place, inner = i_ref[row, one], v_ref[row, one]
        again = jnp.where(slot < count, jnp.exp(s_ref[row, place] - level), 0.0)
        tables, total = [], jnp.float32(0.0)
        for start, size in parts:
            bit = start + lax.iota(jnp.int32, size)
            x = triton.load(s_ref.at[row, bit], mask=bit < num_bits, other=-jnp.inf)
            tables.append((bit, jnp.exp(x - level)))
            total = total + jnp.sum(tables[-1][1])
        # Chosen bits alone are inside too: what is taken away is no more than what stays.
        total = c_ref[row, 0] + jnp.maximum(total - jnp.sum(again), 0.0)
        scale = 1.0 / jnp.where(total > 0, total, 1.0)
        for bit, terms in tables:
            triton.store(out[0].at[row, bit], terms * scale, mask=bit < num_bits)
        if not kernels.INTERPRETED:
            triton.debug_barrier()  # first all bits of the row, then the chosen ones
        out[0][row, place] = inner * scale
        out[1][row, 0] = total

    out = [((num_rows, num_bits), jnp.float32), ((num_rows, 1), jnp.float32)]
    return run_kernel(fill, (num_rows,), out, (1, 1), single, chosen, *others)


def _powers_of_two(number: int, least: int = 64) -> list[tuple[int, int]]:
    """Starts and sizes of blocks that hold so many numbers, the larger first.

    700: 512 from 0 on, 128 from 512 on, 64 from 640 on.
    """
    blocks, start, rest = [], 0, -(-number // least)
    while rest:
        size = least << (rest.bit_length() - 1)
        blocks.append((start, size))
        start, rest = start + size, rest - size // least
    return blocks


def at_bits(table: Array, indices: Array, values: Array) -> Array:
    """A table (n, bits) with other values (n, C) at the bits `indices` (n, C) of each row.

    >>> at_bits(jnp.zeros((1, 3)), jnp.array([[2, 0]]), jnp.array([[1.0, 2.0]])).tolist()
    [[2.0, 0.0, 1.0]]
    """
    if indices.shape[1] > FEW:
        return table.at[jnp.arange(len(table))[:, None], indices].set(values)
    # Compared, not scattered: what makes the table, and what is made of it, then stay one pass.
    each = jnp.arange(table.shape[1], dtype=indices.dtype)
    for bit, value in zip(indices.T, values.T, strict=True):
        table = jnp.where(each == bit[:, None], value[:, None], table)
    return table


def best_bits(scores: Array, count: int) -> Array:
    """Indices of the `count` largest scores of each row, (n, count), the largest first.

    On a GPU a few rounds cost less than the sort behind `lax.top_k`: in each, the group of bits
    that has the best one, and that bit in it, so that all scores are read once.

    >>> best_bits(jnp.array([[3.0, 1.0, 2.0, 3.0]]), 3).tolist()
    [[0, 3, 2]]
    """
    if count > FEW or jax.default_backend() == "cpu":
        return lax.top_k(scores, count)[1].astype(jnp.int32)
    if _in_kernels(scores):
        return _best_bits(scores, count)
    num_data, num_bits = scores.shape
    width = math.isqrt(num_bits)
    groups = -(-num_bits // width)
    # Impossible bits score minus infinity; they must still rank above those already taken.
    scores = jnp.maximum(scores, jnp.finfo(scores.dtype).min)
    wide = ((0, 0), (0, groups * width - num_bits))
    table = jnp.pad(scores, wide, constant_values=-jnp.inf).reshape(num_data, groups, width)
    tops = table.max(2)
    chosen: list[Array] = []
    inside, each = (jnp.arange(x, dtype=jnp.int32) for x in (width, groups))
    for _ in range(count):
        group = lax.argmax(tops, 1, jnp.int32)[:, None]
        left, place = jnp.take_along_axis(table, group[:, :, None], 1)[:, 0], group * width + inside
        for taken in chosen:
            left = jnp.where(place == taken, -jnp.inf, left)
        best = lax.argmax(left, 1, jnp.int32)[:, None]
        chosen.append(group * width + best)
        next_best = jnp.where(inside == best, -jnp.inf, left).max(1, keepdims=True)
        tops = jnp.where(each == group, next_best, tops)
    return jnp.concatenate(chosen, axis=1)


def _best_bits(scores: Array, count: int) -> Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (num_rows, num_bits), width = scores.shape, 32
    groups, slots = (1 << (x - 1).bit_length() for x in (-(-num_bits // width), count))
    some = max(1, min(4, MOST_BITS // (groups * width)))  # rows at once
    lowest = float(jnp.finfo(scores.dtype).min)

    def choose(scores_ref: Any, out_ref: Any) -> None:
        row = jnp.minimum(pl.program_id(0) * some, num_rows - some) + lax.iota(jnp.int32, some)
        numbers = lambda x: lax.broadcasted_iota(jnp.int32, (some, x), 1)  # noqa: E731
        inside, each, slot = numbers(width), numbers(groups), numbers(slots)

        def read(place: Array) -> Array:
            at = scores_ref.at[jnp.broadcast_to(row[:, None], place.shape), place]
            x = jnp.maximum(triton.load(at, mask=place < num_bits, other=-jnp.inf), lowest)
            return jnp.where(place < num_bits, x, -jnp.inf)

        tops = read(numbers(groups * width)).reshape(some, groups, width).max(2)
        chosen: list[Array] = []
        out = jnp.zeros((some, slots), jnp.int32)
        for i in range(count):
            group = jnp.argmax(tops, axis=1).astype(jnp.int32)[:, None]
            left, place = read(group * width + inside), group * width + inside
            for taken in chosen:
                left = jnp.where(place == taken, -jnp.inf, left)
            best = jnp.argmax(left, axis=1).astype(jnp.int32)[:, None]
            chosen.append(group * width + best)
            next_best = jnp.where(inside == best, -jnp.inf, left).max(1)[:, None]
            tops = jnp.where(each == group, next_best, tops)
            out = jnp.where(slot == i, chosen[-1], out)
        triton.store(out_ref.at[jnp.broadcast_to(row[:, None], slot.shape), slot], out)

    out = [((num_rows, slots), jnp.int32)]
    return run_kernel(choose, (-(-num_rows // some),), out, (1, 1), scores)[0][:, :count]
