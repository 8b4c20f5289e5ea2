"""The contract that every bespoke method meets, and the one loop that drives them all.

A method looks like `numpyro.infer.SVI`:

    em = EM(binary_sparse_coding)
    result = em.run(random.key(0), 60, data, num_causes=10)    # .params .losses .state
    state = em.init(key, data, num_causes=10)
    state, loss = em.update(state, data, num_causes=10)        # pure: jit, vmap, scan apply
    em.get_params(state)

A one-shot method does its work in `init` and has an idle `update`. The loss is what the method
minimises, summed over the data: for EM the negative log evidence (or its bound) of the parameters
*before* the update.
"""

from __future__ import annotations

import abc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from inference.anatomy import Anatomy
from inference.local import Params


class RunResult(NamedTuple):
    """What `run` returns; the first three as `SVIRunResult` has them."""

    params: Params
    state: Any
    losses: Array  # (steps done,)
    reason: str  # why it stopped
    seconds: float  # without compilation
    compile_seconds: float
    history: Any = None  # what `record` saw of the parameters after each step


class DivergedError(FloatingPointError):
    """The loss is no longer a number. `state` is the last good one."""

    def __init__(self, message: str, state: Any):
        super().__init__(message)
        self.state = state


class Algorithm(abc.ABC):
    """A method of inference on a program."""

    model: Callable

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        """None if the method applies to a program of this anatomy, else the reason why not."""
        del anatomy
        return None

    @abc.abstractmethod
    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> Any:
        """Check the program and its data, and give the state to start from."""

    @abc.abstractmethod
    def update(self, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Array]:
        """One step: the next state, and the loss of the state that was passed in."""

    @abc.abstractmethod
    def get_params(self, state: Any) -> Params:
        """The parameters of the program, by site."""

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        tolerance: float | None = None,
        init_state: Any = None,
        init_params: Params | None = None,
        record: Callable[[Params], Any] | None = None,
        budget: float | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Repeat `update` up to `num_steps` times.

        :param progress_bar: show one; never without a terminal or under CI.
        :param tolerance: stop when the loss changes by less than this share of itself.
        :param init_state: go on from here; `rng_key` is then not used.
        :param init_params: start from these parameters.
        :param record: a function of the parameters to keep after each step, in ``history``.
        :param budget: begin no further block of steps after so many seconds; compilation is free.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, found {num_steps}")

        # Not the state itself, which would be held here for as long as the loop runs.
        def start() -> Any:
            if init_state is not None:
                return init_state
            return self.init(rng_key, *args, init_params=init_params, **kwargs)

        return drive(self, start, num_steps, args, kwargs, progress_bar, tolerance, record, budget)


class _Progress(NamedTuple):
    state: Any
    good: Any  # the last state but one: the loss of `state` itself is not known yet
    losses: Array
    history: Any
    step: Array
    change: Array


