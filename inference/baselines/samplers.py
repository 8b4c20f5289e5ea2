"""The generic samplers on the same programs: NUTS, NumPyro's own Gibbs (`variational` has SVI).

Discrete latents are summed out by `marginal` where a gradient is needed; everything else is
NumPyro's. What is added is a clock: each runs in compiled blocks, so that a budget of seconds can
end it, Ctrl-C is heard, and the time to any accuracy can be read off afterwards.
"""

from __future__ import annotations

import enum
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
from .starts import climbs_of, differentiable

SNAPSHOTS = 50
"""How often the clock of a run is read."""


FIRST_CHECK, GROWTH = 100, 1.25
"""Draws of each chain after which a run is first asked whether they are enough, and by how much
more there are at each further time."""
ROOM = 200.0
"""Seconds that the length of a trajectory is chosen for where a run goes on until it is enough."""
HIGH_ACCEPT = 0.95
"""Target acceptance after divergences: shorter steps."""
MOST_DENSE = 300
"""Unknowns up to which a longer warm-up learns a dense metric."""


class Advice(enum.Enum):
    """What the draws of a sampler ask for."""

    ENOUGH = enum.auto()
    GO_ON = enum.auto()
    LONGER_WARMUP = enum.auto()
    SHORTER_STEPS = enum.auto()


class Adaptation(NamedTuple):
    """How chains warm up."""

    num_warmup: int
    target_accept: float = 0.8
    dense: bool = False

    def after(self, advice: Advice, unknowns: int) -> Adaptation:
        """The next warm-up: twice as long, or with shorter steps."""
        if advice is Advice.SHORTER_STEPS:
            return self._replace(target_accept=HIGH_ACCEPT)
        return self._replace(num_warmup=2 * self.num_warmup, dense=unknowns <= MOST_DENSE)


class Chains(NamedTuple):
    """Where a sampler stopped, so that it can go on, also in another process."""

    adaptation: Adaptation
    depth: int  # largest of a trajectory
    places: Params | None  # where the last warm-up began, unconstrained
    state: list[np.ndarray]  # leaves of the kernel's state, all chains
    warmed: int  # steps of the last warm-up that are done
    seconds: float


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
    chains: Chains | None = None  # where a sampler stopped
    weighed: dict[str, float] | None = None  # about importance weights, where they were resampled


class Bits(NamedTuple):
    """A way to draw discrete latents in turn with the parameters."""

    kernel: Callable[[Callable, Anatomy, MCMCKernel], MCMCKernel]
    """from the program and the kernel for the parameters to that for both"""
    problem: Callable[[Anatomy], str | None]  # why it does not apply
    readings: Callable[[Anatomy], int]  # of the program, before there is a draw


