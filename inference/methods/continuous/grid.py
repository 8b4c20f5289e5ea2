r"""Maximum likelihood of a table of ordered levels on one to three factors, in NumPy.

With nodes :math:`x_s` that do not depend on the row, all log likelihoods are one matrix product:
of bits,

.. math:: \log p(t_n \mid x_s) = t_n^T A_s - \sum_i \log(1 + e^{A_{si}}), \qquad A_s = W^T x_s + b,

and of levels the same with an indicator of each level but the lowest (`curves`). The M-step needs
:math:`\sum_n r_{ns} t_{ni}` alone, a table of nodes × columns. Where rows are answered alike, they
are one row that counts several times; where few cells are observed, the products are sparse.
Nothing is compiled: a small table is fitted in less time than a compiler takes to start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .curves import Columns, Sums, columns_of, tables
from .nodes import MANY_COLUMNS, MOST_OWN_ROWS, Nodes, Values, nodes_for, own_nodes

FLOATS = 1 << 20
"""Of what is held of a block of rows on all nodes: 8 MiB."""
FEW_CELLS = 1 << 16
"""Of a table up to which it is held in float64; beyond, a row keeps seven digits, and so their sum:
the noise of rounding grows as the root of the number of rows."""


class BitTable(NamedTuple):
    """The distinct rows of a table: indicators of each level but the lowest."""

    bits: Any  # (rows, C), zero where unseen; dense, or sparse in rows
    seen: Any  # (rows, P), one where observed; None if everything is
    times: np.ndarray  # (rows,) how often each row occurs
    place: np.ndarray  # (num_data,) which of them a row of the table is
    levels: tuple[int, ...]
    answered: float = 1.0  # the largest share of the columns that a row has, roughly

    @property
    def share(self) -> np.ndarray:
        """Of its information that each predictor gives a row, (C,): see `nodes_for`."""
        return self.columns.share * self.answered

    @property
    def columns(self) -> Columns:
        return columns_of(self.levels)

    @property
    def sparse(self) -> bool:
        return not isinstance(self.bits, np.ndarray)

    @property
    def few_rows(self) -> bool:
        """Whether each has nodes of its own."""
        return few_rows(self.bits.shape)

    def single(self) -> BitTable:
        """In single precision."""
        if self.bits.dtype == np.float32:
            return self
        observed = None if self.seen is None else self.seen.astype(np.float32)
        return self._replace(bits=self.bits.astype(np.float32), seen=observed)

    def nodes(self, values: Values, fineness: float = 1.0, before: Nodes | None = None) -> Nodes:
        """Nodes for these rows: shared ones, or, of few rows of very many columns, of their own.

        :param before: those of values nearby.
        """
        if self.few_rows:
            return own_nodes(self._at_own, self.bits.shape[0], values, fineness, before)
        return nodes_for(values, fineness, self.share)

    def _at_own(self, values: Values, points: np.ndarray) -> np.ndarray:
        """The log likelihood of each row at points of its own, (rows, points)."""
        logs = tables(self.columns, values, Nodes(points.reshape(-1, points.shape[-1]), points))
        return self.of_own(*logs).reshape(points.shape[:-1])

    def of_own(self, more: np.ndarray, base: np.ndarray) -> np.ndarray:
        """The log likelihood on equally many nodes for each row, (S,), from their `tables`."""
        rows = self.bits.shape[0]
        parts = (x.reshape(rows, -1, x.shape[1]) for x in (more, base))
        # A product of matrices would give all rows on all nodes.
        total = np.einsum("nc,nsc->ns", self.bits, next(parts))
        low = next(parts)
        total += low.sum(-1) if self.seen is None else np.einsum("np,nsp->ns", self.seen, low)
        return total.ravel()

    def block(self, rows: slice) -> tuple[np.ndarray, np.ndarray | None]:
        """Some rows, dense."""
        parts = [self.bits[rows], None if self.seen is None else self.seen[rows]]
        bits, observed = (x.toarray() if self.sparse and x is not None else x for x in parts)
        return bits, observed


def distinct(
    data: np.ndarray, mask: np.ndarray | None, levels: tuple[int, ...] | None = None
) -> BitTable:
    """Rows that are alike, once.

    >>> rows = distinct(np.array([[0, 1], [1, 1], [0, 1]]), None)
    >>> rows.bits.tolist(), rows.times.tolist(), rows.place.tolist()
    ([[0.0, 1.0], [1.0, 1.0]], [2.0, 1.0], [0, 1, 0])
    >>> distinct(np.array([[2, 1]]), None, (3, 2)).bits.tolist()
    [[0.0, 1.0, 1.0]]
    """
    levels = (2,) * data.shape[1] if levels is None else levels
    columns = columns_of(levels)
    if columns.bits:
        bits = data > 0
    else:
        bits = np.asarray(data, np.int16)[:, columns.column_of] == columns.level
    observed = np.ones(data.shape, bool) if mask is None else mask.astype(bool)
    if mask is not None:
        bits = bits & (observed if columns.bits else observed[:, columns.column_of])
    codes: Any = np.packbits(bits if mask is None else np.hstack([bits, observed]), axis=1)
    codes = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1]))).ravel()
    _, first, index, count = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    exact = data.size <= FEW_CELLS or few_rows(bits.shape)
    kind = np.float64 if exact else np.float32
    some = None if observed.all() else observed[first].astype(kind)
    return BitTable(
        bits[first].astype(kind), some, count.astype(float), index, levels, _answered(observed)
    )


def observed_cells(
    data: np.ndarray,
    mask: np.ndarray,
    columns: np.ndarray,
    levels: tuple[int, ...] | None = None,
) -> BitTable:
    """The same of a table with few observed cells: only these are kept, and no two rows are joined.

    :param columns: which column of `data` each of the table is.

    >>> data, mask = np.array([[1, 0], [0, 1]]), np.array([[True, False], [True, True]])
    >>> cells = observed_cells(data, mask, np.array([1, 0]))
    >>> cells.bits.toarray().tolist(), cells.seen.toarray().tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]])
    """
    from scipy.sparse import csr_array

    levels = (2,) * len(columns) if levels is None else levels
    place = np.full(data.shape[1], -1)
    place[columns] = np.arange(len(columns))
    rows, across = np.nonzero(mask)
    value, across = data[rows, across].astype(np.int64), place[across]
    kept = across >= 0
    rows, across, value = rows[kept], across[kept], value[kept]
    layout = columns_of(levels)
    kind = np.float64 if len(rows) <= FEW_CELLS else np.float32
    observed = csr_array((np.ones(len(rows), kind), (rows, across)), (len(data), len(columns)))
    more = value > 0
    at = (rows[more], layout.first[across[more]] + value[more] - 1)
    bits = csr_array((np.ones(len(at[0]), kind), at), (len(data), len(layout.level)))
    return BitTable(
        bits, observed, np.ones(len(data)), np.arange(len(data)), levels, _answered(observed)
    )


def few_rows(shape: tuple[int, ...]) -> bool:
    """Whether rows are so few, and columns so many, that each row has nodes of its own."""
    return shape[1] >= MANY_COLUMNS and shape[0] <= min(MOST_OWN_ROWS, shape[1] // 50)


def _answered(observed: Any) -> float:
    """Twice what a row has, for it may have the sharper ones."""
    return min(1.0, 2.0 * float(observed.sum(1).max()) / observed.shape[1])


def posteriors(table: BitTable, values: Values, nodes: Nodes) -> Any:
    """Block by block: its rows, their log evidence, and their probabilities on the nodes."""
    more, base = tables(table.columns, values, nodes)
    num_rows = table.bits.shape[0]
    if nodes.owner is not None:
        probs = np.full((len(nodes.points), num_rows), -np.inf)
        place = np.arange(len(nodes.points))
        probs[place, nodes.owner] = table.of_own(more, base) + nodes.log_weights
        evidence, probs = _normalised(probs)
        yield slice(0, num_rows), evidence, probs.T
        return
    fixed = nodes.log_weights + (base.sum(1) if table.seen is None else 0.0)
    kind = table.bits.dtype
    more, base, fixed = (x.astype(kind) for x in (more, base, fixed))
    size = max(1, FLOATS // len(nodes.points))
    for start in range(0, num_rows, size):
        rows = slice(start, start + size)
        # Nodes first: what is summed over them lies apart, so that rows are added as vectors.
        probs = (table.bits[rows] @ more.T).T if table.sparse else more @ table.bits[rows].T
        if table.seen is not None:
            probs += (table.seen[rows] @ base.T).T if table.sparse else base @ table.seen[rows].T
        probs += fixed[:, None]
        evidence, probs = _normalised(probs)
        yield rows, evidence, probs.T


def _normalised(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log evidence, and probabilities in the place of these log joints, (S, rows)."""
    top = probs.max(0)
    probs -= top
    np.exp(probs, out=probs)
    total = probs.sum(0)
    probs *= 1.0 / total
    return (top + np.log(total)).astype(float), probs


