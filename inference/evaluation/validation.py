"""Early stopping by rows that are not trained on: keep the parameters that explain them best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..rows.devices import one_device
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
    score = _mean_evidence(method, valid, kwargs) if score is None else jax.jit(score)
    state = method.init(rng_key, data, init_params=init_params, **kwargs)
    device = one_device((data,), kwargs)

    @jax.jit
    def advance(state: Any, arrays: list[Array]) -> tuple[Any, Params]:
        args, parts = device.arguments(arrays)
        state, _ = follow(method, state, every, *args, **parts)
        return state, method.get_params(state)

    best, best_step, best_params = -np.inf, 0, None
    scores: list[float] = []
    reason = "all steps done"
    for check in range(1, -(-num_steps // every) + 1):
        state, params = advance(state, device.arrays)
        scores.append(float(score(params)))
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


def _mean_evidence(method: Any, valid: Array, kwargs: dict[str, Any]) -> Callable[[Params], Any]:
    """The mean log likelihood of rows: by the method itself where it has an exact one."""
    if hasattr(method, "log_likelihood"):
        own = jax.jit(lambda params, rows: method.log_likelihood(params, rows, **kwargs).mean())
        return lambda params: own(params, jnp.asarray(valid))
    estimator = likelihood(method.model, jnp.asarray(valid), **kwargs)
    return lambda params: estimator(params).value.mean()
