"""Moment inversion beside SVI and NUTS on one clipped Gaussian: correlations and time."""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

from inference.methods.moments.inversion import MomentInversion
from inference.methods.moments.spectrum import (
    implied_correlation,
)
from inference.papers.experiment import Option, Outcome, Page, experiment


@experiment(
    "clipped-baselines",
    "moment inversion, SVI and NUTS on one clipped Gaussian: correlations and time",
    rows=Option(300, "rows of the data", 80, 2),
    columns=Option(8, "columns of the data", 4, 3),
    draws=Option(200, "draws of NUTS, after as many to warm up", 30, 2),
    svi_steps=Option(2000, "steps of SVI", 300, 2),
)
def run_baselines(namespace: argparse.Namespace) -> Outcome:
    """NUTS and SVI on the same program: correlations recovered, and the time it takes."""
    rows, columns, rank = namespace.rows, namespace.columns, 2
    draws, svi_steps = namespace.draws, namespace.svi_steps
    keys = random.split(random.key(namespace.seed), 6)
    sizes = {"num_data": rows, "num_features": columns, "num_factors": rank}
    truth = {
        "weights": random.normal(keys[0], (rank, columns)),
        "bias": random.uniform(keys[1], (columns,), minval=-1.0, maxval=1.0),
    }
    simulate = Predictive(clipped_gaussian, posterior_samples=truth, batch_ndims=0)
    data = jax.jit(lambda key: simulate(key, **sizes)["observed"])(keys[2])
    correlations = jax.jit(implied_correlation)
    wanted = np.asarray(correlations(truth))
    pairs = np.triu_indices(columns, k=1)
    estimates: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, float]] = {}

    def record(name: str, correlation: Array, seconds: float, compiling: float) -> None:
        estimates[name] = np.asarray(correlation)
        error = float(np.abs(estimates[name] - wanted)[pairs].mean())
        times = {"seconds": seconds, "compile_seconds": compiling}
        table[name] = {"mean_abs_error": error, **times}

    def inverted() -> tuple[Any, float]:
        began = time.perf_counter()
        state = jax.block_until_ready(method.invert(keys[3], data, num_factors=rank))
        return state, time.perf_counter() - began

    method = MomentInversion(clipped_gaussian)
    _, cold = inverted()
    state, warm = inverted()
    record("moments, pairs", state.correlation, warm, cold - warm)
    record("moments, factors", correlations(state.params), warm, cold - warm)

    # Both start from the moments' parameters, so that neither loses time looking for them.
    start = init_to_value(values={**state.params})
    guide = AutoNormal(clipped_gaussian, init_loc_fn=start)
    svi = SVI(clipped_gaussian, guide, Adam(0.02), Trace_ELBO())

    def guided(key: Array) -> Any:
        params = svi.run(key, svi_steps, data, num_factors=rank, progress_bar=False).params
        return guide.sample_posterior(key, params, data, num_factors=rank, sample_shape=(200,))

    def sampled(key: Array) -> Any:
        mcmc = MCMC(
            NUTS(clipped_gaussian, init_strategy=start),
            num_warmup=draws, num_samples=draws, progress_bar=False,
        )  # fmt: skip
        mcmc.run(key, data, num_factors=rank)
        return mcmc.get_samples()

    for name, work, key in (("SVI, normal guide", guided, keys[4]), ("NUTS", sampled, keys[5])):
        began = time.perf_counter()
        compiled = jax.jit(work).lower(key).compile()
        ready = time.perf_counter()
        drawn = jax.block_until_ready(compiled(key))
        seconds = time.perf_counter() - ready
        record(name, correlations(drawn).mean(axis=0), seconds, ready - began)
    numbers = {"rows": rows, "columns": columns, "factors": rank, "methods": table}
    size = (3.4 * len(estimates), 4.6)
    return Outcome(numbers, size, _draw_baselines, (wanted[pairs], estimates, table, pairs))


def _draw_baselines(
    page: Page, wanted: np.ndarray, estimates: dict, table: dict, pairs: Any
) -> None:
    axes = page.subplots(1, len(estimates), sharey=True)
    for panel, (name, correlation) in zip(axes, estimates.items(), strict=True):
        panel.axline((0, 0), slope=1, color="black", linewidth=0.8)
        panel.plot(wanted, correlation[pairs], "o", markersize=4, alpha=0.7)
        error, seconds = table[name]["mean_abs_error"], table[name]["seconds"]
        spent = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
        panel.set_title(f"{name}\nerror {error:.3f}, {spent}")
        panel.set(xlabel="true correlation", aspect="equal")
    axes[0].set_ylabel("recovered")
