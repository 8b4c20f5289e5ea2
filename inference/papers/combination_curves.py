"""Pursuit and mixture on digits, iteration by iteration: figures 4.6 to 4.9 of Freund & Haussler.

Also what the paper says in passing: a 'backfitting' stage 'that has not proven to be useful'; that
pursuit estimates the number of hidden units (§3.2); that principal components, which know second
moments only, ignore 'some of the most important information' (§2.4); that hidden states are
features for a supervised task (§1).

`ProjectionPursuit` and `SplittingEM` are the methods. Here both are in NumPy: backfitting is no
part of the method, and a mixture is also measured between its split and the next iteration of EM.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from latentbits.models.data import InputError, digits
from scipy.special import expit, log_expit, softmax

from ..files.figures import image_grid
from .experiment import Option, Outcome, Page, across, down, experiment, in_rows

EM_STEPS = 4
"""'4 iterations of EM per hidden unit proved sufficient'."""
STEPS_PER_SIZE = 20
JITTERS = (0.1, 1.0)
"""Of the log odds of either half of a split: what `SplittingEM` adds, and far more."""
MANY_STARTS = 10
MISSING = 0.3
"""Share of training cells that are taken away, to see what pursuit makes of the others."""
LABELLED = (50, 100, 500)
COLUMNS = 24
"""Whose bits are predicted; the paper takes five a row at random."""


class Errors(NamedTuple):
    """Bits per bit to reconstruct a row from its hidden state, and wrong single bits."""

    reconstruction: float
    single_bit: float


class Machine(NamedTuple):
    """Hidden units of rows x of -1 and 1; a mixture is a machine of which one unit is on."""

    weights: np.ndarray  # (units, columns); of a mixture half of the log odds
    bias: np.ndarray
    exclusive: bool = False

    def inputs(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weights.T + self.bias

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """P(h = 1 | x), exact: units are independent given the row, or exclude each other."""
        return softmax(self.inputs(x), axis=1) if self.exclusive else expit(self.inputs(x))

    def log_prob(self, inputs: np.ndarray) -> np.ndarray:
        """log P(x) up to a constant."""
        if self.exclusive:
            return np.logaddexp.reduce(inputs, axis=1)
        return np.logaddexp(0.0, inputs).sum(1)

    def errors(self, x: np.ndarray, columns: np.ndarray) -> Errors:
        """Single bits are predicted in some columns only: each costs rows × units."""
        inputs = self.inputs(x)
        state = inputs >= inputs.max(1, keepdims=True) if self.exclusive else inputs > 0
        bits = -log_expit(2.0 * x * (state @ self.weights)).mean() / np.log(2.0)
        flipped = [inputs - 2.0 * np.outer(x[:, i], self.weights[:, i]) for i in columns]
        change = np.stack([self.log_prob(other) for other in flipped]) - self.log_prob(inputs)
        # As likely either way: half of a mistake.
        return Errors(float(bits), float(((change > 0) + 0.5 * (change == 0)).mean()))


class Pursuit(NamedTuple):
    """The machine after every unit, the last one complete."""

    machines: list[Machine]
    coins: np.ndarray  # (rows, units), 0/1: which units each row was taken to have on
    gains: np.ndarray  # (units,) log likelihood of the residual that each unit added


def one_unit(
    x: np.ndarray,
    observed: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray,
    steps: int = EM_STEPS,
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """EM of a real machine of one unit, (3.14) and (3.15), and the log likelihood that it adds.

    :param observed: (rows, columns), 0 where a cell is missing, which x has as 0: it is integrated
        out.
    :param weights: (starts, columns), of which the one that ends with most likelihood is taken.
    :return: weights, bias, gain, and the log odds of each row that the unit is on.
    """  # fmt: skip

    def log_odds() -> np.ndarray:
        return x @ weights.T + bias + 0.5 * (1.0 - observed) @ (weights**2).T

    for _ in range(steps):
        on = expit(log_odds())
        rate = np.clip(on.mean(0), 1e-12, 1.0 - 1e-12)
        weights = on.T @ x / np.maximum(on.T @ observed, 1e-12)
        bias = np.log(rate) - np.log1p(-rate) - 0.5 * (weights**2).sum(1)
    odds, level = log_odds(), np.logaddexp(0.0, bias + 0.5 * (weights**2).sum(1))
    gains = (np.logaddexp(0.0, odds) - level).sum(0)
    best = int(gains.argmax())
    return weights[best], float(bias[best]), float(gains[best]), odds[:, best]


def pursue(
    x: np.ndarray, observed: np.ndarray, units: int, starts: int, rng: np.random.Generator
) -> Pursuit:
    left, machines = x.copy(), []
    weights, bias = np.zeros((units, x.shape[1])), np.zeros(units)
    coins, gains = np.zeros((len(x), units)), np.zeros(units)
    for unit in range(units):
        first = 0.5 * left[rng.integers(len(x), size=starts)]
        found = one_unit(left, observed, first, -0.5 * (first**2).sum(1))
        weights[unit], bias[unit], gains[unit], odds = found
        coins[:, unit] = rng.random(len(x)) < expit(odds)
        left -= observed * np.outer(coins[:, unit], weights[unit])
        machines.append(Machine(weights[: unit + 1].copy(), bias[: unit + 1].copy()))
    return Pursuit(machines, coins, gains)


def backfit(pursuit: Pursuit, x: np.ndarray, rng: np.random.Generator) -> list[Machine]:
    """Once more through the units: put one's structure back, fit it again, take it out again."""
    weights, bias, _ = pursuit.machines[-1]
    weights, bias, machines = weights.copy(), bias.copy(), []
    left = x - pursuit.coins @ weights
    for unit, coin in enumerate(pursuit.coins.T):
        left += np.outer(coin, weights[unit])
        found = one_unit(left, np.ones_like(x), weights[unit, None], bias[unit, None])
        weights[unit], bias[unit], _, odds = found
        left -= np.outer(rng.random(len(x)) < expit(odds), weights[unit])
        machines.append(Machine(weights.copy(), bias.copy()))
    return machines


