"""What Freund & Haussler (1994) say of the combination machine without an experiment, as numbers.

Figure 2.2: a real machine of three units is a mixture of eight Gaussians. §2.4: principal
components 'necessarily ignore part of the structure', a unit has correlations of any order. §3.1:
the largest terms of the sleep phase are the sums of weight vectors that are farthest from a point.
§2.6 and appendix A: projections of bits on random directions are close to normal.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy.special import ndtr, softmax

from ..files.figures import Axes
from ..reading.states import AllStates, AtMost
from .experiment import Option, Outcome, Page, experiment

UNITS, WIDTH = 14, 64
"""Of the machines whose largest terms are searched for: 16384 states, all of which are summed."""
KEPT = AtMost(3).count((2,) * UNITS)
"""Terms: as many as states of at most three active units."""
ALIKE = (0.0, 0.2, 0.5, 0.8)
"""Cosine between two weight vectors."""
DIMENSIONS = (4, 16, 64, 256, 1024)
DRAWS, DIRECTIONS = 2000, 20
FLIPPED = 0.1
PLANE = np.array([[3.0, 0.6], [0.5, 3.2], [2.2, -1.9]])
"""The three weight vectors of the figure."""


def parity() -> dict[str, Any]:
    """Three bits whose product is +1 but for one row in ten: no pair is correlated (§2.4).

    The machine has a unit for each of the four favoured patterns, by the recipe of §2.5.
    """
    patterns = 2.0 * AllStates().table((2, 2, 2)) - 1.0
    favoured = patterns.prod(1) > 0
    probs = np.where(favoured, 1.0 - FLIPPED, FLIPPED) / 4.0
    ratio = (1.0 - FLIPPED) / FLIPPED
    size = 0.5 * np.log(ratio - 1.0) + 0.5 * np.log(1e6)
    weights, bias = size * patterns[favoured], -3.0 * size + np.log(ratio - 1.0)
    machine = softmax(np.logaddexp(0.0, patterns @ weights.T + bias).sum(1))
    covariance = patterns.T @ (probs[:, None] * patterns)
    turned = np.arange(8) ^ np.array([4, 2, 1])[:, None]  # each bit flipped
    wrong = (machine[turned] > machine).astype(float)
    bits = lambda model: float(-(probs @ np.log2(model)) / 3.0)  # noqa: E731
    return {
        "eigenvalues": np.linalg.eigvalsh(covariance).tolist(),
        "single_bit_machine": float((wrong @ probs).mean()),
        "single_bit_principal_components": 0.5,  # expectations given the other bits are all zero
        "log_loss_machine": bits(machine),
        "log_loss_principal_components": bits(np.full(8, 0.125)),
        "log_loss_true": bits(probs),
    }


def exponents(states: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """g(h) = θ·h + ½‖Ωᵀh‖², whose exponentials are the terms of (3.7)."""
    return states @ bias + 0.5 * ((states @ weights) ** 2).sum(-1)


def farthest(weights: np.ndarray, bias: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """A search for the `count` states of largest terms, and how many were evaluated.

    It begins at the corner that is farthest where the weight vectors are orthogonal, a unit being
    on if θ + ½‖ω‖² > 0, and at no unit and all units; then the best states found so far give way to
    better ones among those that differ from them in one unit, until none does.
    """
    units = len(bias)
    powers = 1 << np.arange(units - 1, -1, -1)
    corner = (bias + 0.5 * (weights**2).sum(1) > 0).astype(int)
    best = np.unique([corner @ powers, 0, powers.sum()])
    evaluated = best
    while True:
        around = np.unique(np.concatenate([best, (best[:, None] ^ powers).ravel()]))
        evaluated = np.union1d(evaluated, around)
        values = exponents((around[:, None] & powers > 0).astype(float), weights, bias)
        kept = np.sort(around[np.argsort(-values)[:count]])
        if np.array_equal(kept, best):
            return best, len(evaluated)
        best = kept


def terms(trials: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """How much of the sleep phase the largest terms hold, found by search and by truncation."""
    states = AllStates().table((2,) * UNITS).astype(float)
    few = states.sum(1) <= 3
    bits = 1 << np.arange(UNITS - 1, -1, -1)

    def one(alike: float) -> dict[str, float]:
        apart = rng.normal(size=(UNITS, WIDTH)) / WIDTH**0.5
        common = rng.normal(size=WIDTH) / WIDTH**0.5
        lengths = rng.uniform(1.0, 2.5, (UNITS, 1))
        weights = lengths * (np.sqrt(1.0 - alike) * apart + np.sqrt(alike) * common)
        # With half of the others on, a unit is on in a fifth to a half of the states.
        own = 0.5 * (weights**2).sum(1)
        together = 0.5 * alike * lengths[:, 0] * (lengths.sum() - lengths[:, 0])
        bias = rng.uniform(-1.4, 0.0, UNITS) - own - together
        value = exponents(states, weights, bias)
        probs = softmax(value)
        kept, evaluated = farthest(weights, bias, KEPT)
        return {
            "search": probs[kept].sum(),
            "best possible": np.sort(probs)[-KEPT:].sum(),
            "at most 3 active": probs[few].sum(),
            "states visited": evaluated,
            "largest found": value.argmax() in kept,
            "corner is the largest": (bias + own > 0) @ bits == value.argmax(),
        }

    return {str(alike): means([one(alike) for _ in range(trials)]) for alike in ALIKE}


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of each number over rows of the same names."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def normality(repeats: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Kolmogorov's distance of projected bits from a normal distribution, by dimension.

    As in theorem A.0.1 the bits of a row are independent, with means from one distribution, and the
    direction is uniform on the sphere; beside it, one coordinate as the direction, and the paper's
    own exception, in which all bits but one are certain.
    """

    def distance(projected: np.ndarray, scale: np.ndarray) -> float:
        order = np.sort(projected / scale, axis=0)
        steps = np.arange(len(order) + 1)[:, None] / len(order)
        normal = ndtr(order)
        return float(np.maximum(steps[1:] - normal, normal - steps[:-1]).max(0).mean())

    def one(size: int) -> dict[str, float]:
        directions = rng.normal(size=(size, DIRECTIONS))
        directions /= np.linalg.norm(directions, axis=0)
        row = {}
        sure = np.where(np.arange(size) > 0, 1.0, 0.0)
        each = {"random means": rng.uniform(-1.0, 1.0, size), "all but one certain": sure}
        for name, mean in each.items():
            draws = np.where(rng.random((DRAWS, size)) < 0.5 * (1.0 + mean), 1.0, -1.0) - mean
            row[name] = distance(draws @ directions, np.sqrt((1.0 - mean**2) @ directions**2))
            if name == "random means":
                alone = draws[:, :DIRECTIONS], np.sqrt(1.0 - mean[:DIRECTIONS] ** 2)
                row["one coordinate"] = distance(*alone)
        exact = rng.normal(size=(DRAWS, DIRECTIONS))
        return row | {"normal draws": distance(exact, np.ones(DIRECTIONS))}

    return {str(size): means([one(size) for _ in range(repeats)]) for size in DIMENSIONS}


