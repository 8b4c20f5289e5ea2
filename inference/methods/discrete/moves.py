"""Where EM begins, and how it leaves an optimum that is not the best: by the form of the program.

Both are what a search over starts (`running.search`) wants of a method. A variant changes one unit,
the one that is missed least, and plants it where rows are explained worst: optima that are not the
best mostly have two units for one cause, and one unit for two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.scipy.special import logit

from ...reading.reader import Reader
from ...reading.recognition.papers import Form, Seen
from ...rows.chunks import Rows
from ...types import Arguments, Params
from ..shared import Expectation, missed_least
from .updates import ClosedForm, Update

Shapes = dict[str, tuple[int, ...]]
"""Of the parameters, by the names of the form."""
NUM_ROWS = 1024
"""Rows that a variant is made from."""
SHARPNESS = 3.0
"""How much sooner the unit that is missed least is given up than others."""


def start(update: ClosedForm | None, key: Array, arguments: Arguments) -> Params | None:
    """Parameters that fit the scale of the data, or None where the form has no rule."""
    if not isinstance(update, Update) or not varies(update):
        return None
    assert update.known is not None
    shapes = {role: place.positions.shape for role, place in update.known.places.items()}
    values = RULES[update.form][0](key, update.seen(arguments), shapes)
    return update.write({role: value.astype(float) for role, value in values.items()})


def varies(update: ClosedForm | None) -> bool:
    """Whether there is a rule for a variant of the parameters."""
    if not isinstance(update, Update) or update.form not in RULES:
        return False
    return update.known is not None and "weights_2" not in update.known.places  # one layer


def some_rows(key: Array, reader: Reader, rows: Rows) -> tuple[Array, Arguments, Reader]:
    """Another key, some rows drawn at random, and the reader of as many."""
    key_rows, key = random.split(key)
    size = min(rows.num_data, NUM_ROWS)
    if size == rows.num_data:
        return key, rows.whole(), reader.at(size)
    chosen = random.randint(key_rows, (size,), 0, rows.total)
    return key, rows.take(chosen), reader.at(size)


def variant(
    update: Any, key: Array, params: Params, posterior: Expectation, arguments: Arguments
) -> Params:
    """The parameters with one unit planted anew; for programs that have a rule (`varies`).

    :param posterior: of the rows in `arguments`, at `params`.
    """
    values = RULES[update.form][1](key, update.read(params), posterior, update.seen(arguments))
    return update.write(values)


def _sparse_coding_start(key: Array, seen: Seen, shapes: Shapes) -> Params:
    """Half of some rows as basis functions, and noise as large as the data."""
    (data, mask), num_causes = seen, shapes["weights"][0]
    if mask is not None:
        data = jnp.where(mask > 0, data, _means(data, mask))
    # With replacement: XLA takes seconds to compile the sort behind a draw without.
    rows = random.randint(key, (num_causes,), 0, len(data))
    return {
        "weights": 0.5 * data[rows],
        "noise": jnp.std(data) + 1e-6,
        "sparsity": jnp.full(shapes["sparsity"], min(2.0 / num_causes, 0.5)),
    }


def _sparse_coding_variant(
    key: Array, params: Params, posterior: Expectation, seen: Seen
) -> Params:
    """The cause that explains least, or doubles another, takes up what a bad row leaves over."""
    key_cause, key_row = random.split(key)
    weights, mean = params["weights"], posterior.mean
    least = missed_least(weights, mean.mean(0) * (weights**2).sum(1))
    cause = random.categorical(key_cause, SHARPNESS * least)
    row = _badly_explained(key_row, posterior.evidence)
    left = seen.value[row] - mean[row] @ weights
    if seen.mask is not None:
        left = left * seen.mask[row]
    sparsity = params["sparsity"]
    if sparsity.ndim:
        sparsity = sparsity.at[cause].set(sparsity.mean())
    return {**params, "weights": weights.at[cause].set(left), "sparsity": sparsity}


def _mixture_start(key: Array, seen: Seen, shapes: Shapes) -> Params:
    """Equal weights, and probabilities of bits or levels that are uniform, whatever the prior."""
    del seen
    params = {}
    for role, shape in shapes.items():
        if role == "probs":  # of bits
            params[role] = random.uniform(key, shape)
            continue
        drawn = jnp.ones(shape) if role == "mixing" else random.exponential(key, shape)
        params[role] = drawn / drawn.sum(-1, keepdims=True)
    return params


def _mixture_variant(key: Array, params: Params, posterior: Expectation, seen: Seen) -> Params:
    """One of two components for the same rows becomes half of a component that fits its badly."""
    del seen
    key_given_up, key_split, key_apart = random.split(key, 3)
    mixing, count = params["mixing"], len(params["mixing"])
    share = posterior.members(1.0, count).T  # (n, K)
    both = share.T @ share
    size = jnp.sqrt(jnp.diagonal(both)) + 1e-9
    overlap = (both / (size[:, None] * size) * (1.0 - jnp.eye(count))).max(1)
    given_up = random.categorical(key_given_up, SHARPNESS * jnp.log(overlap + 1e-3))
    fit = share.T @ posterior.evidence / (share.sum(0) + 1e-9)
    bad = -2.0 * (fit - fit.mean()) / (fit.std() + 1e-9) + 0.5 * jnp.log(mixing + 1e-9)
    others = jnp.arange(count) != given_up
    split = random.categorical(key_split, jnp.where(others, bad, -jnp.inf))
    half = 0.5 * mixing[split]
    mixing = mixing.at[given_up].set(half).at[split].set(half)
    changed = {"mixing": mixing / mixing.sum()}
    for role, probs in params.items():
        if role == "mixing":
            continue
        link: Any = jax.nn.softmax
        middle = jnp.log(jnp.maximum(probs[split], 1e-3))
        if role == "probs":  # of bits; those of levels go by their number
            middle, link = logit(jnp.clip(probs[split], 1e-3, 1.0 - 1e-3)), jax.nn.sigmoid
        apart = 0.5 * random.normal(key_apart, middle.shape)
        halves = link(middle + apart), link(middle - apart)
        changed[role] = probs.at[given_up].set(halves[0]).at[split].set(halves[1])
    return changed


def _noisy_or_start(key: Array, seen: Seen, shapes: Shapes) -> Params:
    """Weak causes of everything, each a little different."""
    del seen
    num_causes, columns = shapes["weights_1"]
    return {
        "weights_1": -jnp.log1p(-0.4 * random.uniform(key, (num_causes, columns))),
        "leak_0": jnp.full(columns, 0.05),
        "leak_1": jnp.full(num_causes, -jnp.log1p(-0.2)),
    }


def _noisy_or_variant(key: Array, params: Params, posterior: Expectation, seen: Seen) -> Params:
    """The cause that explains least, or doubles another, becomes what bad rows leave over."""
    key_cause, key_row = random.split(key)
    weights, mean = params["weights_1"], posterior.mean
    works = -jnp.expm1(-weights)
    cause = random.categorical(key_cause, missed_least(works, mean.mean(0) * works.sum(1)))
    row = _badly_explained(key_row, posterior.evidence)
    left = seen.value * jnp.exp(-(mean @ weights + params["leak_0"]))
    if seen.mask is not None:
        left = left * seen.mask
    # A row shows several causes at once; what is common to rows like it, badly explained ones
    # first, is one of them.
    alike_rows = left @ left[row]
    score = alike_rows / (alike_rows.std() + 1e-9) - 0.5 * _standard(posterior.evidence)
    common = jax.nn.softmax(2.0 * score) @ left
    return {
        **params,
        "weights_1": weights.at[cause].set(0.05 + common),
        "leak_0": jnp.maximum(params["leak_0"], 0.02),
        "leak_1": params["leak_1"].at[cause].set(params["leak_1"].mean()),
    }


def _badly_explained(key: Array, evidence: Array) -> Array:
    """A row, drawn the sooner the less its evidence is."""
    return random.categorical(key, -2.0 * _standard(evidence))


def _standard(values: Array) -> Array:
    """With mean zero and variance one, unless all are alike."""
    return (values - values.mean()) / jnp.where(values.std() > 0, values.std(), 1.0)


def _means(data: Array, mask: Array) -> Array:
    return jnp.sum(data * mask, 0) / jnp.maximum(mask.sum(0), 1.0)


RULES: dict[Form, tuple[Callable[..., Params], Callable[..., Params]]] = {
    Form.SPARSE_CODING: (_sparse_coding_start, _sparse_coding_variant),
    Form.MIXTURE: (_mixture_start, _mixture_variant),
    Form.CLASSES: (_mixture_start, _mixture_variant),
    Form.NOISY_OR: (_noisy_or_start, _noisy_or_variant),
}
"""Form -> its start, from a key, what was observed and shapes; and its variant, from a key,
parameters, their posterior and what was observed."""