def mixture_of(probs: np.ndarray, mixing: np.ndarray) -> Machine:
    """Bernoulli product components, (components, columns), and their shares."""
    on, off = np.log(probs), np.log1p(-probs)
    return Machine(0.5 * (on - off), np.log(mixing) + 0.5 * (on + off).sum(1), exclusive=True)


def split_and_fit(
    x: np.ndarray, components: int, jitter: float, rng: np.random.Generator
) -> list[Machine]:
    """The mixture after every iteration of EM; components double every 20 of them."""
    bits = 0.5 * (x + 1.0)
    probs, mixing = np.clip(bits.mean(0, keepdims=True), 0.01, 0.99), np.ones(1)
    mixtures = [mixture_of(probs, mixing)]
    while True:
        for _ in range(STEPS_PER_SIZE):
            share = mixtures[-1].hidden(x)
            size = share.sum(0)
            # A count of half a row each way, or a pixel never inked would be impossible.
            probs = (share.T @ bits + 0.5) / (size[:, None] + 1.0)
            mixing = (size + 1e-9) / (size.sum() + 1e-9 * len(size))
            mixtures.append(mixture_of(probs, mixing))
        count = len(mixing)
        if count == components:
            return mixtures
        extra = min(count, components - count)
        twice = np.concatenate([np.arange(count), np.arange(extra)])
        mixing = (np.where(np.arange(count) < extra, 0.5, 1.0) * mixing)[twice]
        odds = np.log(probs / (1.0 - probs))[twice]
        moved = expit(odds + jitter * rng.normal(size=odds.shape))
        mixtures[-1] = mixture_of(np.clip(moved, 1e-4, 1.0 - 1e-4), mixing)


def principal(
    x: np.ndarray, test: np.ndarray, rank: int, columns: np.ndarray
) -> tuple[Errors, np.ndarray, np.ndarray]:
    """Probabilistic PCA: the same two errors, and the scores of both sets of rows.

    A bit is predicted by the sign of its expectation given all others. The hidden state is the
    signs of the scores, as many bits as the machine has, and a row is reconstructed from them by
    the frequencies that a regression on them gives.
    """
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov((x - mean).T))
    kept, noise = vectors[:, -rank:], values[:-rank].mean()
    covariance = kept @ np.diag(values[-rank:] - noise) @ kept.T + noise * np.eye(x.shape[1])
    precision = np.linalg.inv(covariance + 1e-6 * np.eye(x.shape[1]))
    expected = test - (test - mean) @ precision / np.diag(precision)
    single = ((expected > 0) != (test > 0))[:, columns].mean()
    scores, new = (x - mean) @ kept, (test - mean) @ kept
    signs, new_signs = (np.column_stack([np.ones(len(y)), np.sign(y)]) for y in (scores, new))
    fitted = np.linalg.solve(signs.T @ signs + np.eye(rank + 1), signs.T @ x)
    probs = np.clip(0.5 * (1.0 + test * (new_signs @ fitted)), 0.01, 1.0)
    return Errors(float(-np.log2(probs).mean()), float(single)), scores, new


