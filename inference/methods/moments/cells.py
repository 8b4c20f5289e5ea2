r"""The cells into which the columns of a hard clip cut the space of its factors.

Each column of `clipped_gaussian` with noise 0 changes its bit on a hyperplane ξ_i + w_i·y = 0, and
the images that the model can make are the cells between them: about N^P for N columns and P
factors, so an entropy of P log N to leading order (Lee & Sompolinsky 1998; Cover 1965).

In the plane (P = 2, or 1) all cells are found, with their probabilities and moments, exactly. For
standard normal y, the divergence theorem turns integrals over a cell into sums over its edges, each
a segment t₁ < t < t₂ of a line at distance d from the origin with outward normal n:

.. math::

    P(\text{cell}) &= [0 \in \text{cell}] - \sum_\text{edges} \pm \big( T(d, t_2/d) - T(d, t_1/d)
    \big) \\
    \int_\text{cell} y \, \phi(y) \, dy &= - \sum_\text{edges} n \, \phi(d) \, (\Phi(t_2) -
    \Phi(t_1)),

with Owen's T, and + where the cell lies on the same side of the line as the origin.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ...types import Params
from ..continuous.factors import FactorPosterior

# A line through the origin is moved off it by this much: then the origin lies in one cell.
NUDGE = 1e-9
BLOCK_ROWS = 256


class Cells(NamedTuple):
    """All cells of an arrangement in the plane."""

    bits: np.ndarray  # (num_cells, num_features) 0/1: the image of a cell
    probability: np.ndarray  # (num_cells,), to 1e-15; 1e-9 beside lines through the origin
    first: np.ndarray  # (num_cells, P) ∫ y φ(y) dy over the cell
    second: np.ndarray  # (num_cells, P, P) ∫ y yᵀ φ(y) dy over the cell

    @property
    def entropy(self) -> float:
        """Entropy of the images, in nats."""
        positive = self.probability[self.probability > 0]
        return float(-np.sum(positive * np.log(positive)))


def count_cells(num_features: int, num_factors: int, central: bool = True) -> int:
    """How many cells N hyperplanes in general position make in P dimensions (Cover 1965).

    :param central: all pass through the origin, as they do without biases.

    >>> count_cells(3, 2), count_cells(3, 2, central=False)
    (6, 7)
    """
    if central:
        return 2 * sum(math.comb(num_features - 1, k) for k in range(num_factors))
    return sum(math.comb(num_features, k) for k in range(num_factors + 1))


def enumerate_cells(params: Params) -> Cells:
    """All cells of a hard clip with one or two factors.

    >>> wedges = enumerate_cells({"weights": np.eye(2), "bias": np.zeros(2)})
    >>> wedges.bits.tolist(), wedges.probability.round(6).tolist()
    ([[0, 0], [0, 1], [1, 0], [1, 1]], [0.25, 0.25, 0.25, 0.25])
    """
    weights = np.asarray(params["weights"], float)
    bias = np.asarray(params["bias"], float)
    num_factors, num_features = weights.shape
    if num_factors > 2:
        raise ValueError(f"cells are enumerated for up to 2 factors, found {num_factors}")
    weights = np.concatenate([weights, np.zeros((2 - num_factors, num_features))])
    lines = _lines(weights, bias)
    edges = _edges(lines)
    # Every edge bounds two cells, the one before its line and the one behind; the origin lies
    # before all lines.
    num_edges = len(edges.line)
    side = edges.middle @ lines.normal.T > lines.distance
    sides = np.concatenate([side, side, np.zeros((1, side.shape[1]), bool)])
    sides[np.arange(num_edges), edges.line] = False
    sides[np.arange(num_edges, 2 * num_edges), edges.line] = True
    packed = np.packbits(np.pad(sides, ((0, 0), (1, 0))), axis=1)
    _, where, index = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    index, num_cells = index.reshape(-1), len(where)
    bits = np.broadcast_to(bias > 0, (num_cells, num_features)).copy()
    cut = lines.turn != 0
    bits[:, cut] = sides[where][:, lines.of[cut]] == (lines.turn[cut] > 0)

    normal = lines.normal[edges.line]
    mass, flow, turn = _edge_integrals(lines, edges)
    probability, genuine = np.zeros(num_cells), np.full(num_cells, num_edges == 0)
    first, second = np.zeros((num_cells, 2)), np.zeros((num_cells, 2, 2))
    probability[index[-1]] += 1.0
    # What the nudge has opened between lines through the origin is no cell: such lines enclose
    # nothing.
    outer = np.isinf(edges.stop - edges.start) | (lines.distance[edges.line] > 2 * NUDGE)
    for sign, cells in ((1.0, index[:num_edges]), (-1.0, index[num_edges:-1])):
        np.logical_or.at(genuine, cells, outer)
        np.add.at(probability, cells, -sign * mass)
        np.add.at(first, cells, -sign * normal * flow[:, None])
        np.add.at(second, cells, -sign * normal[:, :, None] * turn[:, None, :])
    second += probability[:, None, None] * np.eye(2)
    parts = (bits, probability, first, second)
    bits, probability, first, second = (x[genuine] for x in parts)
    order = np.lexsort(bits.T[::-1])
    bits, probability, first, second = (x[order] for x in (bits, probability, first, second))
    kept = slice(0, num_factors)
    return Cells(
        bits.astype(np.uint8), np.maximum(probability, 0.0), first[:, kept], second[:, kept, kept]
    )


class _Lines(NamedTuple):
    normal: np.ndarray  # (L, 2) pointing away from the origin
    distance: np.ndarray  # (L,) positive
    of: np.ndarray  # (num_features,) the line of a column
    turn: np.ndarray  # (num_features,) 1: the column is on behind its line; −1: before; 0: no line


class _Edges(NamedTuple):
    line: np.ndarray  # (E,)
    start: np.ndarray  # (E,) along the line, from the foot of the perpendicular
    stop: np.ndarray
    middle: np.ndarray  # (E, 2) a point of it


def _lines(weights: np.ndarray, bias: np.ndarray) -> _Lines:
    """The different lines; columns may share one, as equals or opposites."""
    size = np.sqrt((weights**2).sum(axis=0))
    cutting = np.flatnonzero(size > 0)
    normal = (weights[:, cutting] / size[cutting]).T
    distance = -bias[cutting] / size[cutting]
    # Away from the origin; through the origin, to the upper half plane.
    through = np.abs(distance) < NUDGE
    flat = np.abs(normal[:, 1]) < NUDGE  # what rounding leaves of sin π is no upper half
    upper = np.where(flat, normal[:, 0] > 0, normal[:, 1] > 0)
    turn = np.where(through, np.where(upper, 1.0, -1.0), np.where(distance > 0, 1.0, -1.0))
    normal, distance = normal * turn[:, None], np.where(through, 0.0, distance * turn)
    key = np.round(np.column_stack([normal, distance]), 9) + 0.0
    _, where, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
    of, turns = np.zeros(len(bias), int), np.zeros(len(bias))
    of[cutting], turns[cutting] = which.reshape(-1), turn
    distance = distance[where]
    irregular = 1 + np.modf(np.arange(len(where)) * math.sqrt(2))[0]
    distance = np.where(distance == 0, NUDGE * irregular, distance)
    return _Lines(normal[where], distance, of, turns)


def _edges(lines: _Lines) -> _Edges:
    along = np.column_stack([-lines.normal[:, 1], lines.normal[:, 0]])
    crossing = lines.normal @ along.T  # (other line, line)
    cosine = lines.normal @ lines.normal.T
    apart = lines.distance[:, None] - lines.distance[None, :] * cosine
    parallel = np.abs(crossing) < 1e-12
    place = np.where(parallel, np.inf, apart / np.where(parallel, 1.0, crossing))
    place = np.sort(place, axis=0).T  # (line, crossings), parallels last
    ends = np.full((len(place), 1), np.inf)
    start, stop = np.concatenate([-ends, place], axis=1), np.concatenate([place, ends], axis=1)
    line, slot = np.nonzero(start < stop)
    start, stop = start[line, slot], stop[line, slot]
    # Of a ray, a point not far from its end; of a whole line, its foot.
    low = np.where(np.isinf(start), np.where(np.isinf(stop), -1.0, stop - 2.0), start)
    high = np.where(np.isinf(stop), np.where(np.isinf(start), 1.0, start + 2.0), stop)
    middle = 0.5 * (low + high)
    point = lines.distance[line, None] * lines.normal[line] + middle[:, None] * along[line]
    return _Edges(line, start, stop, point)


def _edge_integrals(lines: _Lines, edges: _Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owen's T over each edge, ∫ φ ds, and ∫ y φ ds."""
    from scipy.special import ndtr, owens_t

    distance, normal = lines.distance[edges.line], lines.normal[edges.line]
    along = np.column_stack([-normal[:, 1], normal[:, 0]])
    mass = owens_t(distance, edges.stop / distance) - owens_t(distance, edges.start / distance)
    density = np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi)
    # The difference on the side where both are small keeps its digits.
    side = np.where(np.maximum(edges.start, -1e9) + np.minimum(edges.stop, 1e9) > 0, -1.0, 1.0)
    share = np.abs(ndtr(side * edges.stop) - ndtr(side * edges.start))
    bend = (np.exp(-0.5 * edges.start**2) - np.exp(-0.5 * edges.stop**2)) / math.sqrt(2 * math.pi)
    flow = density * share
    turn = flow[:, None] * distance[:, None] * normal + (density * bend)[:, None] * along
    return mass, flow, turn


