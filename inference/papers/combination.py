"""Combination machine on synthetic images: the first two tables and figures 4.1, 4.2.

``latentbits reproduce combination-synthetic --full`` on one H200, test log-loss (bits per bit),
mean of 10 seeds: true model 0.619, gradient 0.640, pursuit 0.756, followed by 100 steps 0.675, by
1000 0.622; on no seed farther than 0.006 from the true model, and the paper's orderings on each.
``combination-synthetic-small --full``: 0.866, 0.877, 0.892, 0.875, 0.869 after 400 steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models import combination_machine
from latentbits.models.data import CombinationTarget, combination_target

from ..evaluation.measures import measure
from ..files.figures import image_grid
from ..methods.machines.exact_gradient import ExactGradient
from ..methods.machines.pursuit import ProjectionPursuit
from ..running.contract import follow
from ..types import Params
from .experiment import Option, Outcome, Page, experiment, timed

UNITS = 10
# The paper says no more than 'a standard momentum term'. Of rates 0.05 to 0.5 and momenta 0.9 to
# 0.99, these make pursuit followed by 1000 steps most likely on training data.
LEARNING_RATE, MOMENTUM = 0.05, 0.99
ROWS = {
    "true_model": "true model",
    "gradient": "gradient",
    "pursuit": "pursuit",
    "pursuit_gradient_100": "both, 100",
    "pursuit_gradient": "both",
}
"""Of the table: pursuit alone, and followed by 100 or all steps of gradient ascent."""
MEASURES = {
    "log_loss": "log-loss, bits per bit",
    "single_bit": "single-bit error",
    "reconstruction": "reconstruction, bits per bit",
}
PARTS = ("train", "test")


class Setting(NamedTuple):
    """What tells the two experiments apart."""

    scale: float  # of the target's weights
    num_steps: int  # of gradient ascent, as in the paper


LARGE, SMALL = Setting(1.0, 1000), Setting(1.0 / 7.0, 400)


class Trial(NamedTuple):
    """One draw of training and test data, and every model of the table on it."""

    params: dict[str, Params]
    train: dict[str, dict[str, Array]]
    test: dict[str, dict[str, Array]]


class Task(NamedTuple):
    """What a trial learns from and is judged by. Both experiments have the same shapes."""

    truth: CombinationTarget
    test: Array  # (num_data, 64)
    key_start: Array
    key_pursuit: Array


def draw(setting: Setting, num_data: int, key: Array) -> Task:
    """Training and test data, and keys for the methods."""
    key_train, key_test, key_start, key_pursuit = random.split(key, 4)
    truth = combination_target(key_train, num_data, scale=setting.scale)
    test = combination_target(key_test, num_data, scale=setting.scale).data
    return Task(truth, test, key_start, key_pursuit)


def trial(num_steps: Array, task: Task) -> Trial:
    """Fit every row of the table, measure each on training and test data."""
    truth, test, key_start, key_pursuit = task
    sizes: dict[str, Any] = {"num_causes": UNITS}

    pursuit = ProjectionPursuit(combination_machine, significant=False)
    state = pursuit.init(key_pursuit, truth.data, **sizes)
    state, _ = follow(pursuit, state, UNITS, truth.data, **sizes)
    pursued = {**state.params, "bias": state.bias}  # the paper's own biases

    gradient = ExactGradient(combination_machine, learning_rate=LEARNING_RATE, momentum=MOMENTUM)

    def climb(start: Params) -> tuple[Params, Params]:
        """Where gradient ascent is after 100 steps and at its end."""
        state = gradient.init(key_start, truth.data, init_params=start, **sizes)
        step = lambda _, state: gradient.update(state, truth.data, **sizes)[0]  # noqa: E731
        walk = lambda count, state: lax.fori_loop(0, count, step, state)  # noqa: E731
        short = walk(jnp.minimum(100, num_steps), state)
        return short.params, walk(jnp.maximum(num_steps - 100, 0), short).params

    near_origin = gradient.init(key_start, truth.data, **sizes).params
    starts = jax.tree.map(lambda *x: jnp.stack(x), near_origin, pursued)
    (_, short), (plain, long) = (
        [jax.tree.map(itemgetter(i), end) for i in range(2)] for end in lax.map(climb, starts)
    )
    params = {
        "true_model": {"weights": truth.weights, "bias": truth.bias},
        "gradient": plain,
        "pursuit": pursued,
        "pursuit_gradient_100": short,
        "pursuit_gradient": long,
    }
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *params.values())

    def judge(data: Array) -> dict[str, Array]:
        each = lambda p: measure(combination_machine, p, data, **sizes)  # noqa: E731
        return {name: x.value for name, x in lax.map(each, stacked).items()}

    measures = lax.map(judge, jnp.stack([truth.data, test]))  # (both sets, rows of the table)
    by_row = [
        {name: jax.tree.map(itemgetter((part, i)), measures) for i, name in enumerate(params)}
        for part in range(2)
    ]
    return Trial(params, *by_row)


def every_trial(batch: int, tasks: Task, num_steps: Array) -> Trial:
    return lax.map(partial(trial, num_steps), tasks, batch_size=batch)


def run(setting: Setting, options: argparse.Namespace) -> Outcome:
    """All seeds, one compiled call; the table is their mean, with its standard error."""
    seeds = options.seeds
    steps = options.steps if options.steps is not None else setting.num_steps
    keys = random.split(random.key(options.seed), seeds)
    tasks = jax.jit(jax.vmap(partial(draw, setting, options.num_data)))(keys)
    # Side by side where there is room for it; one after the other a processor is faster.
    batch = seeds if jax.default_backend() != "cpu" else 1
    ran, seconds, compiling = timed(partial(every_trial, batch), tasks, jnp.asarray(steps))
    trials: Trial = jax.device_get(ran)
    numbers = {
        **summary(trials),
        "seeds": seeds,
        "num_data": options.num_data,
        "steps": steps,
        "seconds_per_seed": seconds / seeds,
        "compile_seconds": compiling,
    }
    return Outcome(numbers, (13, 6.6), figure, (setting, trials))


def table(trials: Any, rows: Iterable[str], what: Callable[[Any], Any]) -> dict[str, Any]:
    """Model -> measure -> "train" and "test" -> what `what` makes of its values over the trials."""
    one = lambda part, row, name: float(what(getattr(trials, part)[row][name]))  # noqa: E731
    return {x: {y: {part: one(part, x, y) for part in PARTS} for y in MEASURES} for x in rows}


def summary(trials: Trial) -> dict[str, Any]:
    """The paper's table, its standard errors over the seeds, and how often its orderings hold."""
    loss = {row: measures["log_loss"] for row, measures in trials.test.items()}
    both, highest = loss["pursuit_gradient"], np.max([*loss.values()], axis=0)
    count = len(both)
    error = lambda x: x.std(ddof=1) / count**0.5  # noqa: E731
    return {
        "table": table(trials, ROWS, np.mean),
        "standard_errors": table(trials, ROWS, error) if count > 1 else {},
        "orderings": {
            "pursuit has the highest log-loss": float(np.mean(loss["pursuit"] >= highest)),
            "pursuit then gradient beats gradient": float(np.mean(both <= loss["gradient"])),
            "more steps after pursuit help": float(np.mean(both <= loss["pursuit_gradient_100"])),
            "largest distance to the true model": float((both - loss["true_model"]).max()),
            "mean distance to the true model": float((both - loss["true_model"]).mean()),
        },
    }