def accuracies(
    features: dict[str, tuple[np.ndarray, ...]], labels: tuple[np.ndarray, np.ndarray]
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
    all_seen = np.ones_like(x)
    pursued = pursue(x, all_seen, units, 1, rng)
    again = backfit(pursued, x, rng)
    chosen = pursue(x, all_seen, units, MANY_STARTS, rng)
    mixtures, shaken = (split_and_fit(x, units, jitter, rng) for jitter in JITTERS)
    courses = {"machine": [*pursued.machines, *again], "mixture": mixtures, "shaken": shaken}
    # Model -> (training and test rows, iterations, both errors).
    errors = {
        name: np.array([[one.errors(part, columns) for one in models] for part in (x, new)])
        for name, models in courses.items()
    }
    pca, *scores = principal(x, new, min(units, rows - 1), columns)
    machine, mixture = pursued.machines[-1], mixtures[-1]
    features = {
        "pixels": (x, new),
        "machine": (machine.hidden(x), machine.hidden(new)),
        "pixels and machine": tuple(np.hstack([y, machine.hidden(y)]) for y in (x, new)),
        "mixture": (mixture.hidden(x), mixture.hidden(new)),
        "principal components": tuple(scores),
    }
    observed = (rng.random(x.shape) > MISSING).astype(float)
    filled = np.where(observed > 0, x, np.where(x.mean(0) > 0, 1.0, -1.0))
    holes = {
        "integrated out": pursue(x * observed, observed, units, 1, rng),
        "filled by the usual bit": pursue(filled, all_seen, units, 1, rng),
    }
    # Pursuit ends with the first unit that is not worth its parameters.
    worth = 0.5 * (x.shape[1] + 1) * np.log(rows)
    ends = {
        starts: int((gains <= worth).argmax()) if (gains <= worth).any() else units
        for starts, gains in ((1, pursued.gains), (MANY_STARTS, chosen.gains))
    }
    kept = chosen.machines[max(ends[MANY_STARTS] - 1, 0)].errors(new, columns)
    of = lambda errors: dict(zip(Errors._fields, map(float, errors), strict=True))  # noqa: E731
    train, test = ({name: x[part] for name, x in errors.items()} for part in range(2))
    least = test["machine"][:units].argmin(0) + 1
    numbers = {
        "rows": rows,
        "units": units,
        "test": {
            "machine": of(test["machine"][units - 1]),
            "machine, after backfitting": of(test["machine"][-1]),
            "machine, significant units": of(kept),
            "mixture": of(test["mixture"][-1]),
            "principal components": of(pca),
        },
        "train": {
            name: of(train[name][i]) for name, i in (("machine", units - 1), ("mixture", -1))
        },
        "rise_at_a_doubling": {
            str(jitter): float(_spikes(test[name][:, 0]).mean())
            for jitter, name in zip(JITTERS, ("mixture", "shaken"), strict=True)
        },
        "units_significant": {str(starts): count for starts, count in ends.items()},
        "units_of_least_test_error": dict(zip(Errors._fields, map(int, least), strict=True)),
        "missing_cells": MISSING,
        "test_with_missing_cells": {
            name: of(pursuit.machines[-1].errors(new, columns)) for name, pursuit in holes.items()
        },
        "accuracy": accuracies(features, (label[:rows], label[rows:])),
    }
    gains = {"one start": pursued.gains, "best of ten": chosen.gains}
    models = {"machine": machine, "mixture": mixture}
    return Outcome(numbers, (13, 8.6), figure, (errors, gains, worth, models))


def _spikes(errors: np.ndarray) -> np.ndarray:
    """How much the error rises in the iterations that follow a doubling."""
    at = np.arange(STEPS_PER_SIZE, len(errors), STEPS_PER_SIZE)
    return errors[at] - errors[at - 1]


def figure(page: Page, errors: dict, gains: dict, worth: float, models: dict[str, Machine]) -> None:
    """Errors over iterations, the worth of each unit, and all weight vectors of both models."""
    top, low = down(page, 1.1, 1)
    axes = top.subplots(1, 3)
    count, columns = models["machine"].weights.shape
    steps = {name: np.arange(x.shape[1]) for name, x in errors.items()}
    steps["machine"] = EM_STEPS * (steps["machine"] + 1)
    titles = ("A  reconstruction, bits per bit (4.6)", "B  single-bit error (4.7)")
    for place, title in enumerate(titles):
        for name, colour in (("mixture", "C0"), ("machine", "C1")):
            for values, part, line in zip(
                errors[name], ("train", "test"), ("--", "-"), strict=True
            ):
                line_style = {"color": colour, "label": f"{name}, {part}"}
                axes[place].plot(steps[name], values[:, place], line, **line_style)
        axes[place].axvline(EM_STEPS * count, color="0.6", linewidth=1, linestyle=":")
        axes[place].set(title=title, xlabel="iterations of EM")
    label = "mixture, test, split far apart"
    axes[0].plot(steps["shaken"], errors["shaken"][1, :, 0], "C0:", linewidth=1.2, label=label)
    axes[1].text(EM_STEPS * count, axes[1].get_ylim()[1], " backfitting", fontsize=10, va="top")
    for style, (name, values) in zip(("C1o-", "C2s-"), gains.items(), strict=True):
        axes[2].plot(np.arange(1, count + 1), values, style, markersize=4, label=name)
    axes[2].axhline(worth, color="0.5", linestyle="--", label="cost of its parameters")
    axes[2].set(title="C  what a unit adds, nats", xlabel="unit", yscale="log")
    for axis in axes[[0, 2]]:
        axis.legend(fontsize=10)
    titles = (
        "D  all components of the mixture (4.8)",
        "E  all weight vectors of the machine (4.9)",
    )
    for where, title, name in zip(across(low, 1, 1), titles, ("mixture", "machine"), strict=True):
        grid = in_rows(models[name].weights, round(columns**0.5), 9)
        image_grid(where, grid, title=title, signed=True, scale="image")
