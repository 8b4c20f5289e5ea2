"""Images of strokes (bars that add up, lines that cover one another, rows that shift), and copies.

Each generator is a pure function of a JAX key; sizes are static, so it runs inside ``jit`` and
``vmap`` (a thousand trials at once), and hands the truth back beside the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random


def stroke_masks(size: int) -> np.ndarray:
    """All rows, then all columns of a (size, size) image, as 0/1 masks.

    :returns: shape (2·size, size·size).

    >>> stroke_masks(2).astype(int).tolist()
    [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    """
    rows = np.kron(np.eye(size), np.ones((1, size)))
    columns = np.kron(np.ones((1, size)), np.eye(size))
    return np.concatenate([rows, columns])


class Bars(NamedTuple):
    """The linear bars test and what made it.

    >>> truth = bars(random.key(0), num_data=7, noise=0.0)
    >>> bool((truth.data == truth.causes @ truth.weights).all())
    True
    """

    data: Array
    """(num_data, size²), real"""
    weights: Array
    """(2·size, size²): a bar is ±amplitude on its pixels and 0 elsewhere; rows, then columns"""
    causes: Array
    """(num_data, 2·size), 0/1: which bars are in which image"""
    sparsity: Array
    """(): the probability of a bar, ``active / (2·size)``"""
    noise: Array
    """(): standard deviation of the noise"""


def bars(
    key: Array,
    num_data: int = 1000,
    size: int = 5,
    active: float | Array = 2.0,
    amplitude: float | Array = 10.0,
    noise: float | Array = 2.0,
) -> Bars:
    """The linear bars test of Henniges et al. (2010), section 4.

    ``2·size`` bars on a (size, size) image, half of them positive and half negative, chosen at
    random; each is in an image with probability ``active / (2·size)``, independently; bars add up
    where they cross; Gaussian noise on top.

    :param active: expected number of bars in an image (the paper's πH).

    >>> truth = bars(random.key(0), num_data=7)
    >>> truth.data.shape, truth.weights.shape, truth.causes.shape
    ((7, 25), (10, 25), (7, 10))
    """
    key_signs, key_causes, key_noise = random.split(key, 3)
    num_bars = 2 * size
    signs = random.permutation(key_signs, jnp.repeat(jnp.array([1.0, -1.0]), size))
    weights = amplitude * signs[:, None] * jnp.asarray(stroke_masks(size), signs.dtype)
    sparsity = jnp.asarray(active / num_bars, signs.dtype)
    causes = random.bernoulli(key_causes, sparsity, (num_data, num_bars)).astype(signs.dtype)
    level = jnp.asarray(noise, signs.dtype)
    data = causes @ weights + level * random.normal(key_noise, (num_data, size * size))
    return Bars(data, weights, causes, sparsity, level)


LINE_PATTERNS: dict[str, tuple[int, ...]] = {
    "ll": (6, 8),
    "+": (2, 7),
    "=": (1, 3),
    "]": (0, 4, 9),
}
"""The second-order patterns as sets of lines: 0–4 are the rows from the top, 5–9 the columns from
the left. The paper's figure of them is not readable any more; these are drawn from their names."""


class Lines(NamedTuple):
    """The high-order lines problem and what made it.

    >>> truth = lines(random.key(0), 6, pattern_probabilities=(0.0, 1.0, 0.0, 0.0))
    >>> bool((truth.data == (truth.lines @ truth.masks > 0)).all())
    True
    >>> tuple(np.flatnonzero(truth.lines[0]).tolist()) == LINE_PATTERNS["+"]
    True
    """

    data: Array
    """(num_data, 25), 0/1"""
    masks: Array
    """(10, 25), 0/1: the pixels of each line; rows, then columns"""
    lines: Array
    """(num_data, 10), 0/1: which lines are in which image"""
    pattern: Array
    """(num_data,), int: place in ``LINE_PATTERNS``, or −1 where lines were chosen one by one"""


def lines(
    key: Array,
    num_data: int = 1000,
    line_probability: float | Array = 0.3,
    pattern_probabilities: Sequence[float] | Array = (0.125, 0.125, 0.125, 0.125),
) -> Lines:
    """The high-order lines problem of Lewicki & Sejnowski (1996), section 5.

    An image of 5×5 is either one of the four patterns of ``LINE_PATTERNS``, copied, or each of the
    ten lines is on with probability ``line_probability``, independently. A pixel is on where any
    line covers it. No noise.

    :param pattern_probabilities: of 'll', '+', '=' and ']', in that order; what is left to one is
        the probability of an image of independent lines (0.5 by default: the paper's figure that
        held its numbers is lost).

    >>> truth = lines(random.key(0), num_data=6)
    >>> truth.data.shape, truth.lines.shape, truth.pattern.shape
    ((6, 25), (6, 10), (6,))
    """
    key_pattern, key_lines = random.split(key)
    probs = jnp.asarray(pattern_probabilities, float)
    if probs.shape != (len(LINE_PATTERNS),):
        raise ValueError(
            f"`pattern_probabilities` must hold {len(LINE_PATTERNS)} numbers, one for each of "
            f"{', '.join(LINE_PATTERNS)}; found shape {probs.shape}"
        )
    # The last place stands for independent lines.
    table = np.zeros((len(LINE_PATTERNS) + 1, 10))
    for place, members in enumerate(LINE_PATTERNS.values()):
        table[place, list(members)] = 1.0
    uniform = random.uniform(key_pattern, (num_data,))
    choice = jnp.searchsorted(jnp.cumsum(probs), uniform, side="right")
    free = choice == len(LINE_PATTERNS)
    alone = random.bernoulli(key_lines, line_probability, (num_data, 10)).astype(probs.dtype)
    chosen = jnp.where(free[:, None], alone, jnp.asarray(table, probs.dtype)[choice])
    masks = jnp.asarray(stroke_masks(5), probs.dtype)
    data = (chosen @ masks > 0).astype(probs.dtype)
    return Lines(data, masks, chosen, jnp.where(free, -1, choice))


class Shifter(NamedTuple):
    """The shifter problem and what made it.

    >>> truth = shifter(random.key(0), num_data=6)
    >>> moved = np.roll(truth.row[0], int(truth.direction[0]))
    >>> bool((truth.data[0, :8] == moved).all())
    True
    """

    data: Array
    """(num_data, 4·width), 0/1: rows top, top, bottom, bottom of a (4, width) image"""
    row: Array
    """(num_data, width), 0/1: the bottom row, before the shift"""
    direction: Array
    """(num_data,), int: +1 where the top row is the bottom row moved right, −1 left"""


def shifter(
    key: Array,
    num_data: int = 1000,
    width: int = 8,
    on_probability: float | Array = 0.3,
) -> Shifter:
    """The shifter problem of Lewicki & Sejnowski (1996), section 5.

    A random row of bits stands at the bottom; the top row is the same row shifted by one pixel,
    with wrap-around, left or right with equal probability. Both rows are doubled, for redundancy.

    :param on_probability: of each bit of the random row. The available text of the paper breaks
        off before it says; 0.3 is its value for the lines.

    >>> truth = shifter(random.key(0), num_data=6)
    >>> truth.data.shape, sorted(set(truth.direction.tolist()))
    ((6, 32), [-1, 1])
    """
    key_row, key_direction = random.split(key)
    bottom = random.bernoulli(key_row, on_probability, (num_data, width)).astype(float)
    right = random.bernoulli(key_direction, 0.5, (num_data,))
    top = jnp.where(right[:, None], jnp.roll(bottom, 1, axis=1), jnp.roll(bottom, -1, axis=1))
    data = jnp.concatenate([top, top, bottom, bottom], axis=1)
    return Shifter(data, bottom, jnp.where(right, 1, -1))


class Prototypes(NamedTuple):
    """Noisy copies, and what they are copies of.

    >>> truth = prototypes(random.key(0), flip=0.0)
    >>> bool((truth.data == truth.prototypes[truth.label]).all())
    True
    """

    data: Array
    """(num_prototypes·copies, num_features), 0/1; all copies of the first prototype first"""
    prototypes: Array
    """(num_prototypes, num_features), 0/1"""
    label: Array
    """(num_prototypes·copies,), int: whose copy a row is"""
    flip: Array
    """(): the probability with which a bit was inverted"""


def prototypes(
    key: Array,
    num_prototypes: int = 3,
    copies: int = 200,
    num_features: int = 16,
    flip: float | Array = 0.05,
) -> Prototypes:
    """The synthetic clusters of Tipping (1998), section 4.

    Random prototypes (each bit on with probability ½), ``copies`` examples of each, every bit
    inverted with probability ``flip``: 0.05 in the paper's first set, 0.15 in its second.

    >>> truth = prototypes(random.key(0))
    >>> truth.data.shape, truth.prototypes.shape
    ((600, 16), (3, 16))
    """
    key_prototypes, key_flips = random.split(key)
    centres = random.bernoulli(key_prototypes, 0.5, (num_prototypes, num_features))
    label = jnp.repeat(jnp.arange(num_prototypes), copies)
    inverted = random.bernoulli(key_flips, flip, (num_prototypes * copies, num_features))
    data = jnp.logical_xor(centres[label], inverted).astype(float)
    return Prototypes(data, centres.astype(data.dtype), label, jnp.asarray(flip, data.dtype))
