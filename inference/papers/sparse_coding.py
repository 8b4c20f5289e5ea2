"""Henniges et al. (2010): the bars test of figure 1."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models import binary_sparse_coding
from latentbits.models.data import InputError, bars

from ..files.figures import image_grid, time_course
from ..methods.discrete.truncated import Cut, TruncatedEM
from ..methods.discrete.updates import SparseCodingUpdate
from ..types import Params
from .experiment import Option, Outcome, Page, experiment, in_batches

NUM_STEPS = 60
# Trials of a batch are one compiled call; larger batches leave the caches of the processor.
BATCH_ROWS = 25_000


def selection(params: Params, data: Array, **sizes: Any) -> Array:
    """Henniges et al. (2010), eq. (5): how far a datum points along each basis function."""
    del sizes
    weights = params["weights"]
    return data @ (weights / jnp.linalg.norm(weights, axis=1, keepdims=True)).T


def start(active: float) -> Callable[..., Params]:
    """The paper's start for bars: W ~ N(0, 2²), σ² the mean square of the data, πH given."""

    def values(key: Array, data: Array, num_causes: int, **sizes: Any) -> Params:
        del sizes
        return {
            "weights": 2.0 * random.normal(key, (num_causes, data.shape[1])),
            "noise": jnp.sqrt(jnp.mean(data**2)),
            "sparsity": jnp.asarray(active / num_causes),
        }

    return values


def paper_recipe(active: float = 5.0) -> TruncatedEM:
    """The paper's settings for bars; σ at the old W, as in the authors' own program."""
    return TruncatedEM(
        binary_sparse_coding,
        max_active=3,
        num_candidates=5,
        select=selection,
        keep=False,
        cut=Cut(20, 40),
        parameter_noise={"weights": 0.05},
        m_step=SparseCodingUpdate(max_active=3, noise_at="old"),
        start=start(active),
    )


class Trial(NamedTuple):
    """One fit to one freshly drawn set of bars."""

    recovered: Array
    params: Params
    noise: Array  # (restarts, steps): the course of σ
    active: Array  # (restarts, steps): the course of πH
    chosen: Array  # the restart of best evidence


def bars_trial(
    method: TruncatedEM, num_data: int, num_restarts: int, key: Array, num_steps: int = NUM_STEPS
) -> Trial:
    """Draw data, fit from `num_restarts` starts, keep the fit of highest free energy."""
    key_data, key_fit = random.split(key)
    truth = bars(key_data, num_data)
    num_causes = truth.weights.shape[0]

    def fit(key: Array) -> tuple[Params, Array, tuple[Array, Array]]:
        state = method.init(key, truth.data, num_causes=num_causes)

        def step(now: tuple, _: None) -> tuple[tuple, tuple[Array, Array, Array]]:
            before, _ = now
            after, loss = method.update(before, truth.data, num_causes=num_causes)
            course = after.params["noise"], num_causes * after.params["sparsity"]
            return (after, before.params), (loss, *course)

        # The loss of the last parameters is that of one step more.
        now = state, state.params
        (_, params), (losses, *course) = lax.scan(step, now, None, length=num_steps + 1)
        noise, active = (x[:-1] for x in course)
        return params, losses[-1], (noise, active)

    params, losses, (noise, active) = jax.vmap(fit)(random.split(key_fit, num_restarts))
    best = jnp.argmin(losses)
    params = {name: value[best] for name, value in params.items()}
    return Trial(all_bars_recovered(truth.weights, params["weights"]), params, noise, active, best)


def all_bars_recovered(true: Array, learned: Array) -> Array:
    """Whether each bar is represented by a basis function of its own: the nearest in angle."""
    unit = lambda w: w / jnp.linalg.norm(w, axis=1, keepdims=True)  # noqa: E731
    nearest = jnp.argmax(unit(true) @ unit(learned).T, axis=1)
    return (jnp.sort(nearest) == jnp.arange(len(true))).all()


