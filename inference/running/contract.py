"""What a method is, and what its run returns.

A method looks like `numpyro.infer.SVI`:

    em = EM(binary_sparse_coding)
    result = em.run(random.key(0), 60, data, num_causes=10)    # .params .losses .state
    state = em.init(key, data, num_causes=10)
    state, loss = em.update(state, data, num_causes=10)        # pure: jit, vmap, scan apply
    em.get_params(state)
    em.posterior(result.params, data, num_causes=10)           # of each row's latents

A state is what the next step needs, and nothing else: what a diagnosis needs comes from functions
of its own. One of them, `posterior`, gives the `Posterior` of each row's latents. A one-shot method
does its work in `init` and has an idle `update`.
The loss is what the method minimises, summed over the data: for EM the negative log evidence (or
its bound) of the parameters *before* the update, less their log prior density with ``prior=True``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from jax import Array, lax

from ..types import Params


class Method(Protocol):
    """What the loop, the checkpoints and the devices need of a method."""

    model: Callable
    by_row: ClassVar[tuple[str, ...] | None]
    why_no_mesh: str
    window: int

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int: ...

    def update(self, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Array]: ...

    def get_params(self, state: Any) -> Params: ...

    def may_stop(self, state: Any) -> bool | Array: ...


class Searchable(Method, Protocol):
    """What a search over starts needs of a method besides."""

    plate: str | None

    def init(self, rng_key: Array, *args: Any, **kwargs: Any) -> Any: ...

    def refuse(self, rng_key: Array, *args: Any, **kwargs: Any) -> None: ...

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params: ...

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params: ...

    def narrowed(self, rows: Any) -> Any: ...


class Stop(enum.Enum):
    """Why a run ended; the value is how a sentence about it begins.

    >>> Stop.TOLERANCE.converged, Stop.STEPS.converged
    (True, False)
    """

    STEPS = "all steps done"
    TOLERANCE = "left to gain by estimate: less than"
    BUDGET = "out of budget after"
    INTERRUPTED = "interrupted after"

    @property
    def converged(self) -> bool:
        """Whether the method itself saw nothing left to gain."""
        return self is Stop.TOLERANCE


class Starts(enum.Enum):
    """Where a method starts, which decides what several starts of it are."""

    RANDOM = "where its key says"
    DATA = "where the data say; further starts are draws from the prior"
    ONE = "always at the same place, or it chooses among several by itself"


MOST_SHOWN = 6
"""Losses of optima in a sentence."""


NATS = 10.0
"""Below the best an optimum holds nothing of a posterior."""


class Optima(NamedTuple):
    """Where the lineages of a run ended.

    >>> optima = Optima(np.array([10.0, 10.0, 12.5]), agree=2, alone=1)
    >>> optima.better, str(optima)
    (0.4, '2 of 3 starts agree on the best optimum (losses 10, 10, 12.5)')
    """

    values: np.ndarray  # (num_lineages,) the loss that each ended with, the best first
    agree: int  # how many ended at the best, as far as their steps can tell
    alone: int  # how many ended where no other did
    params: Params | None = None  # (num_lineages, ...) by site, where each ended

    @property
    def better(self) -> float:
        """An estimate of the probability that another lineage would end at an optimum not met yet.

        The share of lineages that ended alone (Good 1953), with one success and one failure added,
        since there are few: it cannot be less than 1 / (num_lineages + 2).
        """
        return (self.alone + 1) / (len(self.values) + 2)

    @property
    def others(self) -> Params | None:
        """Parameters of the optima below the best that hold a part of a posterior, if any do."""
        few = slice(self.agree, int((self.values < self.values[0] + NATS).sum()))
        if self.params is None or few.start >= few.stop:
            return None
        return {x: v[few] for x, v in self.params.items()}

    def __str__(self) -> str:
        losses = ", ".join(f"{x:.6g}" for x in self.values[:MOST_SHOWN])
        losses += ", …" if len(self.values) > MOST_SHOWN else ""
        return (
            f"{self.agree} of {len(self.values)} starts agree on the best optimum (losses {losses})"
        )


class RunResult(NamedTuple):
    """What `run` returns; the first three as `SVIRunResult` has them.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> data = jnp.array([[0, 0, 1], [1, 1, 0], [1, 1, 1]])
    >>> result = EM(bernoulli_mixture).run(random.key(0), 2, data, num_components=2)
    >>> sorted(result.params), result.losses.shape, result.reason
    (['mixing', 'probs'], (2,), 'all steps done')
    """

    params: Params
    state: Any
    losses: Array  # (steps done,)
    reason: str  # why it stopped, in words
    seconds: float  # without compilation, by `running.clock`
    compile_seconds: float
    history: Any = None  # what `record` saw of the parameters after each step
    stop: Stop = Stop.STEPS  # why it stopped
    optima: Optima | None = None  # where several starts ended, if there were several
    search_seconds: float = 0.0  # of `seconds`, those before the first step

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.stop is Stop.INTERRUPTED


def follow(method: Any, state: Any, num_steps: int, *args: Any, **kwargs: Any) -> tuple[Any, Array]:
    """So many steps as one pure function: where they end, and the loss of each."""
    step = lambda state, _: method.update(state, *args, **kwargs)  # noqa: E731
    return lax.scan(step, state, None, length=num_steps)


class Posterior(NamedTuple):
    """The posterior of the latents of each datum, and how far it can be trusted.

    A field is None where a method does not say it. `GibbsPosterior` is another name of this class.

    >>> import jax.numpy as jnp
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9], [0.1]])}
    >>> posterior = EM(bernoulli_mixture).posterior(params, jnp.array([[1]]), num_components=2)
    >>> posterior.best.tolist(), round(float(jnp.exp(posterior.evidence[0])), 4)
    ([[0]], 0.5)
    >>> [round(float(x), 4) for x in posterior.probabilities["component"][0]]
    [0.9, 0.1]
    >>> posterior.covariance is None
    True
    """

    mean: Any = None  # (num_data, size) of bits or factors; sites in the order of the program
    covariance: Any = None  # (num_data, size, size)
    evidence: Any = (
        None  # (num_data,) log evidence as the method has it: a sum over states, a bound
    )
    gap: Any = None  # (num_data,) the evidence by fine quadrature less that one
    effective: Any = None  # (num_data,) how many points carry the posterior; NaN for a Gaussian
    probabilities: Any = {}  # noqa: RUF012
    """discrete site -> (num_data, ..., num_values), of each of its values"""
    best: Any = None  # (num_data, num_bits) the most probable state, or the best that was met
    missed: Any = None  # (num_data,) share of the posterior mass that lies elsewhere, at least
    missed_error: Any = None  # (num_data,) standard error of that estimate
    missed_between: Any = None  # (num_data, 2) least and most of that share, proved
    error: Any = None  # (num_data, num_bits) standard error of a mean over draws
    log_joint: Any = None  # (num_data,) log p(y, best), where states are drawn


class DivergedError(FloatingPointError):
    """The loss or a parameter is no longer a number. `state` is the last good one.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
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


class CheckpointError(ValueError):
    """A folder or a file that a run cannot be saved to or resumed from; the message says why.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> with tempfile.NamedTemporaryFile(prefix="no folder") as file:
    ...     try:
    ...         EM(bernoulli_mixture).run(
    ...             random.key(0), 2, jnp.eye(3), num_components=2, checkpoint=file.name)
    ...     except CheckpointError as error:
    ...         print(str(error).replace(file.name, "FILE"))
    cannot save to FILE: File exists
    """