def expect(table: BitTable, values: Values, nodes: Nodes) -> Sums:
    """The E-step."""
    loss, mass = 0.0, np.zeros(len(nodes.points))
    right: Any = 0.0
    number: Any = 0.0
    for rows, evidence, probs in posteriors(table, values, nodes):
        count = table.times[rows]
        loss -= evidence @ count
        probs *= count[:, None].astype(probs.dtype)
        right = right + table.bits[rows].T @ probs
        mass += probs.sum(0)
        if table.seen is not None:
            number = number + table.seen[rows].T @ probs
    answered = mass[None] if table.seen is None else np.asarray(number)
    return Sums(float(loss), np.asarray(right).T, answered.T, mass)


class Scores(NamedTuple):
    """Of every row of the table: log evidence, and the moments of its factors."""

    evidence: np.ndarray  # (num_data,)
    mean: np.ndarray  # (num_data, Q)
    covariance: np.ndarray  # (num_data, Q, Q)
    effective: np.ndarray  # (num_data,) how many nodes carry the posterior
    how: str = ""  # in words


def score(table: BitTable, values: Values, fineness: float = 1.0) -> Scores:
    """Expected a posteriori factors of each row, and its evidence.

    >>> table = distinct(np.array([[1, 1], [0, 1]]), None)
    >>> scores = score(table, {"weights": np.array([[1.0, 0.0]]), "bias": np.zeros(2)})
    >>> bool(np.allclose(np.exp(scores.evidence), 0.25)), scores.mean.round(3).tolist()
    (True, [[0.413], [-0.413]])
    """
    nodes = table.nodes(values, fineness)
    size = nodes.points.shape[1]
    outer = (nodes.points[:, :, None] * nodes.points[:, None, :]).reshape(len(nodes.points), -1)
    blocks = [
        (evidence, probs @ nodes.points, probs @ outer, 1.0 / (probs * probs).sum(1))
        for _, evidence, probs in posteriors(table, values, nodes)
    ]
    evidence, mean, second, effective = map(np.concatenate, zip(*blocks, strict=True))
    covariance = second.reshape(-1, size, size) - mean[:, :, None] * mean[:, None, :]
    at, count = table.place, len(nodes.points)
    how = f"the trapezoidal rule on {count} nodes that all rows share"
    if nodes.owner is not None:
        how = f"Gauss-Hermite quadrature, {count // len(evidence)} nodes for each row"
    return Scores(evidence[at], mean[at], covariance[at], effective[at], how)
