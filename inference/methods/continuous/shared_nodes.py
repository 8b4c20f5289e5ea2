r"""Nodes that all rows share, for columns of bits or ordered levels on one to three factors.

The log likelihood of a row at a node is affine in the row, so that rows × nodes are one matrix
product, and the M-step needs only how often each column is expected to be one at each node.

The nodes are equidistant in a metric in which every posterior is at least one unit wide,

.. math:: du = \sqrt{1 + \textstyle\sum_i \frac14 w_i^2 / (1 + \frac14 A_i^2)}\; dx, \qquad
          \frac14 / (1 + \frac14 A^2) \ge \sigma(A)(1 - \sigma(A)),

so that they are dense where items discriminate, however sharply. In several dimensions the axes
are those along which the sharpest items change, which need no fine nodes across; the others enter
by the largest value of their sum. The trapezoidal rule is off by
:math:`e^{-2\pi^2 / h^2}` or so at a distance of h. The bound in place of the information itself has
no pole near the real line where u(x) bends: without it that exponential rate would be lost.

How many nodes there are depends on the parameters: they are visited in blocks of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...numerics.gaussian import log_normal
from ...types import Params
from .factors import FactorPosterior
from .regressions import Regressions, Responses, shared_log_likelihood
from .rules import Rule

REACH = {1: 7.0, 2: 6.0, 3: 6.0}
"""Number of factors -> where the nodes end, in standard deviations of a factor."""
STEP = {1: 0.6, 2: 0.75, 3: 0.9}
"""Number of factors -> h."""
MOST_PLACES = {1: 512, 2: 256, 3: 64}
"""Number of factors -> nodes along an axis: beyond, h grows."""
MOST_AT_ONCE = {1: 128, 2: 48, 3: 20}
"""The same where nodes are not visited in blocks."""
MESH = {1: 1, 2: 41, 3: 15}
"""Number of factors -> places along an axis where the information of all items is compared."""
BLOCK = {1: 64, 2: 512, 3: 512}
"""Number of factors -> nodes that are visited together."""
FINE = {1: 2401, 2: 1201, 3: 1201}
"""Number of factors -> places along an axis where the metric is known."""
BLUNT = 4.0
"""Weights up to which the axes are those of the factors."""


class Nodes(NamedTuple):
    """A product of places along axes; weights hold the density N(0, I)."""

    places: Array  # (Q, M) coordinates
    log_gaps: Array  # (Q, M) log of the distance that a place stands for
    used: Array  # (Q,) places of each axis that are used
    axes: Array  # (Q, Q) orthogonal, in rows

    @property
    def total(self) -> Array:
        return jnp.prod(self.used)

    def block(self, start: Array | int, size: int) -> Rule:
        """Nodes start, …, start + size − 1; those beyond the last have no weight."""
        number = start + jnp.arange(size)
        rest, at, log_weight = number, [], jnp.zeros(())
        for q in range(len(self.used)):
            index = rest % self.used[q]
            rest = rest // self.used[q]
            at.append(self.places[q, index])
            log_weight = log_weight + self.log_gaps[q, index]
        points = jnp.stack(at, -1) @ self.axes
        log_weight = log_weight + log_normal(points)
        return Rule(points, jnp.where(number < self.total, log_weight, -jnp.inf))


def shared_nodes(
    weights: Array, bias: Array, share: Any = 1.0, fineness: float = 1.0, most: int | None = None
) -> Nodes:
    """Nodes for predictors of these weights (Q, P) and biases (P,).

    :param share: of its information that each predictor gives, (P,): those of a column of many
        levels overlap.
    :param fineness: times as many in each dimension.
    :param most: along an axis: beyond, they lie further apart.

    >>> nodes = shared_nodes(jnp.array([[1.0, 40.0]]), jnp.zeros(2))
    >>> rule = nodes.block(0, 64)
    >>> int(nodes.total) < 64, round(float(jnp.exp(rule.log_weights).sum()), 4)
    (True, 1.0)
    """
    size = len(weights)
    reach, step = REACH[size], STEP[size] / fineness
    directions = jnp.eye(1) if size == 1 else _axes(weights)
    slope = directions @ weights  # (Q, P): of each predictor along each axis
    steep, power = jnp.abs(slope), share * slope**2
    edge = reach * (1.0 + 2.0 / (FINE[size] - 1))  # a place beyond the last on each side
    fine = np.linspace(-edge, edge, FINE[size] + 2)
    own = steep.sum(0) - steep <= 1e-5 * steep
    least: Any = 1.0  # of the prior
    if size > 1:
        # What changes along an axis alone is followed; of the rest counts the most they hold.
        line = np.linspace(-reach, reach, MESH[size])
        mesh = np.stack(np.meshgrid(*[line] * size, indexing="ij"), -1).reshape(-1, size)
        held = _held(mesh @ slope + bias) @ jnp.where(own, 0.0, power).T
        least = least + held.max(0)[:, None]
    followed = jnp.where(own, power, 0.0)
    held = jnp.einsum("qsp,qp->qs", _held(fine[:, None] * slope[:, None] + bias), followed)
    spread = partial(_spread, fine, step=step, most=most or MOST_PLACES[size])
    places, gaps, count = jax.vmap(spread)(jnp.sqrt(least + held))
    return Nodes(places, jnp.log(gaps), count, directions)


def _held(predictors: Any) -> Any:
    """¼ / (1 + ¼ A²)."""
    return 1.0 / (4.0 + predictors**2)


def _axes(weights: Array) -> Array:
    """Orthogonal directions of the factors along which the sharpest predictors change, (Q, Q).

    A predictor that changes along one axis alone needs no fine nodes along the others. Each further
    axis is that of the predictor which changes most across those before.
    """
    axes, rest = [], weights
    for _ in range(len(weights)):
        length = jnp.sqrt((rest**2).sum(0))
        most = length.argmax()
        axis = rest[:, most] / jnp.maximum(length[most], 1e-30)
        axes.append(axis)
        rest = rest - jnp.outer(axis, axis @ rest)
    blunt = jnp.sqrt((weights**2).sum(0).max()) <= BLUNT
    return jnp.where(blunt, jnp.eye(len(weights)), jnp.stack(axes))


def _spread(fine: np.ndarray, speed: Array, step: float, most: int) -> tuple[Array, Array, Array]:
    """Places x(u) at a distance of `step` in u, the weights dx/du times that distance, and their
    number.

    x(u) is a cubic between the points of a mesh, and the weights are its own slope: what counts is
    that the two belong together.
    """
    width = fine[1] - fine[0]
    # The integral of a cubic through four points; the mesh has one more at each end for it.
    spans = (13.0 * (speed[1:-2] + speed[2:-1]) - speed[:-3] - speed[3:]) * width / 24.0
    fine, speed = fine[1:-1], speed[1:-1]
    length = jnp.concatenate([jnp.zeros(1), jnp.cumsum(spans)])
    gaps = jnp.clip(jnp.ceil(length[-1] / step).astype(int), 1, most - 1)
    distance = length[-1] / gaps
    ends = jnp.minimum(jnp.arange(most) * distance, length[-1])
    left = jnp.searchsorted(length[1:-1], ends, side="right")
    span = spans[left]  # of which a difference of sums would have lost the digits
    t = (ends - length[left]) / span
    # Slopes of more than three times the chord would turn the cubic back.
    first, last = (jnp.minimum(span / speed[x], 3.0 * width) for x in (left, left + 1))
    a, b = first + last - 2.0 * width, 3.0 * width - 2.0 * first - last
    place = jnp.asarray(fine)[left] + t * (first + t * (b + t * a))
    return place, distance * (first + t * (2.0 * b + 3.0 * t * a)) / span, gaps + 1


def one_rule(values: Params, share: Any = 1.0, fineness: float = 1.0) -> Rule:
    """All nodes for these predictors at once, of which those beyond the last have no weight."""
    size = len(values["weights"])
    most = int(fineness * MOST_AT_ONCE[size])
    nodes = shared_nodes(values["weights"], values["bias"], share, fineness, most)
    return nodes.block(0, most**size)


def over_nodes(nodes: Nodes, visit: Callable[[Rule, Any], Any], start: Any) -> Any:
    """Fold `visit(block of nodes, so far)` over all nodes."""
    size = BLOCK[len(nodes.used)]
    blocks = -(-nodes.total // size)
    return lax.fori_loop(0, blocks, lambda i, now: visit(nodes.block(i * size, size), now), start)


def log_table(columns: Regressions, values: Params, responses: Responses, rule: Rule) -> Array:
    """log p(t_n, node s), (S, n), weights included."""
    table = shared_log_likelihood(columns, values, responses, rule.points)
    return table + rule.log_weights[:, None]


def row_evidence(columns: Regressions, values: Params, responses: Responses, nodes: Nodes) -> Array:
    """The log evidence of each row, (n,)."""

    def visit(rule: Rule, now: tuple[Array, Array]) -> tuple[Array, Array]:
        top, total = now
        table = log_table(columns, values, responses, rule)
        new = jnp.maximum(top, table.max(0))
        return new, total * jnp.exp(top - new) + jnp.exp(table - new).sum(0)

    nothing = jnp.zeros(len(responses.target))
    top, total = over_nodes(nodes, visit, (nothing - jnp.inf, nothing))
    return top + jnp.log(total)


def row_posterior(
    columns: Regressions, values: Params, responses: Responses, nodes: Nodes
) -> FactorPosterior:
    """Evidence and moments of each row's factors; the gap is left at zero."""
    evidence = row_evidence(columns, values, responses, nodes)
    size = len(nodes.used)

    def visit(rule: Rule, now: Any) -> Any:
        probability = jnp.exp(log_table(columns, values, responses, rule) - evidence)
        outer = (rule.points[:, :, None] * rule.points[:, None, :]).reshape(-1, size * size)
        mean, second, square = now
        mean, second = mean + probability.T @ rule.points, second + probability.T @ outer
        return mean, second, square + (probability**2).sum(0)

    count = len(evidence)
    start = jnp.zeros((count, size)), jnp.zeros((count, size * size)), jnp.zeros(count)
    mean, second, square = over_nodes(nodes, visit, start)
    covariance = second.reshape(-1, size, size) - mean[:, :, None] * mean[:, None, :]
    return FactorPosterior(mean, covariance, evidence, jnp.zeros_like(evidence), 1.0 / square)


def node_sums(
    columns: Regressions,
    values: Params,
    responses: Responses,
    evidence: Array,
    nodes: Nodes,
    times: Array,
) -> Any:
    """What the regressions want of rows with this evidence, each counted so many `times`."""

    def visit(rule: Rule) -> Any:
        probability = jnp.exp(log_table(columns, values, responses, rule) - evidence) * times
        target = probability @ responses.target
        number = jnp.broadcast_to(probability.sum(1)[:, None], target.shape)
        if responses.seen is not None:
            number = probability @ responses.seen
        return columns.node_sums(values, rule.points, target, number)

    size = BLOCK[len(nodes.used)]
    shapes = jax.eval_shape(lambda: visit(nodes.block(jnp.zeros((), int), size)))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return over_nodes(nodes, lambda rule, now: jax.tree.map(jnp.add, now, visit(rule)), nothing)
