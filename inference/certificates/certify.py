"""`certify`: a proved bracket of log p(y_n | θ) for every row, and what else its boxes prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from ..reading.anatomy import ProgramError
from ..reading.arguments import as_double, check_params
from ..reading.log_joint import Structure, log_joint
from ..reading.reader import Reader, open_program
from ..reading.states import AllStates
from ..rows.chunks import Rows as Data
from ..rows.chunks import chunk_of, compiled
from ..types import Params
from .boxes import Found, Rows, solve
from .concave import ROUNDING, QuadraticKind, rounding
from .reading import INVERTED, NUM_TESTS, SAME, Form, Plan, check_alone, choose, choose_sites, read


class Certificate(NamedTuple):
    """What is proved of each row, given the form that was read off its program.

    `tested` says on how many random states of every row the form was compared with the program.
    """

    lower: np.ndarray  # (num_data,) of log p(y_n | θ)
    upper: np.ndarray  # (num_data,)
    boxes: np.ndarray  # (num_data,) that cover all states; 0 where all were listed
    states: np.ndarray  # (num_data,) that were listed
    probability: np.ndarray  # (num_data, bits, 2) least and most of P(s_i = 1 | y_n)
    best: np.ndarray  # (num_data, bits) the most probable state that was met
    best_gap: np.ndarray  # (num_data,) by how much a log joint may be above that of `best`
    log_joint: np.ndarray  # (num_data,) of `best`
    tested: int
    how: str  # in words

    @property
    def width(self) -> np.ndarray:
        """Of each bracket, (num_data,)."""
        return _less(self.upper, self.lower)

    def outside(self, log_sum: Any) -> np.ndarray:
        """Least and most of the share of a row's mass that is not in a set of its states,
        (num_data, 2).

        :param log_sum: of the log joints in the set, (num_data,), in float64.
        """
        if not np.asarray(log_sum).dtype == np.float64:
            raise TypeError("log_sum is not of float64: a proof wants all digits")
        bounds = np.stack([self.lower, self.upper], -1)
        room = ROUNDING * (1.0 + np.abs(bounds)) * [1.0, -1.0]
        return np.clip(-np.expm1(np.asarray(log_sum)[:, None] - bounds + room), 0.0, 1.0)

    def __str__(self) -> str:
        lower, upper = self.lower.sum(), self.upper.sum()
        return f"log likelihood in [{lower:.4f}, {upper:.4f}], {self.how}"


def certify(
    model: Callable,
    params: Params,
    *args: Any,
    width: float = 0.1,
    max_boxes: int = 256,
    best: bool = False,
    max_states: int = 1 << 10,
    chunk_size: int | None = None,
    plate: str | None = None,
    **kwargs: Any,
) -> Certificate:
    """A proved bracket of the evidence of each row, all states of its bits included.

    The proof is one of upper bounds by tangents and of sums over listed states, in float64 and
    outward by a margin for its rounding; it holds given the form that was read off the program,
    which is tested on random states of every row. A program without such a form is refused, and
    the message names the site. States that are few are listed, whatever the program.

    :param width: nats between the bounds at which a row is done.
    :param max_boxes: of a row; where they do not reach `width` its bracket is wider.
    :param best: split on until the most probable state is proved too, or `max_boxes` are used.
    :param max_states: list all states of a datum up to here.
    :param chunk_size: rows that are read at a time, which bounds memory.

    >>> from latentbits.models import binary_sparse_coding
    >>> params = {"weights": 3 * jnp.eye(40, 50) + 0.1, "noise": 1.0, "sparsity": 0.1}
    >>> proved = certify(binary_sparse_coding, params, 3 * jnp.eye(2, 50), num_causes=40)
    >>> bool((proved.width <= 0.1).all()), proved.probability.shape
    (True, (2, 40, 2))
    """
    if not width >= 0 or max_boxes < 1:
        raise ValueError(f"width is {width} and max_boxes {max_boxes}: wanted ≥ 0, and ≥ 1")
    given: Any = {x: np.asarray(v, np.float64) for x, v in params.items()}
    with jax.enable_x64(True):
        reader, data = open_program(model, args, kwargs, structure=Structure.GENERAL, plate=plate)
        check_params(reader.model, given, args, kwargs)
        few = reader.anatomy.num_states <= max_states
        data = data._replace(leaves=as_double(data.leaves))
        if few:
            found, how = _all_listed(reader, given, data, chunk_size), "all states listed"
        else:
            if not reader.anatomy.binary:
                other = [x.name for x in reader.anatomy.latents if not x.binary]
                raise ProgramError(
                    f"the latents {other} are not binary, and {reader.anatomy.num_states} states "
                    f"of a datum are more than {max_states}: max_states= lists more"
                )
            found = _by_boxes(reader, given, data, chunk_size, width, max_boxes, best)
            how = f"given the form read off (tested on {NUM_TESTS} states of each row)"
    probability = np.stack([found.least, found.most], -1)
    return Certificate(
        found.lower, found.upper, found.boxes, found.states, probability, found.best,
        _less(found.highest, found.peak), found.peak, 0 if few else NUM_TESTS, f"proved, {how}",
    )  # fmt: skip


def _less(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Their difference: zero too for a row that no state explains, where both are −∞."""
    return np.subtract(upper, lower, out=np.zeros_like(upper), where=upper != lower)


