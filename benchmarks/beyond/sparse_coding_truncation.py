"""Where expectation truncation breaks: bars with more active causes than it allows."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import binary_sparse_coding
from latentbits.models.data import bars
from numpy.typing import ArrayLike

from inference.methods.discrete.em import EM
from inference.methods.discrete.truncated import Cut, TruncatedEM
from inference.methods.discrete.updates import SparseCodingUpdate
from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.papers.sparse_coding import selection
from inference.running.contract import follow

ACTIVE, ALLOWED = (1.0, 2.0, 3.0, 4.0, 5.0), 3
"""Causes that are active in an image, on average, and how many the truncation allows."""


class Truncation(NamedTuple):
    """What a truncation makes of data with more and more active causes."""

    active: Any  # (sizes,) the true πH
    learned: dict[str, Any]  # method -> (trials, sizes) πH after EM from the truth
    noise: dict[str, Any]  # and σ
    missed: Any  # (trials, sizes) posterior mass outside 𝒦ₙ at the truth
    estimated: Any  # (trials, sizes) what the method itself says of that


def truncation_limits(
    key: Array, active: ArrayLike, *, num_data: int, num_trials: int, num_steps: int
) -> Truncation:
    """Bars with πH on both sides of γ: exact EM beside truncated EM, with and without eq. (8).

    All start from the true parameters, so that what is lost is lost by the truncation alone.
    """
    model, num_causes = binary_sparse_coding, 10
    limits: dict[str, Any] = {"max_active": ALLOWED, "num_candidates": 5, "keep": False}
    exact = EM(model)
    corrected = TruncatedEM(model, select=selection, cut=Cut(0, 1), **limits)
    plain = TruncatedEM(model, select=selection, m_step=SparseCodingUpdate(), **limits)
    methods = {"exact": exact, "truncated, (8) and the cut": corrected, "truncated": plain}

    def fit(key: Array, active: Array) -> Truncation:
        truth = bars(key, num_data, active=active)
        params = {"weights": truth.weights, "noise": truth.noise, "sparsity": truth.sparsity}
        learned, noise = {}, {}
        for name, method in methods.items():
            state = method.init(key, truth.data, init_params=params, num_causes=num_causes)
            state, _ = follow(method, state, num_steps, truth.data, num_causes=num_causes)
            learned[name] = num_causes * state.params["sparsity"]
            noise[name] = state.params["noise"]
        whole = exact.posterior(params, truth.data, num_causes=num_causes).evidence
        part = corrected.posterior(params, truth.data, num_causes=num_causes)
        missed = 1 - jnp.exp(part.evidence - whole)
        return Truncation(active, learned, noise, missed.mean(), part.missed.mean())

    sizes = jnp.asarray(active, float)
    keys = random.split(key, num_trials)
    across = jax.vmap(jax.vmap(fit, in_axes=(None, 0)), in_axes=(0, None))
    # It runs once, for a few seconds, and is compiled as long.
    compiled = jax.jit(across)
    return jax.device_get(compiled(keys, sizes))._replace(active=np.asarray(sizes))


@experiment(
    "bsc-truncation",
    "where the truncation breaks: bars with more active causes than it allows",
    trials=Option(5, "sets of data", 1, 1),
    num_data=Option(500, "rows of a set", 30, 1),
    steps=Option(15, "steps of EM", 2, 1),
)
def run_truncation(options: argparse.Namespace) -> Outcome:
    """`bsc-truncation`: πH and σ that EM ends at, and the posterior mass that it leaves out."""
    limits = truncation_limits(
        random.key(options.seed), ACTIVE, num_data=options.num_data, num_trials=options.trials,
        num_steps=options.steps,
    )  # fmt: skip
    numbers = {
        f"πH = {true:g}": {
            **{f"πH, {name}": float(x[:, i].mean()) for name, x in limits.learned.items()},
            **{f"σ, {name}": float(x[:, i].mean()) for name, x in limits.noise.items()},
            "posterior mass left out": float(limits.missed[:, i].mean()),
            "the same, as estimated": float(limits.estimated[:, i].mean()),
        }
        for i, true in enumerate(ACTIVE)
    }
    return Outcome(numbers, (13, 4.0), draw_truncation, (limits,))


def draw_truncation(page: Page, limits: Truncation) -> None:
    """Estimated against true πH, and the posterior mass that the truncation misses."""
    axes = page.subplots(1, 3)
    axes[0].plot(limits.active, limits.active, color="black", linestyle=":", linewidth=1)
    axes[1].axhline(2.0, color="black", linestyle=":", linewidth=1)
    for panel, values in zip(axes, (limits.learned, limits.noise), strict=False):
        for mark, name in zip("osD", sorted(values), strict=True):
            panel.plot(limits.active, values[name].mean(0), marker=mark, label=name)
    missed = {"true": limits.missed, "as estimated": limits.estimated}
    for mark, (name, share) in zip("o+", missed.items(), strict=True):
        axes[2].plot(limits.active, share.mean(0), marker=mark, markersize=9, label=name)
    axes[0].set(title="A  estimate of πH, the active causes", ylabel="after EM from the truth")
    axes[1].set(title="B  estimate of the noise σ")
    axes[2].set(title="C  posterior mass left out", ylim=(0, 1))
    for panel in axes:
        panel.axvline(ALLOWED, color="black", linewidth=0.8)
        panel.set(xlabel="true πH; the line is γ")
    axes[0].legend()
    axes[2].legend()
