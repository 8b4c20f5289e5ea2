"""The generic samplers on the same programs: NUTS, NumPyro's own Gibbs (`variational` has SVI).

Discrete latents are summed out by `marginal` where a gradient is needed; everything else is
NumPyro's. What is added is a clock: each runs in compiled blocks, so that a budget of seconds can
end it, Ctrl-C is heard, and the time to any accuracy can be read off afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax import Array, lax, random
from numpyro.infer import NUTS
from numpyro.infer.gibbs import discrete_latent_sites
from numpyro.infer.mcmc import MCMCKernel

from ..methods.gibbs.flips import Rules
from ..methods.gibbs.kernel import LatentGibbs
from ..reading.anatomy import Anatomy, ProgramError, inspect
from ..reading.arguments import check_data
from ..rows.devices import OneDevice, one_device
from ..running.contract import Stop
from ..running.memory import check_fits
from ..running.search import each
from ..types import Params
from . import pacing, starts
from .starts import Climbs, climbs_of, differentiable

SNAPSHOTS = 50
"""How often the clock of a run is read."""


class Draws(NamedTuple):
    """What a generic method hands out: draws of the parameters, and when they were to be had."""

    params: dict[str, Any]  # (num_chains, num_draws, ...) by site
    stats: dict[str, np.ndarray]  # (num_chains, num_draws)
    losses: np.ndarray  # (steps done,), empty for a sampler
    snapshots: dict[str, Any]  # (num_times, num_draws, ...); for a sampler its draws, one a time
    clock: np.ndarray  # (num_times,) seconds, compilation left out
    seconds: float  # by `running.clock`
    compile_seconds: float
    reason: str  # why it ended, in words
    stop: Stop = Stop.STEPS
    starts: np.ndarray = np.empty(0)  # (num_starts,) the last loss of each, where several were made


def nuts(
    model: Callable,
    rng_key: Array,
    *args: Any,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    budget: float | None = None,
    memory: float | None = None,
    target_accept: float = 0.8,
    places: Params | None = None,
    metric: np.ndarray | None = None,
    **kwargs: Any,
) -> Draws:
    """NUTS on all continuous sites, discrete latents summed out.

    With discrete latents each chain begins at the best of several climbs (`baselines.starts`),
    unless it is said where.

    :param budget: seconds for climbs, warm-up and draws, by `running.clock`.
    :param memory: bytes that its compiled steps may take; if they would take more, none is run.
    :param target_accept: of its steps, by which their size is adapted.
    :param places: where chains begin, unconstrained, by site (num_chains, ...).
    :param metric: the covariance that scales its space, in place of variances learned in warm-up.
    """
    check_data(args, kwargs)
    anatomy = inspect(model, args, kwargs)
    program = differentiable(model, anatomy)

    def kernel(depth: int) -> MCMCKernel:
        known = metric is not None
        return NUTS(
            program, max_tree_depth=depth, target_accept_prob=target_accept, dense_mass=known,
            inverse_mass_matrix=metric, adapt_mass_matrix=not known,
        )  # fmt: skip

    return sample(
        kernel, anatomy, rng_key, args, kwargs, num_warmup, num_samples, num_chains, budget, memory,
        start=climbs_of(model, anatomy) if places is None else None, slope=program, places=places,
    )  # fmt: skip


def discrete_gibbs(
    model: Callable,
    rng_key: Array,
    *args: Any,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    budget: float | None = None,
    memory: float | None = None,
    latent: bool = False,
    **kwargs: Any,
) -> Draws:
    """NumPyro's own Gibbs: its `DiscreteGibbs` for the bits, NUTS for the parameters.

    :param latent: `LatentGibbs` for the bits.
    """
    check_data(args, kwargs)
    anatomy = inspect(model, args, kwargs)
    problem = (no_binary_gibbs if latent else no_discrete_gibbs)(anatomy)
    if problem is not None:
        raise ProgramError(problem)

    def kernel(depth: int) -> MCMCKernel:
        others = NUTS(model, find_heuristic_step_size=False, max_tree_depth=depth)
        return (binary_gibbs_kernel if latent else discrete_gibbs_kernel)(model, anatomy, others)

    def first(device: OneDevice, keys: Array) -> float:
        # NumPyro reads the program for each value of each site and row.
        values = [x.num_values for x in anatomy.latents if x.num_values is not None]
        visits = visits_to_settle(anatomy) if latent else anatomy.num_data * sum(values)
        return visits * starts.seconds_of_reading(model, device, keys)

    return sample(
        kernel, anatomy, rng_key, args, kwargs, num_warmup, num_samples, num_chains, budget, memory,
        start=climbs_of(model, anatomy), first=first,
    )  # fmt: skip


def no_discrete_gibbs(anatomy: Anatomy) -> str | None:
    """Why NumPyro's own Gibbs does not apply, or None."""
    discrete = [x for x in anatomy.latents if x.num_values is not None]
    if not discrete:
        return "the program has no discrete latent: NUTS samples all of it"
    for latent in discrete:
        if len(latent.shape) > latent.batch_ndim:
            return f"{latent.name!r} is a vector of bits, and NumPyro lists scalar sites only"
    return None