def _chunks(reader: Reader, params: Params, data: Data, size: int) -> Any:
    """Data of at most so many rows each, and how many of them are new."""
    for start in range(0, data.num_data, size):
        here = np.arange(start, start + size)
        leaves = tuple(np.take(x, here, 0, mode="clip") for x in data.leaves)
        piece = data._replace(leaves=leaves, num_data=size)
        if start == 0 and size < data.num_data:
            check_alone(reader, params, piece, data.num_data)
        yield piece, min(size, data.num_data - start)


def _all_listed(reader: Reader, params: Params, data: Data, chunk: int | None) -> Found:
    """Evidence and posterior by all states of each row."""
    anatomy = reader.anatomy
    table = AllStates().table(anatomy.num_values)
    size = chunk_of(chunk, len(table) * (data.width + anatomy.num_bits), data)
    local, states = anatomy.with_rows(size), table + anatomy.lowest

    def run(data: Data, params: Params) -> Any:
        table = jnp.asarray(states)[:, None]
        joint = log_joint(reader.model, local, params, table, data.whole())
        total = logsumexp(joint, axis=0)
        margin = rounding(len(table)) + ROUNDING * jnp.abs(joint.max(0)) * data.width
        share = jnp.exp(joint - total).T @ jnp.asarray(states == 1, float)
        none, peak, slack = jnp.zeros(size, int), joint.max(0), 2.0 * margin[:, None]
        return (
            total - margin, total + margin, none, none + len(states),
            jnp.clip(share - slack, 0, 1), jnp.clip(share + slack, 0, 1),
            jnp.asarray(states)[jnp.argmax(joint, 0)], peak, peak,
        )  # fmt: skip

    told = (
        (compiled(run, x)(x.leaves, params), count)
        for x, count in _chunks(reader, params, data, size)
    )
    return _end_to_end([[np.asarray(x)[:count] for x in found] for found, count in told])


def _end_to_end(parts: list[Any]) -> Found:
    return Found._make([np.concatenate(x) for x in zip(*parts, strict=True)])


def _by_boxes(
    reader: Reader, params: Params, data: Data, chunk: int | None, width: float, max_boxes: int,
    best: bool,
) -> Found:  # fmt: skip
    plan = choose(reader, params, data)
    parts: list[Any] = []
    size = chunk_of(chunk, NUM_TESTS * data.width + reader.anatomy.num_bits**2, data)
    for piece, count in _chunks(reader, params, data, size):
        form = _read(plan, reader.at(size), params, piece)
        if _worst(form, plan) is not None and isinstance(plan.kind, QuadraticKind):
            plan = choose_sites(reader, params, piece, np.arange(min(size, 64)))
            form = _read(plan, reader.at(size), params, piece)
        wrong = _worst(form, plan)
        if wrong is not None:
            raise ProgramError(
                f"no bound is proved: the log joint of row {len(parts) * size + wrong} is not "
                "that of the form which the program has in others"
            )
        rows = Rows(plan.kind, form.own, form.shared)
        found = solve(rows, np.asarray(form.shift), width, max_boxes)
        if best:
            _prove_best(rows, np.asarray(form.shift), found, max_boxes)
        parts.append([x[:count] for x in found])
    return _end_to_end(parts)


def _read(plan: Plan, reader: Reader, params: Params, data: Data) -> Form:
    def run(room: int | None) -> Any:
        of = lambda rows, params: read(plan, room, reader, params, rows)  # noqa: E731
        return compiled(of, data)(data.leaves, params)

    quadratic = isinstance(plan.kind, QuadraticKind)
    return run(0 if quadratic else 1 << (max(int(run(None)), 1) - 1).bit_length())


def _worst(form: Form, plan: Plan) -> int | None:
    """A row of which the form is not that of its program; None if there is none."""
    same = SAME if isinstance(plan.kind, QuadraticKind) else INVERTED
    off = ~(np.asarray(form.error) <= same * (1.0 + np.asarray(form.size)))
    return int(np.argmax(off)) if off.any() else None


def _prove_best(rows: Rows, shift: np.ndarray, found: Found, max_boxes: int) -> None:
    """Split on where the best state is not proved, and put into `found` what comes of it."""
    where = np.flatnonzero(found.highest > found.peak)
    if len(where):
        more = solve(rows.take(where), shift[where], 0.0, max_boxes, best=True)
        better = more.peak > found.peak[where]
        found.best[where[better]] = more.best[better]
        found.peak[where[better]] = more.peak[better]
        highest = np.minimum(found.highest[where], more.highest)
        found.highest[where] = np.maximum(highest, found.peak[where])
