"""Early stopping by rows that are not trained on: keep the parameters that explain them best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics.compiling import remembered
from ..running.algorithm import Algorithm
from ..running.contract import DivergedError, follow
from ..types import Params
from .evidence import likelihood


class Validated(NamedTuple):
    """The best parameters on the way, and the way."""

    params: Params
    score: float  # mean log likelihood of the rows held out, under the best parameters
    step: int  # after how many steps they were met
    steps: np.ndarray  # (checks,): when was looked
    scores: np.ndarray  # (checks,): what was seen
    reason: str  # why it stopped


def keep_best(
    method: Algorithm,
    rng_key: Array,
    num_steps: int,
    data: Array,
    *,
    valid: Array,
    every: int = 10,
    patience: int = 20,
    init_params: Params | None = None,
    score: Callable[[Params], Array] | None = None,
    **kwargs: Any,
) -> Validated:
    """Run a method and keep the parameters of highest mean log likelihood of `valid`.

    :param valid: rows like those of `data`, not trained on.
    :param every: look after so many steps.
    :param patience: stop when so many looks in a row found nothing better.
    :param score: ``score(params)``, larger is better; by default the mean over `valid` of the
        marginal log likelihood, the method's own if it has one, else `evaluation.evidence`.

    >>> from latentbits.models import bernoulli_mixture
    >>> from latentbits.models.data import prototypes
    >>> from latentbits.inference.methods.discrete.em import EM
    >>> from jax import random
    >>> rows = prototypes(random.key(0), copies=50).data
    >>> best = keep_best(EM(bernoulli_mixture), random.key(1), 40, rows[::2],
    ...     valid=rows[1::2], every=5, num_components=3)
    >>> bool(best.score == best.scores.max())
    True
    """
    if num_steps < 1 or every < 1 or patience < 1:
        raise ValueError("num_steps, every and patience must be at least 1")
    held = (
        _mean_evidence(method, valid, kwargs) if score is None else Held(lambda p, _: score(p), ())
    )
    state = method.init(rng_key, data, init_params=init_params, **kwargs)
    judge, arrays, parts = held.score, *_parted(kwargs)

    def steps(
        state: Any, data: Array, arrays: dict[str, Any], leaves: tuple
    ) -> tuple[Any, Params, Array]:
        state, _ = follow(method, state, every, data, **arrays, **parts)
        params = method.get_params(state)
        return state, params, judge(params, leaves)

    advance = remembered(steps)
    best, best_step, best_params = -np.inf, 0, None
    scores: list[float] = []
    reason = "all steps done"
    for check in range(1, -(-num_steps // every) + 1):
        state, params, value = advance(state, jnp.asarray(data), arrays, held.leaves)
        scores.append(float(value))
        if not np.isfinite(scores[-1]):
            raise DivergedError(f"the score of the held-out rows is {scores[-1]}", state)
        if scores[-1] > best:
            best, best_step, best_params = scores[-1], check, params
        elif check - best_step >= patience:
            reason = f"nothing better for {patience * every} steps"
            break
    assert best_params is not None
    when = every * np.arange(1, len(scores) + 1)
    return Validated(best_params, best, every * best_step, when, np.array(scores), reason)


class Held(NamedTuple):
    """How rows that are held out are scored, and those rows: they are an argument of it."""

    score: Callable[[Params, tuple], Array]
    leaves: tuple


def _mean_evidence(method: Any, valid: Array, kwargs: dict[str, Any]) -> Held:
    if hasattr(method, "log_likelihood"):  # its own, which is exact and need not be looked for
        own = lambda p, leaves: method.log_likelihood(p, *leaves, **kwargs).mean()  # noqa: E731
        return Held(own, (jnp.asarray(valid),))
    estimator = likelihood(method.model, jnp.asarray(valid), **kwargs)
    function, hollow = estimator.function, estimator.rows._replace(leaves=())

    def mean(params: Params, leaves: tuple) -> Array:
        return function(params, hollow._replace(leaves=leaves)).value.mean()

    return Held(mean, estimator.rows.leaves)


def _parted(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that are arrays, which a compiled function is passed, and the others."""
    arrays = {x: v for x, v in kwargs.items() if isinstance(v, np.ndarray | Array)}
    return arrays, {x: v for x, v in kwargs.items() if x not in arrays}