def discrete_gibbs_kernel(model: Callable, anatomy: Anatomy, others: MCMCKernel) -> MCMCKernel:
    """Bits by listing their values, `others` for the rest, in turn."""
    del anatomy
    bits = numpyro.infer.DiscreteGibbs(model)
    return numpyro.infer.Gibbs([(bits, discrete_latent_sites), (others, None)])


def sample(
    make_kernel: Callable[[int], MCMCKernel],
    anatomy: Anatomy,
    rng_key: Array,
    args: tuple,
    kwargs: dict[str, Any],
    num_warmup: int,
    num_samples: int,
    num_chains: int,
    budget: float | None,
    memory: float | None = None,
    start: Climbs | None = None,
    slope: Callable | None = None,
    first: Callable[[OneDevice, Array], float] | None = None,
    places: Params | None = None,
) -> Draws:
    """Drive any kernel of NumPyro's, all chains at once, in blocks; keep the parameters.

    :param make_kernel: from the largest depth of a trajectory of NUTS to the kernel.
    :param start: the climbs at whose end a chain begins; by default the kernel says where.
    :param slope: without climbs, the program whose gradient NUTS takes: what that costs says how
        long a trajectory may be.
    :param first: from the arguments and the keys to the seconds that it takes at least before it
        has a draw: what cannot be ended is not begun without half a budget.
    :param places: where chains begin, if there are no climbs.
    """
    began = time.perf_counter()
    ran = 0.0  # seconds of what was compiled already, which the budget counts
    keys_start, keys = jax.vmap(random.split, out_axes=1)(random.split(rng_key, num_chains))
    depth = pacing.MOST_DEPTH
    device = one_device(args, kwargs)
    if start is not None:
        places, gradient, ran = starts.climb(start, device, keys_start, budget, memory)
        depth = pacing.depth_within(gradient, budget)
        if first is not None and budget is not None:
            least = first(device, keys_start)
            if least > 0.5 * budget:
                raise pacing.BudgetError(
                    f"before a draw it takes about {least:.2g} s, so none was made"
                )
    elif slope is not None and budget is not None:
        ran = starts.seconds_of_gradient(slope, device, keys_start)
        depth = pacing.depth_within(ran, budget)
    most = max(1, min(num_warmup, num_samples) // SNAPSHOTS)

    def make() -> tuple[Any, Any]:
        kernel = make_kernel(depth)

        # One chain, many times: every kernel knows one key, and only some a batch of them.
        def begin(keys: Array, places: Params | None, args: tuple, kwargs: dict) -> Any:
            def one(key: Array, place: Params | None) -> Any:
                return kernel.init(key, num_warmup, place, model_args=args, model_kwargs=kwargs)

            return jax.vmap(one)(keys, places)

        def advance(state: Any, count: Array, args: tuple, kwargs: dict) -> tuple[Any, Any]:
            """So many steps, of which a block has at most `most`."""
            finish = kernel.postprocess_fn(args, kwargs)

            def seen(state: Any) -> tuple[Any, Any]:
                sites = finish(getattr(state, kernel.sample_field))
                return {x: sites[x] for x in anatomy.parameters}, _stats(state)

            def one(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                # A batch of chains goes through both branches of every step, and each as far as
                # the longest trajectory.
                state = each(lambda one: kernel.sample(one, args, kwargs))(carry[0])
                draw = jax.vmap(seen)(state)
                return state, jax.tree.map(lambda all_, x: all_.at[i].set(x), carry[1], draw)

            # Of the state as it is: to trace a step of NUTS takes seconds.
            shapes = jax.eval_shape(jax.vmap(seen), state)
            drawn = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), shapes)
            return lax.fori_loop(0, count, one, (state, drawn))

        begins = pacing.lower(begin, device, keys, places)
        return begins, pacing.lower(advance, device, pacing.results(begins), np.int32(1))

    settings = make_kernel, depth, anatomy, num_warmup, most
    begin, advance = pacing.kept(make, device, (keys, places), *settings)
    check_fits(advance, memory, "a step of its chains")
    state, seconds = pacing.timed(begin, device, keys, places)
    ran += seconds
    compile_seconds = time.perf_counter() - began - ran

    timer = pacing.Budget(budget)
    timer.began -= ran
    step = lambda state, count: advance(device.arrays, state, count)  # noqa: E731
    warm = pacing.in_blocks(step, state, num_warmup, timer, most)
    course = pacing.in_blocks(step, warm.state, num_samples, timer, most)
    done = course.done
    if not done:
        raise pacing.BudgetError(f"{timer.seconds:.0f} s were spent in warm-up: no draw was made")
    joined = lambda *x: np.swapaxes(np.concatenate(x), 0, 1)  # noqa: E731
    params, stats = jax.tree.map(joined, *course.results)
    times = np.interp(np.arange(1, done + 1), course.ends, course.seconds)
    stop = Stop.STEPS if done >= num_samples else Stop.BUDGET
    reason = "all draws made" if stop is Stop.STEPS else f"{stop.value} {done} draws"
    if depth < pacing.MOST_DEPTH:
        reason += f", trajectories of at most {2**depth - 1} steps to keep to the budget"
    # Of a sampler, what is known at a time is all draws so far.
    flat = {x: np.swapaxes(v, 0, 1) for x, v in params.items()}
    return Draws(
        params, stats, np.empty(0), flat, times, timer.seconds, compile_seconds, reason, stop
    )