def nuts(
    model: Callable,
    rng_key: Array,
    *args: Any,
    bits: Bits | None = None,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    budget: float | None = None,
    memory: float | None = None,
    target_accept: float = 0.8,
    places: Params | None = None,
    metric: np.ndarray | None = None,
    program: Callable | None = None,
    until: Callable[[Draws, Adaptation], Advice] | None = None,
    resume: Draws | Chains | None = None,
    **kwargs: Any,
) -> Draws:
    """NUTS on all continuous sites, discrete latents summed out or drawn in turn.

    All chains at once, in blocks; the parameters are kept. With discrete latents each chain begins
    at the best of several climbs (`baselines.starts`), unless it is said where. Where the draws ask
    for another warm-up it begins where the chains are, and the draws before it are dropped as soon
    as there are others.

    :param bits: how discrete latents are drawn; by default they are summed out.
    :param budget: seconds for climbs, warm-up and draws, by `running.clock`.
    :param memory: bytes that its compiled steps may take; if they would take more, none is run.
    :param target_accept: of its steps, by which their size is adapted.
    :param until: what the draws so far ask for, at growing numbers of them; then `num_samples` does
        not count.
    :param resume: where an earlier run stopped, with its draws if it had some; its seconds count.
    :param places: where chains begin, unconstrained, by site (num_chains, ...).
    :param metric: the covariance that scales its space, in place of variances learned in warm-up.
    :param program: of the same parameters, sampled in place of the model without discrete latents.
    """
    check_data(args, kwargs)
    anatomy = inspect(model, args, kwargs)
    if bits is not None and (problem := bits.problem(anatomy)):
        raise ProgramError(problem)
    slope = differentiable(model, anatomy) if program is None else program

    def make_kernel(depth: int, adaptation: Adaptation) -> MCMCKernel:
        how: dict[str, Any] = {
            "max_tree_depth": depth, "target_accept_prob": adaptation.target_accept,
            "dense_mass": metric is not None or adaptation.dense,
        }  # fmt: skip
        if bits is not None:
            return bits.kernel(model, anatomy, NUTS(model, find_heuristic_step_size=False, **how))
        return NUTS(slope, inverse_mass_matrix=metric, adapt_mass_matrix=metric is None, **how)

    start = climbs_of(model, anatomy) if places is None else None
    adaptation = Adaptation(num_warmup, target_accept)
    began = time.perf_counter()
    ran = 0.0  # seconds of what was compiled already, which the budget counts
    keys_start, keys = jax.vmap(random.split, out_axes=1)(random.split(rng_key, num_chains))
    depth, warmed = pacing.MOST_DEPTH, 0
    room = budget if until is None else ROOM  # the same chains whatever the limit
    device = one_device(args, kwargs)
    most = max(1, min(adaptation.num_warmup, num_samples) // SNAPSHOTS)
    made: list[Part] = []  # since the last adaptation
    before: list[Part] = []  # and before it
    stopped = resume.chains if isinstance(resume, Draws) else resume
    if stopped is not None:
        adaptation, depth, places, _, warmed, ran = stopped
        if isinstance(resume, Draws):
            params, stats = jax.tree.map(
                lambda x: np.swapaxes(x, 0, 1), (resume.params, resume.stats)
            )
            before = [Part(params, stats, resume.clock)]
            made = before if warmed == adaptation.num_warmup else []
    elif start is not None:
        places, gradient, ran = starts.climb(start, device, keys_start, budget, memory)
        depth = pacing.depth_within(gradient, room)
        if bits is not None and budget is not None:
            # What cannot be ended is not begun without half a budget.
            reading = starts.seconds_of_reading(model, device, keys_start)
            least = bits.readings(anatomy) * reading
            if least > 0.5 * budget:
                raise pacing.BudgetError(
                    f"before a draw it takes about {least:.2g} s, so none was made"
                )
    elif bits is None and budget is not None:
        # What a gradient costs says how long a trajectory may be.
        ran = starts.seconds_of_gradient(slope, device, keys_start)
        depth = pacing.depth_within(ran, room)
    timer = pacing.Budget(budget)
    compile_seconds = time.perf_counter() - began - (0.0 if stopped else ran)
    timer.began -= ran
    advice = Advice.GO_ON
    while True:
        began = time.perf_counter()
        with timer.paused():
            begin, advance = _compiled(
                make_kernel, anatomy, device, keys, places, depth, adaptation, most
            )
            check_fits(advance, memory, "a step of its chains")
        compile_seconds += time.perf_counter() - began
        if stopped is not None:
            state, stopped = _restored(stopped.state, pacing.results(begin)), None
        else:
            state = jax.block_until_ready(begin(device.arrays, keys, places))
        step = lambda state, count: advance(device.arrays, state, count)  # noqa: B023, E731
        course = pacing.in_blocks(step, state, adaptation.num_warmup - warmed, timer, most)
        warmed, done = warmed + course.done, sum(len(x.clock) for x in made)
        goal = num_samples if until is None else max(FIRST_CHECK, int(GROWTH * done))
        advice = Advice.GO_ON
        while advice is Advice.GO_ON and not timer.spent and warmed == adaptation.num_warmup:
            course = pacing.in_blocks(step, course.state, goal - done, timer, most)
            if not course.done:
                break
            times = np.interp(np.arange(1, course.done + 1), course.ends, course.seconds)
            params, stats = jax.tree.map(lambda *x: np.concatenate(x), *course.results)
            made.append(Part(params, stats, times))
            done += course.done
            if until is None:
                advice = Advice.ENOUGH if done >= num_samples else Advice.GO_ON
                continue
            with timer.paused():
                advice = until(_draws(made, timer.seconds, compile_seconds), adaptation)
            goal = int(np.ceil(GROWTH * done))
        if advice in (Advice.ENOUGH, Advice.GO_ON):
            break
        # The sites of the climbs alone: of Gibbs the others are bits.
        last = course.state.z
        places = last if places is None else {x: last[x] for x in places}
        unknowns = sum(x.size for x in jax.tree.leaves(places)) // num_chains
        adaptation, warmed = adaptation.after(advice, unknowns), 0
        made, before = [], made
        keys = jax.vmap(lambda key: random.split(key, 1)[0])(keys)
    leaves = [np.asarray(_plain(x)) for x in jax.tree.leaves(course.state)]
    places = None if places is None else jax.tree.map(np.asarray, places)
    chains = Chains(adaptation, depth, places, leaves, warmed, timer.seconds)
    if not (made or before):
        words = f"{timer.seconds:.0f} s were spent in warm-up: no draw was made"
        raise pacing.BudgetError(words, chains)
    stop = Stop.STEPS if advice is Advice.ENOUGH else Stop.BUDGET
    result = _draws(made or before, timer.seconds, compile_seconds, stop, chains)
    if depth < pacing.MOST_DEPTH:
        shorter = f", trajectories of at most {2**depth - 1} steps to keep to the budget"
        return result._replace(reason=result.reason + shorter)
    return result


class Part(NamedTuple):
    """Draws that were made one after the other: (num_draws, num_chains, ...)."""

    params: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    clock: np.ndarray  # (num_draws,) seconds


def _draws(
    parts: list[Part], seconds: float, compile_seconds: float, stop: Stop = Stop.BUDGET,
    chains: Chains | None = None,
) -> Draws:  # fmt: skip
    """What a sampler hands out."""
    flat, stats, clock = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    params, stats = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), (flat, stats))
    reason = "all draws made" if stop is Stop.STEPS else f"{stop.value} {len(clock)} draws"
    # Of a sampler, what is known at a time is all draws so far.
    return Draws(
        params, stats, np.empty(0), flat, clock, seconds, compile_seconds, reason, stop,
        chains=chains,
    )  # fmt: skip


