"""What the three EM methods for continuous latents share: state, start, step, rotation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from latentbits.models import clipped_gaussian, latent_trait, mixed_trait

from ...numerics.acceleration import Trail, Visit, begin, chart, plain, step
from ...numerics.compiling import least_effort
from ...reading.local import log_prior, prior_draw
from ...rows.chunks import Rows, compiled, sum_over_chunks
from ...rows.disk import pieces
from ...types import Arguments, Params
from ..m_step import transforms
from .factors import FactorReader
from .regressions import Regressions

HISTORY = 8  # past steps that the acceleration looks at


class FactorState(NamedTuple):
    """What the next step needs."""

    params: Params
    step: Array
    rng_key: Array
    memory: Any  # of each datum: its posterior or its mode; or the points all data share
    trail: Trail | None


def first_state(
    reader: FactorReader, rows: Rows, params: Params, key: Array, memory: Any, accelerate: bool
) -> FactorState:
    trail = None
    if accelerate:
        # Compiled as one: a run of the program, operation by operation, takes seconds.
        def start(rows: Rows, params: Params) -> Trail:
            space = chart(params, maps_of(reader, rows, params))
            return begin(space.flatten(params), HISTORY)

        trail = compiled(start, rows, compiler_options=least_effort())(rows.leaves, params)
    return FactorState(params, jnp.zeros((), int), key, memory, trail)


def next_state(
    visit: Callable[[Params, Any], Visit], reader: FactorReader, rows: Rows, state: FactorState
) -> tuple[FactorState, Array]:
    """One step, accelerated if the state has a trail."""
    if state.trail is None:
        params, memory, loss = plain(visit, state.params, state.memory)
        return state._replace(params=params, step=state.step + 1, memory=memory), loss
    space = chart(state.params, maps_of(reader, rows, state.params))
    trail, params, memory, loss = step(visit, space, state.trail, state.params, state.memory)
    return FactorState(params, state.step + 1, state.rng_key, memory, trail), loss


def maps_of(reader: FactorReader, rows: Rows, params: Params) -> dict[str, Any]:
    """Site -> the map from the real line to where the parameter lives."""
    one: Any = reader.at(1)
    return transforms(one, params, rows.slice(0, 1))


def prior_of(reader: FactorReader, rows: Rows, wanted: bool) -> Callable[[Params], Array] | None:
    """log p(θ) as a function, where the posterior of the parameters is to be maximised."""
    if not wanted:
        return None
    few = rows.slice(0, 1)
    return lambda params: log_prior(reader.model, reader.at(1).anatomy, params, few)


def start_params(
    reader: FactorReader,
    rows: Rows,
    columns: Regressions | None,
    start: Callable[..., Params] | None,
    given: Params | None,
    key: Array,
    args: tuple,
    kwargs: dict,
) -> Params:
    """Starting values: given, else those of `start`, else principal components, else a draw."""
    names = set(reader.anatomy.parameters)
    params: Params = {}
    if start is not None:
        params = start(key, *args, **kwargs)
    elif columns is not None and not names <= set(given or {}):
        find = compiled(
            lambda rows, key: principal_start(columns, rows, key, reader.num_factors), rows
        )
        params = find(rows.leaves, key)
    if not names <= set(params) | set(given or {}):

        def draw(rows: Rows, key: Array) -> Params:
            return prior_draw(reader.model, reader.at(1).anatomy, key, rows.slice(0, 1))

        drawn = compiled(draw, rows, compiler_options=least_effort())(rows.leaves, key)
        params = {**drawn, **params}
    params = {**params, **(given or {})}
    unknown = set(params) - names
    if unknown:
        raise ValueError(
            f"no parameter {sorted(unknown)} in the program: it has "
            f"{list(reader.anatomy.parameters)}"
        )
    return {name: jnp.asarray(value, float) for name, value in params.items()}


def principal_start(
    columns: Regressions, rows: Rows, key: Array, num_factors: int, jitter: float = 0.1
) -> Params:
    """Means give the biases, the leading principal components of the data the weights.

    A little noise keeps runs from different keys apart, and a factor that no column shows alive.
    """
    size = min(rows.num_data, max(1, (1 << 20) // columns.layout.num_predictors))

    def summarise(arguments: Arguments, extra: None, fresh: Array) -> Any:
        del extra
        target, seen = columns.responses(arguments)
        seen = jnp.ones_like(target) if seen is None else seen
        target, seen = target * fresh[:, None], seen * fresh[:, None]
        return target.sum(0), seen.sum(0), target.T @ target, seen.T @ target, seen.T @ seen

    total, count, square, cross, both = sum_over_chunks(summarise, rows, size, None)
    mean = total / jnp.maximum(count, 1.0)
    cover = square - cross * mean - (cross * mean).T + jnp.outer(mean, mean) * both
    cover = cover / jnp.maximum(both, 1.0)
    layout = columns.layout
    # The slope of the mean in its predictor: p(1 − p) of a bit or level, 1 of a number.
    chance = jnp.clip(mean, 0.5 / rows.num_data, 1.0 - 0.5 / rows.num_data)
    link = chance * (1.0 - chance)
    bias = jnp.log(chance) - jnp.log1p(-chance)
    _, bits, levels = layout.split(bias)
    for k, part in layout.split(mean)[2].items():
        rest = jnp.maximum(1.0 - part.sum(-1, keepdims=True), 0.5 / rows.num_data)
        levels[k] = jnp.log(jnp.maximum(part, 0.5 / rows.num_data) / rest)
    bias = layout.join(mean[: len(layout.real)], bits, levels)
    at = slice(len(layout.real))
    link = link.at[at].set(1.0)
    spread = jnp.sqrt(jnp.maximum(jnp.diagonal(cover), 1e-6))
    values, vectors = jnp.linalg.eigh(cover / jnp.outer(spread, spread))
    count = min(num_factors, len(values))
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    weights = (vectors * jnp.sqrt(jnp.maximum(values - 1.0, 0.1))).T * spread / link
    weights = jnp.clip(weights, -4.0, 4.0).at[:, at].set(weights[:, at])
    noise = jitter * jax.random.normal(key, (num_factors, layout.num_predictors))
    scale = jnp.ones(layout.num_predictors).at[at].set(spread[at])
    params = {"weights": (noise * scale).at[:count].add(weights), "bias": bias}
    if len(layout.real):
        params["noise"] = 0.7 * spread[at]
    return params


def check_columns(columns: Regressions | None, args: tuple, kwargs: dict, prior: bool) -> None:
    """Refuse columns that can only end in nonsense, by number, before any work."""
    if columns is None:
        return
    data = args[0] if args else kwargs["data"]
    mask = kwargs.get("mask")
    if isinstance(data, jax.core.Tracer) or isinstance(mask, jax.core.Tracer):
        return
    data = np.asarray(data)
    seen = None if mask is None else np.asarray(mask)
    looks = [_Look(column, kind) for column, kind in enumerate(columns.kinds)]
    for piece in pieces(data):
        block = np.array(data[piece])
        known = None if seen is None else np.array(seen[piece])
        for look in looks:
            look.at(piece.start, block, known)
    for look in looks:
        look.judge(prior)


class _Look:
    """What was seen of one column so far."""

    def __init__(self, column: int, kind: Any):
        self.column, self.kind = column, kind
        self.levels = 2 if kind == "binary" else None if kind == "real" else int(kind)
        self.values: set = set()  # all levels that were met; of real values the first two

    def at(self, start: int, data: np.ndarray, seen: np.ndarray | None) -> None:
        rows = np.arange(len(data)) if seen is None else np.flatnonzero(seen[:, self.column])
        values = data[rows, self.column]
        if self.levels is None:
            if len(values) and len(self.values) < 2:
                self.values |= {values[0], values[np.argmax(values != values[0])]}
            return
        wrong = (values < 0) | (values >= self.levels) | (values != np.floor(values))
        if wrong.any():
            bad = int(np.argmax(wrong))
            levels = self.levels
            wanted = "0 or 1" if levels == 2 else f"a level from 0 to {levels - 1}"
            raise ValueError(
                f"row {start + rows[bad]}, column {self.column} holds {values[bad]}: "
                f"wanted {wanted}"
            )
        met = np.bincount(values.astype(int), minlength=self.levels)
        self.values |= set(np.flatnonzero(met))

    def judge(self, prior: bool) -> None:
        if not self.values:
            raise ValueError(f"column {self.column} has no observed cell: leave it out")
        if prior:
            return
        advice = "leave it out, or keep its parameters finite with prior=True"
        if self.levels in (None, 2):
            if len(self.values) < 2:
                (only,) = self.values
                raise ValueError(f"column {self.column} is {only} in every row: {advice}")
            return
        missing = set(range(self.levels or 0)) - self.values
        if missing:
            raise ValueError(
                f"column {self.column} never shows level {min(missing)} of {self.kind}: {advice}"
            )


def rotates(model: Any) -> bool:
    """Whether the factors of a program are identified up to a rotation, by the site `weights`."""
    while isinstance(model, partial):
        model = model.func
    return model in (latent_trait, mixed_trait, clipped_gaussian)


@jax.jit
def canonical(params: Params) -> Params:
    r"""The same model with its factors turned to principal axes.

    Any rotation R of the factors, :math:`W \to R W`, leaves p(t) as it is. Canonical are orthogonal
    rows of W, longest first, the entry of largest size in each positive.

    >>> turned = canonical({"weights": jnp.array([[0.0, 1.0], [-3.0, 0.0]]), "bias": jnp.zeros(2)})
    >>> bool(jnp.allclose(turned["weights"], jnp.array([[3.0, 0.0], [0.0, 1.0]])))
    True
    """
    weights = params["weights"]
    _, vectors = jnp.linalg.eigh(weights @ weights.T)
    turned = vectors[:, ::-1].T @ weights
    largest = jnp.take_along_axis(turned, jnp.abs(turned).argmax(1)[:, None], 1)
    return {**params, "weights": turned * jnp.where(largest < 0, -1.0, 1.0)}