@experiment(
    "bsc-bars",
    "bars test: how often all ten causes are found",
    trials=Option(1000, "sets of data", 1, 1),
    num_data=Option(1000, "rows of a set", 60, 1),
    init_active=Option(5.0, "πH at the start"),
    improved=Option(False, "five starts, the one of best free energy counts"),
)
def run_bars(options: argparse.Namespace) -> Outcome:
    """`bsc-bars`: how often all bars are found, and πH and σ at the end."""
    if not 0 < options.init_active < 10:
        raise InputError(f"--init-active is {options.init_active}: between 0 and 10 causes")
    restarts = 5 if options.improved else 1
    method = paper_recipe(options.init_active)
    batch = max(1, BATCH_ROWS // (options.num_data * restarts))
    one = partial(bars_trial, method, options.num_data, restarts)
    joined, seconds = in_batches(one, options.seed, options.trials, batch)
    active = 10 * joined.params["sparsity"]
    asked = ("trials", "num_data", "init_active", "improved")
    numbers = {
        **{name: getattr(options, name) for name in asked},
        "recovered": float(joined.recovered.mean()),
        "pi_h_mean": float(active.mean()),
        "pi_h_std": float(active.std()),
        "sigma_mean": float(joined.params["noise"].mean()),
        "sigma_std": float(joined.params["noise"].std()),
        **seconds,
    }
    drawn = (options.seed, options.num_data, joined, options.init_active)
    return Outcome(numbers, (11, 5.4), bars_figure, drawn)


def bars_figure(page: Page, seed: int, num_data: int, trials: Trial, active: float) -> None:
    """Data, basis functions over the iterations of the first trial, and the course of πH and σ.

    In red the course from πH = 1 on the same data, as in figure 1C.
    """
    key = random.split(random.key(seed), len(trials.recovered))[0]
    key_data, key_fit = random.split(key)
    truth = bars(key_data, num_data)
    method = paper_recipe(active)
    update = jax.jit(lambda state: method.update(state, truth.data, num_causes=10)[0])
    shown = (0, 5, 10, 20, 40, 60)

    def single(recipe: TruncatedEM) -> list[Params]:
        """The parameters by iteration; what they start from is all that differs."""
        state = recipe.init(random.split(key_fit, 1)[0], truth.data, num_causes=10)
        course = [state.params]
        for _ in range(NUM_STEPS):
            state = update(state)
            course.append(state.params)
        return jax.device_get(course)

    rows = [params["weights"].reshape(10, 5, 5) for params in single(method)]
    other = single(paper_recipe(1.0))[1:]

    left, right = page.subfigures(1, 2, width_ratios=(1.35, 1), squeeze=False)[0]
    top, bottom = left.subfigures(2, 1, height_ratios=(1, 3.4), squeeze=False)[:, 0]
    image_grid(top, np.asarray(truth.data[:10]).reshape(1, 10, 5, 5), title="A  data")
    grid, names = np.stack([rows[step] for step in shown]), [f"{step}" for step in shown]
    image_grid(bottom, grid, title="B  basis functions by iteration", row_labels=names)
    axes = right.subplots(2, 1, sharex=True)
    count = min(40, len(trials.recovered))
    chosen = np.arange(count), trials.chosen[:count]
    time_course(axes[0], {"πH": trials.active[chosen]}, 2.0, label="")
    time_course(axes[1], {"σ": trials.noise[chosen]}, 2.0)
    when = np.arange(1, NUM_STEPS + 1)
    from_one = [10 * x["sparsity"] for x in other], [x["noise"] for x in other]
    for panel, values in zip(axes, from_one, strict=True):
        panel.plot(when, values, color="red", label="from πH = 1")
        panel.set(ylim=(0, None))
        panel.legend()
    axes[0].set(title=f"C  active causes πH, {count} trials")
    axes[1].set(title="D  noise σ")