def cell_posterior(params: Params, data: Array, mask: Array | None) -> FactorPosterior:
    """p(y | bits) of a hard clip with one or two factors: exact, over the cells that agree.

    A row that no cell agrees with has evidence −∞; its moments are those of the cells with the
    fewest wrong bits. ``effective`` is the number of cells.
    """
    cells = enumerate_cells(params)
    bits = np.asarray(data, np.float32)
    observed = np.ones_like(bits) if mask is None else np.asarray(mask, np.float32)
    on, off = bits * observed, (1 - bits) * observed
    image = cells.bits.astype(np.float32)
    size = cells.first.shape[1]
    mean, covariance = np.zeros((len(bits), size)), np.zeros((len(bits), size, size))
    evidence, effective = np.zeros(len(bits)), np.zeros(len(bits))
    for begin in range(0, len(bits), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        wrong = on[block] @ (1 - image).T + off[block] @ image.T
        least = wrong.min(axis=1, keepdims=True)
        agree = (wrong == least).astype(float)
        total = np.maximum(agree @ cells.probability, 1e-300)
        mean[block] = agree @ cells.first / total[:, None]
        square = np.einsum("nc,cqr->nqr", agree, cells.second) / total[:, None, None]
        covariance[block] = square - mean[block, :, None] * mean[block, None, :]
        evidence[block] = np.where(least[:, 0] == 0, np.log(total), -np.inf)
        effective[block] = agree.sum(axis=1)
    moments = (mean, covariance, evidence, np.zeros(len(bits)), effective)
    parts: list[Any] = [jnp.asarray(x, float) for x in moments]
    return FactorPosterior(*parts)


class Entropy(NamedTuple):
    """The entropy of the images of a hard clip, and how far it can be trusted."""

    nats: float
    leading: float  # P log N, the paper's leading order for many columns
    coverage: float  # share of the images' probability that was seen; 1 if all were enumerated


def entropy(params: Params, rng_key: Array | None = None, num_draws: int = 20_000) -> Entropy:
    """Entropy of the images that a hard clip makes.

    Exact for one and two factors. For more, from draws, corrected for images not yet seen (Chao &
    Shen 2003); with a coverage far below 1 it is still too low.

    >>> exact = entropy({"weights": np.eye(2), "bias": np.zeros(2)})
    >>> round(exact.nats / math.log(2), 6)
    2.0
    """
    num_factors, num_features = jnp.shape(params["weights"])
    leading = num_factors * math.log(num_features)
    if num_factors <= 2:
        return Entropy(enumerate_cells(params).entropy, leading, 1.0)
    if rng_key is None:
        raise ValueError(f"with {num_factors} factors the entropy comes from draws: give rng_key")
    factors = random.normal(rng_key, (num_draws, num_factors))
    images = np.asarray(factors @ params["weights"] + params["bias"] > 0)
    counts = np.unique(np.packbits(images, axis=1), axis=0, return_counts=True)[1]
    coverage = max(1 - np.sum(counts == 1) / num_draws, 1 / num_draws)
    share = coverage * counts / num_draws
    drawn = -np.expm1(num_draws * np.log1p(-share))
    return Entropy(float(-np.sum(share * np.log(share) / drawn)), leading, float(coverage))
