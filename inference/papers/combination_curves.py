"""Pursuit and mixture on digits, iteration by iteration: figures 4.6 to 4.9 of Freund & Haussler.

Also what the paper says in passing: a 'backfitting' stage 'that has not proven to be useful'; that
pursuit estimates the number of hidden units (§3.2); that principal components, which know second
moments only, ignore 'some of the most important information' (§2.4); that hidden states are
features for a supervised task (§1).
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from latentbits.models.data import InputError, digits
from scipy.special import softmax

from ..files.figures import image_grid
from .combination_iterations import (
    EM_STEPS,
    STEPS_PER_SIZE,
    Components,
    Errors,
    Machine,
    backfit,
    principal,
    pursue,
    split_and_fit,
)
from .experiment import Option, Outcome, Page, experiment

JITTERS = (0.1, 1.0)
"""Of the log odds of either half of a split: what `SplittingEM` adds, and far more."""
MANY_STARTS = 10
MISSING = 0.3
"""Share of training cells that are taken away, to see what pursuit makes of the others."""
LABELLED = (50, 100, 500)
COLUMNS = 24
"""Whose bits are predicted; the paper takes five a row at random."""


class Study(NamedTuple):
    """One run."""

    iterations: dict[str, np.ndarray]  # model -> (iterations,), as the paper counts them
    train: dict[str, np.ndarray]  # model -> (iterations, 2), both errors
    test: dict[str, np.ndarray]
    machine: Machine
    mixture: Components
    gains: np.ndarray  # (units,), by pursuit from ten starts a unit
    worth: float  # what a unit must gain to be significant


def accuracies(
    features: dict[str, tuple[np.ndarray, np.ndarray]], labels: tuple[np.ndarray, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Test accuracy of logistic regression on each kind of features, by number of labelled rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table: dict[str, dict[str, float]] = {}
    for name, (train, test) in features.items():
        table[name] = {}
        for count in LABELLED:
            if count <= len(train):
                fit = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, C=0.1))
                fit.fit(train[:count], labels[0][:count])
                table[name][str(count)] = float(fit.score(test, labels[1]))
    return table


@experiment(
    "combination-curves",
    "errors over iterations, backfitting, features (Freund & Haussler 1994, figures 4.6-4.9)",
    rows=Option(500, "rows to train, and to test", 60, 20),
    units=Option(45, "units and components", 3, 2),
)
def run(options: argparse.Namespace) -> Outcome:
    """`combination-curves`: both errors over iterations, and what comes of the hidden states."""
    rows, units = options.rows, options.units
    rng = np.random.default_rng(options.seed)
    every = digits()
    order = rng.permutation(len(every.data))[: 2 * rows]
    if len(order) < 2 * rows:
        raise InputError(f"--rows {rows}: there are {len(every.data)} digits, half to train")
    both = 2.0 * np.asarray(every.data)[order] - 1.0
    label = np.asarray(every.label)[order]
    x, new = both[:rows], both[rows:]
    columns = rng.permutation(x.shape[1])[:COLUMNS]
    machines = pursue(x, units, 1, rng)
    again = backfit(machines[-1], x, rng)
    chosen = pursue(x, units, MANY_STARTS, rng)
    mixtures, shaken = (split_and_fit(x, units, jitter, rng) for jitter in JITTERS)
    passed: dict[str, list[Any]] = {"machine": [*machines, *again]}
    passed |= {"mixture": mixtures, "shaken": shaken}
    errors = {
        name: np.array([[one.errors(part, columns) for one in models] for part in (x, new)])
        for name, models in passed.items()
    }
    steps = {
        "machine": EM_STEPS * np.arange(1, len(passed["machine"]) + 1),
        "mixture": np.arange(len(mixtures)),
        "shaken": np.arange(len(shaken)),
    }
    worth = 0.5 * (x.shape[1] + 1) * np.log(rows)
    study = Study(
        steps, {k: v[0] for k, v in errors.items()}, {k: v[1] for k, v in errors.items()},
        machines[-1], mixtures[-1], chosen[-1].gains, worth,
    )  # fmt: skip
    pca, scores, new_scores = principal(x, new, min(units, rows - 1), columns)
    machine = machines[-1]
    features = {
        "pixels": (x, new),
        "machine": (machine.hidden(x), machine.hidden(new)),
        "pixels and machine": tuple(np.hstack([y, machine.hidden(y)]) for y in (x, new)),
        "mixture": tuple(softmax(mixtures[-1].joints(part), axis=1) for part in (x, new)),
        "principal components": (scores, new_scores),
    }
    observed = (rng.random(x.shape) > MISSING).astype(float)
    usual = np.where(x.mean(0) > 0, 1.0, -1.0)
    holes = {
        "integrated out": pursue(x * observed, units, 1, rng, observed),
        "filled by the usual bit": pursue(np.where(observed > 0, x, usual), units, 1, rng),
    }
    before, after = study.test["machine"][units - 1], study.test["machine"][-1]
    # Pursuit ends with the first unit that is not worth its parameters.
    ends = {
        starts: int((gains <= worth).argmax()) if (gains <= worth).any() else units
        for starts, gains in ((1, machine.gains), (MANY_STARTS, chosen[-1].gains))
    }
    kept = chosen[max(ends[MANY_STARTS] - 1, 0)].errors(new, columns)
    of = lambda errors: dict(zip(Errors._fields, map(float, errors), strict=True))  # noqa: E731
    least = study.test["machine"][:units].argmin(0) + 1
    numbers = {
        "rows": rows,
        "units": units,
        "test": {
            "machine": of(before),
            "machine, after backfitting": of(after),
            "machine, significant units": of(kept),
            "mixture": of(study.test["mixture"][-1]),
            "principal components": of(pca),
        },
        "train": {x: of(study.train[x][i]) for x, i in (("machine", units - 1), ("mixture", -1))},
        "rise_at_a_doubling": {
            str(jitter): float(_spikes(study.test[name][:, 0]).mean())
            for jitter, name in zip(JITTERS, ("mixture", "shaken"), strict=True)
        },
        "units_significant": {str(starts): count for starts, count in ends.items()},
        "units_of_least_test_error": dict(zip(Errors._fields, map(int, least), strict=True)),
        "missing_cells": MISSING,
        "test_with_missing_cells": {x: of(y[-1].errors(new, columns)) for x, y in holes.items()},
        "accuracy": accuracies(features, (label[:rows], label[rows:])),
    }
    return Outcome(numbers, (13, 8.6), figure, (study,))


def _spikes(errors: np.ndarray) -> np.ndarray:
    """How much the error rises in the iterations that follow a doubling."""
    at = np.arange(STEPS_PER_SIZE, len(errors), STEPS_PER_SIZE)
    return errors[at] - errors[at - 1]


def figure(page: Page, study: Study) -> None:
    """Errors over iterations, the worth of each unit, and all weight vectors of both models."""
    top, low = page.subfigures(2, 1, height_ratios=(1.1, 1), squeeze=False)[:, 0]
    axes = top.subplots(1, 3)
    names = {"mixture": "C0", "machine": "C1"}
    titles = ("A  reconstruction, bits per bit (4.6)", "B  single-bit error (4.7)")
    count = len(study.machine.bias)
    for place, title in enumerate(titles):
        for name, colour in names.items():
            for part, line in ((study.train, "--"), (study.test, "-")):
                label = f"{name}, {'test' if line == '-' else 'train'}"
                values = part[name][:, place]
                axes[place].plot(study.iterations[name], values, line, color=colour, label=label)
        axes[place].axvline(EM_STEPS * count, color="0.6", linewidth=1, linestyle=":")
        axes[place].set(title=title, xlabel="iterations of EM")
    axes[0].plot(
        study.iterations["shaken"], study.test["shaken"][:, 0], ":", color="C0", linewidth=1.2,
        label="mixture, test, split far apart",
    )  # fmt: skip
    axes[0].legend(fontsize=10)
    axes[1].text(EM_STEPS * count, axes[1].get_ylim()[1], " backfitting", fontsize=10, va="top")
    units = np.arange(1, count + 1)
    axes[2].plot(units, study.machine.gains, "o-", color="C1", markersize=4, label="one start")
    axes[2].plot(units, study.gains, "s-", color="C2", markersize=4, label="best of ten")
    axes[2].axhline(study.worth, color="0.5", linestyle="--", label="cost of its parameters")
    axes[2].set(title="C  what a unit adds, nats", xlabel="unit", yscale="log")
    axes[2].legend(fontsize=10)
    side = round(study.machine.weights.shape[1] ** 0.5)
    odds = np.log(study.mixture.probs / (1.0 - study.mixture.probs))
    parts = low.subfigures(1, 2, squeeze=False)[0]
    shown = {
        "D  all components of the mixture (4.8)": odds,
        "E  all weight vectors of the machine (4.9)": study.machine.weights,
    }
    for where, (title, images) in zip(parts, shown.items(), strict=True):
        across = max(1, min(9, len(images)))
        grid = np.full((-(-len(images) // across) * across, side, side), np.nan)
        grid[: len(images)] = images.reshape(-1, side, side)
        grid = grid.reshape(-1, across, side, side)
        image_grid(where, grid, title=title, signed=True, scale="image")