def figure(page: Page, setting: Setting, trials: Trial) -> None:
    """Weights of every model of the first seed, projections of the data, the table as dots."""
    left, right = page.subfigures(1, 2, width_ratios=(1.55, 1), squeeze=False)[0]
    shown = ("true_model", "gradient", "pursuit", "pursuit_gradient")
    first = {row: {k: v[0] for k, v in trials.params[row].items()} for row in shown}
    grids = []
    for row in shown:
        weights = first[row]["weights"]
        order = _matching(first["true_model"]["weights"], weights)
        grids.append(weights[order].reshape(UNITS, 8, 8))
    top, low = left.subfigures(2, 1, height_ratios=(1.2, 1), squeeze=False)[:, 0]
    title = "A  weights, red is positive; each unit to its own scale"
    names = ["true", "gradient", "pursuit", "both"]
    image_grid(top, np.stack(grids), title=title, row_labels=names, scale="image")
    _projections(low, setting, first["pursuit_gradient"], first["true_model"])
    axes = draw_table(right, trials, ROWS)
    seeds = len(trials.test["pursuit"]["log_loss"])
    axes[0].set_title(f"C  means of {seeds} sets of data" if seeds > 1 else "C  one set of data")
    axes[0].legend(loc="upper right", fontsize=10)