def _compiled(
    make_kernel: Callable[[int, Adaptation], MCMCKernel],
    anatomy: Anatomy,
    device: OneDevice,
    keys: Array,
    places: Params | None,
    depth: int,
    adaptation: Adaptation,
    most: int,
) -> tuple[Any, Any]:
    """The first state of all chains, and blocks of at most so many steps."""

    def make() -> tuple[Any, Any]:
        kernel = make_kernel(depth, adaptation)

        # One chain, many times: every kernel knows one key, and only some a batch of them.
        def begin(keys: Array, places: Params | None, args: tuple, kwargs: dict) -> Any:
            def one(key: Array, place: Params | None) -> Any:
                return kernel.init(
                    key, adaptation.num_warmup, place, model_args=args, model_kwargs=kwargs
                )

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

    settings = make_kernel, depth, anatomy, adaptation, most
    return pacing.kept(make, device, (keys, places), *settings)


def _plain(leaf: Any) -> Any:
    """A leaf of a state as numbers: keys too."""
    return random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _restored(leaves: list[np.ndarray], shapes: Any) -> Any:
    """A state of these shapes from the numbers of its leaves."""
    wanted, tree = jax.tree.flatten(shapes)

    def one(saved: np.ndarray, like: Any) -> Array:
        is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
        return random.wrap_key_data(jnp.asarray(saved)) if is_key else jnp.asarray(saved)

    return jax.tree.unflatten(tree, map(one, leaves, wanted))


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


def visits_to_list(anatomy: Anatomy) -> int:
    """Readings of NumPyro's own Gibbs: one for each value of each site and row."""
    return anatomy.num_data * sum(x.num_values or 0 for x in anatomy.latents)


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


DISCRETE = Bits(discrete_gibbs_kernel, no_discrete_gibbs, visits_to_list)
"""NumPyro's own `DiscreteGibbs`."""
LATENT = Bits(binary_gibbs_kernel, no_binary_gibbs, visits_to_settle)
"""`LatentGibbs`."""
