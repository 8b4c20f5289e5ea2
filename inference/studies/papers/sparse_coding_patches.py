"""Binary sparse coding of image patches: figure 2 of Henniges et al. (2010)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from inference.local import Params
from inference.methods.truncated import Cut, TruncatedEM
from inference.studies.experiment import Experiment, Outcome
from inference.studies.gabor import GaborFit, fit_gabors
from inference.studies.papers.sparse_coding import selection
from ppl_models import binary_sparse_coding
from ppl_models.data import InputError, patches

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def start(key: Array, data: Array, num_causes: int, **sizes: Any) -> Params:
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
        start=start,
        chunk_size=chunk_size,
    )


def run_patches(options: argparse.Namespace) -> Outcome:
    """`bsc-patches`: sparseness, noise, and how many basis functions are Gabor-like or globular."""
    size = PAPER if options.full else SMALL
    given = {"num_data": options.num_data, "num_steps": options.steps}
    size = size._replace(**{name: value for name, value in given.items() if value is not None})
    if size.num_data < 1 or size.num_steps < 2:
        raise InputError("--num-data must be at least 1 and --steps at least 2")
    key_data, key_fit = random.split(random.key(options.seed))
    data = patches(key_data, size.num_data, size.side, images=options.images).data
    method = patches_method(size, options.chunk_size)
    result = method.run(key_fit, size.num_steps, data, num_causes=size.num_causes)
    functions = result.params["weights"].reshape(-1, size.side, size.side)
    fit = fit_gabors(functions)
    # A cause that is never on has no shape to speak of.
    used = jnp.linalg.norm(result.params["weights"], axis=1) > 0.1 * result.params["noise"]
    numbers = {
        **size._asdict(),
        "pi_h": float(size.num_causes * result.params["sparsity"]),
        "sigma": float(result.params["noise"]),
        "seconds": result.seconds,
        "seconds_per_iteration": result.seconds / len(result.losses),
        "compile_seconds": result.compile_seconds,
        "fraction_gabor": float((fit.gabor & used).mean()),
        "fraction_globular": float((fit.globular & used).mean()),
        "fraction_used": float(used.mean()),
    }
    return Outcome(numbers, lambda: patches_figure(functions, fit, np.asarray(result.losses)))


def patches_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=Path, help="a folder of one's own photographs")
    parser.add_argument("--num-data", type=int, help=f"patches ({SMALL.num_data})")
    parser.add_argument("--steps", type=int, help=f"iterations ({SMALL.num_steps})")
    parser.add_argument("--chunk-size", type=int, help="patches read at a time")


def patches_figure(functions: Array, fit: GaborFit, losses: np.ndarray) -> Figure:
    """Basis functions of largest norm, the most globular ones, and the free energy."""
    import matplotlib.pyplot as plt

    from inference.studies.figures import house_style, image_grid

    size = np.linalg.norm(np.asarray(functions).reshape(len(functions), -1), axis=1)
    largest = np.argsort(-size)[:100]
    images = np.asarray(functions)
    across, explained = np.asarray(fit.periods_across), np.asarray(fit.explained)
    order = np.argsort(np.where(fit.globular, across, across + 10.0))[:20]
    with house_style():
        figure = plt.figure(figsize=(11, 6), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.25, 1))
        image_grid(
            left,
            images[largest].reshape(-1, 10, *functions.shape[1:]),
            title="A  basis functions of largest norm",
            scale="image",
        )
        top, middle, bottom = right.subfigures(3, 1, height_ratios=(0.9, 1, 1))
        image_grid(
            top,
            images[order].reshape(2, 10, *functions.shape[1:]),
            title="B  most globular",
            scale="image",
        )
        axis = middle.subplots()
        well = explained >= 0.6
        axis.scatter(across[well], np.asarray(fit.periods_along)[well], s=8, alpha=0.6)
        axis.set(xlabel="periods across", ylabel="periods along", xlim=(0, 1.2), ylim=(0, 1.2))
        axis.set_title("C  fitted envelopes", loc="left")
        axis = bottom.subplots()
        axis.plot(-losses)
        axis.set(xlabel="iteration")
        axis.set_title("D  free energy", loc="left")
    return figure


EXPERIMENTS = (
    Experiment(
        "bsc-patches",
        "basis functions of image patches: Gabor-like and globular",
        run_patches,
        patches_options,
    ),
)
