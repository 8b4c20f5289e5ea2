"""Binary sparse coding of image patches: figure 2 of Henniges et al. (2010)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import binary_sparse_coding
from latentbits.models.data import InputError, patches

from ...methods.discrete.cut import Cut
from ...methods.discrete.truncated import TruncatedEM
from ...types import Params
from ..figures import image_grid, time_course
from .experiment import Option, Outcome, Page, experiment
from .gabor import GaborFit, fit_gabors
from .sparse_coding import selection


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
    centre=Option(1.0, "of the filter, in pixels"),
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
    method = patches_method(size, options.chunk_size)
    result = method.run(
        key_fit,
        size.num_steps,
        data,
        num_causes=size.num_causes,
        record=lambda params: (size.num_causes * params["sparsity"], params["noise"]),
    )
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
    size = np.linalg.norm(np.asarray(functions).reshape(len(functions), -1), axis=1)
    largest = np.argsort(-size)[: len(size) // 10 * 10][:100]
    images = np.asarray(functions)
    # As figure 2B: "the most globular", whether or not any is.
    likeness = np.where(fit.inside, np.asarray(fit.round - fit.explained), -np.inf)
    globular = np.argsort(-likeness)[:10]
    left, right = page.subfigures(1, 2, width_ratios=(1.3, 1), squeeze=False)[0]
    image_grid(
        left,
        images[largest].reshape(-1, 10, *images.shape[1:]),
        title="A  basis functions of largest norm",
        scale="image",
    )
    parts = right.subfigures(3, 1, height_ratios=(0.6, 1.2, 1), squeeze=False)
    top, middle, bottom = parts[:, 0]
    title = f"B  the most globular; of all, {int(fit.globular.sum())} are"
    image_grid(top, images[None, globular], title=title, signed=True, scale="image")
    axes = middle.subplots()
    for chosen, name in ((~fit.globular, "others"), (fit.globular, "globular")):
        axes.scatter(fit.explained[chosen], fit.round[chosen], s=12, alpha=0.7, label=name)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.set(xlabel="explained by a Gabor function", ylabel="by a circular one")
    axes.set(xlim=(0, 1), ylim=(0, 1), title="C  shape of the basis functions")
    axes.legend()
    axes = bottom.subplots(1, 2)
    for axis, values, name in zip(axes, course, ("D  active causes πH", "E  noise σ"), strict=True):
        time_course(axis, {name: values})
        axis.set(title=name, ylim=(0, None))