def drive(
    method: Algorithm,
    start: Callable[[], Any],
    num_steps: int,
    args: tuple,
    kwargs: dict[str, Any],
    progress_bar: bool,
    tolerance: float | None,
    record: Callable[[Params], Any] | None = None,
    budget: float | None = None,
) -> RunResult:
    """The loop: compiled once, run in blocks so that a bar can move and Ctrl-C is heard.

    A block is written over the one before it: of a state with an entry for each datum no more is
    held than the last, the last but one and the next.
    """
    state = start()
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(x, np.ndarray | Array) for x in leaves]
    static = [None if a else x for a, x in zip(is_array, leaves, strict=True)]
    arrays = [jnp.asarray(x) for a, x in zip(is_array, leaves, strict=True) if a]
    limit = -1.0 if tolerance is None else tolerance

    def see(state: Any) -> Any:
        return None if record is None else record(method.get_params(state))

    def merge(arrays: list[Array]) -> tuple[tuple, dict[str, Any]]:
        given = iter(arrays)
        merged = [next(given) if a else x for a, x in zip(is_array, static, strict=True)]
        return jax.tree.unflatten(tree, merged)

    # Traced once: the loop below finds it done, and starts a sixth sooner.
    @jax.jit
    def update(state: Any, arrays: list[Array]) -> tuple[Any, Array]:
        args, kwargs = merge(arrays)
        return method.update(state, *args, **kwargs)

    def block(progress: _Progress, end: Array, arrays: list[Array]) -> _Progress:
        def unfinished(p: _Progress) -> Array:
            return (p.step < end) & (p.change > limit)

        def advance(p: _Progress) -> _Progress:
            state, loss = update(p.state, arrays)
            last = p.losses[jnp.maximum(p.step - 1, 0)]
            change = jnp.where(p.step > 0, jnp.abs(loss - last) / (1e-30 + jnp.abs(loss)), jnp.inf)
            # A loss that is no number ends the loop: NaN is never larger than the limit.
            change = jnp.where(jnp.isfinite(loss), change, jnp.nan)
            losses = p.losses.at[p.step].set(loss)
            history = jax.tree.map(lambda h, x: h.at[p.step].set(x), p.history, see(state))
            # The loss is that of the state passed in: where it is no number, that state is bad.
            choose = partial(jnp.where, jnp.isfinite(loss))
            state, good = jax.tree.map(choose, (state, p.state), (p.state, p.good))
            return _Progress(state, good, losses, history, p.step + 1, change)

        return lax.while_loop(unfinished, advance, progress)

    dtype = jax.eval_shape(update, state, arrays)[1].dtype
    zero = jnp.zeros((), int)
    losses = jnp.full(num_steps, jnp.nan, dtype)
    history = jax.tree.map(
        lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), jax.eval_shape(see, state)
    )
    # Copies: the caller's state is not written over, nor is one array in two places.
    state, good = (jax.tree.map(jnp.copy, state) for _ in range(2))
    progress = _Progress(state, good, losses, history, zero + 0, jnp.array(jnp.inf, dtype))
    del state, good

    began = time.perf_counter()
    compiled = jax.jit(block, donate_argnums=0).lower(progress, zero, arrays).compile()
    compile_seconds = time.perf_counter() - began

    began, done, size = time.perf_counter(), 0, max(1, num_steps // 20)
    with _bar(num_steps, progress_bar) as bar:
        while done < num_steps:
            progress = compiled(progress, jnp.minimum(zero + done + size, num_steps), arrays)
            new = int(progress.step)
            bar.update(new - done)
            finished, done = new < min(done + size, num_steps), new
            if finished or not progress.change > limit:
                break
            if budget is not None and time.perf_counter() - began > budget:
                break
            bar.set_postfix_str(f"loss {float(progress.losses[done - 1]):.6g}", refresh=False)
    seconds = time.perf_counter() - began

    if np.isnan(progress.change):
        loss = float(progress.losses[done - 1])
        raise DivergedError(
            f"the loss is {loss} at step {done}: {_not_finite(progress)}", progress.good
        )
    reason = "all steps done"
    if not progress.change > limit:
        reason = f"the loss changed by less than {tolerance} of itself"
    elif done < num_steps:
        reason = f"out of budget after {done} steps"
    state = progress.state
    history = jax.tree.map(lambda x: x[:done], progress.history)
    params, losses = method.get_params(state), progress.losses[:done]
    return RunResult(params, state, losses, reason, seconds, compile_seconds, history)


def _not_finite(progress: _Progress) -> str:
    paths = jax.tree_util.tree_flatten_with_path(progress.state)[0]
    for path, leaf in paths:
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.isfinite(leaf).all()):
            return f"{jax.tree_util.keystr(path)} is not finite"
    return "the parameters are finite; the log density of the data under them is not"


def _bar(total: int, wanted: bool) -> Any:
    from tqdm import tqdm

    visible = wanted and sys.stderr.isatty() and "CI" not in os.environ
    return tqdm(total=total, disable=not visible)