@experiment(
    "combination-theory",
    "eight Gaussians, parity, largest terms, normal projections (Freund & Haussler 1994)",
    trials=Option(10, "machines, and sets of bits", 1, 1),
)
def run(options: argparse.Namespace) -> Outcome:
    """`combination-theory`: four statements, one table each."""
    rng = np.random.default_rng(options.seed)
    numbers = {
        "trials": options.trials,
        "parity": parity(),
        "terms_kept": KEPT,
        "terms": terms(options.trials, rng),
        "normality": normality(options.trials, rng),
    }
    return Outcome(numbers, (12, 8.6), figure, (numbers,))


def figure(page: Page, numbers: dict[str, Any]) -> None:
    """Figure 2.2, the parity of three bits, the largest terms, and projections."""
    (plane, pairs), (terms, normal) = page.subplots(2, 2)
    states = AllStates().table((2, 2, 2)).astype(float)
    centres = states @ PLANE
    bias = -0.5 * (PLANE @ PLANE.T).sum(1)  # with half of the others on, a unit is at even odds
    share = softmax(exponents(states, PLANE, bias))
    x, y = np.meshgrid(np.linspace(-3, 8.6, 200), np.linspace(-5, 7, 200))
    square = (x[..., None] - centres[:, 0]) ** 2 + (y[..., None] - centres[:, 1]) ** 2
    density = np.exp(-0.5 * square) @ share
    plane.contourf(x, y, density, levels=12, cmap="Blues")
    for vector in PLANE:
        arrow = {"arrowstyle": "->", "color": "C1", "linewidth": 2}
        plane.annotate("", vector, (0.0, 0.0), arrowprops=arrow)
    around = np.exp(1j * np.linspace(0.0, 2.0 * np.pi, 100))[:, None]
    for radius in (1.0, 2.0):
        circle = centres[:, 0] + 1j * centres[:, 1] + radius * around
        plane.plot(circle.real, circle.imag, color="0.35", linewidth=0.6)
    plane.set(title="A  three units, eight Gaussians (figure 2.2)", aspect="equal")
    parity = numbers["parity"]
    rows = {
        "machine": parity["log_loss_machine"],
        "principal components": parity["log_loss_principal_components"],
        "true distribution": parity["log_loss_true"],
    }
    pairs.barh(list(rows), list(rows.values()), color=["C0", "C1", "0.6"])
    pairs.set(title="B  three bits, parity alone", xlabel="log-loss, bits per bit", xlim=(0, 1.15))
    wrongs = parity["single_bit_machine"], parity["single_bit_principal_components"], FLIPPED
    for place, (value, wrong) in enumerate(zip(rows.values(), wrongs, strict=True)):
        pairs.text(value - 0.02, place, f"bit wrong {wrong:.2f}", va="center", ha="right", c="w")
    pairs.invert_yaxis()
    marks = {"best possible": "k--", "search": "o-", "at most 3 active": "s-"}
    _draw_columns(terms, ALIKE, numbers["terms"], marks)
    terms.set(title=f"C  share of Z in {numbers['terms_kept']} of {1 << UNITS} terms")
    terms.set(xlabel="cosine between weight vectors", ylim=(0, 1.02))
    marks = {"random means": "o-", "one coordinate": "s-", "all but one certain": "^-"}
    _draw_columns(normal, DIMENSIONS, numbers["normality"], marks | {"normal draws": "k--"})
    normal.set(title="D  projections: distance from normal", xlabel="bits in a row", yscale="log")
    normal.set_xscale("log", base=2)


def _draw_columns(axes: Axes, places: Any, table: dict, marks: dict[str, str]) -> None:
    """Some columns of a table of rows by place, a line each."""
    for name, mark in marks.items():
        axes.plot(places, [row[name] for row in table.values()], mark, label=name)
    axes.legend(fontsize=10)