def _stats(state: Any) -> dict[str, Array]:
    """What the kernel says of each draw, under ArviZ's names.

    Of several blocks the one for the parameters speaks: given the bits, it has the log joint.
    """
    parts = [*getattr(state, "block_states", ()), state]
    names = {"num_steps": "n_steps", "accept_prob": "acceptance_rate"}
    names |= {"diverging": "diverging", "energy": "energy"}
    stats = {new: getattr(x, old) for x in parts for old, new in names.items() if hasattr(x, old)}
    for part in parts:
        if hasattr(part, "potential_energy"):
            stats["lp"] = -part.potential_energy
    return stats


SWEEPS = 3
"""Through the bits for each move of the parameters: a sweep is cheap beside it."""
RESTARTS = 8
"""Starts of a row's bits, the best of which begins. From bits of the prior, parameters were dragged
off the place that was climbed to: `latentbits calibrate binary_sparse_coding --trials 200 --seed 1`
had p = 0.003, and the truth one of the two highest ranks in 15 trials, where 4 are due; four times
the warm-up changed nothing. So it is 6, as with NUTS."""


def binary_gibbs_kernel(model: Callable, anatomy: Anatomy, others: MCMCKernel) -> MCMCKernel:
    """`LatentGibbs` for the bits, which begin where the parameters put them, `others` in turn."""
    bits = LatentGibbs(model, sweeps=SWEEPS, restarts=RESTARTS)
    return numpyro.infer.Gibbs([(bits, list(anatomy.names)), (others, None)])


def visits_to_settle(anatomy: Anatomy) -> int:
    """Readings that the bits of all chains take until they begin: two for each visit, on a CPU of
    each of `RESTARTS`, which an accelerator runs side by side."""
    several = RESTARTS if jax.default_backend() == "cpu" else 1
    return 2 * several * Rules().max_sweeps * anatomy.num_bits


def no_binary_gibbs(anatomy: Anatomy) -> str | None:
    """Why `LatentGibbs` in turn with NUTS does not apply, or None."""
    return None if anatomy.binary else "it is run here on binary latents alone"
