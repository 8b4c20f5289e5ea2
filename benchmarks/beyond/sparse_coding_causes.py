"""Sparse coding with other causes: what the discussion of Henniges et al. (2010) leaves open.

Binary causes that add up, binary causes that hide each other, causes with a Gaussian or a Laplace
strength: each makes bars, all are fitted to each set, and rows that none has seen say which fits.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax, random
from latentbits.models import binary_sparse_coding, sparse_coding
from latentbits.models.data import InputError
from latentbits.models.data.strokes import stroke_masks
from numpyro import handlers

from inference.files.figures import image_grid
from inference.methods.continuous.quadrature import QuadratureEM
from inference.methods.discrete.em import EM
from inference.methods.discrete.truncated import TruncatedEM
from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.papers.sparse_coding import all_bars_recovered
from inference.running.contract import follow
from inference.types import Params

SIDE = 3
BARS = np.array([3.0, -4.0, 5.0])[:, None] * stroke_masks(SIDE)[[0, 2, 3]]
"""Two rows and the column that crosses them: as many as quadrature goes through."""
NOISE, SPARSITY = 0.7, 0.4
NUM_CAUSES = len(BARS)
NODES = 5
"""Of each strength under a Laplace prior: off by 0.001 nats per row. Under a Gaussian one its
posterior is Gaussian in each state of the bits, and two nodes are exact."""


class Kind(NamedTuple):
    """A kind of causes: its program, and a method of ours that reads it."""

    program: Any
    sizes: dict[str, Any]
    method: Any

    @property
    def truth(self) -> Params:
        params = {"weights": jnp.asarray(BARS, float), "noise": jnp.asarray(NOISE)}
        spike = self.sizes.get("spike", True)
        return {**params, "sparsity": jnp.asarray(SPARSITY)} if spike else params

    def draw(self, key: Array, num_data: int) -> Array:
        """Rows of the bars."""
        program = handlers.substitute(handlers.seed(self.program, key), self.truth)
        with handlers.block():
            return program(num_data=num_data, num_features=SIDE**2, **self.sizes)

    def fit(
        self, key: Array, train: Array, test: Array, num_steps: int, num_starts: int
    ) -> tuple[Params, Array]:
        """The best of several fits by the likelihood, and the evidence of each new row."""

        def one(key: Array) -> tuple[Params, Array]:
            weights = 2.0 * random.normal(key, BARS.shape)
            spread = jnp.sqrt(jnp.mean(train**2))
            start = {**self.truth, "weights": weights, "noise": spread}
            state = self.method.init(key, train, init_params=start, **self.sizes)
            state, losses = follow(self.method, state, num_steps, train, **self.sizes)
            return self.method.get_params(state), losses[-1]

        every, losses = lax.map(one, random.split(key, num_starts))
        best = jnp.nanargmin(losses)
        params = {name: value[best] for name, value in every.items()}
        if isinstance(self.method, QuadratureEM):
            return params, self.method.evidence(params, test, **self.sizes)
        return params, self.method.posterior(params, test, **self.sizes).evidence


def kinds() -> dict[str, Kind]:
    """What the bars are made of, by name."""
    sizes = {"num_causes": NUM_CAUSES}
    maximal = TruncatedEM(binary_sparse_coding, max_active=NUM_CAUSES, num_candidates=NUM_CAUSES)
    slab, laplace = (QuadratureEM(sparse_coding, num_nodes=n) for n in (2, NODES))
    graded = {**sizes, "spike": False, "slab": dist.Laplace(0.0, 1.0)}
    return {
        "binary": Kind(binary_sparse_coding, sizes, EM(binary_sparse_coding)),
        "maximal": Kind(binary_sparse_coding, {**sizes, "superposition": "max"}, maximal),
        "spike-and-slab": Kind(sparse_coding, sizes, slab),
        "Laplace": Kind(sparse_coding, graded, laplace),
    }


@experiment(
    "bsc-causes",
    "bars of causes that add up, hide each other or have a strength: which kind made them",
    kinds=Option(list(kinds()), "kinds of causes, some of these", ["binary", "maximal"]),
    num_data=Option(300, "rows to learn from", 60, 1),
    steps=Option(40, "steps of EM", 15, 1),
    starts=Option(3, "starts of each fit", 2, 1),
)
def run_causes(options: argparse.Namespace) -> Outcome:
    """`bsc-causes`: the log-likelihood of new rows, by what made them and by what is fitted."""
    known = kinds()
    chosen: list[str] = options.kinds
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InputError(f"--kinds has {unknown[0]!r}: wanted some of {', '.join(known)}")
    keys = random.split(random.key(options.seed), len(chosen))
    rows = options.num_data
    data = {x: known[x].draw(key, 2 * rows) for x, key in zip(chosen, keys, strict=True)}
    scores: dict[str, dict[str, np.ndarray]] = {name: {} for name in chosen}
    functions, recovered = {}, {}
    for fitted in chosen:
        sizes = {"num_steps": options.steps, "num_starts": options.starts}
        fit = jax.jit(partial(known[fitted].fit, **sizes))
        for made, table in data.items():
            params, evidence = jax.device_get(fit(keys[0], table[:rows], table[rows:]))
            scores[made][fitted] = evidence
            if made == fitted:
                functions[made] = params["weights"]
                recovered[made] = bool(all_bars_recovered(np.abs(BARS), np.abs(params["weights"])))
    numbers: dict[str, Any] = {"num_data": rows}
    for made, row in scores.items():
        gaps = {name: row[name] - row[made] for name in chosen}
        means = {name: float(row[name].mean()) for name in chosen}
        numbers[f"made of {made}"] = {
            "all bars recovered": recovered[made],
            "best": max(means, key=means.__getitem__),
            "log-likelihood": means,
            "standard error of the difference": {
                name: float(x.std() / np.sqrt(len(x))) for name, x in gaps.items() if name != made
            },
        }
    return Outcome(numbers, (10, 4.8), causes_figure, (scores, functions))


def causes_figure(
    page: Page, scores: dict[str, dict[str, np.ndarray]], functions: dict[str, np.ndarray]
) -> None:
    """What a wrong kind of causes costs, and the basis functions that the right one finds."""
    names = list(scores)
    table = np.array([[scores[made][name].mean() for name in names] for made in names])
    lost = table - np.diagonal(table)[:, None]
    left, right = page.subfigures(1, 2, width_ratios=(1.3, 1), squeeze=False)[0]
    axes = left.subplots()
    axes.imshow(lost, cmap="Blues_r", vmin=2.5 * min(lost.min(), -1.0), vmax=0)
    for (i, j), value in np.ndenumerate(lost):
        axes.text(j, i, f"{value:+.2f}", ha="center", va="center", color="black")
    axes.set(xticks=range(len(names)), yticks=range(len(names)), xlabel="causes fitted")
    axes.set(yticklabels=names, ylabel="causes that made the data")
    axes.set_xticklabels(names, rotation=30, ha="right")
    axes.set_title("A  nats per new row, against the true kind")
    pictures = np.stack([functions[name].reshape(NUM_CAUSES, SIDE, SIDE) for name in names])
    image_grid(right, pictures, title="B  basis functions, true kind", row_labels=names)
