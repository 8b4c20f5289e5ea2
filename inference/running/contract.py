"""What a method is, and what its run returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array

from inference.types import Params


class RunResult(NamedTuple):
    """What `run` returns; the first three as `SVIRunResult` has them.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from inference import EM
    >>> from ppl_models import bernoulli_mixture
    >>> data = jnp.array([[0, 0, 1], [1, 1, 0], [1, 1, 1]])
    >>> result = EM(bernoulli_mixture).run(random.key(0), 2, data, num_components=2)
    >>> sorted(result.params), result.losses.shape, result.reason
    (['mixing', 'probs'], (2,), 'all steps done')
    """

    params: Params
    state: Any
    losses: Array  # (steps done,)
    reason: str  # why it stopped
    seconds: float  # without compilation
    compile_seconds: float
    history: Any = None  # what `record` saw of the parameters after each step
    interrupted: bool = False  # by Ctrl-C


class DivergedError(FloatingPointError):
    """The loss or a parameter is no longer a number. `state` is the last good one.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from inference import EM
    >>> from ppl_models import bernoulli_mixture
    >>> wrong = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.full((2, 3), jnp.nan)}
    >>> try:
    ...     EM(bernoulli_mixture).run(
    ...         random.key(0), 2, jnp.eye(3), num_components=2, init_params=wrong)
    ... except DivergedError as error:
    ...     print(error)
    the loss is nan at step 1: 'probs' is not finite
    """

    def __init__(self, message: str, state: Any):
        super().__init__(message)
        self.state = state
