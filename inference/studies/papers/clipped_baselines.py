"""Generic samplers beside moment inversion, on the same clipped Gaussian program."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array, random
from latentbits.models import clipped_gaussian
from latentbits.models.data import InputError

from ...methods.moments.inversion import MomentInversion
from ...methods.moments.spectrum import implied_correlation
from ...numerics.compiling import once
from .experiment import Experiment, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_baselines(namespace: argparse.Namespace) -> Outcome:
    """NUTS and SVI on the same program: correlations recovered, and the time it takes."""
    from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    rows, columns, rank = namespace.rows, namespace.columns, 2
    draws, svi_steps = namespace.draws, namespace.svi_steps
    if min(rows, draws, svi_steps) < 2 or columns < 3:
        raise InputError("--rows, --draws and --svi-steps must be at least 2, --columns 3")
    keys = random.split(random.key(namespace.seed), 6)
    sizes = {"num_data": rows, "num_features": columns, "num_factors": rank}
    truth = {
        "weights": random.normal(keys[0], (rank, columns)),
        "bias": random.uniform(keys[1], (columns,), minval=-1.0, maxval=1.0),
    }
    simulate = Predictive(clipped_gaussian, posterior_samples=truth, batch_ndims=0)
    data = once(lambda key: simulate(key, **sizes)["observed"])(keys[2])
    correlations = once(implied_correlation)
    wanted = np.asarray(correlations(truth))
    pairs = np.triu_indices(columns, k=1)
    estimates: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, float]] = {}

    def record(name: str, correlation: Array, seconds: float, compiling: float) -> None:
        estimates[name] = np.asarray(correlation)
        error = np.abs(estimates[name] - wanted)[pairs]
        table[name] = {
            "mean_abs_error": float(error.mean()),
            "seconds": seconds,
            "compile_seconds": compiling,
        }

    def timed(work: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        return jax.block_until_ready(work()), time.perf_counter() - began

    def apart(work: Any, key: Array) -> tuple[Any, float, float]:
        """What a function of a key gives, its seconds, and those to compile it."""
        ready, compiling = timed(lambda: jax.jit(work).lower(key).compile())
        return *timed(lambda: ready(key)), compiling

    method = MomentInversion(clipped_gaussian)
    _, cold = timed(lambda: method.invert(keys[3], data, num_factors=rank))
    state, warm = timed(lambda: method.invert(keys[3], data, num_factors=rank))
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
        drawn, seconds, compiling = apart(work, key)
        record(name, correlations(drawn).mean(axis=0), seconds, compiling)
    numbers = {"rows": rows, "columns": columns, "factors": rank, "methods": table}
    return Outcome(numbers, lambda: _draw_baselines(wanted[pairs], estimates, table, pairs))


def baselines_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=300, help="of the data (default 300)")
    parser.add_argument("--columns", type=int, default=8, help="of the data (default 8)")
    parser.add_argument("--draws", type=int, default=200, help="of NUTS, after as many to warm up")
    parser.add_argument("--svi-steps", type=int, default=2000, help="of SVI (default 2000)")


def _draw_baselines(wanted: np.ndarray, estimates: dict, table: dict, pairs: Any) -> Figure:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(estimates), figsize=(3.4 * len(estimates), 4.6), sharey=True
    )
    for panel, (name, correlation) in zip(axes, estimates.items(), strict=True):
        panel.axline((0, 0), slope=1, color="black", linewidth=0.8)
        panel.plot(wanted, correlation[pairs], "o", markersize=4, alpha=0.7)
        error, seconds = table[name]["mean_abs_error"], table[name]["seconds"]
        spent = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
        panel.set_title(f"{name}\nerror {error:.3f}, {spent}")
        panel.set(xlabel="true correlation", aspect="equal")
    axes[0].set_ylabel("recovered")
    return figure


EXPERIMENTS = (
    Experiment(
        "clipped-baselines",
        "moment inversion, SVI and NUTS on one clipped Gaussian: correlations and time",
        run_baselines,
        {"rows": 80, "columns": 4, "draws": 30, "svi_steps": 300},
        baselines_options,
    ),
)
