"""Splitting EM for a mixture: 1 → 2 → 4 → … components, Freund & Haussler (1994), section 4."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.log_joint import Structure
from ...reading.states import AllStates, StateSet
from ...rows.chunks import Rows, compiled
from ...running.settings import Range
from ...types import Params
from .em import EM
from .step import EMState
from .updates import ClosedForm, MixtureUpdate


class SplittingState(NamedTuple):
    """What the next step needs."""

    params: Params
    level: Array  # there are min(2^level, num_components) different components
    last: Array  # the level at which there are all of them
    step: Array
    rng_key: Array


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SplittingEM(EM):
    """EM for a mixture of Bernoulli products that starts from one component and splits them.

    Every `steps_per_size` iterations each component is split into two, slightly and randomly
    different from it, until there are as many as asked for: 1 → 2 → 4 → … → 32 → 45, where of the
    32 the first 13 split.

    A mixture of fewer components is held as one of all, some of them equal: EM leaves equal
    components equal, so that a step costs the same and compiles once whatever the size.

    :param model: `bernoulli_mixture`, or a program of its form.
    :param steps_per_size: EM iterations before the next split.
    :param jitter: standard deviation of what is added to the log odds of either half of a split.
    :param pseudo_count: see `MixtureUpdate`; more than the default keeps a mixture of many
        components from learning its few rows by heart.

    >>> from latentbits.models import bernoulli_mixture
    >>> data = random.bernoulli(random.key(0), 0.3, (20, 6)).astype(float)
    >>> method = SplittingEM(bernoulli_mixture, steps_per_size=5)
    >>> state = jax.eval_shape(lambda: method.init(random.key(1), data, num_components=3))
    >>> state.params["probs"].shape, method.num_steps(3)  # 1, 2, 3 components
    ((3, 6), 15)
    """

    staged = True
    monotone = False  # a split may be worse at first
    pads = False

    steps_per_size: int = 20
    jitter: Annotated[float, Range(0)] = 0.1
    pseudo_count: Annotated[float, Range(0)] = 1e-6
    # It has one start, one component, and one closed step.
    states: StateSet = dataclasses.field(default=AllStates(), init=False)
    prior: bool = dataclasses.field(default=False, init=False)
    start: None = dataclasses.field(default=None, init=False)
    search: None = dataclasses.field(default=None, init=False)
    gradient_steps: int = dataclasses.field(default=1, init=False)
    structure: Structure | None = dataclasses.field(default=Structure.GENERAL, init=False)
    m_step: ClosedForm | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "m_step", MixtureUpdate(self.pseudo_count))

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if len(anatomy.latents) != 1 or anatomy.num_bits != 1 or not anatomy.latents[0].num_values:
            return "splitting is for one categorical latent per datum"
        if not all(name.startswith("Bernoulli") for name in anatomy.likelihoods):
            return "splitting is for a mixture of Bernoulli products"
        return None

    def num_steps(self, num_components: int) -> int:
        """Iterations from one component to the end of EM at full size: 140 for 45 components."""
        return self.steps_per_size * (1 + _last_level(num_components))

    def default_steps(self, anatomy: Anatomy) -> int:
        """Those of all its stages."""
        return self.num_steps(anatomy.latents[0].num_values or 1)

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> SplittingState:
        if init_params is not None:
            raise ValueError("splitting starts from one component: it takes no init_params")
        problem = self.admits(inspect(self.model, args, kwargs, plate=self.plate))
        if problem is not None:
            raise ProgramError(f"splitting does not apply: {problem}")
        mixture, rows = self._mixture(args, kwargs)
        assert mixture.known is not None
        shape = mixture.known.places["probs"].positions.shape

        # In one piece: to do it operation by operation is to compile ten programs.
        def first(rows: Rows, rng_key: Array) -> SplittingState:
            args, kwargs = rows.join(rows.leaves)
            key_start, key = random.split(rng_key)
            # One EM step from equal components is the product of the means.
            equal = {"mixing": jnp.full(shape[0], 1.0 / shape[0]), "probs": jnp.full(shape, 0.5)}
            start = super(SplittingEM, self).init(
                key_start, *args, init_params=mixture.write(equal), **kwargs
            )
            state, _ = super(SplittingEM, self).update(start, *args, **kwargs)
            zero = jnp.zeros((), int)
            return SplittingState(state.params, zero, zero + _last_level(shape[0]), zero, key)

        return compiled(first, rows)(rows.leaves, rng_key)

    def update(
        self, state: SplittingState, *args: Any, **kwargs: Any
    ) -> tuple[SplittingState, Array]:
        mixture, _ = self._mixture(args, kwargs)
        key, key_split = random.split(state.rng_key)
        due = (state.step > 0) & (state.step % self.steps_per_size == 0)
        due = due & (state.level < state.last)
        level = state.level + due
        values = mixture.read(state.params)
        values = lax.cond(
            due,
            lambda: _split(key_split, values, state.level, self.jitter),
            lambda: values,
        )
        before = EMState(mixture.write(values), state.step, key, None)
        after, loss = super().update(before, *args, **kwargs)
        params = mixture.write(_tie(mixture.read(after.params), level))
        return SplittingState(params, level, state.last, state.step + 1, key), loss

    def may_stop(self, state: SplittingState) -> Array:
        """Not before the last split, nor in the step after it."""
        return (state.level >= state.last) & (state.step > state.last * self.steps_per_size + 1)

    def _mixture(self, args: tuple, kwargs: dict) -> tuple[MixtureUpdate, Rows]:
        """The closed form, with where the program at hand has the parameters of a mixture."""
        reader, rows = self.open(args, kwargs)
        assert isinstance(self.m_step, MixtureUpdate)
        return self.m_step.of(reader, rows), rows


def _last_level(num_components: int) -> int:
    return max(num_components - 1, 0).bit_length()


# By default a GPU multiplies with ten bits: a probability could exceed 1.
@jax.default_matmul_precision("highest")
def _tie(params: Params, level: Array) -> Params:
    """Components that are the same one at this level, made equal to the last digit."""
    mixing, probs = params["mixing"], params["probs"]
    slot = jnp.arange(len(mixing)) % (2**level)
    same = (slot[:, None] == slot).astype(mixing.dtype)
    total = same @ mixing
    # In shares of their own weight, so that a component of no weight at all keeps its place.
    share = mixing / jnp.maximum(total, jnp.finfo(mixing.dtype).tiny)
    share = jnp.where(total > 0, share, 1.0 / same.sum(1))
    return {"mixing": total / same.sum(1), "probs": (same * share) @ probs}


@jax.default_matmul_precision("highest")
def _split(key: Array, params: Params, level: Array, jitter: float) -> Params:
    """Two of each component: equal weights, log odds moved apart at random."""
    mixing, probs = params["mixing"], params["probs"]
    count = len(mixing)
    place = jnp.arange(count)
    old, new = place % (2**level), place % (2 ** (level + 1))
    same_old = (old[:, None] == old).astype(mixing.dtype)
    same_new = (new[:, None] == new).astype(mixing.dtype)
    # The last split may be of some components only: the others keep all their weight.
    halves = same_old @ (1.0 / same_new.sum(1))
    mixing = (same_old @ mixing) / halves / same_new.sum(1)
    noise = jitter * random.normal(key, probs.shape)[new]
    moved = jax.nn.sigmoid(jax.scipy.special.logit(probs) + noise)
    return {"mixing": mixing, "probs": jnp.where((halves > 1.5)[:, None], moved, probs)}
