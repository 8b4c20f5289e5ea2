"""Combination machine, mixture and product on handwritten digits: figures 4.3 to 4.9.

``latentbits reproduce combination-digits --full --data FILE --packed 256 --rows 1000 --shuffle``
with NIST digits on one H200, mean of 5 runs on test rows, single-bit error and reconstruction in
bits per bit: product 0.302, 0.784 (the paper has 0.30, 0.80); mixture 0.216, 0.689 (0.26, 0.70);
pursuit 0.176, 0.539 (0.20, 0.64); followed by the persistent gradient 0.149, 0.450. The truncated
sleep phase of three active units makes things worse here: far more than three are active.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax, random
from latentbits.models import bernoulli_mixture, bernoulli_product, combination_machine
from latentbits.models.data import digits

from ..evaluation.measures import (
    chosen_bits,
    log_loss,
    reconstruction,
    row_functions,
    single_bit,
)
from ..files.figures import image_grid
from ..methods.discrete.splitting import SplittingEM
from ..methods.machines.ascent import without_normalizer
from ..methods.machines.contrastive import ContrastiveDivergence
from ..methods.machines.partition import annealed, causes_of
from ..methods.machines.pursuit import ProjectionPursuit
from ..running.algorithm import Algorithm
from ..running.contract import follow
from ..types import Params
from .combination import draw_table, table
from .experiment import IMAGES, Option, Outcome, Page, experiment, load_images, timed

ROWS = {
    "product": "product",
    "mixture": "mixture",
    "combination": "combination",
    "combination_improved": "improved",
}


class Size(NamedTuple):
    """How large the experiment is."""

    units: int
    runs: int
    steps: int  # of the persistent gradient
    chains: int  # of annealed importance sampling
    temperatures: int
    bits: int | None  # of each row that are predicted; None: all


PAPER = Size(45, 5, 1500, 200, 3000, None)
SMALL = Size(45, 2, 1000, 100, 1000, 16)


class Run(NamedTuple):
    """Every model of the table, from one start."""

    params: dict[str, Params]
    train: dict[str, dict[str, Array]]
    test: dict[str, dict[str, Array]]
    log_normalizer_error: dict[str, Array]  # standard error of log Z, nats


def improved() -> ContrastiveDivergence:
    """What follows pursuit: a persistent sleep phase, slow steps, and weights held near zero."""
    import optax

    model = partial(combination_machine, prior_weights=dist.Normal(0.0, 0.3))
    return ContrastiveDivergence(model, persistent=True, optimizer=optax.adam(0.003), prior=True)


def one_run(size: Size, train: Array, test: Array, key: Array) -> Run:
    """Fit every row of the table to the training data, and measure it on both."""
    keys = random.split(key, 5)
    units: dict[str, Any] = {"num_causes": size.units}
    parts: dict[str, Any] = {"num_components": size.units}

    def learn(method: Algorithm, key: Array, steps: int, sizes: dict, **start: Any) -> Params:
        begun = method.init(key, train, **start, **sizes)
        return method.get_params(follow(method, begun, steps, train, **sizes)[0])

    splitting = SplittingEM(bernoulli_mixture)
    pursuit = ProjectionPursuit(combination_machine, num_starts=1, significant=False)
    mixture = learn(splitting, keys[0], splitting.num_steps(size.units), parts)
    strokes = learn(pursuit, keys[1], size.units, units)
    better = learn(improved(), keys[2], size.steps, units, init_params=strokes)

    # A pixel that is never inked in training has a count too few to be sure of.
    odds = (train.sum(0) + 0.5) / (len(train) + 1.0)
    params = {
        "product": {"probs": odds},
        "mixture": mixture,
        "combination": strokes,
        "combination_improved": better,
    }
    base = 0.5 * jnp.log(odds / (1.0 - odds))
    columns = None
    if size.bits is not None:
        columns = chosen_bits(keys[4], len(train), train.shape[1], size.bits)

    def judge(model: Callable, sizes: dict, value: Params, log_z: Array | float = 0.0) -> Any:
        """Both sets of rows, one after the other: (2,) of each measure."""

        def one(data: Array) -> dict[str, Array]:
            of = row_functions(model, value, data, **sizes)
            return {
                "log_loss": log_loss(lambda rows: of.log_likelihood(rows) - log_z, data).value,
                "single_bit": single_bit(of.log_likelihood, data, columns).value,
                "reconstruction": reconstruction(of.log_decoded, data).value,
            }

        return lax.map(one, jnp.stack([train, test]))

    def judge_machine(pair: tuple[Array, Params]) -> tuple[Any, Array]:
        key, value = pair
        log_z = annealed(
            key, causes_of(combination_machine, value, train, **units), base=base,
            num_chains=size.chains, num_steps=size.temperatures,
        )  # fmt: skip
        model = without_normalizer(combination_machine)
        return judge(model, units, value, log_z.value), log_z.standard_error

    machines = [params["combination"], params["combination_improved"]]
    both = jax.tree.map(lambda *x: jnp.stack(x), *machines)
    measures, errors = lax.map(judge_machine, (random.split(keys[3], 2), both))
    scores = {
        "product": judge(bernoulli_product, {}, params["product"]),
        "mixture": judge(bernoulli_mixture, parts, params["mixture"]),
        "combination": jax.tree.map(itemgetter(0), measures),
        "combination_improved": jax.tree.map(itemgetter(1), measures),
    }
    train_scores, test_scores = (jax.tree.map(itemgetter(i), scores) for i in range(2))
    error = {"combination": errors[0], "combination_improved": errors[1]}
    return Run(params, train_scores, test_scores, error)


@experiment(
    "combination-digits",
    "machine against mixture and product on digits (Freund & Haussler 1994, figures 4.3-4.9)",
    **IMAGES,
    rows=Option(int, "how many, half of them to train; default all", 40),
    shuffle=Option(False, "take the rows in random order"),
    # Of 2^17 states no table is made.
    units=Option(SMALL.units, "hidden units and components", 17, 1),
    runs=Option(SMALL.runs, "runs from different starts", 1, 1, PAPER.runs),
    steps=Option(SMALL.steps, "steps of the persistent gradient", 2, 1, PAPER.steps),
    chains=Option(SMALL.chains, "chains of the estimate of log Z", 4, 1, PAPER.chains),
    temperatures=Option(SMALL.temperatures, "temperatures per chain", 10, 1, PAPER.temperatures),
)
def run(options: argparse.Namespace) -> Outcome:
    """All runs, one compiled call; the table is their mean."""
    size = Size(
        options.units, options.runs, options.steps, options.chains, options.temperatures,
        PAPER.bits if options.full else SMALL.bits,
    )  # fmt: skip
    shuffle = options.shuffle or options.data is None
    data = load_images(options, lambda: np.asarray(digits().data), 4, shuffle)
    if options.data is None and options.rows is None:
        data = data[:1000]  # 500 and 500, as in the paper
    half = len(data) // 2
    train, test = data[:half], data[half : 2 * half]
    keys = random.split(random.key(options.seed), size.runs)

    def every(train: Array, test: Array, keys: Array) -> Run:
        batch = size.runs if jax.default_backend() != "cpu" else 1
        return lax.map(partial(one_run, size, train, test), keys, batch_size=batch)

    arguments = (jnp.asarray(train, float), jnp.asarray(test, float), keys)
    ran, seconds, compiling = timed(every, *arguments)
    runs: Run = jax.device_get(ran)
    spread = table(runs, ROWS, lambda x: x.std(ddof=1)) if size.runs > 1 else {}
    numbers: dict[str, Any] = {
        "table": table(runs, ROWS, np.mean),
        "standard_deviations": spread,
        "log_normalizer_error": {k: float(v.mean()) for k, v in runs.log_normalizer_error.items()},
        "rows": len(train),
        "units": size.units,
        "runs": size.runs,
        "steps": size.steps,
        "seconds_per_run": seconds / size.runs,
        "compile_seconds": compiling,
    }
    return Outcome(numbers, (13, 7.4), figure, (train, runs))


def figure(page: Page, train: np.ndarray, runs: Run) -> None:
    """Some digits, weight vectors of mixture and machine, and the table as dots."""
    side = round(train.shape[1] ** 0.5)
    left, right = page.subfigures(1, 2, width_ratios=(1.6, 1), squeeze=False)[0]
    panes = left.subfigures(4, 1, height_ratios=(1.25, 2, 2, 2), squeeze=False)[:, 0]
    count = min(12, len(train))
    image_grid(panes[0], train[:count].reshape(1, count, side, side), title="A  digits")
    titles = {
        "mixture": "B  components of the mixture: whole digits",
        "combination": "C  weights by pursuit: strokes, to be combined",
        "combination_improved": "D  weights after the persistent gradient",
    }
    for pane, (row, title) in zip(panes[1:], titles.items(), strict=True):
        first = {name: value[0] for name, value in runs.params[row].items()}
        if row == "mixture":
            busy = np.argsort(-np.asarray(first["mixing"]))
            probs = np.asarray(first["probs"])[busy].clip(0.002, 0.998)
            images = np.log(probs / (1 - probs))
        else:
            images = np.asarray(first["weights"])
        columns = min(12, len(images))
        rows = min(2, len(images) // columns)
        shown = images[: rows * columns].reshape(rows, columns, side, side)
        image_grid(pane, shown, title=title, signed=True, scale="image")
    axes = draw_table(right, runs, ROWS)
    runs_shown = len(runs.test["product"]["log_loss"])
    axes[0].set_title(f"E  means of {runs_shown} runs" if runs_shown > 1 else "E  one run")
    axes[0].legend(loc="upper left", fontsize=10)