def draw_table(where: Any, trials: Any, rows: dict[str, str]) -> Any:
    """The table as dots, a panel for each measure; a faint mark for each trial."""
    axes = where.subplots(3, 1, sharey=True)
    places = np.arange(len(rows))[::-1]
    for panel, (name, words) in zip(axes, MEASURES.items(), strict=True):
        for part, mark, colour in zip(PARTS, "oD", ("C0", "C1"), strict=True):
            values = np.stack([getattr(trials, part)[row][name] for row in rows])
            panel.plot(values, places, color=colour, alpha=0.25, linestyle="", marker="|")
            panel.plot(
                values.mean(1), places, color=colour, marker=mark, linestyle="", label=part,
                markersize=6,
            )  # fmt: skip
        panel.set(xlabel=words, ylim=(-0.6, len(rows) - 0.4))
        panel.set_yticks(places, [*rows.values()])
        panel.locator_params(axis="x", nbins=5)
        panel.grid(axis="x", alpha=0.3)
    return axes


def _projections(where: Any, setting: Setting, params: Params, truth: Params) -> None:
    """Histograms of the data along the weight vectors learned: two humps where a unit decides."""
    data = combination_target(random.key(1), 2000, scale=setting.scale).data
    weights = np.asarray(params["weights"])
    order = _matching(np.asarray(truth["weights"]), weights)
    axes = where.subplots(1, UNITS)
    for place, unit in zip(axes, order, strict=True):
        along = (2 * np.asarray(data) - 1) @ weights[unit] / np.linalg.norm(weights[unit])
        place.hist(along, bins=24, color="C0")
        place.set(xticks=[], yticks=[])
        place.spines["left"].set_visible(False)
    where.suptitle("B  data along the weights of the last row", x=0.01, ha="left", fontsize=13)


def _matching(true: Any, learned: Any) -> np.ndarray:
    """Learned units in the order of the true ones that they are most alike, up to sign."""
    from scipy.optimize import linear_sum_assignment

    unit = lambda w: w / (np.linalg.norm(w, axis=1, keepdims=True) + 1e-30)  # noqa: E731
    return linear_sum_assignment(-np.abs(unit(true) @ unit(learned).T))[1]


SIZES = {
    "seeds": Option(3, "sets of data", 1, 1, full=10),
    "num_data": Option(4000, "rows of each of both sets", 30, 2),
    "steps": Option(int, "steps of gradient ascent; default as in the paper", 3, 1),
}
synthetic = experiment(
    "combination-synthetic",
    "gradient, pursuit and both on images of ten shapes (Freund & Haussler 1994, figure 4.1)",
    **SIZES,
)(partial(run, LARGE))
synthetic_small = experiment(
    "combination-synthetic-small",
    "the same with weights a seventh as large (Freund & Haussler 1994, figure 4.2)",
    **SIZES,
)(partial(run, SMALL))
