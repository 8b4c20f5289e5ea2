"""Henniges et al. (2010): the bars test of figure 1, and the image patches of figure 2.

Gabor functions and circular functions are fitted to the basis functions of patches, all at once:

    g(u, v) = exp(−u²/2a² − v²/2b²) · {c cos 2πfu + d sin 2πfu},    (u, v) turned by an angle
    r(ρ)    = c exp(−ρ²/2a²) + d exp(−ρ²/2b²),                      ρ the distance from a centre

The second, two concentric Gaussians, is a spot with or without a ring of the other sign: what a
globular field is, "with no or very little orientation preferences". Two numbers, c and d, enter
linearly and are solved for; the others are found by least squares from several starts. Ringach
(2002) describes simple cells by the widths in periods, n_u = a·f and n_v = b·f: fields with stripes
have large ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models import binary_sparse_coding
from latentbits.models.data import InputError, bars, patches

from ..files.figures import image_grid, time_course
from ..methods.discrete.truncated import Cut, TruncatedEM
from ..methods.discrete.updates import SparseCodingUpdate
from ..types import Params
from .experiment import (
    Option,
    Outcome,
    Page,
    across,
    down,
    experiment,
    in_batches,
    in_rows,
    pick,
)

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
    course: Params  # (steps + 1, ...) from the start on, of the chosen restart
    chosen: Array  # the restart of best evidence


def bars_trial(
    method: TruncatedEM, num_data: int, num_restarts: int, key: Array, num_steps: int = NUM_STEPS
) -> Trial:
    """Draw data, fit from `num_restarts` starts, keep the fit of highest free energy."""
    key_data, key_fit = random.split(key)
    truth = bars(key_data, num_data)
    sizes: dict[str, Any] = {"num_causes": truth.weights.shape[0]}

    def fit(key: Array) -> tuple[Params, Array]:
        def step(state: Any, _: None) -> tuple[Any, tuple[Params, Array]]:
            after, loss = method.update(state, truth.data, **sizes)
            return after, (state.params, loss)

        # The loss of the last parameters is that of one step more.
        begun = method.init(key, truth.data, **sizes)
        _, (course, losses) = lax.scan(step, begun, None, length=num_steps + 1)
        return course, losses[-1]

    courses, losses = jax.vmap(fit)(random.split(key_fit, num_restarts))
    best = jnp.argmin(losses)
    course = pick(courses, best)
    return Trial(all_bars_recovered(truth.weights, course["weights"][-1]), course, best)


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
    trials, seconds = in_batches(one, options.seed, options.trials, batch)
    ends = {"pi_h": 10 * trials.course["sparsity"], "sigma": trials.course["noise"]}
    asked = ("trials", "num_data", "init_active", "improved")
    numbers = {
        **{name: getattr(options, name) for name in asked},
        "recovered": float(trials.recovered.mean()),
        **{f"{name}_mean": float(x[:, -1].mean()) for name, x in ends.items()},
        **{f"{name}_std": float(x[:, -1].std()) for name, x in ends.items()},
        **seconds,
    }
    return Outcome(numbers, (11, 5.4), bars_figure, (options, trials.course, ends))


def bars_figure(page: Page, options: argparse.Namespace, course: Params, ends: dict) -> None:
    """Data, basis functions over the iterations of the first trial, and the course of πH and σ.

    In red the course from πH = 1 on the same data, as in figure 1C.
    """
    key = random.split(random.key(options.seed), options.trials)[0]
    data = np.asarray(bars(random.split(key)[0], options.num_data).data[:10])
    other = jax.jit(partial(bars_trial, paper_recipe(1.0), options.num_data, 1))(key).course
    left, right = across(page, 1.35, 1)
    top, bottom = down(left, 1, 3.4)
    image_grid(top, in_rows(data, 5, 10), title="A  data")
    shown = (0, 5, 10, 20, 40, 60)
    grid = course["weights"][0, shown, :].reshape(len(shown), 10, 5, 5)
    names = [f"{step}" for step in shown]
    image_grid(bottom, grid, title="B  basis functions by iteration", row_labels=names)
    axes = right.subplots(2, 1, sharex=True)
    count = min(40, options.trials)
    titles = {"πH": f"C  active causes πH, {count} trials", "σ": "D  noise σ"}
    from_one = {"πH": 10 * other["sparsity"], "σ": other["noise"]}
    for panel, (name, title), values in zip(axes, titles.items(), ends.values(), strict=True):
        time_course(panel, {name: values[:count, 1:]}, 2.0)
        panel.plot(np.arange(1, NUM_STEPS + 1), from_one[name][1:], "r", label="from πH = 1")
        panel.set(ylim=(0, None), title=title)
        panel.legend()
    axes[0].set_xlabel("")


class Size(NamedTuple):
    """How large the experiment is."""

    num_data: int
    side: int
    num_causes: int
    max_active: int
    num_candidates: int
    num_steps: int


SMALL = Size(20_000, 14, 120, 5, 8, 120)
PAPER = Size(200_000, 26, 700, 8, 10, 200)


def patches_start(key: Array, data: Array, num_causes: int, **sizes: Any) -> Params:
    """The mean patch and small noise in each basis function, πH = 1, σ by eq. (7) on all data."""
    del sizes
    mean = data.mean(0)
    spread = data.std()
    noise = 0.1 * spread * random.normal(key, (num_causes, data.shape[1]))
    return {"weights": mean + noise, "noise": spread, "sparsity": jnp.asarray(1.0 / num_causes)}


def patches_method(size: Size, chunk_size: int | None = None) -> TruncatedEM:
    """The paper's settings: the cut begins after a third of the iterations and ends at half."""
    return TruncatedEM(
        binary_sparse_coding,
        max_active=size.max_active,
        num_candidates=size.num_candidates,
        select=selection,
        keep=False,
        cut=Cut(size.num_steps * 33 // 100, size.num_steps // 2),
        start=patches_start,
        chunk_size=chunk_size,
    )


@experiment(
    "bsc-patches",
    "basis functions of image patches: Gabor-like and globular",
    images=Option(Path, "a folder of one's own photographs"),
    num_data=Option(SMALL.num_data, "patches", 100, 1, PAPER.num_data),
    steps=Option(SMALL.num_steps, "iterations", 2, 2, PAPER.num_steps),
    side=Option(SMALL.side, "pixels of a patch, each way", 6, full=PAPER.side),
    causes=Option(SMALL.num_causes, "basis functions", 10, full=PAPER.num_causes),
    max_active=Option(SMALL.max_active, "active at most, γ", full=PAPER.max_active),
    candidates=Option(SMALL.num_candidates, "a patch's, H'", full=PAPER.num_candidates),
    centre=Option(1.0, "centre of the filter, in pixels"),
    surround=Option(3.0, "the same"),
    whiten=Option(False, "equal power at all frequencies"),
    chunk_size=Option(int, "patches read at a time"),
)
def run_patches(options: argparse.Namespace) -> Outcome:
    """`bsc-patches`: sparseness, noise, and how many basis functions are Gabor-like or globular."""
    size = Size(
        options.num_data, options.side, options.causes, options.max_active, options.candidates,
        options.steps,
    )  # fmt: skip
    if not 0 < options.centre < options.surround:
        raise InputError(
            f"--centre must be positive and less than --surround, found {options.centre:g} and "
            f"{options.surround:g}"
        )
    key_data, key_fit = random.split(random.key(options.seed))
    filtered = {"centre": options.centre, "surround": options.surround, "whiten": options.whiten}
    data = patches(key_data, size.num_data, size.side, options.images, **filtered).data
    method, causes = patches_method(size, options.chunk_size), size.num_causes
    record = lambda params: (causes * params["sparsity"], params["noise"])  # noqa: E731
    result = method.run(key_fit, size.num_steps, data, num_causes=causes, record=record)
    functions = result.params["weights"].reshape(-1, size.side, size.side)
    fit = fit_gabors(functions)
    # A cause that is never on has no shape to speak of.
    used = jnp.linalg.norm(result.params["weights"], axis=1) > 0.1 * result.params["noise"]
    numbers = {
        **size._asdict(),
        **filtered,
        "pi_h": float(size.num_causes * result.params["sparsity"]),
        "sigma": float(result.params["noise"]),
        "seconds": result.seconds,
        "seconds_per_iteration": result.seconds / len(result.losses),
        "compile_seconds": result.compile_seconds,
        "fraction_gabor": float((fit.gabor & used).mean()),
        "fraction_globular": float((fit.globular & used).mean()),
        "fraction_used": float(used.mean()),
        "pi_h_by_iteration": np.asarray(result.history[0]).tolist(),
        "sigma_by_iteration": np.asarray(result.history[1]).tolist(),
    }
    return Outcome(numbers, (12, 7), patches_figure, (functions, fit, result.history))


def patches_figure(
    page: Page, functions: Array, fit: GaborFit, course: tuple[Array, Array]
) -> None:
    """Basis functions of largest norm, globular ones, their fits, and the course of πH and σ."""
    images = np.asarray(functions)
    side = images.shape[-1]
    size = np.linalg.norm(images, axis=(1, 2))
    largest = np.argsort(-size)[: len(size) // 10 * 10][:100]
    # As figure 2B: "the most globular", whether or not any is.
    likeness = np.where(fit.inside, np.asarray(fit.round - fit.explained), -np.inf)
    globular = np.argsort(-likeness)[:10]
    left, right = across(page, 1.3, 1)
    title = "A  basis functions of largest norm"
    image_grid(left, in_rows(images[largest], side, 10), title=title, scale="image")
    top, middle, bottom = down(right, 0.6, 1.2, 1)
    title = f"B  the most globular; of all, {int(fit.globular.sum())} are"
    image_grid(top, images[None, globular], title=title, signed=True, scale="image")
    axes = middle.subplots()
    for chosen, name in ((~fit.globular, "others"), (fit.globular, "globular")):
        axes.scatter(fit.explained[chosen], fit.round[chosen], s=12, alpha=0.7, label=name)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.set(xlabel="explained by a Gabor function", ylabel="by a circular one")
    axes.set(xlim=(0, 1), ylim=(0, 1), title="C  shape of the basis functions")
    axes.legend()
    names = ("D  active causes πH", "E  noise σ")
    for axis, values, name in zip(bottom.subplots(1, 2), course, names, strict=True):
        time_course(axis, {name: values})
        axis.set(title=name, ylim=(0, None))


# Share of a function's variance that its fit must explain before it is called anything at all.
WELL_FITTED = 0.6
# Less than a quarter of a period under one standard deviation of the envelope: no second lobe.
QUARTER = 0.25
# Shares that differ by less are equal.
ALIKE = 0.01
GABOR_STEPS = 50


class GaborFit(NamedTuple):
    """The best fits of each function, (num_functions,) each."""

    explained: Array  # share of the squared values that the Gabor function explains
    width: Array  # a, across the stripes, in pixels
    length: Array  # b, along the stripes
    frequency: Array  # f, in periods a pixel
    even: Array  # share of the fit that is its cosine part: 1 for a bar, 0 for an edge
    round: Array  # share of the squared values that the circular function explains
    inside: Array  # whether its centre is in the patch, and the spot less than half as wide

    @property
    def globular(self) -> Array:
        """Well fitted by a circular function inside the patch, and as well as by a Gabor function.

        That has two numbers more, and explains 0.90 to 0.95 of a spot with a ring, all of a spot
        without.
        """
        alike = self.round > self.explained - ALIKE
        return (self.round >= WELL_FITTED) & alike & self.inside

    @property
    def gabor(self) -> Array:
        """Well fitted with stripes or an edge: a quarter period across at least, or odd."""
        striped = (self.width * self.frequency >= QUARTER) | (self.even < 0.5)
        return (self.explained >= WELL_FITTED) & striped & ~self.globular


def fit_gabors(functions: Array) -> GaborFit:
    """Fit a Gabor function and a circular function to each of (num_functions, side, side).

    >>> y, x = np.mgrid[:9, :9] - 4.0
    >>> wave = np.exp(-(x**2 + y**2) / 8.0) * np.cos(2.0 * x)
    >>> spot = np.exp(-(x**2 + y**2) / 2.0) - 0.2 * np.exp(-(x**2 + y**2) / 10.0)
    >>> bar = np.exp(-(x**2) / 2.0 - y**2 / 18.0)
    >>> fit = fit_gabors(jnp.asarray(np.stack([wave, spot, bar])))
    >>> fit.gabor.tolist(), fit.globular.tolist()
    ([True, False, False], [False, True, False])
    """
    side = functions.shape[-1]
    rows, columns = np.mgrid[:side, :side].reshape(2, -1)
    unit = functions.reshape(len(functions), -1)
    unit = unit / jnp.maximum(jnp.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    least, most = np.log(0.5), np.log(side)  # a width has half a pixel at least

    def striped(free: Array) -> Array:
        x, y, angle, width, length, frequency = free
        across = (columns - x) * jnp.cos(angle) + (rows - y) * jnp.sin(angle)
        along = -(columns - x) * jnp.sin(angle) + (rows - y) * jnp.cos(angle)
        envelope = jnp.exp(
            -0.5 * (across / jnp.exp(width)) ** 2 - 0.5 * (along / jnp.exp(length)) ** 2
        )
        phase = 2 * jnp.pi * jnp.exp(frequency) * across
        return envelope * jnp.stack([jnp.cos(phase), jnp.sin(phase)])

    def circular(free: Array) -> Array:
        x, y, first, second = free
        far = (columns - x) ** 2 + (rows - y) ** 2
        return jnp.stack([jnp.exp(-0.5 * far * jnp.exp(-2.0 * w)) for w in (first, second)])

    def out_of_range(widths: Array) -> Array:
        return jnp.concatenate([jax.nn.relu(least - widths), jax.nn.relu(widths - most)])

    def too_fast(free: Array) -> Array:  # a period has two pixels at least
        return jnp.concatenate([out_of_range(free[3:5]), jax.nn.relu(free[5:] - jnp.log(0.5))])

    angles = np.linspace(0.0, np.pi, 8, endpoint=False)
    grid = [(a, f, w) for a in angles for f in (0.04, 0.1, 0.2) for w in (side / 14, side / 7)]
    turned = np.array([(a, np.log(w), np.log(w), np.log(f)) for a, f, w in grid])
    rings = np.log([(w, ratio * w) for w in (0.8, 1.5, side / 9) for ratio in (1.6, 3.0)])

    def one(target: Array) -> tuple:
        energy, peak = target**2, jnp.argmax(jnp.abs(target))
        centre = jnp.stack([energy @ columns, energy @ rows])
        highest = jnp.stack([jnp.asarray(columns)[peak], jnp.asarray(rows)[peak]]).astype(float)
        places = lambda at, rest: jnp.concatenate(  # noqa: E731
            [jnp.broadcast_to(at, (len(rest), 2)), jnp.asarray(rest, float)], axis=1
        )
        gabor = _closest(striped, too_fast, places(centre, turned), target)
        starts = jnp.concatenate([places(centre, rings), places(highest, rings)])
        ring = _closest(circular, lambda free: out_of_range(free[2:]), starts, target)
        return gabor, ring

    fits = jax.jit(lambda unit: lax.map(one, unit, batch_size=64))(unit)
    (free, explained, even), (place, rounded, _) = fits
    width, length, frequency = (jnp.exp(free[:, i]) for i in (3, 4, 5))
    spot = jnp.exp(place[:, 2:].min(axis=1))
    # A Gaussian falls to half of its height at 1.18 standard deviations.
    inside = ((place[:, :2] >= 0) & (place[:, :2] <= side - 1)).all(1) & (2.36 * spot < side / 2)
    return GaborFit(explained, width, length, frequency, even, rounded, inside)


def _closest(
    pair: Callable[[Array], Array],
    penalty: Callable[[Array], Array],
    starts: Array,
    target: Array,
) -> tuple[Array, Array, Array]:
    """The numbers at which two functions explain most of the target, how much, and by the first.

    :param pair: the two functions, (2, pixels), of the numbers that are looked for.
    :param penalty: zero where these are in their range.
    :param starts: (num_starts, numbers); the four most promising are followed to their end.
    """

    def basis(free: Array) -> Array:
        """The two functions, orthonormal."""
        first, second = pair(free)
        first = first / jnp.sqrt(first @ first + 1e-12)
        second = second - (second @ first) * first
        return jnp.stack([first, second / jnp.sqrt(second @ second + 1e-12)])

    def residual(free: Array) -> Array:
        shape = basis(free)
        return jnp.concatenate([target - (shape @ target) @ shape, penalty(free)])

    def cost(free: Array) -> Array:
        return jnp.sum(residual(free) ** 2)

    def descend(free: Array) -> tuple[Array, Array]:
        """Levenberg and Marquardt's compromise between Newton and gradient."""

        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            free, damping = carry
            slope = jax.jacfwd(residual)(free)
            square = slope.T @ slope
            bent = square + damping * jnp.diag(jnp.diagonal(square) + 1e-6)
            new = free - jnp.linalg.solve(bent, slope.T @ residual(free))
            better = cost(new) < cost(free)
            damping = jnp.clip(jnp.where(better, 0.3, 4.0) * damping, 1e-6, 1e6)
            return (jnp.where(better, new, free), damping), None

        (free, _), _ = lax.scan(step, (free, jnp.asarray(0.1)), None, length=GABOR_STEPS)
        return free, cost(free)

    promising = starts[jnp.argsort(jax.vmap(cost)(starts))[:4]]
    free, left = jax.vmap(descend)(promising)
    best = free[jnp.argmin(jnp.where(jnp.isfinite(left), left, jnp.inf))]
    amplitude = basis(best) @ target
    explained = amplitude @ amplitude
    return best, explained, amplitude[0] ** 2 / (explained + 1e-12)
